package plan

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func TestUnit(t *testing.T) {
	tests := []struct {
		name string
		w    vip.World
		want string
	}{
		{"nothing is known yet", with(world(svc("a", "10.77.0.50")), func(w *vip.World) { w.Synced = false }), ""},
		{"free, another node is the best",
			with(held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51", younger)), "a", "n1"), func(w *vip.World) { w.Members = w.Members[:2] }),
			"kubevip-a -> n1; kubevip-b -> n2; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced; b: VIPClaiming"},
		{"free, this node is the best: a claim, no address yet",
			with(held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51", younger)), "a", "n2"), func(w *vip.World) { w.Members = w.Members[:2] }),
			"kubevip-b -> n1; a: VIPElsewhere; b: VIPClaiming"},
		{"held and bound, given of a pool when there were pools: announced, status and Event", bind(rules(), held(world(svc("a", "10.77.0.50,fd77::50", written("n1"), func(s *vip.Service) { s.Allocated = "x" })), "a", "n1")),
			`kubevip-a -> n1
			bind 10.77.0.50/32 dev eth0
			bind fd77::50/128 dev eth0
			status a 10.77.0.50(VIP) fd77::50(VIP)
			a: VIPAnnounced
			event a VIPAnnounced`},
		{"status only for what the kernel confirmed",
			with(bind(rules(), held(world(svc("a", "10.77.0.50,fd77::50")), "a", "n1")), func(w *vip.World) { w.Bound = w.Bound[:1] }),
			"kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; bind fd77::50/128 dev eth0; status a 10.77.0.50(VIP); a: VIPAnnounced"},
		{"an address that is not bound for a moment stays in the status",
			with(bind(rules(), held(world(svc("a", "10.77.0.50,fd77::50", written("n1"))), "a", "n1")), func(w *vip.World) { w.Bound = w.Bound[:1] }),
			"kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; bind fd77::50/128 dev eth0; status a 10.77.0.50(VIP) fd77::50(VIP); a: VIPAnnounced"},
		{"the Service chooses its ipMode",
			bind(rules(), held(world(svc("a", "10.77.0.50", func(s *vip.Service) { s.IPMode = vip.ModeProxy })), "a", "n1")),
			"kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; status a 10.77.0.50(Proxy); a: VIPAnnounced; event a VIPAnnounced"},
		{"taken from another node: the Event says so", func() vip.World {
			w := held(world(svc("a", "10.77.0.50", written("n2"))), "a", "n1")
			w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n1", Valid: true, PreviousHolder: "n2", Transitions: 2}
			return bind(rules(), w)
		}(), "kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; status a 10.77.0.50(VIP); a: VIPAnnounced; event a VIPMoved"},
		{"held by another program",
			with(world(svc("a", "10.77.0.50", written("n1"))), func(w *vip.World) { w.Claims[key("kubevip-a")] = vip.Claim{Holder: "x", Valid: true, Foreign: true} }),
			"a: HeldByOtherAnnouncer; event a HeldByOtherAnnouncer"},
		{"an earlier program on this node held it: adopted by this node, not by the least loaded",
			with(held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51")), "b", "n1"), func(w *vip.World) { w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n1", Foreign: true} }),
			"kubevip-a -> n1; kubevip-b -> n1; bind 10.77.0.51/32 dev eth0; a: VIPClaiming; b: VIPAnnounced"},
		{"the lease was deleted by hand: the node that had it is first, whatever it holds",
			held(world(svc("a", "10.77.0.50", written("n1")), svc("b", "10.77.0.51")), "b", "n1"),
			"kubevip-a -> n1; kubevip-b -> n1; bind 10.77.0.51/32 dev eth0; a: VIPClaiming; b: VIPAnnounced"},
		{"tenure is over: nothing is bound, the claim is kept",
			with(bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1")), func(w *vip.World) { w.Tenure.Until = w.Now }),
			"kubevip-a -> n1; a: NodeLeaseNotHeld"},
		{"labelled nodes get no VIP while there are others, be they down",
			with(held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1"), func(w *vip.World) {
				w.Members[2].Alive = false
				w.Nodes = []vip.Node{{Name: "n1", ExclusionLabel: "x"}, {Name: "n2", ExclusionLabel: "x"}, {Name: "n3"}}
			}), "status a; a: NoEligibleNode; event a NoEligibleNode"},
		{"Herald runs on labelled nodes only: they may", with(held(world(svc("a", "10.77.0.50")), "a", "n1"), func(w *vip.World) {
			w.Nodes = []vip.Node{{Name: "n1", ExclusionLabel: "x"}, {Name: "n2", ExclusionLabel: "x"}, {Name: "n3", ExclusionLabel: "x"}, {Name: "w1"}}
		}), "kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced"},
		{"a member without a Node says nothing about labels, and gets nothing",
			with(held(held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51")), "a", "n1"), "b", "n3"), func(w *vip.World) {
				w.Nodes = []vip.Node{{Name: "n1", ExclusionLabel: "x"}, {Name: "n2", ExclusionLabel: "x"}}
			}), "kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced; b: VIPElsewhere"},
		{"without a Node: handed to a node that has one",
			with(bind(rules(), held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1")), func(w *vip.World) { w.Nodes = []vip.Node{{Name: "n2"}} }),
			"kubevip-a -> n2; bind 10.77.0.50/32 dev eth0; status a 10.77.0.50(VIP); a: VIPAnnounced; event a VIPAnnounced"},
		{"no member has a Node: they have other names, or Nodes can't be read",
			with(held(world(svc("a", "10.77.0.50")), "a", "n1"), func(w *vip.World) { w.Nodes = []vip.Node{{Name: "w1"}} }),
			"kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced"},
		{"the link is down: hand over, nothing to announce on",
			with(bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1")), func(w *vip.World) {
				w.Members = w.Members[:2]
				w.Members[0].Info = info(false)
			}), "kubevip-a -> n2; a: VIPAnnounced"},
		{"no node's link is up: its owner keeps it for when it is, the user is told",
			with(held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1"), func(w *vip.World) {
				for i := range w.Members {
					w.Members[i].Info = info(false)
				}
			}), "kubevip-a -> n1; status a 10.77.0.50(VIP); a: NoEligibleNode; event a NoEligibleNode"},
		{"handed over and not heard: still bound, with an end",
			with(bind(rules(), held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1")), func(w *vip.World) {
				w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n2", Valid: true, PreviousHolder: "n1", Transitions: 2}
				w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now, Until: w.Now.Add(time.Second)}
			}), "bind 10.77.0.50/32 dev eth0 with a deadline; a: VIPElsewhere"},
		{"handed over and heard: gone", with(bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1")), func(w *vip.World) {
			w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n2", Valid: true, PreviousHolder: "n1", Transitions: 2}
			w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now.Add(-time.Second), Until: w.Now.Add(time.Second)}
			w.Heard[addr("10.77.0.50")] = vip.HeardAnnouncement{At: w.Now}
		}), `a: VIPElsewhere`},
		{"handed over and past the deadline: gone", with(bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1")), func(w *vip.World) {
			w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n2", Valid: true, PreviousHolder: "n1", Transitions: 2}
			w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now.Add(-time.Second), Until: w.Now}
		}), `a: VIPElsewhere`},
		{"handed over, and this node's tenure is over: gone", with(bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1")), func(w *vip.World) {
			w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n2", Valid: true, PreviousHolder: "n1", Transitions: 2}
			w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now, Until: w.Now.Add(time.Second)}
			w.Tenure.Until = w.Now
		}), `a: VIPElsewhere`},
		{"isolated: says nothing, and clears no status", with(world(svc("a", "", func(s *vip.Service) { s.VIPHost = "n1" })), func(w *vip.World) { w.Members[0].Info.Isolated = true }), "a: NoAddress"},
		{"a renewal is late: clears no status", with(world(svc("a", "", func(s *vip.Service) { s.VIPHost = "n1" })), func(w *vip.World) { w.Tenure.RenewalLateSince = w.Now }), "a: NoAddress"},
		{"Local: only where an endpoint is", held(world(svc("a", "10.77.0.50", local("n3"))), "a", "n1"),
			"kubevip-a -> n3; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced"},
		{"Local: terminating endpoints count if no other is left, though kube-proxy's health check does not have them",
			held(world(svc("a", "10.77.0.50", local(), func(s *vip.Service) {
				s.Endpoints.Terminating, s.HealthCheckNodePort = []string{"n1"}, 30000
			})), "a", "n1"),
			"kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced"},
		{"drained, and the only other node has just begun: kept until that is heard",
			with(held(world(svc("a", "10.77.0.50")), "a", "n1"), func(w *vip.World) {
				w.Nodes, w.Members = []vip.Node{{Name: "n1", Drained: true}, {Name: "n2"}}, w.Members[:2]
				w.Members[1].Unproven = true
			}), "kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced"},
		{"Local: bound once kube-proxy serves it",
			held(world(svc("a", "10.77.0.50", local("n1"), func(s *vip.Service) { s.HealthCheckNodePort = 30000 })), "a", "n1"),
			"kubevip-a -> n1; a: VIPAnnounced"},
		{"Local: its endpoint is no longer ready before kube-proxy serves it",
			held(world(svc("a", "10.77.0.50", local("n3"), func(s *vip.Service) { s.HealthCheckNodePort = 30000 })), "a", "n1"),
			"kubevip-a -> n3; a: VIPAnnounced"},
		{"Local: kube-proxy serves it",
			with(held(world(svc("a", "10.77.0.50", local("n1"), func(s *vip.Service) { s.HealthCheckNodePort = 30000 })), "a", "n1"), func(w *vip.World) { w.HealthChecked[key("a")] = true }),
			"kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced"},
		{"all stop at once: who was given the claim clears the status",
			with(held(world(svc("a", "10.77.0.50", written("n3"))), "a", "n1"), func(w *vip.World) {
				for i := range w.Members {
					w.Members[i].Info.Excluded = "it is stopping"
				}
				w.Stopping = true
			}), "status a; a: NoEligibleNode; event a NoEligibleNode"},
		{"no endpoints, announced all the same",
			held(world(svc("a", "10.77.0.50", func(s *vip.Service) { s.Endpoints, s.AllowWithoutEndpoints = vip.Endpoints{}, true })), "a", "n1"),
			"kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced"},
		{"one address, two Services: one node, one lease each, one address",
			bind(rules(), held(world(svc("b", "10.77.0.50"), svc("a", "10.77.0.50", port(81), younger)), "b", "n1")), `kubevip-b -> n1
			kubevip-a -> n1
			bind 10.77.0.50/32 dev eth0
			status b 10.77.0.50(VIP)
			status a 10.77.0.50(VIP)
			a: VIPAnnounced
			b: VIPAnnounced
			event b VIPAnnounced
			event a VIPAnnounced`},
		{"the older of two goes: the younger's lease already names the owner", held(world(svc("a", "10.77.0.50", port(81))), "a", "n1"),
			"kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced"},
		{"a Service joins the address of one on another node: its lease follows",
			held(held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.50", port(81), younger)), "a", "n2"), "b", "n1"),
			"kubevip-b -> n2; a: VIPElsewhere; b: VIPElsewhere"},
		{"one address, one port, two Services: the older keeps it",
			held(world(svc("b", "10.77.0.50"), svc("a", "10.77.0.50", younger)), "b", "n3"), "a: AddressConflict; b: VIPElsewhere"},
		{"one address, one port, two Services: the one that has it keeps it",
			held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.50", younger, written("n1"))), "b", "n1"),
			"kubevip-b -> n1; bind 10.77.0.50/32 dev eth0; a: AddressConflict; b: VIPAnnounced"},
		{"a lease in common: one unit",
			with(world(svc("a", "10.77.0.50", func(s *vip.Service) { s.Lease = "both" }), svc("b", "10.77.0.51", func(s *vip.Service) { s.Lease = "both" })), func(w *vip.World) { w.Claims[key("both")] = vip.Claim{Holder: "n1", Valid: true} }),
			"both -> n1; bind 10.77.0.50/32 dev eth0; bind 10.77.0.51/32 dev eth0; a: VIPAnnounced; b: VIPAnnounced"},
		{"... that has moved before one of them was created: that one was not moved", func() vip.World {
			both := func(s *vip.Service) { s.Lease = "both" }
			w := world(svc("a", "10.77.0.50", both, written("n2")), svc("b", "10.77.0.51", both, younger, written("n1")))
			w.Claims[key("both")] = vip.Claim{Holder: "n1", Valid: true, PreviousHolder: "n2", Transitions: 2, AcquiredAt: epoch.Add(time.Minute)}
			return bind(rules(), w)
		}(), `both -> n1
			bind 10.77.0.50/32 dev eth0
			bind 10.77.0.51/32 dev eth0
			status a 10.77.0.50(VIP)
			status b 10.77.0.51(VIP)
			a: VIPAnnounced
			b: VIPAnnounced
			event a VIPMoved
			event b VIPAnnounced`},
		{"auto: the link whose subnet has the VIP, else the default", func() vip.World {
			auto := func(s *vip.Service) { s.Interface = "auto" }
			w := world(svc("a", "10.99.3.4", auto), svc("b", "192.0.2.1", auto, younger))
			return held(held(w, "a", "n1"), "b", "n1")
		}(), "kubevip-a -> n1; kubevip-b -> n1; bind 10.99.3.4/32 dev eth1; bind 192.0.2.1/32 dev eth0; a: VIPAnnounced; b: VIPAnnounced"},
		{"a link this node does not have", world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.Interface = "bond9" })),
			"status a; a: NoEligibleNode; event a NoEligibleNode"},
		{"ignored later: VIP, status and claim go",
			bind(rules(), held(world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.Ignore = true })), "a", "n1")),
			"status a; a: Ignored; event a VIPWithdrawn"},
		{"the status's writer lives: it clears the status",
			world(svc("a", "10.77.0.50", written("n2"), func(s *vip.Service) { s.Ignore = true })), `a: Ignored`},
		{"no address: waits", world(svc("a", "", func(s *vip.Service) { s.VIPHost = "n1" })), "status a; a: NoAddress; event a NoAddress"},
		{"one of two addresses is refused", held(world(svc("a", "10.77.0.50,127.0.0.1", written("n1"))), "a", "n1"),
			"kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced; event a AddressRefused"},
		{"given an address of a family that it has not any more: it is taken off, no fault",
			held(world(svc("a", "10.77.0.50,fd77::50", written("n1"), func(s *vip.Service) { s.Families, s.Allocated = []vip.Family{vip.IPv4}, "web" })), "a", "n1"),
			"kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced"},
		{"... and no other", world(svc("a", "fd77::50", written("n1"), func(s *vip.Service) { s.Families, s.Allocated = []vip.Family{vip.IPv4}, "web" })),
			"status a; a: AddressRefused; event a AddressRefused"},
		{"a left-over VIP of another program", with(held(world(svc("a", "10.77.0.50")), "a", "n2"), func(w *vip.World) {
			w.Unmanaged = []vip.Address{{Addr: addr("10.77.0.50"), Bits: 32, Link: "eth0"}, {Addr: addr("10.77.0.99"), Bits: 32, Link: "eth0"}}
		}), "a: VIPElsewhere; event a UnmanagedAddress"},
		{"... with the mask of its network", with(held(world(svc("a", "10.77.0.50", written("n2"))), "a", "n2"), func(w *vip.World) {
			w.Members[0].Info.Links[0].Prefixes = append(w.Members[0].Info.Links[0].Prefixes, netip.MustParsePrefix("10.77.0.50/16"))
		}), "a: VIPElsewhere; event a UnmanagedAddress"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { diff(t, summary(Make(rules(), tt.w)), tt.want) })
	}
}

// TestUnitWithOptions: what options change of a unit.
func TestUnitWithOptions(t *testing.T) {
	one := world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51", local("n2")))
	one.Claims[rules().SharedLease] = vip.Claim{Holder: "n1", Valid: true}
	tests := []struct {
		name string
		r    func(*Rules)
		w    vip.World
		want string
	}{
		{"one owner for all", func(r *Rules) { r.Election = false }, one, "plndr-svcs-lock -> n1; bind 10.77.0.50/32 dev eth0; " +
			"bind 10.77.0.51/32 dev eth0; a: VIPAnnounced; b: VIPAnnounced; event b LocalWithoutElection"},
		{"by BGP, once kube-proxy serves it", func(r *Rules) { r.ARP, r.BGP = false, &BGP{} },
			held(world(svc("a", "10.77.0.50", local("n1"), func(s *vip.Service) { s.HealthCheckNodePort = 30000 })), "a", "n1"), "kubevip-a -> n1; a: VIPClaiming"},
		{"prefix length of the link's subnet", func(r *Rules) { r.Bits4, r.Bits6 = 0, 0 },
			held(world(svc("a", "10.77.0.50,fd77::50"), svc("b", "192.0.2.1")), "a", "n1"),
			"kubevip-a -> n1; kubevip-b -> n2; bind 10.77.0.50/24 dev eth0; bind fd77::50/64 dev eth0; a: VIPAnnounced; b: VIPClaiming"},
		{"another announcer's status is not ours to clear", func(r *Rules) { r.Announcer = "kube-system" },
			world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.HasClass, s.Class = true, "other" })), "a: OtherClass"},
	}
	for _, tt := range tests {
		r := rules()
		tt.r(&r)
		t.Run(tt.name, func(t *testing.T) { diff(t, summary(Make(r, tt.w)), tt.want) })
	}
}

// From the moment that the hand-over is sent on: clients that hear both would send what belongs to connections with
// the successor here.
func TestHandedOverListens(t *testing.T) {
	w := handedOver(held(bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1")), "a", "n2"), "a", time.Second)
	if p := Make(rules(), w); len(p.Addresses) != 1 || len(p.Announcements) != 1 || !p.Announcements[0].ListenOnly {
		t.Errorf("%v is bound and %v announced, though it was handed over", p.Addresses, p.Announcements)
	}
}

func TestClass(t *testing.T) {
	const ours = "kube-vip.io/kube-vip-class"
	tests := []struct {
		class, strict string // "-" for strict false
		only          bool
		own           string
		want          bool
	}{
		{"unset", "-", false, ours, true},
		{ours, "-", false, ours, true},
		{"other", "-", false, ours, false},
		{"unset", "-", true, ours, false},
		{ours, "-", true, ours, true},
		{"unset", "strict", false, ours, false},
		{ours, "strict", false, ours, true},
		{"other", "strict", false, ours, false},
		{"unset", "strict", false, "", true},
		{ours, "strict", false, "", false},
		{"unset", "-", false, "mine", true},
		{"mine", "-", false, "mine", true},
		{ours, "-", false, "mine", false},
	}
	for _, tt := range tests {
		r := rules()
		r.Class, r.ClassOnly, r.ClassStrict = tt.own, tt.only, tt.strict == "strict"
		w := world(svc("a", "10.77.0.50", func(s *vip.Service) {
			if tt.class != "unset" {
				s.HasClass, s.Class = true, tt.class
			}
		}))
		got := Make(r, w).Verdicts[0]
		check.Equal(t, got.Reason != vip.OtherClass, tt.want, "class %q, own %q, %s, only=%v: ours", tt.class, tt.own, tt.strict, tt.only)
		if !tt.want && !strings.Contains(got.Message, "loadBalancerClass") {
			t.Errorf("the message does not name the field: %q", got.Message)
		}
	}
}

// TestOwnerWithoutEndpoints: whose endpoints are away keeps its node, which knows its connections, while that may have
// it; not who shares an address, whose lease follows another's.
func TestOwnerWithoutEndpoints(t *testing.T) {
	empty := func(s *vip.Service) { written("n1")(s); s.Endpoints = vip.Endpoints{} }
	a := svc("a", "10.77.0.50", empty)
	one := held(held(world(a, svc("b", "10.77.0.51")), "a", "n1"), "b", "n1")
	for _, tt := range []struct {
		name string
		w    vip.World
		want string
	}{
		{"its node lives", one, "n1 stays"},
		{"of policy Local", held(world(svc("a", "10.77.0.50", local(), written("n1"))), "a", "n1"), "n1 stays"},
		{"its node stops", with(held(world(a), "a", "n1"), func(w *vip.World) { w.Stopping, w.Members[0].Info.Excluded = true, "its Herald is stopping" }), ""},
		{"its node is drained", with(held(world(a), "a", "n1"), func(w *vip.World) { w.Nodes = allNodes(vip.Node{Name: "n1", Drained: true}) }), ""},
		{"nobody has it", world(a), "none"},
		{"another program has it", with(world(a), func(w *vip.World) { w.Claims[key("kubevip-a")] = vip.Claim{Holder: "x", Foreign: true, Valid: true} }), "none"},
		{"deleted", held(world(svc("a", "10.77.0.50", empty, func(s *vip.Service) { s.Deleted = epoch })), "a", "n1"), "none"},
		{"another has the address", held(held(world(a, svc("b", "10.77.0.50", younger, port(9))), "a", "n1"), "b", "n2"), "none"},
		{"another names the lease", held(world(a, svc("b", "10.77.0.51", func(s *vip.Service) { s.Lease = "kubevip-a" })), "a", "n2"), "n2 stays"},
	} {
		for _, m := range tt.w.Members {
			tt.w.Self = m.Name
			got := "none"
			for _, o := range Make(rules(), tt.w).Owners {
				if o.Unit != key("kubevip-a") {
					continue
				}
				if got = o.Node; o.Stays || o.Node == m.Name { // who has it keeps it
					got += " stays"
				}
			}
			check.Equal(t, got, tt.want, "%s, as %s has it", tt.name, m.Name)
		}
	}
	one.Services = []vip.Service{svc("a", "10.77.0.50"), one.Services[1]} // the endpoints are back; n2 has fewer VIPs
	diff(t, summary(Make(rules(), one)), "kubevip-a -> n1; kubevip-b -> n1; bind 10.77.0.50/32 dev eth0; bind 10.77.0.51/32 dev eth0; a: VIPAnnounced; b: VIPAnnounced")
}

// TestOwners: where the plan has a unit and its records, why, and of which it does not decide.
func TestOwners(t *testing.T) {
	both := []vip.Service{svc("a", "10.77.0.50"), svc("b", "10.77.0.50", younger, port(9))}
	gives := func(w vip.World) vip.World {
		w.Nodes = allNodes(vip.Node{Name: "n1", Drained: true})
		w.Members = w.Members[:2]
		return w
	}
	alone := func(w vip.World) vip.World { w.Stopping, w.Members = true, w.Members[:1]; return w }
	foreign := held(world(svc("a", "10.77.0.50")), "a", "x")
	foreign.Claims[key("kubevip-a")] = vip.Claim{Holder: "x", Foreign: true, Valid: true}
	late := held(world(svc("a", "10.77.0.50")), "a", "n1")
	late.Tenure.Until = late.Now
	for _, tt := range []struct {
		name string
		w    vip.World
		want string
	}{
		{"given away, with its record", gives(held(held(world(both...), "a", "n1"), "b", "n1")),
			"a: n2, it is drained; b: n2, it is drained; "},
		{"another has it, and this one its record", held(held(world(both...), "a", "n2"), "b", "n1"), "a: n2 stays; b: n2; "},
		{"another program has it", foreign, "a: ; "},
		{"no node may have it", alone(held(world(svc("a", "10.77.0.50")), "a", "n1")), "a: , n1: its Herald is stopping; "},
		{"its endpoint is where no node may have it", held(world(svc("a", "10.77.0.50", local("w1"), written("n1"))), "a", "n1"), "a: , n1, n2, n3: no ready endpoint there; "},
		{"nobody has it, and none may", alone(world(svc("a", "10.77.0.50"))), "a: ; "},
		{"this node's renewals have failed for too long", late, "a: n1; "},
		{"not a Service of ours", world(svc("a", "10.77.0.50", func(s *vip.Service) { s.Ignore = true })), ""},
	} {
		got := ""
		for _, o := range Make(rules(), tt.w).Owners {
			got += strings.TrimPrefix(o.Unit.Name, "kubevip-") + ": " + o.Node
			if o.Stays {
				got += " stays"
			}
			if o.Cause != "" {
				_, why, _ := strings.Cut(o.Cause, ": ")
				why, _, _ = strings.Cut(why, " (")
				got += ", " + why
			}
			got += "; "
		}
		check.Equal(t, got, tt.want, "%s", tt.name)
	}
}
