package lease

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Store is the API server's Leases: a cache to read and a way to write, conditional on the replaced resourceVersion,
// so that one of two writers is refused (apierrors.IsConflict, IsAlreadyExists or IsNotFound).
type Store interface {
	Synced() bool
	// TakeChanges returns what happened to the cache since the last call: new or changed Leases, and last versions of
	// removed ones, in that order, not to be changed.
	TakeChanges() (changed, dropped []*coordinationv1.Lease)
	// WatchAgain has all the process's watches begin again with a list. It does not block.
	WatchAgain()
	// Get reads past the watch cache.
	Get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	// Write replaces the version of l that this names; without one it creates l.
	Write(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	Delete(ctx context.Context, namespace, name, resourceVersion string) error
}

type watch struct {
	own    uint64            // the version of this node's lease that it has shown; 0: it shows none
	fenced map[string]uint64 // by node: the version that this node's own fence has written, until it is shown

	// To a node whose watch shows none of its renewals all others are silent (checkWatch): these are the renewals since
	// the last that it has shown, with the time of their answers; none before a failed one.
	renewals []renewal
	shownAt  time.Time // when it has shown that: one that is only late shows another all the time
	again    time.Time // the watches do not begin again for that before this
	pause    time.Duration
}

type renewal struct {
	version uint64
	at      time.Time // of the answer
}

// addRenewal returns all with one more: of too many the first, which the watch shows first, and the last.
func addRenewal(all []renewal, got *coordinationv1.Lease, at time.Time) []renewal {
	return append(all[:min(len(all), 99)], renewal{version(got), at})
}

// readCache applies the cache's changes, node leases first, which judge others; what is no renewal sets l.changed.
func (l *Leases) readCache(now time.Time) {
	changed, dropped := l.store.TakeChanges()
	for _, x := range changed {
		switch node := l.nodeOf(keyOf(x)); {
		case node == "":
		case node == l.o.Node:
			l.watch.own = version(x)
			l.checkOwn(x, now)
		case version(x) < l.watch.fenced[node]: // the watch is behind this node's own write
		default:
			delete(l.watch.fenced, node)
			if l.peer(node, now).update(x, now) {
				l.changed = true
				l.logFenced(node, l.peers[node])
			}
		}
	}
	present := make(map[vip.Key]bool, len(changed))
	for _, x := range changed {
		k := keyOf(x)
		present[k] = true
		if k == l.tableKey() {
			l.setTable(x, now)
		} else if l.nodeOf(k) == "" {
			l.storeForeign(l.unitOf(k), x, now)
		}
	}
	for _, x := range dropped {
		if !present[keyOf(x)] {
			l.dropped(x, now)
		}
	}
	for node, p := range l.peers {
		if !p.Exists && (p.released || now.Sub(p.Changed) >= 2*l.o.LeaseDuration) && !l.table.known.owns(node) {
			delete(l.peers, node)
			l.changed = true
		}
	}
	l.updateUnproven(now)
}

// dropped takes in that a Lease is gone, last in version x.
func (l *Leases) dropped(x *coordinationv1.Lease, now time.Time) {
	switch node := l.nodeOf(keyOf(x)); {
	case keyOf(x) == l.tableKey():
		l.tableGone(x)
	case node == l.o.Node:
		l.watch.own = 0
		if l.own.lease == nil || version(x) >= version(l.own.lease) {
			if fencedEpoch(x) >= l.own.Epoch { // and deleted before the watch has shown that
				l.endEpoch("it was fenced by another node, and deleted")
			}
			l.own.next = now // put it back at once
		}
	case node != "":
		p := l.peer(node, now)
		if version(x) < l.watch.fenced[node] {
			return
		}
		delete(l.watch.fenced, node)
		if p.lease == nil || version(x) > version(p.lease) {
			p.update(x, now) // it may have been released before it was deleted
		}
		p.Exists = false
		l.changed = true
	default:
		k := l.unitOf(keyOf(x))
		l.changed = l.changed || l.beside.foreign[k] != nil
		delete(l.beside.foreign, k)
		delete(l.beside.seen, k)
	}
}

// checkRestored takes a read past the watch, of an earlier version than was known when it began, for a restore of etcd:
// all watches begin again, and nothing from before counts, but the table as seen last. mu is held.
func (l *Leases) checkRestored(x *coordinationv1.Lease, known uint64) {
	if version(x) >= known {
		return
	}
	clear(l.watch.fenced)
	l.table.version, l.table.stale, l.changed = 0, true, true
	l.watchAgain("etcd was restored from an earlier backup, and watches may show nothing: all is listed again")
}

func (l *Leases) watchAgain(why string) {
	l.watch.renewals = nil // those that follow count
	l.o.Log.Warn(why)
	l.store.WatchAgain()
}

// Times of a watch that shows nothing.
const (
	// between the first and the last renewal that it has not shown, and since it has shown one
	watchTimeout  = 10 * time.Second
	watchPause    = 10 * time.Second // before the watches begin again a second time; twice as long after each
	maxWatchPause = 5 * time.Minute  // all pauses are up to half as long more, so that not all nodes list at once
)

// checkWatch has all watches begin again after watchTimeout without a renewal: at once the first time, then after
// growing pauses, until none was needed for maxWatchPause. mu is held.
func (l *Leases) checkWatch(now time.Time) {
	w := &l.watch
	if w.own != 0 {
		before := len(w.renewals)
		// the last may be another program's version
		w.renewals = slices.DeleteFunc(w.renewals, func(r renewal) bool { return r.version <= w.own })
		if len(w.renewals) < before {
			w.shownAt = now
		}
	}
	n := len(w.renewals)
	if n == 0 || w.renewals[n-1].at.Sub(w.renewals[0].at) < watchTimeout || now.Sub(w.shownAt) < watchTimeout ||
		now.Before(w.again) {
		return
	}
	if w.pause = min(2*w.pause, maxWatchPause); now.Sub(w.again) > maxWatchPause {
		w.pause = watchPause
	}
	w.again = now.Add(w.pause + rand.N(w.pause/2))
	l.watchAgain("the watches show nothing of what this node writes, though the API server takes it: all that is " +
		"watched is listed again, on a new connection")
}
