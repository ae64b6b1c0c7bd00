package vip

import (
	"net/netip"
	"time"
)

// A World is what a pass of the agent may know: each room's observations, never changed once read.
type World struct {
	Now      time.Time
	Self     string // this node's name
	Stopping bool   // this process was asked to stop: hand every VIP over

	// From the API server.
	Synced   bool // the caches have been filled at least once
	Services []Service
	Nodes    []Node
	Reserved []ReservedRange // ranges no VIP may be of

	StatusesPending int            // statuses of Services that are planned and not written yet
	StatusRefusals  map[Key]string // why the API server does not take the status of a Service, and what to do
	StatusFights    map[Key]string // who changes what this node writes on a Service again and again, by Service

	// From the pools.
	// as the API server has it, or had last; nil: none since this process began
	Pools *PoolSource
	// PoolsRefused: the ConfigMap of pools may not be read.
	PoolsRefused bool
	// of the node that allocates: what Services don't show yet, and who waits, by Service
	Assignments []Assignment
	// AssignmentRefusals is why the API server refuses given addresses, by Service.
	AssignmentRefusals map[Key]string
	PoolProblems       []PoolProblem // sorted by key
	PoolPolicy         PoolPolicy    // of Pools, or of what it said before; nil until that is read

	// From the leases.
	Members     []Member      // sorted by name; this node is one of them once it has a node lease
	Claims      map[Key]Claim // by unit: what the table says of it; absent if it says nothing
	Tenure      Tenure
	StopTold    bool                // this node's lease says that it stops
	HandingOver map[Key]HandingOver // by unit: given to a successor, while this node still answers

	// From the gateways of this node's links (UPnP).
	MappingStates []MappingState // sorted by VIP, port, protocol and gateway

	// From this node's kernel and wire.
	Bound     []Address // VIPs of ours that the kernel has
	Unmanaged []Address // VIPs that the kernel has and no Herald has bound
	// AddressFights is the VIPs that another program removes here again and again.
	AddressFights map[netip.Addr]bool
	FormerOwners  []FormerOwner                    // what nftables has
	Heard         map[netip.Addr]HeardAnnouncement // the last announcement by another host
	// by Service: its HealthCheck has passed, or waited long enough
	HealthChecked map[Key]bool

	CheckResults map[netip.Addr]CheckResult // by address; absent until there is a result

	// DataPlaneFault is NodeInfo.DataPlaneFault of this node, once all had time to read each other's, or "".
	DataPlaneFault string

	// From DHCP.
	Macvlans       []Macvlan         // those that are up, with the MAC and parent asked for
	MacvlanErrors  map[string]string // by name: why a Macvlan is not there
	StrictRPFilter bool              // net.ipv4.conf.all.rp_filter is 1, which wins over a link's 0
	DHCPStates     []DHCPState       // one per DHCPRequest of the last Plan

	// PortsNotLimited is why nftables does not limit ports (OpenPorts), by family.
	PortsNotLimited map[Family]string

	// EgressRefused is why nftables does not take the last Egress, by family.
	EgressRefused map[Family]string
	// EgressPodsPending: this process lists pods with egress for the first time.
	EgressPodsPending bool

	// From this node's BGP speaker.
	BGPSessions []BGPSession // one per peer, in the order of the options
	// routes are about to be withdrawn (RFC 8326), or just were, and routers may still use them
	RoutesDraining bool
	// Advertised are the routes of the last Plan: by BGP, or else those in the routing table
	Advertised map[netip.Prefix]bool
}

// A ReservedRange is a range of addresses that no VIP may be of.
type ReservedRange struct {
	Prefix      netip.Prefix
	Description string // for the message: "the cluster's Service range"
	// if not zero: whose "cluster IP" or "address of a pod" it is
	Service   Key  `json:",omitzero"`
	FromSlice bool // only an EndpointSlice says so, which users may be able to write
}

// A HandingOver is a unit given to a successor, and answered for until that is heard, or Until: make before break.
type HandingOver struct {
	Successor string    // a node's name
	Since     time.Time `json:",omitzero"` // when the write was sent
	Until     time.Time `json:",omitzero"`
	InDoubt   bool      // the write has no answer yet: the successor may not have it
}

// A HeardAnnouncement is another host's gratuitous ARP or unsolicited neighbor advertisement for a planned address.
type HeardAnnouncement struct {
	MAC  string // the announcer's link-layer address
	Link string
	At   time.Time `json:",omitzero"`
}
