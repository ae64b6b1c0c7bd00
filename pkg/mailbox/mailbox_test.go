package mailbox

import "testing"

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
