package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestReasonsAreGrouped: a reason that holds of several nodes is said once, and where the endpoints are.
func TestReasonsAreGrouped(t *testing.T) {
	w := world(svc("a", "10.77.0.200", local("w1")))
	w.Nodes = allNodes(vip.Node{Name: "n2", Drained: true})
	for i := 4; i <= 9; i++ {
		m := w.Members[0]
		m.Name = fmt.Sprintf("n%d", i)
		w.Members, w.Nodes = append(w.Members, m), append(w.Nodes, vip.Node{Name: m.Name})
	}
	want := "no node may announce it at present: n1, n3, n4, n5, n6, and 3 more: no ready endpoint there (externalTrafficPolicy Local) (there is one on w1, where no Herald runs); " +
		"n2: it is drained (herald undrain n2 ends that)"
	check.Equal(t, Make(rules(), w).Verdicts[0].Message, want, "the message")
}

// TestHeraldOfAnEndpointsNode: of a node with an endpoint, whose node lease nobody renews, is said why it is not alive: its Herald may run.
func TestHeraldOfAnEndpointsNode(t *testing.T) {
	for want, change := range map[string]func(*vip.World){
		"where no Herald runs":      func(w *vip.World) { w.Members = w.Members[:2] },
		"where Herald is not alive": func(w *vip.World) { w.Members[2].Alive, w.Members[2].APIUnreached = false, true },
	} {
		w := world(svc("a", "10.77.0.200", local("n3")))
		change(&w)
		check.Contains(t, Make(rules(), w).Verdicts[0].Message, "(there is one on n3, "+want+")")
	}
}

// TestEveryMoveIsAnEvent: also if the lease was made again meanwhile, so that its transitions are what they were.
func TestEveryMoveIsAnEvent(t *testing.T) {
	event := func(acquired time.Time) vip.Event {
		w := held(world(svc("a", "10.77.0.200")), "a", "n1")
		w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n1", Valid: true, AcquiredAt: acquired}
		return Make(rules(), bind(rules(), w)).Events[0]
	}
	first, again, later := event(epoch), event(epoch), event(epoch.Add(time.Minute))
	if first != again || first == later || first.Reason != vip.VIPAnnounced {
		t.Errorf("%+v\n%+v\n%+v", first, again, later)
	}
}

// TestEventsWhileARenewalIsLate: none is known, which is not that none holds, or all would be written again when the API server is back.
func TestEventsWhileARenewalIsLate(t *testing.T) {
	w := bind(rules(), held(world(svc("a", "10.77.0.200")), "a", "n1"))
	check.Equal(t, len(Make(rules(), w).Events), 1, "Events")
	check.Equal(t, Make(rules(), w).EventsPending, false, "Events are pending")
	w.Tenure.RenewalLateSince = w.Now.Add(-time.Second)
	check.Equal(t, len(Make(rules(), w).Events), 0, "Events while a renewal is late")
	check.Equal(t, Make(rules(), w).EventsPending, true, "Events are pending then")
}

// TestHandOverToNodesSeenAlive: a node that stops soon after it has begun hands nothing to one of which it knows a
// node lease only, which may be that of a node that died before.
func TestHandOverToNodesSeenAlive(t *testing.T) {
	for _, tt := range []struct {
		unproven []int // of n1, n2, n3
		want     string
	}{{nil, "n2 n3"}, {[]int{1}, "n3"}, {[]int{2}, "n2"}, {[]int{1, 2}, ""}} {
		for _, name := range []string{"a", "b", "c", "d"} {
			w := held(world(svc(name, "10.77.0.200")), name, "n1")
			w.Stopping = true
			for _, i := range tt.unproven {
				w.Members[i].Unproven = true
			}
			got := ""
			for _, o := range Make(rules(), w).Owners {
				if o.Node != w.Self {
					got += o.Node
				}
			}
			if !strings.Contains(tt.want, got) || tt.want != "" && got == "" {
				t.Errorf("%s with %v unproven: handed to %q, want one of %q", name, tt.unproven, got, tt.want)
			}
		}
	}
}
