// Package mailbox lets goroutines work at their own pace. A Mailbox hands over the latest value, so nobody waits in a
// queue. A Limit bounds what others can make a goroutine do. Sleep ends with a context.
package mailbox

import (
	"context"
	"sync/atomic"
	"time"
)

// Sleep waits for d, and reports whether ctx has not ended by then.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return ctx.Err() == nil
}

// A Signal wakes one goroutine. Signals sent before it looks are one.
type Signal chan struct{}

// NewSignal makes a Signal.
func NewSignal() Signal { return make(Signal, 1) }

// Send makes one receive on s succeed. It does not block.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// A Mailbox holds the value put last. Any number may put and get; one receives Changed.
type Mailbox[T any] struct {
	latest  atomic.Pointer[T]
	Changed Signal // one receive succeeds after one or more Puts
}

// New makes a Mailbox that holds the zero T.
func New[T any]() *Mailbox[T] { return &Mailbox[T]{Changed: NewSignal()} }

// Put replaces the value, not to be changed afterwards, and sends Changed.
func (m *Mailbox[T]) Put(v T) {
	m.latest.Store(&v)
	m.Changed.Send()
}

// Get is the value put last, or the zero T, not to be changed.
func (m *Mailbox[T]) Get() (v T) {
	if p := m.latest.Load(); p != nil {
		v = *p
	}
	return v
}

// Empty reports whether nothing was ever put.
func (m *Mailbox[T]) Empty() bool { return m.latest.Load() == nil }
