package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// A step is what one pass sees of the Service a, on the node n1.
type step struct {
	at     time.Duration // after noon
	holder string        // of its claim; with a ! before it the claim is not valid; "gone": there is no such Service
	reason vip.Reason
	here   bool          // this node announces it
	heard  time.Duration // when n2 was last heard, after noon
	fenced bool          // n2 is fenced by then
}

func (s step) record(h *History) {
	k := vip.Key{Namespace: "default", Name: "a"}
	name, void := strings.CutPrefix(s.holder, "!")
	w := vip.World{Synced: true, Self: "n1", Now: noon.Add(s.at), Claims: map[vip.Key]vip.Claim{}, Members: []vip.Member{{Name: "n1", Alive: true}, {Name: "n2", HeardAt: noon.Add(s.heard), Alive: !s.fenced}}}
	var p vip.Plan
	if s.holder != "gone" {
		p.Verdicts = []vip.Verdict{{Service: k, Lease: k, Reason: s.reason, Message: "no endpoint", AnnouncedHere: s.here}}
		w.Claims[k] = vip.Claim{Holder: name, Valid: !void && name != "", Cause: "n2: it is dead"}
	}
	h.Record(w, p)
}

func TestMoves(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name  string
		steps []step
		want  string // what is logged
	}{
		{"what is there at the start is no move", []step{{holder: "n2"}, {at: s, holder: "n2"}}, ""},
		{"a dead node: from when it was last heard to the announcement", []step{
			{holder: "n2"}, {at: s, holder: "!n2", reason: vip.VIPClaiming, heard: 500 * time.Millisecond}, {at: s + 10*time.Millisecond, holder: "n1", heard: 500 * time.Millisecond},
			{at: s + 20*time.Millisecond, holder: "n1", here: true, heard: 500 * time.Millisecond}, {at: 2 * s, holder: "n1", here: true, heard: 2 * s},
		}, "n2>n1 n2: it is dead 520ms\n"},
		{"a dead node whose fence transfers it", []step{
			{holder: "n2"}, {at: s, holder: "n1", fenced: true, heard: 500 * time.Millisecond}, {at: s + 20*time.Millisecond, holder: "n1", fenced: true, here: true, heard: 500 * time.Millisecond},
			{at: 2 * s, holder: "n1", here: true, heard: 2 * s},
		}, "n2>n1 n2: it is dead 520ms\n"},
		{"handed over", []step{{holder: "n2"}, {at: s, holder: "n1", heard: s}, {at: s + time.Millisecond, holder: "n1", here: true, heard: s}}, "n2>n1 n2: it is dead 0s\n"},
		{"handed over by a node whose link went down before", []step{{holder: "n2"}, {at: 3 * s, holder: "n1"}, {at: 3 * s, holder: "n1", here: true}}, "n2>n1 n2: it is dead 3s\n"},
		{"to another node", []step{{holder: "n1", here: true}, {at: s, holder: "n2"}}, "n1>n2 n2: it is dead\n"},
		{"withdrawn elsewhere, and back", []step{{holder: "n2"}, {at: s, reason: vip.NoEndpoints}, {at: 2 * s, reason: vip.NoEndpoints}, {at: 3 * s, holder: "n2"}}, ""},
		{"withdrawn, and back", []step{{holder: "n1"}, {at: s, reason: vip.NoEndpoints}, {at: 2 * s, reason: vip.NoEndpoints}, {at: 3 * s, holder: "n1"}, {at: 3 * s, holder: "n1", here: true}}, "> no endpoint\n>n1 n2: it is dead\n"},
		{"its node dies, and no other may have it for a while", []step{
			{holder: "n2"}, {at: s, holder: "!n2", reason: vip.VIPClaiming, heard: 500 * time.Millisecond}, {at: 2 * s, holder: "!n2", reason: vip.NoEligibleNode, heard: 500 * time.Millisecond},
			{at: 9 * s, holder: "n1", heard: 500 * time.Millisecond}, {at: 9 * s, holder: "n1", here: true, heard: 500 * time.Millisecond},
		}, ">n1 n2: it is dead 8.5s\n"},
		{"withdrawn by its node, and here then", []step{{holder: "n2"}, {at: s, reason: vip.NoEndpoints}, {at: 9 * s, holder: "n1"}, {at: 9 * s, holder: "n1", here: true}}, ">n1 n2: it is dead\n"},
		{"new", []step{{holder: "gone"}, {at: s, reason: vip.VIPClaiming}, {at: s, holder: "n1"}, {at: s, holder: "n1", here: true}}, ">n1 n2: it is dead\n"},
		{"deleted", []step{{holder: "n1", here: true}, {at: s, holder: "gone"}}, "> the Service was deleted, or is no longer of type LoadBalancer\n"},
		{"the same node again", []step{{holder: "n1", here: true}, {at: s, holder: "!n1", reason: vip.VIPClaiming}, {at: 2 * s, holder: "n1"}}, ""},
	}
	for _, tt := range tests {
		var log bytes.Buffer
		h := NewHistory(slog.New(slog.NewJSONHandler(&log, nil)))
		for _, x := range tt.steps {
			x.record(h)
		}
		got, outages := "", 0
		for line := range strings.Lines(log.String()) {
			var m struct {
				From, To, Why, Service string
				Outage                 *time.Duration
			}
			check.OK(t, json.Unmarshal([]byte(line), &m))
			got += m.From + ">" + m.To + " " + m.Why
			if m.Outage != nil {
				got += " " + m.Outage.String()
				outages++
			}
			got += "\n"
			if m.Service != "default/a" {
				t.Errorf("%s: %s", tt.name, line)
			}
		}
		if got != tt.want {
			t.Errorf("%s: got\n%swant\n%s", tt.name, got, tt.want)
		}
		if n := collect(t, h.outage)[0].GetHistogram().GetSampleCount(); n != uint64(outages) {
			t.Errorf("%s: %d outages are counted, want %d", tt.name, n, outages)
		}
	}
}

// TestCameHere: a Service counts when it comes to this node from another, or back after nobody had it; not when it is new. Its series goes with it.
func TestCameHere(t *testing.T) {
	h := NewHistory(slog.New(slog.DiscardHandler))
	const s = time.Second
	step{holder: "gone"}.record(h)
	for i, x := range []struct {
		step
		want float64
	}{
		{step{at: s, reason: vip.VIPClaiming}, 0}, {step{at: s, holder: "n1", here: true}, 0}, {step{at: 2 * s, holder: "n2"}, 0}, {step{at: 3 * s, holder: "n1", here: true}, 1},
		{step{at: 4 * s, reason: vip.NoEndpoints}, 1}, {step{at: 5 * s, holder: "n1", here: true}, 2}, {step{at: 6 * s, holder: "gone"}, 0},
		{step{at: 7 * s, holder: "n1", here: true}, 0},
	} {
		x.record(h)
		if got := check.Metric(t, "", h.came); got != x.want && (got > 0 || x.want > 0) {
			t.Errorf("step %d: %v, want %v", i, got, x.want)
		}
	}
	for i := range maxCounted + 5 {
		h.count(vip.Key{Namespace: "default", Name: fmt.Sprint(i)}, &ownership{})
	}
	if h.counted != maxCounted {
		t.Errorf("%d series, want %d at most", h.counted, maxCounted)
	}
}
