// Package plan decides, from what a node knows, what the node should be. It is
// pure: a World in, a Plan out, no clock, no I/O, no memory. Every node computes
// the same placement from the same leases, so nobody has to ask anybody.
//
// What becomes of a Service of type LoadBalancer, first row that fits:
//
//	ignored, or another class                    not ours; what we wrote there is cleared
//	no address asked for                         waits (NoAddress)
//	every address refused or in conflict         Event, nothing else
//	no endpoint that gets traffic                no VIP (NoEndpoints)
//	its unit's lease held by a stranger          waits (HeldByOtherAnnouncer)
//	... and asks for an address by DHCP          a link and a client of its own, and once it is leased:
//	held by this node, which may carry it        bound, announced, status written; first, if it is
//	                                             new, the network is asked whether it is free
//	held by this node, which may not             handed to the best other node; without one, let go
//	held by another node                         nothing here (but see vip.Leaving)
//	free, this node is first in rank             the lease is claimed; addresses follow once it is held
//	free, another node is first in rank          watched
//	no node may carry it                         Event with the reason of every node
//
// Services that share an address or a lease are one unit: they live on one node,
// owned by the lease of the oldest of them.
package plan

import (
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// Rules are the options that placement depends on. They are the same on every
// node, or nodes would not agree.
type Rules struct {
	Enabled     bool        // svc_enable
	Class       string      // lb_class_name; may be empty
	ClassOnly   bool        // lb_class_only
	ClassStrict bool        // lb_class_legacy_handling is false
	Election    bool        // svc_election: a lease for each unit, else one for all
	Rebalance   bool        // vip_rebalance: move units to nodes that carry fewer
	Lease       vip.Key     // the lease for all (svc_leasename)
	Bits4       int         // prefix length of bound IPv4 addresses; 0: that of the link's subnet
	Bits6       int         // the same for IPv6
	Mode        vip.IPMode  // of Services that don't say
	Mark        string      // which installation of Herald this is: a status with another mark is not ours to clear
	Forwarding  *Forwarding // enable_upnp; nil: no gateway is asked for anything
	NoStatus    bool        // disable_service_updates: no status says what was announced
	Inquire     bool        // ask whether an address is free before it is used for the first time (vip_skipdad is false)

	DHCPMode string   // dhcp_mode: what 0.0.0.0 alone asks for: "ipv4", "ipv6" or "dual"
	ARP      bool     // vip_arp: VIPs are bound and announced on links
	BGP      *Routing // bgp_enable; nil: no router is told of anything

	ControlPlane *ControlPlane // nil: the API servers have no VIP
}

// Make plans for w.Self. It reads w and keeps nothing of it.
func Make(r Rules, w vip.World) vip.Plan {
	if !w.Synced {
		// Without the caches nothing is known to be unwanted either: whoever calls
		// must not take the empty Plan for "take everything away".
		return vip.Plan{}
	}
	if r.ControlPlane != nil {
		w.Services = append([]vip.Service{r.ControlPlane.service(w)}, w.Services...)
	}
	m := newMaker(r, w)
	m.filter()
	m.group()
	m.place()
	m.foresee()
	for _, u := range m.units {
		m.unit(u)
	}
	m.advertise()
	m.aggregate()
	m.clean()
	m.strays()
	m.closePorts()
	m.giveBack()
	return m.finish()
}

// A maker is one run of Make.
type maker struct {
	Rules
	vip.World

	members  map[string]*member
	alive    []*member // sorted by name
	reserved guard
	hosts    []netip.Addr // this node's own addresses
	serving  []*service   // of type LoadBalancer, ours, with a usable address: oldest first
	waiting  []*service   // ours, with a usable address, but without endpoints
	all      []*service   // every Service of type LoadBalancer, and those with a mark of ours
	units    []*unit      // oldest first
	has      map[place]bool
	wanted   map[netip.Addr]bool
	routed   map[netip.Prefix]bool
	mapped   map[vip.Key][]*vip.MappingState // by Service
	wire     wire
	tenants  map[string]*tenant // by ID: who leases addresses by DHCP
	hires    map[hireKey]*vip.DHCPState
	macvlans map[string]*vip.Macvlan // by name
	plan     vip.Plan
}

// A place is where an address is bound.
type place struct {
	addr netip.Addr
	link string
}

// A service is a Service on its way through the plan.
type service struct {
	*vip.Service
	control bool          // it stands for the API servers
	arp     bool          // it is announced on a link
	bgp     bool          // it is told to routers
	host    string        // the node that wrote its status, if it is one of ours
	addrs   []vip.Address // what it may have; Link and Bits are filled in for this node
	hires   []vip.Family  // what it leases by DHCP; the address is in addrs once it is known
	tenant  *tenant       // as whom; nil if it doesn't
	lease   vip.Key
	unit    *unit
	verdict vip.Verdict
	probed  bool // kube-proxy is asked about it
	settled bool // the verdict stands: it is not, or can't be, announced
}

// A unit is what moves together.
type unit struct {
	lease    vip.Key // that of the oldest Service
	records  []vip.Key
	services []*service // oldest first
	control  bool       // it is that of the control plane, which is the only Service in it
	hash     uint64
	claim    vip.Claim
	target   *member // who is to claim it, or to have it next; nil if nobody may
}

// A member is a node with an announcer, as placement sees it.
type member struct {
	vip.Member
	excluded string // why it carries nothing, or ""
	refuses  string // why its Herald itself carries nothing, or ""
	kept     string // why Kubernetes keeps VIPs off it, or ""
	hash     uint64
	units    int // how many it holds, or is about to
}

func newMaker(r Rules, w vip.World) *maker {
	m := &maker{Rules: r, World: w, members: make(map[string]*member, len(w.Members))}
	excluded := make(map[string]string)
	labelled := labels(w)
	drained, leaves := make(map[string]bool), departing(w)
	for _, n := range w.Nodes {
		drained[n.Name] = n.Drained
		if n.Name == w.Self {
			m.hosts = n.Addresses
		}
		switch {
		case n.Excluded != "":
			excluded[n.Name] = n.Excluded
		case labelled && n.ExclusionLabel != "":
			excluded[n.Name] = "it has the label " + n.ExclusionLabel
		}
	}
	for _, x := range w.Members {
		mb := &member{Member: x, hash: hash(x.Name), excluded: excluded[x.Name], kept: excluded[x.Name]}
		// A node tells the others that it stops before it acts on it.
		switch {
		case x.Name == w.Self && w.Stopping:
			mb.refuses = "its Herald is stopping"
		case drained[x.Name]:
			mb.refuses = "it is drained (herald undrain " + x.Name + " ends that)"
		case leaves[x.Name]:
			mb.refuses = "it is being shut down"
		case x.Info.Isolated:
			mb.refuses = "it reaches too few other nodes on the VIPs' link"
		case x.Name != w.Self && x.Info.Excluded != "":
			mb.refuses = x.Info.Excluded
		}
		if mb.refuses != "" {
			mb.excluded = mb.refuses
		}
		m.members[x.Name] = mb
		if x.Alive {
			m.alive = append(m.alive, mb)
		}
	}
	m.reserved = newGuard(w, r.ControlPlane)
	m.mapped = make(map[vip.Key][]*vip.MappingState)
	for i := range w.MappingStates {
		x := &w.MappingStates[i]
		m.mapped[x.Service] = append(m.mapped[x.Service], x)
	}
	m.has = make(map[place]bool, len(w.Bound))
	for _, b := range w.Bound {
		m.has[place{b.Addr, b.Link}] = true
	}
	m.wanted = make(map[netip.Addr]bool, len(w.Bound))
	m.routed = make(map[netip.Prefix]bool)
	m.wire = newWire(w)
	m.hires = make(map[hireKey]*vip.DHCPState, len(w.DHCPStates))
	for i := range w.DHCPStates {
		m.hires[hireKey{w.DHCPStates[i].Request.ID, w.DHCPStates[i].Request.Family}] = &w.DHCPStates[i]
	}
	m.macvlans = make(map[string]*vip.Macvlan, len(w.Macvlans))
	for i := range w.Macvlans {
		m.macvlans[w.Macvlans[i].Name] = &w.Macvlans[i]
	}
	return m
}

// departing is the nodes that are being shut down, so that VIPs go before the pods behind
// them and API servers do. If no other is alive there is none: a VIP stays while it can.
func departing(w vip.World) map[string]bool {
	leaves := make(map[string]bool)
	for _, n := range w.Nodes {
		if n.ShuttingDown {
			leaves[n.Name] = true
		}
	}
	if !slices.ContainsFunc(w.Members, func(x vip.Member) bool { return x.Alive && !leaves[x.Name] }) {
		return nil
	}
	return leaves
}

// labels reports whether the label that keeps VIPs off a node counts. kubeadm puts
// it on every control-plane node. Where Herald runs on such nodes only, it can't
// be meant: there would be no VIP at all. Nodes that are down count as well, so
// that their failing does not change what the label means.
func labels(w vip.World) bool {
	label := make(map[string]bool)
	for _, n := range w.Nodes {
		label[n.Name] = n.ExclusionLabel != ""
	}
	for _, x := range w.Members {
		if !label[x.Name] {
			return true
		}
	}
	return false
}

// settle writes the verdict of a Service that will not be announced, and tells
// its user if this node has the duty to.
func (m *maker) settle(s *service, reason vip.Reason, message string) {
	s.settled = true
	s.verdict.Reason, s.verdict.Message = reason, message
	if slices.ContainsFunc(vip.Reasons, func(r vip.ReasonInfo) bool { return r.Reason == reason && r.Event }) {
		m.note(s, reason, message)
	}
}

// note tells the Service's user, if this node has the duty to.
func (m *maker) note(s *service, reason vip.Reason, message string) {
	if m.duty(s) {
		m.say(s, reason, message, 0)
	}
}

// say tells the Service's user.
func (m *maker) say(s *service, reason vip.Reason, message string, occasion int64) {
	if !m.Tenure.RenewalLateSince.IsZero() {
		return // it will be said once the API server can be told, if it is still so
	}
	i := slices.IndexFunc(vip.Reasons, func(r vip.ReasonInfo) bool { return r.Reason == reason })
	m.plan.Events = append(m.plan.Events, vip.Event{
		Service: s.Key, UID: s.UID, Warning: vip.Reasons[i].Warning,
		Reason: reason, Message: message, Occurrence: occasion,
	})
}

// duty reports whether this node is the one that speaks and tidies up for a
// Service that is not announced: the node that holds its claim, else the one that
// last wrote its status, else one that all nodes agree on.
//
// A node that can't renew its lease, or is cut off from the others, knows too
// little to speak for anybody: what it would say reaches the API server when it is no more true.
func (m *maker) duty(s *service) bool {
	if self := m.members[m.Self]; !m.Tenure.RenewalLateSince.IsZero() || self != nil && self.Info.Isolated {
		return false
	}
	if s.unit != nil && m.members[s.unit.claim.Holder] != nil {
		return s.unit.claim.Holder == m.Self
	}
	if mb := m.members[s.host]; mb != nil && mb.Alive {
		return s.host == m.Self
	}
	var first *member
	key := hashKey(s.Key)
	for _, mb := range m.alive {
		if first == nil || rank(key, mb.hash) > rank(key, first.hash) {
			first = mb
		}
	}
	return first != nil && first.Name == m.Self
}

// finish sorts what has no order of its own yet.
func (m *maker) finish() vip.Plan {
	m.plan.Verdicts = make([]vip.Verdict, 0, len(m.all))
	for _, s := range m.all {
		if s.LoadBalancer {
			m.plan.Verdicts = append(m.plan.Verdicts, s.verdict)
		}
	}
	slices.SortFunc(m.plan.Verdicts, func(a, b vip.Verdict) int { return a.Service.Compare(b.Service) })
	return m.plan
}
