package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// BGP is what the plan must know of the BGP options (bgp_enable).
type BGP struct {
	Attributes vip.BGPAttributes // of routes whose Service says nothing else
	Aggregates []netip.Prefix    // advertised as long as a host route in them is
	Keep       bool              // routes without an owner outlive a restart (herald_bgp_restart_time)
}

// routes plans the routes advertised by BGP, or kept for another daemon.
type routes struct {
	*draft
	added map[netip.Prefix]bool // those in out.Routes
}

// addRoute adds a host route to a; the second time it returns one that is not in the Plan.
func (r *routes) addRoute(s *service, a netip.Addr) *vip.Route {
	prefix := netip.PrefixFrom(a, a.BitLen())
	if r.added[prefix] {
		return new(vip.Route)
	}
	r.added[prefix] = true
	route := vip.Route{Prefix: prefix, Service: s.Key, Attributes: s.BGPAttributes,
		Untranslated: s.NoKubeProxy || cmp.Or(s.IPMode, r.IPMode) == vip.ModeProxy}
	if r.BGP != nil {
		route.Attributes = route.Attributes.WithDefaults(r.BGP.Attributes)
	}
	r.out.Routes = append(r.out.Routes, route)
	return &r.out.Routes[len(r.out.Routes)-1]
}

// advertise adds routes to s, bound nowhere, once kube-proxy serves it.
func (r *routes) advertise(s *service) {
	if s.waitsForKubeProxy && !r.askKubeProxy(s) &&
		!slices.ContainsFunc(s.addrs, func(a address) bool { return r.isAdvertised(a.Addr) }) {
		s.setVerdict(vip.VIPClaiming, "kube-proxy on node "+r.Self+" does not serve it yet")
		return
	}
	for i := range s.addrs {
		r.addRoute(s, s.addrs[i].Addr)
		s.addrs[i].from = []*member{r.self}
	}
	advertised, ingress, missing, none := r.knownToRouters(s)
	s.verdict.AnnouncedHere = true
	s.setVerdict(vip.VIPAnnounced, "node "+r.Self+" advertises "+advertised+" by "+r.protocols())
	if len(ingress) > 0 {
		r.writeStatus(s, r.Self, ingress, nil)
		s.report(vip.ConditionTrue, vip.VIPAnnounced, s.verdict.Message)
		if !none {
			r.addAnnouncedEvent(s)
		}
	}
	r.reportNoSession(s, missing, none)
}

// advertiseFromEveryNode adds routes that every node advertises.
func (r *routes) advertiseFromEveryNode(services []*service) {
	sharing := make(map[netip.Addr][]*service)
	for _, s := range services { // oldest first
		for _, a := range s.addrs {
			if s.everyNodeAdvertises && a.client == nil { // what is leased is on one link of one node
				sharing[a.Addr] = append(sharing[a.Addr], s)
			}
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(sharing), netip.Addr.Compare) {
		all := sharing[a]
		if len(all) > 1 { // who has it comes first, and says how it is advertised
			r.sortFirstCome(a, all)
		}
		r.advertiseHere(a, all)
	}
}

func (p *facts) routeRequirements(s *service) *requirements {
	need := &requirements{capabilities: &s.capabilities, routes: true, endpoint: s.Local, endpoints: s.Endpoints.Local()}
	p.addPoolsOf(need, s)
	return need
}

// advertiseHere adds the route to a if this node can serve it, and says which nodes advertise it.
func (r *routes) advertiseHere(a netip.Addr, services []*service) {
	served, from := r.advertisers(a, services, false)
	all, here := served, from
	if r.Stopping {
		all, here = r.advertisers(a, services, true)
	}
	ready := !slices.Contains(here, r.self) || r.addRouteIfReady(a, all)
	for _, s := range services {
		if len(from) > 0 && !slices.Contains(served, s) {
			s.unserved = a
			continue
		}
		for i := range s.addrs {
			if x := &s.addrs[i]; ready && x.Addr == a {
				x.from, x.sticky = from, slices.ContainsFunc(served, isSticky)
			}
		}
	}
}

// advertisers returns the nodes that advertise a, and for which of services; with drains this one, though it stops.
func (r *routes) advertisers(a netip.Addr, services []*service, drains bool) (served []*service, from []*member) {
	able := func(all []*service) []*member {
		nodes := slices.Clone(r.alive)
		// no lease decides, unless one node alone is to advertise it
		if r.self != nil && !r.self.Alive && (len(nodes) == 0 || !slices.ContainsFunc(all, isSticky)) {
			nodes = append(nodes, r.self)
		}
		for _, s := range all {
			need := r.routeRequirements(s)
			need.drains = drains
			nodes = slices.DeleteFunc(nodes, func(n *member) bool { return whyIneligible(need, n) != "" })
		}
		return nodes
	}
	served, from = services, able(services)
	for i := 0; len(from) == 0 && i < len(services); i++ { // no node serves all: the first that one does
		served, from = services[i:][:1], able(services[i:][:1])
	}
	first := served[0]
	leaves := func(n *member) bool { return n.shuttingDown || !first.localDelivery && !n.Info.ForwardsToServices() }
	well := slices.DeleteFunc(slices.Clone(from), func(n *member) bool {
		return leaves(n) || !r.connected(first, n, a)
	})
	switch {
	case len(from) > 0 && slices.ContainsFunc(served, isSticky): // docs/why.md, "Session affinity by BGP"
		from = []*member{cmp.Or(r.statusWriter(first, well), r.statusWriter(first, from))}
	case len(well) > 0:
		from = slices.DeleteFunc(from, leaves)
	}
	return served, from
}

func isSticky(s *service) bool { return s.ClientIPAffinity }

// isAdvertised reports whether routers have a from this node: when a running Service changes they keep it.
func (r *routes) isAdvertised(a netip.Addr) bool {
	return r.Advertised[netip.PrefixFrom(a, a.BitLen())]
}

// addRouteIfReady adds the route to a, which services have, unless something has to be there before.
func (r *routes) addRouteIfReady(a netip.Addr, services []*service) bool {
	ready := true
	for _, s := range services {
		ready = (!s.Local || s.HealthCheckNodePort == 0 || r.askKubeProxy(s)) && ready
	}
	if !ready && !r.isAdvertised(a) || services[0].localDelivery && !r.bindToLoopback(a) {
		return false
	}
	x := r.addRoute(services[0], a)
	keep := r.BGP != nil && r.BGP.Keep && !services[0].localDelivery // what the process binds goes with it
	x.Drain, x.Keep = r.Stopping && !keep, r.Stopping && keep
	for _, s := range services {
		s.routeKept = x.Keep
	}
	return true
}

// bindToLoopback wants a on lo, and reports whether the kernel has it.
func (r *routes) bindToLoopback(a netip.Addr) bool {
	want := vip.Address{Addr: a, Bits: a.BitLen(), Link: loopback, LocalDelivery: true}
	if !r.wanted[a] {
		r.wanted[a] = true
		r.out.Addresses = append(r.out.Addresses, want)
	}
	return r.isBound(want)
}

const loopback = "lo"

func (r *routes) protocols() string {
	table := fmt.Sprintf("routing table %d", r.RoutingTable)
	switch {
	case r.RoutingTable == 0:
		return "BGP"
	case r.BGP == nil:
		return table
	}
	return "BGP and " + table
}

// connected reports whether routers can learn of a from n.
func (p *facts) connected(s *service, n *member, a netip.Addr) bool {
	return p.RoutingTable != 0 || slices.ContainsFunc(n.Info.BGPSessions,
		func(x vip.BGPSession) bool { return x.Takes(a) && s.toPeer(x.Peer) })
}

// connections returns for how many addresses of s a node is connected.
func (p *facts) connections(s *service, n *member) (count int) {
	for _, a := range s.addrs {
		if p.connected(s, n, a.Addr) {
			count++
		}
	}
	return count
}

func (s *service) toPeer(name string) bool {
	return s.BGPAttributes.Peers == nil || slices.Contains(s.BGPAttributes.Peers, name)
}

// isUnserved reports whether s could be announced, but for the Services that share its addresses.
func (r *routes) isUnserved(s *service) bool {
	return s.unserved.IsValid() && len(r.eligible(r.routeRequirements(s))) > 0 &&
		!slices.ContainsFunc(s.addrs, func(a address) bool { return len(a.from) > 0 })
}

// reportUnowned sets verdict, and as statusWriter status, of s, which every node advertises; false if none may.
func (r *routes) reportUnowned(s *service) bool {
	var x address // of those of s the one that the fewest nodes advertise, of which one writes the status
	for _, a := range s.addrs {
		if len(a.from) > 0 && (x.from == nil || len(a.from) < len(x.from)) {
			x = a
		}
		s.verdict.AnnouncedHere = s.verdict.AnnouncedHere || slices.Contains(a.from, r.self)
	}
	if x.from == nil { // this node is not ready
		if x.from = r.eligible(r.routeRequirements(s)); len(x.from) == 0 {
			return false
		}
	}
	writer, how := r.statusWriter(s, x.from), "every node that can serve it advertises "
	if x.sticky {
		how = "because of sessionAffinity node " + writer.Name + " alone advertises "
	}
	var names []string
	for _, n := range x.from {
		names = append(names, n.Name)
	}
	s.verdict.Owner = writer.Name
	s.setVerdict(vip.VIPAnnounced, "advertised by "+r.protocols()+" from "+strings.Join(names, ", "))
	// the writer of a status that says the same may be alive
	leftAlone := r.self != nil && (r.self.Info.Isolated || !r.self.Alive) && s.statusBy != r.Self &&
		!slices.ContainsFunc(s.addrs, func(a address) bool { return !s.statusHas(a.Addr) })
	if writer == r.self && !leftAlone || !s.hasStatus {
		advertised, ingress, missing, none := r.knownToRouters(s)
		if len(ingress) > 0 && s.hasStatus {
			r.writeStatus(s, r.Self, ingress, nil)
			// with all nodes' names each change of these would be a write
			message := how + advertised + " by " + r.protocols()
			s.report(vip.ConditionTrue, vip.VIPAnnounced, message)
			if !none {
				r.addEvent(s, vip.VIPAnnounced, message, 0)
			}
		}
		if s.verdict.AnnouncedHere {
			r.reportNoSession(s, missing, none)
		}
	}
	return true
}

// knownToRouters returns which addresses the status names, and which no session advertises; none: all of them.
func (r *routes) knownToRouters(s *service) (text string, ingress []vip.Ingress, missing []netip.Addr, none bool) {
	none = true
	mayTake := func(n *member) bool { // once a session is established
		all := slices.DeleteFunc(slices.Clone(n.Info.BGPSessions), func(x vip.BGPSession) bool { return !s.toPeer(x.Peer) })
		return len(all) == 0 || slices.ContainsFunc(all, func(x vip.BGPSession) bool { return !x.Up() })
	}
	var names []string
	for _, a := range s.addrs {
		if len(a.from) == 0 {
			continue
		}
		known := slices.ContainsFunc(a.from, func(n *member) bool { return r.connected(s, n, a.Addr) })
		if none = none && !known; !known {
			missing = append(missing, a.Addr)
		}
		if known || s.statusHas(a.Addr) && slices.ContainsFunc(a.from, mayTake) { // a session may come back
			names = append(names, a.Addr.String())
			ingress = append(ingress, r.ingress(s, a.Addr))
		}
	}
	return strings.Join(names, ", "), ingress, missing, none
}

// reportNoSession adds NoBGPSession about missing addresses; with all, s fails.
func (r *routes) reportNoSession(s *service, missing []netip.Addr, all bool) {
	if len(missing) == 0 {
		return
	}
	what, none := "no BGP session", "no peer is configured"
	if s.BGPAttributes.Peers != nil {
		what, none = "no BGP session with a peer that heraldvip.io/bgp-peers names", "no such peer is configured"
	}
	families, why, up := []string{}, []string{}, false
	for _, a := range missing {
		families = vip.AppendUnique(families, vip.FamilyOf(a).String())
	}
	for _, x := range r.BGPSessions {
		if !s.toPeer(x.Peer) {
			continue
		}
		if !x.Lasting {
			return
		}
		text := cmp.Or(x.Reason, x.State)
		if x.Up() {
			up, text = true, "it carries no "+strings.Join(families, " and no ")+
				": activate the family on the router, and give this node an address for the next hop"
		}
		why = append(why, x.Peer+": "+text)
	}
	if up || !all {
		what += " for " + vip.JoinAddrs(missing, ", ")
	}
	message := "node " + r.Self + " has " + what + ": " + cmp.Or(strings.Join(why, "; "), none)
	if !all {
		r.addEvent(s, vip.NoBGPSession, message, 0)
		return
	}
	r.fail(s, vip.NoBGPSession, message)
}

// statusWriter returns who writes the status: the former, else the best connected; nil if none is eligible.
func (r *routes) statusWriter(s *service, eligible []*member) *member {
	most := 0
	for _, n := range eligible {
		most = max(most, r.connections(s, n))
	}
	return chosen(hashKey(s.Key), eligible, s.statusBy, func(n *member) bool {
		return n.Name == s.statusBy || r.connections(s, n) == most
	})
}

func (r *routes) addAggregates() {
	if r.BGP == nil {
		return
	}
	for _, p := range r.BGP.Aggregates {
		inside, drain, keep := false, true, true
		for _, x := range r.out.Routes {
			if p.Contains(x.Prefix.Addr()) && !x.Service.IsZero() {
				inside, drain, keep = true, drain && x.Drain, keep && x.Keep
			}
		}
		if inside {
			r.out.Routes = append(r.out.Routes, vip.Route{Prefix: p, Attributes: r.BGP.Attributes, Drain: drain,
				Keep: keep})
		}
	}
	slices.SortFunc(r.out.Routes, func(a, b vip.Route) int { return a.Prefix.Compare(b.Prefix) })
}
