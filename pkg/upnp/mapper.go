// Package upnp has a link's gateways forward ports to VIPs. It is a UPnP control point: it searches for gateways
// (SSDP), asks for port mappings (Internet Gateway Device 1 and 2: WANIPConnection, WANPPPConnection) and pinholes in
// IPv6 firewalls (WANIPv6FirewallControl), renews them, and asks again for lost ones. Why not NAT-PMP or PCP:
// docs/why.md, "UPnP".
//
// Anybody on the LAN may respond. What is read is bounded in size, number and time. A gateway is only spoken to where
// it responded from, on the link's own subnet, without redirects, proxies and names. So no response can send a request
// elsewhere.
//
// Requests are sent from the VIP where that is bound: in "secure mode" a host may map ports to its own address only.
//
// A mapping moves with its VIP: the next owner knows it by its address, and renews it. A node removes only what it made
// or renewed, and has not handed over.
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

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

// Options of a Mapper.
type Options struct {
	Log  *slog.Logger
	Poke func() // called when the World has changed

	// Links is this node's links with own addresses, without VIPs.
	Links func() []vip.Link
	// Gateways, if not empty, are the only ones that are asked.
	Gateways []netip.Addr
}

type timing struct {
	responses time.Duration // how long a search waits for responses
	// period is between searches, while there is a gateway, looks at a mapping, and tries after a failure.
	period      time.Duration
	stopTimeout time.Duration // for removing mappings when ctx has ended
}

var defaultTiming = timing{
	responses: (maxWait + 1) * time.Second, period: 30 * time.Second, stopTimeout: 3 * time.Second,
}

// A Mapper has gateways make its Mappings.
type Mapper struct {
	o      Options
	timing timing
	metrics
	want  *mailbox.Mailbox[*wanted]
	found chan found

	mu       sync.Mutex // guards the map and each value; only Run's goroutine writes
	segments map[segment]*searched
}

type wanted struct {
	mappings map[key]vip.Mapping
	segments map[segment]bool // where there is one that is Here
	at       time.Time        // when they were put
}

// A key is a Mapping by what it opens: a Service made again keeps it.
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

// Put replaces what is wanted. A mapping that is not Here is handed over, and left on its gateway. One that is missing
// is removed if it is this node's.
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

// update makes x, this node's mapping, what is wanted, and reports whether it is still this node's.
func (w *wanted) update(x *vip.MappingState) (own bool) {
	m, wanted := w.mappings[keyOf(x.Mapping)]
	if x.Gone = false; wanted {
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

// Observe fills in MappingStates: each mapping's on each gateway, or without one.
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

// Run has wanted mappings made until ctx ends, then removes what is to go, within timing.stopTimeout.
func (m *Mapper) Run(ctx context.Context) error {
	var searches sync.WaitGroup
	defer searches.Wait()
	for ctx.Err() == nil {
		next := m.search(ctx, &searches)
		m.eachGateway(func(g *gateway) { g.reconcile(ctx) })
		for _, s := range m.segments {
			for _, g := range s.gateways {
				next = vip.Earlier(next, g.dueAt())
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

// eachGateway calls f for all gateways at once, and waits; a silent one then rests for timing.period.
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

type metrics struct {
	*metric.Set
	gateways prometheus.Gauge
	mappings prometheus.Gauge
	renewals prometheus.Counter
	failures *prometheus.CounterVec
}

// Why something failed, as the metric names it.
const (
	failTaken       = "taken"
	failRefused     = "refused"
	failUnreachable = "unreachable"
	failUnreadable  = "unreadable"
	failNoGateway   = "no_gateway"
)

func newMetrics() metrics {
	s := &metric.Set{}
	return metrics{
		Set:      s,
		gateways: metric.Gauge(s, "herald_upnp_gateways", "UPnP gateways this node has found on the links of its VIPs."),
		mappings: metric.Gauge(s, "herald_upnp_mappings", "Port mappings and pinholes that gateways have confirmed to this "+
			"node."),
		renewals: metric.Counter(s, "herald_upnp_renewals_total", "Port mappings and pinholes made or renewed by this "+
			"node."),
		failures: metric.CountersOf(s, "herald_upnp_failures_total", "Failed attempts to have a port mapped, by "+
			"reason: taken (by another host), refused, unreachable, unreadable, no_gateway (none answers a search; IPv4 "+
			"only).", "reason", failTaken, failRefused, failUnreachable, failUnreadable, failNoGateway),
	}
}
