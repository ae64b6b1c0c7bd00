package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// bgpRules are the rules of BGP alone, without an election.
func bgpRules(change ...func(*Rules)) Rules {
	r := rules()
	r.ARP, r.Election, r.BGP = false, false, &BGP{}
	for _, f := range change {
		f(&r)
	}
	return r
}

// tableRules are the rules of a routing table alone, without an election.
var tableRules = bgpRules(func(r *Rules) { r.BGP, r.RoutingTable = nil, 198 })

func withARP(r *Rules)      { r.ARP = true }
func withElection(r *Rules) { r.Election = true }

// withSessions says that this node, and all others, have a session.
func withSessions(w vip.World) vip.World {
	session := []vip.BGPSession{{Peer: "192.0.2.1", State: vip.Established, Lasting: true}}
	w.BGPSessions = session
	for i := range w.Members {
		w.Members[i].Info.BGPSessions = session
	}
	return w
}

func seenFrom(w vip.World, self string) vip.World {
	w.Self = self
	return w
}

func announcedBy(m ...vip.Method) func(*vip.Service) {
	return func(s *vip.Service) { s.Announce = append([]vip.Method{}, m...) }
}

// toPeers says to which peers the Service is advertised.
func toPeers(names ...string) func(*vip.Service) {
	return func(s *vip.Service) { s.BGPAttributes.Peers = append([]string{}, names...) }
}

// affinity says that the Service has session affinity.
func affinity(s *vip.Service) { s.ClientIPAffinity = true }

// routesSummary is what a plan advertises, and its statuses, in few words.
func routesSummary(p vip.Plan) string {
	var b strings.Builder
	for _, r := range p.Routes {
		fmt.Fprintf(&b, "%s", r.Prefix)
		if r.Drain {
			b.WriteString(" draining")
		}
		if r.Keep {
			b.WriteString(" kept")
		}
		b.WriteString("\n")
	}
	for _, s := range addressStatuses(p) {
		fmt.Fprintf(&b, "status of %s: %d addresses, host %q\n", s.Service.Name, len(s.Ingress), s.VIPHost)
	}
	for _, a := range p.Addresses {
		fmt.Fprintf(&b, "bind %s\n", a.Prefix())
	}
	for _, v := range p.Verdicts {
		if v.Reason != vip.VIPAnnounced {
			fmt.Fprintf(&b, "%s: %s\n", v.Service.Name, v.Reason)
		}
	}
	return b.String()
}

func TestRoutes(t *testing.T) {
	restart := bgpRules(func(r *Rules) { r.BGP.Keep = true })
	as := func(w vip.World, n vip.Node) vip.World {
		w.Nodes = allNodes(n)
		return w
	}
	taint := func(w vip.World, node, why string) vip.World { return as(w, vip.Node{Name: node, Excluded: why}) }
	stopping := func(w vip.World, node string) vip.World {
		if w.Self == node {
			w.Stopping = true
		}
		memberNamed(&w, node).Info.Excluded = "its Herald is stopping"
		return w
	}
	fault := func(w vip.World, names ...string) vip.World {
		for _, n := range names {
			faulty(&w, memberNamed(&w, n))
		}
		return w
	}
	ready := func(w vip.World, names ...string) vip.World {
		for _, n := range names {
			w.HealthChecked[key(n)] = true
		}
		return w
	}
	health := func(s *vip.Service) { s.HealthCheckNodePort = 30000 }
	a := svc("a", "10.77.0.50", written("n1"))
	moved := svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.Addresses = []netip.Addr{addr("10.77.0.51")} })
	elsewhere := func(s *vip.Service) { s.Key.Namespace = "tenant" }
	// from n3, which alone has a session with another peer than all others have
	otherPeer := func(w vip.World) vip.World {
		w = seenFrom(withSessions(w), "n3")
		w.BGPSessions = []vip.BGPSession{{Peer: "192.0.2.9", State: vip.Established, Lasting: true}}
		w.Members[2].Info.BGPSessions = w.BGPSessions
		return w
	}
	no6 := func(w vip.World, names ...string) vip.World { // the routers of these nodes take no IPv6
		for _, n := range names {
			memberNamed(&w, n).Info.BGPSessions = []vip.BGPSession{{Peer: "192.0.2.1", State: vip.Established, Lasting: true, NoIPv6: true}}
		}
		w.BGPSessions = memberNamed(&w, w.Self).Info.BGPSessions
		return w
	}
	sticky := svc("a", "10.77.0.50", written("n1"), affinity)
	six := svc("a", "fd77::50", written("n1"))
	mine := "10.77.0.50/32\nstatus of a: 1 addresses, host \"n1\"\n"
	theirs, lost := "10.77.0.50/32\n", "a: NoBGPSession\n"
	alone := func(w *vip.World) { w.Members = w.Members[:1] }
	isolated := func(w *vip.World) { w.Members[0].Info.Isolated = true }
	advertised := func(w *vip.World) { w.Advertised = map[netip.Prefix]bool{netip.MustParsePrefix("10.77.0.50/32"): true} }
	othersDead := func(w *vip.World) { w.Members[1].Alive, w.Members[2].Alive = false, false }
	leaseLost := func(w *vip.World) { w.Members[0].Alive = false }
	runPlans(t, planned(routesSummary), []planTest{
		{"the node that wrote the status", bgpRules(), withSessions(world(a)), mine},
		{"another node", bgpRules(), seenFrom(withSessions(world(a)), "n2"), theirs},
		{"a second family", bgpRules(), withSessions(world(svc("a", "10.77.0.50,fd77::50", written("n1")))), "10.77.0.50/32\nfd77::50/128\nstatus of a: 2 addresses, host \"n1\"\n"},
		{"no session: the status that is there stays", bgpRules(), world(a), mine + lost},
		{"no session for a moment", bgpRules(), with(world(a), func(w *vip.World) {
			w.BGPSessions = []vip.BGPSession{{Peer: "192.0.2.1", State: "active"}}
		}), mine},
		{"no session of its owner", bgpRules(withElection), held(world(a), "a", "n1"), mine + lost},
		{"alone: the others are dead", bgpRules(), with(withSessions(world(a)), isolated, othersDead), mine},
		{"alone: the status is another's, which may be alive", bgpRules(), with(with(withSessions(world(svc("a", "10.77.0.50", written("n2")))), isolated), othersDead), theirs},
		{"... and lacks the address", bgpRules(), with(with(withSessions(world(moved)), isolated), othersDead), "10.77.0.51/32\nstatus of a: 1 addresses, host \"n1\"\n"},
		{"none hears the others", bgpRules(), with(withSessions(world(a)), isolated, func(w *vip.World) {
			w.Members[1].Info.Isolated, w.Members[2].Info.Isolated = true, true
		}), mine},
		{"its lease is lost", bgpRules(), with(withSessions(world(a)), leaseLost), mine},
		{"... and the status is another's", bgpRules(), with(withSessions(world(svc("a", "10.77.0.50", written("n2")))), leaseLost), theirs},
		{"... and others have one, of whom one alone is to advertise it", bgpRules(), with(withSessions(world(sticky)), leaseLost), ""},
		{"... and those of all others, of whom one alone is to advertise it", bgpRules(), with(withSessions(world(sticky)), leaseLost, othersDead), mine},
		{"... and those of all others", bgpRules(), with(withSessions(world(a)), leaseLost, othersDead), mine},
		{"its data plane is not proven yet", bgpRules(), with(withSessions(world(a)), func(w *vip.World) { w.Members[0].Info.DataPlaneUnproven = true }), ""},
		{"no session, and a new Service", bgpRules(), world(svc("a", "10.77.0.50", local("n1"))), "10.77.0.50/32\na: NoBGPSession\n"},
		{"a session with a peer that it names", bgpRules(), withSessions(world(svc("a", "10.77.0.50", local("n1"), toPeers("192.0.2.9", "192.0.2.1")))),
			"10.77.0.50/32\nstatus of a: 1 addresses, host \"n1\"\n"},
		{"sessions with other peers only than it names", bgpRules(), withSessions(world(svc("a", "10.77.0.50", local("n1"), toPeers("192.0.2.9")))), "10.77.0.50/32\na: NoBGPSession\n"},
		{"... and its status is there", bgpRules(), withSessions(world(svc("a", "10.77.0.50", written("n1"), toPeers("192.0.2.9")))), mine + lost},
		{"... and in a table, too", bgpRules(func(r *Rules) { r.RoutingTable = 198 }), withSessions(world(svc("a", "10.77.0.50", written("n1"), toPeers("192.0.2.9")))), mine},
		{"it names no peer that could be read", bgpRules(), withSessions(world(svc("a", "10.77.0.50", local("n1"), toPeers()))), "10.77.0.50/32\na: NoBGPSession\n"},
		{"the node that has a session with the peer that it names writes the status", bgpRules(), otherPeer(world(svc("a", "10.77.0.50", toPeers("192.0.2.9")))),
			"10.77.0.50/32\nstatus of a: 1 addresses, host \"n3\"\n"},
		{"session affinity: the node that has a session with the peer that it names", bgpRules(), otherPeer(world(svc("a", "10.77.0.50", toPeers("192.0.2.9"), affinity))),
			"10.77.0.50/32\nstatus of a: 1 addresses, host \"n3\"\n"},
		{"its router takes no IPv6, and a new Service", bgpRules(), no6(withSessions(world(svc("a", "fd77::50", local("n1")))), "n1"), "fd77::50/128\na: NoBGPSession\n"},
		{"... of both families", bgpRules(), no6(withSessions(world(svc("a", "10.77.0.50,fd77::50", local("n1")))), "n1"),
			"10.77.0.50/32\nfd77::50/128\nstatus of a: 1 addresses, host \"n1\"\n"},
		{"... and its owner", bgpRules(withElection), held(no6(withSessions(world(svc("a", "fd77::50"))), "n1"), "a", "n1"), "fd77::50/128\na: NoBGPSession\n"},
		{"... and the owner of both families", bgpRules(withElection), held(no6(withSessions(world(svc("a", "10.77.0.50,fd77::50"))), "n1"), "a", "n1"),
			"10.77.0.50/32\nfd77::50/128\nstatus of a: 1 addresses, host \"n1\"\n"},
		{"... and its status is there", bgpRules(), no6(withSessions(world(six)), "n1", "n2", "n3"), "fd77::50/128\na: NoBGPSession\n"},
		{"... but routers of other nodes do", bgpRules(), no6(withSessions(world(six)), "n1"), "fd77::50/128\nstatus of a: 1 addresses, host \"n1\"\n"},
		{"... of both families, and its status is there", bgpRules(), no6(withSessions(world(svc("a", "10.77.0.50,fd77::50", written("n1")))), "n1", "n2", "n3"),
			"10.77.0.50/32\nfd77::50/128\nstatus of a: 1 addresses, host \"n1\"\n"},
		{"... and they are in a table, too", bgpRules(func(r *Rules) { r.RoutingTable = 198 }), no6(withSessions(world(six)), "n1"), "fd77::50/128\nstatus of a: 1 addresses, host \"n1\"\n"},
		{"the node whose router takes both families writes the status", bgpRules(), no6(seenFrom(withSessions(world(svc("a", "10.77.0.50,fd77::50"))), "n3"), "n1", "n2"),
			"10.77.0.50/32\nfd77::50/128\nstatus of a: 2 addresses, host \"n3\"\n"},
		{"session affinity: the node whose router takes IPv6", bgpRules(), no6(seenFrom(withSessions(world(svc("a", "fd77::50", affinity))), "n3"), "n1", "n2"), "fd77::50/128\nstatus of a: 1 addresses, host \"n3\"\n"},
		{"its data plane fails, and no other router takes IPv6", bgpRules(), fault(no6(withSessions(world(six)), "n2", "n3"), "n1"), "fd77::50/128\nstatus of a: 1 addresses, host \"n1\"\n"},
		{"excluded", bgpRules(), taint(withSessions(world(a)), "n1", "it has a taint"), ""},
		{"its data plane fails", bgpRules(), fault(withSessions(world(a)), "n1"), ""},
		{"another's data plane fails, which wrote the status: it has the new address", bgpRules(), seenFrom(fault(withSessions(world(moved)), "n1"), "n2"), "10.77.0.51/32\nstatus of a: 1 addresses, host \"n2\"\n"},
		{"its data plane fails, and those of all others", bgpRules(), fault(withSessions(world(a)), "n1", "n2", "n3"), mine},
		{"its data plane fails, and no other node has a session", bgpRules(), fault(world(a), "n1"), mine + lost},
		{"another node's data plane fails", bgpRules(), fault(withSessions(world(a)), "n2"), mine},
		{"another takes over the status", bgpRules(), seenFrom(taint(withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n1", "n2")))), "n1", "it has a taint"), "n2"),
			"10.77.0.50/32\nstatus of a: 1 addresses, host \"n2\"\n"},
		{"stopping", bgpRules(), stopping(withSessions(world(a)), "n1"), "10.77.0.50/32 draining\n"},
		{"stopping for a restart", restart, stopping(withSessions(world(a)), "n1"), "10.77.0.50/32 kept\n"},
		{"stopping, and excluded before", bgpRules(), stopping(taint(withSessions(world(a)), "n1", "it has a taint"), "n1"), ""},
		{"stopping, and drained before", bgpRules(), stopping(as(withSessions(world(a)), vip.Node{Name: "n1", Drained: true}), "n1"), ""},
		{"... for a restart", restart, stopping(as(withSessions(world(a)), vip.Node{Name: "n1", Drained: true}), "n1"), ""},
		{"... and in a table", tableRules, stopping(as(world(a), vip.Node{Name: "n1", Drained: true}), "n1"), ""},
		{"stopping, since its node is shut down", bgpRules(), stopping(as(withSessions(world(a)), vip.Node{Name: "n1", ShuttingDown: true}), "n1"), ""},
		{"... for a restart", restart, stopping(as(withSessions(world(a)), vip.Node{Name: "n1", ShuttingDown: true}), "n1"), ""},
		{"stopping, and isolated", bgpRules(), stopping(with(withSessions(world(a)), isolated), "n1"), "10.77.0.50/32 draining\n"},
		{"stopping as the last", bgpRules(), stopping(withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n1")))), "n1"),
			"10.77.0.50/32 draining\nstatus of a: 1 addresses, host \"\"\na: NoEligibleNode\n"},
		{"... for a restart", restart, stopping(withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n1")))), "n1"),
			"10.77.0.50/32 kept\nstatus of a: 1 addresses, host \"\"\na: NoEligibleNode\n"},
		{"stopping as the only node", bgpRules(), with(stopping(withSessions(world(a)), "n1"), alone), "10.77.0.50/32 draining\nstatus of a: 0 addresses, host \"\"\na: NoEligibleNode\n"},
		{"... for a restart", restart, with(stopping(withSessions(world(a)), "n1"), alone), "10.77.0.50/32 kept\na: NoEligibleNode\n"},
		{"another stops", bgpRules(), stopping(withSessions(world(a)), "n2"), mine},
		{"Local, with an endpoint", bgpRules(), withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n1", "n3")))), mine},
		{"Local, without one", bgpRules(), seenFrom(withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n1", "n3")))), "n2"), ""},
		{"Local, kube-proxy does not serve it yet", bgpRules(), withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n1"), health))), ""},
		{"Local, kube-proxy does not serve it yet, as it was not Local before", bgpRules(), with(withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n1"), health))), advertised), mine},
		{"Local, kube-proxy serves it", bgpRules(), ready(withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n1"), health))), "a"), mine},
		{"a table", tableRules, world(svc("a", "10.77.0.50")), "10.77.0.50/32\n"},
		{"a table, the node that wrote the status", tableRules, world(a), mine},
		{"a table, and stopping", tableRules, stopping(world(a), "n1"), "10.77.0.50/32 draining\n"},
		{"a table, and the data plane fails", tableRules, fault(world(a), "n1"), ""},
		{"Local, on nobody's node", bgpRules(), withSessions(world(svc("a", "10.77.0.50", written("n1"), local("w9")))),
			"status of a: 1 addresses, host \"\"\na: NoEligibleNode\n"},
		{"no endpoint", bgpRules(), withSessions(world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.Endpoints = vip.Endpoints{} }))),
			"status of a: 1 addresses, host \"\"\na: NoEndpoints\n"},
		{"an address shared: where both are served", bgpRules(), seenFrom(withSessions(world(a, svc("b", "10.77.0.50", port(81), younger, written("n1"), local("n1")))), "n2"), ""},
		{"an address shared: where nobody serves both, as the oldest", bgpRules(), seenFrom(withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n2")),
			svc("b", "10.77.0.50", port(81), younger, written("n1"), local("n1")))), "n2"), "10.77.0.50/32\nstatus of a: 1 addresses, host \"n2\"\nb: NoEligibleNode\n"},
		{"... and the other one says so", bgpRules(), withSessions(world(svc("a", "10.77.0.50", written("n2"), local("n2")),
			svc("b", "10.77.0.50", port(81), younger, written("n1"), local("n1")))), "status of b: 1 addresses, host \"\"\nb: NoEligibleNode\n"},
		{"... also if it is new", bgpRules(), withSessions(world(svc("a", "10.77.0.50", written("n2"), local("n2")),
			svc("b", "10.77.0.50", port(81), younger, local("n1")))), "b: NoEligibleNode\n"},
		{"... but has another address", bgpRules(), withSessions(world(svc("a", "10.77.0.50", written("n2"), local("n2")),
			svc("b", "10.77.0.50,fd77::51", port(81), younger, local("n1")))), "fd77::51/128\nstatus of b: 1 addresses, host \"n1\"\n"},
		{"without a lease in time", bgpRules(), with(withSessions(world(a)), func(w *vip.World) { w.Tenure.Until = w.Now }), mine},
		{"session affinity: the node that wrote the status", bgpRules(), withSessions(world(sticky)), mine},
		{"session affinity: another", bgpRules(), seenFrom(withSessions(world(sticky)), "n2"), ""},
		{"session affinity: of another Service at the address", bgpRules(), seenFrom(withSessions(world(a, svc("b", "10.77.0.50", port(81), younger, written("n1"), affinity))), "n2"), ""},
		{"session affinity: of one of another namespace, which does not get the address", bgpRules(), seenFrom(withSessions(world(svc("a", "10.77.0.50", written("n1"), sharing("k")),
			svc("x", "10.77.0.50", port(81), younger, affinity, sharing("k"), elsewhere))), "n2"), "10.77.0.50/32\nx: AddressConflict\n"},
		{"... nor asks for it", bgpRules(), seenFrom(withSessions(world(svc("a", "10.77.0.50", written("n1"), sharing("k")), svc("x", "10.77.0.50", port(81), younger, sharing("k"), elsewhere))), "n2"), theirs},
		{"session affinity, excluded", bgpRules(), taint(withSessions(world(sticky)), "n1", "it has a taint"), ""},
		{"session affinity, its data plane fails", bgpRules(), fault(withSessions(world(sticky)), "n1"), ""},
		{"session affinity, its sessions are down", bgpRules(), with(withSessions(world(sticky)), func(w *vip.World) { w.BGPSessions, w.Members[0].Info.BGPSessions = nil, nil }), ""},
		{"session affinity, stopping", bgpRules(), stopping(withSessions(world(sticky)), "n1"), "10.77.0.50/32 draining\n"},
		{"session affinity, another stops", bgpRules(), stopping(seenFrom(withSessions(world(sticky)), "n2"), "n2"), ""},
		{"session affinity, no session", bgpRules(), world(sticky), mine + lost},
		{"session affinity, election", bgpRules(withElection), held(withSessions(world(sticky)), "a", "n1"), mine},
		{"aggregates", bgpRules(func(r *Rules) {
			r.BGP.Aggregates = []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24"), netip.MustParsePrefix("10.78.0.0/24")}
		}), withSessions(world(a)), "10.77.0.0/24\n10.77.0.50/32\nstatus of a: 1 addresses, host \"n1\"\n"},

		{"both ways, no election: the owner of all binds it", bgpRules(withARP), bind(bgpRules(withARP), heldForAll(withSessions(world(a)), "n1")), mine + "bind 10.77.0.50/32\n"},
		{"both ways, no election: the others are next hops", bgpRules(withARP), seenFrom(heldForAll(withSessions(world(a)), "n1"), "n2"), theirs + "a: VIPElsewhere\n"},
		{"both enabled, ARP asked for", bgpRules(withARP), seenFrom(heldForAll(withSessions(world(svc("a", "10.77.0.50", announcedBy(vip.ByARP)))), "n1"), "n2"), "a: VIPElsewhere\n"},
		{"both enabled, BGP asked for", bgpRules(withARP), withSessions(world(svc("a", "10.77.0.50", written("n1"), announcedBy(vip.ByBGP)))), mine},
		{"a way that is not enabled", bgpRules(), withSessions(world(svc("a", "10.77.0.50", announcedBy(vip.ByARP)))), "a: InvalidField\n"},
		{"a way that can't be read", bgpRules(), withSessions(world(svc("a", "10.77.0.50", announcedBy()))), "a: InvalidField\n"},
		{"... of a VIP that is announced, by the only way there is", bgpRules(), withSessions(world(svc("a", "10.77.0.50", written("n1"), announcedBy()))), mine},
		{"... by one of two", bgpRules(withARP), withSessions(world(svc("a", "10.77.0.50", written("n1"), announcedBy()))), "status of a: 0 addresses, host \"\"\na: InvalidField\n"},

		{"election: the owner", bgpRules(withElection), held(withSessions(world(a)), "a", "n1"), mine},
		{"election: Local, kube-proxy does not serve it yet", bgpRules(withElection), held(withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n1"), health))), "a", "n1"), "a: VIPClaiming\n"},
		{"election: ... as it was not Local before", bgpRules(withElection), with(held(withSessions(world(svc("a", "10.77.0.50", written("n1"), local("n1"), health))), "a", "n1"), advertised), mine},
		{"election: another", bgpRules(withElection), seenFrom(held(withSessions(world(a)), "a", "n1"), "n2"), "a: VIPElsewhere\n"},
		{"election: no link is needed", bgpRules(withElection), held(withSessions(world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.Interface = "eth9" }))), "a", "n1"), mine},
		{"election: handed over", bgpRules(withElection), handedOver(held(withSessions(world(a)), "a", "n2"), "a", time.Second), "10.77.0.50/32 draining\na: VIPElsewhere\n"},
		{"election: handed over by a write without an answer", bgpRules(withElection), inDoubt(handedOver(held(withSessions(world(a)), "a", "n2"), "a", time.Second)), "10.77.0.50/32\na: VIPElsewhere\n"},
		{"election: handed over, past the deadline", bgpRules(withElection), handedOver(held(withSessions(world(a)), "a", "n2"), "a", -time.Second), "a: VIPElsewhere\n"},
		{"election: no lease in time", bgpRules(withElection), with(held(withSessions(world(a)), "a", "n1"), func(w *vip.World) { w.Tenure.Until = w.Now }), "a: NodeLeaseNotHeld\n"},
		{"election, both ways: not before it is bound", bgpRules(withElection, withARP), held(withSessions(world(a)), "a", "n1"), "bind 10.77.0.50/32\n"},
		{"election, both ways", bgpRules(withElection, withARP), bind(bgpRules(withElection, withARP), held(withSessions(world(a)), "a", "n1")), mine + "bind 10.77.0.50/32\n"},
	})
}

// Of a Service that no node could announce alone either, the reason is why, and not that it shares its address.
func TestUnservedSaysWhy(t *testing.T) {
	w := withSessions(world(svc("a", "10.77.0.50", written("n2"), local("n2")), svc("b", "10.77.0.50", port(81), younger, local("n1"))))
	for _, tt := range []struct {
		w    vip.World
		want string
	}{
		{w, "no node can serve both this Service and those that share 10.77.0.50"},
		{with(w, func(w *vip.World) { w.Nodes = allNodes(vip.Node{Name: "n1", Excluded: "it has a taint"}) }), "n1: it has a taint"},
	} {
		for _, v := range Make(bgpRules(), tt.w).Verdicts {
			if v.Service.Name == "b" && !strings.Contains(v.Message, tt.want) {
				t.Errorf("%q, want %q", v.Message, tt.want)
			}
		}
	}
}

func heldForAll(w vip.World, node string) vip.World {
	w.Claims[rules().SharedLease] = vip.Claim{Holder: node, Valid: true, Transitions: 1}
	return w
}

func handedOver(w vip.World, name string, left time.Duration) vip.World {
	w.HandingOver[key("kubevip-"+name)] = vip.HandingOver{Successor: "n2", Since: w.Now.Add(left - 3*time.Second), Until: w.Now.Add(left)}
	return w
}

func inDoubt(w vip.World) vip.World {
	for k, h := range w.HandingOver {
		h.InDoubt = true
		w.HandingOver[k] = h
	}
	return w
}

// An address that no session carries is an Event: since its family was not negotiated or has no next hop, or the Service names other peers.
func TestNoBGPSession(t *testing.T) {
	const no6 = "192.0.2.1: it carries no IPv6: activate the family on the router, and give this node an address for the next hop"
	const named = "node n1 has no BGP session with a peer that heraldvip.io/bgp-peers names: "
	for _, tt := range []struct {
		name   string
		s      vip.Service
		change func(*vip.World)
		want   string
	}{
		{"of one family", svc("a", "fd77::50", local("n1")), nil, "node n1 has no BGP session for fd77::50: " + no6},
		{"of two", svc("a", "10.77.0.50,fd77::50", local("n1")), nil, "node n1 has no BGP session for fd77::50: " + no6},
		{"its status is there", svc("a", "fd77::50", local("n1"), written("n1")), nil, "node n1 has no BGP session for fd77::50: " + no6},
		{"another session is down", svc("a", "fd77::50", local("n1")), func(w *vip.World) {
			w.BGPSessions = append(w.BGPSessions, vip.BGPSession{Peer: "192.0.2.2", State: "active", Lasting: true})
		}, "node n1 has no BGP session for fd77::50: " + no6 + "; 192.0.2.2: active"},
		{"another session has just gone down", svc("a", "fd77::50", local("n1")), func(w *vip.World) {
			w.BGPSessions = append(w.BGPSessions, vip.BGPSession{Peer: "192.0.2.2", State: "active"})
		}, ""},
		{"another takes it", svc("a", "fd77::50", local("n1")), func(w *vip.World) {
			w.BGPSessions = append(w.BGPSessions, vip.BGPSession{Peer: "192.0.2.2", State: vip.Established, Lasting: true})
		}, ""},
		{"of the family that is taken", svc("a", "10.77.0.50", local("n1")), nil, ""},
		{"named peers, of which one is down", svc("a", "10.77.0.50", local("n1"), toPeers("192.0.2.2")), func(w *vip.World) {
			w.BGPSessions = append(w.BGPSessions, vip.BGPSession{Peer: "192.0.2.2", State: "active", Lasting: true})
		}, named + "192.0.2.2: active"},
		{"... of which there is none", svc("a", "10.77.0.50", local("n1"), toPeers("192.0.2.99")), nil, named + "no such peer is configured"},
		{"... which can't be read", svc("a", "10.77.0.50", local("n1"), toPeers()), nil, named + "no such peer is configured"},
		{"neither family", svc("a", "10.77.0.50,fd77::50", local("n1")), func(w *vip.World) { w.BGPSessions[0].NoIPv4 = true },
			"node n1 has no BGP session for 10.77.0.50, fd77::50: 192.0.2.1: it carries no IPv4 and no IPv6: activate the family on the router, and give this node an address for the next hop"},
	} {
		w := withSessions(world(tt.s))
		w.BGPSessions = []vip.BGPSession{{Peer: "192.0.2.1", State: vip.Established, Lasting: true, NoIPv6: true}}
		w = with(w, tt.change)
		check.Equal(t, strings.Join(messages(Make(bgpRules(), w), vip.NoBGPSession), ""), tt.want, "%s: the Event", tt.name)
	}
}

// One node of those that advertise it writes the status, and all agree on which.
func TestOneStatusWriter(t *testing.T) {
	var services, shared []vip.Service
	for i := range 30 {
		s := svc(fmt.Sprint("s", i), fmt.Sprintf("10.77.0.%d", 50+i))
		services = append(services, s)
		shared = append(shared, s, svc(fmt.Sprint("t", i), s.Addresses[0].String(), port(81), younger, local("n1", "n2")))
	}
	noSession := func(w *vip.World, m *vip.Member) {
		m.Info.BGPSessions = nil
		if m.Name == w.Self {
			w.BGPSessions = nil
		}
	}
	for _, tt := range []struct {
		name     string
		services []vip.Service
		change   func(*vip.World, *vip.Member) // of each node in turn
		where    string                        // it may not write then
	}{
		{"no router hears it", services, noSession, "n1 n2 n3"},
		{"its data plane fails", services, faulty, "n1 n2 n3"},
		{"it does not serve all that share the address", shared, func(*vip.World, *vip.Member) {}, "n3"},
	} {
		for i, node := range []string{"n1", "n2", "n3"} {
			writers := make(map[string]string)
			for _, self := range []string{"n1", "n2", "n3"} {
				w := seenFrom(withSessions(world(tt.services...)), self)
				tt.change(&w, &w.Members[i])
				for _, s := range addressStatuses(Make(bgpRules(), w)) {
					writers[s.Service.Name] += self
				}
			}
			for _, s := range tt.services {
				if by := writers[s.Key.Name]; len(by) != 2 || by == node && strings.Contains(tt.where, node) {
					t.Errorf("%s, %s: the status of %s is written by %q", tt.name, node, s.Key.Name, by)
				}
			}
		}
	}
}

// A Service with session affinity is advertised from one node, which also writes its status; if that can't, from
// another one. All agree on which.
func TestOneNodeForSessionAffinity(t *testing.T) {
	services := []vip.Service{svc("shared", "10.77.0.50,fd77::50"), svc("sharing", "10.77.0.50", port(81), younger, affinity)}
	for i := range 30 {
		services = append(services, svc(fmt.Sprint("s", i), fmt.Sprintf("10.77.0.%d,fd77::%d", 60+i, 60+i), affinity))
	}
	for _, down := range []string{"", "n1", "n2", "n3"} {
		routes, writers := make(map[netip.Prefix]string), make(map[string]string)
		for _, self := range []string{"n1", "n2", "n3"} {
			w := seenFrom(withSessions(world(services...)), self)
			if down != "" {
				memberNamed(&w, down).Info.BGPSessions = nil
			}
			w.BGPSessions = memberNamed(&w, self).Info.BGPSessions
			p := Make(bgpRules(), w)
			for _, r := range p.Routes {
				if r.Prefix != netip.MustParsePrefix("fd77::50/128") { // of shared alone
					routes[r.Prefix] += self
				}
			}
			for _, s := range p.Statuses {
				writers[s.Service.Name] += self
				check.Equal(t, len(s.Ingress), len(services[slices.IndexFunc(services, func(o vip.Service) bool { return o.Key == s.Service })].Addresses), "how many addresses of %s %s writes", s.Service, self)
			}
		}
		nodes := make(map[string]int)
		for prefix, from := range routes {
			if len(from) != 2 || from == down {
				t.Errorf("%s is down: %s is advertised by %q", down, prefix, from)
			}
			nodes[from]++
		}
		if len(nodes) < 2 {
			t.Errorf("%s is down: all are advertised by %v", down, nodes)
		}
		for _, s := range services {
			check.Equal(t, writers[s.Key.Name], routes[netip.PrefixFrom(s.Addresses[0], 32)], "%s is down: the status of %s is written by", down, s.Key)
		}
	}
}

// What a Service says of its routes wins over the options, piece by piece.
func TestAttributes(t *testing.T) {
	med, pref := uint32(5), uint32(200)
	r := bgpRules(func(r *Rules) { r.BGP.Attributes = vip.BGPAttributes{MED: &med, Communities: []vip.Community{1}} })
	p := Make(r, withSessions(world(svc("a", "10.77.0.50", func(s *vip.Service) {
		s.BGPAttributes = vip.BGPAttributes{LocalPref: &pref, Communities: []vip.Community{}, Peers: []string{"192.0.2.1"}}
	}))))
	want := vip.BGPAttributes{MED: &med, LocalPref: &pref, Communities: []vip.Community{}, Peers: []string{"192.0.2.1"}}
	check.Same(t, want, p.Routes[0].Attributes, "attributes")
}

// While no node may own the lease of all, but every node advertises, no Event says that no node is eligible.
func TestAdvertisedWithoutOwner(t *testing.T) {
	w := withSessions(world(svc("a", "10.77.0.50", written("n1"))))
	for i := range w.Members {
		w.Members[i].Info.Links = nil
	}
	p := Make(bgpRules(withARP), w)
	if got := routesSummary(p); len(p.Events) != 1 || p.Events[0].Reason != vip.VIPAnnounced || got != "10.77.0.50/32\nstatus of a: 1 addresses, host \"n1\"\n" {
		t.Errorf("events %+v, want one: %s\n%s", p.Events, vip.VIPAnnounced, got)
	}
}

// Packets to a VIP that kube-proxy leaves alone, by the Service or else the option, are nobody's to refuse.
func TestUntranslatedRoutes(t *testing.T) {
	w := withSessions(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51", func(s *vip.Service) { s.IPMode = vip.ModeProxy }),
		svc("c", "10.77.0.52", func(s *vip.Service) { s.IPMode = vip.ModeVIP }),
		svc("d", "10.77.0.53", func(s *vip.Service) { s.IPMode, s.NoKubeProxy = vip.ModeVIP, true })))
	for option, want := range map[vip.IPMode][]bool{vip.ModeVIP: {false, true, false, true}, vip.ModeProxy: {true, true, false, true}} {
		var got []bool
		for _, x := range Make(bgpRules(func(r *Rules) { r.IPMode = option }), w).Routes {
			got = append(got, x.Untranslated)
		}
		if !slices.Equal(got, want) {
			t.Errorf("svc_ipmode=%s: %v, want %v", option, got, want)
		}
	}
}
