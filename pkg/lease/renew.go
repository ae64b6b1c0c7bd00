package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// Times of renewals and fences. Where answers take ms, one of shortTimeout won't come (docs/why.md, "Slow writes during
// a leader change").
const (
	fastRenewal  = 200 * time.Millisecond // after a renewal that took no longer than this the next tries have shortTimeout
	shortTimeout = 600 * time.Millisecond
	shortTries   = 3
	// After one that took longer, but no slowRenewal, the next has one try of three times as long, to firstTimeout.
	slowRenewal  = time.Second
	firstTimeout = 2 * time.Second
)

// A link that flaps changes what a node says all the time, and each write has every node plan: infoBurst are written at
// once, then one each infoPeriod.
const (
	infoPeriod = 500 * time.Millisecond
	infoBurst  = 6
)

// An ownLease is the state of this node's own node lease.
type ownLease struct {
	quorum.Self
	lease   *coordinationv1.Lease // as written last; nil: it must be read before it is written
	written uint64                // the version as written last, or what a restore of etcd has made of it
	info    string                // its NodeAnnotation

	began, epochAt time.Time // when this process held it first, and in its epoch
	restarts       []int64   // as in vip.NodeInfo; see recentRestarts

	pending    bool      // a renewal is under way
	releasing  bool      // Run ends: no renewal is started, so that no epoch begins any more
	failing    bool      // the last renewal failed, and that was logged
	next       time.Time // when the next one is due
	infoSpent  time.Time // when all writes for changes of info so far would have been made, one each infoPeriod
	shortTries int       // how many of the next renewals have shortTimeout

	firstTry time.Duration // the timeout of the next renewal; 0: it is no short one

	predecessor string // the ID of the process that had the name, and has ended (AwaitName)
	taken       error  // another process has taken the name: this one must end
}

// checkOwn has this node's lease read and renewed if another program wrote it, at once if fenced, which ends the epoch.
func (l *Leases) checkOwn(x *coordinationv1.Lease, now time.Time) {
	if l.own.lease == nil || version(x) <= version(l.own.lease) {
		return
	}
	l.own.lease, l.own.next = nil, now
	if fencedEpoch(x) >= l.own.Epoch {
		l.endEpoch("it was fenced by another node")
	} else if soonest := l.own.Renewed.Add(fastRenewal); soonest.After(now) {
		l.own.next = soonest
	}
}

// endEpoch marks this node's epoch, if any, as over, which voids its claims; the next renewal begins another. mu is
// held.
func (l *Leases) endEpoch(why string) {
	if l.own.EpochOver || l.own.Epoch == 0 {
		return
	}
	l.own.EpochOver, l.changed = true, true
	l.metrics.epochsOver.Inc()
	l.o.Log.Warn("the node lease is lost: this node gives up its VIPs and begins a new epoch", "why", why, "epoch",
		l.own.Epoch)
}

// renew starts a renewal that is due, or for news: within infoBurst, unless it is that this process stops.
func (l *Leases) renew(ctx context.Context, now time.Time, about vip.NodeInfo) {
	o := &l.own
	if o.releasing {
		return
	}
	about.Isolated, about.Suspects = l.isolated(), l.decision.Suspects
	about.Restarts, about.Process = o.recentRestarts(now), l.o.Process
	info, err := json.Marshal(about)
	if err != nil {
		l.o.Log.Error("this node's description can't be written", "err", err)
		return
	}
	if o.infoSpent.Before(now) {
		o.infoSpent = now
	}
	early := now.Before(o.next)
	if o.pending || early && (string(info) == o.info || o.RenewingSince.IsZero() ||
		o.infoSpent.Sub(now) >= infoBurst*infoPeriod && (about.Excluded == "" || o.stopTold())) {
		return
	}
	if early {
		o.infoSpent = o.infoSpent.Add(infoPeriod)
	}
	o.pending, o.info = true, string(info)
	about.Table = l.table.carried // which is no reason to renew
	known := o.lease
	if o.EpochOver {
		known = nil
	}
	timeout, short := l.o.RenewDeadline/2, false
	switch {
	case o.lease == nil || o.EpochOver:
	case o.shortTries > 0 && shortTimeout < timeout:
		timeout, short = shortTimeout, true
		o.shortTries--
	case o.firstTry > 0 && o.firstTry < timeout:
		timeout, short = o.firstTry, true
		o.firstTry = 0
	}
	l.start(ctx, timeout, func(ctx context.Context) func() {
		sent := time.Now()
		got, err := l.writeOwn(ctx, known, about)
		if short && err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
			// No answer: its API server or etcd's leader has died. Another try, no failure, over another connection.
			return func() { l.own.pending, l.own.next = false, time.Now() }
		}
		return func() { l.applyRenewal(got, sent, err) }
	})
}

// stopTold reports whether the node lease says that this process stops.
func (o *ownLease) stopTold() bool { return o.lease != nil && infoOf(o.lease).Excluded != "" }

// isolated reports whether this node is isolated, or its last process was, and this one undecided. mu is held.
func (l *Leases) isolated() bool { return l.decision.Isolated || l.own.WasIsolated }

// writeOwn writes this node's lease over known, or what the API server has (nil: creates it), and returns what was
// written. Before another epoch is sent (nextEpoch) the present one ends, and the agent is poked. It blocks; mu is not
// held.
func (l *Leases) writeOwn(ctx context.Context, known *coordinationv1.Lease, about vip.NodeInfo) (*coordinationv1.Lease,
	error) {
	if known == nil {
		var err error
		known, err = l.store.Get(ctx, l.o.Namespace, vip.NodeLeasePrefix+l.o.Node)
		if apierrors.IsNotFound(err) && l.awaitDeletion(ctx) { // it may have been written and fenced meanwhile
			known, err = l.store.Get(ctx, l.o.Namespace, vip.NodeLeasePrefix+l.o.Node)
		}
		switch {
		case apierrors.IsNotFound(err):
			known = nil
		case err != nil:
			return nil, err
		}
	}
	if known != nil {
		if err := l.checkProcess(known); err != nil {
			return nil, err
		}
	}
	l.mu.Lock()
	epoch := nextEpoch(known, l.own.Epoch, l.own.EpochOver || known == nil && !l.fenceWouldBeKnown(time.Now()), time.Now())
	if l.own.Epoch == 0 {
		about.Restarts = restartsAfter(known, time.Now())
		l.own.WasIsolated = known != nil && infoOf(known).Isolated
		about.Isolated = about.Isolated || l.own.WasIsolated
	}
	ends := l.own.Epoch != 0 && epoch != l.own.Epoch
	if ends {
		// It must be over here before others can see that.
		l.endEpoch("another epoch has begun, or it was fenced")
	}
	l.mu.Unlock()
	if ends {
		l.o.Poke()
	}
	if known != nil && epoch < transitions(known) {
		l.o.Log.Error("the node lease has an epoch that no node reaches by counting: something else than Herald wrote "+
			"it; this node begins another", "lease", l.o.Namespace+"/"+known.Name, "epoch", transitions(known), "next", epoch)
	}
	next := l.nextOwn(known, epoch, about)
	got, err := l.store.Write(ctx, next)
	if known == nil && apierrors.IsNotFound(err) {
		// Not a lease that went meanwhile: that is tried again at once.
		err = fmt.Errorf("the namespace %s can't take it; cp_namespace names the one that Herald runs in: %s", l.o.Namespace,
			err.Error())
	}
	return got, err
}

// fenceWouldBeKnown reports whether the watch shows the lease's deletion, and so any fence before, to a node not away.
func (l *Leases) fenceWouldBeKnown(now time.Time) bool {
	t := l.own.Tenure(l.o.Timing, l.decision.HoldUntil, now)
	return t.Holds(now) && t.Confirmed && l.watch.own == 0
}

// Times of a renewal that finds no node lease before the watch shows its deletion.
const (
	deletionWait = time.Second           // how long it waits for that
	deletionLook = 25 * time.Millisecond // between two looks
)

// awaitDeletion waits for the watch to show the lease's deletion, and reports whether it did (fenceWouldBeKnown).
func (l *Leases) awaitDeletion(ctx context.Context) bool {
	for began := time.Now(); ; {
		l.mu.Lock()
		now := time.Now()
		t := l.own.Tenure(l.o.Timing, l.decision.HoldUntil, now)
		shown := l.watch.own == 0
		lasts := t.Confirmed && t.Until.Sub(began) >= 2*deletionWait
		l.mu.Unlock()
		if shown || !lasts || now.Sub(began) >= deletionWait || ctx.Err() != nil {
			return shown && now.After(began)
		}
		time.Sleep(deletionLook)
	}
}

// nextEpoch returns the epoch to write over a node lease (nil: none) by a process in epoch own (0: none yet), over or
// not: the same if valid, else a new one. It is counted up, or the seconds since 2020, if nothing is known, or
// something else wrote one that nobody reaches.
func nextEpoch(known *coordinationv1.Lease, own int64, over bool, now time.Time) int64 {
	// Greater than any the node ever had, even if nobody remembers: the seconds since 2020.
	first := min(max(1, now.Unix()-epochZero.Unix()), lastEpoch/2)
	switch {
	case known != nil && max(fencedEpoch(known), transitions(known)) >= lastEpoch:
		if own+1 < lastEpoch {
			return max(first, own+1)
		}
		return first
	case known == nil && own == 0:
		return first
	case known == nil && over:
		return max(own+1, first)
	case known == nil:
		return own // deleted by hand; a fence would have put a lease there
	case own == 0 && transitions(known) == 0:
		return max(first, fencedEpoch(known)+1)
	case fencedEpoch(known) != 0 && fencedEpoch(known) >= max(own, transitions(known)):
		return max(own, fencedEpoch(known)) + 1
	case own == 0 && infoOf(known).Excluded != "":
		// The earlier process was releasing, and its last requests may still arrive.
		return transitions(known) + 1
	case own == 0 || transitions(known) > own:
		// An earlier or second process here began that epoch, unfenced, so its claims are this node's.
		return transitions(known)
	case over:
		// Unfenced, but others may have moved its claims without the API server: they must not become valid again.
		return own + 1
	}
	return own
}

// epochZero is where the seconds begin that number a node's first epoch.
var epochZero = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// lastEpoch is where counting ends: leaseTransitions has 32 bits.
const lastEpoch = math.MaxInt32 - 1

// infoOf returns what a node lease says of its node, or zero.
func infoOf(l *coordinationv1.Lease) (info vip.NodeInfo) {
	if json.Unmarshal([]byte(l.Annotations[NodeAnnotation]), &info) != nil {
		return vip.NodeInfo{}
	}
	return info
}

// nextOwn returns a copy of known (nil: none) renewed now in that epoch; AcquireTime changes with the epoch.
func (l *Leases) nextOwn(known *coordinationv1.Lease, epoch int64, about vip.NodeInfo) *coordinationv1.Lease {
	now := metav1.NewMicroTime(time.Now())
	next := nextLease(known, l.o.Namespace, vip.NodeLeasePrefix+l.o.Node)
	annotate(next, FencedAnnotation, "")
	info, _ := json.Marshal(about) // renew has seen that this is possible
	annotate(next, NodeAnnotation, string(info))
	if l.o.NodeUID != nil {
		if uid := l.o.NodeUID(l.o.Node); uid != "" { // Kubernetes deletes it with the Node
			next.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: l.o.Node, UID: types.UID(uid)}}
		}
	}
	next.Spec.HolderIdentity, next.Spec.RenewTime = &l.o.Node, &now
	next.Spec.LeaseDurationSeconds, next.Spec.LeaseTransitions = new(int32(l.o.LeaseDuration/time.Second)),
		new(int32(epoch))
	if known == nil || epoch != transitions(known) {
		next.Spec.AcquireTime = &now
	}
	return next
}

// applyRenewal stores a renewal's outcome and the next time; mu is held.
func (l *Leases) applyRenewal(got *coordinationv1.Lease, sent time.Time, err error) {
	o := &l.own
	o.pending = false
	now := time.Now()
	switch {
	case err == nil:
		l.metrics.renewals.WithLabelValues("ok").Inc()
		if o.Epoch == 0 {
			o.began, o.restarts = now, restartsOf(got)
		}
		if o.Epoch != transitions(got) {
			o.Epoch, o.EpochOver, o.epochAt = transitions(got), false, now
			l.changed = true
			l.o.Log.Info("the node lease is held", "lease", l.o.Namespace+"/"+got.Name, "epoch", o.Epoch)
		}
		if o.RenewingSince.IsZero() {
			o.RenewingSince = sent
		}
		if o.failing {
			l.o.Log.Info("the node lease is renewed again")
		}
		l.checkRestored(got, o.written)
		o.lease, o.written, o.Renewed, o.failing = got, version(got), sent, false
		l.changed = l.changed || l.about.Excluded != "" // for StopTold
		l.watch.renewals = addRenewal(l.watch.renewals, got, now)
		o.shortTries, o.firstTry = 0, 0
		switch took := now.Sub(sent); {
		case took < fastRenewal:
			o.shortTries = shortTries
		case took < slowRenewal:
			o.firstTry = min(3*took, firstTimeout)
		}
		o.next = sent.Add(min(l.o.RetryPeriod, max(fastRenewal, (l.o.RenewDeadline-time.Second)/2)))
		if o.EpochOver { // while this renewal was under way
			o.next = now
		}
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		l.metrics.renewals.WithLabelValues("conflict").Inc()
		o.lease, o.next = nil, now // it must be read before anything is decided
	default:
		l.metrics.renewals.WithLabelValues("error").Inc()
		o.next = now.Add(l.o.RetryPeriod / 4)
		if !o.failing {
			l.o.Log.Warn("the node lease can't be renewed; trying on", "err", err)
		}
		o.failing, o.RenewingSince, o.info = true, time.Time{}, ""
		l.watch.renewals = nil // the watch may be away, too
	}
}

// releaseNodeLease blanks and deletes the node lease, in three tries. It blocks. A missing lease is no error.
func (l *Leases) releaseNodeLease(ctx context.Context) (err error) {
	for range 3 { // others may write it meanwhile, or a renewal whose answer was lost
		if err = l.tryReleaseNodeLease(ctx); !apierrors.IsConflict(err) {
			break
		}
	}
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("the node lease was not released, so the others wait until it is %v old: %w", l.o.LeaseDuration, err)
}

// tryReleaseNodeLease ends the epoch and deletes the node lease, unless it says isolated, for the next process.
func (l *Leases) tryReleaseNodeLease(ctx context.Context) error {
	if l.own.Epoch == 0 {
		return nil
	}
	x, err := l.store.Get(ctx, l.o.Namespace, vip.NodeLeasePrefix+l.o.Node)
	if err != nil {
		return err
	}
	x = x.DeepCopy()
	x.Spec.HolderIdentity = new("")
	annotate(x, FencedAnnotation, strconv.FormatInt(max(l.own.Epoch, transitions(x)), 10))
	if x, err = l.store.Write(ctx, x); err != nil {
		return err
	}
	l.mu.Lock()
	drop := !l.isolated() || l.decision.Rejoining
	l.mu.Unlock()
	if !drop {
		return nil // another node deletes it when nobody needs it any more
	}
	// A process without node lease may begin a later epoch only then. A longer time is a clock that was set back.
	later := epochZero.Add(time.Duration(max(l.own.Epoch, transitions(x))+1) * time.Second)
	if wait := time.Until(later); wait <= quorum.StopTime && !mailbox.Sleep(ctx, wait) {
		return nil // it stays, and the next process counts on from it
	}
	if err := l.store.Delete(ctx, x.Namespace, x.Name, x.ResourceVersion); apierrors.IsConflict(err) {
		return err
	}
	return nil // else it stays, too: it is released
}
