package peers

import (
	"fmt"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// The states of another node, and what leads from one to another:
//
//	             ┌──────────── a ─────────────┐
//	             ▼                            │
//	Unknown ─ a ▶ Alive ─────────── d ─────▶ Dead
//	   │         │   ▲                        │ ▲
//	   │         s   a                        s d
//	   │         ▼   │                        │ │
//	   └─── s ─▶ Suspect ◀────────────────────┘ │
//	                └───────────────────────────┘
//
//	a  Its heartbeats arrive, and echo those of this node.
//	s  Its heartbeats arrive, but have echoed none of this node's for suspectDelay. Or it is
//	   silent for that long, and a probe was answered or proves nothing: its address never
//	   answered, or a node that is heard hears it. (From Dead only the former.)
//	d  Its last heartbeat said that it stops. Or it was Alive once, is silent, no node that is heard
//	   hears it, and either a probe found that an address which used to answer does not, or it is
//	   silent for refusedTime and its port has refused the last minRefusals connections. To end
//	   the state Alive the last probe must be younger than probeMaxAge.
//
// Without a socket on this node all are Unknown. A silent node stays what it is while this process
// may have missed its heartbeats (canJudgeSilence).
const (
	// startupTime is how long a node that was never Alive is not probed, since it may be starting.
	startupTime = 3 * time.Second
	// unprobedSuspectAfter is after what time a silent node becomes Suspect if no probe of it ends.
	unprobedSuspectAfter = 10 * time.Second
	// probeMaxAge is how old the result of a probe may be to end the state Alive.
	probeMaxAge = 500 * time.Millisecond
	// A TCP reset is not authenticated: whoever sees the SYN can forge one. So a node whose port refuses
	// connections is Dead only once it is silent for refusedTime and has refused minRefusals in a row. Until
	// then its kernel answers for its VIPs and serves them (their lifetime is vip.AddressLifetime, or what is left of its
	// tenure if that is less, renewed each 0.75 s), so no client waits for it.
	refusedTime = 500 * time.Millisecond
	minRefusals = 3
	// From the end of a probe of a silent node to the next one.
	aliveProbePause   = 50 * time.Millisecond
	suspectProbePause = 3 * time.Second
	unmetProbePause   = 10 * time.Second // it was never Alive
	// probeEndedFor is how long a node whose process has ended is probed, since its kernel may die, too, or be cut
	// off, while it answers for VIPs.
	probeEndedFor = 15 * time.Second
)

// startListening stores now as listeningSince: the caller begins to receive heartbeats, or
// does so again after a pause. The next check is due after checkInterval. States stay as they
// are.
func (d *detector) startListening(now time.Time) {
	d.listeningSince, d.checkedAt, d.nextCheck = now, now, checkInterval
}

// checkLateBy returns how long ago check should have been called again (nextCheck after its
// last call); negative before that.
func (d *detector) checkLateBy(now time.Time) time.Duration {
	return now.Sub(d.checkedAt) - d.nextCheck
}

// canJudgeSilence reports whether it would mean something if nothing came from p: this process
// listens, has for at least 1.5 transmit intervals of p, and check is not late by more than
// pauseThreshold. What came during a pause the kernel has kept, unless the whole machine stood
// still.
func (d *detector) canJudgeSilence(p *peer, now time.Time) bool {
	return !d.listeningSince.IsZero() && d.checkLateBy(now) <= pauseThreshold && now.Sub(d.listeningSince) >= p.rx.interval*3/2
}

// check evaluates all nodes, and returns those to be probed now (needsProbe), which it marks as
// running; newlySilent if a verified node has fallen silent or stopped since the last call, which a
// heartbeat is to say at once; and for how long this process was paused, if the call is more than
// pauseThreshold late, else 0. A node that has fallen silent may be probed at once. After a pause
// listening starts again (startListening), so silence can't be judged for a while.
//
// It stores when it was called, when last more than probeMaxDelay late, and in nextCheck after
// what time to call it again: checkInterval while a node is probed, or an Alive one has sent
// nothing for longer than its transmit interval, else idleCheckInterval.
func (d *detector) check(now time.Time) (probe []*peer, newlySilent bool, pause time.Duration) {
	delay := d.checkLateBy(now)
	if delay > pauseThreshold && !d.listeningSince.IsZero() {
		pause = delay
		d.startListening(now)
	}
	if delay > probeMaxDelay {
		d.delayedAt = now
	}
	d.checkedAt, d.nextCheck = now, idleCheckInterval
	for _, p := range d.peers {
		d.evaluate(p, now)
		if p.rx.verified && !p.announced && !p.rx.arriving(now) && d.canJudgeSilence(p, now) {
			p.announced, newlySilent, p.probe.next = true, true, now
		}
		if d.needsProbe(p, now) {
			p.probe.running = true
			probe = append(probe, p)
		}
		if p.probe.running || p.state == vip.Alive && now.Sub(p.rx.at) > p.rx.interval {
			d.nextCheck = checkInterval
		}
	}
	return probe, newlySilent, pause
}

// needsProbe reports whether p is to be probed now: it is silent, and may have died, or it is Alive
// and not yet known to answer probes. It never is while a probe of it runs, before its next time
// (probe.next), or without an address. A node whose heartbeats arrive is probed only while it is
// Alive and not yet detectable, or Suspect (isUnanswered). Another is probed unless it is Dead (for probeEndedFor if only its process has ended), its silence can't be judged,
// or it was never Alive and either it is known or this process listens for less than startupTime.
func (d *detector) needsProbe(p *peer, now time.Time) bool {
	switch {
	case p.probe.running || !p.addr.IsValid() || now.Before(p.probe.next):
		return false
	case p.rx.arriving(now):
		return p.state == vip.Alive && !p.detectable() || p.state == vip.Suspect
	case p.state == vip.Dead && (!p.ended() || now.Sub(p.since) >= probeEndedFor) || !d.canJudgeSilence(p, now):
		return false
	}
	return p.wasAlive || now.Sub(p.firstSeen) >= startupTime && now.Sub(d.listeningSince) >= startupTime
}

// probeEnded stores the result of a probe of p that began at startedAt, and evaluates p, unless p
// is heard. If heartbeats of p arrive, recordHeardProbe does. Else the result and its time are
// stored, the next probe is put off by a pause that depends on p's state and is short after the
// first refusals, and p is evaluated; if p is Suspect, and another node has become Dead since the probe began, the next one is due at once. But the result is dropped if p was heard meanwhile (if its heartbeats arrive: if its state has changed meanwhile), or if
// this process was paused, started to listen, or was delayed by more than probeMaxDelay, and may
// have missed the answers.
func (d *detector) probeEnded(p *peer, result probeResult, startedAt, now time.Time) {
	p.probe.running = false
	missed := d.listeningSince.After(startedAt) || d.delayedAt.After(startedAt) || d.checkLateBy(now) > probeMaxDelay
	if result != (probeResult{}) {
		p.probe.answeredAt = startedAt
	} else if !missed {
		p.probe.answeredAt = time.Time{}
	}
	if !missed && p.state == vip.Suspect {
		if p.probe.unanswered++; result != (probeResult{}) {
			p.probe.unanswered = 0
		}
	}
	switch {
	case p.rx.arriving(now) && p.since.After(startedAt): // it became Alive or Suspect meanwhile, and is probed since then
		return
	case p.rx.arriving(now):
		d.recordHeardProbe(p, result, now)
		return
	case p.rx.at.After(startedAt) || missed:
		return
	}
	p.probe.result, p.probe.at = result, now
	if p.probe.refusals++; !result.refused {
		p.probe.refusals = 0
	}
	switch {
	case p.probe.refusals > 0 && p.probe.refusals < minRefusals:
		p.probe.next = now.Add(aliveProbePause) // to be sure soon
	case p.state == vip.Suspect && !startedAt.After(d.diedAt):
		p.probe.next = now // only one that begins after that death lets its node be fenced
	case p.state == vip.Suspect:
		p.probe.next = now.Add(suspectProbePause)
	case !p.wasAlive:
		p.probe.next = now.Add(unmetProbePause)
	default:
		p.probe.next = now.Add(aliveProbePause)
	}
	d.evaluate(p, now)
}

// recordHeardProbe stores which probes of p, whose heartbeats arrive, have been answered at
// least once: only those prove anything once p is silent. Of a Suspect node it stores only when the next probe is due. The next probe is due after
// startupTime if p has been in its state for less than 30 s, else after a minute. If p is
// Alive, its TCP port was never reached since, and silence can be judged, that is a change
// (tcpUnreachable), once; it is p.why until the port is reached.
func (d *detector) recordHeardProbe(p *peer, result probeResult, now time.Time) {
	if p.state == vip.Suspect {
		if p.probe.next = now.Add(suspectProbePause); p.probe.unanswered == maxUnanswered {
			p.probe.next = now.Add(aliveProbePause) // to be sure soon
		}
		return
	}
	p.probe.answered, p.probe.open = p.probe.answered || result.answers, p.probe.open || result.connected
	p.probe.next = now.Add(time.Minute)
	if now.Sub(p.since) < 30*time.Second {
		p.probe.next = now.Add(startupTime) // it may not have been ready
	}
	switch {
	case p.state != vip.Alive || !d.canJudgeSilence(p, now):
	case p.probe.open:
		p.why = ""
	case p.why == "":
		p.why = "its TCP port can't be reached: should its process die, only its node lease shows that"
		d.changes = append(d.changes, change{node: p.name, was: p.state, is: p.state, why: p.why, tcpUnreachable: true})
	}
}

// evaluate sets the state of p: Unknown, Alive, Suspect or Dead, from its heartbeats, and, if it is
// silent, from the last probe. It is Unknown while this node does not listen, Dead if p has said
// that it stops, and Alive if its heartbeats arrive and the newest nonce that they echo was sent
// within the detection time of both intervals. If they arrive without that for suspectDelay, and
// silence can be judged, it is Suspect; until then it stays. If they do not arrive, the state stays
// if it is Dead or silence can't be judged; else evaluateSilent sets it. The head of this file has
// a picture.
func (d *detector) evaluate(p *peer, now time.Time) {
	rx := &p.rx
	switch {
	case d.listeningSince.IsZero():
		d.setState(p, vip.Unknown, "this node does not listen", now)
	case rx.stopping:
		d.setState(p, vip.Dead, "it has stopped", now)
	case rx.arriving(now) && now.Sub(rx.echoOf) <= detectionTime(rx.interval+d.interval):
		if p.state != vip.Alive {
			d.setState(p, vip.Alive, "", now)
		}
	case rx.arriving(now):
		if d.canJudgeSilence(p, now) && min(now.Sub(rx.echoOf), now.Sub(p.firstSeen), now.Sub(d.listeningSince)) >= d.suspectDelay(p) {
			d.setState(p, vip.Suspect, "it is heard, but does not hear this node", now)
		}
	case !d.canJudgeSilence(p, now):
	case p.ended():
		d.evaluateEnded(p, now)
	case p.state != vip.Dead:
		d.evaluateSilent(p, now)
	}
}

// evaluateEnded finds p, which is Dead since its process has ended, gone, which is a change, if by the last probe nobody answers for its
// address any more, nor on its port, and no node that is heard hears it.
func (d *detector) evaluateEnded(p *peer, now time.Time) {
	probe := &p.probe
	if probe.at.IsZero() || now.Sub(probe.at) >= probeMaxAge || !probe.answered || probe.result != (probeResult{}) || d.heardByOthers(p, now) {
		return
	}
	p.gone, p.why = true, "nobody answers for its address"
	d.changes = append(d.changes, change{node: p.name, was: p.state, is: p.state, why: p.why})
}

// silentSince returns when the last packet of p came, if it was verified, p is not heard any more, and no node that is heard hears it either;
// zero otherwise, and while silence can't be judged. An earlier pause of this process changes nothing: what came meanwhile the kernel has kept.
func (d *detector) silentSince(p *peer, now time.Time) time.Time {
	if !p.rx.verified || p.rx.arriving(now) || !d.canJudgeSilence(p, now) || d.heardByOthers(p, now) {
		return time.Time{}
	}
	return p.rx.at
}

// evaluateSilent sets the state of p, which is silent and not Dead, by the result of the last
// probe. Without one, or if p is Alive and the result older than probeMaxAge, the state stays,
// but an Alive node becomes Suspect after unprobedSuspectAfter of silence.
//
// Dead follows at once from an address that no longer answers, and from a port that has refused
// minRefusals connections in a row after refusedTime of silence, if p was Alive once and no
// node that is heard hears it. Other results count after suspectDelay of
// silence: p becomes Unknown if it was never Alive and its port refused, or neither it nor the
// address answered; else Suspect. It is also Suspect if a packet from it could not be opened
// within forgetAfter.
func (d *detector) evaluateSilent(p *peer, now time.Time) {
	probe, silent := &p.probe, min(now.Sub(p.rx.at), now.Sub(d.listeningSince))
	result := probe.result
	if probe.at.IsZero() || p.state == vip.Alive && now.Sub(probe.at) >= probeMaxAge {
		if p.state == vip.Alive && silent >= unprobedSuspectAfter {
			d.setState(p, vip.Suspect, "it is silent, and this node can't probe it", now)
		}
		return
	}
	switch {
	case p.wasAlive && probe.refusals >= minRefusals && silent >= refusedTime && !d.heardByOthers(p, now):
		d.setState(p, vip.Dead, "its node refuses connections: nothing listens on its port", now)
	case p.wasAlive && probe.answered && !result.answers && !result.connected && !d.heardByOthers(p, now):
		d.setState(p, vip.Dead, "nobody answers for its address", now)
		p.gone = true
	case min(silent, now.Sub(p.firstSeen)) < d.suspectDelay(p):
	case now.Sub(p.rx.failedAt) < forgetAfter:
		d.setState(p, vip.Suspect, "its packets can't be opened: it has another key, or another version", now)
	case result.refused && !p.wasAlive:
		d.setState(p, vip.Unknown, "nothing listens on its port: its Herald has no herald_peers_port, or another", now)
	case result.connected:
		d.setState(p, vip.Suspect, "it takes TCP connections but sends nothing: its UDP port is blocked, or its process hangs", now)
	case result.answers:
		d.setState(p, vip.Suspect, "its address is answered for, but its port is not: it is blocked", now)
	case p.wasAlive:
		d.setState(p, vip.Suspect, "it is silent, and its address can't be asked for or other nodes hear it", now)
	default:
		d.setState(p, vip.Unknown, "nobody answers for its address, and no heartbeat of it was ever received", now)
	}
}

// suspectDelay returns how long p must be silent, or not have echoed, to become Suspect: twice
// the detection time of both nodes' transmit intervals together, and 3 s at least.
func (d *detector) suspectDelay(p *peer) time.Duration {
	return max(3*time.Second, 2*detectionTime(p.rx.interval+d.interval))
}

// heardByOthers reports whether another node that is Alive or Suspect and whose heartbeats arrive says
// that it hears p: then only the path between p and this node is broken.
func (d *detector) heardByOthers(p *peer, now time.Time) bool {
	for _, q := range d.peers {
		if q == p || q.state != vip.Alive && q.state != vip.Suspect || !q.rx.arriving(now) {
			continue
		}
		if slices.ContainsFunc(q.rx.echoes, func(e echo) bool { return e.node == p.id && e.hears }) {
			return true
		}
	}
	return false
}

// setState stores the state of p and the reason. If the state is another one than before,
// since is set to now, and it is a change. When p becomes Alive, its next probe is due a
// moment later, which differs for each pair of nodes. When it becomes Dead, that time is stored as diedAt, and all that are Suspect and silent are probed at once, or as soon as the probe that runs has ended (probeEnded). When it becomes anything else, its TCP
// port counts as never reached, and with Unknown its address as never answered for.
func (d *detector) setState(p *peer, state vip.Liveness, why string, now time.Time) {
	if p.state == state {
		p.why = why
		return
	}
	c := change{node: p.name, was: p.state, is: state, why: why, stopped: p.rx.stopping}
	if !p.rx.at.IsZero() {
		c.silent = now.Sub(p.rx.at)
	}
	d.changes = append(d.changes, c)
	p.state, p.since, p.why, p.gone = state, now, why, false
	p.probe.unanswered = 0
	if state == vip.Alive {
		// Each pair of nodes probes at another time: at a start all become Alive at once.
		p.wasAlive, p.probe.next = true, now.Add(time.Duration(p.id[0]^d.id[0])*d.interval/40)
		return
	}
	if state == vip.Dead {
		d.diedAt = now
		for _, q := range d.peers { // nobody is fenced before those that are silent, too, have answered
			if q.state == vip.Suspect && !q.rx.arriving(now) {
				q.probe.next = now
			}
		}
	}
	if state == vip.Suspect && p.rx.arriving(now) {
		p.probe.next = now // whether what this node sends arrives
	}
	// When it comes back it may be on another link, or behind another switch.
	p.probe.answered, p.probe.open = p.probe.answered && state != vip.Unknown, false
}

// String is "address answered true, port open false, port refused false", for the log.
func (r probeResult) String() string {
	return fmt.Sprintf("address answered %t, port open %t, port refused %t", r.answers, r.connected, r.refused)
}
