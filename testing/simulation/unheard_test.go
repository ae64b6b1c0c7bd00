package simulation

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestNotHeardAndCutFromTheAPIServer: most nodes lose the API server, and hold on to what they have; one still reaches it, and a firewall on it drops
// what it is sent, heartbeats too. It fences the others for their silence, as it must, since they may have ended. But their kernels answer for the VIPs, and
// nobody else does as long as that is so: neither for these nor for what they move among themselves when one of them dies.
func TestNotHeardAndCutFromTheAPIServer(t *testing.T) {
	for _, dies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, size{nodes: 5, services: 40})
			c.wire = newWire(c, rand.New(rand.NewPCG(1, 25)))
			c.run(rand.New(rand.NewPCG(1, 26)), 1, func(*rand.Rand, *node) {
				time.Sleep(30 * time.Second)
				c.mu.Lock()
				c.strict = true
				c.mu.Unlock()
				last := c.nodes[4]
				last.toggle(blocked)
				for _, n := range c.nodes[:4] {
					n.toggle(cut)
				}
				if dies {
					time.Sleep(10 * time.Second)
					c.nodes[0].kill(true)
				}
				time.Sleep(2 * time.Minute)
				for _, n := range c.nodes[:4] {
					n.toggle(cut)
				}
				time.Sleep(10 * time.Second)
				last.toggle(blocked)
				time.Sleep(10 * time.Second)
				c.mu.Lock()
				c.strict = false
				c.mu.Unlock()
				if dies {
					c.nodes[0].start()
				}
			})
		})
	}
}
