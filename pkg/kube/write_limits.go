package kube

import (
	"maps"
	"time"
)

const (
	// writesAtATime is how many statuses, and how many addresses, are written at a time: more would only make the leases of VIPs that move wait.
	writesAtATime = 6
	// answersPerWrite is how many writes of a namespace in a row the API server answers before one more of them may be under way.
	answersPerWrite = 8
	// keepLimit is how long after the last write that the API server did not take a namespace is limited, however few it has answered since. While any is wanted it is tried
	// again sooner.
	keepLimit = 5 * time.Minute
)

// writeLimits limit how many writes of a namespace are under way after the API server did not take one, since a webhook may keep
// them hanging, or answer few at a time only. (Those of package lease have every namespace that is not quick leave half of the requests to others.)
type writeLimits struct {
	underWay map[string]int // writes, by namespace; none that is 0
	// limited is the namespaces of which the API server did not take a write. One of which it has answered 40 since, or that has been in it for keepLimit, goes at the end
	// of the next write of any.
	limited map[string]limitedWrites
}

// limitedWrites is when the API server did not take a write of a namespace, and how many it has answered since, taken or rejected.
type limitedWrites struct {
	failedAt time.Time
	answered int
}

func newWriteLimits() writeLimits {
	return writeLimits{make(map[string]int), make(map[string]limitedWrites)}
}

// limit returns how many writes of a namespace may be under way: one after a write that the API server did not take, one more after every eight that it has answered since.
func (w *writeLimits) limit(namespace string) int {
	if x, limited := w.limited[namespace]; limited {
		return 1 + x.answered/answersPerWrite
	}
	return writesAtATime
}

// mayBegin reports whether another write of a namespace may begin, as far as that is about the namespace.
func (w *writeLimits) mayBegin(namespace string) bool {
	return w.underWay[namespace] < w.limit(namespace)
}

// begin counts a write as under way.
func (w *writeLimits) begin(namespace string) { w.underWay[namespace]++ }

// end counts a write as under way no more; answered is whether the API server took or rejected it.
func (w *writeLimits) end(namespace string, answered bool) {
	if w.underWay[namespace]--; w.underWay[namespace] == 0 {
		delete(w.underWay, namespace)
	}
	x, limited := w.limited[namespace]
	switch {
	case !answered:
		w.limited[namespace] = limitedWrites{failedAt: time.Now()}
	case limited:
		x.answered++
		w.limited[namespace] = x
	}
	maps.DeleteFunc(w.limited, func(namespace string, x limitedWrites) bool {
		return w.limit(namespace) == writesAtATime || time.Since(x.failedAt) > keepLimit
	})
}
