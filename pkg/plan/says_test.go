package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
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
	if got := Make(rules(), w).Verdicts[0].Message; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
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

// TestHandOverToNodesSeenAlive: a node that stops soon after it has begun hands nothing to one of which it knows a node lease only, which
// may be that of a node that died before.
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
			for _, i := range Make(rules(), w).LeaseIntents {
				got += i.Successor
			}
			if !strings.Contains(tt.want, got) || tt.want != "" && got == "" {
				t.Errorf("%s with %v unproven: handed to %q, want one of %q", name, tt.unproven, got, tt.want)
			}
		}
	}
}
