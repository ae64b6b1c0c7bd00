package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// egressOf is the Egress of a plan, one VIP a line, and its Events of egress.
func egressOf(p vip.Plan) string {
	var b strings.Builder
	for _, x := range p.Egress {
		fmt.Fprint(&b, x.VIP)
		if x.Via.IsValid() {
			fmt.Fprintf(&b, " via %s on %s", x.Via, x.Link)
		}
		if x.Former {
			fmt.Fprint(&b, " as before")
		}
		fmt.Fprintln(&b, "", x.Pods)
	}
	for _, e := range p.Events {
		if e.Reason == vip.EgressUnavailable {
			fmt.Fprintln(&b, e.Message)
		}
	}
	return b.String()
}

// withEgress says that a Service has egress, and pods: web-1 on n1, web-2 on n2.
func withEgress(s *vip.Service) {
	s.Egress = &vip.EgressRule{Selector: "app=web"}
	s.Pods = []vip.Pod{
		{Name: "web-1", Node: "n1", Addresses: []netip.Addr{addr("10.240.1.2"), addr("fd77:240:1::2")}},
		{Name: "web-2", Node: "n2", Addresses: []netip.Addr{addr("10.240.2.2"), addr("fd77:240:2::2")}},
	}
}

func TestEgress(t *testing.T) {
	on := rules()
	on.Egress = &Egress{}
	keeping := rules()
	keeping.Egress, keeping.KeepConnections = &Egress{}, time.Hour
	off := rules()
	given := rules()
	given.Egress = &Egress{Internal: []netip.Prefix{netip.MustParsePrefix("10.240.0.0/16")}}
	everywhere := rules()
	everywhere.Egress, everywhere.ARP, everywhere.Election, everywhere.BGP = &Egress{}, false, false, &BGP{}
	w := func(holder string, services ...vip.Service) vip.World {
		w := world(services...)
		for i := range w.Members {
			w.Members[i].Info.Links[0].Prefixes[1] = netip.MustParsePrefix(fmt.Sprintf("fd77::1%d/64", i+1))
		}
		w.Nodes = allNodes(
			vip.Node{Name: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.240.1.0/24"), netip.MustParsePrefix("fd77:240:1::/64")}},
			vip.Node{Name: "n2", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.240.2.0/24"), netip.MustParsePrefix("fd77:240:2::/64")}})
		for _, s := range services {
			w = held(w, s.Key.Name, holder)
		}
		return w
	}
	noEgress := func(s *vip.Service) {}
	elsewhere := func(s *vip.Service) { // as of Calico, which gives addresses of its own pools
		s.Pods[1].Addresses[0] = addr("192.168.7.2")
	}
	inUse := func(s *vip.Service) {
		s.Conditions = []vip.Condition{{Type: vip.Announced, Status: vip.ConditionFalse, Reason: vip.AddressInUse, Message: "another host has it"}}
	}
	others := func(s *vip.Service) { // of its addresses are bound
		s.Conditions[0].Status, s.Ingress = vip.ConditionTrue, []vip.Ingress{{Addr: addr("10.77.0.60"), IPMode: vip.ModeVIP}}
	}
	inDoubt := func(w *vip.World) {
		w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now, Until: w.Now.Add(time.Second), InDoubt: true}
	}
	here := bind(on, w("n1", svc("a", "10.77.0.60", withEgress))).Bound
	stillBound := func(w *vip.World) { w.Bound = here }
	pools := rules()
	pools.Egress = &Egress{Internal: []netip.Prefix{netip.MustParsePrefix("192.168.1.2/16")}}
	runPlans(t, planned(egressOf), []planTest{
		{"its owner has all pods", on, w("n1", svc("a", "10.77.0.60,fd77::60", withEgress)), "10.77.0.60 [10.240.1.2 10.240.2.2]\nfd77::60 [fd77:240:1::2 fd77:240:2::2]\n"},
		{"another node routes its own", on, w("n2", svc("a", "10.77.0.60", withEgress)), "10.77.0.60 via 10.77.0.12 on eth0 [10.240.1.2]\n"},
		{"... by the link that is up", on, with(w("n2", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) {
			w.Members[0].Info.Links[0].Up, w.Members[1].Info.Links[1].Prefixes = false, []netip.Prefix{netip.MustParsePrefix("10.99.0.12/16")}
		}), "10.77.0.60 via 10.99.0.12 on eth1 [10.240.1.2]\n"},
		{"... there, too", on, with(w("n2", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) {
			for i := range 2 {
				w.Members[i].Info.Links[1].Up, w.Members[i].Info.Links[1].Prefixes = true, []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.99.0.1%d/16", i+1))}
			}
			w.Members[1].Info.Links[0].Up = false
		}), "10.77.0.60 via 10.99.0.12 on eth1 [10.240.1.2]\n"},
		{"no egress", on, w("n1", svc("a", "10.77.0.60", noEgress)), ""},
		{"another host has its address", on, w("n1", svc("a", "10.77.0.60", withEgress, inUse)), keepsSource + "no node has bound its VIP: another host has it\n"},
		{"... as another node sees it", on, w("n2", svc("a", "10.77.0.60", withEgress, inUse)), ""},
		{"another host has two of its addresses", on, w("n1", svc("a", "10.77.0.59,10.77.0.60,fd77::60", withEgress, inUse, others)), "10.77.0.60 [10.240.1.2 10.240.2.2]\n"},
		{"nobody owns it", on, w("", svc("a", "10.77.0.60", withEgress)), ""},
		{"the dead owner's stays until another has the lease", on, with(w("n2", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) {
			w.Members[1].Alive, w.Members[1].Gone = false, true
			w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n2"}
		}), "10.77.0.60 via 10.77.0.12 on eth0 [10.240.1.2]\n"},
		{"it may have given it away", on, with(w("n2", svc("a", "10.77.0.60", withEgress)), inDoubt, stillBound), "10.77.0.60 [10.240.1.2 10.240.2.2]\n"},
		{"... and its successor is heard", on, with(w("n2", svc("a", "10.77.0.60", withEgress)), inDoubt), "10.77.0.60 via 10.77.0.12 on eth0 [10.240.1.2]\n"},
		{"it has just become the owner", keeping, with(w("n1", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) {
			w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n1", Valid: true, FormerHolders: []vip.FormerHolder{{Node: "n2", Until: w.Now.Add(-time.Minute)}}}
		}), "10.77.0.60 [10.240.1.2 10.240.2.2]\n10.77.0.60 via 10.77.0.12 on eth0 as before [10.240.1.2]\n"},
		{"it has just become the owner, and has no pod", keeping, with(w("n1", svc("a", "10.77.0.60", withEgress, func(s *vip.Service) { s.Pods = s.Pods[1:] })), func(w *vip.World) {
			w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n1", Valid: true, FormerHolders: []vip.FormerHolder{{Node: "n2", Until: w.Now.Add(-time.Minute)}}}
		}), "10.77.0.60 [10.240.2.2]\n"},
		{"its own claim is void", on, with(w("n1", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) { w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n1"} }), ""},
		{"its tenure has ended", on, with(w("n1", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) { w.Tenure.Until = w.Now }), ""},
		{"two Services have a pod", on, w("n1", svc("b", "10.77.0.61", withEgress, younger), svc("a", "10.77.0.60", withEgress)), "10.77.0.60 [10.240.1.2 10.240.2.2]\n"},
		{"two addresses of a family", on, w("n1", svc("a", "10.77.0.60,10.77.0.61", withEgress)), "10.77.0.60 [10.240.1.2 10.240.2.2]\n"},
		{"off", off, w("n1", svc("a", "10.77.0.60", withEgress)), keepsSource + "egress_enable is false, by the operator\n"},
		{"its pods are not known", on, w("n1", svc("a", "10.77.0.60", withEgress, func(s *vip.Service) { s.Pods, s.PodsUnknown = nil, "its pods are not known" })), keepsSource + "its pods are not known\n"},
		{"no range of pods is known", on, with(w("n1", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) { w.Nodes = allNodes() }),
			keepsSource + "no IPv4 range of pods is known from Nodes (spec.podCIDRs), so that what stays in the cluster can't be told from what leaves it; set egress_podcidr\n"},
		{"an operator names the range", given, with(w("n1", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) { w.Nodes = allNodes() }), "10.77.0.60 [10.240.1.2 10.240.2.2]\n"},
		{"a pod has an address that is in no range of its Node", on, w("n1", svc("a", "10.77.0.60", withEgress, elsewhere)),
			keepsSource + "pod web-2 has the address 192.168.7.2, which is neither in spec.podCIDRs of its Node nor in egress_podcidr, so that what stays in the cluster can't be told from what leaves it; set egress_podcidr to the ranges of the network plugin\n"},
		{"... and an operator names the range", pools, w("n1", svc("a", "10.77.0.60", withEgress, elsewhere)), "10.77.0.60 [10.240.1.2 192.168.7.2]\n"},
		{"... but in one of another Node", on, w("n1", svc("a", "10.77.0.60", withEgress, func(s *vip.Service) { s.Pods[1].Addresses[0] = addr("10.240.1.3") })),
			keepsSource + "pod web-2 has the address 10.240.1.3, which is neither in spec.podCIDRs of its Node nor in egress_podcidr, so that what stays in the cluster can't be told from what leaves it; set egress_podcidr to the ranges of the network plugin\n"},
		{"... and its Node was deleted", on, with(w("n1", svc("a", "10.77.0.60", withEgress, elsewhere)), func(w *vip.World) { w.Nodes = w.Nodes[:1] }), "10.77.0.60 [10.240.1.2 192.168.7.2]\n"},
		{"... and its VIP is of the other family", on, w("n1", svc("a", "fd77::60", withEgress, elsewhere)), "fd77::60 [fd77:240:1::2 fd77:240:2::2]\n"},
		{"a pod where no Herald is", on, w("n1", svc("a", "10.77.0.60", withEgress, func(s *vip.Service) { s.Pods[1].Node = "w1" })),
			"10.77.0.60 [10.240.1.2 10.240.2.2]\nkube-vip.io/egress: what its pods send keeps its source on w1 (no Herald runs there)\n"},
		{"a pod where no Services are announced", on, withoutServices(w("n1", svc("a", "10.77.0.60", withEgress)), "n2"),
			"10.77.0.60 [10.240.1.2 10.240.2.2]\nkube-vip.io/egress: what its pods send keeps its source on n2 (svc_enable is false there)\n"},
		{"a pod on a node of another network", on, with(w("n1", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) {
			w.Members[1].Info.Links = []vip.Link{{Name: "eth0", Up: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.66.0.12/24")}}}
		}), "10.77.0.60 [10.240.1.2 10.240.2.2]\nkube-vip.io/egress: what its pods send keeps its source on n2 (no link that is up has an IPv4 network in common with n1)\n"},
		{"nftables refuses it", on, with(w("n1", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) { w.EgressRefused = map[vip.Family]string{vip.IPv4: "operation not supported"} }),
			"10.77.0.60 [10.240.1.2 10.240.2.2]\n" + keepsSource + "nftables on node n1, which owns its VIP, refuses it: operation not supported\n"},
		{"nftables refuses that of the other family", on, with(w("n1", svc("a", "10.77.0.60", withEgress)), func(w *vip.World) { w.EgressRefused = map[vip.Family]string{vip.IPv6: "operation not supported"} }),
			"10.77.0.60 [10.240.1.2 10.240.2.2]\n"},
		{"every node has the VIP", everywhere, w("n1", svc("a", "10.77.0.60", withEgress, written("n1"))), keepsSource + "no single node has its VIP, to which answers would come; set svc_election=true, or vip_arp=true\n"},
		{"... and its pods are being listed", everywhere, w("n1", svc("a", "10.77.0.60", withEgress, written("n1"), func(s *vip.Service) { s.Pods, s.PodsUnknown = nil, vip.PodsBeingListed })),
			keepsSource + "no single node has its VIP, to which answers would come; set svc_election=true, or vip_arp=true\n"},
		{"no node may have it", on, w("n1", svc("a", "10.77.0.60", withEgress, local("w1"), written("n1"), func(s *vip.Service) {
			s.Conditions = []vip.Condition{{Type: vip.Announced, Status: vip.ConditionFalse, Reason: vip.NoEligibleNode, Message: "n1: it is drained"}}
		})), keepsSource + "no node has bound its VIP: n1: it is drained\n"},
		{"... and that is not said yet", on, w("n1", svc("a", "10.77.0.60", withEgress, local("w1"), written("n1"))), ""},
		{"its pods are being listed", on, w("n1", svc("a", "10.77.0.60", withEgress, func(s *vip.Service) { s.Pods, s.PodsUnknown = nil, vip.PodsBeingListed })), ""},
	})
}

// Until pods are listed for the first time nothing is to be changed, whatever is known already; later a list of one Service holds up none.
func TestEgressPending(t *testing.T) {
	r := rules()
	r.Egress = &Egress{}
	w := held(world(svc("a", "10.77.0.60", withEgress)), "a", "n1")
	w.EgressPodsPending = true
	check.Equal(t, Make(r, w).EgressPending, true, "what the kernel has is to stay")
	w.EgressPodsPending = false
	check.Equal(t, Make(r, w).EgressPending, false, "what the kernel has is to stay")
}

// What is in the cluster is left alone; what only an EndpointSlice says does not count, since a tenant may have written it.
func TestEgressInternal(t *testing.T) {
	r := rules()
	r.Egress = &Egress{Internal: []netip.Prefix{netip.MustParsePrefix("10.250.0.0/16"), netip.MustParsePrefix("10.240.1.0/24")}}
	w := held(world(svc("a", "10.77.0.60", withEgress)), "a", "n1")
	w.Nodes = allNodes(vip.Node{Name: "n2", Addresses: []netip.Addr{addr("10.99.0.9")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.240.2.0/24")}})
	w.Reserved = []vip.ReservedRange{{Prefix: netip.MustParsePrefix("10.112.0.0/16")}, {Prefix: netip.MustParsePrefix("8.8.8.8/32"), FromSlice: true}}
	p := Make(r, w)
	if len(p.Egress) != 1 {
		t.Fatal(p.Egress)
	}
	for text, want := range map[string]bool{"10.250.7.7": true, "10.240.2.9": true, "10.112.0.1": true, "10.99.0.9": true, "10.77.0.13": true, "224.0.0.1": true, "169.254.1.1": true,
		"8.8.8.8": false, "10.77.0.100": false, "10.241.0.1": false, "ff02::1": true, "fe80::1": true, "2001:db8::1": false} {
		got := false
		for _, n := range p.Egress[0].Internal {
			got = got || n.Contains(addr(text))
		}
		check.Equal(t, got, want, "%s is internal", text)
	}
}
