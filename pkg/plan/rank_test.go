package plan

import (
	"slices"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A new unit goes to the node with the lowest rank, however many units that has.
func TestRankBeforeCount(t *testing.T) {
	tests := []struct {
		name   string
		n1, n2 func(w *vip.World, m *vip.Member) // n1 has no unit, n2 has two
		want   string
	}{
		{name: "both well: the fewest units", want: "n1"},
		{name: "one restart is none", n1: restarted(1), want: "n1"},
		{name: "restarts", n1: restarted(2), want: "n2"},
		{name: "both restart: the fewest units", n1: restarted(2), n2: restarted(5), want: "n1"},
		{name: "restarts, before stalled", n1: stalled, n2: restarted(6), want: "n2"},
		{name: "restarts, before a faulty data plane", n1: faulty, n2: restarted(6), want: "n2"},
		{name: "not ready", n1: notReady, want: "n2"},
		{name: "not ready, before restarts", n1: restarted(2), n2: notReady, want: "n2"},
		{name: "a faulty data plane", n1: faulty, want: "n2"},
		{name: "both faulty: the fewest units", n1: faulty, n2: faulty, want: "n1"},
		{name: "a faulty data plane, before stalled", n1: stalled, n2: faulty, want: "n2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := held(held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51"), svc("new", "10.77.0.52", younger)), "a", "n2"), "b", "n2")
			w.Members = slices.Delete(w.Members, 2, 3)
			for i, f := range []func(*vip.World, *vip.Member){tt.n1, tt.n2} {
				if f != nil {
					f(&w, &w.Members[i])
				}
			}
			for _, self := range []string{"n1", "n2"} { // both come to the same
				w.Self = self
				got := ""
				for _, o := range Make(rules(), w).Owners {
					if o.Unit == key("kubevip-new") {
						got = o.Node
					}
				}
				if got != tt.want {
					t.Errorf("%s expects it to go to %q, want %s", self, got, tt.want)
				}
			}
		})
	}
}

func restarted(times int) func(*vip.World, *vip.Member) {
	return func(_ *vip.World, m *vip.Member) { m.Info.Restarts = make([]int64, times) }
}

func stalled(_ *vip.World, m *vip.Member) { m.Stalled = true }

func notReady(w *vip.World, m *vip.Member) {
	w.Nodes = allNodes(vip.Node{Name: m.Name, NotReady: true})
}

// faulty says that the data plane of a node has a fault, and has had it for long enough to act if it is this node's.
func faulty(w *vip.World, m *vip.Member) {
	m.Info.DataPlaneFault = "kube-proxy is gone"
	if m.Name == w.Self {
		w.DataPlaneFault = m.Info.DataPlaneFault
	}
}

func unproven(_ *vip.World, m *vip.Member) { m.Info.DataPlaneUnproven = true }

// What n1 holds leaves it for a fault of its data plane, if another node is better.
func TestDataPlaneFault(t *testing.T) {
	const (
		serves = "\nbind 10.77.0.50/32 dev eth0\nstatus a 10.77.0.50(VIP)\na: VIPAnnounced"
		event  = "\nevent a VIPAnnounced"
		keeps  = "kubevip-a -> n1" + serves + event
		gives  = "kubevip-a -> "
	)
	n := func(name string, f func(*vip.World, *vip.Member)) func(*vip.World) {
		return func(w *vip.World) {
			f(w, &w.Members[slices.IndexFunc(w.Members, func(m vip.Member) bool { return m.Name == name })])
		}
	}
	both := func(fs ...func(*vip.World)) func(*vip.World) {
		return func(w *vip.World) {
			for _, f := range fs {
				f(w)
			}
		}
	}
	tests := []struct {
		name   string
		change func(*vip.World)
		want   string
	}{
		{"none", func(*vip.World) {}, keeps},
		{"a fault", n("n1", faulty), gives + "n2" + serves + event},
		{"another node has one", n("n2", faulty), keeps},
		{"the others don't know of it yet", both(n("n1", faulty), func(w *vip.World) { w.DataPlaneFault = "" }), keeps},
		{"all have one", both(n("n1", faulty), n("n2", faulty), n("n3", faulty)), keeps},
		{"the others have just begun", both(n("n1", faulty), n("n2", unproven), n("n3", unproven)), keeps},
		{"one has just begun", both(n("n1", faulty), n("n2", unproven)), gives + "n3" + serves + event},
		{"the only node without one is stalled", both(n("n1", faulty), n("n2", faulty), n("n3", stalled)), keeps},
		{"the only node without one is drained", both(n("n1", faulty), n("n2", faulty), func(w *vip.World) {
			w.Nodes = allNodes(vip.Node{Name: "n3", Drained: true})
		}), keeps},
		{"the only node without one restarts and is not ready", both(n("n1", faulty), n("n2", faulty), n("n3", restarted(3)), n("n3", notReady)), gives + "n3" + serves + event},
		{"a renewal is late", both(n("n1", faulty), func(w *vip.World) { w.Tenure.RenewalLateSince = w.Now.Add(-time.Second) }), "kubevip-a -> n1" + serves},
		{"not ready alone", n("n1", notReady), keeps},
		{"restarts alone", n("n1", restarted(6)), keeps},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := bind(rules(), held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1"))
			w.Members[2].Info = info(true)
			tt.change(&w)
			diff(t, summary(Make(rules(), w)), tt.want)
		})
	}
}
