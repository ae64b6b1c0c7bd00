package plan

import (
	"slices"
	"testing"

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
		{name: "not ready", n1: notReady, want: "n2"},
		{name: "not ready, before restarts", n1: restarted(2), n2: notReady, want: "n2"},
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
				for _, x := range Make(rules(), w).LeaseIntents {
					if x.Lease == key("kubevip-new") {
						if got = x.ExpectedHolder; x.Action == vip.Acquire {
							got = self
						}
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
