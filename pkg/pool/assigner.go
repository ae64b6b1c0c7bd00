package pool

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// An Assigner gives addresses to Services (docs/why.md, "Pools"). As the agent's Mailbox it decides at once; as an
// Observer it tells that, and the ConfigMap's faults. It is for one goroutine.
//
// Every node reads the ConfigMap, so that what was good stays in force wherever addresses are given; whose Plan says
// Allocate decides.
type Assigner struct {
	poke func()
	*metrics

	source    *vip.PoolSource // that pools were read from
	pools     *Pools
	problems  []vip.PoolProblem
	memory    *memory
	allocates bool          // it does so now
	last      vip.PoolInput // that was decided upon
	reserved  []vip.Range   // those of last, merged
	settled   bool          // to decide upon the same again changes nothing
	decided   *pass         // the last one; without Services if it does not allocate
	timer     *time.Timer   // pokes when an address may be given again for which a Service waits; nil until one is to
}

// NewAssigner makes an Assigner; released addresses rest. Any goroutine may call poke.
func NewAssigner(rest time.Duration, poke func()) *Assigner {
	return &Assigner{poke: poke, metrics: newMetrics(), pools: newPools(), memory: newMemory(rest), decided: &pass{}}
}

// Observe fills in Assignments, PoolProblems and, once there is a ConfigMap, PoolPolicy.
func (a *Assigner) Observe(w *vip.World) {
	w.Assignments, w.PoolProblems = a.decided.assignments, a.problems
	if a.source != nil {
		w.PoolPolicy = a.pools
	}
}

// Put takes over want, and decides: 10,000 Services in hundredths of a second.
func (a *Assigner) Put(want []vip.PoolInput) {
	in := append(want, vip.PoolInput{})[0] // none if nothing is planned: the process stops
	changed := a.readSource(in.Source)
	before, allocated := a.decided, a.allocates
	a.allocates = in.Allocate && in.Source != nil
	switch {
	case !a.allocates && in.Requests == nil: // nothing is known of who has what
	case !a.isNews(&in) && allocated == a.allocates && !changed:
		return
	default:
		a.decided = decide(a.pools, &in, a.reserved, a.memory)
	}
	if !a.allocates {
		a.decided = &pass{}
	}
	a.last = in
	a.settled = reflect.DeepEqual(before.assignments, a.decided.assignments)
	a.setTimer(in.Now)
	a.metrics.observe(a)
	if changed || !a.settled {
		a.poke()
	}
}

// isNews takes over what is reserved, and reports whether to decide anew.
func (a *Assigner) isNews(in *vip.PoolInput) bool {
	reserved := mergeReserved(in.Reserved)
	at := a.memory.nextFree()
	same := slices.Equal(reserved, a.reserved) && slices.EqualFunc(in.Requests, a.last.Requests, sameRequest) &&
		in.DHCPMode == a.last.DHCPMode && a.settled && len(in.InUse) == 0 && (at.IsZero() || in.Now.Before(at))
	a.reserved = reserved
	return !same
}

// sameRequest reports whether two AddressRequests say the same of one Service in memory.
func sameRequest(x, y vip.AddressRequest) bool {
	return x.Service == y.Service && x.Foreign == y.Foreign && x.Refused == y.Refused && slices.Equal(x.Lost, y.Lost)
}

// setTimer has poke called when a Service that waits can be given an address.
func (a *Assigner) setTimer(now time.Time) {
	if a.timer != nil {
		a.timer.Stop()
	}
	if at := a.memory.nextFree(); a.decided.waits && !at.IsZero() {
		a.timer = time.AfterFunc(at.Sub(now), a.poke)
	}
}

// readSource reads the ConfigMap, and reports whether it, or labels, changed.
func (a *Assigner) readSource(s *vip.PoolSource) (changed bool) {
	if s == a.source {
		return false
	}
	before := a.source
	switch a.source = s; {
	case s == nil:
		a.pools, a.problems = newPools(), nil
	case before == nil || !maps.Equal(before.Data, s.Data):
		a.pools, a.problems = Parse(a.pools, s.Data)
	}
	return true
}
