package kube

const (
	// writesAtATime is how many statuses, and how many addresses, are written at a time: more would only make the leases of VIPs that move wait.
	writesAtATime = 6
	// answersPerWrite is how many writes of a namespace in a row the API server answers before one more of them may be under way.
	answersPerWrite = 8
)

// writeLimits limit how many writes of a namespace are under way after the API server did not take one, since a webhook may keep
// them hanging, or answer few at a time only. They are how many writes of the namespace it has answered since: taken, or
// rejected. A namespace is not in it, and has no limit of its own, if there was no such write, or 40 were answered since.
type writeLimits map[string]int

// limit returns how many writes of a namespace may be under way: one after a write that the API server did not take, one more after every eight that it has answered since.
func (l writeLimits) limit(namespace string) int {
	if answers, limited := l[namespace]; limited {
		return 1 + answers/answersPerWrite
	}
	return writesAtATime
}

// finish takes account of a write that ended.
func (l writeLimits) finish(namespace string, answered bool) {
	_, limited := l[namespace]
	switch {
	case !answered:
		l[namespace] = 0
	case limited:
		if l[namespace]++; l.limit(namespace) == writesAtATime {
			delete(l, namespace)
		}
	}
}
