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
//	   hears it, and either a probe found that an address which used to answer does not (two in a
//	   row, if it has answered since), or it is silent for refusedTime and its port has refused the
//	   last minRefusals connections. To end the state Alive the last probe must be younger than probeMaxAge.
//
// Without a socket on this node all are Unknown. A silent node stays what it is while this process may have missed its
// heartbeats (canJudgeSilence). A probe without an answer proves nothing while nobody that is heard hears this node.
const (
	startupTime = 3 * time.Second // how long a node that was never Alive is not probed: it may be starting
	// unprobedSuspectAfter is when a silent node becomes Suspect if no probe of it ends.
	unprobedSuspectAfter = 10 * time.Second
	probeMaxAge          = 500 * time.Millisecond // how old a probe may be to end the state Alive
	// A TCP reset is not authenticated: whoever sees the SYN can forge one. So a node is Dead only after refusedTime of
	// silence, and minRefusals in a row. Meanwhile its kernel serves its VIPs (vip.AddressLifetime, or its tenure if less,
	// renewed each 0.75 s), so no client waits.
	refusedTime = 500 * time.Millisecond
	minRefusals = 3
	askPause    = 100 // in how many intervals a late node is asked once: of many, many are late, and asking is work
	// Between probes of a silent node.
	aliveProbePause   = 50 * time.Millisecond
	suspectProbePause = 3 * time.Second
	unmetProbePause   = 10 * time.Second // it was never Alive
	// probeEndedFor is how long an ended process's node is probed: its kernel may die or be cut off, too.
	probeEndedFor = 15 * time.Second
)

// startListening begins, also after a pause, to receive heartbeats. States stay.
func (d *detector) startListening(now time.Time) {
	d.listeningSince, d.checkedAt, d.nextCheck = now, now, checkInterval
}

func (d *detector) checkLateBy(now time.Time) time.Duration {
	return now.Sub(d.checkedAt) - d.nextCheck
}

// canJudgeSilence reports whether silence of p means something: the kernel keeps packets, unless the machine stood
// still.
func (d *detector) canJudgeSilence(p *peer, now time.Time) bool {
	return !d.listeningSince.IsZero() && d.checkLateBy(now) <= pauseThreshold &&
		now.Sub(d.listeningSince) >= p.rx.interval*3/2
}

// check evaluates all nodes, and returns whom to probe, whether one fell silent, and how long this process was paused.
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
		if p.late(now) && now.Sub(p.askedAt) > askPause*p.rx.interval && d.canJudgeSilence(p, now) {
			p.askedAt, p.probe.next = now, now
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

// needsProbe reports whether p is silent, and may have died, was never seen to answer probes, or is Suspect.
func (d *detector) needsProbe(p *peer, now time.Time) bool {
	switch {
	case p.probe.running || !p.addr.IsValid() || now.Before(p.probe.next):
		return false
	case p.rx.arriving(now):
		return p.state == vip.Alive && !p.detectable() || p.late(now) || p.state == vip.Suspect
	case p.state == vip.Dead && (!p.ended() || now.Sub(p.since) >= probeEndedFor) || !d.canJudgeSilence(p, now):
		return false
	}
	return p.wasAlive || now.Sub(p.firstSeen) >= startupTime && now.Sub(d.listeningSince) >= startupTime
}

// probeEnded stores a probe of p, and evaluates p, unless p was heard meanwhile, or may have answered.
func (d *detector) probeEnded(p *peer, result probeResult, startedAt, now time.Time) {
	p.probe.running = false
	missed := d.listeningSince.After(startedAt) || d.delayedAt.After(startedAt) ||
		d.checkLateBy(now) > probeMaxDelay || result == (probeResult{}) && !p.rx.arriving(now) && d.unheard(now)
	if result != (probeResult{}) {
		p.probe.answeredAt, p.probe.unanswered = startedAt, 0
	} else if !missed {
		p.probe.answeredAt = time.Time{}
		p.probe.unanswered++
	}
	switch {
	case p.rx.arriving(now) && p.since.After(startedAt): // it became Alive or Suspect meanwhile, and is probed since then
		return
	case p.rx.arriving(now) && (!p.late(now) || result != (probeResult{})):
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
	case p.state == vip.Suspect && p.probe.unanswered != maxUnanswered:
		p.probe.next = now.Add(suspectProbePause)
	case !p.wasAlive:
		p.probe.next = now.Add(unmetProbePause)
	default:
		p.probe.next = now.Add(aliveProbePause)
	}
	d.evaluate(p, now)
}

// recordHeardProbe stores which probes of p, which is heard, were ever answered: only those prove anything later.
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

// evaluate sets the state of p by heartbeats, or the last probe. The head of this file has a picture.
func (d *detector) evaluate(p *peer, now time.Time) {
	rx := &p.rx
	switch {
	case d.listeningSince.IsZero():
		d.setState(p, vip.Unknown, "this node does not listen", now)
	case rx.stopping:
		d.setState(p, vip.Dead, "it has stopped", now)
	case rx.arriving(now) && !now.After(d.echoDue(p)):
		if p.state != vip.Alive {
			d.setState(p, vip.Alive, "", now)
		}
	case rx.arriving(now):
		if d.canJudgeSilence(p, now) &&
			min(now.Sub(rx.echoOf), now.Sub(p.firstSeen), now.Sub(d.listeningSince)) >= d.suspectDelay(p) {
			d.setState(p, vip.Suspect, "it is heard, but does not hear this node", now)
		}
	case !d.canJudgeSilence(p, now):
	case p.ended():
		d.evaluateEnded(p, now)
	case p.state != vip.Dead:
		d.evaluateSilent(p, now)
	}
}

// evaluateEnded finds p, Dead since its process ended, gone if its kernel is silent, too.
func (d *detector) evaluateEnded(p *peer, now time.Time) {
	probe := &p.probe
	if probe.at.IsZero() || now.Sub(probe.at) >= probeMaxAge || !probe.answered || probe.unanswered <= maxUnanswered ||
		d.heardByOthers(p, now) {
		return
	}
	p.gone, p.why = true, "nobody answers for its address"
	d.changes = append(d.changes, change{node: p.name, was: p.state, is: p.state, why: p.why})
}

// silentSince returns when the last packet of p came, if no node that is heard hears it; else zero.
func (d *detector) silentSince(p *peer, now time.Time) time.Time {
	if !p.rx.verified || p.rx.arriving(now) || !d.canJudgeSilence(p, now) || d.heardByOthers(p, now) {
		return time.Time{}
	}
	return p.rx.at
}

// evaluateSilent sets the state of p, silent and not Dead, by the last probe.
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
	case p.wasAlive && probe.answered && result == (probeResult{}) && !d.heardByOthers(p, now):
		if probe.unanswered <= maxUnanswered {
			return
		}
		d.setState(p, vip.Dead, "nobody answers for its address", now)
		p.gone = true
	case min(silent, now.Sub(p.firstSeen)) < d.suspectDelay(p):
	case now.Sub(p.rx.failedAt) < forgetAfter:
		d.setState(p, vip.Suspect, "its packets can't be opened: it has another key, or another version", now)
	case result.refused && !p.wasAlive:
		d.setState(p, vip.Unknown, "nothing listens on its port: its Herald has no herald_peers_port, or another", now)
	case result.connected:
		d.setState(p, vip.Suspect, "it takes TCP connections but sends nothing: its UDP port is blocked, or its process "+
			"hangs", now)
	case result.answers:
		d.setState(p, vip.Suspect, "its address is answered for, but its port is not: it is blocked", now)
	case p.wasAlive:
		d.setState(p, vip.Suspect, "it is silent, and its address can't be asked for or other nodes hear it", now)
	default:
		d.setState(p, vip.Unknown, "nobody answers for its address, and no heartbeat of it was ever received", now)
	}
}

// suspectDelay returns after what silence, or lack of echoes, p is Suspect.
func (d *detector) suspectDelay(p *peer) time.Duration {
	return max(3*time.Second, 2*detectionTime(p.rx.interval+d.interval))
}

// heardByOthers reports whether a heard node hears p: then only the path to this node is broken.
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

// unheard reports whether nodes are heard, and none shows that it hears this one: who is asked may not hear it either.
func (d *detector) unheard(now time.Time) bool {
	heard := false
	for _, p := range d.peers {
		if p.rx.arriving(now) {
			if heard = true; !d.mayNotHear(p, now) {
				return false
			}
		}
	}
	return heard
}

// setState stores the state of p and why; a new state is a change.
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
	// It may come back on another link, or behind another switch.
	p.probe.answered, p.probe.open = p.probe.answered && state != vip.Unknown, false
}

// String is "address answered true, port open false, port refused false", for the log.
func (r probeResult) String() string {
	return fmt.Sprintf("address answered %t, port open %t, port refused %t", r.answers, r.connected, r.refused)
}
