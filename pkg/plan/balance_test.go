package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestBalance: the owner of the control plane's VIP, and no other node, spreads connections over the API servers that are ready, without
// those of nodes that are dead, and without those of nodes that are drained or stop unless there are no others.
func TestBalance(t *testing.T) {
	r := controlPlaneRules()
	r.ControlPlane.BalancedPort = 8443
	off := controlPlaneRules()
	drained := func(names ...string) func(*vip.World) {
		return func(w *vip.World) {
			w.Nodes = allNodes()
			for i := range w.Nodes {
				w.Nodes[i].Drained = slices.Contains(names, w.Nodes[i].Name)
			}
		}
	}
	dead := func(w *vip.World) { memberNamed(w, "n3").Alive = false }
	unproven := func(w *vip.World) { memberNamed(w, "n3").Unproven = true }
	down := func(w *vip.World) { memberNamed(w, "n3").Info.Links[0].Up = false }
	unheard := func(a string) func(*vip.World) {
		return func(w *vip.World) {
			for i := range w.Members {
				w.Members[i].Info.Unanswered = []netip.Addr{addr(a)}
			}
		}
	}
	handedOver := func(w *vip.World) {
		w.HandingOver = map[vip.Key]vip.HandingOver{cpLease: {Successor: "n2", Since: w.Now, Until: w.Now.Add(time.Second)}}
	}
	tests := []struct {
		name  string
		rules Rules
		w     vip.World
		want  string
	}{
		{"all are ready", r, controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n1"), "10.77.0.11 10.77.0.12 10.77.0.13"},
		{"another node's VIP", r, controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n2"), ""},
		{"off", off, controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n1"), ""},
		{"one is not ready", r, controlPlaneHeld(controlPlaneWorld("n1 n3"), "n1"), "10.77.0.11 10.77.0.13"},
		{"the owner's is not ready", r, controlPlaneHeld(controlPlaneWorld("n2 n3"), "n1"), "10.77.0.12 10.77.0.13"},
		{"one is dead", r, with(controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n1"), dead), "10.77.0.11 10.77.0.12"},
		{"one is drained", r, with(controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n1"), drained("n2")), "10.77.0.11 10.77.0.13"},
		{"one is shut down", r, with(controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n2"), handedOver, shuttingDown), "10.77.0.12 10.77.0.13"},
		{"all are drained", r, with(controlPlaneHeld(controlPlaneWorld("n1 n2"), "n1"), drained("n1", "n2")), "10.77.0.11 10.77.0.12"},
		{"of one no sign of life was seen, only its node lease", r, with(controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n1"), unproven), "10.77.0.11 10.77.0.12"},
		{"its link is down", r, with(controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n1"), down), "10.77.0.11 10.77.0.12"},
		{"the others get no answer from one", r, with(controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n1"), unheard("10.77.0.13")), "10.77.0.11 10.77.0.12"},
		{"the others get no answer from the owner, which reaches its own", r, with(controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n1"), unheard("10.77.0.11")), "10.77.0.11 10.77.0.12 10.77.0.13"},
		{"it is handed over, and still answered for", r, with(controlPlaneHeld(controlPlaneWorld("n1 n2 n3"), "n2"), handedOver), "10.77.0.11 10.77.0.12 10.77.0.13"},
		{"none is ready", r, controlPlaneHeld(controlPlaneWorld(""), "n1"), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, b := range Make(tt.rules, tt.w).Balanced {
				if b.Addr == addr("10.77.0.50") {
					got = append(got, b.To.Addr().String())
				} else if b.Addr != addr("fd77::50") || !b.To.Addr().Is6() {
					t.Errorf("%+v", b)
				}
				check.Equal(t, b.Port, 8443, "the port of %+v", b)
				check.Equal(t, b.To.Port(), 6443, "the API server's port of %+v", b)
			}
			check.Equal(t, strings.Join(got, " "), tt.want, "the API servers")
		})
	}
}
