package vip

import (
	"net/netip"
	"time"
)

// A Plan is all that this node should be: each slice is all that is wanted of one room. What it lacks is taken away.
type Plan struct {
	Owners        []Owner // of all units that this node knows
	HealthChecks  []HealthCheck
	AddressChecks []AddressCheck   // one per address
	FormerOwners  []FormerOwner    // in place before Addresses are bound
	Translations  []Translation    // likewise
	OpenPorts     []OpenPort       // in place before Addresses are bound
	Balanced      []BalancedServer // sorted by To
	Egress        []Egress         // older Services first
	// Egress is not known: the kernel keeps an earlier process's (World.EgressPodsPending)
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
	// Events are not known, since a renewal is late: former ones hold
	EventsPending bool
	Verdicts      []Verdict // one per Service of type LoadBalancer, sorted by Key

	// ReplanAfter is when the plan would differ without any change, or zero.
	ReplanAfter time.Duration
}

// An Owner is where the plan has a unit, named by its lease: Services announced by one node. This node gives back what
// is in no Plan.
type Owner struct {
	Unit  Key
	Node  string // the node that is to have it, or has it; "": no node may
	Cause string // why it goes to Node, or ""
	// Stays: another node has it; or no Service, and an address could not be removed yet; or one without endpoints.
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
	// LocalDelivery: connections end in a process here (the API server), and are reset when the VIP moves, except a
	// Translation's. Those to Services end in Pods.
	LocalDelivery bool
	// ResetTranslated: a Translation's are reset, too.
	ResetTranslated bool
	// Epoch is its Tenure's. It is bound, and renewed, in no other.
	Epoch int64 `json:",omitzero"`
	// Until is when the kernel must have dropped it; zero: while the Tenure lasts.
	Until time.Time `json:",omitzero"`
}

// Prefix is the address with its prefix length.
func (a Address) Prefix() netip.Prefix { return netip.PrefixFrom(a.Addr, a.Bits) }

// An Announcement is a VIP to announce on a link by gratuitous ARP or unsolicited neighbor advertisements.
type Announcement struct {
	Addr netip.Addr
	Link string
	// ListenOnly: no announcement, only answers, and World.Heard of others.
	ListenOnly bool
}

// A HealthCheck asks kube-proxy (healthCheckNodePort) whether this node serves a Service of policy Local.
type HealthCheck struct {
	Service Key
	Port    uint16
	Hosts   []netip.Addr // this node's addresses: kube-proxy may listen on all or some of them
}

// A Status is what a Service's status should say; without Ingress it is cleared.
type Status struct {
	Service   Key
	UID       string
	Ingress   []Ingress
	VIPHost   string // kube-vip.io/vipHost; "" removes the annotation
	Announcer string // heraldvip.io/announcer; "" removes the annotation
	// DHCPLeases is what was leased for it (heraldvip.io/dhcp-lease, and addresses in kube-vip.io/requestedIP). None
	// removes only the former, so that the same address is asked for next time.
	DHCPLeases []DHCPLease
	Finalizer  FinalizerChange
	// Conditions are those that the Service is to have, or not (ConditionAbsent). Others stay.
	Conditions []Condition
	// ConditionsOnly: only Conditions are meant.
	ConditionsOnly bool
}

// A FinalizerChange is of service.kubernetes.io/load-balancer-cleanup (docs/why.md, "Finalizer and uninstall").
type FinalizerChange string

// The changes of a finalizer.
const (
	LeaveFinalizer  FinalizerChange = ""       // it may be another controller's
	AddFinalizer    FinalizerChange = "add"    // unless the Service is being deleted
	RemoveFinalizer FinalizerChange = "remove" // nothing of the Service is left
)

// An Event is something a Service's user must know; Kubernetes gets it.
type Event struct {
	Service Key    // or another object
	Kind    string // of that object; "" for a Service
	UID     string
	Warning bool
	Reason  Reason
	Message string
	// Occurrence tells equal Events of different happenings apart (a VIP that came back).
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
