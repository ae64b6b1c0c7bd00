package simulation

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// TestNodeWithoutServices: a node with svc_enable=false, the first by name, or one that serves another class, delays no move, gets
// no VIP, and clears no status, while another node stops, one is excluded, and one loses its power.
func TestNodeWithoutServices(t *testing.T) {
	t.Run("svc_enable=false", func(t *testing.T) { nodeWithoutServices(t, func(n *node) { n.noServices = true }) })
	t.Run("another class", func(t *testing.T) { nodeWithoutServices(t, func(n *node) { n.otherClass = true }) })
}

func nodeWithoutServices(t *testing.T, without func(*node)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, size{nodes: 4, services: 30})
		without(c.nodes[0])
		c.wire = newWire(c, rand.New(rand.NewPCG(1, 31)))
		c.run(rand.New(rand.NewPCG(1, 32)), 1, func(*rand.Rand, *node) {
			time.Sleep(20 * time.Second)
			watch := func(d time.Duration) {
				for range d / (50 * time.Millisecond) {
					time.Sleep(50 * time.Millisecond)
					c.mu.Lock()
					for _, s := range c.services {
						if len(s.Ingress) == 0 {
							c.fail(s.Addresses[0], c.nodes, "%s has no status", s.Key)
						}
					}
					if n := len(c.nodes[0].kernel); n > 0 {
						c.fail(netip.Addr{}, c.nodes[:1], "n1 has %d VIPs", n)
					}
					c.mu.Unlock()
				}
			}
			c.mu.Lock()
			c.maxSilence = 10 * time.Millisecond
			c.mu.Unlock()
			c.nodes[1].stop()
			watch(5 * time.Second)
			c.nodes[1].start()
			watch(5 * time.Second)
			c.nodes[2].toggle(excluded)
			watch(5 * time.Second)
			c.nodes[2].toggle(excluded)
			watch(5 * time.Second)
			c.mu.Lock()
			c.maxSilence = time.Second
			c.mu.Unlock()
			c.nodes[3].kill(true)
			watch(1500 * time.Millisecond)
			if text := c.unanswered(); text != "" {
				t.Errorf("%s is dead: %s", c.nodes[3].name, text)
			}
			watch(4 * time.Second)
			watch(30 * time.Second)
			c.nodes[3].start()
			watch(10 * time.Second)
			c.mu.Lock()
			c.maxSilence = 0
			c.mu.Unlock()
		})
	})
}
