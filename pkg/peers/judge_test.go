package peers

import (
	"net/netip"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A rig is a table and one other node n1, on a clock of its own.
type rig struct {
	*table
	t      *testing.T
	now    time.Time
	number uint64
}

var there = netip.MustParseAddrPort("10.0.0.1:7947")

// newRig is a node that has met n1, whose address it has asked for.
func newRig(t *testing.T) *rig {
	r := &rig{table: newTable("n0"), t: t, now: time.Unix(1e9, 0)}
	r.know(map[string]netip.AddrPort{"n1": there}, r.now)
	r.late(r.now)
	r.pass(time.Second, func() { r.hear(bootID{1}) })
	if r.state() != vip.Alive {
		t.Fatalf("n1 is %v at first", r.state())
	}
	r.askedAlive(r.peers["n1"], outcome{answers: true, connected: true}, r.now)
	return r
}

func (r *rig) state() vip.Liveness { return r.peers["n1"].state }

// hear has n1 say what it says each period: that it hears the newest of this node.
func (r *rig) hear(boot bootID) bool {
	m := r.message(uint32(r.number)+1, false, r.now)
	r.number++
	return r.heard(&message{from: "n1", period: minPeriod, echoes: []echo{{node: r.id, hears: true, alive: true, token: m.token}}}, boot, r.number, there, r.now)
}

// pass lets time pass by ticks, with f each period.
func (r *rig) pass(d time.Duration, f func()) {
	for end := r.now.Add(d); r.now.Before(end); r.now = r.now.Add(tick) {
		r.look(r.now)
		if f != nil && r.now.UnixNano()%int64(minPeriod) == 0 {
			f()
		}
	}
}

// ask has this node ask after n1 now, which takes d.
func (r *rig) ask(found outcome, d time.Duration) {
	began := r.now
	r.pass(d, nil)
	r.asked(r.peers["n1"], found, began, r.now)
}

func (r *rig) want(state vip.Liveness) {
	r.t.Helper()
	if r.state() != state {
		r.t.Errorf("n1 is %v (%s), want %v", r.state(), r.peers["n1"].why, state)
	}
}

func TestSilenceAloneIsNoDeath(t *testing.T) {
	r := newRig(t)
	r.pass(giveUp-time.Second, nil)
	r.want(vip.Alive)
	r.pass(2*time.Second, nil)
	r.want(vip.Suspect)
}

func TestLate(t *testing.T) {
	r := newRig(t)
	late := func() bool { return r.sights(r.now)["n1"].Overdue }
	r.hear(bootID{1})
	r.pass(2*minPeriod, nil)
	if late() {
		t.Error("late after two periods")
	}
	r.pass(tick, nil)
	if !late() {
		t.Error("not late after more than two periods")
	}
	r.hear(bootID{1})
	if late() {
		t.Error("late, though it was heard")
	}
	r.ask(outcome{refused: true}, tick)
	r.pass(3*minPeriod, nil)
	r.ask(outcome{refused: true}, tick)
	if r.want(vip.Dead); late() {
		t.Error("late when it is dead")
	}
}

// Who is well need not be looked at often; who is late must be, before the silence counts.
func TestRest(t *testing.T) {
	r := newRig(t)
	rest := func(want time.Duration, when string) {
		t.Helper()
		if r.look(r.now); r.rest != want {
			t.Errorf("%s: it is looked at again after %v, want %v", when, r.rest, want)
		}
	}
	r.peers["n1"].asking = false // newRig has taken over the outcome
	r.hear(bootID{1})
	rest(calm, "just heard")
	r.now = r.now.Add(minPeriod)
	rest(calm, "a period later")
	r.now = r.now.Add(tick)
	rest(tick, "late")
	r.hear(bootID{1})
	rest(calm, "heard again")
}

func TestOutcomes(t *testing.T) {
	for name, tt := range map[string]struct {
		found outcome
		want  vip.Liveness
	}{
		"nobody":             {outcome{}, vip.Dead},
		"refused":            {outcome{answers: true, refused: true}, vip.Dead},
		"answers":            {outcome{answers: true}, vip.Alive},
		"connected, no ARP":  {outcome{connected: true}, vip.Alive},
		"answered, and open": {outcome{answers: true, connected: true}, vip.Alive},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.pass(400*time.Millisecond, nil)
			r.ask(tt.found, 150*time.Millisecond)
			r.want(tt.want)
			if tt.want == vip.Dead {
				r.hear(bootID{1})
				r.want(vip.Alive)
				return
			}
			r.pass(muteAfter, func() { r.asked(r.peers["n1"], tt.found, r.now, r.now) })
			r.want(vip.Suspect)
		})
	}
}

// TestHeldUp: what a process found that did not get to run proves nothing.
func TestHeldUp(t *testing.T) {
	r := newRig(t)
	r.pass(400*time.Millisecond, nil)
	began := r.now
	r.now = r.now.Add(lapse + 2*tick) // no tick meanwhile
	r.asked(r.peers["n1"], outcome{}, began, r.now)
	r.want(vip.Alive)
	r.look(r.now)
	if ask, _ := r.look(r.now); len(ask) != 0 {
		t.Error("it asks at once")
	}
	r.pass(minPeriod, nil)
	r.asked(r.peers["n1"], outcome{}, began, r.now)
	r.want(vip.Alive)
	r.pass(minPeriod, nil)
	r.ask(outcome{}, 150*time.Millisecond)
	r.want(vip.Dead)
}

// TestNeverAnswered: who did not answer while it was alive is not dead for not answering.
func TestNeverAnswered(t *testing.T) {
	r := newRig(t)
	r.peers["n1"].answered = false
	r.pass(400*time.Millisecond, nil)
	for range 30 {
		r.ask(outcome{}, 150*time.Millisecond)
	}
	r.want(vip.Suspect)
}

func TestReplay(t *testing.T) {
	r := newRig(t)
	old := &message{from: "n1", period: minPeriod, echoes: []echo{{node: r.id, hears: true, token: uint32(r.number)}}}
	if r.heard(old, bootID{1}, r.number, there, r.now) {
		t.Error("the same packet again")
	}
	if r.heard(&message{from: "n1"}, bootID{9}, 1e6, there, r.now) {
		t.Error("a packet of another process that proves nothing")
	}
	r.pass(2*tokenTime, nil)
	for range 3 {
		r.ask(outcome{}, 150*time.Millisecond)
	}
	r.want(vip.Dead)
	for i := range uint64(10) {
		r.heard(old, bootID{9}, 1e6+i, there, r.now)
		r.pass(minPeriod, nil)
	}
	r.want(vip.Dead)
	if r.hear(bootID{2}); r.state() != vip.Alive {
		t.Errorf("a new process is %v", r.state())
	}
	if r.heard(&message{from: "n0"}, bootID{3}, 1, there, r.now) {
		t.Error("it hears itself")
	}
}

func TestPeriods(t *testing.T) {
	for n, want := range map[int]time.Duration{2: 100 * time.Millisecond, 39: 100 * time.Millisecond, 99: 250 * time.Millisecond, 5000: 2 * time.Second} {
		r := newTable("n0")
		nodes := make(map[string]netip.AddrPort)
		for i := range n {
			nodes[string(rune('a'+i))] = there
		}
		r.know(nodes, time.Unix(1e9, 0))
		if r.period != want {
			t.Errorf("%d others: got %v, want %v", n, r.period, want)
		}
	}
}
