package kube

import "sync/atomic"

// An outage is a time in which requests to the API server are not answered. The clients of a process share one: the first answer that
// any of them receives ends it.
type outage struct {
	over atomic.Pointer[chan struct{}] // closed at its end; nil: there is none
}

// failed begins an outage, unless there is one. It does nothing for a nil outage, nor does answered.
func (o *outage) failed() {
	if o != nil && o.over.Load() == nil {
		o.over.CompareAndSwap(nil, new(make(chan struct{})))
	}
}

// answered ends the outage, if there is one.
func (o *outage) answered() {
	if o == nil || o.over.Load() == nil {
		return
	}
	if over := o.over.Swap(nil); over != nil {
		close(*over)
	}
}

// end returns a channel that is closed at the end of the outage: closed already if there is none; nil, which never is, of a nil outage.
func (o *outage) end() <-chan struct{} {
	if o == nil {
		return nil
	}
	if over := o.over.Load(); over != nil {
		return *over
	}
	return noOutage
}

// noOutage is closed.
var noOutage = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
