package vip

// A Reason is the short name of a verdict or an Event, in CamelCase.
type Reason string

// Reasons of Events and of verdicts in /debug/plan; Reasons has their meaning.
const (
	VIPAnnounced         Reason = "VIPAnnounced"
	VIPMoved             Reason = "VIPMoved"
	VIPWithdrawn         Reason = "VIPWithdrawn"
	VIPElsewhere         Reason = "VIPElsewhere"
	VIPClaiming          Reason = "VIPClaiming"
	NoAddress            Reason = "NoAddress"
	AddressRefused       Reason = "AddressRefused"
	AddressConflict      Reason = "AddressConflict"
	AddressOffLink       Reason = "AddressOffLink"
	InvalidField         Reason = "InvalidField"
	NoEndpoints          Reason = "NoEndpoints"
	NoEligibleNode       Reason = "NoEligibleNode"
	NoBGPSession         Reason = "NoBGPSession"
	LocalNoElection      Reason = "LocalWithoutElection"
	HeldByOtherAnnouncer Reason = "HeldByOtherAnnouncer"
	UnmanagedAddress     Reason = "UnmanagedAddress"
	PortMapped           Reason = "PortMapped"
	PortNotMapped        Reason = "PortNotMapped"
	AddressInUse         Reason = "AddressInUse"
	FormerOwnerAnswers   Reason = "FormerOwnerAnswers"
	VIPUnanswered        Reason = "VIPUnanswered"
	VIPForeignMAC        Reason = "VIPForeignMAC"
	VIPAnswered          Reason = "VIPAnswered"
	DHCPPending          Reason = "DHCPPending"
	DHCPFailed           Reason = "DHCPFailed"
	NotLoadBalancer      Reason = "NotLoadBalancer"
	OtherClass           Reason = "OtherClass"
	Ignored              Reason = "Ignored"
	ServiceDeleted       Reason = "ServiceDeleted"
	NodeNameInUse        Reason = "NodeNameInUse"
	NodeLeaseNotHeld     Reason = "NodeLeaseNotHeld"
	AddressAllocated     Reason = "AddressAllocated"
	NoPoolAddress        Reason = "NoPoolAddress"
	StatusRefused        Reason = "StatusRefused"
	FamilyMissing        Reason = "FamilyMissing"
	StatusContested      Reason = "StatusContested"
	AddressContested     Reason = "AddressContested"
	AddressSet           Reason = "AddressSet"
	AddressOutsidePools  Reason = "AddressOutsidePools"
	PoolProblemFound     Reason = "PoolProblem"
	EgressUnavailable    Reason = "EgressUnavailable"
)

// A ReasonInfo explains a Reason.
type ReasonInfo struct {
	Reason  Reason
	Event   bool // it appears as an Event on the Service
	Warning bool // the Event is of type Warning
	Meaning string
}

// Reasons explains every Reason; the generated reference comes from it.
var Reasons = []ReasonInfo{
	{VIPAnnounced, true, false, "A node announces the Service's VIPs; the message says which node, link and addresses."},
	{VIPMoved, true, false, "The VIPs went from one node to another; the message says which and why."},
	{VIPWithdrawn, true, false, "The Service is no longer announced by anybody; the message says why."},
	{VIPElsewhere, false, false, "Another node announces the VIPs."},
	{VIPClaiming, false, false, "No node owns the VIPs yet, and one is about to be given them."},
	{NoAddress, true, false, "The Service names no address (kube-vip.io/loadbalancerIPs, spec.loadBalancerIP). It " +
		"waits for one."},
	{AddressRefused, true, true, "The Service asks for an address it may not take: a node's, be it another program's; " +
		"a gateway's or a BGP peer's; an API server's; a network or broadcast address; one of a cluster or pod range or " +
		"of svc_reserved; loopback, multicast, link-local, `0.0.0.0` or `::` without vip_arp, or of a family the Service " +
		"does not have."},
	{AddressConflict, true, true, "Another Service has the address and keeps it: one of another namespace, which has " +
		"not consented to share it (heraldvip.io/sharing-key), or one with the same port and protocol. The one whose " +
		"status names it has it; if there is none, the one that a node owns by the table, then the older."},
	{AddressOffLink, true, false, "The VIP is announced by ARP or NDP alone, on a link in none of whose networks it " +
		"is. Hosts there reach it only if they have a route to it over that link."},
	{InvalidField, true, true, "An annotation, or spec.loadBalancerIP, can't be read, is not known, or asks for what " +
		"is not enabled; the message names it and says what would be right."},
	{NoEndpoints, true, false, "No endpoint of the Service is ready, so no node announces its VIPs. Its status goes " +
		"on naming them."},
	{NoEligibleNode, true, true, "No node may carry the VIPs at present; the message lists why, node by node."},
	{NoBGPSession, true, true, "The node that is to advertise the VIPs has no BGP session with a peer to which they " +
		"are advertised, or none that takes the family of one of them, so no router knows of them; the message lists " +
		"why, peer by peer."},
	{LocalNoElection, true, true, "The VIP is announced by ARP, externalTrafficPolicy is Local, but svc_election is " +
		"false: one node owns all VIPs, whether it has an endpoint or not, so traffic may be dropped."},
	{HeldByOtherAnnouncer, true, false, "Another announcer holds the Service's lease and renews it. Herald waits " +
		"until it stops."},
	{UnmanagedAddress, true, true, "A node has the VIP on a link although Herald did not put it there and does not " +
		"own it."},
	{PortMapped, true, false, "Gateways forward ports to the VIP (UPnP); the message says which, from which external " +
		"address, and how long each mapping is asked for at a time."},
	{PortNotMapped, true, true, "A port that should be open on a gateway (UPnP) is not; the message says why, and " +
		"what to change."},
	{AddressInUse, true, true, "Another host has the address already, so the VIP is not announced; the message says " +
		"which MAC answers for it. It is asked again, and the VIP announced once it is free."},
	{FormerOwnerAnswers, true, true, "The owner does not bind the VIP, because an earlier owner still answers for " +
		"it, or a switch in its place (ARP suppression). That node is not heard, and not known to be dead. The message has " +
		"its name, its MAC, and what to do."},
	{VIPUnanswered, true, true, "A node owns the VIP, but did not reply to ARP requests or neighbor solicitations of " +
		"another node."},
	{VIPForeignMAC, true, true, "A host that does not own the VIP answers for it, or announces it; the message has " +
		"its MAC. Some clients may reach that host."},
	{VIPAnswered, true, false, "The owner of the VIP, and nobody else, answers for it again."},
	{DHCPPending, false, false, "The node that owns the Service asks a DHCP server for its address."},
	{DHCPFailed, true, true, "No DHCP server leases an address, or a lease has ended; or the interface for it can't " +
		"be had. The message says what was tried and what was answered. It is tried again."},
	{NotLoadBalancer, false, false, "spec.type is not LoadBalancer."},
	{OtherClass, false, false, "Another spec.loadBalancerClass, or a node whose options differ: the message says."},
	{Ignored, false, false, "The annotation kube-vip.io/ignore is \"true\"."},
	{ServiceDeleted, false, false, "The Service is being deleted: its VIPs are withdrawn, and it goes once nobody's " +
		"finalizer is left on it."},
	{NodeNameInUse, true, true, "On the Node, not on a Service: two processes of Herald run on one host, or on two " +
		"hosts with one node name; one works, the other waits, or ends and tries again. The message says where both are."},
	{AddressAllocated, true, false, "The Service is given addresses of a pool; the message says which, and of which " +
		"pool."},
	{NoPoolAddress, true, true, "The Service waits for an address of a pool; the message says why there is none, or " +
		"why the API server does not take it, and what to do."},
	{StatusRefused, true, true, "The API server does not take the status of the Service: the Service is too large, an " +
		"admission webhook or policy denies it, or Herald lacks the right. The message has its answer. The VIP is " +
		"announced all the same. It is tried again, at least each minute."},
	{FamilyMissing, true, true, "The Service has ipFamilyPolicy RequireDualStack and addresses of one family only; " +
		"the message says which family lacks, and where to name an address."},
	{StatusContested, true, true, "Another program changes what Herald writes on the Service (status, annotations, " +
		"finalizer) again and again; the message names it, by metadata.managedFields. kube-proxy serves what the status " +
		"names, so connections fail meanwhile. Herald puts it right, after the third time each 5 s."},
	{AddressContested, true, true, "Another program takes a VIP off the owner's link again and again, and connections " +
		"fail meanwhile. Herald puts it back at once. The message names the node."},
	{AddressSet, false, false, "In the condition Allocated: the Service names its addresses, or a DHCP server leases " +
		"them."},
	{AddressOutsidePools, true, true, "The Service was given an address of a pool, and no pool offers it any more. It " +
		"keeps the address; the message says how to have it given another."},
	{PoolProblemFound, true, true, "On the ConfigMap of pools: a key can't be read, or has an effect that is probably " +
		"not meant. What was good stays in force."},
	{EgressUnavailable, true, true, "What all or some pods of a Service with kube-vip.io/egress send does not have " +
		"its VIP as the source; the message says why, and on which nodes."},
	{NodeLeaseNotHeld, false, false, "This node could not renew its node lease in time and holds nothing until it can."},
}
