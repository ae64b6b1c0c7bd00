package vip

import (
	"slices"
	"strings"
	"testing"
)

// Namespaces take turns, and what one has under way counts.
func TestTakeTurns(t *testing.T) {
	for _, tt := range []struct {
		list, want string
		underWay   map[string]int
	}{
		{"", "", nil},
		{"a1 a2 a3", "a1 a2 a3", nil},
		{"a1 a2 a3 b1 b2 c1", "a1 b1 c1 a2 b2 a3", nil},
		{"a1 a2 a3 b1 b2 c1", "b1 c1 a1 b2 a2 a3", map[string]int{"a": 1}},
		{"a1 a2 b1", "b1 a1 a2", map[string]int{"a": 6, "x": 9}},
	} {
		got := strings.Fields(tt.list)
		before := len(tt.underWay)
		TakeTurns(got, tt.underWay, func(s string) string { return s[:1] })
		if want := strings.Fields(tt.want); !slices.Equal(got, want) {
			t.Errorf("%q with %v: got %q, want %q", tt.list, tt.underWay, got, want)
		}
		if len(tt.underWay) != before {
			t.Errorf("%q: underWay was changed: %v", tt.list, tt.underWay)
		}
	}
}
