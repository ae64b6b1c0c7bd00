// Package upnp has the gateways of a link forward ports to VIPs. It is a UPnP control point: it searches for gateways
// (SSDP), asks them for port mappings (Internet Gateway Device 1 and 2: WANIPConnection, WANPPPConnection) and for
// pinholes in their IPv6 firewall (WANIPv6FirewallControl), renews what it was given, and asks again for what a
// gateway has lost. Why not NAT-PMP or PCP: docs/why.md, "UPnP".
//
// Anybody on the LAN may respond. What is read from the network is bounded in size, number and time. A gateway is only
// spoken to at the address it responded from, which must be on the link's own subnet; redirects, proxies and names are
// refused. So no response can send a request to anywhere else.
//
// Requests are sent from the VIP itself where that is bound: a gateway in "secure mode" lets a host map ports to its
// own address only.
//
// A mapping moves with its VIP: nothing changes on the gateway when another node answers for the VIP. The next owner
// finds the mapping, knows it by the address it leads to, and renews it. A node removes only what it made or renewed
// itself, and has not handed over since.
package upnp

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// Options of a Mapper.
type Options struct {
	Log  *slog.Logger
	Poke func() // called when the World has changed

	// Links is this node's links with their own addresses, VIPs left out.
	Links func() []vip.Link
	// Gateways, if not empty, are the only ones that are asked.
	Gateways []netip.Addr
}

// timing is how often things are done.
type timing struct {
	responses time.Duration // how long a search waits for responses
	// period is between two searches, while there is a gateway, two looks at a mapping, and two tries after a failure.
	period      time.Duration
	stopTimeout time.Duration // for removing mappings when ctx has ended
}

var defaultTiming = timing{
	responses: (maxWait + 1) * time.Second, period: 30 * time.Second, stopTimeout: 3 * time.Second,
}

// A Mapper has gateways make the Mappings that it is given.
type Mapper struct {
	o       Options
	timing  timing
	metrics metrics
	want    *mailbox.Mailbox[*wanted]
	found   chan found

	mu       sync.Mutex // guards the map and each value; only Run's goroutine writes
	segments map[segment]*searched
}

// wanted is the Mappings of a Put.
type wanted struct {
	mappings map[key]vip.Mapping
	segments map[segment]bool // where there is one that is Here
	at       time.Time        // when they were put
}

// A key identifies a Mapping by what it opens: a Service that is deleted and created again keeps what it has.
type key vip.Mapping

func keyOf(m vip.Mapping) key {
	m.Service, m.UID, m.Claim, m.Lease, m.Here, m.Gone = vip.Key{}, "", vip.Key{}, 0, false, false
	return key(m)
}

// New makes a Mapper. Run does the work.
func New(o Options) *Mapper {
	m := &Mapper{
		o: o, timing: defaultTiming, metrics: newMetrics(), want: mailbox.New[*wanted](), found: make(chan found),
		segments: make(map[segment]*searched),
	}
	m.Put(nil)
	return m
}

// String names the task.
func (m *Mapper) String() string { return "upnp" }

// Put replaces what is wanted. A mapping that want has, but not Here, is handed over: it stays on its gateway, and is
// this node's no more. One that want does not have is removed from its gateway if it is this node's.
func (m *Mapper) Put(want []vip.Mapping) {
	w := &wanted{mappings: make(map[key]vip.Mapping), segments: make(map[segment]bool), at: time.Now()}
	for _, x := range want {
		w.mappings[keyOf(x)] = x
		if x.Here {
			w.segments[segmentOf(x)] = true
		}
	}
	m.want.Put(w)
}

// update makes x, a mapping that this node has, what is wanted of it. It reports whether it is still this node's.
func (w *wanted) update(x *vip.MappingState) (own bool) {
	m, wanted := w.mappings[keyOf(x.Mapping)]
	if wanted {
		x.Mapping = m
	}
	switch {
	case wanted && !m.Gone:
		x.RemovalSince = time.Time{}
		return m.Here
	case x.RemovalSince.IsZero():
		x.RemovalSince = w.at
	}
	return true
}

// Observe fills in World.MappingStates: what has become of each mapping of this node's on each gateway, and those for
// which there is no gateway.
func (m *Mapper) Observe(w *vip.World) {
	want, asked := m.want.Get(), make(map[key]bool)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.segments {
		for _, g := range s.gateways {
			for k, x := range *g.published.Load() {
				if want.update(&x) { // what was put may not have reached the gateway yet
					asked[k] = true
					w.MappingStates = append(w.MappingStates, x)
				}
			}
		}
	}
	for k, x := range want.mappings {
		if asked[k] || !x.Here {
			continue
		}
		state := vip.MappingState{Mapping: x}
		if s := m.segments[segmentOf(x)]; s != nil {
			state.Problem = s.problem
		}
		w.MappingStates = append(w.MappingStates, state)
	}
	slices.SortFunc(w.MappingStates, func(a, b vip.MappingState) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol),
			strings.Compare(a.Gateway, b.Gateway), cmp.Compare(a.Mapping.External, b.Mapping.External))
	})
}

// Run searches for gateways where a mapping is wanted, and has them make it, until ctx ends. Then it removes what is
// to be removed, for timing.stopTimeout at most.
func (m *Mapper) Run(ctx context.Context) error {
	var searches sync.WaitGroup
	defer searches.Wait()
	for ctx.Err() == nil {
		next := m.search(ctx, &searches)
		m.eachGateway(func(g *gateway) { g.reconcile(ctx) })
		for _, s := range m.segments {
			for _, g := range s.gateways {
				next = earlier(next, g.dueAt())
			}
		}
		select {
		case <-ctx.Done():
		case <-m.want.Changed:
		case f := <-m.found:
			m.record(f)
		case <-time.After(time.Until(next)):
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.timing.stopTimeout)
	defer cancel()
	m.eachGateway(func(g *gateway) { g.removeAll(last) })
	return nil
}

// eachGateway calls f for all gateways at once, and waits: one that does not answer holds it up for requestTimeout, and
// is then left alone for timing.period.
func (m *Mapper) eachGateway(f func(*gateway)) {
	var group sync.WaitGroup
	for _, s := range m.segments {
		for _, g := range s.gateways {
			group.Go(func() { f(g) })
		}
	}
	group.Wait()
}

// idle is how long nothing is done while nothing is wanted.
const idle = time.Hour

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
