package lease

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// maxRestarts is how many of the last restarts count.
const maxRestarts = maxBreaks

// recentRestarts returns the restarts found at the start; nil after stableAfter, doubled for each, or forgetAfter.
func (o *ownLease) recentRestarts(now time.Time) []int64 {
	if now.Sub(o.began) >= min(stableAfter<<len(o.restarts), forgetAfter) {
		return nil
	}
	return o.restarts
}

// restartsAfter returns the known lease's restarts, and now, unless there is none, or that process stopped in order.
func restartsAfter(known *coordinationv1.Lease, now time.Time) []int64 {
	if known == nil || holder(known) == "" || infoOf(known).Excluded != "" {
		return nil
	}
	all := slices.DeleteFunc(restartsOf(known), func(at int64) bool {
		age := now.Sub(time.Unix(at, 0))
		return age < 0 || age > forgetAfter
	})
	all = append(all, now.Unix())
	return all[max(0, len(all)-maxRestarts):]
}

// restartsOf returns the last maxRestarts on a node lease; nil if unreadable.
func restartsOf(l *coordinationv1.Lease) []int64 {
	all := infoOf(l).Restarts
	return all[max(0, len(all)-maxRestarts):]
}
