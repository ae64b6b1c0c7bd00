package pool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A simulatedCluster is an API server with Services and nodes of which one at a time gives addresses. Each sees the Services as a watch
// shows them: in the order of the writes, and late. A write is conditional on the version that was seen, and may arrive late itself, after
// the lease has another holder.
type simulatedCluster struct {
	t      *testing.T
	rand   *rand.Rand
	now    time.Time
	what   string // for messages: the seed
	log    []write
	truth  map[vip.Key]stored
	pools  *Pools
	nodes  [3]simulatedNode
	holder int
	sent   []sentWrite
	number int
}

// A stored is a Service as the API server has it, with the index in the log of the write that made it so.
type stored struct {
	*Request
	version int
}

// A write is one of a Service; nil for its deletion.
type write struct {
	key vip.Key
	to  *Request
}

// A simulatedNode is what a node knows.
type simulatedNode struct {
	seen      int // so much of the log
	view      map[vip.Key]stored
	pools     *Pools
	allocator *Allocator // nil until it gives addresses
}

// A sentWrite is an Assignment on its way.
type sentWrite struct {
	vip.Assignment
	version int // of the Service that it was made for
	pools   *Pools
}

// store appends a write to the log.
func (c *simulatedCluster) store(k vip.Key, to *Request) {
	c.log = append(c.log, write{k, to})
	if to == nil {
		delete(c.truth, k)
		return
	}
	c.truth[k] = stored{to, len(c.log)}
}

// hold makes node i the one that gives addresses: with nothing but what it sees, if it was restarted, or never gave any; else with what it remembers.
func (c *simulatedCluster) hold(i int, restarted bool) {
	c.holder = i
	n := &c.nodes[i]
	if restarted || n.allocator == nil {
		n.allocator = NewAllocator(0)
	}
	n.allocator.SetPools(n.pools)
	for _, s := range n.view {
		if old := n.allocator.services[s.Service]; old == nil || !same(&old.Request, s.Request) {
			n.allocator.Set(*s.Request, c.now)
		}
	}
	for k := range n.allocator.services {
		if _, ok := n.view[k]; !ok {
			n.allocator.Delete(k, c.now)
		}
	}
}

// gives reports whether n is the node that gives addresses.
func (c *simulatedCluster) gives(n *simulatedNode) bool { return n == &c.nodes[c.holder] }

// watch shows a node up to so many writes more.
func (c *simulatedCluster) watch(n *simulatedNode, events int) {
	for ; events > 0 && n.seen < len(c.log); events-- {
		w := c.log[n.seen]
		n.seen++
		if w.to == nil {
			delete(n.view, w.key)
		} else {
			n.view[w.key] = stored{w.to, n.seen}
		}
		switch {
		case !c.gives(n):
		case w.to == nil:
			n.allocator.Delete(w.key, c.now)
		default:
			n.allocator.Set(*w.to, c.now)
		}
	}
}

// decide has the node that gives addresses send its writes. It is an error if it gives an address that it sees another Service have, or the status of
// another show; but to share it with one that names it, which the plan has wait, too.
func (c *simulatedCluster) decide() {
	n := &c.nodes[c.holder]
	for _, d := range n.allocator.Decide(c.now) {
		s, ok := n.view[d.Service]
		if !ok || len(d.Addresses) == 0 {
			continue
		}
		c.sent = append(c.sent, sentWrite{d, s.version, n.pools})
		for _, x := range d.Addresses {
			for k, o := range n.view {
				lost := len(n.allocator.holders[x]) > 1 && !slices.Contains(n.allocator.services[k].has, x) // to whom d.Service shares it with
				if k != d.Service && slices.Contains(o.Shown, x) && !slices.Contains(o.Addresses, x) && !slices.Contains(s.Addresses, x) && !strings.Contains(d.Reason, "shared with") {
					c.t.Errorf("%s: %s is given %s, which the status of %s shows: %s; %+v, %+v", c.what, d.Service, x, k, d.Reason, *s.Request, *o.Request)
				}
				if k != d.Service && !lost && !slices.Contains(s.Addresses, x) && slices.Contains(o.Addresses, x) && !mayShare(s.Request, o.Request) && !onlyNames(n.view, o.Request, x) {
					c.t.Errorf("%s: %s is given %s, which %s has without consent: %s; %+v, %+v", c.what, d.Service, x, k, d.Reason, *s.Request, *o.Request)
				}
			}
		}
	}
}

// arrive has a write that was sent arrive. It is an error if it takes an address away that the status shows, and the user does not want another.
func (c *simulatedCluster) arrive(i int) {
	w := c.sent[i]
	c.sent = slices.Delete(c.sent, i, i+1)
	s, ok := c.truth[w.Service]
	if !ok || s.version != w.version || s.UID != w.UID {
		return
	}
	for _, x := range s.Shown {
		if s.Allocated != "" && slices.Contains(s.Addresses, x) && !slices.Contains(w.Addresses, x) && !wantsAnother(s.Request, w.pools, x) {
			c.t.Errorf("%s: %s, which %s shows, is taken from it: %s; %+v", c.what, x, w.Service, w.Reason, *s.Request)
		}
	}
	r := *s.Request
	r.Addresses, r.Allocated = w.Addresses, w.Pool
	c.store(w.Service, &r)
}

// wantsAnother reports whether the user of s wants another address than x: of other pools than s was given it of, or, with
// heraldvip.io/renumber, one that is in a pool.
func wantsAnother(s *Request, pools *Pools, x netip.Addr) bool {
	return len(s.Pools) > 0 && !slices.Contains(s.Pools, s.Allocated) || s.Renumber && pools.find(x) == nil
}

// onlyNames reports whether o names x beside another Service that may not share it, and its status does not show it: then it keeps nobody
// from sharing it with that one.
func onlyNames(view map[vip.Key]stored, o *Request, x netip.Addr) bool {
	for _, q := range view {
		if q.Service != o.Service && slices.Contains(q.Addresses, x) && !slices.Contains(o.Shown, x) && !mayShare(q.Request, o) {
			return true
		}
	}
	return false
}

// mayShare reports whether both may have an address: one is given to two by their sharing key, and users may name any.
func mayShare(s, o *Request) bool {
	return s.Ports[0] != o.Ports[0] && (s.Service.Namespace == o.Service.Namespace || s.SharingKey != "" && s.SharingKey == o.SharingKey)
}

// show has a Service announced: its status shows what it names, unless one that it may not share that with shows it.
func (c *simulatedCluster) show(k vip.Key) {
	s := c.truth[k]
	var shown []netip.Addr
	for _, x := range s.Addresses {
		other := false
		for o, q := range c.truth {
			other = other || o != k && slices.Contains(q.Shown, x) && !mayShare(s.Request, q.Request)
		}
		if !other {
			shown = append(shown, x)
		}
	}
	if !slices.Equal(shown, s.Shown) {
		r := *s.Request
		r.Shown = shown
		c.store(k, &r)
	}
}

// change is what users do.
func (c *simulatedCluster) change() {
	k := vip.Key{Namespace: fmt.Sprint("ns", c.rand.IntN(2)), Name: fmt.Sprint("s", c.rand.IntN(8))}
	s, ok := c.truth[k]
	if !ok {
		c.number++
		c.store(k, &Request{Service: k, UID: fmt.Sprint(c.number), Created: start.Add(time.Duration(c.number) * time.Second), Families: []vip.Family{vip.IPv4},
			Ports: []vip.Port{{Protocol: "TCP", Port: uint16(80 + c.rand.IntN(3))}}, SharingKey: []string{"", "", "k"}[c.rand.IntN(3)]})
		return
	}
	r := *s.Request
	switch c.rand.IntN(6) {
	case 0:
		c.store(k, nil)
		return
	case 1:
		r.Pools = [][]string{nil, {"a"}, {"b"}}[c.rand.IntN(3)]
	case 2:
		r.Renumber = !r.Renumber
	case 3:
		r.Labels = map[string]string{"x": fmt.Sprint(c.rand.IntN(3))} // which asks for nothing else
		c.store(k, &r)
		return
	case 4:
		r.Addresses, r.Allocated = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + c.rand.IntN(14))})}, "" // by hand; the status shows what it did
	case 5:
		r.Addresses, r.Allocated, r.Shown = nil, "", nil
	}
	c.store(k, &r)
}

// simulatedPools is what the operator changes between.
var simulatedPools = [][]string{
	{"pool-a=10.0.0.0/28", "pool-b=10.0.0.8/29,10.0.1.0/29", "pool-b.auto=false"},
	{"pool-a=10.0.0.0/29", "pool-b=10.0.1.0/29", "pool-b.priority=5"},
	{"pool-a=10.0.1.0/28", "pool-b=nonsense"},
	{"cidr-global=10.0.0.0/28", "search-order=desc"},
}

func (c *simulatedCluster) step() {
	switch n := c.rand.IntN(24); {
	case n < 6:
		c.change()
	case n < 7:
		c.pools, _ = Parse(c.pools, data(simulatedPools[c.rand.IntN(len(simulatedPools))]...))
	case n < 9:
		if n := &c.nodes[c.rand.IntN(3)]; n.pools != c.pools {
			n.pools = c.pools
			if c.gives(n) {
				n.allocator.SetPools(n.pools)
			}
		}
	case n < 10:
		i := c.rand.IntN(3)
		c.hold(i, i == c.holder || c.rand.IntN(2) == 0)
	case n < 15:
		c.watch(&c.nodes[c.rand.IntN(3)], c.rand.IntN(8))
	case n < 18:
		c.decide()
	case n < 22 && len(c.sent) > 0:
		c.arrive(c.rand.IntN(len(c.sent)))
	case n < 23 && len(c.sent) > 0: // lost
		i := c.rand.IntN(len(c.sent))
		c.sent = slices.Delete(c.sent, i, i+1)
	default:
		if keys := slices.SortedFunc(maps.Keys(c.truth), vip.Key.Compare); len(keys) > 0 {
			c.show(keys[c.rand.IntN(len(keys))])
		}
	}
}

// settleDown has everything be seen and written. Then no two Services were given one address without consent, and none waits while there is a free one.
func (c *simulatedCluster) settleDown() {
	for range 40 {
		before := len(c.log)
		for i := range c.nodes {
			n := &c.nodes[i]
			if n.pools = c.pools; c.gives(n) {
				n.allocator.SetPools(n.pools)
			}
			c.watch(n, len(c.log))
		}
		c.decide()
		for len(c.sent) > 0 {
			c.arrive(0)
		}
		if len(c.log) == before {
			break
		}
	}
	a := c.nodes[c.holder].allocator
	waits := func(k vip.Key) bool { return a.open[a.services[k]] } // it has lost what is written on it, and there is no other
	for k, s := range c.truth {
		for o, q := range c.truth {
			for _, x := range s.Addresses {
				if k.Compare(o) < 0 && s.Allocated != "" && q.Allocated != "" && slices.Contains(q.Addresses, x) && !mayShare(s.Request, q.Request) && !waits(k) && !waits(o) {
					c.t.Errorf("%s: in the end %s and %s have %s: %+v, %+v", c.what, k, o, x, *s.Request, *q.Request)
				}
			}
		}
		if len(s.Addresses) > 0 {
			continue
		}
		pools, _ := a.candidates(a.services[k])
		for _, p := range pools {
			if x, ok := a.spaces[p].findFree(vip.IPv4, a.isTaken); ok {
				c.t.Errorf("%s: in the end %s waits, and %s is free", c.what, k, x)
			}
		}
	}
}

// TestManyNodes: whichever node gives addresses, however late it sees what others have written, and however late its writes arrive: none gives an
// address that it can see another Service has, none takes one away that a status shows, and in the end each is given once.
func TestManyNodes(t *testing.T) {
	seeds := 400
	if testing.Short() {
		seeds = 60
	}
	for seed := range uint64(seeds) {
		c := &simulatedCluster{
			t: t, rand: rand.New(rand.NewPCG(seed, 2)), now: start, what: fmt.Sprint("seed ", seed),
			truth: make(map[vip.Key]stored),
		}
		c.pools, _ = Parse(nil, data(simulatedPools[0]...))
		for i := range c.nodes {
			c.nodes[i].view, c.nodes[i].pools = make(map[vip.Key]stored), c.pools
		}
		c.hold(0, true)
		for round := range 4 {
			for step := range 100 {
				c.now = c.now.Add(time.Second)
				c.what = fmt.Sprintf("seed %d, round %d, step %d", seed, round, step)
				c.step()
			}
			c.settleDown()
			if t.Failed() {
				return
			}
		}
	}
}
