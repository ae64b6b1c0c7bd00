package upnp

import (
	"cmp"
	"slices"
)

// takeTurns sorts a list: the first of each namespace, then the second of each, so that many of one delay others
// little.
func takeTurns[K comparable](list []K, namespace func(K) string) {
	turn, next := make(map[K]int, len(list)), make(map[string]int)
	for _, k := range list {
		ns := namespace(k)
		turn[k] = next[ns]
		next[ns]++
	}
	slices.SortStableFunc(list, func(a, b K) int { return cmp.Compare(turn[a], turn[b]) })
}
