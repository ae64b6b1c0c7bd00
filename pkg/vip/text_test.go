package vip

import (
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Namespaces take turns, and share what there is room for.
func TestTakeTurns(t *testing.T) {
	namespace := func(s string) string { return s[:1] }
	for _, tt := range []struct{ list, turns, three string }{
		{"", "", ""},
		{"a1 a2 a3", "a1 a2 a3", "a1 a2 a3"},
		{"a1 a2 a3 b1 b2 c1", "a1 b1 c1 a2 b2 a3", "a1 b1 c1"},
		{"a1 a2 b1 b2 a3", "a1 b1 a2 b2 a3", "a1 a2 b1"},
	} {
		got, three := TakeTurns(strings.Fields(tt.list), namespace), Share(strings.Fields(tt.list), 3, namespace)
		if !slices.Equal(got, strings.Fields(tt.turns)) || !slices.Equal(three, strings.Fields(tt.three)) {
			t.Errorf("%q: got %q, of three %q", tt.list, got, three)
		}
	}
}

func TestRawHint(t *testing.T) {
	for err, want := range map[error]string{syscall.EPERM: " (the process needs the capability NET_RAW)", syscall.ENODEV: ""} {
		if got := RawHint(err); got != want {
			t.Errorf("%v: got %q", err, got)
		}
	}
}
