package simulation

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/agent"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	lifetime = 4 * time.Second // of a bound address that nobody refreshes
	refresh  = time.Second
)

// A cluster is nodes, an API server, and a wire.
type cluster struct {
	t   *testing.T
	api *leasetest.Server

	mu       sync.Mutex
	services []vip.Service
	nodes    []*node
	wire     *wire // nil: nodes can't see each other on the wire
	trace    []string
}

// A node is a machine: its kernel outlives the process that runs on it.
type node struct {
	c    *cluster
	name string
	way  *leasetest.Client // of the process that runs, or ran last

	mu     sync.Mutex
	kernel map[netip.Addr]time.Time // bound VIPs, and when the kernel drops them
	heard  map[netip.Addr]vip.Sound
	linger map[netip.Addr]bool // bound only until the successor is heard
	cable  bool                // the VIPs' link is up
	said   map[netip.Addr]bool // announced
	stop   context.CancelFunc  // of the process; nil if none runs
	done   chan struct{}
	agent  *agent.Agent
	leases *lease.Leases
	side   int // of the LAN, should it be in two parts
}

func newCluster(t *testing.T, nodes, services int) *cluster {
	c := &cluster{t: t, api: leasetest.NewServer()}
	for i := range services {
		name := fmt.Sprintf("s%02d", i)
		c.services = append(c.services, vip.Service{
			Key: vip.Key{Namespace: "default", Name: name}, UID: name, Created: time.Unix(int64(i/4), 0), LoadBalancer: true,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})},
			Ports:     []vip.Port{{Protocol: "TCP", Port: 80}},
			Endpoints: vip.Endpoints{Elsewhere: true},
		})
	}
	for i := range nodes {
		c.nodes = append(c.nodes, &node{
			c: c, name: fmt.Sprintf("n%d", i+1), cable: true,
			kernel: map[netip.Addr]time.Time{}, heard: map[netip.Addr]vip.Sound{}, linger: map[netip.Addr]bool{},
		})
	}
	return c
}

// say notes what happens, for the trace.
func (c *cluster) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trace = append(c.trace, time.Now().Format("04:05.000 ")+fmt.Sprintf(format, args...))
}

func (c *cluster) story() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.trace[max(0, len(c.trace)-40):], "\n") + "\n--- leases\n" + c.api.Trace(60)
}

// view is what a cache of the Services shows.
func (c *cluster) view() []vip.Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.services)
}

// change changes one Service and tells every cache.
func (c *cluster) change(i int, f func(*vip.Service)) {
	c.mu.Lock()
	f(&c.services[i])
	c.mu.Unlock()
	for _, n := range c.nodes {
		n.poke()
	}
}

func (n *node) poke() {
	n.mu.Lock()
	a := n.agent
	n.mu.Unlock()
	if a != nil {
		a.Poke()
	}
}

// start runs a Herald on n.
func (n *node) start() {
	ctx, stop := context.WithCancel(context.Background())
	rest, stopRest := context.WithCancel(context.Background())
	done := make(chan struct{})
	var leases *lease.Leases
	way := leasetest.NewClient(n.c.api, func() { leases.Wake() })
	var a *agent.Agent
	poke := func() { a.Poke() }
	leases = lease.New(way, lease.Options{
		Node: n.name, Namespace: "kube-system",
		Duration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Info: func() vip.Info {
			info := n.info()
			if a.Stopping() {
				info.Excluded = "it is stopping"
			}
			return info
		},
		Log: slog.New(slog.DiscardHandler), Poke: poke,
		Sights: n.c.wire.sights(n), Anchor: n.c.wire.anchor(n), Tell: n.c.wire.tell(n),
	})
	rules := plan.Rules{Enabled: true, ARP: true, Election: true, Bits4: 32, Bits6: 128, Mode: vip.ModeVIP}
	a = agent.New(agent.Options{
		Self: n.name, Log: slog.New(slog.DiscardHandler),
		Plan:          func(w vip.World) vip.Plan { return plan.Make(rules, w) },
		Sources:       []agent.Source{leases, n},
		Addresses:     set[vip.Address](func(want []vip.Address) ([]vip.Address, error) { return n.bind(want, leases.Tenure()) }),
		Announcements: set[vip.Announcement](n.announce),
		Statuses:      set[vip.Status](func(want []vip.Status) ([]vip.Status, error) { return n.write(way, want), nil }),
		Probes:        set[vip.Probe](func(want []vip.Probe) ([]vip.Probe, error) { return want, nil }),
		Notes:         set[vip.Note](func(want []vip.Note) ([]vip.Note, error) { return want, nil }),
		Stakes:        leases,
	})
	n.mu.Lock()
	n.way, n.agent, n.stop, n.done, n.leases = way, a, stop, done, leases
	n.mu.Unlock()
	n.c.wire.change()
	go func() {
		defer close(done)
		var group sync.WaitGroup
		group.Go(func() { way.Watch(rest) })
		group.Go(func() { leases.Run(rest) })
		group.Go(func() { n.refresh(rest, leases) })
		a.Run(ctx)
		stopRest()
		group.Wait()
		n.mu.Lock()
		if n.agent == a {
			n.agent, n.leases = nil, nil
		}
		n.mu.Unlock()
		n.c.wire.change()
	}()
}

// kill ends the process without a word: nothing it does from now on has an effect.
func (n *node) kill() {
	n.mu.Lock()
	n.agent, n.leases = nil, nil
	kernel := maps.Clone(n.kernel)
	n.mu.Unlock()
	n.way.Set(func(f *leasetest.Faults) { f.Cut = true })
	n.c.wire.change()
	n.stop()
	<-n.done
	n.mu.Lock()
	n.kernel, n.stop = kernel, nil // what the dying process removed is put back
	n.mu.Unlock()
}

// set makes a part of a function.
type set[W any] func(want []W) ([]W, error)

func (f set[W]) Set(_ context.Context, want []W) ([]W, error) { return f(want) }

// expire drops what nobody refreshes any more.
func (n *node) expire(now time.Time) {
	for a, until := range n.kernel {
		if !now.Before(until) {
			delete(n.kernel, a)
		}
	}
}

func (n *node) bind(want []vip.Address, t vip.Tenure) (have []vip.Address, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	n.expire(now)
	wanted := map[netip.Addr]bool{}
	for _, a := range want {
		until := t.Until
		n.linger[a.Addr] = !a.Until.IsZero()
		if !a.Until.IsZero() && a.Until.Before(until) {
			until = a.Until
		}
		if end := now.Add(lifetime); end.Before(until) {
			until = end
		}
		if until.Sub(now) < time.Second {
			continue
		}
		wanted[a.Addr] = true
		if _, bound := n.kernel[a.Addr]; !bound && !t.Confirmed {
			continue
		}
		if _, bound := n.kernel[a.Addr]; !bound {
			n.c.say("%s binds %s on %s", n.name, a.Addr, a.Lease.Name)
		}
		n.kernel[a.Addr] = until
		have = append(have, a)
	}
	for a := range n.kernel {
		if !wanted[a] {
			n.c.say("%s removes %s", n.name, a)
			delete(n.kernel, a)
		}
	}
	return have, nil
}

// refresh is what keeps bound addresses alive.
func (n *node) refresh(ctx context.Context, leases *lease.Leases) {
	for ticker := time.NewTicker(refresh); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		t, now := leases.Tenure(), time.Now()
		n.mu.Lock()
		before := len(n.kernel)
		n.expire(now)
		for a := range n.kernel {
			if end := now.Add(lifetime); t.Confirmed && t.Until.Sub(now) >= time.Second && !n.linger[a] {
				n.kernel[a] = end
				if t.Until.Before(end) {
					n.kernel[a] = t.Until
				}
			}
		}
		lost := len(n.kernel) != before
		said := slices.Collect(maps.Keys(n.said))
		n.mu.Unlock()
		n.tell(said) // as l2 does every 3 s
		if lost {
			n.poke()
		}
	}
}

// announce tells the others on the LAN what is newly wanted.
func (n *node) announce(want []vip.Announcement) ([]vip.Announcement, error) {
	n.mu.Lock()
	before := n.said
	n.said = map[netip.Addr]bool{}
	var news []netip.Addr
	for _, w := range want {
		if w.Listen {
			continue
		}
		n.said[w.Addr] = true
		if !before[w.Addr] {
			news = append(news, w.Addr)
		}
	}
	n.mu.Unlock()
	n.tell(news)
	return want, nil
}

// tell is one frame for each address, heard by whoever is on the LAN.
func (n *node) tell(addrs []netip.Addr) {
	n.mu.Lock()
	cable, side := n.cable && n.agent != nil, n.side
	n.mu.Unlock()
	if !cable {
		return
	}
	for _, o := range n.c.nodes {
		if o == n {
			continue
		}
		o.mu.Lock()
		if o.cable && o.side == side {
			for _, a := range addrs {
				o.heard[a] = vip.Sound{MAC: n.name, At: time.Now()}
			}
		}
		o.mu.Unlock()
		if len(addrs) > 0 {
			o.poke()
		}
	}
}

// write writes statuses, if the API server is in reach.
func (n *node) write(way *leasetest.Client, want []vip.Status) (have []vip.Status) {
	if way.Faults().Cut {
		return nil
	}
	for _, w := range want {
		n.c.mu.Lock()
		i := slices.IndexFunc(n.c.services, func(s vip.Service) bool { return s.Key == w.Service })
		n.c.services[i].Host, n.c.services[i].Ingress = w.Host, w.Ingress
		n.c.mu.Unlock()
		have = append(have, w)
	}
	return have
}

func (n *node) info() vip.Info {
	n.mu.Lock()
	defer n.mu.Unlock()
	return vip.Info{Interface: "eth0", Default: "eth0", Links: []vip.Link{{Name: "eth0", Up: n.cable, MAC: n.name}}}
}

// Observe fills in what the node's own kernel, wire and caches show.
func (n *node) Observe(w *vip.World) {
	w.Synced, w.Services = true, n.c.view()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expire(w.Now)
	for a := range n.kernel {
		w.Bound = append(w.Bound, vip.Address{Addr: a, Bits: 32, Link: "eth0"})
	}
	w.Heard = maps.Clone(n.heard)
}

// answers is who answers for an address on one side of the LAN at this moment, and
// how long two may do so.
func (c *cluster) answers(a netip.Addr, side int) (who []string, limit time.Duration) {
	limit = grace
	deaf := c.wire.deafened()
	for _, n := range c.nodes {
		n.mu.Lock()
		n.expire(time.Now())
		if _, bound := n.kernel[a]; bound && n.cable && n.side == side {
			who = append(who, n.name)
			limit = max(limit, n.slack(a, deaf))
		}
		n.mu.Unlock()
	}
	return who, limit
}

// slack is how long n may go on answering for what another has; deaf: some node's
// gossip port is blocked.
func (n *node) slack(a netip.Addr, deaf bool) time.Duration {
	f := n.way.Faults()
	switch {
	case deaf && f != leasetest.Well:
		return 10*time.Second + time.Second // the renew deadline: nobody can tell it
	case n.leases == nil:
		return lifetime + grace // its kernel's
	case n.linger[a] || f.Lose:
		// It waits to hear its successor. And whoever hands over and does not hear that
		// it was written serves on until its watch shows it.
		return 3*time.Second + grace
	case n.c.wire != nil:
		return time.Second // it learns on the wire that its epoch is over
	}
	return grace
}
