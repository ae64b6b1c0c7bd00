package plan

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// noIPv6On has IPv6 disabled on the link eth0 of nodes.
func noIPv6On(nodes ...int) func(*vip.World) {
	return func(w *vip.World) {
		for _, i := range nodes {
			w.Members[i-1].Info.Links[0].NoIPv6 = true
		}
	}
}

// A node on whose link IPv6 is disabled has no VIP of IPv6 alone. One that has both families it announces by IPv4,
// and leaves out the other: it stays.
func TestIPv6Disabled(t *testing.T) {
	const (
		both      = "10.77.0.50,fd77::50"
		bound     = "\nbind 10.77.0.50/32 dev eth0\nbind fd77::50/128 dev eth0\nstatus a 10.77.0.50(VIP) fd77::50(VIP)\na: VIPAnnounced"
		half      = "\nbind 10.77.0.50/32 dev eth0\nstatus a 10.77.0.50(VIP)\na: VIPAnnounced"
		announced = "\nevent a VIPAnnounced"
		keeps     = "kubevip-a -> n1"
	)
	without := func(w *vip.World) { w.Services[0].VIPHost, w.Services[0].Ingress = "", nil } // a status
	tests := []struct {
		name, addresses, holder string
		change                  []func(*vip.World)
		want                    string
	}{
		{"free: goes to the node that can bind it", "fd77::50", "", []func(*vip.World){noIPv6On(1, 2)}, "kubevip-a -> n3\na: VIPClaiming"},
		{"free: of both families it goes wherever it went", both, "", []func(*vip.World){noIPv6On(2)}, "kubevip-a -> n2\na: VIPClaiming"},
		{"free: of IPv4 too", "10.77.0.50", "", []func(*vip.World){noIPv6On(2)}, "kubevip-a -> n2\na: VIPClaiming"},
		{"free: nobody can bind it", "fd77::50", "", []func(*vip.World){noIPv6On(1, 2, 3)}, "a: NoEligibleNode"},
		{"owned: goes to the node that can bind it", "fd77::50", "n1", []func(*vip.World){noIPv6On(1, 3)}, "kubevip-a -> n2\na: VIPAnnounced"},
		{"owned: of both families it stays", both, "n1", []func(*vip.World){noIPv6On(1, 3)}, keeps + half + "\nevent a NoEligibleNode"},
		{"owned: of IPv4 it stays", "10.77.0.50", "n1", []func(*vip.World){noIPv6On(1, 3)}, keeps + half + announced},
		{"owned: another link is without IPv6", both, "n1", []func(*vip.World){func(w *vip.World) { w.Members[0].Info.Links[1].NoIPv6 = true }}, keeps + bound + announced},
		{"owned: nobody can bind it", "fd77::50", "n1", []func(*vip.World){noIPv6On(1, 2, 3), without}, "a: NoEligibleNode\nevent a NoEligibleNode"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := world(svc("a", tt.addresses, func(s *vip.Service) {
				if tt.holder != "" {
					written(tt.holder)(s)
				}
			}))
			if tt.holder != "" {
				w = held(w, "a", tt.holder)
			}
			w = with(w, tt.change...)
			w = bind(rules(), w) // the kernel has what it takes
			diff(t, summary(Make(rules(), w)), tt.want)
		})
	}
}

// The Service is told which link of which node it is, and what to do; the cause of the move, and `herald explain`, say it too.
func TestIPv6DisabledIsReported(t *testing.T) {
	w := held(world(svc("a", "fd77::50", written("n1"))), "a", "n1")
	noIPv6On(1)(&w)
	const why = "IPv6 is disabled on its link eth0 (sysctl -w net.ipv6.conf.eth0.disable_ipv6=0)"
	if owners := Make(rules(), w).Owners; len(owners) != 1 || owners[0].Cause != "n1: "+why {
		t.Errorf("%+v, want the cause %q", owners, why)
	}
	if e, _ := Explain(rules(), w, key("a")); e.Nodes[0].Why != why || e.Nodes[0].Able {
		t.Errorf("explain says %+v", e.Nodes[0])
	}
	w.Services[0].Addresses = append(w.Services[0].Addresses, addr("10.77.0.50"))
	for i := range w.Members { // a dot of a name is a slash to sysctl(8)
		w.Members[i].Info.Links[0].Name, w.Members[i].Info.Interface = "eth0.7", "eth0.7"
	}
	for _, r := range []Rules{rules(), withoutElection()} {
		w.Claims[r.SharedLease] = vip.Claim{Holder: "n1", Valid: true}
		p := Make(r, bind(r, w))
		want := "node n1 owns fd77::50, but IPv6 is disabled on its link eth0.7 (sysctl -w net.ipv6.conf.eth0/7.disable_ipv6=0)"
		if !slices.ContainsFunc(p.Events, func(e vip.Event) bool { return e.Reason == vip.NoEligibleNode && e.Message == want }) {
			t.Errorf("no Event %q in %+v", want, p.Events)
		}
	}
}

// withoutElection is rules with svc_election=false.
func withoutElection() Rules {
	r := rules()
	r.Election = false
	return r
}

// worldOfTwoLinks has nodes with a default route on eth0, and a VIP of the /64 of eth1 that may be on any link. The
// IPv6 address that n1 has on eth1 is tentative, or another host has it.
func worldOfTwoLinks() vip.World {
	w := held(world(svc("a", "fd99::50", written("n1"), func(s *vip.Service) { s.Interface = "auto" })), "a", "n1")
	for i := range w.Members {
		w.Members[i].Info.Links[1] = vip.Link{Name: "eth1", Up: true, MAC: []string{"02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"}[i],
			Prefixes: prefixes([]string{"fd99::11/64", "fd99::12/64", "fd99::13/64"}[i])}
	}
	w.Members[0].Info.Links[1].Prefixes = nil
	w.Members[0].Info.Links[1].TentativeNetworks = prefixes("fd99::/64")
	w.Members[0].Info.OtherAddresses = []netip.Addr{addr("fd99::11")}
	return w
}

// A link is in the network of an address that is tentative, or that another host has: "auto" is that link for VIPs of
// the network, and not the one of the default route.
func TestNetworkOfTentativeAddress(t *testing.T) {
	r, w := rules(), worldOfTwoLinks()
	diff(t, summary(Make(r, bind(r, w))), "kubevip-a -> n1; bind fd99::50/128 dev eth1; status a fd99::50(VIP); a: VIPAnnounced; event a VIPAnnounced")
	r.Bits6 = 0
	diff(t, summary(Make(r, bind(r, w))), "kubevip-a -> n1; bind fd99::50/64 dev eth1; status a fd99::50(VIP); a: VIPAnnounced; event a VIPAnnounced")
	w.Members[0].Info.Links[1].Up = false // no carrier: the address stays tentative
	n := newNodes(&w)
	need := requirements{capabilities: &capabilities{}, links: []linkOf{{"auto", addr("fd99::50")}}}
	check.Equal(t, whyIneligible(&need, n.self), "its link eth1 is down", "the node is ineligible because")
	check.Equal(t, whyIneligible(&need, n.members["n2"]), "", "node n2 is ineligible because")
}

// A link whose addresses are tentative is verified, and verifies others'.
func TestVerifierWithTentativeAddress(t *testing.T) {
	w := worldOfTwoLinks()
	if who := verifiers(w); len(who) != 1 || who[0] == "n1" {
		t.Errorf("%v ask", who)
	}
	w.Members[2].Alive = false
	w = held(w, "a", "n2")
	w.Services[0].VIPHost = "n2"
	if who := verifiers(w); len(who) != 1 || who[0] != "n1" {
		t.Errorf("of an address of n2's, %v ask", who)
	}
}

// Pods of a node with such an address reach the owner by the network of both, and so do packets of connections that began there.
func TestWayInNetworkOfTentativeAddress(t *testing.T) {
	w := worldOfTwoLinks()
	n := newNodes(&w)
	r := rules()
	d := &draft{facts: &facts{Rules: &r, World: &w, nodes: n}}
	if via, link := new(egress).wayTo(n.self, n.members["n2"], addr("fd99::50")); via != addr("fd99::12") || link != "eth1" {
		t.Errorf("by way of %s on %s", via, link)
	}
	s := &service{}
	s.Interface, s.bindsAddresses = "auto", true
	f := newFormerOwners(d)
	check.Equal(t, f.addressOn(s, vip.Address{Addr: addr("fd99::50"), Link: "eth1"}, "n2"), addr("fd99::12"), "the way to the former owner")
	check.Equal(t, arrivalLink(&n.self.Info, s, addr("fd99::50")), "eth1", "packets arrive on")
}

// A node whose options announce no Service as this one asks for is given it by nobody.
func TestWayOfANode(t *testing.T) {
	for _, tt := range []struct {
		rules Rules
		way   vip.Method
		want  string
	}{
		{rules(), vip.ByARP, "kubevip-a -> n1"},
		{bgpRules(withElection), vip.ByBGP, "kubevip-a -> n1"},
	} {
		w := world(svc("a", "10.77.0.50", func(s *vip.Service) { s.Announce = []vip.Method{tt.way} }))
		for i := range w.Members {
			first := w.Members[i].Name == "n1"
			w.Members[i].Info.Options = &vip.NodeOptions{Services: true, ARP: first == (tt.way == vip.ByARP), BGP: first == (tt.way == vip.ByBGP),
				CommonOptions: tt.rules.CommonOptions}
		}
		for _, self := range []string{"n1", "n2"} {
			w.Self = self
			check.Contains(t, summary(Make(tt.rules, w)), tt.want)
		}
	}
}
