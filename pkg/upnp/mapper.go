// Package upnp has the gateways of a link forward ports to VIPs. It is a UPnP control
// point: it searches for gateways (SSDP), asks them for port mappings (Internet Gateway
// Device 1 and 2: WANIPConnection, WANPPPConnection) and for pinholes in their IPv6
// firewall (WANIPv6FirewallControl), renews what it was given, and asks again when a
// gateway has lost it. Why not NAT-PMP or PCP: docs/why.md, "UPnP".
//
// Anybody on the LAN may respond. What is read from the network is bounded in size,
// number and time; a gateway is only spoken to at the address it responded from, which
// must be on the link's own subnet; redirects, proxies and names are refused. So no
// response can send a request to anywhere else.
//
// Requests are sent from the VIP itself where that is bound: a gateway in "secure
// mode" lets a host map ports to its own address only.
//
// A mapping outlives the process that made it, and moves with its VIP: nothing
// changes on the gateway when another node answers for the VIP. The next owner
// finds the mapping, knows it by the address it leads to, and renews it. A node
// removes only what it made or renewed itself, and has not handed over since. What nobody
// is left to remove, since its Service was deleted while no Herald ran, is found by its
// mark (sweepMappings).
package upnp

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	// Ports, if not nil, reports which external ports may be asked for.
	Ports func(external uint16) bool
}

// timing is how often things are done.
type timing struct {
	responses   time.Duration // how long a search waits for responses
	searchMin   time.Duration // first time between two searches while there is no gateway; it doubles
	searchMax   time.Duration // between two searches otherwise
	searchGap   time.Duration // the least time between two searches
	verify      time.Duration // between two requests whether a gateway still has a mapping
	retryMin    time.Duration // the first wait after a failure; it doubles
	retryMax    time.Duration // the longest
	stopTimeout time.Duration // for removing mappings when ctx has ended
	sweepAfter  time.Duration // until the first sweep, and from one that finds something to the one that removes it
	sweepPeriod time.Duration // between two sweeps otherwise
}

var defaultTiming = timing{
	responses: (maxWait + 1) * time.Second, searchMin: 10 * time.Second, searchMax: time.Minute, searchGap: 2 * time.Second,
	verify: 30 * time.Second, retryMin: 2 * time.Second, retryMax: 30 * time.Second, stopTimeout: 3 * time.Second,
	sweepAfter: 15 * time.Second, sweepPeriod: 10 * time.Minute,
}

// A Mapper has gateways make the Mappings that it is given.
type Mapper struct {
	o           Options
	timing      timing
	metrics     metrics
	want        *mailbox.Mailbox[*wanted]
	sweeps      *mailbox.Mailbox[[]vip.MappingSweep]
	discoveries atomic.Pointer[map[segment]*discovery] // written by Run, never changed afterwards
	tasks       sync.WaitGroup                         // discoveries and gateways
}

// wanted is the Mappings of a Put.
type wanted struct {
	mappings map[key]vip.Mapping
	segments map[segment]bool // where there is one that is Here
	at       time.Time        // when they were put
}

// A key identifies a Mapping: it has neither Service, UID, Cluster, Claim and Lease nor Here. A Service
// that is deleted and created again keeps what it has.
type key vip.Mapping

func keyOf(m vip.Mapping) key {
	m.Service, m.UID, m.Cluster, m.Claim, m.Lease, m.Here = vip.Key{}, "", "", vip.Key{}, 0, false
	return key(m)
}

// New makes a Mapper. Run does the work.
func New(o Options) *Mapper {
	m := &Mapper{o: o, timing: defaultTiming, metrics: newMetrics(), want: mailbox.New[*wanted](), sweeps: mailbox.New[[]vip.MappingSweep]()}
	m.want.Put(&wanted{})
	m.discoveries.Store(&map[segment]*discovery{})
	return m
}

// String names the task.
func (m *Mapper) String() string { return "upnp" }

// Put replaces what is wanted. A mapping that want has, but not Here, is handed over: it
// stays on its gateway, and is this node's no more. One that want does not have is
// removed from its gateway if it is this node's.
func (m *Mapper) Put(want []vip.Mapping) {
	w := &wanted{mappings: make(map[key]vip.Mapping, len(want)), segments: make(map[segment]bool), at: time.Now()}
	for _, x := range want {
		w.mappings[keyOf(x)] = x
		if x.Here {
			w.segments[segmentOf(x)] = true
		}
	}
	m.want.Put(w)
}

// Observe fills in World.MappingStates: what has become of each mapping of this node's on
// each gateway, and those for which there is no gateway.
func (m *Mapper) Observe(w *vip.World) {
	discoveries, want, now := *m.discoveries.Load(), m.want.Get(), time.Now()
	asked := make(map[key]bool)
	for _, d := range discoveries {
		for _, g := range *d.gateways.Load() {
			state := g.published.Load()
			for k, e := range state.entries {
				if e.update(k, want) { // the gateway's goroutine may be busy
					asked[k] = true
					w.MappingStates = append(w.MappingStates, state.mappingState(e, now))
				}
			}
		}
	}
	for k, x := range want.mappings {
		if asked[k] || !x.Here {
			continue
		}
		state := vip.MappingState{Mapping: x}
		if d := discoveries[segmentOf(x)]; d != nil && len(*d.gateways.Load()) == 0 {
			state.Problem = *d.problem.Load()
		}
		w.MappingStates = append(w.MappingStates, state)
	}
	slices.SortFunc(w.MappingStates, func(a, b vip.MappingState) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol),
			strings.Compare(a.Gateway, b.Gateway), cmp.Compare(a.Mapping.External, b.Mapping.External))
	})
}

// Run has gateways searched for on each segment as long as a mapping is wanted there, or one
// of Sweeps is, and asked for it, until ctx ends. Then it removes what is to be removed, for
// timing.stopTimeout at most.
func (m *Mapper) Run(ctx context.Context) error {
	defer m.tasks.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.want.Changed:
		case <-m.sweeps.Changed:
		}
		all := maps.Clone(*m.discoveries.Load())
		segments := make(map[segment]bool)
		maps.Copy(segments, m.want.Get().segments)
		for _, x := range m.sweeps.Get() {
			segments[segment{x.Link, vip.IPv4}] = true
		}
		for s := range segments {
			if all[s] == nil {
				d := newDiscovery(m, s)
				all[s] = d
				m.tasks.Go(func() { d.run(ctx) })
			}
		}
		m.discoveries.Store(&all)
		for _, d := range all {
			d.changed.Send()
			for _, g := range *d.gateways.Load() {
				g.responses.Changed.Send()
			}
		}
	}
}
