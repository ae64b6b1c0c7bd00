package kube

const (
	// writesAtATime is how many statuses, and how many addresses, are written at a time: more would only make the leases of VIPs that move wait.
	writesAtATime = 6
	// answersPerWrite is how many writes of a namespace in a row the API server answers before one more of them may be under way.
	answersPerWrite = 8
)

// writeLimits limit how many writes of a namespace are under way after the API server did not take one, since a webhook may keep
// them hanging, or answer few at a time only. (Those of package lease have every namespace that is not quick leave half of the requests to others.)
type writeLimits struct {
	underWay map[string]int // writes, by namespace; none that is 0
	// answered is how many writes of the namespace the API server has answered, taken or rejected, since it did not take one. A
	// namespace is not in it, and has no limit of its own, if there was no such write, or 40 were answered since.
	answered map[string]int
}

func newWriteLimits() writeLimits { return writeLimits{make(map[string]int), make(map[string]int)} }

// limit returns how many writes of a namespace may be under way: one after a write that the API server did not take, one more after every eight that it has answered since.
func (w *writeLimits) limit(namespace string) int {
	if n, limited := w.answered[namespace]; limited {
		return 1 + n/answersPerWrite
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
	_, limited := w.answered[namespace]
	switch {
	case !answered:
		w.answered[namespace] = 0
	case limited:
		if w.answered[namespace]++; w.limit(namespace) == writesAtATime {
			delete(w.answered, namespace)
		}
	}
}
