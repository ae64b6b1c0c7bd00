package kube

import "sync/atomic"

// A relist has the watches of a process begin again with a list, whatever they have shown.
type relist struct {
	next atomic.Pointer[chan struct{}] // closed by begin
}

func newRelist() *relist {
	r := &relist{}
	r.next.Store(new(make(chan struct{})))
	return r
}

// wanted returns a channel that the next begin closes.
func (r *relist) wanted() <-chan struct{} { return *r.next.Load() }

// begin closes the channel that wanted has returned since the last call.
func (r *relist) begin() { close(*r.next.Swap(new(make(chan struct{})))) }
