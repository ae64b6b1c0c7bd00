package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// BGP is what the plan must know of the BGP options (bgp_enable).
type BGP struct {
	Attributes vip.BGPAttributes // of routes whose Service says nothing else
	Aggregates []netip.Prefix    // advertised as long as a host route in them is
	Keep       bool              // routes without an owner outlive a restart (herald_bgp_restart_time)
}

// sessionGrace is how long BGP sessions may take to come up unreported.
const sessionGrace = 10 * time.Second

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
	route := vip.Route{Prefix: prefix, Service: s.Key, Attributes: s.BGPAttributes}
	if r.BGP != nil {
		route.Attributes = route.Attributes.WithDefaults(r.BGP.Attributes)
	}
	r.out.Routes = append(r.out.Routes, route)
	return &r.out.Routes[len(r.out.Routes)-1]
}

// advertise adds routes to s, bound nowhere, once kube-proxy serves it.
func (r *routes) advertise(s *service, handingOver bool) {
	if s.waitsForKubeProxy && !r.askKubeProxy(s) {
		s.setVerdict(vip.VIPClaiming, "kube-proxy on node "+r.Self+" does not serve it yet")
		return
	}
	here := make(map[netip.Addr]bool, len(s.addrs))
	for _, a := range s.addrs {
		r.addRoute(s, a.Addr)
		here[a.Addr] = true
	}
	advertised, ingress, missing := r.knownToRouters(s, here, []*member{r.self})
	s.verdict.AnnouncedHere = true
	s.setVerdict(vip.VIPAnnounced, "node "+r.Self+" advertises "+advertised+" by "+r.protocols())
	if len(ingress) > 0 {
		if handingOver { // the status is the successor's to write
			return
		}
		r.writeStatus(s, r.Self, ingress, nil)
		s.report(vip.ConditionTrue, vip.VIPAnnounced, s.verdict.Message)
		r.addAnnouncedEvent(s)
	}
	r.reportNoSession(s, missing, len(ingress) == 0)
}

// advertiseFromEveryNode adds routes that every node advertises, and sets verdicts.
func (r *routes) advertiseFromEveryNode(services []*service) {
	sharing := make(map[netip.Addr][]*service)
	for _, s := range services { // oldest first
		for _, a := range s.addrs {
			if s.everyNodeAdvertises && a.client == nil { // what is leased is on one link of one node
				sharing[a.Addr] = append(sharing[a.Addr], s)
			}
		}
	}
	for a, all := range sharing { // who has it comes first, and says how it is advertised
		if len(all) > 1 {
			r.sortFirstCome(a, all)
		}
	}
	here, only := make(map[netip.Addr]bool, len(sharing)), make(map[*service]*member)
	for _, s := range services {
		for _, a := range s.addrs {
			if all := sharing[a.Addr]; len(all) > 0 && all[0] == s { // once for each address
				var one *member
				here[a.Addr], one = r.advertiseHere(a.Addr, all)
				for _, o := range all {
					only[o] = cmp.Or(only[o], one)
				}
			}
		}
	}
	for _, s := range services {
		if s.everyNodeAdvertises && !s.hasVerdict() {
			r.reportUnowned(s, here, only[s])
		}
	}
}

func (p *facts) routeRequirements(s *service) *requirements {
	need := &requirements{capabilities: &s.capabilities, endpoint: s.Local, endpoints: s.Endpoints.Local()}
	p.addPoolsOf(need, s)
	return need
}

// advertiseHere adds the route to a if this node can serve it; only is who alone may.
func (r *routes) advertiseHere(a netip.Addr, services []*service) (added bool, only *member) {
	canServe := func(s *service, n *member) bool { return whyIneligible(r.routeRequirements(s), n) == "" }
	canServeAll := func(n *member) bool {
		return !slices.ContainsFunc(services, func(s *service) bool { return !canServe(s, n) })
	}
	if !slices.ContainsFunc(r.alive, canServeAll) {
		i := slices.IndexFunc(services, func(s *service) bool {
			return slices.ContainsFunc(r.alive, func(n *member) bool { return canServe(s, n) })
		})
		services = services[max(i, 0):][:1]
	}
	if r.self == nil {
		return false, nil
	}
	self := *r.self
	if r.Stopping {
		self.refusal = "" // it has routes to drain
	}
	if slices.ContainsFunc(services, func(s *service) bool { return s.ClientIPAffinity }) {
		only = r.affinityNode(services[0], func(n *member) bool {
			return canServeAll(n) || n == r.self && canServeAll(&self)
		})
	}
	if !canServeAll(&self) || only != nil && only != r.self || r.DataPlaneFault != "" && !services[0].localDelivery &&
		slices.ContainsFunc(r.alive, func(n *member) bool {
			return n != r.self && n.Info.ForwardsToServices() && r.connected(services[0], n, a) && canServeAll(n)
		}) {
		return false, only
	}
	ready := true
	for _, s := range services {
		if s.Local && s.HealthCheckNodePort != 0 {
			ready = r.askKubeProxy(s) && ready
		}
	}
	if ready && services[0].localDelivery {
		ready = r.bindToLoopback(a)
	}
	if ready {
		x := r.addRoute(services[0], a)
		keep := r.BGP != nil && r.BGP.Keep && !services[0].localDelivery // what the process binds goes with it
		x.Drain, x.Keep = r.Stopping && !keep, r.Stopping && keep
	}
	return ready && !r.Stopping, only
}

// affinityNode returns the one able node for s, or nil (docs/why.md, "Session affinity by BGP").
func (r *routes) affinityNode(s *service, canServe func(*member) bool) *member {
	able := slices.DeleteFunc(slices.Clone(r.alive), func(n *member) bool { return !canServe(n) })
	well := slices.DeleteFunc(slices.Clone(able), func(n *member) bool {
		return r.connections(s, n) == 0 || !n.Info.ForwardsToServices()
	})
	return cmp.Or(r.statusWriter(s, well), r.statusWriter(s, able))
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

// reportUnowned sets verdict, and as statusWriter status, of s, which every node advertises.
func (r *routes) reportUnowned(s *service, here map[netip.Addr]bool, only *member) {
	need := r.routeRequirements(s)
	eligible := r.eligible(need)
	if len(eligible) == 0 {
		r.reject(s, vip.NoEligibleNode, r.whyNoNode(need))
		return
	}
	writer, how := r.statusWriter(s, eligible), "every node that can serve it advertises "
	if only != nil && !slices.Contains(eligible, only) { // this process stops, and only drains its route
		only = r.affinityNode(s, func(n *member) bool { return slices.Contains(eligible, n) })
	}
	if only != nil {
		writer, how, eligible = only, "because of sessionAffinity node "+only.Name+" alone advertises ", []*member{only}
	}
	var names []string
	for _, n := range eligible {
		names = append(names, n.Name)
	}
	s.verdict.Owner = writer.Name
	s.verdict.AnnouncedHere = slices.ContainsFunc(s.addrs, func(a address) bool { return here[a.Addr] })
	s.setVerdict(vip.VIPAnnounced, "advertised by "+r.protocols()+" from "+strings.Join(names, ", "))
	if only != nil {
		here = nil
	}
	if writer == r.self || !s.hasStatus {
		advertised, ingress, missing := r.knownToRouters(s, here, eligible)
		if len(ingress) > 0 && s.hasStatus {
			r.writeStatus(s, r.Self, ingress, nil)
			// with all nodes' names each change of these would be a write
			message := how + advertised + " by " + r.protocols()
			s.report(vip.ConditionTrue, vip.VIPAnnounced, message)
			r.addEvent(s, vip.VIPAnnounced, message, 0)
		}
		if s.verdict.AnnouncedHere {
			r.reportNoSession(s, missing, len(ingress) == 0)
		}
	}
}

// knownToRouters returns which addresses routers may know, and which not.
func (r *routes) knownToRouters(s *service, here map[netip.Addr]bool, from []*member) (text string,
	ingress []vip.Ingress, missing []netip.Addr) {
	mayTake := slices.ContainsFunc(from, func(n *member) bool { // once a session is established
		up, down := false, false
		for _, x := range n.Info.BGPSessions {
			if s.toPeer(x.Peer) {
				up, down = up || x.Up(), down || !x.Up()
			}
		}
		return down || !up
	})
	var names []string
	for _, a := range s.addrs {
		switch {
		case here != nil && !here[a.Addr]:
		case slices.ContainsFunc(from, func(n *member) bool { return r.connected(s, n, a.Addr) }),
			s.statusHas(a.Addr) && mayTake:
			names = append(names, a.Addr.String())
			ingress = append(ingress, r.ingress(s, a.Addr))
		default:
			missing = append(missing, a.Addr)
		}
	}
	return strings.Join(names, ", "), ingress, missing
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
	var families []string
	for _, a := range missing {
		families = vip.AppendUnique(families, vip.FamilyOf(a).String())
	}
	why, up := []string{}, false
	for _, x := range r.BGPSessions {
		if !s.toPeer(x.Peer) {
			continue
		}
		if wait := sessionGrace - r.Now.Sub(x.Since); wait > 0 {
			r.replanAfter(wait)
			return
		}
		text := cmp.Or(x.Reason, x.State)
		if x.Up() {
			up, text = true, "the router takes no "+strings.Join(families, " and no ")+": activate the family there"
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
