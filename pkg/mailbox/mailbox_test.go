package mailbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// Of several values the last one arrives, with one wake-up.
func TestMailbox(t *testing.T) {
	m := New[int]()
	if !m.Empty() || m.Get() != 0 {
		t.Error("a new Mailbox holds something")
	}
	m.Put(1)
	m.Put(2)
	<-m.Changed
	if got := m.Get(); m.Empty() || got != 2 {
		t.Errorf("got %d, want 2", got)
	}
	select {
	case <-m.Changed:
		t.Error("two wake-ups for one look")
	default:
	}
	m.Changed.Send()
	m.Changed.Send()
	<-m.Changed
}

// Sleep lasts as long as it says, or as its context.
func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		for _, want := range []time.Duration{time.Minute, 30 * time.Second, 0} {
			began := time.Now()
			if slept := Sleep(ctx, time.Minute); slept != (want == time.Minute) || time.Since(began) != want {
				t.Errorf("it lasted %v, want %v, and says %v", time.Since(began), want, slept)
			}
		}
	})
}
