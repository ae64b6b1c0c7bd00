package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// heldByN1 is n Services, all held by n1, and the other nodes stable.
func heldByN1(n int) vip.World {
	var all []vip.Service
	for i := range n {
		all = append(all, svc(fmt.Sprintf("s%d", i), fmt.Sprintf("10.77.0.%d", 50+i), func(s *vip.Service) { s.Created = epoch.Add(time.Duration(i) * time.Second) }))
	}
	w := world(all...)
	for _, s := range all {
		w = held(w, s.Key.Name, "n1")
	}
	for i := range w.Members {
		w.Members[i].Stable = true
	}
	return w
}

// handOvers is what the plan gives away.
func handOvers(p vip.Plan) string {
	var all []string
	for _, o := range p.Owners {
		if o.Node != "" && o.Node != "n1" && !o.Stays {
			all = append(all, o.Unit.Name+" to "+o.Node)
		}
	}
	return strings.Join(all, ", ")
}

func TestRebalance(t *testing.T) {
	tests := []struct {
		name   string
		n      int
		change func(*Rules, *vip.World)
		want   string
	}{
		{name: "the youngest, one at a time", n: 4, want: "kubevip-s3 to n2"},
		{name: "not without the option", n: 4, change: func(r *Rules, _ *vip.World) { r.Rebalance = false }},
		{name: "a difference of one is none", n: 1},
		{name: "not to a node that came back just now", n: 4, change: func(_ *Rules, w *vip.World) { w.Members[1].Stable = false }, want: "kubevip-s3 to n3"},
		{name: "not to a stalled one", n: 4, change: func(_ *Rules, w *vip.World) { w.Members[1].Stalled, w.Members[2].Stable = true, false }},
		{name: "the next once the last has arrived", n: 4, change: func(_ *Rules, w *vip.World) {
			w.HandingOver[key("kubevip-s3")] = vip.HandingOver{Successor: "n2", Since: w.Now, Until: w.Now.Add(time.Second)}
		}},
		{name: "not while the API server is away", n: 4, change: func(_ *Rules, w *vip.World) { w.Tenure.RenewalLateSince = w.Now }},
		{name: "only where it may be", n: 4, change: func(_ *Rules, w *vip.World) {
			for i := range w.Services {
				w.Services[i].Local, w.Services[i].Endpoints = true, vip.Endpoints{Ready: []string{"n1", "n3"}}
			}
		}, want: "kubevip-s3 to n3"},
		{name: "a drained node hands over all, and evenly", n: 4, change: func(_ *Rules, w *vip.World) {
			w.Nodes = []vip.Node{{Name: "n1", Drained: true}, {Name: "n2"}, {Name: "n3"}}
		}, want: "kubevip-s0 to n3, kubevip-s1 to n2, kubevip-s2 to n2, kubevip-s3 to n3"},
		{name: "to a drained node goes nothing", n: 4, change: func(_ *Rules, w *vip.World) {
			w.Nodes = []vip.Node{{Name: "n1"}, {Name: "n2", Drained: true}, {Name: "n3"}}
		}, want: "kubevip-s3 to n3"},
		{name: "a node that is being shut down hands over all", n: 2, change: func(_ *Rules, w *vip.World) {
			w.Nodes = []vip.Node{{Name: "n1", ShuttingDown: true}, {Name: "n2", ShuttingDown: true}, {Name: "n3"}}
		}, want: "kubevip-s0 to n3, kubevip-s1 to n3"},
		{name: "but not if all are", n: 1, change: func(_ *Rules, w *vip.World) {
			w.Nodes = []vip.Node{{Name: "n1", ShuttingDown: true}, {Name: "n2", ShuttingDown: true}, {Name: "n3", ShuttingDown: true}}
		}},
		{name: "what came from a node that returns goes back", n: 4, change: func(r *Rules, w *vip.World) {
			r.Rebalance = false
			w.Nodes = []vip.Node{{Name: "n1"}, {Name: "n2", ReturnUntil: w.Now.Add(time.Minute)}, {Name: "n3"}}
			for _, name := range []string{"s0", "s2"} {
				c := w.Claims[key("kubevip-"+name)]
				c.PreviousHolder = "n2"
				w.Claims[key("kubevip-"+name)] = c
			}
		}, want: "kubevip-s0 to n2, kubevip-s2 to n2"},
		{name: "until its time is over", n: 4, change: func(r *Rules, w *vip.World) {
			r.Rebalance = false
			w.Nodes = allNodes(vip.Node{Name: "n2", ReturnUntil: w.Now})
			w.Claims[key("kubevip-s0")] = vip.Claim{Holder: "n1", Valid: true, PreviousHolder: "n2"}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, w := rules(), heldByN1(tt.n)
			r.Rebalance = true
			if tt.change != nil {
				tt.change(&r, &w)
			}
			if got := handOvers(Make(r, w)); got != tt.want {
				t.Errorf("gives %q, want %q", got, tt.want)
			}
		})
	}
}
