package plan

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

func TestUnit(t *testing.T) {
	tests := []struct {
		name string
		r    func(*Rules)
		w    func() vip.World
		want string
	}{
		{name: "nothing is known yet", w: func() vip.World { w := world(svc("a", "10.77.0.50")); w.Synced = false; return w }},
		{
			name: "free, another node is the best",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51", younger)), "a", "n1")
				w.Members = w.Members[:2]
				return w
			},
			want: `kubevip-a -> n1
				kubevip-b -> n2
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced
				b: VIPClaiming`,
		},
		{
			name: "free, this node is the best: a claim, no address yet",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51", younger)), "a", "n2")
				w.Members = w.Members[:2]
				return w
			},
			want: `kubevip-b -> n1
				a: VIPElsewhere
				b: VIPClaiming`,
		},
		{
			name: "held and bound: announced, status and Event",
			w: func() vip.World {
				return bind(rules(), held(world(svc("a", "10.77.0.50,fd77::50")), "a", "n1"))
			},
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				bind fd77::50/128 dev eth0
				status a 10.77.0.50(VIP) fd77::50(VIP)
				a: VIPAnnounced
				event a VIPAnnounced`,
		},
		{
			name: "status only for what the kernel confirmed",
			w: func() vip.World {
				w := bind(rules(), held(world(svc("a", "10.77.0.50,fd77::50")), "a", "n1"))
				w.Bound = w.Bound[:1]
				return w
			},
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				bind fd77::50/128 dev eth0
				status a 10.77.0.50(VIP)
				a: VIPAnnounced`,
		},
		{
			name: "the Service chooses its ipMode",
			w: func() vip.World {
				return bind(rules(), held(world(svc("a", "10.77.0.50", func(s *vip.Service) { s.IPMode = vip.ModeProxy })), "a", "n1"))
			},
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				status a 10.77.0.50(Proxy)
				a: VIPAnnounced
				event a VIPAnnounced`,
		},
		{
			name: "taken from another node: the Event says so",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50")), "a", "n1")
				w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n1", Valid: true, PreviousHolder: "n2", Transitions: 2}
				return bind(rules(), w)
			},
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				status a 10.77.0.50(VIP)
				a: VIPAnnounced
				event a VIPMoved`,
		},
		{
			name: "held by another program",
			w: func() vip.World {
				w := world(svc("a", "10.77.0.50", written("n1")))
				w.Claims[key("kubevip-a")] = vip.Claim{Holder: "x", Valid: true, Foreign: true}
				return w
			},
			want: `a: HeldByOtherAnnouncer
				event a HeldByOtherAnnouncer`,
		},
		{
			name: "an earlier program on this node held it: adopted by this node, not by the least loaded",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51")), "b", "n1")
				w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n1", Foreign: true}
				return w
			},
			want: `kubevip-a -> n1
				kubevip-b -> n1
				bind 10.77.0.51/32 dev eth0
				a: VIPClaiming
				b: VIPAnnounced`,
		},
		{
			name: "the lease was deleted by hand: the node that had it is first, whatever it holds",
			w: func() vip.World {
				return held(world(svc("a", "10.77.0.50", written("n1")), svc("b", "10.77.0.51")), "b", "n1")
			},
			want: `kubevip-a -> n1
				kubevip-b -> n1
				bind 10.77.0.51/32 dev eth0
				a: VIPClaiming
				b: VIPAnnounced`,
		},
		{
			name: "tenure is over: nothing is bound, the claim is kept",
			w: func() vip.World {
				w := bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1"))
				w.Tenure.Until = w.Now
				return w
			},
			want: `kubevip-a -> n1
				a: NodeLeaseNotHeld`,
		},
		{
			name: "this node is excluded: hand over, serve until the other is heard",
			w: func() vip.World {
				w := bind(rules(), held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1"))
				w.Members = w.Members[:2]
				w.Nodes = allNodes(vip.Node{Name: "n1", Excluded: "it has the label x"})
				return w
			},
			want: `kubevip-a -> n2
				bind 10.77.0.50/32 dev eth0
				status a 10.77.0.50(VIP)
				a: VIPAnnounced
				event a VIPAnnounced`,
		},
		{
			name: "labelled nodes get no VIP while there are others, be they down",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1")
				w.Members[2].Alive = false
				w.Nodes = []vip.Node{{Name: "n1", ExclusionLabel: "x"}, {Name: "n2", ExclusionLabel: "x"}, {Name: "n3"}}
				return w
			},
			want: `status a
				a: NoEligibleNode
				event a NoEligibleNode`,
		},
		{
			name: "Herald runs on labelled nodes only: they may",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50")), "a", "n1")
				w.Nodes = []vip.Node{{Name: "n1", ExclusionLabel: "x"}, {Name: "n2", ExclusionLabel: "x"}, {Name: "n3", ExclusionLabel: "x"}, {Name: "w1"}}
				return w
			},
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced`,
		},
		{
			name: "a member without a Node says nothing about labels, and gets nothing",
			w: func() vip.World {
				w := held(held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51")), "a", "n1"), "b", "n3")
				w.Nodes = []vip.Node{{Name: "n1", ExclusionLabel: "x"}, {Name: "n2", ExclusionLabel: "x"}}
				return w
			},
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced
				b: VIPElsewhere`,
		},
		{
			name: "without a Node: handed to a node that has one",
			w: func() vip.World {
				w := bind(rules(), held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1"))
				w.Nodes = []vip.Node{{Name: "n2"}}
				return w
			},
			want: `kubevip-a -> n2
				bind 10.77.0.50/32 dev eth0
				status a 10.77.0.50(VIP)
				a: VIPAnnounced
				event a VIPAnnounced`,
		},
		{
			name: "no member has a Node: they have other names, or Nodes can't be read",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50")), "a", "n1")
				w.Nodes = []vip.Node{{Name: "w1"}}
				return w
			},
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced`,
		},
		{
			name: "being handed over: the status is the successor's to write",
			w: func() vip.World {
				w := bind(rules(), held(world(svc("a", "10.77.0.50", written("n2"))), "a", "n1"))
				w.Members = w.Members[:2]
				w.Stopping = true
				w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now, Until: w.Now.Add(time.Second)}
				return w
			},
			want: `kubevip-a -> n2
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced
				event a VIPAnnounced`,
		},
		{
			name: "stopping, and nobody else may have it: released, and the status says so",
			w: func() vip.World {
				w := bind(rules(), held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1"))
				w.Members = w.Members[:1]
				w.Stopping = true
				return w
			},
			want: `status a
				a: NoEligibleNode
				event a NoEligibleNode`,
		},
		{
			name: "the link is down: hand over, nothing to announce on",
			w: func() vip.World {
				w := bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1"))
				w.Members = w.Members[:2]
				w.Members[0].Info = info(false)
				return w
			},
			want: `kubevip-a -> n2
				a: VIPAnnounced`,
		},
		{
			name: "no node is eligible: the status is cleared, the user told",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1")
				for i := range w.Members {
					w.Members[i].Info = info(false)
				}
				return w
			},
			want: `status a
				a: NoEligibleNode
				event a NoEligibleNode`,
		},
		{
			name: "handed over and not heard: still bound, with an end",
			w: func() vip.World {
				w := bind(rules(), held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1"))
				w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n2", Valid: true, PreviousHolder: "n1", Transitions: 2}
				w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now, Until: w.Now.Add(time.Second)}
				return w
			},
			want: `bind 10.77.0.50/32 dev eth0 with a deadline
				a: VIPElsewhere`,
		},
		{
			name: "handed over and heard: gone",
			w: func() vip.World {
				w := bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1"))
				w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n2", Valid: true, PreviousHolder: "n1", Transitions: 2}
				w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now.Add(-time.Second), Until: w.Now.Add(time.Second)}
				w.Heard[addr("10.77.0.50")] = vip.HeardAnnouncement{At: w.Now}
				return w
			},
			want: `a: VIPElsewhere`,
		},
		{
			name: "handed over and past the deadline: gone",
			w: func() vip.World {
				w := bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1"))
				w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n2", Valid: true, PreviousHolder: "n1", Transitions: 2}
				w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now.Add(-time.Second), Until: w.Now}
				return w
			},
			want: `a: VIPElsewhere`,
		},
		{
			name: "Local: only where an endpoint is",
			w:    func() vip.World { return held(world(svc("a", "10.77.0.50", local("n3"))), "a", "n1") },
			want: `kubevip-a -> n3
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced`,
		},
		{
			name: "Local: terminating endpoints count if no other is left",
			w: func() vip.World {
				return held(world(svc("a", "10.77.0.50", local(), func(s *vip.Service) { s.Endpoints.Terminating = []string{"n1"} })), "a", "n1")
			},
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced`,
		},
		{
			name: "Local: endpoints only on nodes without Herald",
			w:    func() vip.World { return world(svc("a", "10.77.0.50", local("w1"), written("n1"))) },
			want: `status a 10.77.0.50(VIP)
				a: NoEligibleNode
				event a NoEligibleNode`,
		},
		{
			name: "Local: bound once kube-proxy serves it",
			w: func() vip.World {
				return held(world(svc("a", "10.77.0.50", local("n1"), func(s *vip.Service) { s.HealthCheckNodePort = 30000 })), "a", "n1")
			},
			want: `kubevip-a -> n1
				a: VIPAnnounced`,
		},
		{
			name: "Local: kube-proxy serves it",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50", local("n1"), func(s *vip.Service) { s.HealthCheckNodePort = 30000 })), "a", "n1")
				w.HealthChecked[key("a")] = true
				return w
			},
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced`,
		},
		{
			name: "no endpoints: no VIP, the status stays, claim released",
			w: func() vip.World {
				return held(world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.Endpoints = vip.Endpoints{} })), "a", "n1")
			},
			want: `status a 10.77.0.50(VIP)
				a: NoEndpoints
				event a NoEndpoints`,
		},
		{
			name: "a new Service has no endpoints yet: no Event",
			w: func() vip.World {
				return world(svc("a", "10.77.0.50", func(s *vip.Service) {
					s.Endpoints, s.Created = vip.Endpoints{}, epoch.Add(time.Hour-time.Second)
				}))
			},
			want: `a: NoEndpoints`,
		},
		{
			name: "all stop at once: who was given the claim clears the status",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50", written("n3"))), "a", "n1")
				for i := range w.Members {
					w.Members[i].Info.Excluded = "it is stopping"
				}
				w.Stopping = true
				return w
			},
			want: `status a
				a: NoEligibleNode
				event a NoEligibleNode`,
		},
		{
			name: "no endpoints, announced all the same",
			w: func() vip.World {
				return held(world(svc("a", "10.77.0.50", func(s *vip.Service) { s.Endpoints, s.AllowWithoutEndpoints = vip.Endpoints{}, true })), "a", "n1")
			},
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced`,
		},
		{
			name: "one address, two Services: one node, one lease each, one address",
			w: func() vip.World {
				return bind(rules(), held(world(svc("b", "10.77.0.50"), svc("a", "10.77.0.50", port(81), younger)), "b", "n1"))
			},
			want: `kubevip-b -> n1
				kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				status b 10.77.0.50(VIP)
				status a 10.77.0.50(VIP)
				a: VIPAnnounced
				b: VIPAnnounced
				event b VIPAnnounced
				event a VIPAnnounced`,
		},
		{
			name: "the older of two goes: the younger's lease already names the owner",
			w:    func() vip.World { return held(world(svc("a", "10.77.0.50", port(81))), "a", "n1") },
			want: `kubevip-a -> n1
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced`,
		},
		{
			name: "a Service joins the address of one on another node: its lease follows",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.50", port(81), younger)), "a", "n2")
				return held(w, "b", "n1")
			},
			want: `kubevip-b -> n2
				a: VIPElsewhere
				b: VIPElsewhere`,
		},
		{
			name: "one address, one port, two Services: the older keeps it",
			w: func() vip.World {
				return held(world(svc("b", "10.77.0.50"), svc("a", "10.77.0.50", younger)), "b", "n3")
			},
			want: `a: AddressConflict
				b: VIPElsewhere`,
		},
		{
			name: "one address, one port, two Services: the one that has it keeps it",
			w: func() vip.World {
				return held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.50", younger, written("n1"))), "b", "n1")
			},
			want: `kubevip-b -> n1
				bind 10.77.0.50/32 dev eth0
				a: AddressConflict
				b: VIPAnnounced`,
		},
		{
			name: "a lease in common: one unit",
			w: func() vip.World {
				w := world(svc("a", "10.77.0.50", func(s *vip.Service) { s.Lease = "both" }), svc("b", "10.77.0.51", func(s *vip.Service) { s.Lease = "both" }))
				w.Claims[key("both")] = vip.Claim{Holder: "n1", Valid: true}
				return w
			},
			want: `both -> n1
				bind 10.77.0.50/32 dev eth0
				bind 10.77.0.51/32 dev eth0
				a: VIPAnnounced
				b: VIPAnnounced`,
		},
		{
			name: "one owner for all",
			r:    func(r *Rules) { r.Election = false },
			w: func() vip.World {
				w := world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51", local("n2")))
				w.Claims[rules().Lease] = vip.Claim{Holder: "n1", Valid: true}
				return w
			},
			want: `plndr-svcs-lock -> n1
				bind 10.77.0.50/32 dev eth0
				bind 10.77.0.51/32 dev eth0
				a: VIPAnnounced
				b: VIPAnnounced
				event b LocalWithoutElection`,
		},
		{
			name: "auto: the link whose subnet has the VIP, else the default",
			w: func() vip.World {
				auto := func(s *vip.Service) { s.Interface = "auto" }
				w := world(svc("a", "10.99.3.4", auto), svc("b", "192.0.2.1", auto, younger))
				return held(held(w, "a", "n1"), "b", "n1")
			},
			want: `kubevip-a -> n1
				kubevip-b -> n1
				bind 10.99.3.4/32 dev eth1
				bind 192.0.2.1/32 dev eth0
				a: VIPAnnounced
				b: VIPAnnounced`,
		},
		{
			name: "prefix length of the link's subnet",
			r:    func(r *Rules) { r.Bits4, r.Bits6 = 0, 0 },
			w: func() vip.World {
				return held(world(svc("a", "10.77.0.50,fd77::50"), svc("b", "192.0.2.1")), "a", "n1")
			},
			want: `kubevip-a -> n1
				kubevip-b -> n2
				bind 10.77.0.50/24 dev eth0
				bind fd77::50/64 dev eth0
				a: VIPAnnounced
				b: VIPClaiming`,
		},
		{
			name: "a link this node does not have",
			w: func() vip.World {
				return world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.Interface = "bond9" }))
			},
			want: `status a
				a: NoEligibleNode
				event a NoEligibleNode`,
		},
		{
			name: "ignored later: VIP, status and claim go",
			w: func() vip.World {
				return bind(rules(), held(world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.Ignore = true })), "a", "n1"))
			},
			want: `status a
				a: Ignored
				event a VIPWithdrawn`,
		},
		{
			name: "no LoadBalancer any more: what we wrote goes",
			w: func() vip.World {
				return world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.LoadBalancer = false }))
			},
			want: `status a
				event a VIPWithdrawn`,
		},
		{
			name: "another announcer's status is not ours to clear",
			r:    func(r *Rules) { r.Announcer = "kube-system" },
			w: func() vip.World {
				return world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.HasClass, s.Class = true, "other" }))
			},
			want: `a: OtherClass`,
		},
		{
			name: "the status's writer lives: it clears the status",
			w: func() vip.World {
				return world(svc("a", "10.77.0.50", written("n2"), func(s *vip.Service) { s.Ignore = true }))
			},
			want: `a: Ignored`,
		},
		{
			name: "no address: waits",
			w:    func() vip.World { return world(svc("a", "", func(s *vip.Service) { s.VIPHost = "n1" })) },
			want: `status a
				a: NoAddress
				event a NoAddress`,
		},
		{
			name: "a left-over VIP of another program",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50")), "a", "n2")
				w.Unmanaged = []vip.Address{{Addr: addr("10.77.0.50"), Bits: 32, Link: "eth0"}, {Addr: addr("10.77.0.99"), Bits: 32, Link: "eth0"}}
				return w
			},
			want: `a: VIPElsewhere
				event a UnmanagedAddress`,
		},
		{
			name: "a slow node is passed over",
			w: func() vip.World {
				w := held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51", younger)), "a", "n1")
				w.Members = w.Members[:2]
				w.Members[1].Stalled = true
				return w
			},
			want: `kubevip-a -> n1
				kubevip-b -> n1
				bind 10.77.0.50/32 dev eth0
				a: VIPAnnounced
				b: VIPClaiming`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := rules()
			if tt.r != nil {
				tt.r(&r)
			}
			diff(t, summary(Make(r, tt.w())), tt.want)
		})
	}
}

// From the moment that the hand-over is sent on: the successor's watch may show it before this node's does, and
// clients that hear both would send what belongs to connections with the successor here.
func TestHandedOverListens(t *testing.T) {
	for _, holder := range []string{"n1", "n2"} {
		w := bind(rules(), held(world(svc("a", "10.77.0.50")), "a", "n1"))
		w.Claims[key("kubevip-a")] = vip.Claim{Holder: holder, Valid: true, PreviousHolder: "n1", Transitions: 2}
		w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now, Until: w.Now.Add(time.Second)}
		p := Make(rules(), w)
		if len(p.Addresses) != 1 || len(p.Announcements) != 1 || !p.Announcements[0].ListenOnly {
			t.Errorf("the lease names %s: %v is bound and %v announced, though it was handed over", holder, p.Addresses, p.Announcements)
		}
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
		if (got.Reason != vip.OtherClass) != tt.want {
			t.Errorf("class %q, own %q, %s, only=%v: %s, want ours=%v", tt.class, tt.own, tt.strict, tt.only, got.Reason, tt.want)
		}
		if !tt.want && !strings.Contains(got.Message, "loadBalancerClass") {
			t.Errorf("the message does not name the field: %q", got.Message)
		}
	}
}

func TestRefuse(t *testing.T) {
	tests := []struct{ addr, want string }{
		{"127.0.0.1", "loopback"}, {"::1", "loopback"},
		{"224.0.0.1", "multicast"}, {"ff02::1", "multicast"}, {"255.255.255.255", "broadcast"},
		{"169.254.1.1", "link-local"}, {"fe80::1", "link-local"},
		{"10.77.0.12", "the address of node n2 on eth0"},
		{"10.77.0.31", "the address of node w1"},
		{"10.240.1.9", "the pod range of node w1"},
		{"10.112.3.4", "the cluster's Service range"},
		{"10.78.0.2", "the API server's address"},
		{"fd77::50", "ipFamilies"},
		{"10.77.0.50", ""},
	}
	for _, tt := range tests {
		s := svc("a", tt.addr)
		if !strings.Contains(tt.want, "ipFamilies") {
			s.Families = nil
		} else {
			s.Families = []vip.Family{vip.IPv4}
		}
		w := world(s, svc("b", "10.77.0.51"))
		w.Self = "n2"
		w.Members = w.Members[1:2] // one node is responsible for all
		w.Nodes = []vip.Node{{Name: "w1", Addresses: []netip.Addr{addr("10.77.0.31")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.240.1.0/24")}}}
		w.Reserved = []vip.ReservedRange{
			{Prefix: netip.MustParsePrefix("10.112.0.0/16"), Description: "the cluster's Service range"},
			{Prefix: netip.MustParsePrefix("10.78.0.2/32"), Description: "the API server's address"},
		}
		w = held(w, "b", "n2")
		p := Make(rules(), w)
		v := p.Verdicts[0]
		if tt.want == "" {
			if v.Reason == vip.AddressRefused {
				t.Errorf("%s: refused: %s", tt.addr, v.Message)
			}
			continue
		}
		if v.Reason != vip.AddressRefused || !strings.Contains(v.Message, tt.want) || !strings.Contains(v.Message, tt.addr) {
			t.Errorf("%s: %s %q, want AddressRefused naming it and %q", tt.addr, v.Reason, v.Message, tt.want)
		}
		if len(p.Events) != 1 || p.Events[0].Reason != vip.AddressRefused || !p.Events[0].Warning {
			t.Errorf("%s: Events %v, want one warning", tt.addr, p.Events)
		}
		if len(p.Addresses) != 1 || p.Addresses[0].Addr != addr("10.77.0.51") {
			t.Errorf("%s: the other Service's VIP was harmed: %v", tt.addr, p.Addresses)
		}
	}
}

func TestOneRefusedOfTwo(t *testing.T) {
	w := held(world(svc("a", "10.77.0.50,127.0.0.1", written("n1"))), "a", "n1")
	p := Make(rules(), w)
	diff(t, summary(p), `kubevip-a -> n1
		bind 10.77.0.50/32 dev eth0
		a: VIPAnnounced
		event a AddressRefused`)
}

func TestWhyNoNode(t *testing.T) {
	w := world(svc("a", "10.77.0.50", local("n3")))
	w.Members[0].Info = info(false)
	w.Nodes = allNodes(vip.Node{Name: "n3", Excluded: "it has the label x"})
	got := Make(rules(), w).Verdicts[0].Message
	for _, want := range []string{"n1: its link eth0 is down", "n2: no ready endpoint there", "n3: it has the label x"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q does not say %q", got, want)
		}
	}
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
		{"given away, with its record", gives(held(held(world(both...), "a", "n1"), "b", "n1")), "a: n2, it is drained; b: n2, it is drained; "},
		{"another has it, and this one its record", held(held(world(both...), "a", "n2"), "b", "n1"), "a: n2 stays; b: n2; "},
		{"another program has it", foreign, "a: ; "},
		{"no node may have it", alone(held(world(svc("a", "10.77.0.50")), "a", "n1")), "a: , n1: its Herald is stopping; "},
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
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}
