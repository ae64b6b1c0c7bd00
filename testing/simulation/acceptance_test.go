package simulation

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// inCluster runs f in a cluster with heartbeats that has run for half a minute. Only f says what is wrong.
func inCluster(t *testing.T, seed uint64, s size, setUp func(*cluster), f func(*cluster)) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, s)
		c.broken = true // the invariants of other tests would report what f measures
		c.wire = newWire(c, rand.New(rand.NewPCG(seed, 115)))
		if setUp != nil {
			setUp(c)
		}
		for _, n := range c.nodes {
			n.start()
		}
		c.create()
		time.Sleep(30*time.Second + 500*time.Millisecond) // no renewal is under way
		f(c)
		if c.mu.Lock(); !c.apiAwaySince.IsZero() {
			c.mu.Unlock()
			c.toggleForAll(nil, apiAway)
			c.mu.Lock()
		}
		c.mu.Unlock()
		for _, n := range c.nodes {
			c.mu.Lock()
			clear(n.faults)
			n.applyFaults()
			c.resumed.Broadcast()
			c.mu.Unlock()
			c.wire.peersChanged(n)
		}
		time.Sleep(10 * time.Second)
		for _, n := range c.nodes {
			n.stop()
		}
	})
}

// observed is how VIPs were answered for while someone looked.
type observed struct {
	silent  map[netip.Addr]time.Duration // for how long a VIP was not answered, in all
	two     time.Duration                // for how long any was answered by two nodes
	lastTwo time.Duration                // when that was last, counted from the beginning
}

// worst returns for how long the VIP that was silent for longest was not answered.
func (o observed) worst() (d time.Duration) {
	for _, x := range o.silent {
		d = max(d, x)
	}
	return d
}

// observe looks at all VIPs each 10 ms for d, and calls each, which may be nil, before each look.
func (c *cluster) observe(d time.Duration, each func(since time.Duration)) observed {
	const step = 10 * time.Millisecond
	o := observed{silent: map[netip.Addr]time.Duration{}}
	for began := time.Now(); time.Since(began) < d; {
		time.Sleep(step)
		if each != nil {
			each(time.Since(began))
		}
		c.mu.Lock()
		two := false
		for _, s := range c.services {
			switch n := len(c.answers(s.Addresses[0], 0)); {
			case n == 0:
				o.silent[s.Addresses[0]] += step
			case n > 1:
				two = true
			}
		}
		c.mu.Unlock()
		if two {
			o.two, o.lastTwo = o.two+step, time.Since(began)
		}
	}
	return o
}

// ownerOf returns the node that answers for Service i.
func (c *cluster) ownerOf(i int) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answers(c.services[i].Addresses[0], 0)[0]
}

// pokeAll has every node make a plan.
func (c *cluster) pokeAll() {
	for _, n := range c.nodes {
		n.poke()
	}
}

// bindsOf returns how many addresses n has bound.
func (c *cluster) bindsOf(n *node) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(n.kernel)
}

// TestHandOverWithoutAnswer: a node hands its VIPs over, and learns neither the answer nor the event of that write,
// since its way to the API server fails at that moment; then the API server is away for all, or for it alone. No VIP is
// answered by two nodes for longer than a hand-over takes.
func TestHandOverWithoutAnswer(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		services int
		after    time.Duration // when the API server goes for all; 0: for the node alone, at once
	}{{1, 30 * ms}, {1, 1000 * ms}, {1, 2000 * ms}, {1, 0}, {12, 30 * ms}, {12, 1000 * ms}, {12, 0}} {
		t.Run(fmt.Sprintf("%d VIPs, %v", tt.services, tt.after), func(t *testing.T) {
			var hands, written atomic.Bool
			inCluster(t, 1, size{nodes: 3, services: tt.services}, func(c *cluster) {
				c.api.Refuse = func(l *coordinationv1.Lease) error {
					moves := l.Name == lease.TableName
					if hands.Load() && moves {
						written.Store(true)
					}
					return nil
				}
			}, func(c *cluster) {
				n := c.ownerOf(0)
				n.toggle(noAnswersToWrites)
				n.toggle(watchStuck)
				hands.Store(true)
				n.toggle(drained)
				c.pokeAll()
				for !written.Load() {
					time.Sleep(100 * time.Microsecond)
				}
				if tt.after == 0 {
					time.Sleep(30 * time.Millisecond)
					n.toggle(cut)
				}
				away := tt.after == 0
				o := c.observe(2*time.Minute, func(since time.Duration) {
					if !away && since >= tt.after {
						away = true
						c.toggleForAll(nil, apiAway)
					}
				})
				if o.lastTwo > 3100*time.Millisecond {
					t.Errorf("two nodes answered for %v, last after %v\n%s", o.two, o.lastTwo,
						c.explain(c.services[0].Addresses[0], c.nodes))
				}
			})
		})
	}
}

// TestAgentHangs: the agent of the node that is to get VIPs hangs in a kernel call, while its leases and heartbeats go
// on. Another node soon has the VIPs of one that is drained, stops, loses its link or its power.
func TestAgentHangs(t *testing.T) {
	for _, services := range []int{1, 12} {
		for name, leave := range map[string]func(*node){
			"drained":   func(n *node) { n.toggle(drained) },
			"SIGTERM":   func(n *node) { go n.stop() },
			"link down": func(n *node) { n.toggle(unplug) },
			"power":     func(n *node) { n.kill(true) },
		} {
			for other := range 2 { // one of them is to get the VIPs
				t.Run(fmt.Sprintf("%d VIPs, %s, %d", services, name, other), func(t *testing.T) {
					inCluster(t, 1, size{nodes: 3, services: services}, nil, func(c *cluster) {
						owner := c.ownerOf(0)
						c.nodes[(owner.id+1+other)%3].toggle(bindHangs)
						c.pokeAll()
						time.Sleep(100 * time.Millisecond)
						leave(owner)
						c.pokeAll()
						if d := c.observe(10*time.Second, nil).worst(); d > 3*time.Second {
							t.Errorf("a VIP was not answered for %v of 10 s", d)
						}
					})
				})
			}
		}
	}
}

// TestSlowWrites: writes take long for all alike, as etcd's disk is slow; of 5 nodes with 40 VIPs one loses its power,
// stops or is drained. Each of its VIPs moves once.
func TestSlowWrites(t *testing.T) {
	for how, leave := range map[string]func(*node){
		"power":   func(n *node) { n.kill(true) },
		"SIGTERM": func(n *node) { go n.stop() },
		"drained": func(n *node) { n.toggle(drained) },
	} {
		for _, delay := range []time.Duration{1600 * time.Millisecond, 2500 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s, %v", how, delay), func(t *testing.T) {
				var writes atomic.Int64
				inCluster(t, 1, size{nodes: 5, services: 40}, func(c *cluster) {
					c.api.Refuse = func(l *coordinationv1.Lease) error {
						if l.Name == lease.TableName {
							writes.Add(1)
						}
						return nil
					}
				}, func(c *cluster) {
					for _, n := range c.nodes {
						c.mu.Lock()
						n.slow.Lag, n.slow.Delay, n.slow.CommitDelay = 5*time.Millisecond, 3*time.Millisecond, delay
						c.mu.Unlock()
						n.toggle(slow)
					}
					time.Sleep(30 * time.Second)
					n := c.nodes[0]
					had, binds := c.bindsOf(n), c.binds()
					writes.Store(0)
					leave(n)
					c.pokeAll()
					o := c.observe(time.Minute, nil)
					t.Logf("it had %d VIPs: %d binds, %d writes of the table, silent for %v at worst, two answered for %v",
						had, c.binds()-binds, writes.Load(), o.worst(), o.two)
					if c.binds()-binds > had+12 || o.two > 10*time.Millisecond { // a frame's way, as we look
						t.Error("VIPs have moved more than once, or were answered by two")
					}
				})
			})
		}
	}
}

// TestKeeperWithoutWatch: the watch of the node that is to place VIPs, the first by name, is stuck. A node that dies is replaced
// as soon as ever, and Services that are new are placed.
func TestKeeperWithoutWatch(t *testing.T) {
	inCluster(t, 1, size{nodes: 4, services: 12}, nil, func(c *cluster) {
		c.change(0, func(s *vip.Service) { s.Ignore = true })
		time.Sleep(5 * time.Second)
		c.nodes[0].toggle(watchStuck)
		time.Sleep(time.Second)
		c.change(0, func(s *vip.Service) { s.Ignore = false })
		if d := c.observe(5*time.Second, nil).worst(); d > 500*time.Millisecond {
			t.Errorf("a new VIP was not answered for %v", d)
		}
		n := c.nodes[3]
		n.kill(true)
		if d := c.observe(5*time.Second, nil).worst(); d > time.Second {
			t.Errorf("a VIP of a node that died was not answered for %v", d)
		}
	})
}

// TestOptionChanges: an option that must be the same on all changes on one node after the other. When it is another on most, the
// node that has all VIPs hands them over, as a drained one does.
func TestOptionChanges(t *testing.T) {
	for name, options := range map[string]func(*vip.CommonOptions){
		"lb_class_name": func(o *vip.CommonOptions) { o.Class = "x" },
		"svc_election":  func(o *vip.CommonOptions) { o.Election = false },
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 1, size{nodes: 3, services: 6}, nil, func(c *cluster) {
				for _, n := range c.nodes[:2] {
					n.stop()
					n.options = options
					n.start()
					if o := c.observe(time.Minute, nil); o.worst() > 500*time.Millisecond || o.two > 100*time.Millisecond {
						t.Errorf("after %s: not answered for %v, by two for %v", n.name, o.worst(), o.two)
					}
				}
				if left := c.bindsOf(c.nodes[2]); left > 0 {
					t.Errorf("n3 still has %d VIPs", left)
				}
			})
		})
	}
}

// TestTableMeddledWith: whatever is made of the table by hand, again and again, no VIP moves, and none is without an answer.
func TestTableMeddledWith(t *testing.T) {
	inCluster(t, 1, size{nodes: 3, services: 12}, nil, func(c *cluster) {
		c.backup = c.api.Lease(vip.Key{Namespace: "kube-system", Name: lease.TableName})
		c.nodes[0].stop() // the backup is another than what is
		time.Sleep(5 * time.Second)
		c.nodes[0].start()
		time.Sleep(30 * time.Second)
		binds := c.binds()
		for i := range 12 {
			c.spoilTableAs(i % 4)
			if o := c.observe(time.Second, nil); o.worst() > 0 || o.two > 0 || c.binds() > binds {
				t.Errorf("%d: not answered for %v, by two for %v; %d VIPs have moved", i%4, o.worst(), o.two, c.binds()-binds)
			}
		}
	})
}

// TestTableRefused: the table can't be written, and watches are late; the VIPs of the nodes that are left stay as they are. Those
// of one that dies are answered once it can be written again.
func TestTableRefused(t *testing.T) {
	for _, lag := range []time.Duration{5 * time.Millisecond, 800 * time.Millisecond, 1600 * time.Millisecond} {
		var refuses atomic.Bool
		inCluster(t, 1, size{nodes: 4, services: 12}, func(c *cluster) {
			c.api.Refuse = func(l *coordinationv1.Lease) error {
				if refuses.Load() && l.Name == lease.TableName {
					return errors.New("a policy refuses it")
				}
				return nil
			}
		}, func(c *cluster) {
			refuses.Store(true)
			for _, n := range c.nodes {
				c.mu.Lock()
				n.slow = leasetest.Faults{Lag: lag, Delay: 3 * time.Millisecond}
				c.mu.Unlock()
				n.toggle(slow)
			}
			time.Sleep(10 * time.Second)
			n := c.nodes[0]
			had, binds := c.bindsOf(n), c.binds()
			n.kill(true)
			o := c.observe(time.Minute, nil)
			if len(o.silent) != had || c.binds() != binds {
				t.Errorf("watches are late by %v: %d VIPs were without an answer, of which it had %d; %d were bound", lag, len(o.silent), had, c.binds()-binds)
			}
			refuses.Store(false)
			if d := c.observe(10*time.Second, nil).worst(); d > 4*time.Second+lag {
				t.Errorf("watches are late by %v: a VIP is not answered for %v once the table can be written", lag, d)
			}
		})
	}
}

// TestGatewayAskedBefore: of two nodes that reach the API server by another network one is cut off the LAN, shortly
// after a heartbeat was late and its gateway answered. What the gateway answered before says nothing of now: the node
// that is cut off does not fence the other.
func TestGatewayAskedBefore(t *testing.T) {
	for seed := range uint64(20) {
		inCluster(t, seed, size{nodes: 2, services: 4}, func(c *cluster) { c.wire.realGateway = true }, func(c *cluster) {
			r := rand.New(rand.NewPCG(seed, 515))
			time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
			n1, n2 := c.nodes[0], c.nodes[1]
			c.wire.mu.Lock()
			c.wire.views[n2.id][n1.id].lateUntil = time.Now().Add(20 * time.Millisecond)
			c.wire.mu.Unlock()
			n2.wakeLeases()
			time.Sleep(time.Duration(50+r.IntN(1650)) * time.Millisecond)
			began := time.Now()
			n2.toggle(unheard)
			n2.toggle(unreached)
			o := c.observe(30*time.Second, nil)
			c.mu.Lock()
			defer c.mu.Unlock()
			for _, l := range c.history {
				if l.n == n2 && l.at.After(began) && strings.Contains(l.text, "the claims of a node are voided") {
					t.Errorf("seed %d: the node that is cut off has fenced the other: a VIP was not answered for %v", seed, o.worst())
				}
			}
		})
	}
}

// TestCutOffBesideRestarted: of two nodes, or three, one is stopped; another is cut off the LAN, though not from the
// API server; then the first is started again, in another epoch. The one that is cut off never hears that epoch, and
// still finds that it is cut off.
func TestCutOffBesideRestarted(t *testing.T) {
	for _, nodes := range []int{2, 3} {
		inCluster(t, 1, size{nodes: nodes, services: 6}, nil, func(c *cluster) {
			time.Sleep(30 * time.Second)
			n1, n2 := c.nodes[0], c.nodes[1]
			n1.stop()
			time.Sleep(5 * time.Second)
			n2.toggle(unheard)
			n2.toggle(unreached)
			time.Sleep(3 * time.Second)
			n1.start()
			if d := c.observe(time.Minute, nil).worst(); d > 5*time.Second {
				t.Errorf("%d nodes: a VIP was not answered for %v", nodes, d)
			}
		})
	}
}

// TestOneWayLink: one of 3 nodes, which reach the API server by another network, receives nothing any more on the VIPs' link,
// or nothing arrives that it sends. Its VIPs are answered by others within 0.8 s, as when its cable is out.
func TestOneWayLink(t *testing.T) {
	for _, what := range []faultKind{unreached, unheard} {
		worst := time.Duration(0)
		for seed := range uint64(10) {
			inCluster(t, seed, size{nodes: 3, services: 12}, nil, func(c *cluster) {
				c.nodes[seed%3].toggle(what)
				o := c.observe(20*time.Second, nil)
				worst = max(worst, o.worst())
				if o.worst() > 800*time.Millisecond || o.two > 0 {
					t.Errorf("%s, seed %d: not answered for %v, by two nodes for %v\n%s", what, seed, o.worst(), o.two,
						c.explain(netip.Addr{}, c.nodes))
				}
			})
		}
		t.Logf("%s: not answered for %v at worst", what, worst)
	}
}
