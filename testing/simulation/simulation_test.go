package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// TestFaults: under any faults no VIP is answered by two nodes except during a hand-over, and once
// all faults have ended every VIP is answered by exactly one node, which its status names.
func TestFaults(t *testing.T) {
	for seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, size{nodes: 3, services: 9, timing: timingOf(seed)})
				c.run(rand.New(rand.NewPCG(seed, 4)), 25, c.anyFault)
			})
		})
	}
}

// seeds is how many seeds are tried: HERALD_SEEDS, or 20.
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

// timingOf returns the timing for a seed: for one in four that of a static Pod of kube-vip.
func timingOf(seed uint64) quorum.Timing {
	if seed%4 == 3 {
		return kubeVIPTiming
	}
	return defaultTiming
}

// TestWire: the same with heartbeats between the nodes, whose network fails too, and which may
// take a node for dead that is alive.
func TestWire(t *testing.T) {
	for seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 5))
				c := newCluster(t, size{nodes: 3 + 2*r.IntN(2), services: 12, skew: 0.02, timing: timingOf(seed)})
				c.wire = newWire(c, rand.New(rand.NewPCG(seed, 6)))
				c.lateWatches = seed%2 == 0
				c.run(r, 25, c.wireFault)
			})
		})
	}
}

// TestOutageMovesNothing: no VIP moves because the API server is away for a while, although some
// nodes notice its end before others.
func TestOutageMovesNothing(t *testing.T) {
	tests := []struct {
		name   string
		size   size
		lasts  time.Duration // at least
		atMost time.Duration
		times  int
	}{
		{"default timing", size{nodes: 20, services: 100, skew: 0.05}, 5 * time.Second, 65 * time.Second, 5},
		{"timing of kube-vip", size{nodes: 8, services: 40, skew: 0.05, timing: kubeVIPTiming}, 5 * time.Second, 65 * time.Second, 5},
		{"timing of kube-vip, for about the lease duration", size{nodes: 8, services: 40, skew: 0.05, timing: kubeVIPTiming}, time.Second, 8 * time.Second, 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, tt.size)
				c.wire = newWire(c, rand.New(rand.NewPCG(1, 10)))
				c.run(rand.New(rand.NewPCG(1, 9)), 1, func(r *rand.Rand, _ *node) {
					for range tt.times {
						time.Sleep(time.Minute + time.Duration(r.IntN(5000))*time.Millisecond)
						before := c.binds()
						c.toggleForAll(r, apiAway)
						time.Sleep(tt.lasts + time.Duration(r.Int64N(int64(tt.atMost-tt.lasts))))
						c.toggleForAll(r, apiAway)
						time.Sleep(20 * time.Second)
						if moved := c.binds() - before; moved > 0 {
							c.mu.Lock()
							c.fail(netip.Addr{}, c.nodes, "%d VIPs have moved", moved)
							c.mu.Unlock()
						}
					}
				})
			})
		})
	}
}

// TestHandOverWithoutGap: while all other nodes are without fault, a VIP of a node that is stopped by
// SIGTERM is never unanswered, and one of a node that is cut from the API server moves before
// its renew deadline.
func TestHandOverWithoutGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, size{nodes: 5, services: 40})
		c.wire = newWire(c, rand.New(rand.NewPCG(1, 11)))
		r := rand.New(rand.NewPCG(1, 12))
		c.run(r, 1, func(*rand.Rand, *node) {
			for _, n := range c.nodes {
				c.setMustAnswer(true)
				n.stop()
				c.setMustAnswer(false)
				n.start()
				time.Sleep(10 * time.Second)
			}
			n := c.nodes[r.IntN(len(c.nodes))]
			n.toggle(cut)
			time.Sleep(9 * time.Second)
			c.mu.Lock()
			for a := range n.kernel {
				c.fail(a, c.nodes, "%s has been cut from the API server for 9 s and still has %s", n.name, a)
			}
			c.mu.Unlock()
		})
	})
}

// TestCrashLoop: a node whose Herald is killed again and again gets no VIP any more after its second
// restart, although it holds the fewest, so that the others' clients notice nothing. What it has moves away once,
// when a restart has taken too long.
func TestCrashLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const restarts = 20
		c := newCluster(t, size{nodes: 3, services: 30})
		c.wire = newWire(c, rand.New(rand.NewPCG(1, 13)))
		c.run(rand.New(rand.NewPCG(1, 14)), 1, func(r *rand.Rand, _ *node) {
			n, kept := c.nodes[2], 0
			before, had, began := 0, len(c.services), time.Now()
			for i := range restarts {
				n.kill(false)
				time.Sleep(time.Duration(1000+r.IntN(4000)) * time.Millisecond)
				n.start()
				if i == 1 {
					before, began = c.binds(), time.Now()
				}
				time.Sleep(time.Second)
				for range 3 { // three Services are created
					s := r.IntN(len(c.services))
					c.change(s, func(s *vip.Service) { s.Ignore = true })
					time.Sleep(time.Second)
					c.change(s, func(s *vip.Service) { s.Ignore = false })
					time.Sleep(time.Duration(500+r.IntN(3000)) * time.Millisecond)
				}
				c.mu.Lock()
				if i > 1 && len(n.kernel) > had {
					t.Errorf("restart %d: it has %d VIPs, and had %d before", i+1, len(n.kernel), had)
				}
				if i == 1 {
					kept = len(n.kernel)
				}
				had = len(n.kernel)
				c.mu.Unlock()
			}
			if had > 0 {
				t.Errorf("it has %d VIPs at the end", had)
			}
			created := 3 * (restarts - 1)
			minutes := time.Since(began).Minutes()
			moved := c.binds() - before - created
			t.Logf("%d restarts in %.1f minutes: %.1f VIPs moved per minute, beside %d that were new", restarts, minutes, float64(moved)/minutes, created)
			if moved > kept {
				t.Errorf("%d VIPs were bound beside the %d of new Services; it had %d", moved, created, kept)
			}
		})
	})
}

// setMustAnswer sets whether it is an error, from now on, if nobody answers for a VIP.
func (c *cluster) setMustAnswer(must bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mustAnswer = must
}

// binds is how many addresses have been bound so far.
func (c *cluster) binds() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.eventCount["binds"]
}

// TestLargeCluster: a larger cluster with many faults at a time. HERALD_LARGE sets its size
// (nodes,VIPs,faults); without it the test takes some seconds.
// HERALD_SIMULATE is the limit for its duration; HERALD_SEED repeats the faults of
// a run, though not the order in which the goroutines run.
func TestLargeCluster(t *testing.T) {
	nodes, services, faults, seed := 10, 60, 400, uint64(1)
	if text := os.Getenv("HERALD_LARGE"); text != "" {
		if n, _ := fmt.Sscanf(text, "%d,%d,%d", &nodes, &services, &faults); n != 3 || nodes < 2 || services < 1 {
			t.Fatalf("HERALD_LARGE=%q: must be nodes,VIPs,faults", text)
		}
		seed = uint64(time.Now().UnixNano())
	}
	if text := os.Getenv("HERALD_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("HERALD_SEED=%q: must be a number", text)
		}
	}
	var over atomic.Bool
	if text := os.Getenv("HERALD_SIMULATE"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("HERALD_SIMULATE=%q: must be a duration, such as 10m", text)
		}
		defer time.AfterFunc(d, func() { over.Store(true) }).Stop() // of real time: it is outside the bubble
	}
	t.Logf("%d nodes, %d VIPs, %d faults: HERALD_SEED=%d", nodes, services, faults, seed)
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 7))
		c := newCluster(t, size{
			nodes: nodes, services: services, skew: 0.02,
			pass: time.Duration(services) * 20 * time.Microsecond, gap: 5 * time.Second / time.Duration(nodes),
		})
		c.timeIsUp = &over
		c.wire = newWire(c, rand.New(rand.NewPCG(seed, 8)))
		c.run(r, faults, c.largeFault)
	})
}

// run starts all nodes, makes a number of faults, ends them, checks that the cluster recovers, and
// stops all nodes.
func (c *cluster) run(r *rand.Rand, faults int, fault func(*rand.Rand, *node)) {
	for _, n := range c.nodes {
		n.rate += c.skew * (2*r.Float64() - 1)
		n.start()
	}
	ctx, cancel := context.WithCancel(context.Background())
	var watch sync.WaitGroup
	watch.Go(func() { c.recheckOverlaps(ctx) })
	if !c.large() {
		c.create()
	}
	time.Sleep(5 * time.Second)
	c.create()
	time.Sleep(5 * time.Second)
	began := time.Now()
	c.progress("all have started", began)
	c.backup = c.api.Lease(vip.Key{Namespace: "kube-system", Name: lease.TableName})
	for i := range faults {
		fault(r, c.nodes[r.IntN(len(c.nodes))])
		if c.large() {
			time.Sleep(time.Duration(r.Int64N(int64(2 * c.gap))))
		} else {
			time.Sleep(time.Duration(r.IntN(15000)) * time.Millisecond)
		}
		if c.isBroken() || c.timeIsUp != nil && c.timeIsUp.Load() {
			break
		}
		if (i+1)%100 == 0 {
			c.progress(fmt.Sprintf("%d faults", i+1), began)
		}
		if c.large() && (i+1)%recoverEvery == 0 && i+1 < faults {
			c.recoverAll()
			c.progress(fmt.Sprintf("%d faults, no invariant broken", i+1), began)
		}
	}
	c.recoverAll()
	c.progress("the end", began)
	cancel()
	watch.Wait()
	for _, n := range c.nodes {
		n.stop()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.services {
		if who := c.answers(c.services[i].Addresses[0], 0); len(who) > 0 {
			c.fail(c.services[i].Addresses[0], who, "%s is still answered after all have stopped", c.services[i].Key)
		}
	}
}

// progress logs how far a long run is.
func (c *cluster) progress(what string, began time.Time) {
	if !c.large() {
		return
	}
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		c.t.Error(err)
	}
	c.t.Logf("%s, after %v (%d s of CPU, %d passes): %s", what, time.Since(began).Round(time.Second), used.Utime.Sec, c.passes.Load(), c.counts())
}

// create makes the Services, if they aren't there yet.
func (c *cluster) create() {
	c.mu.Lock()
	c.created = true
	c.mu.Unlock()
	for _, n := range c.nodes {
		n.poke()
	}
}

// recoverEvery is after how many faults a large cluster is made to recover.
const recoverEvery = 1000

// recoverAll ends all faults, and checks that a minute later every VIP has one owner and its status.
func (c *cluster) recoverAll() {
	c.clearFaults()
	var unsettled func() string
	good := 0
	for range 60 {
		time.Sleep(time.Second)
		good++
		if unsettled = c.unsettled(); unsettled != nil {
			good = 0
		}
		if c.isBroken() || c.large() && good == 3 {
			return
		}
	}
	if unsettled != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fail(netip.Addr{}, nil, "after a minute without faults %s", unsettled())
	}
}

// unsettled returns what describes the first VIP that is not answered by exactly one node, or whose status names
// another, while the cluster's mutex is held; nil if there is none. Services that lost a conflict are left out.
func (c *cluster) unsettled() func() string {
	type slot struct {
		addr netip.Addr
		port vip.Port
	}
	taken := map[slot]bool{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.services {
		a := s.Addresses[0]
		at := slot{a, s.Ports[0]}
		who := c.answers(a, 0)
		if len(who) != 1 {
			return func() string {
				return fmt.Sprintf("%s, %s, is answered by %d nodes\n%s", s.Key, a, len(who), c.explain(a, who))
			}
		}
		if taken[at] || s.VIPHost == "" {
			continue // in conflict: the older one, or the one that had it, keeps it
		}
		taken[at] = true
		if s.VIPHost != who[0].name {
			return func() string {
				return fmt.Sprintf("%s: its status names %s, but %s answers\n%s", s.Key, s.VIPHost, who[0].name, c.explain(a, who))
			}
		}
	}
	return nil
}
