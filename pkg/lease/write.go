package lease

import (
	"context"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/pkg/vip"
)

func uid(s string) types.UID { return types.UID(s) }

// An action is one write on a VIP lease.
type action struct {
	op    string // "take", "give" or "release", for metrics and messages
	key   vip.Key
	have  *coordinationv1.Lease // nil: none is there
	stake vip.LeaseIntent
	to    string // the holder to be; "" with release
	epoch int64  // that one's
}

// write starts the writes on VIP leases that are due.
func (l *Leases) write(ctx context.Context, now time.Time) {
	l.expect(now)
	t := l.tenure()
	if !l.decided || !t.Holds(now) || !t.Confirmed || l.bide.until.After(now) || l.running >= writes {
		return
	}
	for _, a := range l.decide(now) {
		if l.running >= writes {
			return // a result brings us back here
		}
		next := l.claimed(a)
		if a.op == "give" {
			// From now on, not from the answer on: the watch may show the successor's name first.
			l.leaving[a.key] = vip.HandingOver{Successor: a.to, Since: now, Until: now.Add(overlap)}
		}
		if a.op == "release" {
			// It is gone as soon as it is written, which is before the answer: should it be
			// wanted again meanwhile, it must be claimed again.
			l.outdated[a.key] = version(a.have)
		}
		l.busy[a.key] = true
		l.running++
		l.start(ctx, l.o.RenewDeadline/2, func(ctx context.Context) func() {
			got, err := l.do(ctx, a, next)
			return func() { l.done(a, got, err) }
		})
	}
}

// decide says what to write, from what is known and wanted. Hand-overs come
// first: somebody waits for them.
func (l *Leases) decide(now time.Time) []action {
	var give, take, release []action
	idle := func(k vip.Key) bool {
		f := l.failed[k]
		return !l.busy[k] && (!now.Before(f.until) || f.raced && f.over != l.shelf.at(k))
	}
	for k, s := range l.stakes {
		if s.Action == vip.Follow {
			continue
		}
		var have *coordinationv1.Lease
		valid, mine := false, false
		if x := l.shelf.known[k]; x != nil {
			have, valid = x.Lease, l.valid(x, now)
			mine = valid && x.holder == l.o.Node
		} else if x := l.vanished[k]; x != nil {
			valid = l.bereft(x, now).Valid
		}
		switch {
		case s.Action == vip.Acquire && !valid && idle(k):
			take = append(take, action{"take", k, have, s, l.o.Node, l.own.epoch})
		case s.Action == vip.HandOver && mine && idle(k):
			if p := l.peers[s.Successor]; p != nil && l.alive(s.Successor, p, now) {
				give = append(give, action{"give", k, have, s, s.Successor, p.epoch})
			}
		}
	}
	for k := range l.shelf.mine {
		x := l.shelf.known[k]
		if l.unwanted[k] != x.version || !idle(k) {
			continue
		}
		if x.ours {
			release = append(release, action{op: "release", key: k, have: x.Lease})
		}
	}
	slices.SortFunc(take, func(a, b action) int { return a.key.Compare(b.key) })
	return slices.Concat(give, take, release)
}

// claimed is the VIP lease with a.to as its holder; nil if it is to be deleted.
func (l *Leases) claimed(a action) *coordinationv1.Lease {
	if a.to == "" {
		return nil
	}
	have, node, s := a.have, a.to, a.stake
	next := &coordinationv1.Lease{}
	var count int32
	from := ""
	if have != nil {
		next = have.DeepCopy()
		count = int32(transitions(have))
		if from = holder(have); from == "" {
			from = have.Annotations[FromAnnotation]
		}
		if from != node {
			count++
		} else {
			from = have.Annotations[FromAnnotation]
		}
	}
	next.Namespace, next.Name = s.Lease.Namespace, s.Lease.Name
	label(next)
	annotate(next, ClaimAnnotation, claimText(node, a.epoch))
	annotate(next, FromAnnotation, from)
	if s.UID != "" {
		// The Lease goes when the Service does, whoever is left to see to it.
		next.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: s.Service.Name, UID: uid(s.UID)}}
	}
	now := metav1.NewMicroTime(time.Now())
	seconds := int32(l.o.Duration / time.Second)
	next.Spec.HolderIdentity, next.Spec.LeaseTransitions, next.Spec.LeaseDurationSeconds = &node, &count, &seconds
	next.Spec.AcquireTime, next.Spec.RenewTime = &now, &now
	return next
}

func (l *Leases) do(ctx context.Context, a action, next *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	switch {
	case next == nil:
		// First in words, then in deed: a lease that merely vanished might have been
		// deleted under its holder's feet, and nobody would dare to take it.
		blank := a.have.DeepCopy()
		blank.Spec.HolderIdentity = new(string)
		annotate(blank, ClaimAnnotation, "")
		got, err := l.store.Update(ctx, blank)
		if err == nil {
			err = l.store.Delete(ctx, a.key.Namespace, a.key.Name, got.ResourceVersion)
		}
		return got, err
	case a.have == nil:
		return l.store.Create(ctx, next)
	}
	return l.store.Update(ctx, next)
}

// done takes over the outcome of a write on a VIP lease.
func (l *Leases) done(a action, got *coordinationv1.Lease, err error) {
	l.wrote(a.key, got, err)
	result := "ok"
	switch {
	case err == nil && a.op == "release":
		l.shelf.drop(got)
	case err == nil:
	case apierrors.IsNotFound(err):
		l.shelf.forget(a.key)
		delete(l.failed, a.key) // what is there now is known: nothing
		result = "conflict"
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		result = "conflict" // another node was faster
		f := l.failed[a.key]
		f.raced, f.over = true, 0
		if a.have != nil {
			f.over = version(a.have)
			l.outdated[a.key] = f.over
		}
		l.failed[a.key] = f
	default:
		result = "error"
		l.o.Log.Warn("a VIP lease can't be written; trying again", "lease", a.key, "to", a.op, "err", err)
	}
	if result == "conflict" && a.op == "give" {
		delete(l.leaving, a.key)
	}
	l.signature.changes++
	l.metrics.writes.WithLabelValues(a.op, result).Inc()
}

// wrote takes over the outcome of a write on any lease but this node's own.
func (l *Leases) wrote(k vip.Key, got *coordinationv1.Lease, err error) {
	l.running--
	delete(l.busy, k)
	if got != nil { // also of a write that went half through
		l.shelf.put(got)
	}
	if err == nil {
		delete(l.failed, k)
		delete(l.vanished, k)
		return
	}
	f := l.failed[k]
	f.count = min(f.count+1, 6)
	// After a conflict the cache has to catch up; after an error the API server has to.
	f.until = time.Now().Add(50 * time.Millisecond << f.count)
	l.failed[k] = f
}

// expect notices nodes that don't claim what is theirs. Time counts only while
// this node itself gets its renewals through.
func (l *Leases) expect(now time.Time) {
	awaited := make(map[string]bool)
	for _, s := range l.stakes {
		if s.Action == vip.Follow {
			awaited[s.ExpectedHolder] = true
		}
	}
	for node, p := range l.peers {
		if !awaited[node] || l.own.unbroken.IsZero() {
			p.expected = time.Time{}
			continue
		}
		if p.expected.IsZero() {
			p.expected = now
		}
		since := p.expected
		if p.progress.After(since) {
			since = p.progress
		}
		if p.stalled.IsZero() && now.Sub(since) > patience {
			p.stalled = now
			l.o.Log.Info("a node does not claim the VIPs that are its to claim; others go ahead of it", "node", node, "for", strconv.FormatFloat(now.Sub(since).Seconds(), 'f', 1, 64)+"s")
		}
	}
}

// start runs a request beside the loop; what it returns is run by the loop.
func (l *Leases) start(ctx context.Context, timeout time.Duration, request func(context.Context) func()) {
	go func() {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		l.results <- request(ctx)
	}()
}
