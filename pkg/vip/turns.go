package vip

import (
	"cmp"
	"maps"
	"slices"
)

// TakeTurns sorts a list of what is to be done for Services so that namespaces take turns: the first of each comes
// first, then the second of each, and so on, each in the order in which they were; underWay, by namespace, is how
// many come before its first, since they are being done. So the thousand changes of one namespace delay each of
// another by one only.
func TakeTurns[T any](list []T, underWay map[string]int, namespace func(T) string) {
	type turn struct {
		n    int
		item T
	}
	next := maps.Clone(underWay)
	if next == nil {
		next = make(map[string]int)
	}
	turns := make([]turn, len(list))
	for i, x := range list {
		ns := namespace(x)
		turns[i] = turn{next[ns], x}
		next[ns]++
	}
	slices.SortStableFunc(turns, func(a, b turn) int { return cmp.Compare(a.n, b.n) })
	for i, t := range turns {
		list[i] = t.item
	}
}
