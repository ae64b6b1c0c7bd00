package bfd

import (
	"fmt"
	"time"
)

const (
	// the least Desired Min TX Interval while not up (RFC 5880 section 6.8.3)
	slowInterval = time.Second
	minGap       = 10 * time.Millisecond // between a packet and the next, whatever the neighbor sends
)

// A machine is the state of one session (RFC 5880 section 6.8.1), without I/O: it is told what happens, and when.
type machine struct {
	config Config
	state  State
	diag   uint8

	mine, yours uint32 // discriminators; yours is 0 until the neighbor's is known

	remoteMinTx time.Duration // the neighbor's Desired Min TX Interval
	remoteMinRx time.Duration // the neighbor's Required Min RX Interval
	remoteMult  uint8

	poll  bool // a Poll Sequence goes on: packets have the Poll bit until one with the Final bit comes
	final bool // the next packet answers a Poll

	lastSent time.Time
	nextSend time.Time // when the next packet is due
	expires  time.Time // when the neighbor has been silent for the Detection Time; zero: it was already
}

// newMachine makes a machine that sends its first packet at once. mine is not 0.
func newMachine(c Config, mine uint32, now time.Time) machine {
	return machine{config: c, state: Down, remoteMinRx: time.Microsecond, mine: mine, nextSend: now}
}

// minTx is the Desired Min TX Interval to send in packets.
func (m machine) minTx() time.Duration {
	if m.state != Up {
		return max(m.config.MinTransmit, slowInterval)
	}
	return m.config.MinTransmit
}

// detectionTime is the neighbor's longest silence without failure (RFC 5880 section 6.8.4).
func (m machine) detectionTime() time.Duration {
	return time.Duration(m.remoteMult) * max(m.config.MinReceive, m.remoteMinTx)
}

// receive applies a neighbor's packet (RFC 5880 section 6.8.6, from the choice of a session on), if it is for this
// session. failure is why a session went down, unless its administrator wanted that.
func (m *machine) receive(p packet, now time.Time) (failure string) {
	if p.yours != 0 && p.yours != m.mine || m.state == AdminDown {
		return ""
	}
	m.yours, m.remoteMult = p.mine, p.multiplier
	m.remoteMinTx, m.remoteMinRx = p.desiredMinTx, p.requiredMinRx
	if p.final {
		m.poll = false
	}
	m.expires = now.Add(m.detectionTime())
	switch {
	case p.state == AdminDown && m.state != Down:
		m.change(Down, diagNeighborDown, now)
	case m.state == Down && p.state == Down:
		m.change(Init, diagNone, now)
	case m.state == Down && p.state == Init, m.state == Init && p.state >= Init:
		m.change(Up, diagNone, now)
	case m.state == Up && p.state == Down:
		m.change(Down, diagNeighborDown, now)
		failure = neighborDown(p.diag)
	}
	if p.poll {
		m.final = true
		m.hurry(now)
	}
	// A shorter Required Min RX Interval of the neighbor shortens the present wait.
	if next := m.lastSent.Add(m.interval()); m.remoteMinRx > 0 && (m.nextSend.IsZero() || next.Before(m.nextSend)) {
		m.nextSend = next
	}
	return failure
}

// neighborDown is the failure of a neighbor's diagnostic code (RFC 5880 section 4.1), or "" if it is new to a session
// (0), as after a restart, or says that this node said so first (3), as FRR does when it makes its session again
// (docs/why.md, "BFD").
func neighborDown(diag uint8) string {
	switch diag {
	case diagNone, diagNeighborDown, diagAdminDown:
		return ""
	case diagTimeExpired:
		return "the neighbor hears nothing of this node"
	}
	return fmt.Sprintf("the neighbor says that the path is down (diagnostic %d)", diag)
}

// expire notices that the neighbor is silent for the Detection Time; failure is as of receive.
func (m *machine) expire(now time.Time) (failure string) {
	if m.expires.IsZero() || now.Before(m.expires) {
		return ""
	}
	m.expires, m.yours, m.remoteMinRx = time.Time{}, 0, time.Microsecond
	if m.nextSend.IsZero() {
		m.hurry(now)
	}
	if m.state == Up {
		failure = fmt.Sprintf("nothing was heard of the neighbor for %v", m.detectionTime())
	}
	if m.state >= Init {
		m.change(Down, diagTimeExpired, now)
	}
	return failure
}

// change enters a state, and tells that at once. Going up, a Poll Sequence tells the shorter interval (RFC 5880 section
// 6.8.3); going down the next packets do.
func (m *machine) change(s State, diag uint8, now time.Time) {
	m.state, m.diag = s, diag
	m.poll = s == Up
	m.hurry(now)
}

// hurry has the next packet sent as soon as minGap allows.
func (m *machine) hurry(now time.Time) {
	at := m.lastSent.Add(minGap)
	if at.Before(now) {
		at = now
	}
	if m.nextSend.IsZero() || at.Before(m.nextSend) {
		m.nextSend = at
	}
}

// interval is the longest time between two packets (RFC 5880 section 6.8.2).
func (m machine) interval() time.Duration { return max(m.minTx(), m.remoteMinRx) }

// send is the due packet, and sets the next: after the interval less jitter (0 to 1) times 25 %, or 10 to 25 % where
// one lost packet is a failure (RFC 5880 section 6.8.7). A neighbor that asks for no packets gets answers only.
func (m *machine) send(now time.Time, jitter float64) packet {
	p := packet{
		diag: m.diag, state: m.state, poll: m.poll && !m.final, final: m.final, multiplier: m.config.Multiplier,
		mine: m.mine, yours: m.yours, desiredMinTx: m.minTx(), requiredMinRx: m.config.MinReceive,
	}
	less := 0.25 * jitter
	if m.config.Multiplier == 1 {
		less = 0.10 + 0.15*jitter
	}
	m.lastSent, m.final = now, false
	m.nextSend = now.Add(m.interval() - time.Duration(less*float64(m.interval())))
	if m.remoteMinRx == 0 && m.state != AdminDown {
		m.nextSend = time.Time{}
	}
	return p
}
