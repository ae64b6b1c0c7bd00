package history

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

	since    time.Duration // when the holder acquired it, after noon; 0: that is not known
	isolated bool          // this node reaches too few others on the VIPs' link
	silent   bool          // no cause is in the table, and n2 does not answer on the link
}

func (s step) record(h *History) {
	k := vip.Key{Namespace: "default", Name: "a"}
	name, void := strings.CutPrefix(s.holder, "!")
	w := vip.World{Synced: true, Self: "n1", Now: noon.Add(s.at), Claims: map[vip.Key]vip.Claim{}, Members: []vip.Member{{Name: "n1"}, {Name: "n2", HeardAt: noon.Add(s.heard), Gone: s.silent}}}
	w.Members[0].Info.Isolated, w.Members[1].Alive = s.isolated, !s.fenced
	var p vip.Plan
	if s.holder != "gone" {
		p.Verdicts = []vip.Verdict{{Service: k, Lease: k, Reason: s.reason, Message: "no endpoint", AnnouncedHere: s.here}}
		if name != "" {
			p.Verdicts[0].Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.50")}
		}
		c := vip.Claim{Holder: name, Valid: !void && name != "", Cause: "n2: it is dead"}
		if s.silent {
			c.Cause = ""
		}
		if s.since > 0 {
			c.AcquiredAt = noon.Add(s.since)
		}
		w.Claims[k] = c
	}
	h.Record(w, p)
}

func TestMoves(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name  string
		steps []step
		want  string
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
		{"withdrawn, and back", []step{{holder: "n2"}, {at: s, reason: vip.NoEndpoints}, {at: 2 * s, reason: vip.NoEndpoints}, {at: 3 * s, holder: "n2"}}, "n2> no endpoint\n>n2 n2: it is dead\n"},
		{"its node dies, and no other may have it for a while", []step{
			{holder: "n2"}, {at: s, holder: "!n2", reason: vip.VIPClaiming, heard: 500 * time.Millisecond}, {at: 2 * s, holder: "!n2", reason: vip.NoEligibleNode, heard: 500 * time.Millisecond},
			{at: 9 * s, holder: "n1", heard: 500 * time.Millisecond}, {at: 9 * s, holder: "n1", here: true, heard: 500 * time.Millisecond},
		}, "n2> no endpoint\n>n1 n2: it is dead 8.5s\n"},
		{"withdrawn by its node, and here then", []step{{holder: "n2"}, {at: s, reason: vip.NoEndpoints}, {at: 9 * s, holder: "n1"}, {at: 9 * s, holder: "n1", here: true}}, "n2> no endpoint\n>n1 n2: it is dead\n"},
		{"new", []step{{holder: "gone"}, {at: s, reason: vip.VIPClaiming}, {at: s, holder: "n1"}, {at: s, holder: "n1", here: true}}, ">n1 n2: it is dead\n"},
		{"deleted", []step{{holder: "n1", here: true}, {at: s, holder: "gone"}}, "n1> the Service was deleted, or is no longer of type LoadBalancer\n"},
		{"released by a node that is cut off the link", []step{{holder: "n2"}, {at: s, reason: vip.VIPClaiming}, {at: s, holder: "n1", silent: true}, {at: s, holder: "n1", here: true, silent: true}},
			"n2>n1 n2: neither its Herald nor its kernel answers on the VIPs' link 1s\n"},
		{"this node is cut off the link, and another takes over", []step{{holder: "n1", here: true}, {at: s, reason: vip.NoEligibleNode, isolated: true}, {at: 2 * s, holder: "n2", isolated: true}}, "n1>n2 n2: it is dead\n"},
		{"this node is cut off the link, and nobody takes over", []step{{holder: "n1", here: true}, {at: s, reason: vip.NoEligibleNode, isolated: true}, {at: 5 * s, reason: vip.NoEligibleNode, isolated: true},
			{at: 6 * s, reason: vip.NoEligibleNode, isolated: true}, {at: 7 * s, reason: vip.NoEligibleNode, isolated: true}}, "n1> no endpoint\n"},
		{"the same node again", []step{{holder: "n1", here: true}, {at: s, holder: "!n1", reason: vip.VIPClaiming}, {at: 2 * s, holder: "n1"}}, ""},
	}
	for _, tt := range tests {
		var log bytes.Buffer
		h := New(slog.New(slog.NewTextHandler(&log, nil)))
		for _, x := range tt.steps {
			x.record(h)
		}
		got, lines := "", 0
		for _, m := range h.Moves() {
			if len(m.Addresses) != 1 {
				t.Errorf("%s: a move of %v, want one address", tt.name, m.Addresses)
			}
			got += m.From + ">" + m.To + " " + m.Cause
			if m.Outage != nil {
				got += " " + m.Outage.String()
			}
			got += "\n"
			if m.From == "n1" || m.To == "n1" {
				lines++
			}
		}
		if got != tt.want {
			t.Errorf("%s: got\n%swant\n%s", tt.name, got, tt.want)
		}
		if n := strings.Count(log.String(), "service=default/a"); n != lines {
			t.Errorf("%s: %d lines in the log, want %d:\n%s", tt.name, n, lines, &log)
		}
	}
}

// The latest moves are kept, and every outage is counted.
func TestMovesAreBounded(t *testing.T) {
	h := New(slog.New(slog.DiscardHandler))
	step{holder: "n2"}.record(h)
	for i := range maxMoves + 10 {
		at := time.Duration(i) * time.Minute
		step{at: at, holder: "n1", here: true, heard: at}.record(h)
		step{at: at, holder: "n2", heard: at}.record(h)
	}
	all := h.Moves()
	if len(all) != maxMoves || all[maxMoves-1].To != "n2" || all[0].At.Before(noon.Add(time.Minute)) {
		t.Errorf("%d moves, from %v to %v", len(all), all[0], all[len(all)-1])
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(h.Collectors()...)
	families, err := registry.Gather()
	if err != nil || len(families) != 2 || families[1].GetMetric()[0].GetHistogram().GetBucket()[0].GetCumulativeCount() != maxMoves+10 {
		t.Errorf("%v: %v, want %d outages of 0 s", err, families, maxMoves+10)
	}
}

// What a node learns late, since it did not reach the API server, was when the new owner acquired it; the clock of that counts only if it is not ahead.
func TestMovesLearnedLate(t *testing.T) {
	for since, want := range map[time.Duration]time.Duration{10 * time.Second: 10 * time.Second, time.Minute: 30 * time.Second, 0: 30 * time.Second} {
		h := New(slog.New(slog.DiscardHandler))
		step{holder: "n1", here: true}.record(h)
		step{at: 30 * time.Second, holder: "n2", since: since}.record(h)
		if all := h.Moves(); len(all) != 1 || !all[0].At.Equal(noon.Add(want)) {
			t.Errorf("acquired at %v, seen after 30 s: %+v, want %v", since, all, want)
		}
	}
}

// TestCameHere: a Service counts when it comes to this node from another, or back after nobody had it; not when it is new. Its series goes with it.
func TestCameHere(t *testing.T) {
	h := New(slog.New(slog.DiscardHandler))
	count := func() (n float64) {
		registry := prometheus.NewRegistry()
		registry.MustRegister(h.came)
		for _, f := range check.Value(registry.Gather())(t) {
			n += f.GetMetric()[0].GetCounter().GetValue()
		}
		return n
	}
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
		if got := count(); got != x.want {
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

// Two thousand moves of one namespace make nobody forget those of another.
func TestMovesOfOtherNamespaces(t *testing.T) {
	h := New(slog.New(slog.DiscardHandler))
	other, flapping := vip.Key{Namespace: "shop", Name: "a"}, vip.Key{Namespace: "team", Name: "a"}
	claims := map[vip.Key]vip.Claim{other: {Holder: "n2", Valid: true}, flapping: {Holder: "n2", Valid: true}}
	p := vip.Plan{Verdicts: []vip.Verdict{{Service: other, Lease: other}, {Service: flapping, Lease: flapping}}}
	w := vip.World{Synced: true, Self: "n1", Now: noon, Claims: claims}
	h.Record(w, p)
	for i := range 2000 {
		w.Now = w.Now.Add(time.Second)
		claims[flapping] = vip.Claim{Holder: []string{"n3", "n2"}[i%2], Valid: true}
		if i == 3 {
			claims[other] = vip.Claim{Holder: "n3", Valid: true}
		}
		h.Record(w, p)
	}
	all := h.Moves()
	if len(all) != maxMoves || all[0].Service != other || all[1].Service != flapping || !all[1].At.After(all[0].At) || !all[maxMoves-1].At.Equal(w.Now) {
		t.Errorf("%d moves are remembered, the first %v", len(all), all[0])
	}
}
