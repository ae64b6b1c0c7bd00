package lease

import (
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
	l.o.Log.Warn(why)
	l.store.WatchAgain()
}
