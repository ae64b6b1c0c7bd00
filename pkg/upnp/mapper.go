// Package upnp has the gateways of a link forward ports to VIPs. It is a UPnP control
// point: it searches for gateways (SSDP), asks them for port mappings (Internet Gateway
// Device 1 and 2: WANIPConnection, WANPPPConnection) and for pinholes in their IPv6
// firewall (WANIPv6FirewallControl), renews what it was given, and asks again when a
// gateway has lost it.
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
// removes only what it made or renewed itself, and has not handed over since.
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
}

var defaultTiming = timing{
	responses: (maxWait + 1) * time.Second, searchMin: 10 * time.Second, searchMax: time.Minute, searchGap: 2 * time.Second,
	verify: 30 * time.Second, retryMin: 2 * time.Second, retryMax: 30 * time.Second, stopTimeout: 3 * time.Second,
}

// maxGateways is how many gateways there may be on one segment: anybody on a LAN may claim to be one.
const maxGateways = 8

// A Mapper has gateways make the Mappings that it is given.
type Mapper struct {
	o       Options
	timing  timing
	metrics metrics
	want    *mailbox.Mailbox[*wanted]
	calls   chan func() // what Run is to call; see do
	known   atomic.Pointer[known]
	tasks   sync.WaitGroup
}

// wanted is the Mappings of a Put.
type wanted struct {
	mappings map[key]vip.Mapping
	at       time.Time // when they were put
}

// known is the gateways and the searches under way. Run replaces it, and never changes it.
type known struct {
	gateways    map[gatewayKey]*gateway
	discoveries map[segment]*discovery
}

// A gatewayKey is where a gateway is.
type gatewayKey struct {
	segment segment
	addr    netip.Addr
}

// A key identifies a Mapping. The Service is not part of it: a Service that is deleted
// and created again keeps what it has.
type key struct {
	addr     netip.Addr
	link     string
	protocol string
	port     uint16
	external uint16
	any      bool
}

func keyOf(m vip.Mapping) key {
	return key{m.Addr, m.Link, m.Protocol, m.Port, m.External, m.Any}
}

// New makes a Mapper. Run does the work.
func New(o Options) *Mapper {
	m := &Mapper{o: o, timing: defaultTiming, metrics: newMetrics(), want: mailbox.New[*wanted](), calls: make(chan func())}
	m.want.Put(&wanted{})
	m.known.Store(&known{map[gatewayKey]*gateway{}, map[segment]*discovery{}})
	return m
}

// String names the task.
func (m *Mapper) String() string { return "upnp" }

// Put replaces what is wanted. A mapping that want has, but not Here, is handed over: it
// stays on its gateway, and is this node's no more. One that want does not have is
// removed from its gateway if it is this node's.
func (m *Mapper) Put(want []vip.Mapping) {
	w := &wanted{mappings: make(map[key]vip.Mapping, len(want)), at: time.Now()}
	for _, x := range want {
		w.mappings[keyOf(x)] = x
	}
	m.want.Put(w)
}

// Observe fills in World.MappingStates: what has become of each mapping of this node's on
// each gateway, and those for which there is no gateway.
func (m *Mapper) Observe(w *vip.World) {
	known, want, now := m.known.Load(), m.want.Get(), time.Now()
	asked := make(map[key]bool)
	for _, g := range known.gateways {
		state := g.published.Load()
		for k, e := range state.entries {
			if e.update(k, want) { // the gateway's goroutine may be busy
				asked[k] = true
				w.MappingStates = append(w.MappingStates, state.mappingState(e, now))
			}
		}
	}
	for k, x := range want.mappings {
		if asked[k] || !x.Here {
			continue
		}
		state := vip.MappingState{Mapping: x}
		if d := known.discoveries[segmentOf(x)]; d != nil {
			state.Problem = *d.problem.Load()
		}
		w.MappingStates = append(w.MappingStates, state)
	}
	slices.SortFunc(w.MappingStates, func(a, b vip.MappingState) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol),
			strings.Compare(a.Gateway, b.Gateway), cmp.Compare(a.Mapping.External, b.Mapping.External))
	})
}

// Run searches for gateways as long as a mapping is wanted here, and asks them for it,
// until ctx ends. Then it removes what is to be removed, for timing.stopTimeout at most.
func (m *Mapper) Run(ctx context.Context) error {
	defer m.tasks.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-m.calls:
			f()
		case <-m.want.Changed:
			m.updateDiscoveries(ctx)
			for _, g := range m.known.Load().gateways {
				g.responses.Changed.Send()
			}
		}
	}
}

// do has Run call f and waits until it has, or ctx ends.
func (m *Mapper) do(ctx context.Context, f func()) {
	done := make(chan struct{})
	select {
	case <-ctx.Done():
	case m.calls <- func() { f(); close(done) }:
		<-done
	}
}

// updateDiscoveries searches on each segment on which a mapping is wanted here, and on no other.
func (m *Mapper) updateDiscoveries(ctx context.Context) {
	old := m.known.Load()
	now := &known{old.gateways, make(map[segment]*discovery)}
	var started []*discovery
	for _, w := range m.want.Get().mappings {
		s := segmentOf(w)
		if !w.Here || now.discoveries[s] != nil {
			continue
		}
		if now.discoveries[s] = old.discoveries[s]; now.discoveries[s] == nil {
			now.discoveries[s] = newDiscovery(m, s)
			started = append(started, now.discoveries[s])
		}
	}
	for s, d := range old.discoveries {
		if now.discoveries[s] == nil {
			d.cancel()
		}
	}
	m.known.Store(now)
	for _, d := range started {
		var inner context.Context
		inner, d.cancel = context.WithCancel(ctx)
		m.tasks.Go(func() { d.run(inner, ctx) })
	}
}

// handleResponse hands a response to its gateway, which is started if it is new. One that
// Options.Gateways does not name, or one too many, is ignored. Run calls it; ctx is Run's.
func (m *Mapper) handleResponse(ctx context.Context, s segment, r response) {
	if len(m.o.Gateways) > 0 && !slices.Contains(m.o.Gateways, r.addr) {
		return
	}
	k := gatewayKey{s, r.addr}
	g := m.known.Load().gateways[k]
	if g == nil && m.countGateways(s) >= maxGateways {
		return
	}
	if g != nil {
		g.seen = time.Now()
		g.responses.Put(&r)
		return
	}
	g = newGateway(m, k, &r)
	m.setGateways(func(all map[gatewayKey]*gateway) { all[k] = g })
	m.o.Log.Info("found a gateway", "link", s.link, "address", r.addr)
	inner, cancel := context.WithCancel(ctx)
	g.cancel = cancel
	m.tasks.Go(func() { g.run(inner) })
}

// setGateways replaces the known gateways by a changed copy.
func (m *Mapper) setGateways(change func(map[gatewayKey]*gateway)) {
	old := m.known.Load()
	all := maps.Clone(old.gateways)
	change(all)
	m.metrics.gateways.Set(float64(len(all)))
	m.known.Store(&known{all, old.discoveries})
}

// dropGateways forgets the gateways on s that can't be used and have not responded for
// three times timing.searchMax. Run calls it.
func (m *Mapper) dropGateways(s segment) {
	for k, g := range m.known.Load().gateways {
		if k.segment == s && g.published.Load().problem != "" && time.Since(g.seen) > 3*m.timing.searchMax {
			m.o.Log.Info("a gateway is gone", "link", s.link, "address", k.addr)
			g.cancel()
			m.setGateways(func(all map[gatewayKey]*gateway) { delete(all, k) })
		}
	}
}

// countGateways is how many gateways are known on s.
func (m *Mapper) countGateways(s segment) (n int) {
	for k := range m.known.Load().gateways {
		if k.segment == s {
			n++
		}
	}
	return n
}

// searchSoon has a search on s begin, if there are any at present.
func (m *Mapper) searchSoon(s segment) {
	if d := m.known.Load().discoveries[s]; d != nil {
		d.soon.Send()
	}
}

// ownPrefixes is a link's own addresses.
func (m *Mapper) ownPrefixes(link string) []netip.Prefix {
	for _, l := range m.o.Links() {
		if l.Name == link {
			return l.Prefixes
		}
	}
	return nil
}
