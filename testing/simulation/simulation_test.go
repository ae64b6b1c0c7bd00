package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// grace is how long two nodes may answer at once where a message crosses a fault:
// a watch event and a frame on the wire.
const grace = 100 * time.Millisecond

// TestFaults: whatever happens, no VIP is answered by two nodes but for a
// hand-over, and once all is well every VIP is answered by exactly one and its
// status says so.
func TestFaults(t *testing.T) {
	for seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3, 9)
				c.run(rand.New(rand.NewPCG(seed, 4)), 25, c.fault)
			})
		})
	}
}

// seeds is how many there are to try: HERALD_SEEDS, or a few.
func seeds(t *testing.T) uint64 {
	text := os.Getenv("HERALD_SEEDS")
	if text == "" {
		return 20
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("HERALD_SEEDS=%q: must be a number", text)
	}
	return n
}

// TestWire: the same, where nodes see each other on the wire, the wire fails too,
// and what is seen may be wrong.
func TestWire(t *testing.T) {
	for seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 5))
				c := newCluster(t, 3+2*r.IntN(2), 12)
				c.wire = newWire(c, rand.New(rand.NewPCG(seed, 6)))
				c.run(r, 25, c.wireFault)
			})
		})
	}
}

// run starts all nodes, breaks things, mends them, and stops all nodes.
func (c *cluster) run(r *rand.Rand, faults int, fault func(*rand.Rand)) {
	t := c.t
	for _, n := range c.nodes {
		n.start()
	}
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() { defer close(watched); c.watch(ctx) }()
	time.Sleep(5 * time.Second)
	for range faults {
		fault(r)
		time.Sleep(time.Duration(r.IntN(15000)) * time.Millisecond)
		if t.Failed() {
			break
		}
	}
	c.heal()
	time.Sleep(time.Minute)
	if !t.Failed() {
		c.settled()
	}
	cancel()
	<-watched
	for _, n := range c.nodes {
		n.stop()
		<-n.done
	}
	for i := range c.services {
		if who, _ := c.answers(c.services[i].Addresses[0], 0); len(who) > 0 {
			t.Errorf("%s is still answered by %v after all have stopped", c.services[i].Key, who)
		}
	}
}

// fault makes something go wrong, or right again.
func (c *cluster) fault(r *rand.Rand) {
	n := c.nodes[r.IntN(len(c.nodes))]
	way := func(what string, f func(*leasetest.Faults)) {
		c.say("%s: %s", n.name, what)
		n.way.Set(f)
	}
	switch r.IntN(10) {
	case 0, 1:
		way("cut from the API, or back", func(f *leasetest.Faults) { f.Cut = !f.Cut })
	case 2:
		way("its watch is stuck, or moves again", func(f *leasetest.Faults) { f.Deaf = !f.Deaf })
	case 3:
		way("slow", func(f *leasetest.Faults) {
			f.Delay, f.Lag = time.Duration(r.IntN(3000))*time.Millisecond, time.Duration(1+r.IntN(2000))*time.Millisecond
		})
	case 4:
		way("answers are lost, or come again", func(f *leasetest.Faults) { f.Lose = !f.Lose })
	case 5:
		c.say("%s: killed and started", n.name)
		n.kill()
		time.Sleep(time.Duration(r.IntN(20000)) * time.Millisecond)
		n.start()
	case 6:
		c.say("%s: stopped in good order and started", n.name)
		n.stop()
		<-n.done
		n.start()
	case 7:
		c.say("%s: cable out, or in", n.name)
		n.mu.Lock()
		n.cable = !n.cable
		n.mu.Unlock()
		n.poke()
	case 8:
		i := r.IntN(len(c.services))
		c.say("%s: ignored, or not", c.services[i].Key)
		c.change(i, func(s *vip.Service) { s.Ignore = !s.Ignore })
	case 9:
		i := r.IntN(len(c.services))
		c.say("%s: shares an address, or not", c.services[i].Key)
		c.change(i, func(s *vip.Service) {
			if i > 0 && s.Addresses[0] != c.services[i-1].Addresses[0] {
				s.Addresses = c.services[i-1].Addresses
				s.Ports = []vip.Port{{Protocol: "TCP", Port: uint16(1000 + i)}}
			} else {
				s.Addresses = []netip.Addr{s.Addresses[0].Next()} // views share the old slice
			}
		})
	}
}

// wireFault is a fault, of the wire as likely as not.
func (c *cluster) wireFault(r *rand.Rand) {
	n, o := c.nodes[r.IntN(len(c.nodes))], c.nodes[r.IntN(len(c.nodes))]
	switch r.IntN(12) {
	default:
		c.fault(r)
	case 0, 1:
		c.say("%s: on the other side of the LAN, or back", n.name)
		n.mu.Lock()
		n.side = 1 - n.side
		n.mu.Unlock()
	case 2:
		c.say("%s: its gossip port is blocked, or not", n.name)
		c.wire.block(n)
	case 3:
		if n != o {
			c.say("%s takes %s for dead", n.name, o.name)
			c.wire.mistake(n, o)
		}
	case 4:
		away := !c.nodes[0].way.Faults().Cut
		c.say("the API server is away for all (%v)", away)
		for _, n := range c.nodes {
			n.way.Set(func(f *leasetest.Faults) { f.Cut = away })
		}
	case 5:
		c.say("%s: the power fails", n.name)
		n.kill()
		n.mu.Lock()
		clear(n.kernel)
		n.mu.Unlock()
		time.Sleep(time.Duration(r.IntN(20000)) * time.Millisecond)
		n.start()
	}
	c.wire.change()
}

// heal makes all well again.
func (c *cluster) heal() {
	c.say("all is well")
	for _, n := range c.nodes {
		n.way.Set(func(f *leasetest.Faults) { *f = leasetest.Well })
		n.mu.Lock()
		n.cable, n.side = true, 0
		n.mu.Unlock()
		n.poke()
	}
	c.wire.heal()
	for i := range c.services {
		c.change(i, func(s *vip.Service) { s.Ignore = false })
	}
}

// watch checks all the time that no two nodes answer for one VIP, but for a hand-over.
func (c *cluster) watch(ctx context.Context) {
	type where struct {
		addr netip.Addr
		side int
	}
	since := map[where]time.Time{}
	for ctx.Err() == nil && !c.t.Failed() {
		now := time.Now()
		for _, s := range c.view() {
			for _, a := range s.Addresses {
				for side := range 2 {
					who, limit := c.answers(a, side)
					if len(who) < 2 {
						delete(since, where{a, side})
						continue
					}
					if since[where{a, side}].IsZero() {
						since[where{a, side}] = now
					}
					if d := now.Sub(since[where{a, side}]); d > limit {
						c.t.Errorf("%s: %s is answered by %v for %v, at most %v are good\n%s", now.Format("04:05.000"), a, who, d, limit, c.story())
						return
					}
				}
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// settled checks that every VIP is answered by exactly one node, and that the
// statuses say which.
func (c *cluster) settled() {
	taken := map[string]string{}
	for _, s := range c.view() {
		a := s.Addresses[0]
		slot := fmt.Sprint(a, s.Ports[0])
		who, _ := c.answers(a, 0)
		if len(who) != 1 {
			c.t.Errorf("%s: %s is answered by %v, want one\n%s", s.Key, a, who, c.story())
			return
		}
		if taken[slot] != "" {
			continue // in conflict: the older, or who had it, keeps it
		}
		if s.Host != "" {
			taken[slot] = s.Host
			if s.Host != who[0] {
				c.t.Errorf("%s: its status names %s, but %s answers", s.Key, s.Host, who[0])
			}
		}
	}
}

// TestLarge: a large cluster, if HERALD_LARGE says how large: nodes,VIPs,faults.
func TestLarge(t *testing.T) {
	var nodes, services, faults int
	if n, _ := fmt.Sscanf(os.Getenv("HERALD_LARGE"), "%d,%d,%d", &nodes, &services, &faults); n != 3 {
		t.Skip("HERALD_LARGE=nodes,VIPs,faults runs it; 100,2000,100 takes an hour")
	}
	synctest.Test(t, func(t *testing.T) {
		seed := uint64(time.Now().UnixNano())
		r := rand.New(rand.NewPCG(seed, 7))
		c := newCluster(t, nodes, services)
		c.wire = newWire(c, rand.New(rand.NewPCG(seed, 8)))
		c.run(r, faults, c.wireFault)
	})
}
