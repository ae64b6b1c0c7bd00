package pool

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/vip"
)

// An Assigner gives addresses to Services (docs/why.md, "Pools"). As a Mailbox of the agent it is told what the
// Plan knows of pools and Services, and decides at once; as an Observer it says what it has decided,
// and what is wrong with the ConfigMap. It is for one goroutine.
//
// Every node reads the ConfigMap, so that what was good stays in force wherever addresses are
// given next; the one whose Plan says Allocate decides.
type Assigner struct {
	rest    time.Duration
	poke    func()
	metrics *metrics

	source      *vip.PoolSource // that pools were read from
	pools       *Pools
	problems    []vip.PoolProblem
	allocator   *Allocator // nil until this node allocates
	allocates   bool       // it does so now; if not, allocator remembers what rests, and what other hosts have
	requests    []vip.AddressRequest
	lastSeen    map[vip.Key]uint64 // of a Service: the Put that contained it
	puts        uint64
	assignments []vip.Assignment
	outside     []vip.OutsidePool
	timer       *time.Timer // pokes when an address may be given again for which a Service waits; nil until one is to
}

// NewAssigner makes an Assigner. An address that is released rests before it is given again, if
// there is any other. poke is called when there is something new to Observe, or to decide, by
// any goroutine.
func NewAssigner(rest time.Duration, poke func()) *Assigner {
	return &Assigner{rest: rest, poke: poke, metrics: newMetrics(), pools: newPools()}
}

// Observe fills in Assignments, PoolProblems, OutsidePools and, once there is a ConfigMap, PoolPolicy.
func (a *Assigner) Observe(w *vip.World) {
	w.Assignments, w.PoolProblems, w.OutsidePools = a.assignments, a.problems, a.outside
	if a.source != nil {
		w.PoolPolicy = a.pools
	}
}

// Collectors are the metrics of pools; those of addresses are there only on the node that allocates.
func (a *Assigner) Collectors() []prometheus.Collector { return a.metrics.all() }

// Put takes over the one PoolInput of want, if there is one, and decides: within milliseconds, or
// tenths of a second if there are ten thousand Services without addresses.
func (a *Assigner) Put(want []vip.PoolInput) {
	if len(want) == 0 { // nothing is planned: the process stops
		want = []vip.PoolInput{{}}
	}
	in := want[0]
	changed := a.readSource(in.Source)
	before, outside, allocated := a.assignments, a.outside, a.allocates
	a.allocates = in.Allocate && in.Source != nil
	switch {
	case !a.allocates:
		a.assignments, a.outside = nil, nil
	case a.allocator == nil:
		a.allocator, a.lastSeen, changed = NewAllocator(a.rest), make(map[vip.Key]uint64), true
	case !allocated:
		changed = true // the pools may be others
	}
	if a.allocates {
		if changed {
			a.allocator.SetPools(a.pools)
			a.allocator.SetNamespaces(in.Source.Namespaces)
		}
		a.allocator.dhcpMode = in.DHCPMode
		a.allocator.SetReserved(in.Reserved)
		a.update(in)
		a.allocator.SetInUse(in.InUse, in.Now)
		a.assignments, a.outside = a.allocator.Decide(in.Now), a.allocator.Outside()
	}
	a.setTimer(in.Now)
	a.metrics.observe(a)
	if changed || !reflect.DeepEqual(before, a.assignments) || !slices.Equal(outside, a.outside) {
		a.poke()
	}
}

// setTimer has poke called when a Service that waits can be given an address, though nothing else happens.
func (a *Assigner) setTimer(now time.Time) {
	if a.timer != nil {
		a.timer.Stop()
	}
	if !a.allocates {
		return
	}
	if at := a.allocator.nextFree(); !at.IsZero() {
		a.timer = time.AfterFunc(at.Sub(now), a.poke)
	}
}

// readSource reads the ConfigMap, and reports whether it, or the labels of namespaces, are
// others than before.
func (a *Assigner) readSource(s *vip.PoolSource) (changed bool) {
	if s == a.source {
		return false
	}
	before := a.source
	a.source = s
	switch {
	case s == nil:
		a.pools, a.problems = newPools(), nil
	case before == nil || !maps.Equal(before.Data, s.Data):
		a.pools, a.problems = Parse(a.pools, s.Data)
	}
	return true
}

// update tells the Allocator of Services that have changed, came, or went.
func (a *Assigner) update(in vip.PoolInput) {
	if slices.Equal(a.requests, in.Requests) { // the same Services in memory
		return
	}
	a.requests = in.Requests
	a.puts++
	for _, q := range in.Requests {
		a.lastSeen[q.Key] = a.puts
		r := newRequest(q)
		if s := a.allocator.services[q.Key]; s == nil || !same(&s.Request, &r) {
			a.allocator.Set(r, in.Now)
		}
	}
	for k, seen := range a.lastSeen {
		if seen != a.puts {
			a.allocator.Delete(k, in.Now)
			delete(a.lastSeen, k)
		}
	}
}

// same reports whether two Requests say the same.
func same(x, y *Request) bool {
	return x.UID == y.UID && x.Created.Equal(y.Created) && sameWishes(x, y) && slices.Equal(x.Named, y.Named) && slices.Equal(x.Shown, y.Shown) && slices.Equal(x.ShownPorts, y.ShownPorts) && maps.Equal(x.Labels, y.Labels)
}

// newRequest is what an Allocator must know of a Service. What another implementation's status
// shows is in use, too, as is what the status of one shows that asks a DHCP server; what a Service may not have is not, unless its status shows it.
func newRequest(q vip.AddressRequest) Request {
	r := Request{
		Service: q.Key, UID: q.UID, Created: q.Created, Labels: q.Labels, Ports: q.Ports, SharingKey: q.SharingKey,
		Families: q.Families, DualStack: q.DualStack, Pools: q.Pools,
		Shown: q.StatusVIPs(), Addresses: q.Addresses, Named: q.Addresses, Allocated: q.Allocated, Renumber: q.Renumber, Foreign: q.Foreign,
		Lease: q.Lease, Manner: Manner{q.Local, q.Interface, q.Announce, q.BGPAttributes, q.ClientIPAffinity},
	}
	if r.Own = q.Own; q.Allocated == "" && q.Source != vip.SourceStatus && len(q.Lacks()) > 0 {
		r.Own = q.Addresses
	}
	for _, i := range q.Ingress {
		if r.ShownPorts == nil && slices.Contains(r.Shown, i.Addr) {
			r.ShownPorts = i.Ports // Herald writes the same for each address
		}
	}
	if q.Original != nil {
		r.Named = q.Original.Addresses
	}
	if q.Refused {
		r.Addresses = nil
	}
	if q.Foreign || slices.ContainsFunc(r.Addresses, netip.Addr.IsUnspecified) {
		r.Addresses = slices.Concat(r.Addresses, r.Shown)
	}
	return r
}
