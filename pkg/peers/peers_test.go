package peers_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

const port = 7947

// A cluster is nodes n0, n1... on one simulated link.
type cluster struct {
	t         *testing.T
	net       *network
	addresses map[string]netip.AddrPort
	nodes     []*node
}

type node struct {
	*peers.Peers
	name string
	addr netip.Addr // at first
	stop context.CancelFunc
	done chan struct{}
	log  *check.Buffer

	mu    sync.Mutex
	keys  [][]byte
	moved *netip.Addr // its address now, if it has changed
}

func (n *node) address() netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.moved != nil {
		return *n.moved
	}
	return n.addr
}

func (n *node) setAddr(a netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.moved = &a
}

func (n *node) setKeys(keys ...[]byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keys = keys
}

var keyA, keyB, keyC = bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32), bytes.Repeat([]byte{3}, 32)

// newCluster starts n nodes, and waits until all are alive for each other, and were probed.
func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	c := &cluster{t: t, net: newNetwork(1), addresses: make(map[string]netip.AddrPort)}
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		c.addresses[fmt.Sprintf("n%d", i)] = netip.AddrPortFrom(addr, port)
		c.nodes = append(c.nodes, &node{name: fmt.Sprintf("n%d", i), addr: addr, keys: [][]byte{keyA}})
	}
	for _, n := range c.nodes {
		c.start(n)
	}
	c.await("all are alive for all", 5*time.Second, func() bool {
		return !slices.ContainsFunc(c.nodes, func(n *node) bool { return c.countInState(n, vip.Alive) != len(c.nodes)-1 })
	})
	time.Sleep(2 * time.Second) // until each has probed all others
	return c
}

// start starts the process of a node.
func (c *cluster) start(n *node) {
	ctx, cancel := context.WithCancel(c.t.Context())
	n.log = &check.Buffer{}
	n.Peers = peers.New(peers.Options{
		Node: n.name, Port: port, Log: slog.New(slog.NewTextHandler(n.log, nil)), Poke: func() {},
		Keys:      func() [][]byte { n.mu.Lock(); defer n.mu.Unlock(); return n.keys },
		Address:   n.address,
		Nodes:     otherNodes(n.name, c.addresses),
		Answers:   func(ctx context.Context, a netip.Addr) bool { return c.net.answers(n.address())(ctx, a) },
		Transport: c.net,
	})
	n.stop, n.done = cancel, make(chan struct{})
	p, done := n.Peers, n.done
	go func() {
		defer close(done)
		if err := p.Run(ctx); err != nil {
			c.t.Error(err)
		}
	}()
}

// end stops all, so that the bubble can end.
func (c *cluster) end() {
	for _, n := range c.nodes {
		n.end()
	}
}

// countInState returns how many other nodes are in a state for n.
func (c *cluster) countInState(n *node, state vip.Liveness) int {
	k := 0
	for _, s := range n.Statuses() {
		if s.Liveness == state {
			k++
		}
	}
	return k
}

func (c *cluster) state(of, by int) vip.Liveness {
	return c.nodes[by].Statuses()[c.nodes[of].name].Liveness
}

// await waits until ok, and returns how long that took.
func (c *cluster) await(what string, within time.Duration, ok func() bool) time.Duration {
	c.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > within {
			c.fail("not within its time: " + what)
		}
		time.Sleep(max(5*time.Millisecond, time.Duration(len(c.nodes))*time.Millisecond/4))
	}
	return time.Since(began)
}

// stays fails the test unless ok is true for so long.
func (c *cluster) stays(what string, d time.Duration, ok func() bool) {
	c.t.Helper()
	for began := time.Now(); time.Since(began) < d; time.Sleep(10 * time.Millisecond) {
		if !ok() {
			c.fail(fmt.Sprintf("only for %v: %s", time.Since(began), what))
		}
	}
}

// fail ends the test, with what each node knows of the others.
func (c *cluster) fail(why string) {
	c.t.Helper()
	for _, n := range c.nodes {
		for name, s := range n.Statuses() {
			c.t.Logf("for %s, %s is %s (%s)", n.name, name, s.Liveness, n.Why(name))
		}
	}
	c.t.Fatal(why)
}

// nobodyDead reports whether no node is dead for any.
func (c *cluster) nobodyDead() bool {
	return !slices.ContainsFunc(c.nodes, func(n *node) bool { return c.countInState(n, vip.Dead) > 0 })
}

// awaitBack waits until a node and all others are alive for each other.
func (c *cluster) awaitBack(of int, within time.Duration) {
	c.t.Helper()
	c.await("it to be back", within, func() bool {
		return c.othersSee(of, vip.Alive) && c.countInState(c.nodes[of], vip.Alive) == len(c.nodes)-1
	})
}

// end ends the process of a node.
func (n *node) end() {
	n.stop()
	<-n.done
}

// othersSee reports whether a node is in a state for all other nodes, but those in but.
func (c *cluster) othersSee(of int, state vip.Liveness, but ...int) bool {
	for by := range c.nodes {
		if by != of && !slices.Contains(but, by) && c.state(of, by) != state {
			return false
		}
	}
	return true
}

// withCluster runs f with a cluster of n nodes in a synctest bubble.
func withCluster(t *testing.T, n int, f func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, n)
		defer c.end()
		f(c)
	})
}

func TestCutNodeIsDead(t *testing.T) {
	for n, limit := range map[int]time.Duration{3: 500 * time.Millisecond, 10: 500 * time.Millisecond, 30: time.Second} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			withCluster(t, n, func(c *cluster) {
				c.net.cut(c.nodes[1].addr, true)
				took := c.await("the cut node to be dead", 5*time.Second, func() bool { return c.othersSee(1, vip.Dead) })
				check.Between(t, took, 0, limit, "it took")
				t.Logf("dead for all after %v", took)
				c.await("the cut node to see nobody", 5*time.Second, func() bool { return c.countInState(c.nodes[1], vip.Dead) == n-1 })
				c.net.endFaults()
				c.awaitBack(1, time.Second)
			})
		})
	}
}

func TestStoppedNodeIsDeadAtOnce(t *testing.T) {
	withCluster(t, 3, func(c *cluster) {
		c.nodes[1].stop()
		took := c.await("it to be dead", time.Second, func() bool { return c.othersSee(1, vip.Dead) })
		check.Between(t, took, 0, 20*time.Millisecond, "it took")
		check.Equal(t, c.nodes[0].Why("n1"), "it has stopped", "why")
		check.Equal(t, c.nodes[0].Statuses()["n1"].Stopping, true, "its status says that it stops")
		<-c.nodes[1].done
		c.start(c.nodes[1])
		c.awaitBack(1, time.Second)
	})
}

func TestBlockedPortIsSuspect(t *testing.T) {
	withCluster(t, 3, func(c *cluster) {
		c.net.block(c.nodes[1].addr, true)
		c.stays("a node whose port is blocked is not dead", 10*time.Second, c.nobodyDead)
		if !c.othersSee(1, vip.Suspect) || c.countInState(c.nodes[1], vip.Suspect) != 2 {
			t.Error("the blocked port was not noticed")
		}
		for _, n := range c.nodes {
			for name, s := range n.Statuses() {
				if s.Unanswered {
					t.Errorf("%s finds that %s does not answer", n.name, name)
				}
			}
		}
		if c.state(2, 0) != vip.Alive || c.state(0, 2) != vip.Alive {
			t.Error("the other two don't see each other")
		}
		check.Equal(t, strings.Count(c.nodes[0].log.String(), "level=WARN"), 1, "warnings")
		c.net.cut(c.nodes[1].addr, true)
		c.await("a suspect node that is gone to be dead", 5*time.Second, func() bool { return c.othersSee(1, vip.Dead) })
	})
}

// TestBrokenPath: the way between two nodes is broken, and others see both. Neither may be dead for anybody.
func TestBrokenPath(t *testing.T) {
	for name, both := range map[string]bool{"one way": false, "both ways": true} {
		t.Run(name, func(t *testing.T) {
			withCluster(t, 3, func(c *cluster) {
				c.net.breakPath(c.nodes[0].addr, c.nodes[1].addr, true)
				c.net.breakPath(c.nodes[1].addr, c.nodes[0].addr, both)
				c.stays("no node is dead", 10*time.Second, c.nobodyDead)
				if c.state(0, 1) != vip.Suspect || c.state(1, 0) != vip.Suspect || c.countInState(c.nodes[2], vip.Alive) != 2 {
					t.Errorf("n0 sees n1 %v, n1 sees n0 %v", c.state(1, 0), c.state(0, 1))
				}
			})
		})
	}
}

// TestTransmitsNothing: a node sends nothing that arrives, and hears the others until their kernels can't send to it any more. For them it is dead; of them
// it knows that nothing arrives, and takes none for dead that it hears, or that another one hears.
func TestTransmitsNothing(t *testing.T) {
	withCluster(t, 5, func(c *cluster) {
		lone := c.nodes[0]
		for _, n := range c.nodes[1:] {
			c.net.breakPath(lone.addr, n.addr, true)
		}
		unanswered := func() (k int) {
			for _, s := range lone.Statuses() {
				if s.Unanswered {
					k++
				}
			}
			return k
		}
		c.await("it to be dead for the others", time.Second, func() bool { return c.othersSee(0, vip.Dead) })
		took := c.await("it to know that nothing arrives", 10*time.Second, func() bool { return unanswered() == 4 })
		check.Between(t, took, 0, 4*time.Second, "it took")
		for _, n := range c.nodes[1:4] { // the last one hears all of them
			c.net.breakPath(n.addr, lone.addr, true)
			time.Sleep(5 * time.Second)
			check.Equal(t, c.countInState(lone, vip.Dead), 0, "others that are dead for it")
			check.Equal(t, unanswered(), 4, "unanswered")
		}
		c.net.endFaults()
		c.awaitBack(0, 2*time.Second)
	})
}

// TestAwayNodes: to a node that was silent for long heartbeats are seldom sent, and it is back as soon as it can be heard.
func TestAwayNodes(t *testing.T) {
	for name, leave := range map[string]func(*cluster){
		"cut":     func(c *cluster) { c.net.cut(c.nodes[1].addr, true) },
		"stopped": func(c *cluster) { c.nodes[1].end(); c.net.cut(c.nodes[1].addr, true) },
	} {
		t.Run(name, func(t *testing.T) {
			withCluster(t, 3, func(c *cluster) {
				leave(c)
				time.Sleep(15 * time.Second)
				c.net.with(func() { clear(c.net.sent) })
				time.Sleep(10 * time.Second)
				n0 := c.nodes[0].addr
				c.net.with(func() {
					if away, here := c.net.sent[[2]netip.Addr{n0, c.nodes[1].addr}], c.net.sent[[2]netip.Addr{n0, c.nodes[2].addr}]; away < 20 || away > 30 || here < 200 {
						t.Errorf("%d packets to the node that is away, %d to the other, in 10 s; want some 2 and 20 a second", away, here)
					}
				})
				c.net.endFaults()
				if name == "stopped" {
					c.start(c.nodes[1])
				}
				c.awaitBack(1, time.Second)
			})
		})
	}
}

// TestHearsNothing: of a node that hears nobody the others go on to know that it lives, though they are away for it.
func TestHearsNothing(t *testing.T) {
	withCluster(t, 3, func(c *cluster) {
		for _, n := range []int{0, 2} {
			c.net.breakPath(c.nodes[n].addr, c.nodes[1].addr, true)
		}
		c.await("it to be suspect for the others", 10*time.Second, func() bool { return c.othersSee(1, vip.Suspect) })
		c.stays("it is suspect for the others, and they are dead for it", 30*time.Second, func() bool {
			return c.othersSee(1, vip.Suspect) && c.countInState(c.nodes[1], vip.Dead) == 2
		})
		c.net.endFaults()
		c.awaitBack(1, 2*time.Second)
	})
}

func TestPartition(t *testing.T) {
	withCluster(t, 5, func(c *cluster) {
		for _, a := range c.nodes[:2] {
			for _, b := range c.nodes[2:] {
				c.net.breakPath(a.addr, b.addr, true)
				c.net.breakPath(b.addr, a.addr, true)
			}
		}
		c.await("both sides to see the other dead", time.Second, func() bool {
			return c.countInState(c.nodes[0], vip.Dead) == 3 && c.countInState(c.nodes[1], vip.Dead) == 3 &&
				c.countInState(c.nodes[2], vip.Dead) == 2 && c.countInState(c.nodes[4], vip.Dead) == 2
		})
		if c.countInState(c.nodes[0], vip.Alive) != 1 || c.countInState(c.nodes[4], vip.Alive) != 2 {
			t.Error("one side does not see itself")
		}
	})
}

func TestPacketLossIsNoDeath(t *testing.T) {
	withCluster(t, 10, func(c *cluster) {
		c.net.lose(0.2)
		c.stays("all are alive for all", 30*time.Second, func() bool {
			return !slices.ContainsFunc(c.nodes, func(n *node) bool { return c.countInState(n, vip.Alive) != 9 })
		})
	})
}

func TestHeartbeatChangeIsSentAtOnce(t *testing.T) {
	withCluster(t, 10, func(c *cluster) {
		heartbeat := vip.Heartbeat{Epoch: 7, APIReachable: true, TenureValid: true, StateHash: 1 << 63, ProposalHash: 3}
		c.nodes[3].SetHeartbeat(heartbeat)
		took := c.await("the heartbeat to arrive", time.Second, func() bool {
			for _, n := range c.nodes {
				if n != c.nodes[3] && n.Statuses()["n3"].Heartbeat != heartbeat {
					return false
				}
			}
			return true
		})
		check.Between(t, took, 0, 10*time.Millisecond, "it took")
	})
}

func TestKeys(t *testing.T) {
	withCluster(t, 3, func(c *cluster) {
		all := func() bool { return c.countInState(c.nodes[0], vip.Alive) == 2 && c.othersSee(0, vip.Alive) }
		for _, keys := range [][][]byte{{keyB, keyA}, {keyB}} {
			for _, n := range c.nodes { // they read it one after the other
				n.setKeys(keys...)
				c.stays("no node is lost during the rotation", 20*time.Second, all)
			}
		}
		c.nodes[0].setKeys(keyC)
		c.await("the wrong key to be noticed", 5*time.Second, func() bool { return c.othersSee(0, vip.Suspect) })
		check.Contains(t, c.nodes[1].Why("n0"), "another key")
		c.nodes[0].setKeys()
		c.await("n0 to watch nobody", time.Second, func() bool { return c.countInState(c.nodes[0], vip.Unknown) == 2 && c.nodes[0].Off() != "" })
		c.nodes[0].setKeys(keyB)
		c.await("it to be back", 2*time.Second, all)
	})
}

// TestNodeStartedAfterADeath: for a node that starts after the death of another, that one is unknown: its node lease decides.
func TestNodeStartedAfterADeath(t *testing.T) {
	withCluster(t, 3, func(c *cluster) {
		c.nodes[2].end()
		c.net.cut(c.nodes[1].addr, true)
		c.await("n1 to be dead", time.Second, func() bool { return c.state(1, 0) == vip.Dead })
		c.start(c.nodes[2])
		time.Sleep(10 * time.Second)
		check.Equal(t, c.state(1, 2), vip.Unknown, "a node that was never met")
	})
}

// TestNodeLearnsOfOthersFromTheirPackets: a node that starts while the API server is away knows no node
// leases, but receives heartbeats of nodes that know its own.
func TestNodeLearnsOfOthersFromTheirPackets(t *testing.T) {
	withCluster(t, 3, func(c *cluster) {
		n := c.nodes[1]
		n.end()
		time.Sleep(2 * time.Minute)
		all := c.addresses
		c.addresses = nil
		c.start(n)
		c.addresses = all
		c.awaitBack(1, time.Second)
	})
}

// TestTCPBlockedIsLoggedOnce: a port that is open for UDP only is logged once, and a node is alive all the same.
func TestTCPBlockedIsLoggedOnce(t *testing.T) {
	withCluster(t, 3, func(c *cluster) {
		c.net.refuse(c.nodes[1].addr, true)
		c.net.cut(c.nodes[1].addr, true)
		c.await("n1 to be dead", time.Second, func() bool { return c.othersSee(1, vip.Dead) })
		c.net.cut(c.nodes[1].addr, false)
		c.await("n1 to be back", time.Second, func() bool { return c.othersSee(1, vip.Alive) })
		time.Sleep(130 * time.Second) // it is asked again each minute
		check.Equal(t, strings.Count(c.nodes[0].log.String(), "for TCP as well"), 1, "how often it is logged")
		check.Contains(t, c.nodes[0].Why("n1"), "TCP")
		c.net.refuse(c.nodes[1].addr, false)
		time.Sleep(70 * time.Second)
		if why := c.nodes[0].Why("n1"); why != "" || !c.othersSee(1, vip.Alive) {
			t.Errorf("got %q", why)
		}
	})
}

// TestOtherPacketsAreDropped: packets that Herald did not send change nothing.
func TestOtherPacketsAreDropped(t *testing.T) {
	withCluster(t, 3, func(c *cluster) {
		s := check.Value(c.net.Listen(netip.MustParseAddrPort("10.0.9.9:7947")))(t)
		defer s.Close()
		for i := range 200 {
			_ = s.WriteTo(bytes.Repeat([]byte{byte(i)}, i*10), c.addresses["n0"])
			_ = s.WriteTo(append([]byte("HP\x01\x00"), bytes.Repeat([]byte{byte(i)}, i)...), c.addresses["n0"])
		}
		time.Sleep(time.Second)
		if c.countInState(c.nodes[0], vip.Alive) != 2 || len(c.nodes[0].Statuses()) != 2 {
			t.Errorf("got %v", c.nodes[0].Statuses())
		}
	})
}

// TestAddressChanges: heartbeats go to the address that a node's packets come from, whatever its lease still says.
func TestAddressChanges(t *testing.T) {
	withCluster(t, 3, func(c *cluster) {
		n := c.nodes[1]
		n.setAddr(netip.MustParseAddr("10.0.5.5"))
		c.await("all to see it there", 2*time.Second, func() bool {
			return n.Off() == "" && c.othersSee(1, vip.Alive) && c.countInState(n, vip.Alive) == 2
		})
		c.net.cut(n.address(), true)
		time.Sleep(5 * time.Second)
		check.Equal(t, c.othersSee(1, vip.Dead), true, "it was cut off at its new address, and is dead")
		c.net.endFaults()
		check.Equal(t, n.AddressLost(), false, "it has an address, and says that it has lost it")
		n.setAddr(netip.Addr{})
		c.await("it to watch nobody", time.Second, func() bool { return c.countInState(n, vip.Unknown) == 2 && strings.Contains(n.Off(), "no address") })
		c.await("it to say so", 200*time.Millisecond, n.AddressLost)
	})
}

// TestAddressChangeIsNoDeath: a node that hears of its new address at once is never dead, whenever that happens.
func TestAddressChangeIsNoDeath(t *testing.T) {
	for wait := range 20 {
		withCluster(t, 3, func(c *cluster) {
			time.Sleep(40*time.Second + time.Duration(wait)*13*time.Millisecond)
			n := c.nodes[0]
			c.net.cut(n.address(), true)
			n.setAddr(netip.Addr{}) // ip address del, ip address add
			n.LinksChanged()
			time.Sleep(time.Millisecond)
			if n.AddressLost() {
				c.t.Fatalf("%v: another address may take its place yet", wait)
			}
			n.setAddr(netip.MustParseAddr("10.0.0.99"))
			n.LinksChanged()
			for range 100 {
				time.Sleep(10 * time.Millisecond)
				if n.AddressLost() {
					c.t.Fatalf("%v: it has lost its address", wait)
				}
				if !c.nobodyDead() {
					c.t.Fatalf("%v: %v, %v", wait, c.nodes[1].Statuses(), n.Statuses())
				}
			}
			if !c.othersSee(0, vip.Alive) {
				c.t.Errorf("%v: it is not alive", wait)
			}
		})
	}
}

// TestPortInUse: a port that another program has is opened as soon as it is free.
func TestPortInUse(t *testing.T) {
	withCluster(t, 2, func(c *cluster) {
		n := c.nodes[1]
		n.end()
		s := check.Value(c.net.Listen(c.addresses["n1"]))(t)
		c.start(n)
		time.Sleep(10 * time.Second)
		if off := n.Off(); !strings.Contains(off, "address already in use") || strings.Count(n.log.String(), "no heartbeats are exchanged for now") != 1 {
			t.Errorf("got %q", off)
		}
		_ = s.Close()
		c.await("all are alive for all", 3*time.Second, func() bool { return c.othersSee(0, vip.Alive) && c.othersSee(1, vip.Alive) })
	})
}

// TestPortZero: port 0 does nothing, and says so.
func TestPortZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := peers.New(peers.Options{Node: "n0", Log: slog.New(slog.DiscardHandler)})
		check.Run(t, p)
		synctest.Wait()
		p.SetHeartbeat(vip.Heartbeat{Epoch: 1})
		if len(p.Statuses()) != 0 || !strings.Contains(p.Off(), "herald_peers_port") {
			t.Errorf("got %v, %q", p.Statuses(), p.Off())
		}
	})
}

// TestMetrics: the state of each node that is known is a metric.
func TestMetrics(t *testing.T) {
	withCluster(t, 3, func(c *cluster) {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(c.nodes[0].Collectors()...)
		state := func() string {
			families := check.Value(registry.Gather())(t)
			var on []string
			for _, f := range families {
				for _, m := range f.GetMetric() {
					if f.GetName() == "herald_peers_state" && m.GetGauge().GetValue() == 1 {
						on = append(on, m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue())
					}
				}
			}
			return strings.Join(on, ", ")
		}
		check.Equal(t, state(), "n1 alive, n2 alive", "states")
		c.net.cut(c.nodes[2].addr, true)
		time.Sleep(time.Second)
		check.Equal(t, state(), "n1 alive, n2 dead", "states")
		delete(c.addresses, "n2") // its node lease is deleted
		time.Sleep(2 * time.Minute)
		if got := state(); got != "n1 alive" || len(c.nodes[0].Statuses()) != 1 {
			t.Errorf("got %q", got)
		}
	})
}
