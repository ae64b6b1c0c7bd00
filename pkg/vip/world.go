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
	Reserved []ReservedRange // ranges no VIP may be of

	// From the leases.
	Members     []Member      // sorted by name; this node is one of them once it has a node lease
	Claims      map[Key]Claim // by VIP lease; a lease that does not exist is absent
	Tenure      Tenure
	HandingOver map[Key]HandingOver // VIP leases this node has given away and still stands on

	// From the gateways of this node's links (UPnP).
	MappingStates []MappingState // sorted by VIP, port, protocol and gateway

	// From this node's kernel and wire.
	Bound         []Address                        // VIPs of ours that the kernel has
	Unmanaged     []Address                        // VIPs that the kernel has on a link but nobody of ours put there
	Heard         map[netip.Addr]HeardAnnouncement // who else was heard announcing an address
	HealthChecked map[Key]bool                     // by Service: kube-proxy on this node says that it serves it (Local only)

	CheckResults map[netip.Addr]CheckResult // what the neighbours said to Inquiries, as far as it is known

	// From DHCP.
	Macvlans       []Macvlan         // links of ours that are as they should be
	MacvlanErrors  map[string]string // by name: why a Macvlan is not there
	StrictRPFilter bool              // net.ipv4.conf.all.rp_filter is 1, which wins over a link's 0
	DHCPStates     []DHCPState       // what this node asks DHCP servers for

	// From this node's BGP speaker.
	BGPSessions []BGPSession // one per peer, in the order of the options
	BGPDraining bool         // routes that are about to go are shown as such, and routers have not had the time to turn away yet
}

// ReservedRange is a range of addresses that belongs to something else.
type ReservedRange struct {
	Prefix      netip.Prefix
	Description string // for the message: "the cluster's Service range"
}

// HandingOver is a claim handed to another node, on which this one still stands
// until the successor is heard, or until the deadline.
type HandingOver struct {
	Successor string    // the successor
	Since     time.Time // when the lease was written
	Until     time.Time
}

// A HeardAnnouncement is an announcement heard on the wire.
type HeardAnnouncement struct {
	MAC  string // the announcer's link-layer address
	Link string
	At   time.Time
}
