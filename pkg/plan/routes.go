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

// sessionGrace is how long BGP sessions may take to come up before a user hears of it.
const sessionGrace = 10 * time.Second

// routes plans the routes that this node advertises.
type routes struct {
	*pass
	added map[netip.Prefix]bool // those in out.Routes
}

// add adds a host route to a, with the attributes of s, to the Plan and returns it to be changed. If it is
// there already nothing is added, and the Route that is returned is in no Plan.
func (r *routes) add(s *service, a netip.Addr) *vip.Route {
	prefix := netip.PrefixFrom(a, a.BitLen())
	if r.added[prefix] {
		return new(vip.Route)
	}
	r.added[prefix] = true
	r.out.Routes = append(r.out.Routes, vip.Route{Prefix: prefix, Service: s.Key, Attributes: s.BGPAttributes.WithDefaults(r.BGP.Attributes)})
	return &r.out.Routes[len(r.out.Routes)-1]
}

// advertise plans the routes of s, which this node owns and binds nowhere, and sets its verdict. It advertises
// nothing until kube-proxy serves s, if s waits for that. The status is not written while s is handed over, or
// no router knows of it.
func (r *routes) advertise(s *service, handingOver bool) {
	if s.waitsForKubeProxy && !r.kubeProxyServes(s) {
		s.setVerdict(vip.VIPClaiming, "kube-proxy on node "+r.Self+" does not serve it yet")
		return
	}
	for _, a := range s.addrs {
		r.add(s, a.Addr)
	}
	advertised, ingress := r.known(s, nil)
	s.verdict.AnnouncedHere = true
	s.setVerdict(vip.VIPAnnounced, "node "+r.Self+" advertises "+advertised+" by BGP")
	switch {
	case len(ingress) == 0:
		r.reportNoSession(s)
	case !handingOver: // else the status is the successor's to write
		r.writeStatus(s, ingress, nil)
		r.addAnnounced(s)
	}
}

// advertiseFromEveryNode plans the routes of the Services that every node advertises which can serve them. It
// sets the verdict of those that have none yet: they have no owner, or no node is eligible to be it.
func (r *routes) advertiseFromEveryNode(services []*service) {
	sharing := make(map[netip.Addr][]*service)
	for _, s := range services { // oldest first
		for _, a := range s.addrs {
			if s.everyNodeAdvertises && a.client == nil { // what is leased is on one link of one node
				sharing[a.Addr] = append(sharing[a.Addr], s)
			}
		}
	}
	here := make(map[netip.Addr]bool, len(sharing))
	for _, s := range services {
		for _, a := range s.addrs {
			if all := sharing[a.Addr]; len(all) > 0 && all[0] == s { // once for each address
				here[a.Addr] = r.advertiseHere(a.Addr, all)
			}
		}
	}
	for _, s := range services {
		if s.everyNodeAdvertises && !s.decided() {
			r.reportUnowned(s, here)
		}
	}
}

// routeRequirements is what s requires of a node that advertises routes to it.
func routeRequirements(s *service) *requirements {
	return &requirements{capabilities: &s.capabilities, endpoint: s.Local, endpoints: s.Endpoints.Local()}
}

// advertiseHere plans the route to an address that services share, oldest first, if this node can serve them
// all and kube-proxy does; where no node can serve them all, the oldest alone counts. While this process stops
// the route is drained, or kept for the next process. It reports whether the route is there and stays.
func (r *routes) advertiseHere(a netip.Addr, services []*service) bool {
	canServeAll := func(n *member) bool {
		return !slices.ContainsFunc(services, func(s *service) bool { return ineligible(routeRequirements(s), n) != "" })
	}
	if !slices.ContainsFunc(r.alive, canServeAll) {
		services = services[:1]
	}
	if r.self == nil {
		return false
	}
	self := *r.self
	if r.Stopping {
		self.refusal = "" // it has routes to drain
	}
	if !canServeAll(&self) {
		return false
	}
	ready := true
	for _, s := range services {
		if s.Local && s.HealthCheckNodePort != 0 {
			ready = r.kubeProxyServes(s) && ready
		}
	}
	if ready {
		x := r.add(services[0], a)
		x.Drain, x.Keep = r.Stopping && !r.BGP.Keep, r.Stopping && r.BGP.Keep
	}
	return ready && !r.Stopping
}

// reportUnowned sets the verdict of a Service that is announced by every node which can serve it; here has the addresses
// that this node advertises. Only the statusWriter writes the status and sends Events. Without such a node it
// is rejected.
func (r *routes) reportUnowned(s *service, here map[netip.Addr]bool) {
	need := routeRequirements(s)
	eligible := slices.DeleteFunc(slices.Clone(r.alive), func(n *member) bool { return ineligible(need, n) != "" })
	if len(eligible) == 0 {
		r.reject(s, vip.NoEligibleNode, r.whyNoNode(need))
		return
	}
	var names []string
	for _, n := range eligible {
		names = append(names, n.Name)
	}
	writer := r.statusWriter(s, eligible)
	s.verdict.Owner = writer.Name
	s.verdict.AnnouncedHere = slices.ContainsFunc(s.addrs, func(a address) bool { return here[a.Addr] })
	s.setVerdict(vip.VIPAnnounced, "advertised by BGP from "+strings.Join(names, ", "))
	if writer == r.self {
		switch advertised, ingress := r.known(s, here); {
		case len(ingress) > 0:
			r.writeStatus(s, ingress, nil)
			r.event(s, vip.VIPAnnounced, "every node that can serve it advertises "+advertised+" by BGP", 0)
		case s.verdict.AnnouncedHere:
			r.reportNoSession(s)
		}
	}
}

// known is those addresses of s, as text and for the status, of which a router was told, or had been when the
// status was written: a session that breaks takes no status away, since kube-proxy would then need a while to
// serve the VIP again. here, unless nil, restricts them.
func (r *routes) known(s *service, here map[netip.Addr]bool) (text string, ingress []vip.Ingress) {
	var names []string
	for _, a := range s.addrs {
		if (here == nil || here[a.Addr]) && (r.self.hasSession() || s.inStatus(a.Addr)) {
			names = append(names, a.Addr.String())
			ingress = append(ingress, r.ingress(s, a.Addr))
		}
	}
	return strings.Join(names, ", "), ingress
}

// reportNoSession makes it the verdict of s, with an Event, that no router hears of it. While a session has been
// in its state for less than sessionGrace it changes nothing.
func (r *routes) reportNoSession(s *service) {
	why := []string{}
	for _, x := range r.BGPSessions {
		if wait := sessionGrace - r.Now.Sub(x.Since); wait > 0 {
			r.replanAfter(wait)
			return
		}
		why = append(why, fmt.Sprintf("%s: %s", x.Peer, cmp.Or(x.Reason, x.State)))
	}
	r.setProblem(s, vip.NoBGPSession, "node "+r.Self+" has no BGP session: "+cmp.Or(strings.Join(why, "; "), "no peer is configured"))
}

// statusWriter is the node, one of those that can serve s, that writes its status: the one that did; else of
// those with an established session, if there are any, the one with the highest rendezvous hash.
func (r *routes) statusWriter(s *service, eligible []*member) *member {
	if n := r.members[s.statusBy]; n != nil && slices.Contains(eligible, n) {
		return n
	}
	connected := slices.DeleteFunc(slices.Clone(eligible), func(n *member) bool { return !n.hasSession() })
	if len(connected) == 0 {
		connected = eligible
	}
	return highestHash(hashKey(s.Key), connected)
}

// addAggregates adds the prefixes that are advertised as long as a host route in them is, and sorts all routes.
// An aggregate is drained or kept if all of those are.
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
			r.out.Routes = append(r.out.Routes, vip.Route{Prefix: p, Attributes: r.BGP.Attributes, Drain: drain, Keep: keep})
		}
	}
	slices.SortFunc(r.out.Routes, func(a, b vip.Route) int { return a.Prefix.Compare(b.Prefix) })
}
