package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// sharedWorld has the Service a on n1, and x of another namespace, which is older and shares its address with the
// consent of the operator, each with its status, its lease and its address bound; and y of x's namespace, on n2.
func sharedWorld(change func(w *vip.World, x, y *vip.Service)) vip.World {
	a := svc("a", "10.77.0.50", written("n1"))
	x := svc("x", "10.77.0.50", tenant, written("n1"))
	y := svc("y", "10.77.0.52", tenant, written("n2"))
	w := world()
	w.Nodes = allNodes()
	for i := range w.Members {
		w.Nodes[i].Labels = map[string]string{"name": w.Nodes[i].Name}
		w.Members[i].Info.Links = append(w.Members[i].Info.Links, vip.Link{Name: "cni0", Up: true})
	}
	w.Pools = &vip.PoolSource{Data: map[string]string{"cidr-global": "10.77.0.0/24", "allow-share-global": "true", "pool-there": "10.77.0.64/28", "pool-there.nodes": "name=n3"}}
	w = heldBy(heldBy(held(w, "a", "n1"), "tenant", "x", "n1"), "tenant", "y", "n2")
	if change != nil {
		change(&w, &x, &y)
	}
	w.Services = []vip.Service{a, x, y}
	return w
}

// has has s have an address more, by its status too.
func has(s *vip.Service, a string) {
	s.Addresses = append(s.Addresses, addr(a))
	s.Ingress = append(slices.Clone(s.Ingress), vip.Ingress{Addr: addr(a), IPMode: vip.ModeVIP})
}

// Whoever shares an address with a Service of another namespace can't silence or move that, whatever its user makes
// of its own Services later: seen from the node that has the address, what it does about it is the same.
func TestSharedAddressStays(t *testing.T) {
	onNode := func(w vip.World, r Rules) string {
		p := Make(r, bind(r, w))
		out := ""
		for _, o := range p.Owners {
			if strings.HasSuffix(o.Unit.Name, "-a") {
				out += fmt.Sprintf("%s -> %s; ", o.Unit.Name, o.Node)
			}
		}
		for _, x := range p.Addresses {
			if x.Addr == addr("10.77.0.50") {
				out += "bind on " + x.Link + "; "
			}
		}
		for _, x := range p.Routes {
			if x.Prefix.Addr() == addr("10.77.0.50") {
				out += fmt.Sprint("route to peers ", x.Attributes.Peers, "; ")
			}
		}
		for _, s := range addressStatuses(p) {
			if s.Service.Name == "a" {
				out += "status"
				for _, i := range s.Ingress {
					out += " " + i.Addr.String()
				}
				out += "; "
			}
		}
		return out + string(reasonOf(p, "a"))
	}
	for _, tt := range []struct {
		name   string
		change func(w *vip.World, x, y *vip.Service)
	}{
		{"an address of its own on a link that is nowhere", func(_ *vip.World, x, _ *vip.Service) { has(x, "10.77.0.51"); x.Interface = "nope" }},
		{"an address of its own, and a link that another Service of its namespace has, too", func(_ *vip.World, x, y *vip.Service) {
			has(x, "10.77.0.51")
			has(y, "10.77.0.51")
			y.Ports[0].Port = 10
			x.Interface, y.Interface = "nope", "nope"
		}},
		{"an address of its own that a third namespace shares, both on a link that is nowhere", func(_ *vip.World, x, y *vip.Service) {
			has(x, "10.77.0.51")
			has(y, "10.77.0.51")
			y.Ports[0].Port, y.Key.Namespace = 10, "third"
			x.Interface, y.Interface = "nope", "nope"
		}},
		{"another link that is there", func(_ *vip.World, x, _ *vip.Service) { x.Interface = "cni0" }},
		{"an address of a pool that is for another node", func(_ *vip.World, x, _ *vip.Service) { has(x, "10.77.0.65") }},
		{"the lease of a Service on a link that is nowhere", func(_ *vip.World, x, y *vip.Service) { x.Lease, y.Interface = "kubevip-y", "nope" }},
		{"the lease of a Service on another node", func(_ *vip.World, x, _ *vip.Service) { x.Lease = "kubevip-y" }},
		{"a lease of its own that is held elsewhere", func(w *vip.World, x, _ *vip.Service) {
			x.Lease = "z"
			w.Claims[vip.Key{Namespace: "tenant", Name: "z"}] = vip.Claim{Holder: "n3", Valid: true}
		}},
		{"a lease that another announcer holds", func(w *vip.World, x, _ *vip.Service) {
			x.Lease = "z"
			w.Claims[vip.Key{Namespace: "tenant", Name: "z"}] = vip.Claim{Holder: "somebody", Foreign: true, Valid: true}
		}},
		{"another announcer renews its Lease", func(w *vip.World, _, _ *vip.Service) { anothers(w, "x") }},
		{"another announcer renews its Lease, and a Service on another node names that", func(w *vip.World, _, y *vip.Service) {
			anothers(w, "x")
			y.Lease = "kubevip-x"
		}},
		{"a Service on another node names its lease", func(_ *vip.World, _, y *vip.Service) { y.Lease = "kubevip-x" }},
		{"Local, with a pod where no Herald is", func(_ *vip.World, x, _ *vip.Service) { local("w1")(x); x.HealthCheckNodePort = 30001 }},
		{"Local, with a pod on another node", func(_ *vip.World, x, _ *vip.Service) { local("n3")(x); x.HealthCheckNodePort = 30001 }},
		{"peers that are not there", func(_ *vip.World, x, _ *vip.Service) { x.BGPAttributes.Peers = []string{"nope"} }},
		{"by ARP alone", func(_ *vip.World, x, _ *vip.Service) { x.Announce = []vip.Method{vip.ByARP} }},
		{"by BGP alone, and another link", func(_ *vip.World, x, _ *vip.Service) { x.Announce, x.Interface = []vip.Method{vip.ByBGP}, "nope" }},
	} {
		for _, mode := range []struct {
			name           string
			arp, elect, by bool // vip_arp, svc_election, bgp_enable
		}{{"ARP", true, true, false}, {"ARP and BGP", true, true, true}, {"BGP", false, true, true}, {"BGP from every node", false, false, true}, {"ARP, BGP from every node", true, false, true}} {
			t.Run(mode.name+"/"+tt.name, func(t *testing.T) {
				r := poolRules()
				r.ARP, r.Election = mode.arp, mode.elect
				if mode.by {
					r.BGP = &BGP{}
				}
				before, after := withSessions(sharedWorld(nil)), withSessions(sharedWorld(tt.change))
				before.Claims[r.SharedLease] = vip.Claim{Holder: "n1", Valid: true}
				after.Claims[r.SharedLease] = before.Claims[r.SharedLease]
				want, got := onNode(before, r), onNode(after, r)
				if !strings.Contains(want, "status 10.77.0.50; VIPAnnounced") && !strings.HasSuffix(mode.name, "every node") || !strings.Contains(want, "bind") && !strings.Contains(want, "route") {
					t.Fatal("not announced before:", want)
				}
				check.Equal(t, got, want, "a; %s", summary(Make(r, bind(r, after))))
			})
		}
	}
}

// kube-vip's provider writes the link of a pool onto each Service (interface-global). They share an address, unless one names another link.
func TestSharedOnTheLinkOfThePool(t *testing.T) {
	for _, tt := range []struct{ a, x, pool, want string }{
		{"eth0", "eth0", "eth0", "VIPAnnounced VIPAnnounced"},
		{"eth0", "", "eth0", "VIPAnnounced VIPAnnounced"},
		{"eth0", "cni0", "eth0", "VIPAnnounced AddressConflict"},
		{"cni0", "eth0", "eth0", "AddressConflict VIPAnnounced"},
		{"", "eth0", "", "VIPAnnounced AddressConflict"},
	} {
		w := sharedWorld(func(w *vip.World, x, _ *vip.Service) {
			w.Pools.Data["interface-global"], x.Interface = tt.pool, tt.x
		})
		w.Services[0].Interface = tt.a
		p := Make(poolRules(), seenFrom(w, "n1"))
		check.Equal(t, string(reasonOf(p, "a")+" "+reasonOf(p, "x")), tt.want, "links %q and %q, of the pool %q", tt.a, tt.x, tt.pool)
	}
}

// What such a Service has beside the address that it shared it keeps, where its pool says.
func TestOwnAddressBesideAShared(t *testing.T) {
	w := seenFrom(sharedWorld(func(_ *vip.World, x, _ *vip.Service) { has(x, "10.77.0.65") }), "n1")
	for i := range w.Nodes {
		w.Nodes[i].Labels["name"] = "n3"
	}
	p := Make(poolRules(), heldBy(w, "tenant", "x", "n1"))
	var got []string
	for _, a := range p.Addresses {
		got = append(got, a.Addr.String()+" "+a.Lease.String())
	}
	slices.Sort(got)
	check.Same(t, []string{"10.77.0.50 default/kubevip-a", "10.77.0.65 tenant/kubevip-x"}, got, "%s", summary(p))
}

// A Service that asks for what keeps it from sharing an address with one of another namespace is told, whether it
// shares one already or is to begin.
func TestToldOfSharing(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(w *vip.World, x, y *vip.Service)
		want   string // one of the Events
	}{
		{"a lease", func(_ *vip.World, x, _ *vip.Service) { x.Lease = "kubevip-y" }, "x AddressConflict 10.77.0.50: in use by a Service of another namespace, which is shared only if neither has kube-vip.io/leaseName"},
		{"the lease of one that shares", func(_ *vip.World, _, y *vip.Service) { y.Lease = "kubevip-x" }, "y InvalidField kube-vip.io/leaseName has no effect"},
		{"a link", func(_ *vip.World, x, _ *vip.Service) { x.Interface = "cni0" }, "x AddressConflict 10.77.0.50: in use by a Service of another namespace, which is shared only if neither has kube-vip.io/serviceInterface"},
		{"an address beside it", func(_ *vip.World, x, _ *vip.Service) { has(x, "10.77.0.65") }, "x AddressConflict 10.77.0.50: in use by a Service of another namespace, which is shared only if neither asks for another address beside it"},
		{"a newcomer with a lease", func(_ *vip.World, x, _ *vip.Service) { x.Lease, x.Ingress = "z", nil }, "x AddressConflict 10.77.0.50: in use by a Service of another namespace, which is shared only if neither has kube-vip.io/leaseName"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var all []string
			for _, self := range []string{"n1", "n2", "n3"} {
				for _, e := range Make(poolRules(), seenFrom(sharedWorld(tt.change), self)).Events {
					all = append(all, fmt.Sprintf("%s %s %s", e.Service.Name, e.Reason, e.Message))
				}
			}
			if !slices.ContainsFunc(all, func(s string) bool { return strings.HasPrefix(s, tt.want) }) {
				t.Errorf("got %q, want %q", all, tt.want)
			}
		})
	}
}

// Of two Services with externalTrafficPolicy Local on one address, of which no node has endpoints of both, one is
// announced; the other is told why not, and its status names no node.
func TestLocalWithoutCommonNode(t *testing.T) {
	b := svc("b", "10.77.0.50", local("n2"), port(9), younger)
	shown := svc("b", "10.77.0.50", local("n2"), port(9), younger, written("n2"))
	const announced = "kubevip-a -> n1\nkubevip-b -> n1\nbind 10.77.0.50/32 dev eth0\nstatus a 10.77.0.50(VIP)\n"
	const told = "a: VIPAnnounced\nb: NoEligibleNode\nevent a VIPAnnounced\nevent b NoEligibleNode"
	for _, tt := range []struct {
		name, self string
		b          vip.Service
		want       string
	}{
		{"the owner", "n1", b, announced + told},
		{"the owner, and the status has the address", "n1", shown, announced + "status b 10.77.0.50(VIP)\n" + told},
		{"another node", "n2", shown, "kubevip-b -> n1\na: VIPElsewhere\nb: NoEligibleNode"},
		{"with an endpoint there", "n1", svc("b", "10.77.0.50", local("n1", "n2"), port(9), younger), announced + "status b 10.77.0.50(VIP)\na: VIPAnnounced\nb: VIPAnnounced\nevent a VIPAnnounced\nevent b VIPAnnounced"},
	} {
		for _, byBGP := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, by BGP %v", tt.name, byBGP), func(t *testing.T) {
				w := withSessions(seenFrom(held(held(world(svc("a", "10.77.0.50", local("n1"), written("n1")), tt.b), "a", "n1"), "b", "n1"), tt.self))
				r := rules()
				if byBGP {
					r.ARP, r.BGP = false, &BGP{}
				}
				p := Make(r, bind(r, w))
				want := tt.want
				if byBGP {
					want = strings.Replace(want, "bind 10.77.0.50/32 dev eth0\n", "", 1)
				}
				diff(t, summary(p), want)
				for _, s := range p.Statuses {
					if s.Service.Name == "b" && strings.Contains(want, "b: NoEligibleNode") && (s.VIPHost != "" || s.Conditions[1].Status != vip.ConditionFalse || !strings.Contains(s.Conditions[1].Message, "node n1 carries the Services that share its address, or its lease, and this one has no ready endpoint there")) {
						t.Errorf("the status is %+v", s)
					}
				}
			})
		}
	}
}

// What another class's Service has by its status is announced by another program: no other Service begins to
// have the same port of it.
func TestOtherClassHasIt(t *testing.T) {
	others := func(s *vip.Service) {
		s.HasClass, s.Class = true, "other"
		s.Ingress = []vip.Ingress{{Addr: s.Addresses[0]}}
	}
	for _, tt := range []struct {
		name    string
		change  func(*vip.Service)
		refused bool
	}{
		{"the same port", younger, true},
		{"an older Service", func(*vip.Service) {}, true},
		{"another port", port(81), false},
		{"it has the address", written("n1"), false},
	} {
		r := bgpRules(withElection)
		w := held(world(svc("a", "10.77.0.50", tt.change), svc("b", "10.77.0.50", others)), "a", "n1")
		check.Equal(t, reasonOf(Make(r, bind(r, w)), "a") == vip.AddressConflict, tt.refused, "%s: it is refused", tt.name)
	}
}
