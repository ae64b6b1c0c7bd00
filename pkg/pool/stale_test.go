package pool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// TestStaleNodes: two nodes, each of which sees the Services late, give addresses in turns; writes that were decided earlier, or by the other one,
// arrive late or never. Once both see everything, each Service has an address of its own, it is one that it has shown if it has shown any and no other
// has, and nothing more is written.
func TestStaleNodes(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 50
	}
	for seed := range uint64(seeds) {
		c := newStaleCluster(t, seed)
		for range 150 {
			c.step()
		}
		c.settle()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// A staleCluster is an API server's Services, and nodes that see a history of them.
type staleCluster struct {
	t       *testing.T
	rand    *rand.Rand
	now     time.Time
	source  *vip.PoolSource
	truth   map[vip.Key]*vip.Service
	version map[vip.Key]int
	history []map[vip.Key]*vip.Service // one entry for each change
	nodes   [2]*staleNode
	leader  int
	writes  []lateWrite
	shown   map[string]netip.Addr // by UID: the first address that a Service has shown
	created int
}

type staleNode struct {
	*Assigner
	seen int // entries of the history
}

// A lateWrite is on its way to the API server.
type lateWrite struct {
	vip.Assignment
	version int
}

func newStaleCluster(t *testing.T, seed uint64) *staleCluster {
	c := &staleCluster{t: t, rand: rand.New(rand.NewPCG(seed, 7)), now: start, source: source("cidr-global=10.0.0.0/27"),
		truth: make(map[vip.Key]*vip.Service), version: make(map[vip.Key]int), shown: make(map[string]netip.Addr)}
	for i := range c.nodes {
		c.nodes[i] = &staleNode{Assigner: NewAssigner(time.Minute, func() {})}
	}
	c.record()
	return c
}

// record adds what is now to the history.
func (c *staleCluster) record() { c.history = append(c.history, maps.Clone(c.truth)) }

// put replaces a Service.
func (c *staleCluster) put(s vip.Service) {
	c.truth[s.Key] = &s
	c.version[s.Key]++
	c.record()
}

func (c *staleCluster) step() {
	c.now = c.now.Add(time.Duration(c.rand.IntN(3000)) * time.Millisecond)
	key := vip.Key{Namespace: fmt.Sprintf("ns%d", c.rand.IntN(3)), Name: fmt.Sprintf("s%d", c.rand.IntN(4))}
	s := c.truth[key]
	switch n := c.rand.IntN(20); {
	case n < 3 && s == nil:
		c.created++
		c.put(vip.Service{Key: key, UID: fmt.Sprint(c.created), Created: c.now, LoadBalancer: true, Families: []vip.Family{vip.IPv4}, Ports: []vip.Port{{Protocol: "TCP", Port: 80}}})
	case n == 3 && s != nil:
		delete(c.truth, key)
		c.version[key]++
		c.record()
	case n < 7 && s != nil:
		c.show(c.nodes[c.rand.IntN(2)], key)
	case n < 11:
		node := c.nodes[c.rand.IntN(2)]
		node.seen = min(node.seen+1+c.rand.IntN(4), len(c.history)-1)
	case n == 11:
		c.leader = 1 - c.leader
	case n < 16:
		c.pass()
	default:
		c.deliver()
	}
}

// pass is one of all nodes' agents: the leader decides, and its writes begin.
func (c *staleCluster) pass() {
	for i, n := range c.nodes {
		in := vip.PoolInput{Now: c.now, Source: c.source, Allocate: i == c.leader}
		view := c.history[n.seen]
		for _, k := range slices.SortedFunc(maps.Keys(view), vip.Key.Compare) {
			in.Requests = append(in.Requests, vip.AddressRequest{Service: view[k]})
		}
		judge(n.pools, in.Requests)
		n.Put([]vip.PoolInput{in})
		var w vip.World
		n.Observe(&w)
		for _, a := range w.Assignments {
			if s := view[a.Service]; len(a.Addresses) > 0 && s == c.truth[a.Service] { // else the API server refuses it
				c.writes = append(c.writes, lateWrite{a, c.version[a.Service]})
			}
		}
	}
}

// deliver has a write arrive, or lost.
func (c *staleCluster) deliver() {
	if len(c.writes) == 0 {
		return
	}
	i := c.rand.IntN(len(c.writes))
	w := c.writes[i]
	c.writes = slices.Delete(c.writes, i, i+1)
	s := c.truth[w.Service]
	if s == nil || s.UID != w.UID || c.version[w.Service] != w.version || c.rand.IntN(5) == 0 {
		return
	}
	after := *s
	after.Addresses, after.Allocated = w.Addresses, w.Pool
	if !slices.Equal(s.Addresses, after.Addresses) {
		after.Ingress = nil
	}
	c.put(after)
}

// show has a node write the status of a Service, unless it sees that another one has the address and comes first.
func (c *staleCluster) show(n *staleNode, key vip.Key) {
	view := c.history[n.seen]
	s := view[key]
	if s == nil || s != c.truth[key] || len(s.Addresses) == 0 || len(s.Ingress) > 0 {
		return
	}
	for k, o := range view {
		if k != key && slices.Contains(o.Addresses, s.Addresses[0]) && (len(o.Ingress) > 0 || o.Created.Before(s.Created)) {
			return
		}
	}
	after := *s
	after.Ingress = []vip.Ingress{{Addr: s.Addresses[0]}}
	if _, ok := c.shown[s.UID]; !ok {
		c.shown[s.UID] = s.Addresses[0]
	}
	c.put(after)
}

// settle has both nodes see everything, and all writes arrive, until nothing more is written, and checks what Services have.
func (c *staleCluster) settle() {
	c.writes = nil
	for round := 0; ; round++ {
		for _, n := range c.nodes {
			n.seen = len(c.history) - 1
		}
		c.pass()
		if len(c.writes) == 0 {
			break
		}
		if round == 20 {
			c.t.Fatalf("it does not come to an end: %+v", c.writes)
		}
		for len(c.writes) > 0 {
			c.deliver()
		}
	}
	of, showed := make(map[netip.Addr]vip.Key), make(map[netip.Addr]int)
	for _, s := range c.truth {
		showed[c.shown[s.UID]]++
	}
	for k, s := range c.truth {
		if len(s.Addresses) != 1 {
			c.t.Errorf("%s has %v", k, s.Addresses)
			continue
		}
		x := s.Addresses[0]
		if o, ok := of[x]; ok {
			c.t.Errorf("%s and %s have %s", o, k, x)
		}
		of[x] = k
		if first, ok := c.shown[s.UID]; ok && first != x && showed[first] == 1 {
			c.t.Errorf("%s has shown %s, which no other has shown, and has %s", k, first, x)
		}
	}
}
