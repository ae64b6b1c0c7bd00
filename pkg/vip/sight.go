package vip

import "time"

// A Heartbeat is what a node tells the others on the wire that the VIPs live on.
type Heartbeat struct {
	Epoch        int64 // of its node lease; 0 until it has one
	APIReachable bool  // it gets its renewals through
	TenureValid  bool  // it may act on its claims
	// View is a digest of whom it sees hold claims and of what was moved while the
	// API server was away: nodes with the same View agree on who owns what.
	StateHash uint64
	// Next is a digest of the View and of how it would move what is free; 0: it would move nothing.
	ProposalHash uint64
	// Void is a claim, node@epoch, that is over although its node holds on to it:
	// that node can't reach the API server, and learns it here. "" if there is none.
	VoidedClaim string
}

// A PeerStatus is what a node sees of another on the wire that the VIPs live on.
type PeerStatus struct {
	Liveness  Liveness
	Since     time.Time // since when
	Heartbeat Heartbeat // what it told last
	// Late: it looks alive, and should have been heard again by now. Should this node be
	// the one that has fallen off the link, it sees the others die one by one, and the
	// last of them look alive until then.
	Overdue bool
}

// Liveness is how a node looks from another.
type Liveness int

// How a node looks.
const (
	// Unknown: never met. It may have an older Herald, or none, or no way to gossip.
	Unknown Liveness = iota
	// Alive: it answers.
	Alive
	// Dead: it is gone from the wire (nobody answers for its address), or its kernel
	// says that no process listens, or it said that it leaves.
	Dead
	// Suspect: its address is answered for but its Herald is not: its port is blocked,
	// or the process hangs. Only its lease can say more.
	Suspect
)

// String is the state in a word.
func (s Liveness) String() string {
	switch s {
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	case Suspect:
		return "mute"
	}
	return "unknown"
}
