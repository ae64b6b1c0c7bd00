package vip

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// A ProcessID is the random number of a Herald process, to tell two of one node name apart.
type ProcessID [16]byte

// NewProcessID returns a random ProcessID.
func NewProcessID() (id ProcessID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// String returns 32 hexadecimal digits.
func (id ProcessID) String() string { return hex.EncodeToString(id[:]) }

// A ProcessInfo tells processes of one node name apart; zero: an earlier version.
type ProcessInfo struct {
	ID   string `json:"id"`   // its ProcessID
	Host string `json:"host"` // identifies the host for as long as it runs; "" if that is not known
	Name string `json:"name"` // where it runs, for a person
}

// A Heartbeat is what a node tells others on the VIPs' link several times a second.
type Heartbeat struct {
	Epoch        int64 // of its node lease; 0 until it has one
	APIReachable bool  // its node lease is renewed in time
	// APIServerReady is NodeInfo.APIServerReady, which its node lease can't say in an outage.
	APIServerReady bool
	TenureValid    bool // its Tenure allows it to act on its claims
	// StateHash is a digest of the valid tenures it sees, and of claims moved without the API server. Nodes with the same
	// agree on who owns what.
	StateHash uint64
	// ProposalHash is the StateHash once its Plan had moved dead nodes' VIPs; 0: it proposes no move.
	ProposalHash uint64
	// VoidedClaim is a claim, node@epoch, void while that node acts on it: it can't reach the API server, and learns it
	// here; or "".
	VoidedClaim string
	// MovesUnwritten: it acts on claims moved without the API server, which the leases don't show.
	MovesUnwritten bool
	// Isolated: it reaches too few other nodes; others need not await its silence.
	Isolated bool
	// Table is the newest table it knows, by number, TableDigest its digest, and Carried what its agent has carried out.
	Table       int64
	TableDigest uint64
	Carried     int64
}

// A VIP has the valid lifetime AddressLifetime, renewed each AddressRenewal. So a killed process's kernel answers for
// 4.25 s to 6.1 s, and a successor finds its VIPs bound.
const (
	AddressLifetimeSeconds = 5
	AddressLifetime        = AddressLifetimeSeconds * time.Second
	AddressRenewal         = 750 * time.Millisecond
	FightWindow            = time.Minute // how long what another program does to an address is remembered
	// AddressRemovalDelay is how late the kernel removes an ended address: its timers' grain is a third of a second, and
	// it looks once a second (ADDRCONF_TIMER_FUZZ_MAX in check_lifetime and addrconf_verify_rtnl); with reserve.
	AddressRemovalDelay = 1200 * time.Millisecond
	// KernelAnswers is how long a kernel may answer for a VIP that nobody renews any more.
	KernelAnswers = AddressLifetime + AddressRemovalDelay
)

// A PeerStatus is what heartbeats tell of another node, and its kernel when they fail.
type PeerStatus struct {
	Liveness  Liveness
	Since     time.Time // when Liveness last changed
	HeardAt   time.Time // when the last heartbeat came; zero: none did
	Heartbeat Heartbeat // the last one
	// Stopping: Dead, since its last heartbeat said that its process stops.
	Stopping bool
	// Gone: Dead, and its kernel did not answer either.
	Gone bool
	// ProcessEnded: Dead, since its kernel refuses the heartbeat port, but answers for VIPs until their lifetimes end.
	ProcessEnded bool
	// SilentSince is when the last heartbeat came, if overdue, and no other node that is heard hears it; zero also if this
	// process may have missed some.
	SilentSince time.Time
	// Unanswered: Suspect, and its kernel answers no more probes: what this node sends may not arrive.
	Unanswered bool
	// AnsweredAt is when the last probe of its kernel began, if answered, or refused: what this node sends arrives, though
	// it was never Alive; or zero.
	AnsweredAt time.Time
	// Overdue: Alive, but its heartbeat is late. A node that falls off the link sees others die one by one.
	Overdue bool
	// EchoOverdue: it is heard, but neither an echo nor an answer shows that what this node sends still arrives.
	EchoOverdue bool
}

// A Liveness is another node's state as seen from this one.
type Liveness int

// The states of Liveness.
const (
	// Unknown: no heartbeat was ever received: an older Herald, none, or blocked heartbeats.
	Unknown Liveness = iota
	// Alive: its heartbeats arrive, and say that ours do.
	Alive
	// Dead: it was Alive, and now its address or its heartbeat port is unanswered or refused, or it said that it stops.
	Dead
	// Suspect: heartbeats fail, but its address is answered for (or not, PeerStatus.Unanswered): the port is blocked, or
	// the process hangs. Only its node lease can say more.
	Suspect
)

// String is the state as metrics and logs have it.
func (l Liveness) String() string {
	switch l {
	case Alive:
		return "alive"
	case Dead:
		return "dead"
	case Suspect:
		return "suspect"
	}
	return "unknown"
}
