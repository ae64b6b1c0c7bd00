package upnp

import (
	"slices"
	"strings"
	"testing"
)

// Namespaces take turns.
func TestTakeTurns(t *testing.T) {
	for list, want := range map[string]string{"": "", "a1 a2 a3": "a1 a2 a3", "a1 a2 a3 b1 b2 c1": "a1 b1 c1 a2 b2 a3"} {
		got := strings.Fields(list)
		takeTurns(got, func(s string) string { return s[:1] })
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%q: got %q, want %q", list, got, want)
		}
	}
}
