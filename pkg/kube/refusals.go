package kube

import (
	"maps"
	"sync/atomic"

	"github.com/heraldvip/herald/pkg/vip"
)

// refusals are why writes on Services are refused; one goroutine sets them, any may get them.
type refusals struct {
	all  atomic.Pointer[map[vip.Key]string] // not modified once it is stored
	poke func()
}

// get returns all refusals, by Service, not to be changed.
func (r *refusals) get() map[vip.Key]string {
	if p := r.all.Load(); p != nil {
		return *p
	}
	return nil
}

// set stores why writes on a Service are refused, and pokes at news.
func (r *refusals) set(k vip.Key, why string) {
	before := r.get()
	if before[k] == why {
		return
	}
	after := maps.Clone(before)
	if after == nil {
		after = make(map[vip.Key]string)
	}
	if after[k] = why; why == "" {
		delete(after, k)
	}
	r.all.Store(&after)
	if r.poke != nil {
		r.poke()
	}
}
