package quorum

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Propose stores what this node's plan would move without the API server, in place of
// what it proposed before; Move.Epoch is filled in here. Moves to nodes that do not act
// on their claims are left out. It does nothing unless moves are possible at present.
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

// future is Moved as it will be once the proposals are carried out.
func (s State) future() map[vip.Key]Move {
	all := make(map[vip.Key]Move, len(s.Moved)+len(s.proposals))
	maps.Copy(all, s.Moved)
	maps.Copy(all, s.proposals)
	return all
}

// hash is a digest of which nodes act on their claims, in which epochs, and of who holds
// what was moved. It is never 0.
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

// proposalHash is the StateHash that this node proposes; 0 if it proposes nothing.
func (e *evaluation) proposalHash() uint64 {
	if !e.s.moving {
		return 0
	}
	return e.s.futureHash
}

// commitProposals carries out the proposals of this node once all holders have proposed
// the same, or carried it out, for agreementTime.
func (e *evaluation) commitProposals() {
	s := &e.s
	if e.proposalHash() == 0 {
		return
	}
	for _, node := range s.holders {
		h := e.peers[node].status.Heartbeat
		if node != e.Self.Name && h.StateHash != s.futureHash && (h.StateHash != s.stateHash || h.ProposalHash != s.futureHash) {
			s.agreedSince = time.Time{}
			return
		}
	}
	if s.agreedSince.IsZero() {
		s.agreedSince = e.Now
	}
	if e.Now.Sub(s.agreedSince) < agreementTime {
		return
	}
	e.d.Agreed, e.d.Changed = len(s.proposals), true
	s.Moved, s.stateHash = s.future(), s.futureHash
	s.proposals, s.futureHash, s.agreedSince = nil, 0, time.Time{}
}

// dropMoves forgets the moves whose VIP lease has another version by now: the API server
// knows better. A node that reaches it again must have written what it took within the
// renew deadline: nodes that started since know nothing of it, and may fence the old
// holder once its node lease has been silent before their eyes.
func (e *evaluation) dropMoves() {
	s := &e.s
	keep := func(k vip.Key, m Move) bool {
		limit := e.Timing.LeaseDuration
		if m.Holder == e.Self.Name {
			limit = e.Timing.RenewDeadline
		}
		overdue := !e.Self.RenewingSince.IsZero() && e.Now.Sub(e.Self.RenewingSince) > limit
		return e.Versions[k] == m.Version && !overdue && (m.Holder != e.Self.Name || !e.Self.EpochOver)
	}
	kept := maps.Clone(s.Moved)
	maps.DeleteFunc(kept, func(k vip.Key, m Move) bool { return !keep(k, m) })
	if len(kept) != len(s.Moved) {
		s.Moved, e.d.Changed = kept, true
	}
}

// movedFrom reports whether a claim of the node's epoch was moved to another node.
func (s State) movedFrom(node string, epoch int64) bool {
	for _, m := range s.Moved {
		if m.From == node && m.FromEpoch == epoch && m.Holder != node {
			return true
		}
	}
	return false
}

// Moving reports whether claims may be moved without the API server at present.
func (s State) Moving() bool { return s.moving }
