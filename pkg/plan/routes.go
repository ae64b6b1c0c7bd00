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

// Routing is how VIPs are told to routers (bgp_enable).
type Routing struct {
	Attributes vip.BGPAttributes // of routes whose Service says nothing else
	Aggregates []netip.Prefix    // told as long as a host route in them is
	Keep       bool              // routes without an owner outlive a restart (herald_bgp_restart_time)
}

// patience is how long sessions may take to come up before a user is told.
const patience = 10 * time.Second

// methods finds the ways in which s is announced. It reports false if there are none.
func (m *maker) methods(s *service) bool {
	on := func(w vip.Method) bool { return s.Announce == nil || s.control || slices.Contains(s.Announce, w) }
	s.arp = m.ARP && on(vip.ByARP)
	s.bgp = m.BGP != nil && on(vip.ByBGP)
	if s.control { // an API server answers where its VIP is bound only, so its owner binds it, whoever hears of it
		s.arp = s.arp || s.bgp
	}
	switch {
	case s.arp || s.bgp:
		return true
	case s.Announce != nil && len(s.Announce) == 0: // the Event about the unreadable field says it all
		s.settled = true
		s.verdict.Reason, s.verdict.Message = vip.InvalidField, strings.Join(s.Invalid, " ")
	default:
		m.settle(s, vip.InvalidField, fmt.Sprintf("heraldvip.io/announce asks for %v, which is not enabled (vip_arp, bgp_enable)", s.Announce))
	}
	return false
}

// free reports whether s has no owner: each node that can serve it advertises it.
func (m *maker) free(s *service) bool { return s.bgp && !s.arp && !m.Election }

// advertise plans the routes to the VIPs that have no owner.
func (m *maker) advertise() {
	if m.BGP == nil || m.Election {
		return
	}
	sharing := make(map[netip.Addr][]*service)
	var order []netip.Addr
	for _, s := range m.serving { // oldest first
		if !s.bgp || s.control {
			continue
		}
		for _, a := range s.addrs {
			if s.leased(a.Addr) {
				continue // it is at home on one link of one node
			}
			if sharing[a.Addr] == nil {
				order = append(order, a.Addr)
			}
			sharing[a.Addr] = append(sharing[a.Addr], s)
		}
	}
	here := make(map[netip.Addr]bool)
	for _, a := range order {
		here[a] = m.hop(a, sharing[a])
	}
	for _, s := range m.serving {
		// What no node can announce on a link may be told to routers all the same.
		if m.free(s) || s.bgp && !s.control && s.settled && s.verdict.Reason == vip.NoEligibleNode {
			s.settled = false
			m.report(s, here)
		}
	}
}

// hop plans the route to an address, if this node is to be a next hop of it: it
// serves all Services that share the address. Where no node does, those do that
// serve the oldest. It reports whether it is one.
func (m *maker) hop(a netip.Addr, services []*service) bool {
	all := func(mb *member) bool {
		return !slices.ContainsFunc(services, func(s *service) bool { return m.unable(s, mb) != "" })
	}
	if !slices.ContainsFunc(m.alive, all) {
		services = services[:1]
	}
	self := m.members[m.Self]
	if self == nil {
		return false
	}
	stopping := m.Stopping && self.kept == "" // else it has nothing to drain
	ready := true
	for _, s := range services {
		if why := m.unable(s, self); why != "" && !(stopping && why == self.refuses && m.servedAt(s, self)) {
			return false
		}
		if s.Local && s.HealthCheckNodePort != 0 {
			ready = m.probe(s) && ready
		}
	}
	if ready {
		r := m.route(services[0], a)
		r.Drain, r.Keep = stopping && !m.BGP.Keep, stopping && m.BGP.Keep
	}
	return ready && !stopping
}

// probe asks whether kube-proxy here serves s, and reports what is known.
func (m *maker) probe(s *service) bool {
	if !s.probed { // once for several addresses
		s.probed = true
		m.plan.HealthChecks = append(m.plan.HealthChecks, vip.HealthCheck{Service: s.Key, Port: s.HealthCheckNodePort, Hosts: m.hosts})
	}
	return m.HealthChecked[s.Key]
}

// unable says why mb can't serve s, or "".
func (m *maker) unable(s *service, mb *member) string {
	switch {
	case mb.excluded != "":
		return mb.excluded
	case !m.servedAt(s, mb):
		return "no ready endpoint there (externalTrafficPolicy Local)"
	}
	return ""
}

// servedAt reports whether traffic for s may end at mb.
func (m *maker) servedAt(s *service, mb *member) bool {
	return !s.Local || slices.Contains(s.Endpoints.Local(), mb.Name)
}

// route wants a host route to a. The first Service that asks says how; what others
// make of the Route is lost.
func (m *maker) route(s *service, a netip.Addr) *vip.Route {
	prefix := netip.PrefixFrom(a, a.BitLen())
	if m.routed[prefix] {
		return new(vip.Route)
	}
	m.routed[prefix] = true
	m.plan.Routes = append(m.plan.Routes, vip.Route{Prefix: prefix, Service: s.Key, Attributes: s.BGPAttributes.WithDefaults(m.BGP.Attributes)})
	return &m.plan.Routes[len(m.plan.Routes)-1]
}

// aggregate adds the prefixes that are told as long as a host route in them is, and
// sorts all.
func (m *maker) aggregate() {
	if m.BGP == nil {
		return
	}
	for _, p := range m.BGP.Aggregates {
		inside, drain, keep := false, true, true
		for _, r := range m.plan.Routes {
			if p.Contains(r.Prefix.Addr()) && !r.Service.IsZero() {
				inside, drain, keep = true, drain && r.Drain, keep && r.Keep
			}
		}
		if inside {
			m.plan.Routes = append(m.plan.Routes, vip.Route{Prefix: p, Attributes: m.BGP.Attributes, Drain: drain, Keep: keep})
		}
	}
	slices.SortFunc(m.plan.Routes, func(a, b vip.Route) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
}

// report plans the status and the verdict of a Service without owner. One of the
// nodes that serve it writes the status.
func (m *maker) report(s *service, here map[netip.Addr]bool) {
	able := slices.DeleteFunc(slices.Clone(m.alive), func(mb *member) bool { return m.unable(s, mb) != "" })
	if len(able) == 0 {
		m.settle(s, vip.NoEligibleNode, m.reasons(func(mb *member) string { return m.unable(s, mb) }))
		return
	}
	writer := m.writer(s, able)
	var names, told []string
	for _, mb := range able {
		names = append(names, mb.Name)
	}
	var ingress []vip.Ingress
	for _, a := range s.addrs {
		s.verdict.AnnouncedHere = s.verdict.AnnouncedHere || here[a.Addr]
		if here[a.Addr] && m.known(s, a.Addr) {
			told = append(told, a.Addr.String())
			ingress = append(ingress, vip.Ingress{Addr: a.Addr, IPMode: m.mode(s), Ports: s.Ports})
		}
	}
	s.verdict.Owner = writer.Name
	s.verdict.Reason, s.verdict.Message = vip.VIPAnnounced, "advertised by BGP from "+strings.Join(names, ", ")
	if writer.Name != m.Self {
		return
	}
	switch {
	case len(ingress) > 0:
		m.plan.Statuses = append(m.plan.Statuses, vip.Status{Service: s.Key, VIPHost: m.Self, Announcer: m.Mark, Ingress: ingress})
		m.say(s, vip.VIPAnnounced, "every node that can serve it advertises "+strings.Join(told, ", ")+" by BGP", 0)
	case s.verdict.AnnouncedHere:
		m.mute(s)
	}
}

// known reports whether a router has been told of a, or had been when the status
// was written: a session that breaks takes no status away, since kube-proxy would
// then need a while to serve the VIP again.
func (m *maker) known(s *service, a netip.Addr) bool {
	return m.connected() || slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool { return i.Addr == a })
}

// connected reports whether a session of this node stands.
func (m *maker) connected() bool { return slices.ContainsFunc(m.BGPSessions, vip.BGPSession.Up) }

// mute tells the user that no router hears of s, unless sessions are only coming up.
func (m *maker) mute(s *service) {
	var why []string
	for _, x := range m.BGPSessions {
		if wait := patience - m.Now.Sub(x.Since); wait > 0 {
			m.again(wait)
			return
		}
		why = append(why, fmt.Sprintf("%s: %s", x.Peer, cmp.Or(x.Reason, x.State)))
	}
	if why == nil {
		why = []string{"no peer is configured"}
	}
	s.verdict.Reason, s.verdict.Message = vip.NoBGPSession, "node "+m.Self+" has no BGP session: "+strings.Join(why, "; ")
	m.say(s, vip.NoBGPSession, s.verdict.Message, 0)
}

// writer is the node that writes the status of s: the one that did, else the first
// in rank of those whose sessions stand, else of all.
func (m *maker) writer(s *service, able []*member) *member {
	var best *member
	key := hashKey(s.Key)
	up := func(mb *member) bool {
		if mb.Name == m.Self {
			return m.connected()
		}
		return slices.ContainsFunc(mb.Info.BGPSessions, vip.BGPSession.Up)
	}
	for _, mb := range able {
		if mb.Name == s.host {
			return mb
		}
		if best == nil || up(mb) && !up(best) || up(mb) == up(best) && rank(key, mb.hash) > rank(key, best.hash) {
			best = mb
		}
	}
	return best
}

// tellRouters plans what s has on this node, which owns it, if routers are the
// only ones to be told.
func (m *maker) tellRouters(u *unit, s *service) {
	if s.Local && s.HealthCheckNodePort != 0 && !m.probe(s) {
		s.verdict.Reason, s.verdict.Message = vip.VIPClaiming, "kube-proxy on node "+m.Self+" does not serve it yet"
		return
	}
	var ingress []vip.Ingress
	var told []string
	for _, a := range s.addrs {
		m.route(s, a.Addr)
		if m.known(s, a.Addr) {
			told = append(told, a.Addr.String())
			ingress = append(ingress, vip.Ingress{Addr: a.Addr, IPMode: m.mode(s), Ports: s.Ports})
		}
	}
	s.verdict.AnnouncedHere = true
	s.verdict.Reason, s.verdict.Message = vip.VIPAnnounced, "node "+m.Self+" advertises "+strings.Join(told, ", ")+" by BGP"
	_, giving := m.HandingOver[u.lease]
	switch {
	case len(ingress) == 0:
		m.mute(s)
		return
	case giving:
		return // the status is the successor's to write
	}
	m.plan.Statuses = append(m.plan.Statuses, vip.Status{Service: s.Key, VIPHost: m.Self, Announcer: m.Mark, Ingress: ingress})
	m.arrived(u, s)
}
