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
			synctest.Test(t, func(t *testing.T) { faults(t, rand.New(rand.NewPCG(seed, 4))) })
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

func faults(t *testing.T, r *rand.Rand) {
	c := newCluster(t, 3, 9)
	for _, n := range c.nodes {
		n.start()
	}
	ctx, cancel := context.WithCancel(context.Background())
	watched := make(chan struct{})
	go func() { defer close(watched); c.watch(ctx) }()
	time.Sleep(5 * time.Second)
	for range 25 {
		c.fault(r)
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
		if who, _ := c.answers(c.services[i].Addresses[0]); len(who) > 0 {
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

// heal makes all well again.
func (c *cluster) heal() {
	c.say("all is well")
	for _, n := range c.nodes {
		n.way.Set(func(f *leasetest.Faults) { *f = leasetest.Well })
		n.mu.Lock()
		n.cable = true
		n.mu.Unlock()
		n.poke()
	}
	for i := range c.services {
		c.change(i, func(s *vip.Service) { s.Ignore = false })
	}
}

// watch checks all the time that no two nodes answer for one VIP, but for a hand-over.
func (c *cluster) watch(ctx context.Context) {
	since := map[string]time.Time{}
	for ctx.Err() == nil && !c.t.Failed() {
		now := time.Now()
		for _, s := range c.view() {
			for _, a := range s.Addresses {
				who, handOver := c.answers(a)
				if len(who) < 2 {
					delete(since, a.String())
					continue
				}
				if since[a.String()].IsZero() {
					since[a.String()] = now
				}
				limit := grace
				if handOver {
					limit = 3*time.Second + grace // the deadline of a hand-over
				}
				if d := now.Sub(since[a.String()]); d > limit {
					c.t.Errorf("%s: %s is answered by %v for %v (hand-over: %v)\n%s", now.Format("04:05.000"), a, who, d, handOver, c.story())
					return
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
		who, _ := c.answers(a)
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
