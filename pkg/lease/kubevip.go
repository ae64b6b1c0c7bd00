package lease

import (
	"cmp"
	"context"
	"maps"
	"math"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// besideTime is how long a kube-vip is taken to live after a renewal: one that waits writes nothing. What Heralds
	// write lasts besideRenew longer.
	besideTime   = time.Hour
	besideRenew  = 30 * time.Minute
	maxBeside    = 16               // requests at a time
	besideWait   = time.Second      // after a write, for the watch to show it
	besideRefuse = 10 * time.Minute // after the API server has refused a write in a namespace
)

// A foreign is what another program says on the Lease of a Service.
type foreign struct {
	holder    string
	changedAt time.Time // when it was last seen to change
	duration  time.Duration
}

// valid reports whether the program has changed the Lease within its duration.
func (f *foreign) valid(now time.Time) bool { return now.Sub(f.changedAt) < f.duration }

// A beside is what is known of, and written on, the Leases of Services.
type beside struct {
	foreign map[vip.Key]*foreign
	seen    map[vip.Key]*coordinationv1.Lease // as the watch has shown them last, or this node has written them
	until   time.Time                         // a kube-vip lives until then, as far as is known
	pending int                               // requests that are under way
	waits   map[vip.Key]time.Time             // Leases that are not written before; without a name: all of the namespace
	logged  bool                              // that the API server refuses writes
}

// unitOf returns the unit of a Lease.
func (l *Leases) unitOf(k vip.Key) vip.Key { return cmp.Or(l.o.Units[k], k) }

// storeForeign takes in version x of a Service's Lease; this node's name there is of an earlier program.
func (l *Leases) storeForeign(k vip.Key, x *coordinationv1.Lease, now time.Time) {
	b := &l.beside
	b.seen[k] = x
	before, name := b.foreign[k], foreignHolder(x)
	if name == "" || name == l.o.Node {
		l.changed = l.changed || before != nil
		delete(b.foreign, k)
		if end := keptUntil(x).Add(-besideRenew); end.After(b.until) && !end.After(now.Add(besideTime+time.Minute)) {
			b.until = end // which a process that has just begun goes on with
		}
		return
	}
	l.changed = l.changed || before == nil || before.holder != name || !before.valid(now)
	b.foreign[k] = &foreign{name, now, duration(x, l.o.LeaseDuration)}
	if before != nil && ofKubeVIP(k) { // one that is only there may be left over
		b.until = now.Add(besideTime)
	}
}

// ofKubeVIP reports whether a Lease is named as kube-vip's are.
func ofKubeVIP(k vip.Key) bool {
	return strings.HasPrefix(k.Name, "kubevip-") || strings.HasPrefix(k.Name, "plndr-")
}

// keptUntil returns when a Service's Lease by Herald ends; zero for others.
func keptUntil(x *coordinationv1.Lease) time.Time {
	if holder(x) == "" || foreignHolder(x) != "" || !ofKubeVIP(keyOf(x)) {
		return time.Time{}
	}
	return renewTime(x).Add(duration(x, 0))
}

// dueBeside returns what to do to Leases of Services: while a kube-vip lives, write those of own units without another
// program; else delete what it wrote. later counts what is due soon: the watch is yet to show the last write.
func (l *Leases) dueBeside(now time.Time, later bool) map[vip.Key]besideWrite {
	b, due, lives := &l.beside, make(map[vip.Key]besideWrite), now.Before(l.beside.until)
	for k, x := range b.seen {
		if holder(x) == l.o.Node && !keptUntil(x).IsZero() && !(lives && l.claim(k, l.table.known.Units[k]).Valid) {
			due[k] = besideWrite{x, true}
		}
	}
	for k, e := range l.table.known.Units {
		if !lives || !ofKubeVIP(k) || b.foreign[k] != nil && b.foreign[k].valid(now) {
			continue
		}
		x, c := b.seen[k], l.claim(k, e)
		if c.Valid && c.Holder == l.o.Node && (x == nil || holder(x) != l.o.Node || keptUntil(x).Before(b.until)) {
			due[k] = besideWrite{x, false}
		}
	}
	maps.DeleteFunc(due, func(k vip.Key, _ besideWrite) bool {
		return !later && now.Before(b.waits[k]) || now.Before(b.waits[vip.Key{Namespace: k.Namespace}])
	})
	return due
}

// A besideWrite deletes the Lease known of a Service, or writes over it (nil: none exists).
type besideWrite struct {
	known   *coordinationv1.Lease
	deletes bool
}

// standBeside starts what dueBeside returns, maxBeside at a time, where this node may write the table.
func (l *Leases) standBeside(ctx context.Context, now time.Time) {
	b := &l.beside
	maps.DeleteFunc(b.waits, func(_ vip.Key, until time.Time) bool { return !now.Before(until) })
	if b.pending >= maxBeside || !l.mayWriteTable(now) {
		return
	}
	for k, w := range l.dueBeside(now, false) {
		if b.pending >= maxBeside {
			return
		}
		b.pending++
		b.waits[k] = now.Add(time.Hour) // until it is answered
		next := l.leaseBeside(k, w.known, now)
		l.start(ctx, l.o.RenewDeadline/2, func(ctx context.Context) func() {
			var got *coordinationv1.Lease
			var err error
			if w.deletes {
				err = l.store.Delete(ctx, w.known.Namespace, w.known.Name, w.known.ResourceVersion)
			} else {
				got, err = l.store.Write(ctx, next)
			}
			return func() { l.applyBeside(k, got, err) }
		})
	}
}

// leaseBeside returns an own unit's Lease as kube-vip would write it.
func (l *Leases) leaseBeside(k vip.Key, known *coordinationv1.Lease, now time.Time) *coordinationv1.Lease {
	if known != nil {
		k = keyOf(known)
	}
	next, at := nextLease(known, k.Namespace, k.Name), metav1.NewMicroTime(now)
	annotate(next, ClaimAnnotation, quorum.ClaimText(l.o.Node, l.own.Epoch))
	next.Spec.LeaseTransitions = new(int32(min(transitions(next)+1, math.MaxInt32)))
	next.Spec.HolderIdentity, next.Spec.AcquireTime, next.Spec.RenewTime = &l.o.Node, &at, &at
	next.Spec.LeaseDurationSeconds = new(int32((l.beside.until.Sub(now) + besideRenew) / time.Second))
	return next
}

// applyBeside takes in a write of the Lease k: got is there now, nil if deleted. Refusals are logged once. mu is held.
func (l *Leases) applyBeside(k vip.Key, got *coordinationv1.Lease, err error) {
	b, now := &l.beside, time.Now()
	b.pending--
	b.waits[k] = now.Add(besideWait)
	switch { // the watch need not show it: the Service may be gone
	case err == nil && got != nil:
		b.seen[k] = got
	case err == nil, apierrors.IsNotFound(err):
		delete(b.seen, k)
	}
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return
	}
	b.waits[vip.Key{Namespace: k.Namespace}] = now.Add(besideRefuse)
	if !b.logged {
		b.logged = true
		l.o.Log.Warn("a kube-vip lives, and the API server refuses that Herald writes the Leases of its Services, "+
			"so that kube-vip may take them (docs/migrate-from-kube-vip.md)", "lease", k, "err", err)
	}
}
