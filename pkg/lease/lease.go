// Package lease agrees with the other nodes on who owns what, by Lease objects (docs/ownership.md).
//
// Each node renews one Lease of its own, the node lease. Who owns what is one more Lease, the table, which is changed
// by compare-and-swap only. An owner gives away what is its own; what nobody has is placed by the first node by name,
// and by the next ones a moment later each. To take what a silent node owns another one first fences it: it marks its
// epoch as over on its node lease, with the resourceVersion that was seen to grow old. The API server lets that write
// through only if the node has not renewed since, and a node that has not renewed for that long has given up by
// itself.
//
//	node lease   n renews             active
//	             silent for duration  another node fences epoch e: all that the table gives to n@e is void
//	             n finds itself fenced, or its lease in other hands: drops all, begins epoch e+1
//	             n stops              releases it, then deletes it
//
// A program of another kind that renews the Lease of a Service has that Service. When to fence, and what to do without
// the API server, package quorum decides.
//
// Each of these rules was taken out by itself, and this failed, on simulated time:
//
//	a right ends with the renew deadline                      quorum.TestWithoutAPIServer
//	a fence, a release or a later epoch voids claims          TestFenceIsNoSignOfLife, TestDead, TestForgotten
//	only a node that reaches most others fences a dead one    TestCutOffFromLAN, TestDeadOfTwo
//	keepers take turns; one that stops is none                TestPlacedInTurn, TestStoppingPlacesNothing
//	who is not shown to be heard places nothing               TestUnheardTakesNothingBack
//	who gave a unit away answers, and may be in doubt         TestHandOver, TestDoubt, TestGivenToOneThatDoesNotKnow
//	who knows of a higher number reads, and writes nothing    TestBehind, TestSpoiltAndUnknown
//	who does not take up what it was given is fenced          TestFollow, TestFollowsUnheard, TestEndsBeforeItFollows
//	what an earlier process carried out its kernel answers    TestRestartIsSlow
//	who stops hands over once that is known                   TestStopIsToldAtOnce, agent.TestStopTold
//	an agreed move whose heir is dead binds nobody            TestHeirDiesUnwritten
//	a process that begins hears the others first              TestStartAwaitsHeartbeats
//	a table that was deleted or spoilt is written again       TestSpoilt
//	a claim of which no node lease shows the epoch is fenced  TestUnprovenClaim
//	a renewal that finds no node lease awaits the watch       TestRenewalMeetsADeletion
//	a stuck watch begins again                                TestStuckWatchBeginsAgain, TestLateWatchGoesOn
//	a read that goes back in time shows a restore of etcd     TestRestored, TestRebootedSinceTheBackup
//	the first tries of a write are short                      TestDeadWithEtcdLeader
//	agreed moves are written once nobody holds on any more    quorum.TestWriteMoves
//	who does not know of agreed moves, or may not, waits      TestMoveIsWrittenLate, quorum.TestUnknownMoves
//	an heir by the table waits for one by agreement           TestGivenAwayBesideAMove
//	who is heard in its next epoch is a voter                 quorum.TestHeardInTheNextEpoch
//	who is back leaves the group as it is, while others hold  simulation.TestOwnerReturnsWithTheAPIServer
//	an epoch places nothing in its first half second          TestUnheardTakesNothingBack, simulation.TestSpread
//	it acts only once it has read the table in its epoch      testing/model: notRead
package lease

import (
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// Annotations on Leases.
const (
	// ClaimAnnotation, on a Service's Lease, is <node>@<epoch>. Another holderIdentity is another program's.
	ClaimAnnotation = "heraldvip.io/claim"
	// FencedAnnotation, on a node lease, is the epoch that is over.
	FencedAnnotation = "heraldvip.io/fenced"
	// NodeAnnotation, on a node lease, is a vip.NodeInfo as JSON.
	NodeAnnotation = "heraldvip.io/node"
)

func keyOf(l *coordinationv1.Lease) vip.Key {
	return vip.Key{Namespace: l.Namespace, Name: l.Name}
}

// deref returns *p, or the zero value.
func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func holder(l *coordinationv1.Lease) string { return deref(l.Spec.HolderIdentity) }

func renewTime(l *coordinationv1.Lease) time.Time { return deref(l.Spec.RenewTime).Time }

// transitions returns spec.leaseTransitions, or 0: on a node lease the node's epoch.
func transitions(l *coordinationv1.Lease) int64 { return int64(deref(l.Spec.LeaseTransitions)) }

// parseClaimText returns node and epoch of what quorum.ClaimText writes.
func parseClaimText(text string) (node string, epoch int64, ok bool) {
	node, e, ok := strings.Cut(text, "@")
	epoch, err := strconv.ParseInt(e, 10, 64)
	return node, epoch, ok && err == nil
}

// fencedEpoch returns the number in FencedAnnotation, or 0.
func fencedEpoch(l *coordinationv1.Lease) int64 {
	e, _ := strconv.ParseInt(l.Annotations[FencedAnnotation], 10, 64)
	return e
}

// fenced reports whether a node lease's epoch was fenced or released.
func fenced(l *coordinationv1.Lease) bool {
	e := fencedEpoch(l)
	return e != 0 && e >= transitions(l)
}

// version returns the resourceVersion, or 0: ordered numbers by etcd, and by Kubernetes' promise since 1.35.
func version(l *coordinationv1.Lease) uint64 {
	v, _ := strconv.ParseUint(l.ResourceVersion, 10, 64)
	return v
}

// duration returns spec.leaseDurationSeconds; otherwise, if that is less than 1.
func duration(l *coordinationv1.Lease, otherwise time.Duration) time.Duration {
	if s := deref(l.Spec.LeaseDurationSeconds); s >= 1 {
		return time.Duration(s) * time.Second
	}
	return otherwise
}

// annotate sets an annotation of l, a copy of the caller's own, or removes it if value is "".
func annotate(l *coordinationv1.Lease, key, value string) {
	if value == "" {
		delete(l.Annotations, key)
		return
	}
	metav1.SetMetaDataAnnotation(&l.ObjectMeta, key, value)
}

// nextLease returns a copy of known (nil: none), with the name and the label of a Lease that Herald writes.
func nextLease(known *coordinationv1.Lease, namespace, name string) *coordinationv1.Lease {
	next := &coordinationv1.Lease{}
	if known != nil {
		next = known.DeepCopy()
	}
	next.Namespace, next.Name = namespace, name
	metav1.SetMetaDataLabel(&next.ObjectMeta, "app.kubernetes.io/managed-by", "herald")
	return next
}

// A NodeLease is what a node lease says, for commands that only read.
type NodeLease struct {
	Name      string
	Epoch     int64
	RenewedAt time.Time // by the API server's clock; by the node's own if the Lease has no managed fields
	Duration  time.Duration
	Fenced    bool // its epoch is over and it has not begun another
	Info      vip.NodeInfo
}

// ParseNodeLease parses a node lease of any namespace, if its name begins with vip.NodeLeasePrefix. Duration is 15 s if
// not set, Info zero if unreadable.
func ParseNodeLease(l *coordinationv1.Lease) (n NodeLease, ok bool) {
	name, ok := strings.CutPrefix(l.Name, vip.NodeLeasePrefix)
	if !ok {
		return n, false
	}
	return NodeLease{Name: name, Epoch: transitions(l), Fenced: fenced(l), Duration: duration(l, 15*time.Second),
		RenewedAt: renewedAt(l), Info: infoOf(l)}, true
}

// renewedAt returns spec.renewTime by the API server's clock in whole seconds (managed fields), else by the writer's.
func renewedAt(l *coordinationv1.Lease) time.Time {
	for _, m := range l.ManagedFields {
		if m.Time != nil && m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), `"f:renewTime"`) {
			return m.Time.Time
		}
	}
	return renewTime(l)
}
