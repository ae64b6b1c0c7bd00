package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

var cpLease = vip.Key{Namespace: "kube-system", Name: "plndr-cp-lock"}

// controlPlaneRules are rules with a VIP for the control plane and nothing else.
func controlPlaneRules() Rules {
	r := rules()
	r.Enabled, r.Election = false, false
	r.ControlPlane = &ControlPlane{Addresses: []netip.Addr{addr("10.77.0.50"), addr("fd77::50")}, Port: 6443, Lease: cpLease, Interface: "auto"}
	return r
}

// controlPlaneWorld is a World in which the API servers of the given nodes are.
func controlPlaneWorld(nodes string, services ...vip.Service) vip.World {
	w := world(services...)
	for i := range w.Members {
		w.Members[i].Info.APIServerReady = strings.Contains(nodes, w.Members[i].Name)
	}
	return w
}

// otherNames is w with another name for the first link of a node than the others have.
func otherNames(w vip.World, node string) vip.World {
	info := &memberNamed(&w, node).Info
	info.Links[0].Name, info.Interface, info.DefaultInterface = "ens3", "ens3", "ens3"
	return w
}

// controlPlaneHeld says that node holds the VIP of the control plane.
func controlPlaneHeld(w vip.World, node string) vip.World {
	w.Claims[cpLease] = vip.Claim{Holder: node, Valid: true, Transitions: 1}
	return w
}

// shuttingDown has kubelet say that n1 is being shut down.
// servicesElsewhere has Services leave n1.
func servicesElsewhere(w *vip.World) {
	faulty(w, memberNamed(w, "n1"))
	w.Nodes = allNodes(vip.Node{Name: "n1", NotReady: true})
}

func shuttingDown(w *vip.World) { w.Nodes = allNodes(vip.Node{Name: "n1", ShuttingDown: true}) }

func memberNamed(w *vip.World, name string) *vip.Member {
	return &w.Members[slices.IndexFunc(w.Members, func(m vip.Member) bool { return m.Name == name })]
}

// That nobody carries it is told by one of the nodes with cp_enable, whichever nodes announce Services.
func TestControlPlaneWithoutOwner(t *testing.T) {
	for _, ready := range []string{"", "n1 n2"} {
		told := ""
		for _, self := range []string{"n1", "n2"} {
			w := seenFrom(controlPlaneWorld(ready), self)
			for i := range w.Members {
				w.Members[i].Info.Links[0].Up = false
				w.Members[i].Info.Options = &vip.NodeOptions{Services: true}
				if i < 2 {
					w.Members[i].Info.Options = &vip.NodeOptions{ARP: true, ControlPlane: []netip.Addr{addr("10.77.0.50")}}
				}
			}
			for _, e := range Make(controlPlaneRules(), w).Events {
				told += self + " " + string(e.Reason)
			}
		}
		if told != "n1 NoEligibleNode" && told != "n2 NoEligibleNode" {
			t.Errorf("ready: %q, told: %q, want once", ready, told)
		}
	}
}

func TestControlPlane(t *testing.T) {
	const both = "bind 10.77.0.50/32 dev eth0\nbind fd77::50/128 dev eth0\n"
	tests := []struct {
		name string
		w    vip.World
		want string
	}{
		{"before any API server is ready", controlPlaneWorld(""), "control-plane: NoEligibleNode"},
		{"the first", controlPlaneWorld("n1"), "plndr-cp-lock -> n1\ncontrol-plane: VIPClaiming"},
		{"another node's", controlPlaneWorld("n2"), "plndr-cp-lock -> n2\ncontrol-plane: VIPClaiming"},
		{"held", controlPlaneHeld(controlPlaneWorld("n1 n2"), "n1"), "plndr-cp-lock -> n1\n" + both + "control-plane: VIPAnnounced"},
		{"held elsewhere", controlPlaneHeld(controlPlaneWorld("n1 n2"), "n2"), "control-plane: VIPElsewhere"},
		{"no fail-back", controlPlaneHeld(controlPlaneWorld("n1"), "n2"), "control-plane: VIPElsewhere"}, // giving it is for n2 to do
		{"the owner's dies", controlPlaneHeld(controlPlaneWorld("n3"), "n1"), "plndr-cp-lock -> n3\n" + both + "control-plane: VIPAnnounced"},
		{"all die", controlPlaneHeld(controlPlaneWorld(""), "n1"), "plndr-cp-lock -> n1\n" + both + "control-plane: VIPAnnounced"},
		{"all others' links are down, and it is isolated", with(controlPlaneHeld(controlPlaneWorld("n2"), "n1"), func(w *vip.World) {
			memberNamed(w, "n1").Info.Isolated, memberNamed(w, "n2").Info.Links[0].Up = true, false
		}), "plndr-cp-lock -> n1\n" + both + "control-plane: VIPAnnounced"},
		{"all others' links are down",
			with(controlPlaneHeld(controlPlaneWorld("n2"), "n1"), func(w *vip.World) { memberNamed(w, "n2").Info.Links[0].Up = false }),
			"plndr-cp-lock -> n1\n" + both + "control-plane: VIPAnnounced"},
		{"the owner is shut down", with(controlPlaneHeld(controlPlaneWorld("n1 n2"), "n1"), shuttingDown), "plndr-cp-lock -> n2\n" + both + "control-plane: VIPAnnounced"},
		{"the last one is shut down", with(controlPlaneHeld(controlPlaneWorld("n1"), "n1"), shuttingDown), "plndr-cp-lock -> n1\n" + both + "control-plane: VIPAnnounced"},
		{"the last one was shut down, and kubelet can't say yet that it is over", with(controlPlaneWorld("n1"), shuttingDown), "plndr-cp-lock -> n1\ncontrol-plane: VIPClaiming"},
		{"the owner stops", with(controlPlaneHeld(controlPlaneWorld("n1 n2"), "n1"), func(w *vip.World) { w.Stopping = true }),
			"plndr-cp-lock -> n2\n" + both + "control-plane: VIPAnnounced"},
		{"the last one stops", with(controlPlaneHeld(controlPlaneWorld("n1"), "n1"), func(w *vip.World) { w.Stopping = true }), "control-plane: NoEligibleNode"},
		{"what keeps Services off a node", with(controlPlaneHeld(controlPlaneWorld("n1 n2"), "n1"), func(w *vip.World) {
			w.Nodes = []vip.Node{{Name: "n1", ExclusionLabel: "x", Excluded: "it has the taint x"}, {Name: "n2"}}
		}), "plndr-cp-lock -> n1\n" + both + "control-plane: VIPAnnounced"},
		{"what Services would rather go to another node for", with(controlPlaneWorld("n1 n2"), servicesElsewhere), "plndr-cp-lock -> n1\ncontrol-plane: VIPClaiming"},
		{"... and leave one for", with(controlPlaneHeld(controlPlaneWorld("n1 n2"), "n1"), servicesElsewhere), "plndr-cp-lock -> n1\n" + both + "control-plane: VIPAnnounced"},
		{"held by another program",
			with(controlPlaneWorld("n1 n2"), func(w *vip.World) { w.Claims[cpLease] = vip.Claim{Holder: "n2", Valid: true, Foreign: true} }), "control-plane: HeldByOtherAnnouncer"},
		{"that the kubeconfig names it does not keep it from its VIP", with(controlPlaneHeld(controlPlaneWorld("n1"), "n1"), func(w *vip.World) {
			w.Reserved = []vip.ReservedRange{{Prefix: netip.MustParsePrefix("10.77.0.50/32"), Description: "the address of the API server"}}
			w.Nodes = []vip.Node{{Name: "n1", Addresses: []netip.Addr{addr("10.77.0.11"), addr("10.77.0.50")}}}
		}), "plndr-cp-lock -> n1\n" + both + "control-plane: VIPAnnounced"},
		{"a node's own address", with(controlPlaneWorld("n1"), func(w *vip.World) {
			w.Members[1].Info.Links[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.77.0.50/24"), netip.MustParsePrefix("fd77::50/64")}
		}), "control-plane: AddressRefused"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Make(controlPlaneRules(), bind(controlPlaneRules(), tt.w))
			for _, n := range p.Events {
				if !n.Service.IsZero() && n.Service.Namespace != "" {
					t.Errorf("an Event on %s", n.Service)
				}
			}
			p.Events = nil // nobody can read them: there is no Service to write them to
			diff(t, summary(p), tt.want)
		})
	}
}

// The link that vip_interface names may have another name on each node. The VIP moves to one that calls it otherwise.
func TestControlPlaneLinkNames(t *testing.T) {
	r := controlPlaneRules()
	r.ControlPlane.Interface, r.ControlPlane.BalancedPort = vip.DefaultLink, 8443
	w := otherNames(controlPlaneHeld(controlPlaneWorld("n2"), "n1"), "n2")
	p := Make(r, bind(r, w))
	if len(p.Owners) != 1 || p.Owners[0].Node != "n2" {
		t.Errorf("owners: %+v", p.Owners)
	}
	if len(p.Addresses) != 2 || p.Addresses[0].Link != "eth0" {
		t.Errorf("addresses: %+v", p.Addresses)
	}
	if len(p.Balanced) != 2 || p.Balanced[0].To.Addr() != addr("10.77.0.12") {
		t.Errorf("balanced: %+v", p.Balanced)
	}
	w = otherNames(controlPlaneHeld(controlPlaneWorld("n1 n2"), "n1"), "n1")
	if p := Make(r, bind(r, w)); len(p.Addresses) != 2 || p.Addresses[0].Link != "ens3" {
		t.Errorf("addresses: %+v", p.Addresses)
	}
	if link, subnet := linkFor(&w.Members[0].Info, vip.DefaultLink, addr("10.77.0.50")); link != "ens3" || subnet != 24 {
		t.Errorf("link %s, subnet /%d", link, subnet)
	}
}

// TestControlPlaneAndServices: they share nothing, neither lease nor address.
func TestControlPlaneAndServices(t *testing.T) {
	r := controlPlaneRules()
	r.Enabled, r.Election = true, true
	w := controlPlaneHeld(controlPlaneWorld("n1", svc("a", "10.77.0.60"), svc("thief", "10.77.0.50")), "n1")
	p := Make(r, bind(r, held(w, "a", "n1")))
	p.Events = nil
	diff(t, summary(p), `plndr-cp-lock -> n1
		kubevip-a -> n1
		bind 10.77.0.50/32 dev eth0
		bind fd77::50/128 dev eth0
		bind 10.77.0.60/32 dev eth0
		status a 10.77.0.60(VIP)
		control-plane: VIPAnnounced
		a: VIPAnnounced
		thief: AddressRefused`)
}

// TestControlPlaneByRoutes: every node whose API server is ready binds the VIP to lo, where nobody announces it, and
// advertises it once it is bound; no lease decides. One that stops drains it first, and keeps it bound meanwhile.
func TestControlPlaneByRoutes(t *testing.T) {
	bgp, table := controlPlaneRules(), controlPlaneRules()
	bgp.ARP, bgp.BGP = false, &BGP{}
	table.ARP, table.RoutingTable = false, 198
	stopping := func(w *vip.World) { w.Stopping = true }
	faulty := func(w *vip.World) { w.DataPlaneFault = "kube-proxy is stuck" }
	drained := func(w *vip.World) { w.Nodes = allNodes(vip.Node{Name: "n1", Drained: true}) }
	restart := bgp
	restart.BGP = &BGP{Keep: true}
	const bound, routes = "bind 10.77.0.50/32\nbind fd77::50/128\n", "10.77.0.50/32\nfd77::50/128\n"
	const drain = "10.77.0.50/32 draining\nfd77::50/128 draining\n"
	tests := []struct {
		name    string
		rules   Rules
		w       vip.World
		unbound bool
		want    string
	}{
		{"one of two", bgp, withSessions(controlPlaneWorld("n1 n2")), false, routes + bound},
		{"before it is bound", bgp, withSessions(controlPlaneWorld("n1 n2")), true, bound},
		{"the other", bgp, seenFrom(withSessions(controlPlaneWorld("n1 n2")), "n2"), false, routes + bound},
		{"not ready here", bgp, seenFrom(withSessions(controlPlaneWorld("n1 n2")), "n3"), false, ""},
		{"ready nowhere", bgp, withSessions(controlPlaneWorld("")), false, "control-plane: NoEligibleNode\n"},
		{"ready here alone", bgp, withSessions(controlPlaneWorld("n1")), false, routes + bound},
		{"a lease of an earlier release", bgp, controlPlaneHeld(withSessions(controlPlaneWorld("n1 n2")), "n2"), false, routes + bound},
		{"the data plane of Services", bgp, with(withSessions(controlPlaneWorld("n1 n2")), faulty), false, routes + bound},
		{"stopping", bgp, with(withSessions(controlPlaneWorld("n1 n2")), stopping), false, drain + bound},
		{"stopping for a restart", restart, with(withSessions(controlPlaneWorld("n1 n2")), stopping), false, drain + bound},
		{"stopping, and drained before", bgp, with(withSessions(controlPlaneWorld("n1 n2")), drained, stopping), false, ""},
		{"a table", table, controlPlaneWorld("n1 n2"), false, routes + bound},
		{"a table, not ready here", table, seenFrom(controlPlaneWorld("n1 n2"), "n3"), false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := tt.w
			if !tt.unbound {
				w = bind(tt.rules, w)
			}
			p := Make(tt.rules, w)
			check.Equal(t, routesSummary(p), tt.want, "the routes")
			check.Equal(t, len(p.Announcements)+len(p.Owners), 0, "announcements and owners")
			for _, a := range p.Addresses {
				if a.Link != "lo" || !a.LocalDelivery {
					t.Errorf("bound: %+v", a)
				}
			}
		})
	}
}
