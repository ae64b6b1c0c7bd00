package config

import (
	"strings"

	"github.com/agext/levenshtein"
)

// didYouMean returns the part of a message that names the nearest candidate, in any case, or "".
func didYouMean(name string, candidates []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if d := levenshtein.Distance(strings.ToLower(name), strings.ToLower(c), nil); d < least {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

func envNames() []string {
	var names []string
	for _, o := range Options {
		if !strings.HasSuffix(o.Env, "*") {
			names = append(names, o.Env)
		}
	}
	return names
}
