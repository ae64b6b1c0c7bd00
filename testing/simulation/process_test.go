package simulation

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestProcessesThatEnd: a process that crashes or hangs is no node that died. As long as its kernel answers for its VIPs no other node does, and
// nothing moves if it comes back by then. A node that nobody hears, since what it transmits does not arrive, is one, and moves none but its own VIPs; so does one that nothing arrives for, and it has to wait until it
// knows from the API server that the others live.
func TestProcessesThatEnd(t *testing.T) {
	const long = 15 * time.Second
	tests := []struct {
		name    string
		silence time.Duration // at most
		moves   int           // of how many nodes the VIPs move, each once
		do      func(c *cluster)
	}{
		{"crash and restart", time.Millisecond, 0, func(c *cluster) {
			c.nodes[0].kill(false)
			time.Sleep(2 * time.Second)
			c.nodes[0].start()
			time.Sleep(long)
		}},
		{"crash and restart at the last moment", time.Millisecond, 0, func(c *cluster) {
			c.nodes[0].kill(false)
			time.Sleep(3200 * time.Millisecond)
			c.nodes[0].start()
			time.Sleep(long)
		}},
		{"crash", 100 * time.Millisecond, 1, func(c *cluster) {
			c.nodes[0].kill(false)
			time.Sleep(long)
			c.nodes[0].start()
			time.Sleep(long)
		}},
		{"crash, and restart when it was fenced", 100 * time.Millisecond, 1, func(c *cluster) {
			c.nodes[0].kill(false)
			time.Sleep(4300 * time.Millisecond)
			c.nodes[0].start()
			time.Sleep(long)
		}},
		{"two crash at once", 100 * time.Millisecond, 2, func(c *cluster) {
			c.nodes[0].kill(false)
			c.nodes[1].kill(false)
			time.Sleep(long)
			c.nodes[0].start()
			c.nodes[1].start()
			time.Sleep(long)
		}},
		{"crash, and then the power fails", time.Second, 1, func(c *cluster) {
			c.nodes[0].kill(false)
			time.Sleep(2 * time.Second)
			c.nodes[0].kill(true)
			time.Sleep(long)
			c.nodes[0].start()
			time.Sleep(long)
		}},
		{"hangs for three seconds", time.Millisecond, 0, func(c *cluster) {
			c.nodes[0].toggle(hung)
			time.Sleep(3 * time.Second)
			c.nodes[0].toggle(hung)
			time.Sleep(long)
		}},
		{"hangs and wakes up", 100 * time.Millisecond, 1, func(c *cluster) {
			c.nodes[0].toggle(hung)
			time.Sleep(long)
			c.nodes[0].toggle(hung)
			time.Sleep(long)
		}},
		{"hangs, and wakes up when it was fenced", 100 * time.Millisecond, 1, func(c *cluster) {
			c.nodes[0].toggle(hung)
			time.Sleep(4600 * time.Millisecond)
			c.nodes[0].toggle(hung)
			time.Sleep(long)
		}},
		{"hangs, and is cut", time.Second, 1, func(c *cluster) {
			c.nodes[0].toggle(hung)
			time.Sleep(2 * time.Second)
			c.nodes[0].toggle(unplug)
			time.Sleep(long)
			c.nodes[0].toggle(unplug)
			c.nodes[0].toggle(hung)
			time.Sleep(long)
		}},
		{"most hang for two and a half seconds each while the API server is away", time.Millisecond, 0, func(c *cluster) {
			c.toggleForAll(nil, apiAway)
			time.Sleep(20 * time.Second)
			for _, n := range c.nodes[:3] {
				n.toggle(hung)
				time.Sleep(2500 * time.Millisecond)
				n.toggle(hung)
				time.Sleep(long)
			}
			c.toggleForAll(nil, apiAway)
			time.Sleep(long)
		}},
		{"nothing arrives that it transmits", time.Second, 1, func(c *cluster) {
			c.nodes[0].toggle(unheard)
			time.Sleep(long)
			c.nodes[0].toggle(unheard)
			time.Sleep(long)
		}},
		{"nothing arrives that it transmits, while another hangs", time.Second, 1, func(c *cluster) {
			c.nodes[0].toggle(unheard)
			time.Sleep(1400 * time.Millisecond)
			c.nodes[1].toggle(hung)
			time.Sleep(950 * time.Millisecond)
			c.nodes[0].toggle(unheard)
			time.Sleep(1500 * time.Millisecond)
			c.nodes[1].toggle(hung)
			time.Sleep(long)
		}},
		{"nothing arrives for it", 6 * time.Second, 1, func(c *cluster) {
			c.nodes[0].toggle(unreached)
			time.Sleep(long)
			c.nodes[0].toggle(unreached)
			time.Sleep(long)
		}},
		{"the LAN is away for all, though their links are up", 15 * time.Second, 0, allAtOnce(unheard, unreached)},
		{"all cables are out, as when a switch restarts", 11 * time.Second, 5, allAtOnce(unplug)},
		{"crash while the API server is away", 100 * time.Millisecond, 1, func(c *cluster) {
			c.toggleForAll(nil, apiAway)
			time.Sleep(20 * time.Second)
			c.nodes[0].kill(false)
			time.Sleep(long)
			c.toggleForAll(nil, apiAway)
			time.Sleep(long)
			c.nodes[0].start()
			time.Sleep(long)
		}},
		{"hangs while the API server is away", 100 * time.Millisecond, 1, func(c *cluster) {
			c.toggleForAll(nil, apiAway)
			time.Sleep(20 * time.Second)
			c.nodes[0].toggle(hung)
			time.Sleep(long)
			c.toggleForAll(nil, apiAway)
			time.Sleep(long)
			c.nodes[0].toggle(hung)
			time.Sleep(long)
		}},
		{"hangs and wakes up while the API server is away", 100 * time.Millisecond, 1, func(c *cluster) {
			c.toggleForAll(nil, apiAway)
			time.Sleep(20 * time.Second)
			c.nodes[0].toggle(hung)
			time.Sleep(4600 * time.Millisecond)
			c.nodes[0].toggle(hung)
			time.Sleep(long)
			c.toggleForAll(nil, apiAway)
			time.Sleep(long)
		}},
		{"stopped by SIGTERM while the API server is away", 500 * time.Millisecond, 1, func(c *cluster) {
			c.toggleForAll(nil, apiAway)
			time.Sleep(20 * time.Second)
			c.nodes[0].stop()
			time.Sleep(long)
			c.toggleForAll(nil, apiAway)
			time.Sleep(long)
			c.nodes[0].start()
			time.Sleep(long)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				nodes := 5
				if strings.HasPrefix(tt.name, "nothing arrives for it") {
					nodes = 3 // of more, one may not be found dead yet when this node finds itself isolated
				}
				c := newCluster(t, size{nodes: nodes, services: 40})
				c.wire = newWire(c, rand.New(rand.NewPCG(1, 21)))
				c.run(rand.New(rand.NewPCG(1, 22)), 1, func(*rand.Rand, *node) {
					time.Sleep(30 * time.Second)
					c.mu.Lock()
					c.strict, c.maxSilence = true, tt.silence
					want := 0
					for _, n := range c.nodes[:tt.moves] {
						want += len(n.kernel)
					}
					before := c.eventCount["binds"]
					c.mu.Unlock()
					tt.do(c)
					c.mu.Lock()
					if got := c.eventCount["binds"] - before; got != want {
						t.Errorf("%d VIPs were bound, want %d", got, want)
					}
					c.strict, c.maxSilence = false, 0
					c.mu.Unlock()
				})
			})
		})
	}
}

// allAtOnce does to all nodes what a switch does that restarts: all lose their links at once, and have them back one by one.
func allAtOnce(faults ...faultKind) func(c *cluster) {
	return func(c *cluster) {
		for _, n := range c.nodes {
			for _, what := range faults {
				n.toggle(what)
			}
		}
		time.Sleep(10 * time.Second)
		for _, n := range c.nodes {
			for _, what := range faults {
				n.toggle(what)
				time.Sleep(20 * time.Millisecond)
			}
		}
		time.Sleep(15 * time.Second)
	}
}

// TestHangsInAPass: a process that hangs in the middle of a pass, and is fenced by others that do not reach its node meanwhile, gives its VIPs
// up at once when it goes on: it does not rest after that pass as if it had worked for so long.
func TestHangsInAPass(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, size{nodes: 12, services: 60, pass: 20 * time.Millisecond})
				c.wire = newWire(c, rand.New(rand.NewPCG(seed, 21)))
				c.run(rand.New(rand.NewPCG(1, 22)), 1, func(*rand.Rand, *node) {
					time.Sleep(30 * time.Second)
					n := c.nodes[0]
					n.toggle(hung)
					time.Sleep(160 * time.Millisecond)
					n.toggle(otherSide)
					time.Sleep(900 * time.Millisecond)
					n.toggle(otherSide)
					time.Sleep(340 * time.Millisecond)
					n.toggle(hung)
					time.Sleep(500 * time.Millisecond)
					c.mu.Lock()
					defer c.mu.Unlock()
					for _, s := range c.services {
						if who := c.answers(s.Addresses[0], 0); len(who) != 1 || who[0] == n {
							t.Errorf("%s is answered by %d nodes", s.Addresses[0], len(who))
						}
					}
				})
			})
		})
	}
}
