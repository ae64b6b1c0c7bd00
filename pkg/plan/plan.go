// Package plan decides, from what a node knows, what the node should be. It is
// pure: a World in, a Plan out, no clock, no I/O, no memory. Every node computes
// the same placement from the same leases, so nobody has to ask anybody.
//
// What becomes of a Service of type LoadBalancer, first row that fits:
//
//	ignored, another class, or being deleted     not ours; what we wrote there is cleared, and its finalizer taken off
//	no address asked for                         waits for one of the pools, or its user (NoAddress)
//	every address refused or in conflict         Event, nothing else
//	no endpoint that gets traffic                no VIP; the status names its addresses (NoEndpoints)
//	its unit's lease held by another program     waits (HeldByOtherAnnouncer)
//	... and asks for an address by DHCP          a macvlan and a DHCP client of its own, and once it is leased:
//	held by this node, which is eligible         bound, announced, status written; first, if it is
//	                                             new, the network is asked whether it is free
//	held by this node, which is not eligible     handed to the best other node; without one, released
//	held by this node, whose data plane fails    handed to the best other node, if that is better
//	held by this node, unheard on its link       handed to the best other node, if that is heard
//	held by this node, off the VIP's network     handed to the best other node, if that is in it
//	held by this node, its BGP sessions down     handed to the best other node that has had one for a while
//	held by another node                         nothing here (but see vip.HandingOver)
//	free, this node is the best                  the lease is claimed; addresses follow once it is held
//	free, another node is the best               that node is given time to claim it
//	no node is eligible                          Event with the reason of every node
//
// The best node is an eligible one of the lowest rank (well, not ready, restarting, with a faulty data plane, off the
// VIP's network, without BGP sessions, unheard, shutting down, stalled); of these one that the pools of its addresses
// prefer most; of these one that holds the fewest units; of these the one with the highest rendezvous hash.
//
// Services that share an address or a lease are one unit: they are announced by one node, owned by the lease of the
// oldest of those that have their address (docs/why.md, "Who has an address").
package plan

import (
	"net/netip"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Rules are the options of placement; with different ones nodes would not agree.
type Rules struct {
	vip.CommonOptions
	Enabled    bool        // svc_enable
	Rebalance  bool        // vip_rebalance: move units to nodes that hold fewer
	Bits4      int         // prefix length of bound IPv4 addresses; 0: that of the link's subnet
	Bits6      int         // the same for IPv6
	IPMode     vip.IPMode  // of Services that name none
	Announcer  string      // which installation of Herald this is: statuses written by another are left alone
	Forwarding *Forwarding // enable_upnp; nil: no gateway is asked for anything
	NoStatus   bool        // disable_service_updates: no status tells what was announced
	// KeepConnections is how long former owners get packets of connections that the owner does not know
	// (herald_keep_connections); 0: never.
	KeepConnections time.Duration
	LimitPorts      bool // enable_service_security: packets to other ports of a Service's VIP are dropped
	ProbeNew        bool // vip_skipdad is false: ask whether an address is free before it is used for the first time

	PoolsOnly bool           // svc_addresses: Services may have only addresses of pools
	Reserved  []netip.Prefix // svc_reserved: what no Service may have
	// dhcp_macvlan_prefixes: how names of macvlans that Services choose begin; nil is "herald-"
	MacvlanPrefixes []string
	DHCPMode        string // dhcp_mode: what 0.0.0.0 alone asks for: "ipv4", "ipv6" or "dual"
	ARP             bool   // vip_arp: VIPs are bound and announced on links
	BGP             *BGP   // bgp_enable; nil: nothing is advertised to routers
	// vip_routingtable: the kernel's table that gets the routes, for another daemon to export; 0: none
	RoutingTable int

	Egress       *Egress       // egress_enable; nil: what pods send keeps its source
	ControlPlane *ControlPlane // nil: the API servers have no VIP
	Allocation   *Allocation   // nil: Services are given no addresses
}

// Make returns the Plan of w.Self; ignore the empty one before w.Synced.
func Make(r Rules, w vip.World) vip.Plan {
	if !w.Synced {
		return vip.Plan{}
	}
	return run(&r, &w).finish()
}

// run makes the stages of a pass over w; only finish is left to do.
func run(r *Rules, w *vip.World) *actions {
	if r.ControlPlane != nil {
		w.Services = append([]vip.Service{r.ControlPlane.service(*w)}, w.Services...)
	}
	useNodesByAddress(w)
	a := admit(newFacts(r, w))
	place(a)
	return act(a)
}

// facts are what all stages read, and none changes.
type facts struct {
	*Rules
	*vip.World
	*nodes
	reserved *reservedAddresses
	offers   *offers // nil: no pools are read
	bound    map[binding]bool
}

type binding struct {
	addr netip.Addr
	link string
}

// A service is a Service with what the plan has found out about it.
type service struct {
	*vip.Service
	capabilities
	Interface     string            // in place of that of vip.Service: the Service's link, else a pool's
	Announce      []vip.Method      // in place of those of vip.Service: the Service's ways, else a pool's
	statusOurs    bool              // a Herald of this installation wrote its status
	statusBy      string            // the node that wrote its status last, if a Herald of this installation; else ""
	addrs         []address         // what it may have; Link and Bits are filled in for this node
	dhcpFamilies  []vip.Family      // what it asks a DHCP server for; what is leased is in addrs
	lost          []vip.LostAddress // of its addresses: those that are others'
	client        *dhcpClient       // which asks for dhcpFamilies; nil if there are none
	unit          *unit
	notOurs       bool         // another announcer's
	ownLink       bool         // it names a link that its addresses do not have by their pool
	apart         bool         // another announcer renews its lease, and a Service of another namespace has its address
	unoffered     bool         // it has an address that no pool offers to its namespace
	shares        bool         // others ask for an address of it, too
	inUse         []netip.Addr // given ones that another host has
	contended     bool         // a Service of another namespace was refused an address that this one has, and asks for
	hasAny        bool         // it has one of its addresses (see has)
	unserved      netip.Addr   // one that nodes advertise for others that share it, and none of which can serve it
	routeKept     bool         // routers go on sending to it while this process restarts
	claim         vip.Claim    // what its lease says; set once it is in a unit
	decisive      bool         // what it requires of a node counts for its unit
	verdict       vip.Verdict
	heldBack      []string      // addresses not bound here, each with its link and who answers for it though it lost them
	heldBackBy    []string      // the node for which the last of these waits, or the nodes for one of which it does
	status        *vip.Status   // that this node is to write, without conditions; nil if none
	announced     vip.Condition // to write, with the others that follow; ConditionAbsent removes all; without a Type none
	healthChecked bool          // its HealthCheck is in the Plan
}

// An address is one that a Service may have.
type address struct {
	vip.Address
	client  *dhcpClient // to which a DHCP server has leased it; nil if it is not leased
	expired bool        // its lease has
	offLink bool        // it is in no network that this node has on Link
	from    []*member   // who advertises it, as far as this node is ready
	sticky  bool        // one node alone does, for session affinity
}

// A unit is the Services that are announced by one node.
type unit struct {
	lease        vip.Key      // that of the first Service; its holder announces the unit
	leases       []vip.Key    // lease, and the others of its Services: its owner keeps them too, as a record
	services     []*service   // see completeUnit for their order
	requirements requirements // of its owner
	hash         uint64
	claim        vip.Claim // what lease says; without a Holder if it may be taken
	target       *member   // who is to claim it, or to have it next; nil if no node may, or it stays
	cause        string    // why target is to have it, if another node had it before; else ""

	named map[netip.Addr]bool // the addresses in statuses of its Services; nil: not made yet

	mergedInto *unit // while units are made: the older unit that has its Services now; nil if it is one itself
}

// newFacts returns what is known from w, indexed.
func newFacts(r *Rules, w *vip.World) *facts {
	f := &facts{Rules: r, World: w, nodes: newNodes(w), reserved: newReservedAddresses(r, w), offers: newOffers(r, w),
		bound: make(map[binding]bool, len(w.Bound))}
	for _, b := range w.Bound {
		f.bound[binding{b.Addr, b.Link}] = true
	}
	return f
}

func (p *facts) isBound(a vip.Address) bool { return p.bound[binding{a.Addr, a.Link}] }
