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
	// Ports, if not nil, says which external ports may be asked for.
	Ports func(external uint16) bool
}

// A pace is how often things are done.
type pace struct {
	answers time.Duration // how long a search waits for answers
	quick   time.Duration // between searches as long as there is no gateway
	slow    time.Duration // between searches otherwise
	apart   time.Duration // the least time between two searches
	check   time.Duration // how often a gateway is asked whether it still has what it was given
	backoff time.Duration // the first wait after a failure; it doubles
	most    time.Duration // the longest
	last    time.Duration // what stopping may take
}

var usual = pace{
	answers: (waitMost + 1) * time.Second, quick: 10 * time.Second, slow: time.Minute, apart: 2 * time.Second,
	check: 30 * time.Second, backoff: 2 * time.Second, most: 30 * time.Second, last: 3 * time.Second,
}

// gatewaysMost is how many gateways there may be on one side: anybody on a LAN may claim to be one.
const gatewaysMost = 8

// A Mapper is the part over vip.Mapping.
type Mapper struct {
	o      Options
	pace   pace
	meters *meters
	wake   chan struct{}
	tasks  sync.WaitGroup

	mu       sync.Mutex
	want     map[key]vip.Mapping
	gateways map[place]*gateway
	seekers  map[side]*seeker
}

// A place is where a gateway is.
type place struct {
	side side
	addr netip.Addr
}

// A key tells mappings apart. The Service is not part of it: a Service that is
// deleted and made anew keeps what it has.
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
	return &Mapper{
		o: o, pace: usual, meters: newMeters(), wake: make(chan struct{}, 1),
		gateways: make(map[place]*gateway), seekers: make(map[side]*seeker),
	}
}

// String names the task.
func (m *Mapper) String() string { return "upnp" }

// Set stores what is wanted and returns those mappings that a gateway has
// confirmed. A mapping that want has, but not Here, is given away: it stays on
// its gateway, and is this node's no more. One that want does not have is removed
// from its gateway if it is this node's.
func (m *Mapper) Set(_ context.Context, want []vip.Mapping) (have []vip.Mapping, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.want = make(map[key]vip.Mapping, len(want))
	for _, w := range want {
		m.want[keyOf(w)] = w
	}
	made := make(map[key]bool)
	for _, g := range m.gateways {
		if g.reconcile(m.want, time.Now()) {
			poke(g.wake)
		}
		for k, e := range g.entries {
			if e.Made && e.gone.IsZero() {
				made[k] = true
			}
		}
	}
	for _, w := range want {
		if made[keyOf(w)] {
			have = append(have, w)
		}
	}
	m.count()
	poke(m.wake)
	return have, nil
}

// Observe fills in what has become of the mappings that are this node's.
func (m *Mapper) Observe(w *vip.World) {
	m.mu.Lock()
	defer m.mu.Unlock()
	asked := make(map[key]bool)
	for _, g := range m.gateways {
		for k, e := range g.entries {
			asked[k] = true
			w.MappingStates = append(w.MappingStates, g.tell(e))
		}
	}
	for k, x := range m.want {
		if asked[k] || !x.Here {
			continue
		}
		lacks := vip.MappingState{Mapping: x}
		if s := m.seekers[sideOf(x)]; s != nil {
			lacks.Problem = s.problem
		}
		w.MappingStates = append(w.MappingStates, lacks)
	}
	slices.SortFunc(w.MappingStates, func(a, b vip.MappingState) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), strings.Compare(a.Protocol, b.Protocol),
			strings.Compare(a.Gateway, b.Gateway), cmp.Compare(a.Mapping.External, b.Mapping.External))
	})
}

// Run looks for gateways as long as there is something to ask of them, and asks,
// until ctx ends. Then it removes what is to be removed and can be within a few seconds.
func (m *Mapper) Run(ctx context.Context) error {
	defer m.tasks.Wait()
	for {
		m.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		}
	}
}

// look starts and ends the search on each side.
func (m *Mapper) look(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	used := make(map[side]bool)
	for _, w := range m.want {
		if w.Here {
			used[sideOf(w)] = true
		}
	}
	for s, x := range m.seekers {
		if !used[s] {
			x.cancel()
			delete(m.seekers, s)
		}
	}
	for s := range used {
		if m.seekers[s] != nil {
			continue
		}
		inner, cancel := context.WithCancel(ctx)
		x := &seeker{m: m, side: s, wake: make(chan struct{}, 1), cancel: cancel}
		m.seekers[s] = x
		m.tasks.Go(func() { x.run(inner, ctx) })
	}
}

// found takes over an answer to a search. ctx is that of Run.
func (m *Mapper) found(ctx context.Context, s side, a answer) {
	if len(m.o.Gateways) > 0 && !slices.Contains(m.o.Gateways, a.addr) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := place{s, a.addr}
	g := m.gateways[at]
	if g == nil {
		if m.crowd(s) >= gatewaysMost {
			return
		}
		g = newGateway(m, at)
		m.gateways[at] = g
		inner, cancel := context.WithCancel(ctx)
		g.cancel = cancel
		g.reconcile(m.want, time.Now())
		m.o.Log.Info("found a gateway", "link", s.link, "address", a.addr)
		m.tasks.Go(func() { g.run(inner) })
	}
	g.meet(a, time.Now())
	m.count()
}

// reap forgets the gateways on s that are gone, and reports whether there is any left.
func (m *Mapper) reap(s side) (any bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for at, g := range m.gateways {
		switch {
		case at.side != s:
		case g.problem != "" && time.Since(g.seen) > 3*m.pace.slow:
			m.o.Log.Info("a gateway is gone", "link", s.link, "address", at.addr)
			g.cancel()
			delete(m.gateways, at)
		default:
			any = true
		}
	}
	m.count()
	return any
}

// crowd is how many gateways there are on s.
func (m *Mapper) crowd(s side) (n int) {
	for at := range m.gateways {
		if at.side == s {
			n++
		}
	}
	return n
}

// count sets the gauges.
func (m *Mapper) count() {
	made := 0
	for _, g := range m.gateways {
		for _, e := range g.entries {
			if e.Made {
				made++
			}
		}
	}
	m.meters.gateways.Set(float64(len(m.gateways)))
	m.meters.mappings.Set(float64(made))
}

// seek has a side searched soon.
func (m *Mapper) seek(s side) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.seekers[s]; x != nil {
		poke(x.wake)
	}
}

// own is a link's own addresses.
func (m *Mapper) own(link string) []netip.Prefix {
	for _, l := range m.o.Links() {
		if l.Name == link {
			return l.Prefixes
		}
	}
	return nil
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
