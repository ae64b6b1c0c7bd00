package lease

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	maxWrites    = 32                      // requests on VIP leases at a time
	overlap      = 3 * time.Second         // how long a node goes on answering for what it has handed over
	stalledAfter = 1500 * time.Millisecond // how long an expected holder may take to acquire a VIP lease
	stalledFor   = 30 * time.Second        // how long the others go ahead of it then
)

// writes is what the plan wants of VIP leases, and which requests follow from that.
type writes struct {
	intents map[vip.Key]vip.LeaseIntent
	planned bool // setIntents has been called
	// observed is the versions of the VIP leases that named this node when Observe was last
	// called; unplanned is those of them for which the plan then had no intent.
	observed, unplanned map[vip.Key]uint64

	limits      writeLimits      // of requests on VIP leases
	nodeLeases  map[vip.Key]bool // node leases of others on which a request is under way
	failures    map[vip.Key]failure
	refusedAt   map[string]time.Time // by namespace: when a write there was last refused
	handingOver map[vip.Key]vip.HandingOver

	handOvers     []update           // those that the next write of this node's own lease is to transfer
	transferring  map[vip.Key]uint64 // VIP leases, each in one version, that such a write was sent for, and nothing has shown yet whether it was carried out
	transferAfter time.Time          // until then each hand-over is a write of its own: the last transfer failed
}

// maxFailures is how many failures in a row are counted.
const maxFailures = 6

// A failure is one or more writes on a Lease that did not go through, one after the other.
type failure struct {
	count int
	until time.Time // when the next may be sent
	// conflict: another writer was faster. Once a version other than replaced is known the
	// next write need not wait.
	conflict bool
	replaced uint64 // 0: none was known

	// unanswered is the newest version that one of them was to replace that had no answer: it may still be carried out, until a newer one is known. 0: none.
	unanswered uint64
	// withoutTransfers: of the fence of a node; the API server has refused one that transfers its VIPs.
	withoutTransfers bool

	refused  string // why the API server refuses it, and what to do (refusalText); "" if it does not
	refusals int
}

// newWrites makes an empty writes: no plan is known.
func newWrites() writes {
	return writes{
		intents:     make(map[vip.Key]vip.LeaseIntent),
		limits:      newWriteLimits(maxWrites),
		nodeLeases:  make(map[vip.Key]bool),
		failures:    make(map[vip.Key]failure),
		refusedAt:   make(map[string]time.Time),
		handingOver: make(map[vip.Key]vip.HandingOver), transferring: make(map[vip.Key]uint64),
	}
}

// setIntents replaces what the plan wants of VIP leases, and marks as unplanned, to be released,
// those that Observe last saw with this node as holder and that no intent names.
func (w *writes) setIntents(want []vip.LeaseIntent) {
	w.planned = true
	clear(w.intents)
	w.unplanned = maps.Clone(w.observed)
	for _, intent := range want {
		w.intents[intent.Lease] = intent
		delete(w.unplanned, intent.Lease)
	}
	w.dropRefusals()
}

// forgetGone forgets the failures of writes on leases, and the versions that are outdated, where nothing is left of the lease: none is known, no intent names it, no request on it is
// under way, and it is not the node lease of a peer; a version only once the watch has shown a later one, so that it can't show it any more. While claims are copied it
// forgets no failures: no intent names the copies.
func (l *Leases) forgetGone() {
	isGone := func(k vip.Key) bool {
		if _, wanted := l.writes.intents[k]; wanted || l.writes.pending(k) || l.cache.latest[k] != nil || l.cache.watched[k] != nil || l.cache.vanished[k] != nil {
			return false
		}
		node := l.nodeOf(k)
		return node == "" || l.peers[node] == nil
	}
	if !l.location.moving() {
		maps.DeleteFunc(l.writes.failures, func(k vip.Key, _ failure) bool { return isGone(k) })
	}
	maps.DeleteFunc(l.cache.outdated, func(k vip.Key, v uint64) bool { return v < l.cache.shown && isGone(k) })
}

// mayWrite reports whether a VIP lease whose newest known version is given (0: none) may be
// written now: no request on it is under way, it is not being transferred, and the wait after its last failure is over, or
// that was a conflict and another version than the one it was to replace is known.
func (w *writes) mayWrite(k vip.Key, version uint64, now time.Time) bool {
	f := w.failures[k]
	return !w.busy(k) && (!now.Before(f.until) || f.conflict && f.replaced != version)
}

// busy reports whether a request on a VIP lease is under way, or it is being transferred.
func (w *writes) busy(k vip.Key) bool {
	_, transferring := w.transferring[k]
	return w.pending(k) || transferring
}

// pending reports whether a request on a VIP lease, or on the node lease of another node, is under way.
func (w *writes) pending(k vip.Key) bool {
	_, pending := w.limits.requests[k]
	return pending || w.nodeLeases[k]
}

// release is the action on a VIP lease that is held and not wanted.
const release vip.LeaseAction = "release"

// An update is one write on a VIP lease.
type update struct {
	action vip.LeaseAction
	key    vip.Key
	from   *coordinationv1.Lease // what it replaces; nil: no lease exists
	intent vip.LeaseIntent       // zero with release
	holder string                // the node to be written; "" with release
	epoch  int64                 // that node's
	owner  owner                 // by what it replaces; zero if no lease exists
	behind bool                  // it writes what was transferred to this node, which acts on it already
	waits  bool                  // a hand-over that may be transferred only: the VIP lease may not be written yet (mayWrite)
}

// writeVIPLeases starts as many of the writes that listUpdates returns as may begin (writeLimits): of those that write what was transferred to this node no more
// than maxUnwritten are under way, limited likewise. It starts none before the first plan, nor without a
// confirmed tenure that rests on renewals (not quorum.Holding). Hand-overs that need no write of their own (splitHandOvers) it stores in handOvers, for renew. Before
// that, always, it calls updateStalled and updatePassedOver.
func (l *Leases) writeVIPLeases(ctx context.Context, now time.Time) {
	l.writes.handOvers = nil
	l.updateStalled(now)
	l.updatePassedOver(now)
	t, limits := l.tenure(now), &l.writes.limits
	if !l.writes.planned || !t.Holds(now) || !t.Confirmed || l.decision.Verdict == quorum.Holding || limits.free() == 0 {
		return
	}
	var updates []update
	l.writes.handOvers, updates = l.splitHandOvers(l.listUpdates(now), now)
	for _, u := range updates {
		if limits.free() == 0 {
			return // the next result brings us back here
		}
		namespace := l.namespaceOf(u.key)
		leaves := u.key.Namespace != l.o.Namespace // in the announcers' namespace admission can't tell the namespaces of Services apart
		if limits.mayBegin(namespace, leaves) && (!u.behind || l.unwritten.limits.mayBegin(namespace, leaves)) {
			l.writeVIPLease(ctx, u, now)
		}
	}
}

// writeVIPLease starts a write on a VIP lease; the outcome goes to applyUpdate. A hand-over is stored in handingOver, and a lease to be released counts as outdated, so
// that this node's claim on it is not valid.
func (l *Leases) writeVIPLease(ctx context.Context, u update, now time.Time) {
	var next *coordinationv1.Lease
	if u.action != release {
		next = l.nextVIPLease(u)
	}
	switch u.action {
	case vip.HandOver:
		// From now on, not from the answer on: the watch may show the successor's name first.
		since := now
		if h, ok := l.writes.handingOver[u.key]; ok && h.Successor == u.holder && l.outcomeUnknown(u.key) {
			since = h.Since // it may have been heard since
		}
		l.writes.handingOver[u.key] = vip.HandingOver{Successor: u.holder, Since: since, Until: now.Add(overlap)}
		l.changed = true
	case release:
		// The claim is void as soon as it is written, which is before the answer: should it
		// be wanted again meanwhile, it must be acquired again.
		l.cache.outdated[u.key] = version(u.from)
	}
	l.writes.limits.begin(u.key, l.namespaceOf(u.key))
	if u.behind {
		l.unwritten.limits.begin(u.key, l.namespaceOf(u.key))
	}
	l.start(ctx, l.o.RenewDeadline/2, func(ctx context.Context) func() {
		sent := time.Now()
		got, err := l.send(ctx, u, next)
		return func() {
			if err == nil && next != nil {
				l.unwritten.addSent(got, sent)
			}
			l.applyUpdate(u, got, err)
		}
	})
}

// listUpdates returns the writes on VIP leases to start now: hand-overs first, since another
// node waits for them, then what to acquire, by key, then releases, then what was transferred to this node and is not
// written. Of each kind but the last namespaces of Services take turns (vip.TakeTurns). A lease is handed over if
// this node's claim on it is valid, or was moved to it without the API server from one that is void by now, and the Successor is alive; acquired if no claim on it is
// valid, not even an orphaned one of another node, or if it was transferred to this node; released if a Herald wrote this node as its holder and it
// is unplanned in its newest version. None that exists is acquired or released while others act on moves that this node does not know
// (quorum.Decision.UnknownMoves), nor acquired while they may (PossibleMoves). Leases for which mayWrite is false are left out, but for hand-overs of those that only wait after a failure.
func (l *Leases) listUpdates(now time.Time) []update {
	var handOver, acquire, releases, behind []update
	for k, intent := range l.writes.intents {
		if intent.Action == vip.Follow || !l.mayChange(k, now) {
			continue
		}
		var from *coordinationv1.Lease
		valid, mine := false, false
		var o owner
		if x := l.cache.latest[k]; x != nil {
			from, valid, o = x.Lease, l.valid(x, now), l.cache.ownerOf(x)
			mine = valid && o.node == l.o.Node
			valid = valid && (!x.orphaned || l.orphanedElsewhere(x.Lease, now))
			if m, moved := l.moveOf(x); moved && !valid && intent.Action == vip.HandOver && m.Holder == l.o.Node && l.moveHolds(m) {
				o, mine = movedOwner(o, m), true
			}
		} else if x := l.cache.vanished[k]; x != nil {
			valid = l.orphanedElsewhere(x, now)
		}
		valid = valid || l.foreignClaim(k, now)
		may := l.writes.mayWrite(k, l.cache.version(k), now)
		switch {
		case intent.Action == vip.Acquire && !valid && (l.decision.UnknownMoves || l.decision.PossibleMoves) && from != nil:
			// It may have been moved to another node without the API server.
		case intent.Action == vip.Acquire && !valid && may:
			acquire = append(acquire, update{vip.Acquire, k, from, intent, l.o.Node, l.own.Epoch, o, false, false})
		case intent.Action == vip.Acquire && mine && o.unwritten && may:
			behind = append(behind, update{vip.Acquire, k, from, intent, l.o.Node, l.own.Epoch, o, true, false})
		case intent.Action == vip.HandOver && mine && !l.writes.busy(k) && l.decision.Alive[intent.Successor]:
			if p := l.peers[intent.Successor]; p != nil {
				handOver = append(handOver, update{vip.HandOver, k, from, intent, intent.Successor, p.Epoch, o, false, !may})
			}
		}
	}
	for k := range l.ownKeys() {
		x := l.cache.latest[k]
		if x != nil && x.ours && l.cache.ownerOf(x).node == l.o.Node && !l.decision.UnknownMoves && l.counts(k) && l.mayChange(k, now) && l.writes.unplanned[k] == x.version && l.writes.mayWrite(k, x.version, now) {
			releases = append(releases, update{action: release, key: k, from: x.Lease})
		}
	}
	slices.SortFunc(acquire, func(a, b update) int { return a.key.Compare(b.key) })
	l.takeTurns(handOver, acquire, releases)
	return slices.Concat(handOver, acquire, releases, behind)
}

// takeTurns sorts each of lists so that namespaces of Services take turns: one whose Services name other leases all the time
// keeps no other namespace's from being written.
func (l *Leases) takeTurns(lists ...[]update) {
	for _, list := range lists {
		vip.TakeTurns(list, l.writes.limits.underWay, func(u update) string { return l.namespaceOf(u.key) })
	}
}

// namespaceOf returns the namespace of the Services of a VIP lease.
func (l *Leases) namespaceOf(k vip.Key) string { return l.serviceLease(k).Namespace }

// nextVIPLease returns the lease to write for an acquire or a hand-over: a changed copy of
// u.from, or a new one, with u.holder and u.epoch as its claim, the holder before as
// FromAnnotation, the Service as owner (if its UID is known), Labels, and acquired and renewed
// now. Transitions rise by one unless the holder before, or the one before that if it is
// blank, is u.holder.
func (l *Leases) nextVIPLease(u update) *coordinationv1.Lease {
	next := &coordinationv1.Lease{}
	var count int32
	previous, former := "", ""
	now := metav1.NewMicroTime(time.Now())
	acquired, cause, moved := now, u.intent.Cause, false
	if u.from != nil {
		former = formerHolders(u.from, u.holder, now.Time)
		next = u.from.DeepCopy()
		count = addTransitions(u.from, 0)
		moved = holder(u.from) != u.holder
		earlier := u.from.Annotations[FromAnnotation]
		if previous = cmp.Or(holder(u.from), earlier); previous == u.holder {
			previous = earlier
		} else if count < math.MaxInt32 {
			count++
		}
	}
	if o := u.owner; o.unwritten && o.node != "" {
		hops := len(o.before)
		previous, moved = o.before[0], true
		all := o.formerHolders(parseRecord(u.from))
		if o.node == u.holder {
			cause, acquired = o.cause, metav1.NewMicroTime(o.at)
		} else {
			previous, hops, all = o.node, hops+1, addFormerHolder(all, o.node, now.Time)
		}
		former = formerHoldersText(all)
		count = addTransitions(u.from, hops)
	}
	next.Namespace, next.Name = u.key.Namespace, u.key.Name
	addLabels(next)
	annotate(next, ClaimAnnotation, quorum.ClaimText(u.holder, u.epoch))
	annotate(next, FromAnnotation, previous)
	annotate(next, FormerAnnotation, former)
	if previous != "" && (cause != "" || moved) {
		annotate(next, CauseAnnotation, truncateCause(cause))
	}
	l.setServiceLease(next, u.intent)
	next.Spec.HolderIdentity, next.Spec.LeaseTransitions = &u.holder, &count
	next.Spec.LeaseDurationSeconds = new(int32(l.o.LeaseDuration / time.Second))
	next.Spec.AcquireTime, next.Spec.RenewTime = &acquired, &now
	return next
}

// send writes next, over u.from if there is one; if next is nil it blanks u.from and deletes
// it. It blocks, without mu. It returns what was written: a blanked lease also together with
// the error of its delete, and nil if nothing was.
func (l *Leases) send(ctx context.Context, u update, next *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	switch {
	case next == nil:
		// Blanked, then deleted: a lease that merely vanished may have been deleted by another
		// program while its holder announces the VIP, so no node would acquire it.
		blank := u.from.DeepCopy()
		blank.Spec.HolderIdentity = new("")
		annotate(blank, ClaimAnnotation, "")
		got, err := l.store.Update(ctx, blank)
		if err == nil {
			err = l.store.Delete(ctx, u.key.Namespace, u.key.Name, got.ResourceVersion)
		}
		return got, err
	case u.from == nil:
		return l.store.Create(ctx, next)
	}
	return l.store.Update(ctx, next)
}

// applyUpdate stores the outcome of a write on a VIP lease, beyond applyWrite: a lease that
// was released is deleted; one that is not found is forgotten and may be written at once;
// after a conflict the version that was to be replaced counts as outdated; a refusal is stored
// (setRefusal). Any of the last three ends the hand-over it was for. Other errors are logged. It counts the write by action
// and result, and sets l.changed. mu is held.
func (l *Leases) applyUpdate(u update, got *coordinationv1.Lease, err error) {
	l.applyWrite(u.key, got, err)
	result := "ok"
	why, first := l.writes.setRefusal(u.key, err, time.Now())
	switch {
	case why != "":
		result = "refused"
		if first {
			l.o.Log.Warn("the API server refuses to have a VIP lease written; it is tried again less and less often", "lease", u.key, "action", u.action, "why", why+l.movingHint(u.key))
		}
	case err == nil && u.action == release:
		l.cache.setDeleted(got)
	case err == nil:
	case apierrors.IsNotFound(err):
		l.cache.forget(u.key)
		delete(l.writes.failures, u.key) // it may be created at once
		result = "conflict"
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		result = "conflict"
		f := l.writes.failures[u.key]
		f.conflict, f.replaced = true, 0
		if u.from != nil {
			f.replaced = version(u.from)
			l.cache.outdated[u.key] = f.replaced
		}
		l.writes.failures[u.key] = f
	default:
		result = "error"
		f := l.writes.failures[u.key]
		if u.from != nil {
			f.unanswered = max(f.unanswered, version(u.from))
		}
		l.writes.failures[u.key] = f
		l.o.Log.Warn("a VIP lease can't be written; trying again", "lease", u.key, "action", u.action, "err", err)
	}
	if result != "ok" && result != "error" && u.action == vip.HandOver {
		delete(l.writes.handingOver, u.key)
	}
	l.changed = true
	l.metrics.written.WithLabelValues(string(u.action), result).Inc()
}

// applyWrite stores the outcome of a write or delete on any lease but this node's own: the
// request is no longer under way, and got, if not nil, is the newest version (also if err is
// the error of a delete after it). After an error the next write waits, 100 ms at first and
// twice as long after each, up to 3.2 s; a success ends that.
func (l *Leases) applyWrite(k vip.Key, got *coordinationv1.Lease, err error) {
	delete(l.writes.nodeLeases, k)
	l.writes.limits.end(k)
	l.unwritten.limits.end(k)
	if got != nil { // also if the delete after it failed
		l.cache.setWritten(got)
	}
	if err == nil {
		delete(l.writes.failures, k)
		return
	}
	f := l.writes.failures[k]
	f.count, f.conflict = min(f.count+1, maxFailures), false
	// After a conflict the watch has to catch up; after an error the API server has to.
	f.until = time.Now().Add(50 * time.Millisecond << f.count)
	l.writes.failures[k] = f
}

// stalledAfter returns how long another node may take to write: longer where this node's own writes take long.
func (l *Leases) stalledAfter() time.Duration { return max(stalledAfter, 2*l.own.took+time.Second/2) }

// updateStalled marks, and logs, the nodes that the plan expects to acquire a VIP lease
// (ExpectedHolder of one that this node follows) and that have acquired none for stalledAfter,
// counted while this node's own renewals succeed. Leases in namespaces in which the API server
// refuses the node's writes do not count.
func (l *Leases) updateStalled(now time.Time) {
	expected := make(map[string]bool)
	for _, intent := range l.writes.intents {
		if p := l.peers[intent.ExpectedHolder]; p != nil && p.info.LeasesRefused(intent.Lease.Namespace) {
			continue
		}
		if intent.Action == vip.Follow && !l.own.RenewingSince.IsZero() {
			expected[intent.ExpectedHolder] = true
		}
	}
	for node, p := range l.peers {
		if waited := p.updateStalled(expected[node], l.stalledAfter(), now); waited > 0 {
			l.changed = true
			l.o.Log.Info("a node does not acquire the VIPs that are its to acquire; others go ahead of it", "node", node, "for", waited.Round(100*time.Millisecond))
		}
	}
}
