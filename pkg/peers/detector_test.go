package peers

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A fixture is the detector of the node n0, which knows one other node, n1; its clock is the field now.
type fixture struct {
	*detector
	t        *testing.T
	now      time.Time
	sequence uint64
}

var peerAddr = netip.MustParseAddrPort("10.0.0.1:7947")

// newFixture makes a fixture in which n1 is Alive, and has answered a probe.
func newFixture(t *testing.T) *fixture {
	r := &fixture{detector: newDetector("n0"), t: t, now: time.Unix(1e9, 0)}
	r.setNodes(map[string]netip.AddrPort{"n1": peerAddr}, r.now)
	r.startListening(r.now)
	r.advance(time.Second, func() { r.receiveHeartbeat(vip.ProcessID{1}) })
	if r.state() != vip.Alive {
		t.Fatalf("n1 is %v at first", r.state())
	}
	r.recordHeardProbe(r.peers["n1"], probeResult{answers: true, connected: true}, r.now)
	return r
}

func (r *fixture) state() vip.Liveness { return r.peers["n1"].state }

// receiveHeartbeat has n0 receive a heartbeat of n1 that echoes a nonce just sent. It returns whether n0 accepted it.
func (r *fixture) receiveHeartbeat(process vip.ProcessID) bool {
	m := r.newMessage(uint32(r.sequence)+1, false, r.now)
	r.sequence++
	return r.receive(&message{from: "n1", interval: minInterval, echoes: []echo{{node: r.id, hears: true, nonce: m.nonce}}}, packetID{process, r.sequence}, peerAddr, r.now)
}

// advance lets time pass, with a check each checkInterval, and f each transmit interval.
func (r *fixture) advance(d time.Duration, f func()) {
	for end := r.now.Add(d); r.now.Before(end); r.now = r.now.Add(checkInterval) {
		r.check(r.now)
		if f != nil && r.now.UnixNano()%int64(minInterval) == 0 {
			f()
		}
	}
}

// probes names the nodes that are to be probed now.
func (r *fixture) probes() string {
	var names []string
	probe, _, _ := r.check(r.now)
	for _, p := range probe {
		names = append(names, p.name)
	}
	return strings.Join(names, " ")
}

// runProbe has n0 probe n1; that takes d.
func (r *fixture) runProbe(result probeResult, d time.Duration) {
	began := r.now
	r.advance(d, nil)
	r.probeEnded(r.peers["n1"], result, began, r.now)
}

func (r *fixture) expectState(state vip.Liveness) {
	r.t.Helper()
	if r.state() != state {
		r.t.Errorf("n1 is %v (%s), want %v", r.state(), r.peers["n1"].why, state)
	}
}

// TestAskedWhenLate: a node is asked once its heartbeat is late, before it is silent; it is dead when it is silent and has
// not answered. If it was asked so not long ago, it is asked when it is silent: where many are late, few are asked.
func TestAskedWhenLate(t *testing.T) {
	for _, interval := range []time.Duration{minInterval, 4 * minInterval} {
		r := newFixture(t)
		p := r.peers["n1"]
		p.probe.running = false // newFixture has reported its result
		r.receiveHeartbeat(vip.ProcessID{1})
		p.rx.interval = interval
		r.advance(interval+checkInterval, nil)
		check.Equal(t, p.probe.running, false, "asked before its heartbeat is late")
		r.advance(interval/2+checkInterval, nil)
		check.Equal(t, p.probe.running, true, "asked, as its heartbeat is late")
		r.probeEnded(p, probeResult{answers: true}, r.now, r.now)
		p.probe.next = r.now.Add(time.Hour) // no other probe is due
		for range askPause {                // late by itself each time
			r.receiveHeartbeat(vip.ProcessID{1})
			p.rx.interval = interval
			r.advance(interval, nil)
			check.Equal(t, p.probe.running, false, "asked before its heartbeat is late")
			if r.now.Sub(p.askedAt) > askPause*interval {
				break
			}
			r.advance(interval/2+2*checkInterval, nil)
			check.Equal(t, p.probe.running, false, "asked again soon")
		}
		r.advance(interval/2+2*checkInterval, nil)
		check.Equal(t, p.probe.running, true, "asked when a heartbeat is late again")
		began := r.now
		r.advance(probeTimeout, nil)
		r.expectState(vip.Alive)
		r.probeEnded(p, probeResult{}, began, r.now)
		r.advance(interval, nil)
		r.expectState(vip.Dead)
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
	overdue := func() bool { return r.statuses(r.now)["n1"].Overdue }
	r.receiveHeartbeat(vip.ProcessID{1})
	r.advance(2*minInterval, nil)
	check.Equal(t, overdue(), false, "overdue after two intervals")
	r.advance(checkInterval, nil)
	check.Equal(t, overdue(), true, "overdue after more than two intervals")
	r.receiveHeartbeat(vip.ProcessID{1})
	check.Equal(t, overdue(), false, "overdue, though it was heard")
	r.advance(3*minInterval, nil)
	r.runProbe(probeResult{}, checkInterval)
	r.expectState(vip.Dead)
	check.Equal(t, overdue(), false, "overdue when it is dead")
}

// TestEchoOverdue: a node that is heard, but echoes nothing any more, may not hear this one until it has answered a probe.
func TestEchoOverdue(t *testing.T) {
	r := newFixture(t)
	overdue := func() bool { return r.statuses(r.now)["n1"].EchoOverdue }
	withoutEcho := func() {
		r.sequence++
		r.receive(&message{from: "n1", interval: minInterval}, packetID{vip.ProcessID{1}, r.sequence}, peerAddr, r.now)
	}
	r.advance(minInterval, withoutEcho)
	check.Equal(t, overdue(), false, "overdue after an interval")
	r.probeEnded(r.peers["n1"], probeResult{answers: true}, r.now, r.now) // it may not hear this node since then
	r.advance(5*minInterval, withoutEcho)
	r.expectState(vip.Alive)
	check.Equal(t, overdue(), true, "overdue after six intervals")
	r.advance(4*time.Second, withoutEcho)
	r.expectState(vip.Suspect)
	check.Equal(t, overdue(), true, "overdue before it is asked")
	withoutEcho()
	r.probeEnded(r.peers["n1"], probeResult{answers: true}, r.now, r.now)
	check.Equal(t, overdue(), false, "overdue, though it has answered")
	withoutEcho()
	r.probeEnded(r.peers["n1"], probeResult{}, r.now, r.now)
	check.Equal(t, overdue(), true, "overdue when it does not answer")
}

// TestUnheardFindsNobodyDead: while nobody that is heard hears this node, its probes prove nothing about a silent one.
func TestUnheardFindsNobodyDead(t *testing.T) {
	r := newFixture(t)
	n2 := netip.MustParseAddrPort("10.0.0.2:7947")
	r.setNodes(map[string]netip.AddrPort{"n1": peerAddr, "n2": n2}, r.now)
	heard := false // this node
	receive := func() {
		m := &message{from: "n2", interval: minInterval}
		if r.sequence++; heard {
			m.echoes = []echo{{node: r.id, hears: true, nonce: r.newMessage(uint32(r.sequence), false, r.now).nonce}}
		}
		r.receive(m, packetID{vip.ProcessID{2}, r.sequence}, n2, r.now)
	}
	heard = true
	receive()
	heard = false
	r.receiveHeartbeat(vip.ProcessID{1})
	r.advance(6*minInterval, receive)
	r.runProbe(probeResult{}, checkInterval)
	r.expectState(vip.Alive)
	began := r.now
	heard = true
	receive()
	r.advance(probeTimeout, receive)
	r.expectState(vip.Alive)
	r.probeEnded(r.peers["n1"], probeResult{}, began, r.now)
	r.expectState(vip.Dead)
	r.receiveHeartbeat(vip.ProcessID{1})
	heard = false
	r.advance(4*time.Second, receive)
	r.runProbe(probeResult{answers: true}, checkInterval) // an answer proves something at any time
	r.expectState(vip.Suspect)
}

// Nodes whose heartbeats come are checked seldom; as soon as one is late, often.
func TestNextCheck(t *testing.T) {
	r := newFixture(t)
	expectNext := func(want time.Duration, when string) {
		t.Helper()
		r.check(r.now)
		check.Equal(t, r.nextCheck, want, "%s: the next check is after", when)
	}
	r.peers["n1"].probe.running = false // newFixture has reported its result
	r.receiveHeartbeat(vip.ProcessID{1})
	expectNext(idleCheckInterval, "just heard")
	r.now = r.now.Add(minInterval)
	expectNext(idleCheckInterval, "an interval later")
	r.now = r.now.Add(checkInterval)
	expectNext(checkInterval, "late")
	r.receiveHeartbeat(vip.ProcessID{1})
	expectNext(idleCheckInterval, "heard again")
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
			if tt.result.refused { // a reset may be forged
				for range minRefusals - 1 {
					r.runProbe(tt.result, 150*time.Millisecond)
					r.expectState(vip.Alive)
				}
			}
			r.runProbe(tt.result, 150*time.Millisecond)
			r.expectState(tt.want)
			if tt.want == vip.Dead {
				if s := r.statuses(r.now)["n1"]; s.Gone == tt.result.refused || s.ProcessEnded != tt.result.refused {
					t.Errorf("gone %v, process ended %v: a kernel that refuses connections is there", s.Gone, s.ProcessEnded)
				}
				r.receiveHeartbeat(vip.ProcessID{1})
				r.expectState(vip.Alive)
				return
			}
			r.advance(3*time.Second, func() { r.probeEnded(r.peers["n1"], tt.result, r.now, r.now) })
			r.expectState(vip.Suspect)
			r.runProbe(probeResult{}, 150*time.Millisecond) // one answer may be lost
			r.expectState(vip.Suspect)
			r.runProbe(probeResult{}, 150*time.Millisecond)
			r.expectState(vip.Dead)
		})
	}
}

// TestPausedProcess: what a process found that was paused meanwhile proves nothing.
func TestPausedProcess(t *testing.T) {
	r := newFixture(t)
	r.advance(400*time.Millisecond, nil)
	began := r.now
	r.now = r.now.Add(pauseThreshold + 2*checkInterval) // no tick meanwhile
	r.probeEnded(r.peers["n1"], probeResult{}, began, r.now)
	r.expectState(vip.Alive)
	r.check(r.now)
	check.Equal(t, r.probes(), "", "whom it probes at once")
	r.advance(minInterval, nil)
	r.probeEnded(r.peers["n1"], probeResult{}, began, r.now)
	r.expectState(vip.Alive)
	r.advance(minInterval, nil)
	r.runProbe(probeResult{}, 150*time.Millisecond)
	r.expectState(vip.Dead)
}

// TestAddressNeverAnswered: a node whose address did not answer while it was alive is not dead because it does not answer.
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
	old := &message{from: "n1", interval: minInterval, echoes: []echo{{node: r.id, hears: true, nonce: uint32(r.sequence)}}}
	check.Equal(t, r.receive(old, packetID{vip.ProcessID{1}, r.sequence}, peerAddr, r.now), false, "the same packet again is heard")
	check.Equal(t, r.receive(&message{from: "n1"}, packetID{vip.ProcessID{9}, 1e6}, peerAddr, r.now), false, "a packet of another process that proves nothing is heard")
	r.advance(2*nonceMaxAge, nil)
	for range 3 {
		r.runProbe(probeResult{}, 150*time.Millisecond)
	}
	r.expectState(vip.Dead)
	for i := range uint64(10) {
		r.receive(old, packetID{vip.ProcessID{9}, 1e6 + i}, peerAddr, r.now)
		r.advance(minInterval, nil)
	}
	r.expectState(vip.Dead)
	r.receiveHeartbeat(vip.ProcessID{2})
	r.expectState(vip.Alive) // a new process
	check.Equal(t, r.receive(&message{from: "n0"}, packetID{vip.ProcessID{3}, 1}, peerAddr, r.now), false, "it hears itself")
}

func TestTransmitInterval(t *testing.T) {
	for n, want := range map[int]time.Duration{
		1: 50 * time.Millisecond, 4: 50 * time.Millisecond, 6: 70 * time.Millisecond, 9: 100 * time.Millisecond, 39: 100 * time.Millisecond,
		99: 250 * time.Millisecond, 5000: 2 * time.Second,
	} {
		r := newDetector("n0")
		nodes := make(map[string]netip.AddrPort)
		for i := range n {
			nodes[string(rune('a'+i))] = peerAddr
		}
		r.setNodes(nodes, time.Unix(1e9, 0))
		check.Equal(t, r.interval, want, "%d others", n)
	}
}

// TestRestoredSnapshotIsHeard: a process that is restored from a snapshot of its memory counts from an
// earlier sequence number on. It is heard by its echoes; packets recorded before are not.
func TestRestoredSnapshotIsHeard(t *testing.T) {
	r := newFixture(t)
	old := &message{from: "n1", interval: minInterval, echoes: []echo{{node: r.id, hears: true, nonce: uint32(r.sequence)}}}
	r.advance(time.Minute, func() { r.receiveHeartbeat(vip.ProcessID{1}) })
	recorded := r.sequence - 1
	r.sequence -= 100
	check.Equal(t, r.receiveHeartbeat(vip.ProcessID{1}), true, "a restored process is heard")
	check.Equal(t, r.receive(old, packetID{vip.ProcessID{1}, recorded}, peerAddr, r.now), false, "a packet recorded before is heard again")
	r.advance(time.Second, func() { r.receiveHeartbeat(vip.ProcessID{1}) })
	check.Equal(t, r.receive(old, packetID{vip.ProcessID{1}, recorded}, peerAddr, r.now), false, "a packet recorded before is heard again after a second")
	r.expectState(vip.Alive)
}

// TestForgedReset: whoever sees a SYN can answer it by a reset. So a node whose heartbeats are merely late
// is not dead because connections to it are refused, however often; nor is one whose heartbeats arrive.
func TestForgedReset(t *testing.T) {
	refused := probeResult{answers: true, refused: true}
	r := newFixture(t)
	for range 20 {
		r.receiveHeartbeat(vip.ProcessID{1})
		r.advance(300*time.Millisecond, nil)
		for range minRefusals {
			r.runProbe(refused, 2*checkInterval)
			r.expectState(vip.Alive)
		}
		r.receiveHeartbeat(vip.ProcessID{1})
		r.expectState(vip.Alive)
	}
	r.advance(5*time.Second, func() {
		r.receiveHeartbeat(vip.ProcessID{1})
		r.probeEnded(r.peers["n1"], refused, r.now, r.now)
		r.expectState(vip.Alive)
	})
}

// TestKernelOutlivesProcess: a node whose process has ended is probed further, so that it is known when its kernel dies, too, or is cut
// off; until another process of it is heard.
func TestKernelOutlivesProcess(t *testing.T) {
	refused, nobody := probeResult{answers: true, refused: true}, probeResult{}
	r := newFixture(t)
	r.advance(500*time.Millisecond, nil)
	for range minRefusals {
		r.runProbe(refused, 150*time.Millisecond)
	}
	probed := func() bool {
		r.peers["n1"].probe.running = false
		for end := r.now.Add(time.Second); r.now.Before(end); r.now = r.now.Add(checkInterval) {
			if r.probes() != "" {
				return true
			}
		}
		return false
	}
	expect := func(when string, ended, gone, probes bool) {
		t.Helper()
		s := r.statuses(r.now)["n1"]
		check.Equal(t, s.ProcessEnded, ended, "%s: process ended", when)
		check.Equal(t, s.Gone, gone, "%s: gone", when)
		check.Equal(t, probed(), probes, "%s: it is probed", when)
		r.takeChanges()
	}
	expect("its port refuses connections", true, false, true)
	r.runProbe(refused, 150*time.Millisecond)
	r.runProbe(probeResult{refused: true}, 150*time.Millisecond) // ARP may be lost
	expect("its port still does", true, false, true)
	r.runProbe(nobody, 150*time.Millisecond)
	expect("one answer is lost", true, false, true)
	r.runProbe(nobody, 150*time.Millisecond)
	check.Equal(t, len(r.takeChanges()), 1, "changes when its kernel is gone")
	expect("its kernel is gone", false, true, false)
	r.receiveHeartbeat(vip.ProcessID{2})
	r.expectState(vip.Alive)
	expect("another process is heard", false, false, true)
}

// TestSilentSince: a node is silent if nobody hears it, and this process would have received its heartbeats.
func TestSilentSince(t *testing.T) {
	r := newFixture(t)
	silent := func() time.Duration {
		since := r.statuses(r.now)["n1"].SilentSince
		if since.IsZero() {
			return 0
		}
		return r.now.Sub(since)
	}
	r.receiveHeartbeat(vip.ProcessID{1})
	r.advance(detectionTime(minInterval), nil)
	check.Equal(t, silent(), 0, "silent within the detection time for")
	r.advance(time.Second, nil)
	check.Equal(t, silent(), time.Second+detectionTime(minInterval), "silent for")
	r.now = r.now.Add(time.Second) // this process was paused: what has come meanwhile it will read
	r.advance(checkInterval, nil)
	check.Equal(t, silent(), 0, "silent just after a pause for")
	if r.advance(time.Second, nil); silent() < 3*time.Second {
		t.Errorf("silent for %v a while after a pause, want that since the last heartbeat", silent())
	}
	r.receiveHeartbeat(vip.ProcessID{1})
	check.Equal(t, silent(), 0, "silent when a heartbeat came for")
}

// TestSuspectsAreProbedWhenOneDies: a node that is Suspect and silent is probed at once when another one is found Dead, and it is known when its
// last probe began that had an answer.
func TestSuspectsAreProbedWhenOneDies(t *testing.T) {
	r := newFixture(t)
	answers := probeResult{answers: true}
	r.advance(4*time.Second, func() { r.probeEnded(r.peers["n1"], answers, r.now, r.now) })
	r.expectState(vip.Suspect)
	r.peers["n1"].probe.running = false
	began := r.now
	r.runProbe(answers, 150*time.Millisecond)
	check.Equal(t, r.statuses(r.now)["n1"].AnsweredAt, began, "it answered a probe that began at")
	check.Equal(t, r.probes(), "", "who is probed again at once, though nobody has died")
	r.setNodes(map[string]netip.AddrPort{"n1": peerAddr, "n2": netip.MustParseAddrPort("10.0.0.2:7947")}, r.now)
	r.setState(r.peers["n2"], vip.Dead, "nobody answers for its address", r.now)
	check.Equal(t, r.probes(), "n1", "who is probed when another has died")
	r.runProbe(probeResult{}, 150*time.Millisecond)
	check.Equal(t, r.statuses(r.now)["n1"].AnsweredAt, time.Time{}, "it answered, after a probe without an answer, at")
}

// TestSuspectsAreProbedAgainWhenOneDiesMeanwhile: a probe of a node that is Suspect and silent, and that began before another one was found Dead, is followed by
// one that begins after that; this one by none.
func TestSuspectsAreProbedAgainWhenOneDiesMeanwhile(t *testing.T) {
	r := newFixture(t)
	answers := probeResult{answers: true}
	r.advance(4*time.Second, func() { r.probeEnded(r.peers["n1"], answers, r.now, r.now) })
	r.expectState(vip.Suspect)
	r.setNodes(map[string]netip.AddrPort{"n1": peerAddr, "n2": netip.MustParseAddrPort("10.0.0.2:7947"), "n3": netip.MustParseAddrPort("10.0.0.3:7947")}, r.now)
	probed := func() bool { return strings.Contains(r.probes(), "n1") }
	r.peers["n1"].probe.running = false
	r.setState(r.peers["n2"], vip.Dead, "nobody answers for its address", r.now)
	check.Equal(t, probed(), true, "n1 is probed when n2 has died")
	began := r.now
	r.advance(50*time.Millisecond, nil)
	r.setState(r.peers["n3"], vip.Dead, "nobody answers for its address", r.now)
	died := r.now
	r.advance(100*time.Millisecond, nil)
	r.probeEnded(r.peers["n1"], answers, began, r.now)
	check.Equal(t, probed(), true, "n1 is probed again, as n3 died while it was; the next probe is %v after that", r.peers["n1"].probe.next.Sub(died))
	r.runProbe(answers, 150*time.Millisecond)
	check.Equal(t, r.statuses(r.now)["n1"].AnsweredAt.After(died), true, "it answered a probe that began after %v", died)
	check.Equal(t, probed(), false, "it is probed a third time at once")
}

// TestOneLostAnswer: of a kernel that has answered since its node is silent (its port is blocked, or its process has ended) one lost answer says nothing, two in a row
// do. A node that has not answered since then is dead by the first.
func TestOneLostAnswer(t *testing.T) {
	const took = 150 * time.Millisecond
	answers, nobody := probeResult{answers: true}, probeResult{}
	refused := probeResult{answers: true, refused: true}
	tests := []struct {
		name   string
		before []probeResult // since it is silent
		lost   int           // the first so many lost answers in a row say nothing
	}{
		{"it has died", nil, 0},
		{"its port is blocked", []probeResult{answers}, 1},
		{"its port is blocked, and one answer was lost before", []probeResult{answers, nobody, answers}, 1},
		{"its process has ended", []probeResult{refused, refused, refused, refused}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			r.receiveHeartbeat(vip.ProcessID{1})
			r.advance(detectionTime(minInterval)+checkInterval, nil)
			for _, x := range tt.before {
				r.runProbe(x, took)
			}
			for range tt.lost {
				r.runProbe(nobody, took)
				check.Equal(t, r.peers["n1"].gone, false, "gone after one lost answer")
			}
			r.runProbe(nobody, took)
			r.expectState(vip.Dead)
			check.Equal(t, r.peers["n1"].gone, true, "gone")
		})
	}
}
