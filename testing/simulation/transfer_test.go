package simulation

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// TestDeathCostsTwoWrites: after a fence and a table all VIPs of a node that died are answered by others; so they are after
// another death, of a node that had got some of them that way.
func TestDeathCostsTwoWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, size{nodes: 5, services: 100})
		writes := c.countWrites()
		c.wire = newWire(c, rand.New(rand.NewPCG(1, 15)))
		c.run(rand.New(rand.NewPCG(1, 16)), 1, func(*rand.Rand, *node) {
			time.Sleep(10 * time.Second)
			for _, n := range c.nodes[:2] {
				writes.Store(0)
				n.toggle(unplug)
				n.toggle(cut)
				time.Sleep(1500 * time.Millisecond)
				if k := writes.Load(); k > 3 { // a fence, a table, and what a second node begins as well
					t.Errorf("%s is dead: %d writes", n.name, k)
				}
				for range 20 {
					if text := c.unanswered(); text != "" {
						c.mu.Lock()
						c.fail(netip.Addr{}, c.nodes, "%s is dead: %s", n.name, text)
						c.mu.Unlock()
						return
					}
					time.Sleep(time.Second)
				}
			}
		})
	})
}

// unanswered describes the first VIP that is not answered by exactly one node; "" if there is none.
func (c *cluster) unanswered() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.services {
		if who := c.answers(s.Addresses[0], 0); len(who) != 1 {
			return fmt.Sprintf("%s is answered by %d nodes", s.Key, len(who))
		}
	}
	return ""
}

// TestTransfers: the invariants hold while nodes die one soon after the other, and others can't write the table, do not see what
// is written, or are cut off.
func TestTransfers(t *testing.T) {
	runFaults(t, 17, (*cluster).transferFault)
}

// runFaults has 60 faults happen, for each seed, to a cluster whose heartbeats are packets. stream and the number after it tell random numbers of
// one test from those of others.
func runFaults(t *testing.T, stream uint64, fault func(*cluster, *rand.Rand, *node)) {
	for seed := range seeds(t) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, stream))
				c := newCluster(t, size{nodes: 4 + r.IntN(3), services: 16, skew: 0.02, gap: time.Second, timing: timingOf(seed)})
				c.wire = newWire(c, rand.New(rand.NewPCG(seed, stream+1)))
				c.lateWatches = seed%2 == 0
				c.run(r, 60, func(r *rand.Rand, n *node) { fault(c, r, n) })
			})
		})
	}
}

// transferFault is a fault that concerns moves: half of them end a node, or begin to keep one from writing the table.
func (c *cluster) transferFault(r *rand.Rand, n *node) {
	switch r.IntN(10) {
	case 0, 1:
		c.restart(r, n, "the power fails", func() { n.kill(true) })
	case 2, 3:
		c.toggle(r, n, cantWrite)
	case 4:
		c.strandSuccessor(r, n, func(o *node) { c.restart(r, o, "the power fails", func() { o.kill(true) }) })
	case 5:
		c.toggle(r, n, watchStuck)
	case 6:
		c.toggle(r, n, otherSide)
	case 7:
		if r.IntN(4) == 0 {
			c.toggleForAll(r, apiAway)
		} else {
			c.restart(r, n, "stopped by SIGTERM and started", n.stop)
		}
	default:
		c.wireFault(r, n)
	}
}

// strandSuccessor has another node leave its VIPs while n can't write the table, and n's watch stick once n may have seen what it
// was given. Both last so long that others go ahead of n.
func (c *cluster) strandSuccessor(r *rand.Rand, n *node, leave func(*node)) {
	o := c.nodes[r.IntN(len(c.nodes))]
	c.mu.Lock()
	busy := o == n || n.has(cantWrite) || n.has(watchStuck)
	c.mu.Unlock()
	if busy {
		return
	}
	n.toggle(cantWrite)
	leave(o)
	time.Sleep(time.Duration(300+r.IntN(1200)) * time.Millisecond)
	n.toggle(watchStuck)
	time.AfterFunc(time.Duration(6000+r.IntN(6000))*time.Millisecond, func() {
		n.end(cantWrite)
		n.end(watchStuck)
	})
}

// TestHandOverCostsOneWrite: after one write all VIPs of a node that loses its link, or is stopped by SIGTERM, are answered by
// others; so they are after the next node has handed over what it had got that way.
func TestHandOverCostsOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, size{nodes: 5, services: 100})
		writes := c.countWrites()
		c.wire = newWire(c, rand.New(rand.NewPCG(1, 19)))
		c.run(rand.New(rand.NewPCG(1, 20)), 1, func(*rand.Rand, *node) {
			time.Sleep(10 * time.Second)
			for _, x := range []struct {
				n      *node
				what   string
				end    func(*node)
				within time.Duration
				writes int64 // beside those of its node lease
			}{
				{c.nodes[0], "its link is down", func(n *node) { n.toggle(unplug) }, 200 * time.Millisecond, 1},
				{c.nodes[1], "stopped by SIGTERM", (*node).stop, 0, 3},
				{c.nodes[2], "stopped by SIGTERM", (*node).stop, 0, 3},
			} {
				writes.Store(0)
				x.end(x.n)
				time.Sleep(x.within)
				if k := writes.Load(); k > x.writes {
					t.Errorf("%s, %s: %d writes", x.n.name, x.what, k)
				}
				for range 20 {
					if text := c.unanswered(); text != "" {
						c.mu.Lock()
						c.fail(netip.Addr{}, c.nodes, "%s, %s: %s", x.n.name, x.what, text)
						c.mu.Unlock()
						return
					}
					time.Sleep(time.Second)
				}
			}
			for _, n := range c.nodes[1:3] {
				n.start()
			}
		})
	})
}

// TestHandOvers: the invariants hold while nodes hand over all that they have, and at that moment they, their successors or the API server fail.
func TestHandOvers(t *testing.T) {
	runFaults(t, 21, (*cluster).handOverFault)
}

// handOverFault has n hand over what it has, mostly with something wrong before, and something else a few milliseconds after;
// in some cases its successor is stranded, or it is a transferFault.
func (c *cluster) handOverFault(r *rand.Rand, n *node) {
	o := c.nodes[r.IntN(len(c.nodes))]
	switch k := r.IntN(8); {
	case k < 2 || o == n:
		c.transferFault(r, n)
		return
	case k == 2:
		c.strandSuccessor(r, n, func(o *node) { c.toggle(r, o, excluded) })
		return
	}
	switch r.IntN(8) {
	case 4:
		c.toggle(r, n, noAnswersToWrites)
	case 5:
		c.toggle(r, n, noAnswersToWrites)
		c.toggle(r, n, watchStuck)
	case 0:
		c.toggle(r, n, loseAnswers)
	case 1:
		c.toggle(r, n, watchStuck)
	case 2:
		c.toggle(r, o, cantWrite)
	case 3:
		c.toggle(r, o, watchStuck)
	}
	switch r.IntN(4) {
	case 0, 1:
		c.toggle(r, n, excluded)
	case 2:
		c.toggle(r, n, unplug)
	case 3:
		c.restart(r, n, "stopped by SIGTERM and started", n.stop)
		time.Sleep(150 * time.Millisecond) // it begins to hand over after that
	}
	time.Sleep(time.Duration(r.IntN(20000)) * time.Microsecond)
	switch r.IntN(10) {
	case 0:
		c.toggle(r, n, cut)
	case 1:
		c.toggleForAll(r, apiAway)
	case 2:
		c.restart(r, o, "the power fails", func() { o.kill(true) })
	case 3:
		c.restart(r, n, "killed and started", func() { n.kill(false) })
	case 4:
		c.restart(r, o, "killed and started", func() { o.kill(false) })
	case 5:
		c.toggle(r, o, excluded)
	case 6:
		c.restart(r, o, "stopped by SIGTERM and started", o.stop)
	case 7:
		c.toggle(r, o, cantWrite)
	case 8:
		c.toggle(r, n, loseAnswers)
	}
}
