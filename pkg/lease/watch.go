package lease

import (
	"math/rand/v2"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// restoredText says for the log why watches begin again.
const restoredText = "etcd was restored from an earlier backup, so that versions begin again, and watches may show nothing: all that is watched is listed again"

// setRestored has all watches begin again, since etcd was restored from a backup, as the renewal that returned got has shown; and this node knows of nothing
// that was written before (unwritten.asOf) until its watch shows a later renewal. What it owns by VIP leases it owns until the watch shows something else. mu is held.
func (l *Leases) setRestored(got *coordinationv1.Lease) {
	l.cache.setRestored(got)
	l.unwritten.sent, l.unwritten.asOf, l.changed = nil, time.Time{}, true
	l.watchAgain(restoredText)
}

// watchAgain has all watches begin again with a list, and logs why.
func (l *Leases) watchAgain(why string) {
	l.watch.renewals = nil // those that follow count
	l.o.Log.Warn(why)
	l.store.WatchAgain()
}

// Times of a watch that shows nothing.
const (
	watchTimeout  = 10 * time.Second // between the first and the last of the renewals that it has not shown, and since it has shown one
	watchPause    = 10 * time.Second // before the watches begin again a second time; twice as long after each
	maxWatchPause = 5 * time.Minute  // all pauses are up to half as long more, so that not all nodes list at once
)

// A watchCheck notices that the watch is stuck: it shows none of this node's renewals, though these succeed, as where a server only keeps its connections open, or
// refuses watches for as long as its cache is not filled. To such a node all others are silent: it would know of no successor.
type watchCheck struct {
	renewals []sentWrite // since the last one that the watch has shown, with the time of their answers; none from before one that failed
	shown    time.Time   // when it has shown that: one that is only late shows another all the time
	next     time.Time   // the watches do not begin again for that before this
	pause    time.Duration
}

// checkWatch has all watches begin again if the watch has shown none of this node's renewals for watchTimeout: at once the first time, then after a pause,
// which grows until none was needed for maxWatchPause. mu is held.
func (l *Leases) checkWatch(now time.Time) {
	w := &l.watch
	if x := l.cache.watched[l.nodeLeaseKey(l.o.Node)]; x != nil {
		before := len(w.renewals)
		w.renewals = slices.DeleteFunc(w.renewals, func(r sentWrite) bool { return r.version <= version(x) }) // the last may be another program's version
		if len(w.renewals) < before {
			w.shown = now
		}
	}
	n := len(w.renewals)
	if n == 0 || w.renewals[n-1].at.Sub(w.renewals[0].at) < watchTimeout || now.Sub(w.shown) < watchTimeout || now.Before(w.next) {
		return
	}
	if w.pause = min(2*w.pause, maxWatchPause); now.Sub(w.next) > maxWatchPause {
		w.pause = watchPause
	}
	w.next = now.Add(w.pause + rand.N(w.pause/2))
	l.watchAgain("the watches show nothing of what this node writes, though the API server takes it: all that is watched is listed again, on a new connection")
}
