package peers

import (
	"net/netip"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A fixture is a detector and one other node n1, on a clock of its own.
type fixture struct {
	*detector
	t      *testing.T
	now    time.Time
	number uint64
}

var there = netip.MustParseAddrPort("10.0.0.1:7947")

// newFixture is a node that has met n1, whose address it has asked for.
func newFixture(t *testing.T) *fixture {
	r := &fixture{detector: newDetector("n0"), t: t, now: time.Unix(1e9, 0)}
	r.setNodes(map[string]netip.AddrPort{"n1": there}, r.now)
	r.startListening(r.now)
	r.advance(time.Second, func() { r.receiveHeartbeat(instanceID{1}) })
	if r.state() != vip.Alive {
		t.Fatalf("n1 is %v at first", r.state())
	}
	r.probedAlive(r.peers["n1"], probeResult{answers: true, connected: true}, r.now)
	return r
}

func (r *fixture) state() vip.Liveness { return r.peers["n1"].state }

// receiveHeartbeat has n1 say what it says each interval: that it hears the newest of this node.
func (r *fixture) receiveHeartbeat(instance instanceID) bool {
	m := r.newMessage(uint32(r.number)+1, false, r.now)
	r.number++
	return r.receive(&message{from: "n1", interval: minInterval, echoes: []echo{{node: r.id, hears: true, nonce: m.nonce}}}, packetID{instance, r.number}, there, r.now)
}

// advance lets time pass by ticks, with f each period.
func (r *fixture) advance(d time.Duration, f func()) {
	for end := r.now.Add(d); r.now.Before(end); r.now = r.now.Add(checkInterval) {
		r.check(r.now)
		if f != nil && r.now.UnixNano()%int64(minInterval) == 0 {
			f()
		}
	}
}

// runProbe has this node ask after n1 now, which takes d.
func (r *fixture) runProbe(result probeResult, d time.Duration) {
	began := r.now
	r.advance(d, nil)
	r.probed(r.peers["n1"], result, began, r.now)
}

func (r *fixture) expectState(state vip.Liveness) {
	r.t.Helper()
	if r.state() != state {
		r.t.Errorf("n1 is %v (%s), want %v", r.state(), r.peers["n1"].why, state)
	}
}

func TestSilenceAloneIsNoDeath(t *testing.T) {
	r := newFixture(t)
	r.advance(unprobedSuspectAfter-time.Second, nil)
	r.expectState(vip.Alive)
	r.advance(2*time.Second, nil)
	r.expectState(vip.Suspect)
}

func TestOverdue(t *testing.T) {
	r := newFixture(t)
	late := func() bool { return r.statuses(r.now)["n1"].Overdue }
	r.receiveHeartbeat(instanceID{1})
	r.advance(2*minInterval, nil)
	if late() {
		t.Error("late after two periods")
	}
	r.advance(checkInterval, nil)
	if !late() {
		t.Error("not late after more than two periods")
	}
	r.receiveHeartbeat(instanceID{1})
	if late() {
		t.Error("late, though it was heard")
	}
	r.runProbe(probeResult{refused: true}, checkInterval)
	r.advance(3*minInterval, nil)
	r.runProbe(probeResult{refused: true}, checkInterval)
	if r.expectState(vip.Dead); late() {
		t.Error("late when it is dead")
	}
}

// Who is well need not be looked at often; who is late must be, before the silence counts.
func TestNextCheck(t *testing.T) {
	r := newFixture(t)
	rest := func(want time.Duration, when string) {
		t.Helper()
		if r.check(r.now); r.nextCheck != want {
			t.Errorf("%s: it is looked at again after %v, want %v", when, r.nextCheck, want)
		}
	}
	r.peers["n1"].probe.running = false // newRig has taken over the probeResult
	r.receiveHeartbeat(instanceID{1})
	rest(idleCheckInterval, "just heard")
	r.now = r.now.Add(minInterval)
	rest(idleCheckInterval, "a period later")
	r.now = r.now.Add(checkInterval)
	rest(checkInterval, "late")
	r.receiveHeartbeat(instanceID{1})
	rest(idleCheckInterval, "heard again")
}

func TestProbeResults(t *testing.T) {
	for name, tt := range map[string]struct {
		result probeResult
		want   vip.Liveness
	}{
		"nobody":             {probeResult{}, vip.Dead},
		"refused":            {probeResult{answers: true, refused: true}, vip.Dead},
		"answers":            {probeResult{answers: true}, vip.Alive},
		"connected, no ARP":  {probeResult{connected: true}, vip.Alive},
		"answered, and open": {probeResult{answers: true, connected: true}, vip.Alive},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t)
			r.advance(400*time.Millisecond, nil)
			r.runProbe(tt.result, 150*time.Millisecond)
			r.expectState(tt.want)
			if tt.want == vip.Dead {
				r.receiveHeartbeat(instanceID{1})
				r.expectState(vip.Alive)
				return
			}
			r.advance(3*time.Second, func() { r.probed(r.peers["n1"], tt.result, r.now, r.now) })
			r.expectState(vip.Suspect)
		})
	}
}

// TestPausedProcess: what a process found that did not get to run proves nothing.
func TestPausedProcess(t *testing.T) {
	r := newFixture(t)
	r.advance(400*time.Millisecond, nil)
	began := r.now
	r.now = r.now.Add(pauseThreshold + 2*checkInterval) // no tick meanwhile
	r.probed(r.peers["n1"], probeResult{}, began, r.now)
	r.expectState(vip.Alive)
	r.check(r.now)
	if probe, _, _ := r.check(r.now); len(probe) != 0 {
		t.Error("it asks at once")
	}
	r.advance(minInterval, nil)
	r.probed(r.peers["n1"], probeResult{}, began, r.now)
	r.expectState(vip.Alive)
	r.advance(minInterval, nil)
	r.runProbe(probeResult{}, 150*time.Millisecond)
	r.expectState(vip.Dead)
}

// TestAddressNeverAnswered: who did not answer while it was alive is not dead for not answering.
func TestAddressNeverAnswered(t *testing.T) {
	r := newFixture(t)
	r.peers["n1"].probe.answered = false
	r.advance(400*time.Millisecond, nil)
	for range 30 {
		r.runProbe(probeResult{}, 150*time.Millisecond)
	}
	r.expectState(vip.Suspect)
}

func TestReplay(t *testing.T) {
	r := newFixture(t)
	old := &message{from: "n1", interval: minInterval, echoes: []echo{{node: r.id, hears: true, nonce: uint32(r.number)}}}
	if r.receive(old, packetID{instanceID{1}, r.number}, there, r.now) {
		t.Error("the same packet again")
	}
	if r.receive(&message{from: "n1"}, packetID{instanceID{9}, 1e6}, there, r.now) {
		t.Error("a packet of another process that proves nothing")
	}
	r.advance(2*nonceMaxAge, nil)
	for range 3 {
		r.runProbe(probeResult{}, 150*time.Millisecond)
	}
	r.expectState(vip.Dead)
	for i := range uint64(10) {
		r.receive(old, packetID{instanceID{9}, 1e6 + i}, there, r.now)
		r.advance(minInterval, nil)
	}
	r.expectState(vip.Dead)
	if r.receiveHeartbeat(instanceID{2}); r.state() != vip.Alive {
		t.Errorf("a new process is %v", r.state())
	}
	if r.receive(&message{from: "n0"}, packetID{instanceID{3}, 1}, there, r.now) {
		t.Error("it hears itself")
	}
}

func TestTransmitInterval(t *testing.T) {
	for n, want := range map[int]time.Duration{2: 100 * time.Millisecond, 39: 100 * time.Millisecond, 99: 250 * time.Millisecond, 5000: 2 * time.Second} {
		r := newDetector("n0")
		nodes := make(map[string]netip.AddrPort)
		for i := range n {
			nodes[string(rune('a'+i))] = there
		}
		r.setNodes(nodes, time.Unix(1e9, 0))
		if r.interval != want {
			t.Errorf("%d others: got %v, want %v", n, r.interval, want)
		}
	}
}
