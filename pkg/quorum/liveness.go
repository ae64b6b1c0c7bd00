package quorum

import (
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// StopTime is how long a stopping process may take to release its node lease; its VIPs are handed over by then.
const StopTime = 3 * time.Second

// Between nodes that may fence: one tries at once, others in turn.
const (
	deadDelay   = 150 * time.Millisecond // a node that is dead, or has yielded
	silentDelay = 500 * time.Millisecond // a node whose lease is silent
)

// countReachable decides by the nodes reached whether this one may fence, and is isolated; the unheard reach none.
func (e *evaluation) countReachable() {
	known, reached, inTime, heard, doubtful := 1, 1, 1, 1, 0
	var lastDeath time.Time
	for _, p := range e.peers {
		if p.dead() && !p.Over {
			lastDeath = Later(lastDeath, p.status.Since)
		}
		lastDeath = Later(lastDeath, p.isolatedAt)
	}
	for _, p := range e.peers {
		switch {
		case !p.renews, p.status.Stopping:
		case p.dead() && p.status.ProcessEnded: // its kernel refuses connections, so this node is not cut off from it
			known, reached = known+1, reached+1
		case p.dead(), p.cutOff(), p.status.Unanswered, e.neverReached(p):
			known++
		case p.status.Liveness == vip.Alive, p.status.Liveness == vip.Suspect:
			known, reached = known+1, reached+1
			// One that nobody hears, its port blocked, must have answered since the last death: else this node may be cut off.
			silent := !p.status.SilentSince.IsZero()
			switch {
			case p.status.Overdue || p.status.EchoOverdue || silent && !p.status.AnsweredAt.After(lastDeath):
				doubtful++
			case p.isolatedIn == 0: // else it backs no fence; but it is reached: nobody is isolated because others say they are
				inTime++
			}
			if p.isolatedIn == 0 && !silent {
				heard++
			}
		}
	}
	e.d.Reached, e.d.Known, e.d.GatewaySince = reached, known, lastDeath
	gateway := vip.Unknown
	if 2*reached == known || 2*inTime == known || 2*heard == known || 2*(reached-doubtful) == known {
		gateway, e.d.NeedsGateway = e.Gateway, true
	}
	enough := func(n int) bool { return 2*n > known || 2*n == known && gateway == vip.Alive }
	few := func(n int) bool { return 2*n < known || 2*n == known && gateway == vip.Dead }
	s, now, before, rejoined, minority := &e.s, e.Now, e.s.isolated, e.s.rejoining, few(reached)
	if minority {
		s.minorityAt = now
	}
	e.mayFence, e.mayFenceHung, e.d.MayPlace = enough(inTime), enough(heard), !few(reached-doubtful)
	switch {
	case minority && !e.late, e.Self.WasIsolated && (e.late || s.isolatedAt.IsZero()):
		s.isolated, s.isolatedAt = true, now
	case s.isolated && now.Sub(s.isolatedAt) > RejoinTime:
		s.isolated = false
	}
	s.rejoining = s.isolated && !minority
	e.d.Isolated, e.d.Rejoining = s.isolated, s.rejoining
	e.d.Changed = e.d.Changed || s.isolated != before || s.rejoining != rejoined
}

// neverReached reports whether p was not reached since this process began on an isolated node, if that can be known.
func (e *evaluation) neverReached(p peer) bool {
	unmet := p.status.Liveness == vip.Unknown || p.status.Liveness == vip.Suspect
	return e.Self.WasIsolated && e.Statuses != nil && p.Neighbor && unmet && p.status.AnsweredAt.IsZero()
}

// listFences stores whom to fence, in turn by name, first of nodes with the same kind of VIPs, which know the heirs.
func (e *evaluation) listFences() {
	e.d.Fence = map[string]string{}
	if t := e.tenure(); e.Self.RenewingSince.IsZero() || !t.Holds(e.Now) || !t.Confirmed {
		return
	}
	before, all := map[bool]int{}, map[bool]int{} // by Peer.NoServices: the nodes whose name sorts before its own, and all
	for node, alive := range e.d.Alive {
		if none := e.peers[node].NoServices; alive {
			all[none]++
			if node < e.Self.Name {
				before[none]++
			}
		}
	}
	for node, p := range e.peers {
		if p.Over {
			continue
		}
		turn, other := before[e.Self.NoServices], p.NoServices != e.Self.NoServices
		if other {
			turn += all[p.NoServices]
		}
		if e.d.Alive[node] && (other || node < e.Self.Name) { // it was counted, and has no turn
			turn--
		}
		if why := e.fenceReason(p, time.Duration(turn)); why != "" {
			e.d.Fence[node] = why
		}
	}
}

// fenceReason returns why this node must fence p now, or "". turn is how many nodes try before it.
func (e *evaluation) fenceReason(p peer, turn time.Duration) string {
	// A node gets the whole lease duration once its renewals can be seen. A renewal here without an answer has not failed,
	// and shows that others can't renew either.
	silent := e.Now.Sub(Later(Later(p.Changed, e.Self.RenewingSince), e.s.ranOutAt))
	deadFor := e.Now.Sub(p.status.Since)
	switch {
	case p.status.Stopping:
		deadFor -= StopTime
	case p.status.ProcessEnded:
		deadFor = p.endedFor(e.Now) - e.Timing.RestartTime()
		if p.Neglects > 0 { // no kernel answers for what it was given
			deadFor = max(deadFor, p.Neglects)
		}
	}
	hungFor := min(e.Now.Sub(p.status.SilentSince)-e.Timing.RestartTime(),
		min(silent, e.Now.Sub(e.s.renewalLate))-2*e.Timing.RetryPeriod)
	// A node that rejoins meets others one by one: those not met look dead. So it is after a stop.
	settled := e.Now.Sub(e.s.minorityAt) > RejoinTime && e.Now.Sub(e.Self.ConfirmAfter) > tolerance
	switch {
	case p.dead() && e.mayFence && settled && deadFor >= turn*deadDelay:
		return ReasonDead
	// It sends but does not receive: nobody could ask for what it has. Once, since it takes nothing.
	case p.isolatedIn == p.Epoch && p.Epoch != 0 && e.mayFence && settled && e.Now.Sub(p.isolatedAt) >= turn*deadDelay:
		return ReasonIsolated
	case p.hangs(e.Timing, e.Now) && e.mayFenceHung && settled && hungFor >= turn*deadDelay:
		return ReasonHangs
	// A process that was stopped says so, too, until it has confirmed its claims.
	case !p.yieldedSince.IsZero() && e.Now.Sub(p.heardAgainAt) > tolerance &&
		e.Now.Sub(p.Changed) >= e.Timing.RetryPeriod && e.Now.Sub(p.yieldedSince) >= turn*deadDelay:
		return ReasonYielded
	case p.Neglects > turn*deadDelay && p.status.Liveness != vip.Dead && settled:
		return ReasonNeglects
	case p.active() && e.s.movedFrom(p.name, p.Epoch) && e.d.WriteMoves &&
		e.Now.Sub(e.Self.RenewingSince) >= turn*deadDelay:
		return ReasonMoved
	case silent >= e.Timing.LeaseDuration+turn*silentDelay:
		return ReasonSilent
	}
	return ""
}

// The reasons to fence a node.
const (
	ReasonDead     = "it is dead on the VIPs' link"
	ReasonIsolated = "it says that it reaches too few other nodes on the VIPs' link"
	ReasonHangs    = "it sends no heartbeats and does not renew its node lease, though its kernel answers: its " +
		"process hangs"
	ReasonYielded = "it can't renew its node lease and acts on no claim"
	// ReasonNeglects: docs/ownership.md, rule 8.
	ReasonNeglects = "its agent has not taken up what the table gives it: it hangs, or its watch does"
	ReasonMoved    = "what it had was moved without the API server"
	ReasonSilent   = "its node lease has not been renewed for the lease duration"
)
