package lab

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const tick = 20 * time.Millisecond

var epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// targetOfRounds makes a target that was asked every tick, and answered 1 ms later by the
// hosts in the round's letters: "a", "ab" (b 2 ms later), "-" for nobody.
func targetOfRounds(s string) *target {
	t := &target{addr: netip.MustParseAddr("10.77.0.50")}
	for i, who := range strings.Fields(s) {
		at := epoch.Add(time.Duration(i) * tick)
		t.requested = append(t.requested, at)
		for j, h := range who {
			if h != '-' {
				t.answers = append(t.answers, answer{at.Add(time.Duration(j+1) * time.Millisecond), string(h)})
			}
		}
	}
	return t
}

func TestStayed(t *testing.T) {
	for rounds, want := range map[string]bool{
		"a a a": true, "a - a - a": true, "a a -": true, "- a": true, "aa a": true, // silences of 21 ms at most
		"a - - a": false, "a b": false, "a - b": false, "a ab a": false, "- -": false,
	} {
		target := targetOfRounds(rounds)
		if got := target.report(epoch, epoch.Add(time.Duration(len(target.requested))*tick), tick).Stayed(21 * time.Millisecond); got != want {
			t.Errorf("%q: %v, want %v", rounds, got, want)
		}
	}
}

func TestAddrReport(t *testing.T) {
	const msec = time.Millisecond
	tests := []struct {
		name     string
		rounds   string
		want     AddrReport // but for Addr and Timeline
		timeline string     // from, in ms, and hosts
	}{
		{"one owner", "a a a a", AddrReport{Rounds: 4, First: epoch.Add(msec)}, "1:a"},
		{"never answered", "- - -", AddrReport{Rounds: 3, Unanswered: 3, LongestSilence: 60 * msec, TotalSilence: 60 * msec}, "0:"},
		{"clean change", "a a b b", AddrReport{Rounds: 4, First: epoch.Add(msec)}, "1:a 41:b"},
		{"gap", "a - - b", AddrReport{Rounds: 4, Unanswered: 2, First: epoch.Add(msec),
			LongestSilence: 41 * msec, TotalSilence: 41 * msec}, "1:a 20: 61:b"},
		{"two gaps", "a - a - - a", AddrReport{Rounds: 6, Unanswered: 3, First: epoch.Add(msec),
			LongestSilence: 41 * msec, TotalSilence: 62 * msec}, "1:a 20: 41:a 60: 101:a"},
		{"silent at last", "a a - -", AddrReport{Rounds: 4, Unanswered: 2, First: epoch.Add(msec),
			LongestSilence: 40 * msec, TotalSilence: 40 * msec}, "1:a 40:"},
		{"silent at first", "- - a", AddrReport{Rounds: 3, Unanswered: 2, First: epoch.Add(41 * msec),
			LongestSilence: 41 * msec, TotalSilence: 41 * msec}, "0: 41:a"},
		{"make before break", "a ab ab b", AddrReport{Rounds: 4, First: epoch.Add(msec),
			LongestDouble: 40 * msec, TotalDouble: 40 * msec}, "1:a 21:a,b 61:b"},
		{"two at the end", "a ab", AddrReport{Rounds: 2, First: epoch.Add(msec),
			LongestDouble: 20 * msec, TotalDouble: 20 * msec}, "1:a 21:a,b"},
		{"a host that answers twice is one", "aa aa", AddrReport{Rounds: 2, First: epoch.Add(msec)}, "1:a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			target := targetOfRounds(tt.rounds)
			got := target.report(epoch, epoch.Add(time.Duration(len(target.requested))*tick), tick)
			var timeline []string
			for i, s := range got.Timeline {
				timeline = append(timeline, strings.TrimSuffix(ms(s.From.Sub(epoch)), "ms")+":"+strings.Join(s.Hosts, ","))
				if i > 0 && !got.Timeline[i-1].To.Equal(s.From) {
					t.Errorf("span %d begins at %v, the one before ended at %v", i, s.From, got.Timeline[i-1].To)
				}
			}
			if d := cmp.Diff(tt.timeline, strings.Join(timeline, " ")); d != "" {
				t.Errorf("timeline (-want +got):\n%s", d)
			}
			got.Timeline, got.Addr = nil, netip.Addr{}
			if d := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Errorf("report (-want +got):\n%s", d)
			}
		})
	}
}

func TestAddrReportNeverAsked(t *testing.T) {
	got := (&target{}).report(epoch, epoch.Add(time.Second), tick)
	if got.LongestSilence != time.Second || got.TotalSilence != time.Second {
		t.Errorf("an address that could not be asked for counts as silent for %v, want all the time", got.LongestSilence)
	}
}

// An answer that comes after the next question belongs to that: the first
// question was unanswered for so long.
func TestAddrReportLateAnswer(t *testing.T) {
	target := targetOfRounds("a - a")
	target.answers = append(target.answers, answer{epoch.Add(2*tick + time.Microsecond), "a"})
	got := target.report(epoch, epoch.Add(3*tick), tick)
	if got.Unanswered != 1 || got.LongestSilence != tick+time.Microsecond {
		t.Errorf("got %d unanswered, longest silence %v; want 1, %v", got.Unanswered, got.LongestSilence, tick+time.Microsecond)
	}
}

// After the last question nobody was asked, however late the end comes: this process may have got no CPU.
func TestAddrReportLateEnd(t *testing.T) {
	if got := targetOfRounds("a a -").report(epoch, epoch.Add(time.Second), tick); got.LongestSilence != tick {
		t.Errorf("silent for %v, want %v", got.LongestSilence, tick)
	}
}

// This process got no CPU after an unanswered question: nobody knows what was meanwhile.
func TestAddrReportStalled(t *testing.T) {
	target := targetOfRounds("a - a")
	for i := range target.requested[2:] {
		target.requested[2+i] = target.requested[2+i].Add(10 * tick)
	}
	target.answers[len(target.answers)-1].at = target.requested[2].Add(time.Microsecond)
	got := target.report(epoch, epoch.Add(13*tick), tick)
	if want := 3*tick/2 + time.Microsecond; got.LongestSilence != want || got.TotalSilence != want {
		t.Errorf("silent for %v, %v in all, want %v", got.LongestSilence, got.TotalSilence, want)
	}
}

func TestWhoHasReportString(t *testing.T) {
	r := WhoHasReport{Every: tick, Began: epoch, Ended: epoch.Add(4 * tick), Err: errors.New("no link")}
	r.Addrs = []AddrReport{targetOfRounds("a - ab b").report(r.Began, r.Ended, tick)}
	want := `who has, every 20ms for 80ms
  FAILED: no link
  10.77.0.50: 4 rounds, 1 unanswered; silent 21ms, longest 21ms; two answering 20ms, longest 20ms
       +0.001s  19ms      a
       +0.020s  21ms      nobody
       +0.041s  20ms      a and b
       +0.061s  19ms      b
`
	if d := cmp.Diff(want, r.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for i := range 20 {
		a := targetOfRounds("a - ab b").report(r.Began, r.Ended, tick)
		a.LongestSilence = time.Duration(i) * time.Second
		r.Addrs = append(r.Addrs, a)
	}
	if s := r.String(); !strings.Contains(s, "10 of 21") || !strings.Contains(s, "longest 10000ms") || strings.Contains(s, "longest 9000ms") {
		t.Errorf("want the 10 worst of 21, got\n%s", s)
	}
	if got := r.Addr(netip.MustParseAddr("10.77.0.99")); got.Rounds != 0 {
		t.Errorf("report of an address that was not asked for: %+v", got)
	}
}

func TestSummarize(t *testing.T) {
	client := netip.MustParseAddr("10.77.0.100")
	var attempts []Attempt
	for i := range 100 {
		a := Attempt{Began: epoch.Add(time.Duration(i) * 10 * time.Millisecond), Latency: time.Duration(i+1) * time.Millisecond,
			Pod: "web", Client: client}
		if i >= 40 && i < 60 {
			a.Err, a.Latency = errors.New("i/o timeout"), 2*time.Second
		}
		attempts = append(attempts, a)
	}
	got := ConnectReport{To: "10.77.0.50:80", Every: 10 * time.Millisecond, Began: epoch, Ended: epoch.Add(time.Second)}
	none, stalled := got, got
	got.summarize(attempts, nil)
	if got.Attempts != 100 || len(got.Failures) != 20 || got.Pods["web"] != 80 || got.Clients[client] != 80 {
		t.Errorf("got %d attempts, %d failures, pods %v, clients %v", got.Attempts, len(got.Failures), got.Pods, got.Clients)
	}
	if got.P50 != 61*time.Millisecond || got.P99 != 100*time.Millisecond || got.Max != 100*time.Millisecond {
		t.Errorf("p50 %v, p99 %v, max %v; want 61ms, 100ms, 100ms", got.P50, got.P99, got.Max)
	}
	// Attempt 39 ended at 430 ms, attempt 60 at 661 ms.
	if want := 231 * time.Millisecond; got.Outage != want {
		t.Errorf("outage = %v, want %v", got.Outage, want)
	}
	s := got.String()
	for _, want := range []string{"100 attempts, 20 failures, p50 61ms, p99 100ms, max 100ms, longest without a success 231ms",
		"80 answered by web", "80 seen as 10.77.0.100", "+0.400s  after 2000ms: i/o timeout", "and 10 failures more"} {
		if !strings.Contains(s, want) {
			t.Errorf("the report lacks %q:\n%s", want, s)
		}
	}
	none.summarize(attempts[40:60], nil)
	if none.Outage != time.Second || none.P50 != 0 {
		t.Errorf("without a success: outage %v, p50 %v; want 1s, 0", none.Outage, none.P50)
	}
	// Of the outage this process slept through 30 ms (20 ms of the second stall, and the third).
	at := func(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }
	stalled.summarize(attempts, []Stall{{at(100), at(110)}, {at(420), at(450)}, {at(651), at(661)}})
	if stalled.Outage != 201*time.Millisecond || stalled.Stalled != 50*time.Millisecond {
		t.Errorf("outage %v, stalled %v; want 201ms, 50ms", stalled.Outage, stalled.Stalled)
	}
}

func TestInstants(t *testing.T) {
	at := func(ms, lasted int) Attempt {
		return Attempt{Began: epoch.Add(time.Duration(ms) * time.Millisecond), Latency: time.Duration(lasted) * time.Millisecond}
	}
	for want, failures := range [][]Attempt{
		{},
		{at(0, 2000), at(20, 1000), at(400, 50)}, // all were under way at 400 ms
		{at(0, 2000), at(20, 30), at(400, 50)},
		{at(0, 10), at(20, 10), at(40, 10)},
	} {
		if got := (&ConnectReport{Failures: failures}).Instants(); got != want {
			t.Errorf("%v: %d instants, want %d", failures, got, want)
		}
	}
}

func TestAddrReportOwners(t *testing.T) {
	for rounds, want := range map[string]string{
		"a - a":     "a", // a silence is no change of owner
		"a ab b":    "a b",
		"a - b - a": "a b a",
		"- -":       "",
	} {
		r := targetOfRounds(rounds)
		if got := strings.Join(r.report(epoch, epoch.Add(time.Minute), tick).Owners(), " "); got != want {
			t.Errorf("%q: got %q, want %q", rounds, got, want)
		}
	}
}
