package simulation

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/quorum"
)

// TestCutOffButForTheVIPs: VIPs are on a link without heartbeats. Half of the nodes lose both others, the API server and the gateway there, and live on:
// the other half fences them at once, and binds nothing that they answer for until their right has ended by their own clock.
func TestCutOffButForTheVIPs(t *testing.T) {
	late := quorum.Timing{LeaseDuration: 60 * time.Second, RenewDeadline: 40 * time.Second, RetryPeriod: 2 * time.Second}
	for _, timing := range []quorum.Timing{defaultTiming, kubeVIPTiming, late} {
		for _, nodes := range []int{2, 4} {
			for _, power := range []bool{false, true} {
				t.Run(fmt.Sprint(timing.RenewDeadline, " ", nodes, " nodes, power ", power), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						c := newCluster(t, size{nodes: nodes, services: 20, timing: timing, apart: true})
						c.wire = newWire(c, rand.New(rand.NewPCG(1, 41)))
						c.run(rand.New(rand.NewPCG(1, 42)), 1, func(*rand.Rand, *node) {
							time.Sleep(30 * time.Second)
							c.mu.Lock()
							c.strict, c.maxSilence = true, 300*time.Millisecond
							if power {
								c.maxSilence = 1500 * time.Millisecond
							}
							c.mu.Unlock()
							for _, n := range c.nodes[:nodes/2] {
								if power {
									n.kill(true)
									continue
								}
								n.toggle(cut)
								n.toggle(otherSide)
							}
							time.Sleep(time.Minute)
							c.mu.Lock()
							for _, n := range c.nodes[:nodes/2] {
								if len(n.kernel) > 0 {
									t.Errorf("%s still has %d VIPs", n.name, len(n.kernel))
								}
							}
							c.strict, c.maxSilence = false, 0
							c.mu.Unlock()
							for _, n := range c.nodes[:nodes/2] {
								if power {
									n.start()
									continue
								}
								n.toggle(cut)
								n.toggle(otherSide)
							}
						})
					})
				})
			}
		}
	}
}

// TestHeirKnowsTheTableFirst: VIPs are on a link without heartbeats. A node loses both others and the API server, and lives on; an heir whose watch
// is stuck reads the table before it sees the fence, and binds nothing that the old owner answers for.
func TestHeirKnowsTheTableFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, size{nodes: 4, services: 20, apart: true})
		c.wire = newWire(c, rand.New(rand.NewPCG(1, 43)))
		c.run(rand.New(rand.NewPCG(1, 44)), 1, func(*rand.Rand, *node) {
			time.Sleep(30 * time.Second)
			c.mu.Lock()
			c.strict, c.maxSilence = true, 300*time.Millisecond
			c.mu.Unlock()
			first, heir := c.nodes[0], c.nodes[3]
			had := c.bindsOf(heir)
			heir.toggle(watchStuck)
			time.Sleep(time.Second)
			first.toggle(cut)
			first.toggle(otherSide)
			time.Sleep(5 * time.Second)
			heir.toggle(watchStuck)
			time.Sleep(20 * time.Second)
			if c.bindsOf(heir) == had {
				t.Error("it is no heir")
			}
			c.mu.Lock()
			c.strict, c.maxSilence = false, 0
			c.mu.Unlock()
		})
	})
}

// TestHoldsOnBesideTheAPIServer: VIPs are on a link without heartbeats. Most nodes, or the one with the gateway of two, lose the API server, and the
// others lose these, but not it: those hold on, these fence them, and bind nothing that they answer for as long as that lasts.
func TestHoldsOnBesideTheAPIServer(t *testing.T) {
	for _, nodes := range []int{2, 5} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, size{nodes: nodes, services: 20, apart: true})
			c.wire = newWire(c, rand.New(rand.NewPCG(1, 45)))
			c.run(rand.New(rand.NewPCG(1, 46)), 1, func(*rand.Rand, *node) {
				time.Sleep(30 * time.Second)
				c.mu.Lock()
				c.strict, c.maxSilence = true, 300*time.Millisecond
				c.mu.Unlock()
				hold, rest := c.nodes[:(nodes+1)/2], c.nodes[(nodes+1)/2:]
				toggle := func() {
					for _, n := range hold {
						n.toggle(cut)
					}
					for _, n := range rest {
						n.toggle(otherSide)
					}
				}
				toggle()
				time.Sleep(time.Minute)
				toggle()
				time.Sleep(10 * time.Second)
				c.mu.Lock()
				c.strict, c.maxSilence = false, 0
				c.mu.Unlock()
			})
		})
	}
}
