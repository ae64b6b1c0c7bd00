package dhcp

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// An answer6 is what a server said, checked.
type answer6 struct {
	server     string // its DUID in hexadecimal
	preference uint8
	committed  bool // a Reply: no Request is needed
	status     iana.StatusCode
	refusal    string     // why there is no address, or ""
	addr       netip.Addr // zero if none is named
	lease      time.Duration
	infinite   bool
	t1, t2     time.Duration
}

// read reads an answer to this client in the exchange xid, of one of kinds.
func (x *v6) read(b []byte, xid dhcpv6.TransactionID, kinds ...dhcpv6.MessageType) (answer6, error) {
	return read6(b, x.hire.DUID, iaid(x.hire.IAID), xid, kinds...)
}

func read6(b []byte, client string, ia [4]byte, xid dhcpv6.TransactionID, kinds ...dhcpv6.MessageType) (a answer6, err error) {
	// As in read4.
	defer func() {
		if r := recover(); r != nil {
			a, err = answer6{}, fmt.Errorf("an answer can't be decoded: %v", r)
		}
	}()
	m, err := dhcpv6.MessageFromBytes(b)
	if err != nil {
		return a, fmt.Errorf("%w: %w", errOther, err)
	}
	if m.TransactionID != xid || !slices.Contains(kinds, m.MessageType) {
		return a, errOther
	}
	// RFC 8415 section 16.10: with this client's identifier, and a server's.
	if id := m.Options.ClientID(); id == nil || hex.EncodeToString(id.ToBytes()) != client {
		return a, errOther
	}
	server := m.Options.ServerID()
	if server == nil {
		return a, errors.New("an answer names no server")
	}
	a.server = hex.EncodeToString(server.ToBytes())
	if len(a.server) > 2*130 { // RFC 8415 section 11.1
		return a, errors.New("an answer names a server with too long an identifier")
	}
	a.preference = m.Options.Preference()
	a.committed = m.MessageType == dhcpv6.MessageTypeReply
	if a.refuse(m.Options.Status()) {
		return a, nil
	}
	for _, o := range m.Options.IANA() {
		if o.IaId == ia {
			return a, a.terms(o)
		}
	}
	return a, nil
}

// refuse takes note of a status that says no.
func (a *answer6) refuse(s *dhcpv6.OptStatusCode) bool {
	if s == nil || s.StatusCode == iana.StatusSuccess {
		return false
	}
	a.status = s.StatusCode
	a.refusal = fmt.Sprintf("the server %s says %s %s", a.server, s.StatusCode, printable(s.StatusMessage))
	return true
}

// terms reads what is offered.
func (a *answer6) terms(o *dhcpv6.OptIANA) error {
	if a.refuse(o.Options.Status()) {
		return nil
	}
	over := ""
	for _, offer := range o.Options.Addresses() {
		addr, ok := netip.AddrFromSlice(offer.IPv6Addr)
		valid, preferred := offer.ValidLifetime, offer.PreferredLifetime
		switch {
		case a.refuse(offer.Options.Status()):
			continue
		case !ok || addr.Is4In6() || !addr.IsGlobalUnicast():
			return fmt.Errorf("the server %s offers %s, which no host can have", a.server, offer.IPv6Addr)
		case preferred > valid: // RFC 8415 section 18.2.10.1: to be ignored
			return fmt.Errorf("the server %s offers %s, to be preferred for longer than it is valid", a.server, addr)
		case valid == 0:
			over = addr.String()
			continue
		case valid < least:
			return fmt.Errorf("the server %s leases %s for %v; %v is the least that is of use", a.server, addr, valid, least)
		}
		a.addr, a.lease, a.infinite = addr, valid, valid == forever
		a.status, a.refusal = iana.StatusSuccess, ""
		break
	}
	switch {
	case !a.addr.IsValid() && a.refusal == "" && over != "":
		a.refusal = fmt.Sprintf("the server %s says that the lease of %s is over", a.server, over)
		return nil
	case !a.addr.IsValid() || a.infinite:
		return nil
	case o.T1 > o.T2 && o.T2 > 0:
		return fmt.Errorf("the server %s wants renewal later than rebinding", a.server)
	}
	a.t1, a.t2 = o.T1, o.T2
	if a.t2 < time.Second || a.t2 >= a.lease {
		a.t2 = a.lease / 5 * 4 // in this order: nanoseconds overflow
	}
	if a.t1 < time.Second || a.t1 >= a.t2 {
		a.t1 = min(a.lease/2, a.t2/8*5)
	}
	return nil
}

func (a answer6) contract(mac string, sent time.Time) vip.DHCPLease {
	k := vip.DHCPLease{Addr: a.addr, Bits: 128, MAC: mac, Server: a.server}
	if !a.infinite && a.addr.IsValid() {
		k.Expires, k.Renews, k.Rebinds = sent.Add(a.lease), sent.Add(a.t1), sent.Add(a.t2)
	}
	return k
}
