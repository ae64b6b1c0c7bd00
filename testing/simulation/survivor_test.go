package simulation

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// TestMostNodesEnd: most nodes, or most of the processes, end at once, and the API server does not. The node that is left keeps all that it has, though it reaches nobody and
// can't know whether it is cut off, though its watch shows late that they renewed, and takes the rest once the node leases of the others have been silent.
func TestMostNodesEnd(t *testing.T) {
	for _, tt := range []struct{ power, late bool }{{power: true}, {}, {power: true, late: true}} {
		power, late := tt.power, tt.late
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, size{nodes: 3, services: 30})
			c.wire = newWire(c, rand.New(rand.NewPCG(1, 27)))
			c.run(rand.New(rand.NewPCG(1, 28)), 1, func(*rand.Rand, *node) {
				time.Sleep(30 * time.Second)
				left := c.nodes[0]
				c.mu.Lock()
				has := map[netip.Addr]bool{}
				for a := range left.kernel {
					has[a] = true
				}
				c.mu.Unlock()
				if late {
					left.toggle(watchStuck)
					time.Sleep(3 * time.Second)
				}
				for _, n := range c.nodes[1:] {
					n.kill(power)
				}
				began, all := time.Now(), time.Duration(0) // until the node that is left answers for all
				for i := range 300 {
					time.Sleep(100 * time.Millisecond)
					if late && i == 30 {
						left.toggle(watchStuck) // ends
					}
					c.mu.Lock()
					for a := range has {
						if x := left.kernel[a]; x == nil || !time.Now().Before(x.until) {
							t.Errorf("power %v, late %v: %s is no longer answered for", power, late, a)
							delete(has, a)
						}
					}
					if all == 0 && !slices.ContainsFunc(c.services, func(s vip.Service) bool {
						who := c.answers(s.Addresses[0], 0)
						return len(who) != 1 || who[0] != left
					}) {
						all = time.Since(began)
					}
					c.mu.Unlock()
				}
				if power && !late && (all < 15*time.Second || all > 19*time.Second) {
					t.Errorf("it answers for all after %v, want 15 to 19 s", all) // docs/ownership.md
				}
				c.mu.Lock()
				for _, s := range c.services {
					if who := c.answers(s.Addresses[0], 0); len(who) != 1 || who[0] != left {
						t.Errorf("power %v: %s is answered by %d nodes half a minute later", power, s.Addresses[0], len(who))
					}
				}
				c.mu.Unlock()
				for _, n := range c.nodes[1:] {
					n.start()
				}
			})
		})
	}
}

// TestHalfIsStopped: of two nodes the one with the API server loses its power. The other holds on by the gateway alone, is stopped
// for a moment, and keeps its VIPs. So it does if the gateway does not answer for a moment.
func TestHalfIsStopped(t *testing.T) {
	for _, what := range []faultKind{hung, otherSide} {
		inCluster(t, 1, size{nodes: 2, services: 20}, func(c *cluster) { c.wire.realGateway = true }, func(c *cluster) {
			off, left := c.nodes[0], c.nodes[1]
			c.toggleForAll(nil, apiAway)
			off.kill(true)
			time.Sleep(time.Minute)
			had := c.bindsOf(left)
			left.toggle(what)
			time.Sleep(2 * time.Second)
			left.toggle(what)
			time.Sleep(10 * time.Second)
			if has := c.bindsOf(left); has != had || had == 0 {
				t.Errorf("%s: of %d VIPs it has %d left", what, had, has)
			}
		})
	}
}

// TestAPIServerGoesAfterAHandOver: one of two nodes hands over by SIGTERM, and a moment later the API server is away for minutes, as
// when the only node with an API server is rebooted. The one that is left has all, and holds it alone.
func TestAPIServerGoesAfterAHandOver(t *testing.T) {
	for i := range 8 {
		after := time.Duration(10+10*i) * time.Millisecond // the other one has seen by then what it was given
		apiFirst := i%2 == 0                               // which is back first
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, size{nodes: 2, services: 20})
			var stops atomic.Bool
			written := make(chan struct{}, 1000)
			c.api.Refuse = func(l *coordinationv1.Lease) error {
				if stops.Load() && l.Name == lease.TableName {
					written <- struct{}{}
				}
				return nil
			}
			c.wire = newWire(c, rand.New(rand.NewPCG(uint64(i), 29)))
			c.run(rand.New(rand.NewPCG(1, 30)), 1, func(*rand.Rand, *node) {
				time.Sleep(30 * time.Second)
				c.mu.Lock()
				c.maxSilence = 3 * time.Second
				c.mu.Unlock()
				n := c.nodes[0]
				stops.Store(true)
				began, ended := time.Now(), make(chan struct{})
				go func() {
					n.stop()
					close(ended)
				}()
				<-written
				time.Sleep(after)
				c.toggleForAll(nil, apiAway)
				<-ended
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("it ended after %v", took)
				}
				time.Sleep(2 * time.Minute)
				stops.Store(false)
				if !apiFirst {
					n.start()
					time.Sleep(10 * time.Second)
				}
				c.toggleForAll(nil, apiAway)
				time.Sleep(10 * time.Second)
				if apiFirst {
					n.start()
					time.Sleep(10 * time.Second)
				}
				c.mu.Lock()
				c.maxSilence = 0
				c.mu.Unlock()
			})
		})
	}
}
