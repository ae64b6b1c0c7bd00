package vip

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// A ProcessID is the random number that a Herald process draws at its start. Two processes that
// run under one node name differ in it.
type ProcessID [16]byte

// NewProcessID returns a random ProcessID.
func NewProcessID() (id ProcessID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}

// String returns the 32 hexadecimal digits of the ID.
func (id ProcessID) String() string { return hex.EncodeToString(id[:]) }

// A ProcessInfo tells one Herald process from others that work, or want to, under the same node
// name; zero: one of an earlier version.
type ProcessInfo struct {
	ID   string `json:"id"`   // its ProcessID
	Host string `json:"host"` // identifies the host for as long as it runs; "" if that is not known
	Name string `json:"name"` // where it runs, for a person
}

// A Heartbeat is what a node tells all others on the VIPs' link several times a second.
type Heartbeat struct {
	Epoch        int64 // of its node lease; 0 until it has one
	APIReachable bool  // its node lease is renewed in time
	TenureValid  bool  // its Tenure allows it to act on its claims
	// StateHash is a digest of which nodes it sees with a valid tenure, and of the claims
	// that were moved while the API server was away. Nodes with the same StateHash agree
	// on who owns what.
	StateHash uint64
	// ProposalHash is the StateHash that there would be once the VIPs of dead nodes were
	// moved as this node's Plan has it; 0: it proposes no move.
	ProposalHash uint64
	// VoidedClaim is a claim, node@epoch, that was fenced, or moved without the API server,
	// while that node still acts on it: it can't reach the API server and learns it here.
	// "" if there is none.
	VoidedClaim string
	// MovesUnwritten: it acts on claims that were moved to it while the API server was away and are
	// not written yet. A node that does not know of them can't see that in the leases.
	MovesUnwritten bool
	// Isolated: it reaches too few other nodes. Those that hear it need not wait until it is silent.
	Isolated bool
	// Table is the number of the newest table of who owns what that it knows, TableDigest a digest of that, and Carried
	// the number of the one that its agent has carried out.
	Table       int64
	TableDigest uint64
	Carried     int64
}

// A VIP is bound with the valid lifetime AddressLifetime, renewed each AddressRenewal. So the kernel of a
// node whose process is killed answers for it for 4.25 s to 6.1 s more: a process that is started again by then
// finds its VIPs bound.
const (
	AddressLifetimeSeconds = 5
	AddressLifetime        = AddressLifetimeSeconds * time.Second
	AddressRenewal         = 750 * time.Millisecond
	FightWindow            = time.Minute // how long what another program does to an address is remembered
	// AddressRemovalDelay is how long after the end of its lifetime the kernel removes an address at the
	// latest: a third of a second, by the grain of its timers, or a second after it has looked for another one
	// (ADDRCONF_TIMER_FUZZ_MAX in check_lifetime and addrconf_verify_rtnl), with some reserve.
	AddressRemovalDelay = 1200 * time.Millisecond
)

// A PeerStatus is what this node knows of another from heartbeats, and from asking its
// kernel when they fail.
type PeerStatus struct {
	Liveness  Liveness
	Since     time.Time // when Liveness last changed
	HeardAt   time.Time // when the last heartbeat came; zero: none did
	Heartbeat Heartbeat // the last one
	// Stopping: its Liveness is Dead since its last heartbeat said that its process stops.
	Stopping bool
	// Gone: its Liveness is Dead, and its kernel did not answer either.
	Gone bool
	// ProcessEnded: its Liveness is Dead since its kernel refuses connections to the heartbeat port: that
	// still runs, and goes on to answer for VIPs until their lifetimes end.
	ProcessEnded bool
	// SilentSince is when the last heartbeat came, if it is overdue, and no other node that is heard hears the
	// node either; zero while one does, or this process may have missed its heartbeats.
	SilentSince time.Time
	// Unanswered: its Liveness is Suspect, and the last probes of its kernel had no answer, which answered before. So
	// nothing shows that what this node sends arrives, though it may hear the other.
	Unanswered bool
	// AnsweredAt is when the last probe of its kernel began, if that had an answer, be it a refusal: what this node
	// sends arrives, though the other may never have been Alive. Zero: it had none, or there was no probe.
	AnsweredAt time.Time
	// Overdue: its Liveness is Alive, but its heartbeat is late. A node that falls off the
	// link sees the others die one by one, and the last of them are Alive until then.
	Overdue bool
}

// A Liveness is the state of another node as this one sees it.
type Liveness int

// The states of Liveness.
const (
	// Unknown: no heartbeat was ever received. It may run an older Herald, or none, or its
	// heartbeats are blocked.
	Unknown Liveness = iota
	// Alive: its heartbeats arrive, and say that ours do.
	Alive
	// Dead: it was Alive, and now nobody answers for its address, or its kernel refuses
	// connections to the heartbeat port, or its last heartbeat said that it stops.
	Dead
	// Suspect: heartbeats fail in one direction at least, but its address is answered for (or not, PeerStatus.Unanswered):
	// the port is blocked, or the process hangs. Only its node lease can say more.
	Suspect
)

// String is the state in a word, as metrics and logs have it.
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
