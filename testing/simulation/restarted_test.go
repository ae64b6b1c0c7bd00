package simulation

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// TestRestartedWhileCutOff: a node that is cut off the VIPs' LAN, and reaches the API server, is given no VIP when its Herald is restarted meanwhile, though that has
// never heard another node: no new one, nor those of a node that stops. It takes some again once the LAN is whole.
func TestRestartedWhileCutOff(t *testing.T) {
	restarts := map[string]func(n *node){
		"killed": func(n *node) { n.kill(false) }, "stopped": (*node).stop, "switched off": func(n *node) { n.kill(true) },
	}
	for name, end := range restarts {
		for _, what := range []faultKind{otherSide, unheard, unreached} {
			t.Run(fmt.Sprint(name, ", ", what), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					c := newCluster(t, size{nodes: 3, services: 40})
					c.wire = newWire(c, rand.New(rand.NewPCG(1, 25)))
					c.run(rand.New(rand.NewPCG(1, 26)), 1, func(*rand.Rand, *node) {
						n, last := c.nodes[0], len(c.services)-1
						c.change(last, func(s *vip.Service) { s.Ignore = true })
						time.Sleep(30 * time.Second)
						n.toggle(what)
						time.Sleep(time.Minute)
						end(n)
						time.Sleep(2 * time.Second)
						n.start()
						time.Sleep(30 * time.Second)
						c.change(last, func(s *vip.Service) { s.Ignore = false })
						time.Sleep(10 * time.Second)
						c.checkAllAnswered("40 s after it was restarted", n)
						c.nodes[1].stop()
						time.Sleep(time.Minute)
						c.checkAllAnswered("a minute after another one was stopped", n)
						c.nodes[1].start()
						n.toggle(what)
						time.Sleep(30 * time.Second)
						c.nodes[2].stop()
						time.Sleep(30 * time.Second)
						c.mu.Lock()
						if len(n.kernel) == 0 {
							t.Error("it is given no VIP of a node that stops half a minute after the LAN was whole again")
						}
						c.mu.Unlock()
						c.nodes[2].start()
					})
				})
			})
		}
	}
}

// TestBootsWithADeadLink: a node that was stopped for so long that the others have forgotten it is booted with a link of VIPs that is up, and carries nothing. Nobody has
// ever heard it, so nobody finds it dead, and it finds nobody dead. It has no VIP some seconds later, whether it is given some before or after, and takes new ones once its link is whole.
func TestBootsWithADeadLink(t *testing.T) {
	for _, nodes := range []int{2, 3, 5} {
		for _, faults := range [][]faultKind{{otherSide}, {unreached}, {unheard, unreached}} {
			for _, early := range []bool{true, false} {
				t.Run(fmt.Sprint(nodes, " nodes, ", faults, ", undrained at once ", early), func(t *testing.T) {
					t.Parallel()
					synctest.Test(t, func(t *testing.T) {
						c := newCluster(t, size{nodes: nodes, services: 40})
						c.wire = newWire(c, rand.New(rand.NewPCG(1, 43)))
						c.run(rand.New(rand.NewPCG(1, 44)), 1, func(*rand.Rand, *node) { c.bootWithADeadLink(faults, early) })
					})
				})
			}
		}
	}
}

func (c *cluster) bootWithADeadLink(faults []faultKind, early bool) {
	n := c.nodes[0]
	time.Sleep(30 * time.Second)
	n.toggle(drained)
	time.Sleep(5 * time.Second)
	n.stop()
	for _, what := range faults {
		n.toggle(what)
	}
	ignore := func(first int, is bool) {
		for i := range 5 {
			c.change(first+i, func(s *vip.Service) { s.Ignore = is })
		}
	}
	ignore(0, true)
	ignore(5, true)
	time.Sleep(90 * time.Second)
	c.wire.forget(n)
	n.start()
	time.Sleep(time.Second)
	if !early {
		time.Sleep(9 * time.Second)
	}
	n.toggle(drained)
	ignore(0, false)
	if early {
		time.Sleep(9 * time.Second)
	}
	time.Sleep(time.Second)
	c.checkAllAnswered("soon after it was undrained", n)
	for _, what := range faults {
		n.toggle(what)
	}
	time.Sleep(5 * time.Second)
	ignore(5, false)
	time.Sleep(5 * time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(n.kernel) == 0 {
		c.t.Error("it is given no new VIP though it is heard")
	}
}

// checkAllAnswered checks that all VIPs are answered, and that n has none.
func (c *cluster) checkAllAnswered(when string, n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	silent := 0
	for _, s := range c.services {
		if !s.Ignore && len(c.answers(s.Addresses[0], 0)) == 0 {
			silent++
		}
	}
	if silent > 0 || len(n.kernel) > 0 {
		c.t.Errorf("%s: %d of %d VIPs are not answered, and %s, which is cut off, has %d", when, silent, len(c.services), n.name, len(n.kernel))
	}
}
