package plan

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

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
	if got, want := whyIneligible(&need, n.self), "its link eth1 is down"; got != want {
		t.Errorf("the node is ineligible because %q, want %q", got, want)
	}
	if got := whyIneligible(&need, n.members["n2"]); got != "" {
		t.Errorf("node n2 is ineligible because %q", got)
	}
}

// A link whose addresses are tentative is verified, and verifies others'.
func TestVerifierWithTentativeAddress(t *testing.T) {
	verifiers := func(w vip.World) (who []string) {
		for _, x := range w.Members {
			w.Self = x.Name
			if slices.ContainsFunc(Make(rules(), w).AddressChecks, func(c vip.AddressCheck) bool { return c.Kind == vip.CheckVerify }) {
				who = append(who, x.Name)
			}
		}
		return who
	}
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

// A VIP is no Subnet-Router anycast address of such a network.
func TestReservedInNetworkOfTentativeAddress(t *testing.T) {
	w := worldOfTwoLinks()
	w.Members = w.Members[:1]
	w.Services = []vip.Service{svc("a", "fd99::")}
	if got := reasonOf(Make(rules(), w), "a"); got != vip.AddressRefused {
		t.Errorf("got %s", got)
	}
}

// Pods of a node with such an address reach the owner by the network of both, and so do packets of connections that began there.
func TestWayInNetworkOfTentativeAddress(t *testing.T) {
	w := worldOfTwoLinks()
	n := newNodes(&w)
	r := rules()
	d := &draft{reporter: &reporter{facts: &facts{Rules: &r, World: &w, nodes: n}}}
	if via, link := (&egress{draft: d}).wayTo(n.self, n.members["n2"], addr("fd99::50")); via != addr("fd99::12") || link != "eth1" {
		t.Errorf("by way of %s on %s", via, link)
	}
	s := &service{}
	s.Interface, s.bindsAddresses = "auto", true
	f := newFormerOwners(d)
	if hop := f.addressOn(s, vip.Address{Addr: addr("fd99::50"), Link: "eth1"}, "n2"); hop != addr("fd99::12") {
		t.Errorf("to the former owner by way of %s", hop)
	}
	if link := arrivalLink(&n.self.Info, s, addr("fd99::50")); link != "eth1" {
		t.Errorf("packets arrive on %s", link)
	}
}
