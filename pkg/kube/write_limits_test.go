package kube

import (
	"testing"
	"testing/synctest"
	"time"
)

// A namespace of which a write failed, and few are made, is limited for some minutes only, and then forgotten.
func TestWriteLimitIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriteLimits()
		write := func(namespace string, answered bool) {
			w.begin(namespace)
			w.end(namespace, answered)
		}
		write("a", false)
		for range 4 {
			time.Sleep(time.Minute)
			write("a", true)
			write("b", true)
			if got := w.limit("a"); got != 1 {
				t.Errorf("limit %d, want 1", got)
			}
		}
		time.Sleep(2 * time.Minute)
		write("b", true)
		if got := w.limit("a"); got != writesAtATime {
			t.Errorf("limit %d after minutes without a failure, want none", got)
		}
	})
}
