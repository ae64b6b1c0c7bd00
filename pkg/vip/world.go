package vip

import (
	"net/netip"
	"time"
)

// A World is all that a pass of the agent may know: what the caches and the
// rooms have observed. It is a value; nothing in it is changed after it was read.
type World struct {
	Now      time.Time
	Self     string // this node's name
	Stopping bool   // this process was asked to stop: give everything away

	// From the API server.
	Synced   bool // the caches have been filled at least once
	Services []Service
	Nodes    []Node
	Reserved []Reserved // ranges no VIP may be of

	// From the leases.
	Members []Member      // sorted by name; this node is one of them once it has a node lease
	Claims  map[Key]Claim // by VIP lease; a lease that does not exist is absent
	Tenure  Tenure
	Leaving map[Key]Leaving // VIP leases this node has given away and still stands on

	// From the gateways of this node's links (UPnP).
	Mapped []Mapped // sorted by VIP, port, protocol and gateway

	// From this node's kernel and wire.
	Bound []Address            // VIPs of ours that the kernel has
	Stray []Address            // VIPs that the kernel has on a link but nobody of ours put there
	Heard map[netip.Addr]Sound // who else was heard announcing an address
	Ready map[Key]bool         // by Service: kube-proxy on this node says that it serves it (Local only)

	Findings map[netip.Addr]Finding // what the neighbours said to Inquiries, as far as it is known

	// From DHCP.
	Macvlans []Macvlan         // links of ours that are as they should be
	NoLink   map[string]string // by name: why a Macvlan is not there
	Strict   bool              // net.ipv4.conf.all.rp_filter is 1, which wins over a link's 0
	Hired    []Hired           // what this node asks DHCP servers for

	// From this node's BGP speaker.
	Sessions []Session // one per peer, in the order of the options
	Draining bool      // routes that are about to go are shown as such, and routers have not had the time to turn away yet
}

// Reserved is a range of addresses that belongs to something else.
type Reserved struct {
	Prefix netip.Prefix
	What   string // for the message: "the cluster's Service range"
}

// Leaving is a claim handed to another node, on which this one still stands
// until the successor is heard, or until the deadline.
type Leaving struct {
	To    string    // the successor
	Since time.Time // when the lease was written
	Until time.Time
}

// A Sound is an announcement heard on the wire.
type Sound struct {
	MAC  string // the announcer's link-layer address
	Link string
	At   time.Time
}
