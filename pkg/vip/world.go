package vip

import (
	"net/netip"
	"time"
)

// A World is all that a pass of the agent may know: what each room has observed. It
// is a value; nothing in it is changed after it was read.
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
	StatusRefusals  map[Key]string // why the API server does not take the status of a Service, by Service
	StatusFights    map[Key]string // who changes what this node writes on a Service again and again, by Service

	// From the pools.
	// as the API server has it, or had last; nil: there has been no ConfigMap of pools since this process began
	Pools *PoolSource
	// PoolsRefused: the ConfigMap of pools may not be read, and what it says is not known.
	PoolsRefused bool
	// of the node that allocates: what is not seen on Services yet, and who waits, sorted by Service
	Assignments []Assignment
	// AssignmentRefusals is why the API server does not take an address that a Service was given, by Service.
	AssignmentRefusals map[Key]string
	PoolProblems       []PoolProblem // sorted by key
	PoolPolicy         PoolPolicy    // of Pools, or of what it said before; nil until that is read

	// From the leases.
	Members     []Member      // sorted by name; this node is one of them once it has a node lease
	Claims      map[Key]Claim // by unit: what the table says of it; absent if it says nothing
	Tenure      Tenure
	HandingOver map[Key]HandingOver // by unit: given to a successor, while this node still answers

	// From the gateways of this node's links (UPnP).
	MappingStates []MappingState // sorted by VIP, port, protocol and gateway

	// From this node's kernel and wire.
	Bound     []Address // VIPs of ours that the kernel has
	Unmanaged []Address // VIPs that the kernel has and no Herald has bound
	// AddressFights is the VIPs that another program takes off this node again and again.
	AddressFights map[netip.Addr]bool
	FormerOwners  []FormerOwner                    // what nftables has
	Heard         map[netip.Addr]HeardAnnouncement // the last announcement by another host
	// by Service: its HealthCheck has passed, or waited for an answer long enough
	HealthChecked map[Key]bool

	CheckResults map[netip.Addr]CheckResult // by address; absent until there is a result

	// DataPlaneFault is NodeInfo.DataPlaneFault of this node once the others have had time to
	// read it, and this node to read theirs; "" if there is none.
	DataPlaneFault string

	// From DHCP.
	Macvlans       []Macvlan         // those that are up, with the MAC and parent asked for
	MacvlanErrors  map[string]string // by name: why a Macvlan is not there
	StrictRPFilter bool              // net.ipv4.conf.all.rp_filter is 1, which wins over a link's 0
	DHCPStates     []DHCPState       // one per DHCPRequest of the last Plan

	// PortsNotLimited is why nftables does not limit the ports of VIPs of a family, as OpenPorts of the last Plan asked
	// for; nothing if it does.
	PortsNotLimited map[Family]string

	// EgressRefused is why nftables does not take Egress of the last Plan for VIPs of a family; nothing if it does.
	EgressRefused map[Family]string
	// EgressPodsPending: the pods of Services with egress are being listed for the first time since this process began.
	EgressPodsPending bool

	// From this node's BGP speaker.
	BGPSessions []BGPSession // one per peer, in the order of the options
	// routes are about to be withdrawn (RFC 8326), or just were, and routers may still send by them
	RoutesDraining bool
}

// A ReservedRange is a range of addresses that no VIP may be of.
type ReservedRange struct {
	Prefix      netip.Prefix
	Description string // for the message: "the cluster's Service range"
	// if not zero: the Service of which it is that, "the cluster IP" or "the address of a pod"
	Service   Key  `json:",omitzero"`
	FromSlice bool // only an EndpointSlice says so, which users may be able to write
}

// A HandingOver is a unit that this node has given to a successor. It goes on
// answering for the VIPs until the successor's announcement is heard, or until Until:
// make before break.
type HandingOver struct {
	Successor string    // a node's name
	Since     time.Time `json:",omitzero"` // when the write was sent
	Until     time.Time `json:",omitzero"`
}

// A HeardAnnouncement is a gratuitous ARP packet or an unsolicited neighbor
// advertisement that another host sent for an address of the Plan.
type HeardAnnouncement struct {
	MAC  string // the announcer's link-layer address
	Link string
	At   time.Time `json:",omitzero"`
}
