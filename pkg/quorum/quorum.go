// Package quorum decides what this node may do about VIPs and about other nodes, from node leases, heartbeats and time.
// It does no I/O and reads no clock: Evaluate is a function of what it is given.
//
// Without the API server nobody can take a claim, so nobody needs to let go of one, as long as it is sure that the
// others can't take it either:
//
//	this node renews its lease                       Renewing
//	it does not; other nodes do                      Yielding: they fence it and take its VIPs
//	nobody it hears does; with them it is more than  Holding, for hours
//	half of the voters, who have the same StateHash
//	the same, with too few of the voters             Expiring: until the renew deadline
//	most of the voters are dead                      GivingUp
//
// The voters are the nodes that were not fenced when this node last renewed in time. Each of two nodes that hold on
// agrees with more than half of the voters, so one voter agrees with both: they agree with each other. A node found
// dead is fenced on its node lease like any other, only sooner (docs/why.md, "The lease decides").
package quorum

import (
	"strconv"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// each evaluation with a quorum extends the tenure to so long from now
	holdTime      = vip.AddressLifetime + time.Second
	tolerance     = time.Second            // how long a condition may fail before it ends something
	agreementTime = 200 * time.Millisecond // how long all holders must have the same proposals
	// restartMargin is for the fence and new claims: heirs wait for VIPs to end, not VIPs for them.
	restartMargin  = 500 * time.Millisecond
	minRestartTime = 500 * time.Millisecond
	moveDelay      = 2 * time.Second // how long after the first late renewal this node begins to propose moves

	// RejoinTime is how long a node must reach the others before it may carry VIPs and fence.
	RejoinTime = 3 * time.Second
)

// An Input is all that Evaluate may know beside the State.
type Input struct {
	Now      time.Time
	Timing   Timing
	Self     Self
	Peers    map[string]Peer           // by name: the other nodes that have a node lease or a claim
	Statuses map[string]vip.PeerStatus // by name, from heartbeats; nil if none are exchanged at present
	Gateway  vip.Liveness              // of the default gateway on the VIPs' link; Unknown unless Decision.NeedsGateway
	Versions map[vip.Key]uint64        // of each unit in State.Moved: Move.Version by the table; 0 or absent: it is gone
}

// Timing is the durations that all nodes share: LeaseDuration > RenewDeadline > RetryPeriod.
type Timing struct{ LeaseDuration, RenewDeadline, RetryPeriod time.Duration }

// late returns how long after a renewal the next one is late.
func (t Timing) late() time.Duration { return t.RetryPeriod * 3 / 2 }

// yield returns how long after its last renewal a node yields; by then others know if they can't renew either.
func (t Timing) yield() time.Duration {
	return max(t.RenewDeadline*6/10, t.RetryPeriod*5/2+time.Second/2)
}

// knowsTime returns how long a majority keeps its right without renewals: a second past yield, one before a fence.
func (t Timing) knowsTime() time.Duration {
	return max(t.RenewDeadline, min(t.yield()+time.Second, t.LeaseDuration-time.Second))
}

// maxAnswers returns for how long a kernel may answer whose node does not know that its claims are void.
func (t Timing) maxAnswers() time.Duration {
	return max(holdTime, t.knowsTime()) + vip.AddressRemovalDelay
}

// RestartTime returns how long after its last sign an ended process's epoch lasts: one restarted by then has its VIPs.
func (t Timing) RestartTime() time.Duration {
	lifetime := min(vip.AddressLifetime, (t.RenewDeadline - t.late()).Truncate(time.Second))
	return max(lifetime-vip.AddressRenewal-restartMargin, minRestartTime)
}

// A Self is the state of this node's own node lease.
type Self struct {
	Name          string
	Epoch         int64     // 0: it has none yet
	EpochOver     bool      // Epoch was fenced or given up, and the next has not begun
	Renewed       time.Time // when the last renewal that succeeded was sent; zero: none has
	RenewingSince time.Time // since when no renewal has failed; zero: the last one did
	ConfirmAfter  time.Time // renewals sent before this confirm nothing: the process was stopped since
	NoServices    bool      // it announces no Services
	// WasIsolated: its node lease says so of its last process, and Decision.Isolated since. This process may never have
	// heard the others.
	WasIsolated bool
}

// late reports whether this node has an epoch, and its renewal is late (Timing.late).
func (s Self) late(t Timing, now time.Time) bool {
	return s.Epoch != 0 && now.Sub(s.Renewed) > t.late()
}

// Tenure returns this node's right to act: until the renew deadline after its last good renewal, or heldUntil if later.
// It is Confirmed unless that was before ConfirmAfter.
func (s Self) Tenure(t Timing, heldUntil, now time.Time) vip.Tenure {
	x := vip.Tenure{Epoch: s.Epoch, Confirmed: !s.Renewed.Before(s.ConfirmAfter)}
	if s.Epoch != 0 && !s.EpochOver && !s.Renewed.IsZero() {
		x.Until = Later(s.Renewed.Add(t.RenewDeadline), heldUntil)
	}
	if s.late(t, now) {
		x.RenewalLateSince = s.Renewed.Add(t.late())
	}
	return x
}

// A Peer is what this node knows of another node's lease.
type Peer struct {
	Epoch      int64         // of its node lease, or of its newest claim if it has no node lease
	Over       bool          // Epoch was fenced, or released by the node itself
	Exists     bool          // its node lease exists
	Changed    time.Time     // when this node last saw its node lease change
	Neglects   time.Duration // for how long it has had units that its agent has not taken up, beyond the time for that
	NoServices bool          // it announces no Services, as its node lease says
	Neighbor   bool          // it exchanges heartbeats, in a network that this node has on its own link of heartbeats
}

// A State is what is remembered between evaluations, a value that never changes once returned.
type State struct {
	// Moved is the claims that changed hands without the API server, by unit.
	Moved map[vip.Key]Move
	// Voters is the epochs, by name, of nodes active when this node last renewed in time; its own included.
	Voters map[string]int64

	// claims, node@epoch, whose Move to that node was moved on, while any is in Moved
	voided      map[string]bool
	holders     []string          // those of them that act on their claims, as this node sees it; sorted
	memory      map[string]memory // by peer
	heldUntil   time.Time         // Decision.HoldUntil, while this node is Holding
	keptUntil   time.Time         // the same, until it knows whether others renew (knowsTime)
	quorumAt    time.Time         // when this node last renewed, or had a quorum
	renewalLate time.Time         // when its renewal was last late

	unconfirmedSince time.Time // since when its tenure has not been confirmed; zero: it is
	ranOutAt         time.Time // when the renew deadline was last over
	lateAt           time.Time // when its renewal was last so late that claims may be moved
	cutOffSince      time.Time // since when most voters have been dead; zero: they are not
	apiSince         time.Time // since when other nodes have been seen to reach the API server; zero: none does
	minorityAt       time.Time // when this node last reached too few others
	isolated         bool
	rejoining        bool
	isolatedAt       time.Time // when isolated was last confirmed

	moving      bool             // claims of dead nodes may be moved without the API server
	proposals   map[vip.Key]Move // the moves that this node's plan proposes
	proposedAt  time.Time        // when this node last proposed any
	agreedSince time.Time        // since when all holders have proposed the same; zero: they have not
	agreed      map[vip.Key]Move // what they did last, if this node has not carried it out
	stateHash   uint64
	futureHash  uint64 // the stateHash once the proposals are carried out; 0 without any
}

// memory is what is remembered of a peer.
type memory struct {
	status       vip.PeerStatus
	yieldedSince time.Time // zero: it has not yielded
	activeEpoch  int64     // the epoch of its node lease in the last evaluation; 0: that was over, or there was none
	lostEpoch    int64     // the last epoch of which its claims became void
	released     bool      // Decision.Released
	answersUntil time.Time // when its kernel has removed its VIPs since then, or since it last mayHoldUnheard
	heardAgainAt time.Time // when it was last heard after it had been silent
	alive        bool      // Decision.Alive, when this node last renewed in time
	isolatedIn   int64     // the epoch in which it began to say that it is isolated, as it still does; 0: it does not
	isolatedAt   time.Time // when it began to
	keptAPI      bool      // it has reached the API server since before this node's renewal was late
}

// A Move is a claim that changes hands without a write.
type Move struct {
	Holder    string // the node that takes the claim
	Epoch     int64  // that node's
	Version   uint64 // the number of the table's entry that the Move stands for: any later one replaces it
	From      string // the owner that the table names
	FromEpoch int64
}

// A Verdict is what this node's tenure rests on.
type Verdict string

// The verdicts, as the table at the head of this package has them.
const (
	Renewing Verdict = "renewing" // also without an epoch
	Yielding Verdict = "yielding"
	Holding  Verdict = "holding"
	Expiring Verdict = "expiring"
	GivingUp Verdict = "giving up"
)

// A Decision is what follows from an Input.
type Decision struct {
	Verdict   Verdict
	EndEpoch  string    // why this node's epoch is over from now on; "" if that is not decided
	HoldUntil time.Time // the tenure lasts until then though no renewal succeeds; zero: until the renew deadline
	// the tenure is confirmed without a renewal since the process was stopped: Self.ConfirmAfter is over
	Confirmed bool

	Isolated  bool // this node reaches too few others to take VIPs, or did within RejoinTime
	Rejoining bool // it is Isolated, and reaches enough others again
	MayPlace  bool // it reaches enough others in time to place what nobody owns
	// how many renewing nodes this one reaches, and how many of those were ever alive to it, or should be
	// (Self.WasIsolated); with itself
	Reached, Known int
	Suspects       []string        // the nodes that renew and have been Suspect for RejoinTime, sorted
	Alive          map[string]bool // the peers that may be given VIPs
	Released       map[string]bool // the peers whose claims may be moved without the API server
	// the peers whose kernels may answer for others' VIPs, and until when, as far as is known now
	AnswersUntil map[string]time.Time
	Fence        map[string]string // the peers that this node must fence now, with the reason

	Heartbeat vip.Heartbeat // to send to the other nodes
	// WriteMoves: moves may be written, and former owners fenced. Earlier, nodes that hold on still need this one to
	// agree: their renewals may wait in vain.
	WriteMoves bool
	Agreed     int // how many moves all holders have just agreed on
	// UnknownMoves: an Alive peer acts on moved claims (Heartbeat.MovesUnwritten) unknown here. What the table calls free
	// may be its.
	UnknownMoves bool
	// PossibleMoves: this node proposed moves until just now, or such a peer's news is late: there may be moves to it. It
	// lasts until that comes, or the peer is not Alive: some seconds.
	PossibleMoves bool
	Holders       int // how many nodes act on their claims, as this one sees it
	// NeedsGateway: one of two halves is to be chosen, so Input.Gateway matters.
	NeedsGateway bool
	GatewaySince time.Time // an answer of the gateway to an earlier question does not count
	Changed      bool      // a plan made from the decision before may be out of date
}

// ClaimText returns a claim as written: node@epoch.
func ClaimText(node string, epoch int64) string {
	return node + "@" + strconv.FormatInt(epoch, 10)
}

// Since returns at, since when something is so; now if that has just begun; zero if it is not so.
func Since(at time.Time, is bool, now time.Time) time.Time {
	switch {
	case !is:
		return time.Time{}
	case at.IsZero():
		return now
	}
	return at
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
