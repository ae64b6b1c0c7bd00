package quorum

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Propose returns s with moves of this node's plan as its proposals; if they differ, agreementTime begins again.
func (s State) Propose(moves map[vip.Key]Move) State {
	if !s.moving {
		return s
	}
	proposals := make(map[vip.Key]Move, len(moves))
	for k, m := range moves {
		if slices.Contains(s.holders, m.Holder) {
			m.Epoch = s.Voters[m.Holder]
			proposals[k] = m
		}
	}
	if !maps.Equal(proposals, s.proposals) {
		s.proposals, s.agreedSince = proposals, time.Time{}
	}
	return s
}

// movedWith returns a copy of Moved with moves carried out, which replace earlier ones.
func (s State) movedWith(moves map[vip.Key]Move) map[vip.Key]Move {
	all := make(map[vip.Key]Move, len(s.Moved)+len(moves))
	maps.Copy(all, s.Moved)
	maps.Copy(all, moves)
	return all
}

// carryOut adds moves to s.Moved, drops the proposals, and sets Decision.Agreed and Changed.
func (e *evaluation) carryOut(moves map[vip.Key]Move) {
	s := &e.s
	e.d.Agreed, e.d.Changed = len(moves), true
	s.voided = s.voidedWith(moves)
	s.Moved, s.agreed = s.movedWith(moves), nil
	s.stateHash = s.hash(s.Moved)
	s.proposals, s.futureHash, s.agreedSince = nil, 0, time.Time{}
}

// hash returns a digest, never 0, of the nodes that act, their epochs, and who has each moved unit.
func (s State) hash(moved map[vip.Key]Move) uint64 {
	h := fnv.New64a()
	for _, node := range s.holders {
		h.Write([]byte(node))
		h.Write(binary.BigEndian.AppendUint64([]byte{0}, uint64(s.Voters[node])))
	}
	for _, k := range slices.SortedFunc(maps.Keys(moved), vip.Key.Compare) {
		h.Write([]byte("\x01" + k.String() + "\x00" + moved[k].Holder))
	}
	return max(1, h.Sum64())
}

// proposalHash returns the StateHash after this node's proposals; 0 without, or if nothing may be moved.
func (e *evaluation) proposalHash() uint64 {
	if !e.s.moving {
		return 0
	}
	return e.s.futureHash
}

// commitProposals carries out proposals that every other holder has sent for agreementTime, or carried out.
func (e *evaluation) commitProposals() {
	s := &e.s
	if e.proposalHash() == 0 {
		return
	}
	for _, node := range s.holders {
		h := e.peers[node].status.Heartbeat
		if node != e.Self.Name && h.StateHash != s.futureHash &&
			(h.StateHash != s.stateHash || h.ProposalHash != s.futureHash) {
			s.agreedSince = time.Time{}
			return
		}
	}
	if s.agreedSince.IsZero() {
		s.agreedSince, s.agreed = e.Now, s.proposals
	}
	if e.Now.Sub(s.agreedSince) >= agreementTime {
		e.carryOut(s.proposals)
	}
}

// adoptMoves carries out what all holders had agreed on, once another has: if one dies between, states would never be
// the same. They are forgotten once a node reaches the API server: only the new owner says that they exist, and the VIP
// may have been acquired.
func (e *evaluation) adoptMoves() {
	s := &e.s
	if !e.late || e.Self.EpochOver || !s.apiSince.IsZero() {
		s.agreed = nil
	}
	if s.agreed == nil {
		return
	}
	hash := s.hash(s.movedWith(s.agreed))
	for _, node := range s.holders {
		if node != e.Self.Name && e.peers[node].status.Heartbeat.StateHash == hash {
			e.carryOut(s.agreed)
			return
		}
	}
}

// dropMoves removes a Move that the table has overtaken, once its holder does not act on it; one of another epoch of
// this node; or one unwritten for so long that later nodes may fence the old holder: its new one gives up first.
func (e *evaluation) dropMoves() {
	s := &e.s
	if e.lateForMoves() {
		s.lateAt = e.Now
	}
	kept := maps.Clone(s.Moved)
	maps.DeleteFunc(kept, func(k vip.Key, m Move) bool {
		limit := e.Timing.LeaseDuration
		if m.Holder == e.Self.Name {
			limit = e.Timing.RenewDeadline
		}
		overdue := !e.Self.RenewingSince.IsZero() && e.Now.Sub(Later(e.Self.RenewingSince, s.lateAt)) > limit
		overtaken := e.Versions[k] != m.Version && !e.peers[m.Holder].actsOnMoves()
		return overtaken || overdue || e.Self.EpochOver
	})
	if len(kept) != len(s.Moved) {
		s.Moved, e.d.Changed = kept, true
	}
	if len(kept) == 0 {
		s.voided = nil
	}
}

// mayWriteMoves returns Decision.WriteMoves: this node renews, and no other holds on without the API server.
func (e *evaluation) mayWriteMoves() bool {
	if e.late || e.Self.RenewingSince.IsZero() {
		return false
	}
	if e.Now.Sub(Later(e.Self.RenewingSince, e.s.lateAt)) > e.apiTolerance(true) {
		return true
	}
	for _, p := range e.peers {
		if h := p.status.Heartbeat; p.status.Liveness == vip.Alive && h.TenureValid && !h.APIReachable {
			return false
		}
	}
	return true
}

// lateForMoves reports whether this node's renewal is moveDelay late, so that claims may be moved.
func (e *evaluation) lateForMoves() bool {
	return e.late && e.Now.Sub(e.Self.Renewed) > e.Timing.late()+moveDelay
}

// voidedWith returns a copy of s.voided with claims void once moves replace those in s.Moved.
func (s State) voidedWith(moves map[vip.Key]Move) map[string]bool {
	all := maps.Clone(s.voided)
	for k, m := range moves {
		if before, ok := s.Moved[k]; ok && before.Holder != m.Holder {
			if all == nil {
				all = make(map[string]bool)
			}
			all[ClaimText(before.Holder, before.Epoch)] = true
		}
	}
	return all
}

// movedFrom reports whether s.Moved has, or had, a claim node@epoch that went to another node.
func (s State) movedFrom(node string, epoch int64) bool {
	for _, m := range s.Moved {
		if m.From == node && m.FromEpoch == epoch && m.Holder != node {
			return true
		}
	}
	return s.voided[ClaimText(node, epoch)]
}

// findUnknownMoves sets Decision.UnknownMoves and PossibleMoves.
func (e *evaluation) findUnknownMoves() {
	if e.proposalHash() != 0 {
		e.s.proposedAt = e.Now
	}
	// others may have carried out what this node proposed until just now, and it may not have heard that yet
	e.d.PossibleMoves = e.Now.Sub(e.s.proposedAt) < tolerance
	for node, p := range e.peers {
		h := p.status.Heartbeat
		e.d.PossibleMoves = e.d.PossibleMoves || p.status.Overdue && h.TenureValid && !h.APIReachable
		e.d.UnknownMoves = e.d.UnknownMoves || p.actsOnMoves() && !e.s.movedTo(node)
	}
}

// actsOnMoves reports whether p says that it acts on moves that are not written.
func (p peer) actsOnMoves() bool {
	return p.status.Liveness == vip.Alive && p.status.Heartbeat.MovesUnwritten
}

func (s State) movedTo(node string) bool {
	for _, m := range s.Moved {
		if m.Holder == node {
			return true
		}
	}
	return false
}

// Moving reports whether dead nodes' claims may be moved without the API server (decideTenure).
func (s State) Moving() bool { return s.moving }
