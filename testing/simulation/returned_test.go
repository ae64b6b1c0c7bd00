package simulation

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestOwnerReturnsWithTheAPIServer: the API server was away for all, VIPs of a node whose process was killed were moved without it, and then both are
// back. The new process reads what is written, while the watches of the heirs may still be stuck: it acts on none of these VIPs, and they stay.
func TestOwnerReturnsWithTheAPIServer(t *testing.T) {
	// Renewals that hang end 3 to 5 s after the API server is back: the owner is back before them, among them, and after they have fenced it.
	for _, after := range []time.Duration{0, 500 * time.Millisecond, 2 * time.Second, 3 * time.Second, 4 * time.Second, 6 * time.Second} {
		for i := range 4 {
			power, stuck := i%2 > 0, i > 1
			t.Run(fmt.Sprintf("after %v, power cut %v, watches stuck %v", after, power, stuck), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, size{nodes: 5, services: 40})
					c.wire = newWire(c, rand.New(rand.NewPCG(1, 23)))
					c.run(rand.New(rand.NewPCG(1, 24)), 1, func(*rand.Rand, *node) { c.returnTogether(after, power, stuck) })
				})
			})
		}
	}
}

// returnTogether ends the first node while the API server is away, and starts it again so long after that is back, while the watches of the others may be stuck.
func (c *cluster) returnTogether(after time.Duration, power, stuck bool) {
	time.Sleep(30 * time.Second)
	c.toggleForAll(nil, apiAway)
	time.Sleep(10 * time.Second)
	owner, others := c.nodes[0], c.nodes[1:]
	owner.kill(power)
	time.Sleep(10 * time.Second)
	c.mu.Lock()
	c.strict, c.maxSilence = true, 100*time.Millisecond
	c.mu.Unlock()
	before := c.binds()
	for _, n := range others {
		if stuck {
			n.toggle(watchStuck)
		}
	}
	c.toggleForAll(nil, apiAway)
	time.Sleep(after)
	owner.start()
	time.Sleep(4 * time.Second)
	for _, n := range others {
		if stuck {
			n.toggle(watchStuck)
		}
	}
	time.Sleep(15 * time.Second)
	moved := c.binds() - before
	c.mu.Lock()
	defer c.mu.Unlock()
	if moved > 0 {
		c.fail(c.services[0].Addresses[0], c.nodes, "%d VIPs were bound, want none", moved)
	}
	c.strict, c.maxSilence = false, 0
}
