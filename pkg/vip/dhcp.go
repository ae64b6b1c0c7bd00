package vip

import (
	"net/netip"
	"time"
)

// A Macvlan is a link that Herald makes for a leased VIP to have its own MAC.
type Macvlan struct {
	Name     string
	Parent   string // the link it sits on
	MAC      string // as net.HardwareAddr writes it
	RPFilter int    // net.ipv4.conf.<name>.rp_filter: 0, 1 or 2
	IPv6     bool   // it needs a link-local address, from which DHCPv6 asks (RFC 8415 section 5)
}

// A DHCPRequest is an address to lease. ID, which is the client to servers, and Family identify it.
type DHCPRequest struct {
	ID     string // a Service's UID, or what Services with one macvlan have in common
	Family Family

	Link      string // the Macvlan to ask on
	Parent    string // the link it sits on: on another one a server of another network answers
	MAC       string
	DUID      string // the client's identifier in DHCPv6 (RFC 8415 section 11), in hexadecimal
	IAID      uint32 // RFC 8415 section 12
	Hostname  string // option 12, or the FQDN option of DHCPv6; may be empty
	Broadcast bool   // ask for answers by broadcast (RFC 2131 section 4.1)

	Requested netip.Addr // the address to ask for first; zero if any will do
	LastLease DHCPLease  // what the server has leased to this client before, as recorded; its Addr is zero if nothing is

	Declined    netip.Addr // do not accept this one: it is in use, or not for a VIP
	DeclinedWhy string     // why, for the server's log and ours
	Release     bool       // give the lease back: nobody wants it any more
}

// A DHCPLease is a lease that a DHCP server has granted.
type DHCPLease struct {
	Addr    netip.Addr `json:"address"`
	Bits    int        `json:"bits"`             // length of the subnet's prefix; 128 for DHCPv6, which tells none
	MAC     string     `json:"mac"`              // the client's
	Server  string     `json:"server,omitempty"` // its address, or its DUID in hexadecimal
	Router  netip.Addr `json:"router,omitzero"`  // DHCPv4 option 3; Herald routes nothing by it
	Expires time.Time  `json:"expires,omitzero"` // zero: never
	Renews  time.Time  `json:"-"`                // T1
	Rebinds time.Time  `json:"-"`                // T2
}

// Valid reports whether c has an address that is leased at now.
func (c DHCPLease) Valid(now time.Time) bool {
	return c.Addr.IsValid() && (c.Expires.IsZero() || now.Before(c.Expires))
}

// A DHCPState is the state of the client for one DHCPRequest.
type DHCPState struct {
	Request DHCPRequest
	State   string    // as RFC 2131 section 4.4 names them, in lower case
	Lease   DHCPLease // its Addr is zero while nothing is leased
	// Lost: a lease has ended (expired, refused, address in use), or the recorded one was over.
	Lost    bool
	Problem string // what went wrong last, and what was tried; "" while all is well
}
