package quorum

import (
	"cmp"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// An evaluation is one call of Evaluate, in steps.
type evaluation struct {
	Input
	s            State
	d            Decision
	peers        map[string]peer
	late         bool // this node's renewal is
	mayFence     bool // this node reaches enough others in time to fence dead ones
	mayFenceHung bool // it hears enough others to fence one that hangs
}

type peer struct {
	Peer
	memory
	name   string
	renews bool // its node lease is active and has changed within the lease duration
}

// active reports whether the node lease exists and is neither fenced nor released.
func (p Peer) active() bool { return p.Exists && !p.Over }

// dead reports whether the node is Dead in its lease's epoch or later; one that sent nothing in it may be cut off here.
func (p peer) dead() bool {
	return p.status.Liveness == vip.Dead && p.Epoch != 0 && p.status.Heartbeat.Epoch >= p.Epoch
}

// cutOff reports whether nobody answers for a node whose process has not ended, in any epoch: it goes on to renew.
func (p peer) cutOff() bool {
	return p.Neighbor && p.status.Liveness == vip.Dead && !p.status.ProcessEnded
}

// lost reports whether a dead node's claims may be taken: at once if its kernel is silent, else after RestartTime.
func (p peer) lost(t Timing, now time.Time) bool {
	return p.dead() && (!p.status.ProcessEnded || p.endedFor(now) >= t.RestartTime())
}

// endedFor returns how long ago an ended process was noticed; a later renewal is another process's.
func (p peer) endedFor(now time.Time) time.Duration {
	return now.Sub(Later(p.status.HeardAt, p.Changed))
}

// hangs reports whether a node heard in its epoch is silent and has not renewed, though its kernel answers.
func (p peer) hangs(t Timing, now time.Time) bool {
	s := p.status
	return (s.Liveness == vip.Alive || s.Liveness == vip.Suspect) && p.Epoch != 0 && s.Heartbeat.Epoch >= p.Epoch &&
		!s.SilentSince.IsZero() && now.Sub(s.SilentSince) >= t.RestartTime() && now.Sub(p.Changed) >= 2*t.RetryPeriod
}

// mayHoldUnheard reports whether the node may act on claims that are void here, or on moves. apart: so may those whose
// kernels are silent, on a link without heartbeats.
func (p peer) mayHoldUnheard(t Timing, now time.Time, apart bool) bool {
	unheard := p.status.Liveness != vip.Alive && p.status.Liveness != vip.Dead || p.status.Gone && apart
	return p.Exists && unheard && (p.Over || now.Sub(p.Changed) > t.late())
}

// yielded reports whether the node says that it acts on no claim, and does not reach the API server.
func (p peer) yielded() bool {
	h := p.status.Heartbeat
	return p.status.Liveness == vip.Alive && h.Epoch == p.Epoch && p.Epoch != 0 && !h.TenureValid && !h.APIReachable
}

// Evaluate decides what this node may do from in and the last State (zero at first), and returns the next. It is called
// several times a second, and when Input has changed.
func Evaluate(before State, in Input) (State, Decision) {
	e := &evaluation{Input: in, s: before, late: in.Self.late(in.Timing, in.Now)}
	for node, status := range in.Statuses { // also of nodes that do not hear this one, or no longer: void is for good
		h, p := status.Heartbeat, in.Peers[node]
		if h.VoidedClaim == ClaimText(in.Self.Name, in.Self.Epoch) && !(p.Over && h.Epoch <= p.Epoch) {
			e.endEpoch("another node has voided it")
		}
	}
	e.updatePeers()
	e.countReachable()
	e.d.WriteMoves = e.mayWriteMoves()
	e.decideTenure()
	e.dropMoves()
	e.adoptMoves()
	e.commitProposals()
	e.findUnknownMoves()
	e.setHeartbeat()
	e.listPeers()
	e.listFences()
	return e.s, e.d
}

// endEpoch marks this node's epoch as over, and why, unless there is none, or it is over.
func (e *evaluation) endEpoch(why string) {
	if e.Self.Epoch != 0 && !e.Self.EpochOver {
		e.Self.EpochOver, e.d.EndEpoch = true, why
	}
}

// tenure returns this node's right to act (Self.Tenure) by what is decided so far.
func (e *evaluation) tenure() vip.Tenure {
	return e.Self.Tenure(e.Timing, Later(e.s.heldUntil, e.s.keptUntil), e.Now)
}

// updatePeers fills e.peers with what is known of each peer, and remembers that.
func (e *evaluation) updatePeers() {
	e.peers = make(map[string]peer, len(e.Input.Peers))
	known := make(map[string]memory, len(e.Input.Peers))
	for node, x := range e.Input.Peers {
		m, before := e.s.memory[node]
		p := peer{Peer: x, memory: m, name: node, renews: x.active() && e.Now.Sub(x.Changed) < e.Timing.LeaseDuration}
		p.status = e.Statuses[node]
		// The rest is for nodes without the API server, which set TenureValid or their hashes once it has any effect.
		if p.status.Liveness != m.status.Liveness || p.status.Heartbeat.Epoch != m.status.Heartbeat.Epoch ||
			p.status.Heartbeat.TenureValid != m.status.Heartbeat.TenureValid {
			e.d.Changed = true
		}
		p.keptAPI = (!e.late || m.keptAPI) && p.status.Liveness == vip.Alive && p.status.Heartbeat.APIReachable
		if !m.status.SilentSince.IsZero() && p.status.SilentSince.IsZero() {
			p.heardAgainAt = e.Now
		}
		p.updateAnswersUntil(before, e.Timing, e.Now)
		p.updateIsolated(e.Now)
		p.yieldedSince = Since(p.yieldedSince, p.yielded(), e.Now)
		e.peers[node], known[node] = p, p.memory
	}
	e.s.memory = known
}

// updateIsolated stores in which epoch, and since when, p says that it is isolated; unheard, it says nothing.
func (p *peer) updateIsolated(now time.Time) {
	says := p.status.Heartbeat.Isolated && !p.status.Overdue
	switch heard := p.status.Liveness == vip.Alive || p.status.Liveness == vip.Suspect; {
	case !says || !heard:
		p.isolatedIn, p.isolatedAt = 0, time.Time{}
	case p.isolatedIn == 0:
		p.isolatedIn, p.isolatedAt = max(1, p.status.Heartbeat.Epoch), now
	}
}

// updateAnswersUntil notes since when p's claims are void: its kernel may answer while an address lives.
func (p *peer) updateAnswersUntil(known bool, t Timing, now time.Time) {
	if p.activeEpoch != 0 && (p.Over || p.Epoch > p.activeEpoch) || !known && p.Over {
		p.loseClaims(cmp.Or(p.activeEpoch, p.Epoch), t, now)
	}
	if p.activeEpoch = 0; p.active() {
		p.activeEpoch = p.Epoch
	}
}

// loseClaims stores until when the kernel may answer for VIPs whose claims are now void, once for each epoch. A node
// may not know: its right is by its last renewal, which came before the fence, and addresses end with it (pkg/netif).
func (m *memory) loseClaims(epoch int64, t Timing, now time.Time) {
	if m.lostEpoch != epoch {
		m.lostEpoch = epoch
		m.answersUntil = now.Add(t.maxAnswers())
	}
}

// decideTenure decides what this node's right to act rests on (Verdict), how long it lasts, and whether claims may be
// moved without the API server (s.moving). Without heartbeats nothing is held on to, given up or moved.
func (e *evaluation) decideTenure() {
	s, now := &e.s, e.Now
	e.updateVoters()
	t := e.tenure()
	holds := t.Holds(now)
	s.unconfirmedSince = Since(s.unconfirmedSince, !t.Confirmed, now)
	api, returned, dead, unheard := e.findHolders(e.acts())
	s.apiSince = Since(s.apiSince, api, now)
	mayFollow := api && now.Sub(s.apiSince) <= e.apiTolerance(returned)
	agree, watches := e.countAgreeing(), e.Statuses != nil
	majority := 2*agree > len(s.Voters)
	half := e.late && 2*agree == len(s.Voters)
	e.d.NeedsGateway = e.d.NeedsGateway || half
	half = half && unheard == 0 // the others are dead: they are no majority, so they move nothing
	byGateway := half && e.Gateway == vip.Alive
	enough := majority || byGateway
	s.cutOffSince = Since(s.cutOffSince, e.late && !api && watches && 2*dead > len(s.Voters), now)
	e.d.Verdict = Expiring
	switch {
	case !e.late || e.Self.EpochOver || e.Self.Epoch == 0:
		e.d.Verdict = Renewing
		s.heldUntil, s.keptUntil, s.quorumAt = time.Time{}, time.Time{}, now
	case api && !mayFollow && now.Sub(e.Self.Renewed) > e.Timing.yield():
		e.d.Verdict = Yielding
		e.endEpoch("other nodes reach the API server and this one does not")
	case !s.cutOffSince.IsZero() && now.Sub(s.cutOffSince) > tolerance:
		e.d.Verdict = GivingUp
		e.endEpoch("it reaches neither the API server nor most of the other nodes")
	case !holds && watches && len(s.Voters) > 2:
		// Others may have moved what it held: that must not become valid again.
		e.d.Verdict = GivingUp
		e.endEpoch("it could not be renewed in time")
	case watches && holds && (!api || returned && mayFollow) && enough:
		s.quorumAt, s.heldUntil = now, now.Add(holdTime)
	case watches && holds && enough && s.heldUntil.IsZero():
		s.quorumAt, s.keptUntil = now, e.Self.Renewed.Add(e.Timing.knowsTime())
	case !half && now.Sub(Later(s.quorumAt, e.Self.ConfirmAfter)) > tolerance:
		// others need a moment to hear a process again that was stopped
		s.heldUntil, s.keptUntil = time.Time{}, time.Time{}
	}
	if e.d.Verdict == Expiring && s.heldUntil.After(now) {
		e.d.Verdict = Holding
	}
	e.d.Confirmed = holds && !t.Confirmed && e.late && !api && e.d.EndEpoch == "" && e.confirmedByOthers(byGateway)
	moving := watches && e.lateForMoves() && holds && !api && majority && !e.Self.EpochOver
	if moving != s.moving {
		s.moving, s.proposals = moving, nil
		e.d.Changed = true
	}
	e.d.HoldUntil, e.d.Holders = Later(s.heldUntil, s.keptUntil), len(s.holders)
}

// updateVoters stores the voters while this node renews, and when it last did not.
func (e *evaluation) updateVoters() {
	s := &e.s
	switch {
	case e.late:
		if s.renewalLate = e.Now; e.Now.Sub(e.Self.Renewed) > e.Timing.RenewDeadline {
			s.ranOutAt = e.Now
		}
	case e.d.WriteMoves, s.Voters[e.Self.Name] != e.Self.Epoch: // else others hold on in the group that it was
		s.Voters = e.listVoters()
	}
}

// acts reports whether this node acts: by a confirmed tenure, or stopped so briefly that others may confirm it.
func (e *evaluation) acts() bool {
	t := e.tenure()
	return t.Holds(e.Now) && (t.Confirmed || e.late && e.Statuses != nil && e.Now.Sub(e.s.unconfirmedSince) <= 2*tolerance)
}

// confirmedByOthers reports whether most voters have this node's StateHash since it went on, or half if that suffices:
// none of its claims moved.
func (e *evaluation) confirmedByOthers(half bool) bool {
	agree, all := 1, len(e.s.Voters)
	for _, node := range e.s.holders {
		if s := e.peers[node].status; s.Heartbeat.StateHash == e.s.stateHash && !s.Overdue &&
			s.HeardAt.Sub(e.Self.ConfirmAfter) >= tolerance/2 {
			agree++
		}
	}
	return e.acts() && e.Now.Sub(e.Self.ConfirmAfter) >= tolerance && (2*agree > all || 2*agree == all && half)
}

// listVoters returns the epochs of this node and all others with node leases neither fenced nor released, or that are
// heard in a later epoch. Silent ones count until fenced: this watch may be late, and alone it would be the majority.
func (e *evaluation) listVoters() map[string]int64 {
	voters := map[string]int64{e.Self.Name: e.Self.Epoch}
	for node, p := range e.peers {
		if h := p.status.Heartbeat; p.status.Liveness == vip.Alive && h.Epoch > p.Epoch {
			voters[node] = h.Epoch
		} else if p.active() {
			voters[node] = p.Epoch
		}
	}
	return voters
}

// apiTolerance returns how long others may reach the API server before this yields (docs/why.md, "Some nodes return
// first").
func (e *evaluation) apiTolerance(returned bool) time.Duration {
	if returned {
		return e.Timing.RenewDeadline/2 + e.Timing.RetryPeriod
	}
	return tolerance
}

// findHolders stores the voters that act on their claims, and digests. It returns whether any heard node reaches the
// API server, whether all such had lost it, and how many voters are Dead, or unheard.
func (e *evaluation) findHolders(acts bool) (api, returned bool, dead, unheard int) {
	s, holders := &e.s, []string{}
	returned = true
	if acts {
		holders = append(holders, e.Self.Name)
	}
	for node, p := range e.peers {
		epoch, voter := s.Voters[node]
		h := p.status.Heartbeat
		switch {
		case p.status.Liveness == vip.Alive:
			api = api || h.APIReachable
			returned = returned && !p.keptAPI
			if voter && h.TenureValid && h.Epoch == epoch {
				holders = append(holders, node)
			}
		case voter && p.status.Liveness == vip.Dead:
			dead++
		case voter:
			unheard++
		}
	}
	slices.Sort(holders)
	s.holders = holders
	s.stateHash, s.futureHash = s.hash(s.Moved), 0
	if len(s.proposals) > 0 {
		s.futureHash = s.hash(s.movedWith(s.proposals))
	}
	return api, api && returned, dead, unheard
}

// countAgreeing returns how many holders have this node's StateHash, or that after its proposals.
func (e *evaluation) countAgreeing() (n int) {
	for _, node := range e.s.holders {
		h := e.peers[node].status.Heartbeat.StateHash // 0 from a node that has sent none yet
		if node == e.Self.Name || h != 0 && (h == e.s.stateHash || h == e.s.futureHash) {
			n++
		}
	}
	return n
}

func (e *evaluation) listPeers() {
	e.d.Alive, e.d.Released, e.d.AnswersUntil = make(map[string]bool, len(e.peers)), map[string]bool{},
		map[string]time.Time{}
	all, heard := 1, 1 // of those with node leases
	for _, p := range e.peers {
		if p.Exists {
			if all++; p.status.Liveness == vip.Alive || p.status.ProcessEnded {
				heard++
			}
		}
	}
	for node, p := range e.peers {
		if e.late {
			_, e.d.Alive[node] = slices.BinarySearch(e.s.holders, node)
		} else {
			e.d.Alive[node] = p.renews && !p.dead() && (e.s.isolated && !p.status.Overdue || !e.s.isolated && !p.cutOff())
			e.d.Changed = e.d.Changed || e.s.isolated && e.d.Alive[node] != p.alive
			p.alive = e.d.Alive[node]
		}
		before := p.released
		p.released = e.s.moving && e.s.Voters[node] != 0 && (p.lost(e.Timing, e.Now) || p.hangs(e.Timing, e.Now) ||
			p.status.Liveness == vip.Alive && !p.status.Heartbeat.TenureValid)
		switch {
		case p.released:
			e.d.Released[node] = true
			e.d.Changed = e.d.Changed || !before
			p.loseClaims(p.Epoch, e.Timing, e.Now)
		case before && !e.s.movedFrom(node, p.Epoch): // it goes on in its epoch
			p.lostEpoch = 0
		}
		switch {
		case p.mayHoldUnheard(e.Timing, e.Now, e.late || 2*heard <= all): // they renew, or hold on
			p.answersUntil = Later(p.answersUntil, e.Now.Add(vip.KernelAnswers))
		// fenced, maybe: the table may show it first
		case p.status.Gone && !p.Over:
			p.answersUntil = Later(p.answersUntil, Later(p.status.HeardAt, p.Changed).Add(e.Timing.maxAnswers()))
		case p.status.ProcessEnded && e.Now.Sub(p.Changed) > e.Timing.late():
			p.answersUntil = Later(p.answersUntil, Later(p.status.HeardAt, p.Changed).Add(vip.KernelAnswers))
		}
		e.s.memory[node] = p.memory
		if e.Now.Before(p.answersUntil) {
			e.d.AnswersUntil[node] = p.answersUntil
		}
		if p.status.Liveness == vip.Suspect && e.Now.Sub(p.status.Since) > RejoinTime && p.renews {
			e.d.Suspects = append(e.d.Suspects, node)
		}
	}
	slices.Sort(e.d.Suspects)
}

// setHeartbeat makes Decision.Heartbeat; APIReachable is an epoch renewed in time, TenureValid that it acts.
func (e *evaluation) setHeartbeat() {
	e.d.Heartbeat = vip.Heartbeat{
		Epoch: e.Self.Epoch, APIReachable: !e.late && !e.Self.EpochOver && e.Self.Epoch != 0,
		TenureValid: e.acts(),
		StateHash:   e.s.stateHash, ProposalHash: e.proposalHash(), VoidedClaim: e.voidedClaim(),
		MovesUnwritten: e.s.movedTo(e.Self.Name),
		Isolated:       e.s.isolated && !e.s.rejoining,
	}
}

// voidedClaim returns a void claim on which a node acts, heard ones first: others may still hear this one; or "".
func (e *evaluation) voidedClaim() string {
	order := map[vip.Liveness]int{vip.Alive: 2, vip.Suspect: 1}
	first, epoch := "", int64(0)
	for node, p := range e.peers {
		h := p.status.Heartbeat
		if !h.TenureValid || h.Epoch == 0 || p.Epoch <= h.Epoch && (p.Epoch != h.Epoch || !p.Over) &&
			!e.s.movedFrom(node, h.Epoch) {
			continue
		}
		before := order[p.status.Liveness] - order[e.peers[first].status.Liveness]
		if first == "" || before > 0 || before == 0 && node < first {
			first, epoch = node, h.Epoch
		}
	}
	if first == "" {
		return ""
	}
	return ClaimText(first, epoch)
}
