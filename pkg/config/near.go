package config

import "strings"

// didYouMean is the part of a message that names the candidate nearest to
// name, or "" if none is near.
func didYouMean(name string, candidates []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// envNames are the names of all variables, patterns left out.
func envNames() []string {
	var names []string
	for _, o := range Options {
		if !strings.HasSuffix(o.Env, "*") {
			names = append(names, o.Env)
		}
	}
	return names
}

// distance is the number of bytes to insert, delete, replace or swap with
// their neighbour to make b of a (optimal string alignment).
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j+1]+1, next[j]+1, row[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
