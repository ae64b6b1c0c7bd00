package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// withoutServices says that the named nodes have svc_enable=false, and all others have it.
func withoutServices(w vip.World, names ...string) vip.World {
	w.Members = slices.Clone(w.Members)
	for i := range w.Members {
		w.Members[i].Info.Options = &vip.NodeOptions{Services: !slices.Contains(names, w.Members[i].Name), ARP: true, BGP: true}
	}
	return w
}

// rulesOn returns r as it is on node w.Self.
func rulesOn(r Rules, w vip.World) Rules {
	if m := memberNamed(&w, w.Self); m.Info.Options != nil {
		r.Enabled = m.Info.Options.Services
	}
	return r
}

// manyNames are enough that each of three nodes has the highest hash for some of them.
var manyNames = strings.Split("a b c d e f g h i j", " ")

// TestNoServicesNode: n3 has the VIP of the control plane only. No VIP of a Service goes to it, by whichever way.
func TestNoServicesNode(t *testing.T) {
	bgp := rules()
	bgp.ARP, bgp.Election, bgp.BGP = false, false, &BGP{}
	oneLease, rebalance := rules(), rules()
	oneLease.Election, rebalance.Rebalance = false, true
	held3 := func(s ...func(*vip.Service)) func(name string) vip.World { // n1 and n2 have a unit each, n3 none
		return func(name string) vip.World {
			return held(held(world(svc(name, "10.77.0.60", s...), svc("x", "10.77.0.61"), svc("y", "10.77.0.62")), "x", "n1"), "y", "n2")
		}
	}
	for _, tt := range []struct {
		name  string
		rules Rules
		world func(name string) vip.World
	}{
		{"a new Service, by ARP", rules(), held3()},
		{"one that n3 had before", rules(), held3(written("n3"))},
		{"one lease for all", oneLease, func(name string) vip.World { return world(svc(name, "10.77.0.60")) }},
		{"by BGP from every node", bgp, func(name string) vip.World { return withSessions(world(svc(name, "10.77.0.60"))) }},
		{"the same, of which n3 wrote the status", bgp, func(name string) vip.World { return withSessions(world(svc(name, "10.77.0.60", written("n3")))) }},
		{"by BGP from one node", bgp, func(name string) vip.World {
			return withSessions(world(svc(name, "10.77.0.60", func(s *vip.Service) { s.ClientIPAffinity = true })))
		}},
		{"the owner stops", rules(), func(name string) vip.World {
			w := held(world(svc(name, "10.77.0.60", written("n1"))), name, "n1")
			w.Stopping = true
			return w
		}},
		{"vip_rebalance", rebalance, func(string) vip.World { return held(held(held(heldByN1(7), "s4", "n2"), "s5", "n2"), "s6", "n2") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wrote := false
			for _, name := range manyNames {
				w := withoutServices(tt.world(name), "n3")
				for _, self := range []string{"n1", "n2"} {
					w.Self = self
					p := Make(tt.rules, bind(tt.rules, w))
					for _, o := range p.Owners {
						if o.Node == "n3" {
							t.Errorf("seen from %s: %s", self, summary(p))
						}
					}
					for _, v := range p.Verdicts {
						if v.Owner == "n3" || strings.Contains(v.Message, "n3") || v.Reason == vip.NoEligibleNode {
							t.Errorf("seen from %s: %+v", self, v)
						}
					}
					wrote = wrote || len(addressStatuses(p)) > 0
				}
			}
			if !wrote && tt.rules.BGP != nil {
				t.Error("no node writes the status")
			}
		})
	}
}

// TestNoServicesControlPlane: the VIP of the control plane goes to a node with svc_enable=false, and to none without
// cp_enable, whose API server nobody asks.
func TestNoServicesControlPlane(t *testing.T) {
	bgp := controlPlaneRules()
	bgp.ARP, bgp.BGP = false, &BGP{}
	r := controlPlaneRules()
	w := withoutServices(controlPlaneHeld(controlPlaneWorld("n1 n3"), "n1"), "n1", "n3")
	w.Stopping = true
	check.Equal(t, handOvers(Make(r, bind(r, w))), "plndr-cp-lock to n3", "handed over")
	w = withoutServices(controlPlaneWorld("n3"), "n3")
	for _, self := range []string{"n1", "n3"} {
		w.Self = self
		p := Make(r, w)
		check.Equal(t, p.Owners[0].Node, "n3", "the owner, seen from %s", self)
	}
	check.Equal(t, len(Make(bgp, bind(bgp, withSessions(seenFrom(w, "n1")))).Routes), 0, "routes of n1")
}

// TestNoServicesExclusionLabel: that a node which may have no Services lacks the label that keeps VIPs off nodes has all
// others keep theirs no less.
func TestNoServicesExclusionLabel(t *testing.T) {
	for name, change := range map[string]func(*vip.World){
		"svc_enable=false":       func(w *vip.World) { *w = withoutServices(*w, "n3") },
		"it is shut down":        func(w *vip.World) { w.Nodes[2].ShuttingDown = true },
		"its taint":              func(w *vip.World) { w.Nodes[2].Excluded = "it has a taint" },
		"it stops":               func(w *vip.World) { memberNamed(w, "n3").Info.Excluded = "its Herald is stopping" },
		"this node, which stops": func(w *vip.World) { w.Self, w.Stopping = "n3", true },
		"other options": func(w *vip.World) {
			for i := range w.Members {
				w.Members[i].Info.Options = &vip.NodeOptions{Services: true, ARP: true}
			}
			memberNamed(w, "n3").Info.Options = &vip.NodeOptions{Services: true, ARP: true, CommonOptions: vip.CommonOptions{ClassOnly: true}}
		},
	} {
		w := held(world(svc("a", "10.77.0.60")), "a", "n3")
		w.Nodes = allNodes(vip.Node{Name: "n1", ExclusionLabel: "x"}, vip.Node{Name: "n2", ExclusionLabel: "x"})
		change(&w)
		nobody := !slices.ContainsFunc(newNodes(&w).alive, func(n *member) bool { return n.Name != "n3" && n.whyExcluded() == "" })
		if r := Make(rules(), w).Verdicts[0].Reason; nobody || r == vip.NoEligibleNode {
			t.Errorf("%s: nobody may have Services: %v, %s", name, nobody, r)
		}
	}
}

// TestNoServicesPools: who gives addresses runs with Services.
func TestNoServicesPools(t *testing.T) {
	w := withoutServices(poolWorld(""), "n3") // which would be the best
	if p := Make(poolRules(), seenFrom(w, "n1")); len(p.Owners) != 1 || p.Owners[0].Node == "n3" {
		t.Errorf("seen from n1: %+v", p.Owners)
	}
}

// TestNoServicesWitnesses: only nodes that know of VIPs of Services ask on their links for the nodes that have them,
// and whether their owners answer.
func TestNoServicesWitnesses(t *testing.T) {
	for _, name := range manyNames {
		w := withoutServices(held(worldWithMACs(svc(name, "10.77.0.60", written("n1"))), name, "n1"), "n3")
		verifies := 0
		for _, c := range Make(rules(), seenFrom(w, "n2")).AddressChecks {
			if c.Kind == vip.CheckVerify {
				verifies++
			}
		}
		check.Equal(t, verifies, 1, "how often n2 checks whether %s answers", name)
	}
	w := withoutServices(world(svc("a", "10.99.0.60", func(s *vip.Service) { s.Interface = "eth1" })), "n3")
	for i := range w.Members {
		w.Members[i].Info.Links[1].Prefixes = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, 0, byte(11 + i)}), 16)}
	}
	w.Members[1].Info.Unanswered = []netip.Addr{addr("10.99.0.11")} // n2 is the only one that asks for n1
	w = held(w, "a", "n1")
	check.Equal(t, handOvers(Make(rules(), bind(rules(), w))), "kubevip-a to n2", "n1 is not heard by n2; handed over")
}

// TestControlPlaneOfOtherNodes: no Service gets the VIP of the control plane, nor do pools give it, where only other nodes have cp_enable.
func TestControlPlaneOfOtherNodes(t *testing.T) {
	w := poolWorld("n1")
	w.Services = []vip.Service{svc("a", "10.77.0.60"), svc("b", "10.77.0.61")}
	w = withoutServices(w, "n3")
	w.Members[2].Info.Options.ControlPlane = []netip.Addr{addr("10.77.0.60")}
	w.Members[2].Alive = false
	p := Make(poolRules(), w)
	check.Equal(t, p.Verdicts[0].Reason, vip.AddressRefused, "the verdict")
	check.Equal(t, p.Verdicts[0].Message, "10.77.0.60 is the VIP of the control plane", "what it says")
	check.Equal(t, p.Verdicts[1].Reason, vip.VIPClaiming, "the verdict on the other")
	if !slices.ContainsFunc(p.Pools[0].Reserved, func(r vip.ReservedRange) bool { return r.Prefix.String() == "10.77.0.60/32" }) {
		t.Errorf("it is not in %v", p.Pools[0].Reserved)
	}
	r := controlPlaneRules() // on a node with cp_enable it is as the options have it
	cp := withoutServices(controlPlaneHeld(controlPlaneWorld("n1"), "n1"), "n1", "n3")
	cp.Members[0].Info.Options.ControlPlane, cp.Members[2].Info.Options.ControlPlane = r.ControlPlane.Addresses, r.ControlPlane.Addresses
	check.Equal(t, len(Make(r, bind(r, cp)).Addresses), 2, "addresses that are bound")
}
