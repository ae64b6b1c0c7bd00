package bfd

import (
	"testing"
	"time"
)

var (
	testConfig = Config{MinTransmit: 300 * time.Millisecond, MinReceive: 300 * time.Millisecond, Multiplier: 3}
	epoch      = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)
)

// from is a packet of the neighbor 7 for the session 1.
func from(s State, change func(*packet)) packet {
	p := packet{state: s, multiplier: 3, mine: 7, yours: 1, desiredMinTx: 300 * time.Millisecond, requiredMinRx: 300 * time.Millisecond}
	if change != nil {
		change(&p)
	}
	return p
}

// Each state meets each state of the neighbor (the diagram of RFC 5880 section 6.2).
func TestReceive(t *testing.T) {
	const failed, ignored = 1, 2
	for _, tt := range []struct {
		state, heard, want State
		diag               uint8
		special            int
	}{
		{Down, AdminDown, Down, diagNone, 0}, {Down, Down, Init, diagNone, 0}, {Down, Init, Up, diagNone, 0}, {Down, Up, Down, diagNone, 0},
		{Init, AdminDown, Down, diagNeighborDown, 0}, {Init, Down, Init, diagNone, 0}, {Init, Init, Up, diagNone, 0}, {Init, Up, Up, diagNone, 0},
		{Up, AdminDown, Down, diagNeighborDown, 0}, {Up, Down, Down, diagNeighborDown, failed}, {Up, Init, Up, diagNone, 0}, {Up, Up, Up, diagNone, 0},
		{AdminDown, Down, AdminDown, diagNone, ignored}, {AdminDown, Up, AdminDown, diagNone, ignored},
	} {
		m := newMachine(testConfig, 1, epoch)
		m.state = tt.state
		failure := m.receive(from(tt.heard, func(p *packet) { p.diag = diagTimeExpired }), epoch)
		if m.state != tt.want || m.diag != tt.diag || (failure != "") != (tt.special == failed) || (m.remoteMult != 0) == (tt.special == ignored) {
			t.Errorf("%v hears %v: %v, diagnostic %d, %q", tt.state, tt.heard, m.state, m.diag, failure)
		}
	}
	for diag := range uint8(10) {
		m := up(t)
		failure := m.receive(from(Down, func(p *packet) { p.diag = diag }), epoch)
		if want := diag != diagNone && diag != diagNeighborDown && diag != diagAdminDown; m.state != Down || (failure != "") != want {
			t.Errorf("diagnostic %d: %v, %q", diag, m.state, failure)
		}
	}
	m := newMachine(testConfig, 1, epoch)
	if m.receive(from(Down, func(p *packet) { p.yours = 2 }), epoch); m.remoteMult != 0 || m.state != Down {
		t.Error("it took a packet of another session")
	}
}

// up is a machine that came up at epoch, with what it sent.
func up(t *testing.T) machine {
	t.Helper()
	m := newMachine(testConfig, 1, epoch)
	if p := m.send(epoch, 0); p.state != Down || p.desiredMinTx != time.Second || p.yours != 0 || p.poll {
		t.Errorf("the first packet is %+v", p)
	}
	if got := m.nextSend.Sub(epoch); got != time.Second {
		t.Errorf("before it is up there are %v between packets, want 1 s", got)
	}
	m.receive(from(Init, nil), epoch)
	return m
}

// Going up is told at once by a Poll Sequence, which ends with the neighbor's Final; then packets are as far apart as the slower side wants, less
// jitter.
func TestIntervals(t *testing.T) {
	m := up(t)
	if got := m.nextSend.Sub(epoch); got != minGap {
		t.Errorf("that it is up is told after %v", got)
	}
	now := epoch.Add(minGap)
	if p := m.send(now, 0); !p.poll || p.state != Up || p.desiredMinTx != 300*time.Millisecond || p.yours != 7 {
		t.Errorf("told by %+v", p)
	}
	m.receive(from(Up, func(p *packet) { p.final = true; p.requiredMinRx = 400 * time.Millisecond }), now)
	for jitter, want := range map[float64]time.Duration{0: 400 * time.Millisecond, 1: 300 * time.Millisecond} {
		if p := m.send(now, jitter); p.poll || m.nextSend.Sub(now) != want {
			t.Errorf("jitter %v: %v after %+v, want %v", jitter, m.nextSend.Sub(now), p, want)
		}
	}
	m.config.Multiplier = 1
	for jitter, want := range map[float64]time.Duration{0: 360 * time.Millisecond, 1: 300 * time.Millisecond} {
		if m.send(now, jitter); m.nextSend.Sub(now) != want {
			t.Errorf("multiplier 1, jitter %v: %v, want %v", jitter, m.nextSend.Sub(now), want)
		}
	}
}

// A Poll is answered by a Final without a Poll, and however many come, answers are minGap apart. A neighbor that wants no packets gets answers only.
func TestPoll(t *testing.T) {
	m := up(t)
	now := epoch.Add(minGap)
	m.send(now, 0)
	for range 5 {
		m.receive(from(Up, func(p *packet) { p.poll, p.requiredMinRx = true, 0 }), now)
	}
	if got := m.nextSend.Sub(now); got != minGap {
		t.Errorf("an answer after %v, want %v", got, minGap)
	}
	if p := m.send(now.Add(minGap), 0); !p.final || p.poll {
		t.Errorf("the answer is %+v", p)
	}
	if !m.nextSend.IsZero() {
		t.Error("there are packets that the neighbor does not want")
	}
	m.receive(from(Up, nil), now.Add(minGap))
	if m.nextSend.IsZero() {
		t.Error("there are no packets though the neighbor wants them again")
	}
}

// The Detection Time is the neighbor's multiplier times the longer interval of what it sends and what is wanted here.
func TestExpire(t *testing.T) {
	for _, tt := range []struct{ theirs, want time.Duration }{{300 * time.Millisecond, 900 * time.Millisecond}, {10 * time.Millisecond, 900 * time.Millisecond}, {time.Second, 3 * time.Second}} {
		m := up(t)
		m.receive(from(Up, func(p *packet) { p.desiredMinTx = tt.theirs }), epoch)
		if failure := m.expire(epoch.Add(tt.want - 1)); failure != "" || m.state != Up {
			t.Errorf("%v: too early: %s", tt.theirs, failure)
		}
		if failure := m.expire(epoch.Add(tt.want)); failure == "" || m.state != Down || m.diag != diagTimeExpired || m.yours != 0 {
			t.Errorf("%v: %q, %+v", tt.theirs, failure, m)
		}
		if failure := m.expire(epoch.Add(time.Hour)); failure != "" {
			t.Errorf("%v: it failed twice: %s", tt.theirs, failure)
		}
	}
}
