package vip

import (
	"net/netip"
	"time"
)

// A Plan is all that this node should be: each slice is the whole of what is
// wanted of one room. What a Plan doesn't hold is taken away.
type Plan struct {
	Owners        []Owner // of all units that this node knows
	HealthChecks  []HealthCheck
	AddressChecks []AddressCheck   // one per address
	FormerOwners  []FormerOwner    // in place before Addresses are bound
	Translations  []Translation    // likewise
	OpenPorts     []OpenPort       // in place before Addresses are bound
	Balanced      []BalancedServer // sorted by To
	Egress        []Egress         // older Services first
	// Egress is not known yet: what the kernel has of an earlier process stays (World.EgressPodsPending)
	EgressPending bool
	Addresses     []Address
	Announcements []Announcement
	Macvlans      []Macvlan
	DHCPRequests  []DHCPRequest
	Routes        []Route   // sorted by prefix
	Mappings      []Mapping // of all nodes: see Mapping.Here
	Statuses      []Status
	Pools         []PoolInput  // one, or none
	Assignments   []Assignment // to be written on Services
	Events        []Event
	// Events are not known, since a renewal of the node lease is late: those of before go on to hold
	EventsPending bool
	Verdicts      []Verdict // one per Service of type LoadBalancer, sorted by Key

	// ReplanAfter, if not zero, is the time after which the plan would be another although
	// nothing changed.
	ReplanAfter time.Duration
}

// An Owner is where the plan has a unit: Services that are announced by one node, named by their lease. A unit that
// this node owns and that is in no Plan is given back after a while.
type Owner struct {
	Unit  Key
	Node  string // the node that is to have it, or has it; "": no node may
	Cause string // why it goes to Node, or ""
	// Stays: it stays where it is: another node has it, or no Service, and an address of it could not be removed yet.
	Stays bool
}

// An Address is a VIP to be bound to a link of this node.
type Address struct {
	Addr  netip.Addr
	Bits  int    // prefix length
	Link  string // interface name
	Lease Key    // the unit that must be owned for it; zero: several nodes have it at once
	// New: no node has announced it before, so another host may have it.
	New bool
	// LocalDelivery: connections to it end in a process of this node (the API server), so
	// they must be reset when the VIP moves, but for those of a Translation. Those to Services end in Pods.
	LocalDelivery bool
	// ResetTranslated: those of a Translation are to be reset, too.
	ResetTranslated bool
	// Epoch is that of the Tenure by which it was planned. It is bound, and renewed, in no other.
	Epoch int64 `json:",omitzero"`
	// Until, if not zero, is when the kernel must have dropped it at the latest.
	// Zero: as long as the node's Tenure lasts.
	Until time.Time `json:",omitzero"`
}

// Prefix is the address with its prefix length.
func (a Address) Prefix() netip.Prefix { return netip.PrefixFrom(a.Addr, a.Bits) }

// An Announcement is a VIP to be announced on a link by gratuitous ARP or unsolicited
// neighbor advertisements.
type Announcement struct {
	Addr netip.Addr
	Link string
	// ListenOnly: do not announce it, only record in World.Heard who else does.
	ListenOnly bool
}

// A HealthCheck asks the healthCheckNodePort of a Service with externalTrafficPolicy
// Local, which kube-proxy on this node answers, whether this node serves the Service.
type HealthCheck struct {
	Service Key
	Port    uint16
	Hosts   []netip.Addr // this node's addresses: kube-proxy may listen on all or some of them
}

// A Status is what a Service's status should say. A Status without Ingress
// clears what an announcer wrote there.
type Status struct {
	Service   Key
	Ingress   []Ingress
	VIPHost   string // kube-vip.io/vipHost; "" removes the annotation
	Announcer string // heraldvip.io/announcer; "" removes the annotation
	// DHCPLeases is what DHCP servers have leased for it (heraldvip.io/dhcp-lease, and their
	// addresses in kube-vip.io/requestedIP). None removes the first of these
	// annotations and leaves the second, so that the same address is asked for next time.
	DHCPLeases []DHCPLease
	Finalizer  FinalizerChange
	// Conditions are those of Herald that the Service is to have, or not (ConditionAbsent). Others are left alone.
	Conditions []Condition
	// ConditionsOnly: nothing but Conditions is meant; the rest stays as it is.
	ConditionsOnly bool
}

// A FinalizerChange says what to do about the finalizer of load balancers,
// service.kubernetes.io/load-balancer-cleanup (docs/why.md, "Finalizer and uninstall").
type FinalizerChange string

// The changes of a finalizer.
const (
	LeaveFinalizer  FinalizerChange = ""       // it may be another controller's
	AddFinalizer    FinalizerChange = "add"    // unless the Service is being deleted
	RemoveFinalizer FinalizerChange = "remove" // nothing of the Service is left
)

// An Event is something the user of a Service must know. It becomes a Kubernetes Event
// on the Service.
type Event struct {
	Service Key    // or another object
	Kind    string // of that object; "" for a Service
	UID     string
	Warning bool
	Reason  Reason
	Message string
	// Occurrence tells two Events apart that read the same but are two happenings
	// (a VIP that came back to the node it had left).
	Occurrence int64
}

// A Verdict says what becomes of a Service, and why.
type Verdict struct {
	Service       Key
	Addresses     []netip.Addr
	Lease         Key    // the lease that decides who owns it; zero if it isn't ours
	Owner         string // the node that owns it, or ""
	AnnouncedHere bool   // this node announces it
	Reason        Reason
	Message       string // in plain words, why it is so
}
