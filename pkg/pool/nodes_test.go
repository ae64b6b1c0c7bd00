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
	*vip.AddressRequest
	version int
}

// A write is one of a Service; nil for its deletion.
type write struct {
	key vip.Key
	to  *vip.AddressRequest
}

// A simulatedNode is what a node knows.
type simulatedNode struct {
	*world
	seen int // so much of the log
	view map[vip.Key]stored
}

// A sentWrite is an Assignment on its way.
type sentWrite struct {
	vip.Assignment
	version int // of the Service that it was made for
	pools   *Pools
}

// store appends a write to the log.
func (c *simulatedCluster) store(k vip.Key, to *vip.AddressRequest) {
	c.log = append(c.log, write{k, to})
	if to == nil {
		delete(c.truth, k)
		return
	}
	c.truth[k] = stored{to, len(c.log)}
}

// hold makes node i the one that gives addresses: with nothing but what it sees, if it was restarted; else with what it remembers.
func (c *simulatedCluster) hold(i int, restarted bool) {
	if c.holder = i; restarted {
		c.nodes[i].restart()
	}
}

// watch shows a node up to so many writes more.
func (c *simulatedCluster) watch(n *simulatedNode, events int) {
	for ; events > 0 && n.seen < len(c.log); events-- {
		w := c.log[n.seen]
		n.seen++
		if w.to == nil {
			delete(n.view, w.key)
			delete(n.services, w.key)
			continue
		}
		n.view[w.key] = stored{w.to, n.seen}
		n.services[w.key] = w.to
	}
}

// decide has the node that gives addresses send its writes. It is an error if it gives an address that it sees another Service have, or the status of
// another show; but to share it with one that names it, which the plan has wait, too.
func (c *simulatedCluster) decide() {
	n := &c.nodes[c.holder]
	n.now = c.now
	for _, d := range n.pass() {
		s, ok := n.view[d.Service]
		if !ok || len(d.Addresses) == 0 {
			continue
		}
		c.sent = append(c.sent, sentWrite{d, s.version, n.pools})
		for _, x := range s.Addresses {
			other := func(q stored) bool { return q.Key != s.Key && slices.Contains(q.Addresses, x) }
			if s.Allocated != "" && !slices.Contains(d.Addresses, x) && !wantsAnother(s.Service, n.pools, x) && !slices.ContainsFunc(slices.Collect(maps.Values(n.view)), other) {
				c.t.Errorf("%s: %s, which nobody else has, is taken from %s: %s; %+v", c.what, x, d.Service, d.Reason, *s.Service)
			}
		}
		for _, x := range d.Addresses {
			for k, o := range n.view {
				lost := !slices.ContainsFunc(n.last.holders[x], func(s *service) bool { return s.Key == k }) // to whom d.Service shares it with
				if k != d.Service && slices.Contains(o.StatusVIPs(), x) && !slices.Contains(o.Addresses, x) && !slices.Contains(s.Addresses, x) && !strings.Contains(d.Reason, "shared with") {
					c.t.Errorf("%s: %s is given %s, which the status of %s shows: %s; %+v, %+v", c.what, d.Service, x, k, d.Reason, *s.Service, *o.Service)
				}
				if k != d.Service && !lost && !slices.Contains(s.Addresses, x) && slices.Contains(o.Addresses, x) && !mayShare(n.pools, x, s.Service, o.Service) && !onlyNames(n, o.Service, x) {
					c.t.Errorf("%s: %s is given %s, which %s has without consent: %s; %+v, %+v", c.what, d.Service, x, k, d.Reason, *s.Service, *o.Service)
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
	for _, x := range s.StatusVIPs() {
		if s.Allocated != "" && slices.Contains(s.Addresses, x) && !slices.Contains(w.Addresses, x) && !wantsAnother(s.Service, w.pools, x) {
			c.t.Errorf("%s: %s, which %s shows, is taken from it: %s; %+v", c.what, x, w.Service, w.Reason, *s.Service)
		}
	}
	c.store(w.Service, changed(s.AddressRequest, func(r *vip.AddressRequest) { r.Addresses, r.Allocated = w.Addresses, w.Pool }))
}

// wantsAnother reports whether the user of s wants another address than x: of another family, of other pools than s was given
// it of, or, with heraldvip.io/renumber, one that is in a pool.
func wantsAnother(s *vip.Service, pools *Pools, x netip.Addr) bool {
	return !slices.Contains(s.Families, vip.FamilyOf(x)) || len(s.Pools) > 0 && !slices.Contains(s.Pools, s.Allocated) || s.Renumber && pools.WhyNotOffered(s.Key.Namespace, nil, x, true) != ""
}

// onlyNames reports whether o names x beside another Service that may not share it, and its status does not show it: then it keeps nobody
// from sharing it with that one.
func onlyNames(n *simulatedNode, o *vip.Service, x netip.Addr) bool {
	for _, q := range n.view {
		if q.Key != o.Key && slices.Contains(q.Addresses, x) && !slices.Contains(o.StatusVIPs(), x) && !mayShare(n.pools, x, q.Service, o) {
			return true
		}
	}
	return false
}

// mayShare reports whether both may have x: one is given to two by their sharing key or allow-share, and users may name any.
func mayShare(pools *Pools, x netip.Addr, s, o *vip.Service) bool {
	return s.Ports[0] != o.Ports[0] && (s.Key.Namespace == o.Key.Namespace || s.SharingKey != "" && s.SharingKey == o.SharingKey ||
		pools.MayShare(x, s.Key.Namespace, o.Key.Namespace))
}

// show has a Service announced: its status shows what it names, unless one that it may not share that with shows it.
func (c *simulatedCluster) show(k vip.Key) {
	s := c.truth[k]
	var shown []netip.Addr
	for _, x := range s.Addresses {
		other := false
		for o, q := range c.truth {
			other = other || o != k && slices.Contains(q.StatusVIPs(), x) && !mayShare(c.pools, x, s.Service, q.Service)
		}
		if !other {
			shown = append(shown, x)
		}
	}
	if !slices.Equal(shown, s.StatusVIPs()) {
		c.store(k, changed(s.AddressRequest, func(r *vip.AddressRequest) { shows(r, shown...) }))
	}
}

// change is what users do.
func (c *simulatedCluster) change() {
	k := vip.Key{Namespace: fmt.Sprint("ns", c.rand.IntN(2)), Name: fmt.Sprint("s", c.rand.IntN(8))}
	s, ok := c.truth[k]
	if !ok {
		c.number++
		c.store(k, &vip.AddressRequest{Service: &vip.Service{
			Key: k, UID: fmt.Sprint(c.number), Created: start.Add(time.Duration(c.number) * time.Second), Families: []vip.Family{vip.IPv4},
			Ports: tcp(uint16(80 + c.rand.IntN(3))), SharingKey: []string{"", "", "k"}[c.rand.IntN(3)],
		}})
		return
	}
	r := changed(s.AddressRequest, nil)
	switch c.rand.IntN(7) {
	case 0:
		c.store(k, nil)
		return
	case 1:
		r.Pools = [][]string{nil, {"a"}, {"b"}}[c.rand.IntN(3)]
	case 2:
		r.Renumber = !r.Renumber
	case 3:
		r.Labels = map[string]string{"x": fmt.Sprint(c.rand.IntN(3))} // which asks for nothing else
		c.store(k, r)
		return
	case 4:
		r.Addresses, r.Allocated = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + c.rand.IntN(14))})}, "" // by hand; the status shows what it did
	case 5:
		r.Addresses, r.Allocated, r.Ingress = nil, "", nil
	case 6:
		r.Families, r.DualStack = [][]vip.Family{{vip.IPv4}, {vip.IPv6}, {vip.IPv6, vip.IPv4}}[c.rand.IntN(3)], vip.DualStack(c.rand.IntN(3))
	}
	c.store(k, r)
}

// simulatedPools is what the operator changes between.
var simulatedPools = [][]string{
	{"pool-a=10.0.0.0/28", "pool-b=10.0.0.8/29,10.0.1.0/29", "pool-b.auto=false"},
	{"pool-a=10.0.0.0/29", "pool-b=10.0.1.0/29", "pool-b.priority=5"},
	{"pool-a=10.0.1.0/28", "pool-b=nonsense"},
	{"cidr-global=10.0.0.0/28,2001:db8::/124", "search-order=desc"},
	{"cidr-global=10.0.0.8/29,2001:db8::8/125", "cidr-ns1=10.0.0.0/28", "allow-share-ns0=true", "allow-share-ns1=true"},
	{"pool-a=10.0.0.0/29", "pool-a.namespaces=ns1", "pool-b=10.0.0.4-10.0.0.19,2001:db8::/124", "range-ns0=10.0.0.1-10.0.0.3"},
	{},
}

func (c *simulatedCluster) step() {
	switch n := c.rand.IntN(24); {
	case n < 6:
		c.change()
	case n < 7:
		c.pools, _ = Parse(c.pools, data(simulatedPools[c.rand.IntN(len(simulatedPools))]...))
	case n < 9:
		node := &c.nodes[c.rand.IntN(3)]
		node.pools = c.pools
		node.reserve(fmt.Sprintf("10.0.0.%d/30", 4*c.rand.IntN(6)))
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
			c.nodes[i].pools = c.pools
			c.watch(&c.nodes[i], len(c.log))
		}
		c.decide()
		for len(c.sent) > 0 {
			c.arrive(0)
		}
		if len(c.log) == before {
			break
		}
	}
	last := c.nodes[c.holder].last
	waits := func(k vip.Key) bool { // it has lost what is written on it, and there is no other
		return slices.ContainsFunc(last.assignments, func(a vip.Assignment) bool { return a.Service == k && len(a.Addresses) == 0 })
	}
	for k, s := range c.truth {
		for o, q := range c.truth {
			for _, x := range s.Addresses {
				if k.Compare(o) < 0 && s.Allocated != "" && q.Allocated != "" && slices.Contains(q.Addresses, x) && !mayShare(c.pools, x, s.Service, q.Service) && !waits(k) && !waits(o) &&
					!(slices.Contains(s.StatusVIPs(), x) && slices.Contains(q.StatusVIPs(), x)) { // they might when that was shown
					c.t.Errorf("%s: in the end %s and %s have %s: %+v, %+v", c.what, k, o, x, *s.Service, *q.Service)
				}
			}
		}
		if len(s.Addresses) > 0 || len(s.Families) > 1 && s.DualStack == vip.RequireDualStack {
			continue
		}
		pools, _ := last.candidates(newService(s.AddressRequest))
		for _, x := range pools {
			if f, ok := last.findOne(newService(s.AddressRequest), x, s.Families[0]); ok {
				c.t.Errorf("%s: in the end %s waits, and %s is free", c.what, k, f.addr)
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
			c.nodes[i].view, c.nodes[i].world = make(map[vip.Key]stored), newWorld(t, time.Duration(seed%3)*time.Minute, simulatedPools[0]...)
			c.nodes[i].pools = c.pools
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
