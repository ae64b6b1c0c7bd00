package quorum

import (
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// An evaluation is one call of Evaluate: s and d are made step by step.
type evaluation struct {
	Input
	s     State
	d     Decision
	peers map[string]peer
	late  bool // this node's renewal is
}

// A peer is a Peer with its status and what is remembered of it.
type peer struct {
	Peer
	memory
	renews bool // its node lease is active and has changed within the lease duration
}

// active reports whether the node lease exists and is neither fenced nor released.
func (p Peer) active() bool { return p.Exists && !p.Over }

// dead reports whether the node was found dead in the epoch of its node lease, or a later
// one. A node that began an epoch and has sent no heartbeat in it may be unable to send
// any, or cut off from this link only: its lease decides.
func (p peer) dead() bool {
	return p.status.Liveness == vip.Dead && p.Epoch != 0 && p.status.Heartbeat.Epoch >= p.Epoch
}

// yielded reports whether the node's heartbeats say that it acts on no claim and does not
// reach the API server.
func (p peer) yielded() bool {
	h := p.status.Heartbeat
	return p.status.Liveness == vip.Alive && h.Epoch == p.Epoch && p.Epoch != 0 && !h.TenureValid && !h.APIReachable
}

// Evaluate decides what follows from in and from the State of the evaluation before (the
// zero State at first), and returns the State for the next. It should be called several
// times a second, and when anything in its Input has changed.
func Evaluate(before State, in Input) (State, Decision) {
	e := &evaluation{Input: in, s: before, late: in.Self.late(in.Timing, in.Now)}
	for _, status := range in.Statuses {
		if status.Liveness == vip.Alive && status.Heartbeat.VoidedClaim == ClaimText(in.Self.Name, in.Self.Epoch) {
			e.endEpoch("another node has voided it")
		}
	}
	e.updatePeers()
	e.countReachable()
	e.decideTenure()
	e.dropMoves()
	e.commitProposals()
	e.writeHeartbeat()
	e.listPeers()
	e.listFences()
	return e.s, e.d
}

// endEpoch decides that this node's epoch is over, if it has one that is not.
func (e *evaluation) endEpoch(why string) {
	if e.Self.Epoch != 0 && !e.Self.EpochOver {
		e.Self.EpochOver, e.d.EndEpoch = true, why
	}
}

// tenure is this node's right to act on its claims.
func (e *evaluation) tenure() vip.Tenure { return e.Self.Tenure(e.Timing, e.s.heldUntil, e.Now) }

// updatePeers combines what is known of each peer, and remembers that.
func (e *evaluation) updatePeers() {
	e.peers = make(map[string]peer, len(e.Input.Peers))
	known := make(map[string]memory, len(e.Input.Peers))
	for node, x := range e.Input.Peers {
		m := e.s.memory[node]
		p := peer{Peer: x, memory: m, renews: x.active() && e.Now.Sub(x.Changed) < e.Timing.LeaseDuration}
		p.status = e.Statuses[node]
		// The rest of the heartbeat is for nodes without the API server, which set TenureValid
		// or their hashes once it has any effect.
		if p.status.Liveness != m.status.Liveness || p.status.Heartbeat.Epoch != m.status.Heartbeat.Epoch || p.status.Heartbeat.TenureValid != m.status.Heartbeat.TenureValid {
			e.d.Changed = true
		}
		p.lostAPI = e.late && (m.lostAPI || p.status.Liveness == vip.Alive && !p.status.Heartbeat.APIReachable)
		if !p.yielded() {
			p.yieldedSince = time.Time{}
		} else if p.yieldedSince.IsZero() {
			p.yieldedSince = e.Now
		}
		e.peers[node], known[node] = p, p.memory
	}
	e.s.memory = known
}

// decideTenure decides what this node's tenure rests on: Verdict, HoldUntil and EndEpoch.
// It also decides whether claims of dead nodes may be moved.
func (e *evaluation) decideTenure() {
	s, now := &e.s, e.Now
	if !e.late {
		s.Voters = e.countVoters()
	}
	t := e.tenure()
	holds := t.Holds(now)
	api, returned, dead := e.findHolders(holds && t.Confirmed)
	if !api {
		s.apiSince = time.Time{}
	} else if s.apiSince.IsZero() {
		s.apiSince = now
	}
	mayFollow := api && now.Sub(s.apiSince) <= e.apiTolerance(returned)
	agree, watches := e.countAgreeing(), e.Statuses != nil
	majority := 2*agree > len(s.Voters)
	half := e.late && 2*agree == len(s.Voters)
	e.d.NeedsGateway = e.d.NeedsGateway || half
	enough := majority || half && e.Gateway == vip.Alive
	if !e.late || api || !watches || 2*dead <= len(s.Voters) {
		s.cutOffSince = time.Time{}
	} else if s.cutOffSince.IsZero() {
		s.cutOffSince = now
	}
	e.d.Verdict = Expiring
	switch {
	case !e.late || e.Self.EpochOver || e.Self.Epoch == 0:
		e.d.Verdict = Renewing
		s.heldUntil, s.quorumAt = time.Time{}, now
	case api && !mayFollow && now.Sub(e.Self.Renewed) > e.Timing.yield():
		e.d.Verdict = Yielding
		e.endEpoch("other nodes reach the API server and this one does not")
	case !s.cutOffSince.IsZero() && now.Sub(s.cutOffSince) > tolerance:
		e.d.Verdict = GivingUp
		e.endEpoch("it reaches neither the API server nor most of the other nodes")
	case !holds && watches && len(s.Voters) > 2:
		// Others may have moved what it held: its claims must not become valid again.
		e.d.Verdict = GivingUp
		e.endEpoch("it could not be renewed in time")
	case watches && holds && (!api || returned && mayFollow) && enough:
		s.quorumAt, s.heldUntil = now, now.Add(holdTime)
	case now.Sub(s.quorumAt) > tolerance:
		s.heldUntil = time.Time{}
	}
	if e.d.Verdict == Expiring && s.heldUntil.After(now) {
		e.d.Verdict = Holding
	}
	moving := watches && e.late && holds && !api && majority && !e.Self.EpochOver && now.Sub(e.Self.Renewed) > e.Timing.late()+moveDelay
	if moving != s.moving {
		s.moving, s.proposals = moving, nil
		e.d.Changed = true
	}
	e.d.HoldUntil, e.d.Holders = s.heldUntil, len(s.holders)
}

// countVoters is the nodes that are active now, with their epochs, this node included. One
// that has not renewed for the lease duration counts until it is fenced: it may be this
// node's watch that is stuck, and of itself alone it would be the majority.
func (e *evaluation) countVoters() map[string]int64 {
	voters := map[string]int64{e.Self.Name: e.Self.Epoch}
	for node, p := range e.peers {
		if p.active() {
			voters[node] = p.Epoch
		}
	}
	return voters
}

// apiTolerance is how long others may reach the API server before this node, which does
// not, yields. If it was out of reach for them, too (returned), this node's renewal may
// still wait for an answer that never comes, and needs time to be given up and sent again
// (decision 0060).
func (e *evaluation) apiTolerance(returned bool) time.Duration {
	if returned {
		return e.Timing.RenewDeadline/2 + e.Timing.RetryPeriod
	}
	return tolerance
}

// findHolders stores which voters act on their claims, and the hashes of that. holds: this
// node does. It reports whether any other node reaches the API server; whether all of those
// had lost it while this one has; and how many voters are dead.
func (e *evaluation) findHolders(holds bool) (api, returned bool, dead int) {
	s, holders := &e.s, []string{}
	returned = true
	if holds {
		holders = append(holders, e.Self.Name)
	}
	for node, p := range e.peers {
		epoch, voter := s.Voters[node]
		h := p.status.Heartbeat
		switch {
		case p.status.Liveness == vip.Alive:
			api = api || h.APIReachable
			returned = returned && (p.lostAPI || !h.APIReachable)
			if voter && h.TenureValid && h.Epoch == epoch {
				holders = append(holders, node)
			}
		case voter && p.status.Liveness == vip.Dead:
			dead++
		}
	}
	slices.Sort(holders)
	s.holders = holders
	s.stateHash, s.futureHash = s.hash(s.Moved), 0
	if len(s.proposals) > 0 {
		s.futureHash = s.hash(s.future())
	}
	return api, api && returned, dead
}

// countAgreeing is how many holders have the StateHash that this node has, or will have
// once its proposals are carried out; this node included if it is one.
func (e *evaluation) countAgreeing() (n int) {
	for _, node := range e.s.holders {
		h := e.peers[node].status.Heartbeat.StateHash // 0 from a node that has sent none yet
		if node == e.Self.Name || h != 0 && (h == e.s.stateHash || h == e.s.futureHash) {
			n++
		}
	}
	return n
}

// listPeers lists the peers that may be given VIPs, those whose claims may be moved, and
// those that are Suspect.
func (e *evaluation) listPeers() {
	e.d.Alive, e.d.Released = make(map[string]bool, len(e.peers)), map[string]bool{}
	for node, p := range e.peers {
		if e.late {
			_, e.d.Alive[node] = slices.BinarySearch(e.s.holders, node)
		} else {
			e.d.Alive[node] = p.renews && !p.dead()
		}
		if e.s.moving && e.s.Voters[node] != 0 && (p.dead() || p.status.Liveness == vip.Alive && !p.status.Heartbeat.TenureValid) {
			e.d.Released[node] = true
		}
		if p.status.Liveness == vip.Suspect && e.Now.Sub(p.status.Since) > RejoinTime && p.renews {
			e.d.Suspects = append(e.d.Suspects, node)
		}
	}
	slices.Sort(e.d.Suspects)
}

// writeHeartbeat makes the heartbeat to send from now on.
func (e *evaluation) writeHeartbeat() {
	t := e.tenure()
	e.d.Heartbeat = vip.Heartbeat{
		Epoch: e.Self.Epoch, APIReachable: !e.late && !e.Self.EpochOver && e.Self.Epoch != 0,
		TenureValid: t.Holds(e.Now) && t.Confirmed,
		StateHash:   e.s.stateHash, ProposalHash: e.proposalHash(), VoidedClaim: e.voidedClaim(),
	}
}

// voidedClaim is the claim, as ClaimText has it, of the first node by name that acts on its
// claims though they are void: its epoch is over, or one of them was moved. "" without any.
func (e *evaluation) voidedClaim() string {
	first, epoch := "", int64(0)
	for node, p := range e.peers {
		h := p.status.Heartbeat
		if p.status.Liveness != vip.Alive || !h.TenureValid || h.Epoch == 0 || first != "" && first < node {
			continue
		}
		if p.Epoch > h.Epoch || p.Epoch == h.Epoch && p.Over || e.s.movedFrom(node, h.Epoch) {
			first, epoch = node, h.Epoch
		}
	}
	if first == "" {
		return ""
	}
	return ClaimText(first, epoch)
}
