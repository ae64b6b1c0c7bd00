package simulation

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	lifetime = 4 * time.Second // of a bound address that nobody refreshes
	refresh  = time.Second

	// grace is how long two nodes may answer at once where a message crosses a fault:
	// a watch event and a frame on the wire.
	grace = 100 * time.Millisecond
)

// where is an address on one side of the LAN.
type where struct {
	addr netip.Addr
	side int
}

// A bound address is in a node's kernel.
type bound struct {
	until time.Time // the kernel drops it then
	by    *process  // who put it there, or refreshed it last
}

// put puts a into the kernel of p's node, or refreshes it.
func (p *process) put(a netip.Addr, until time.Time) {
	n := p.n
	if b := n.kernel[a]; b != nil {
		b.until, b.by = until, p
		return
	}
	n.kernel[a] = &bound{until, p}
	n.c.carriers[a] = append(n.c.carriers[a], n)
	n.c.look(a)
}

// unbound takes a out of the kernel.
func (n *node) unbound(a netip.Addr) {
	delete(n.kernel, a)
	n.c.carriers[a] = slices.DeleteFunc(n.c.carriers[a], func(o *node) bool { return o == n })
	n.c.look(a)
}

// expire drops what nobody refreshes any more; at no time: all.
func (n *node) expire(now time.Time) {
	for a, b := range n.kernel {
		if now.IsZero() || !now.Before(b.until) {
			n.unbound(a)
		}
	}
}

func (p *process) bind(want []vip.Address, t vip.Tenure) (have []vip.Address, err error) {
	n := p.n
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if !p.runs() {
		return nil, nil
	}
	now := time.Now()
	n.expire(now)
	wanted := map[netip.Addr]bool{}
	for _, a := range want {
		until := t.Until
		n.linger[a.Addr] = !a.Until.IsZero()
		if !a.Until.IsZero() && a.Until.Before(until) {
			until = a.Until
		}
		if end := now.Add(n.clock(lifetime)); end.Before(until) {
			until = end
		}
		if until.Sub(now) < time.Second {
			continue
		}
		wanted[a.Addr] = true
		if n.kernel[a.Addr] == nil {
			if !t.Confirmed {
				continue
			}
			n.c.note(n, a.Addr, "binds %s on %s", a.Addr, a.Lease.Name)
			n.c.tally["binds"]++
		}
		p.put(a.Addr, until)
		have = append(have, a)
	}
	for a := range n.kernel {
		if !wanted[a] {
			n.c.note(n, a, "removes %s", a)
			n.unbound(a)
		}
	}
	return have, nil
}

// refresh is what keeps bound addresses alive, and repeats what is announced.
func (p *process) refresh(ctx context.Context) {
	n := p.n
	for ticker := time.NewTicker(n.clock(refresh)); ; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C:
		}
		t, now := p.leases.Tenure(), time.Now()
		n.c.mu.Lock()
		if !p.runs() {
			n.c.mu.Unlock()
			return
		}
		before := len(n.kernel)
		n.expire(now)
		for a, b := range n.kernel {
			if end := now.Add(n.clock(lifetime)); t.Confirmed && t.Until.Sub(now) >= time.Second && !n.linger[a] && b.by == p {
				if t.Until.Before(end) {
					end = t.Until
				}
				b.until = end
			}
		}
		lost := len(n.kernel) != before
		said := slices.Collect(maps.Keys(n.said))
		for a, s := range n.heard {
			if !n.hears[a] && now.Sub(s.At) > 5*time.Second {
				delete(n.heard, a)
			}
		}
		n.c.mu.Unlock()
		n.tell(said) // as l2 does every 3 s
		if lost {
			n.poke()
		}
	}
}

// announce tells the others on the LAN what is newly wanted.
func (p *process) announce(want []vip.Announcement) ([]vip.Announcement, error) {
	n := p.n
	n.c.mu.Lock()
	if !p.runs() {
		n.c.mu.Unlock()
		return nil, nil
	}
	said, heard := n.said, n.hears
	n.said, n.hears = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	var news []netip.Addr
	for _, w := range want {
		n.hears[w.Addr] = true
		if !heard[w.Addr] {
			n.c.hearers[w.Addr] = append(n.c.hearers[w.Addr], n)
		}
		if w.ListenOnly {
			continue
		}
		n.said[w.Addr] = true
		if !said[w.Addr] {
			news = append(news, w.Addr)
		}
	}
	for a := range heard {
		if !n.hears[a] {
			n.c.hearers[a] = slices.DeleteFunc(n.c.hearers[a], func(o *node) bool { return o == n })
			delete(n.poked, a)
		}
	}
	n.c.mu.Unlock()
	n.tell(news)
	return want, nil
}

// tell is one frame for each address, heard by whoever listens on the LAN: it is
// worth a poke if it is news, and once a second after that.
func (n *node) tell(addrs []netip.Addr) {
	c := n.c
	c.mu.Lock()
	poke := map[*node]bool{}
	for _, a := range addrs {
		if !n.cable || n.proc == nil {
			break
		}
		for _, o := range c.hearers[a] {
			if o == n || !o.cable || o.side != n.side {
				continue
			}
			now := time.Now()
			o.heard[a] = vip.HeardAnnouncement{MAC: n.name, At: now}
			if now.Sub(o.poked[a]) >= time.Second {
				o.poked[a] = now
				poke[o] = true
			}
		}
	}
	c.mu.Unlock()
	for o := range poke {
		o.poke()
	}
}

// answers is who answers for an address on one side of the LAN at this moment.
func (c *cluster) answers(a netip.Addr, side int) (who []*node) {
	now := time.Now()
	for _, n := range c.carriers[a] {
		if n.cable && n.side == side && now.Before(n.kernel[a].until) {
			who = append(who, n)
		}
	}
	return who
}

// look checks that no two nodes answer for an address for longer than they may.
// It is called whenever a kernel, a cable, a side or a process has changed, and each 20 ms
// for as long as two answer.
func (c *cluster) look(a netip.Addr) {
	for side := range 2 {
		w := where{a, side}
		who := c.answers(a, side)
		if c.gapless && len(who) == 0 && side == 0 {
			c.breaks(a, c.nodes, "nobody answers for %s", a)
		}
		now := time.Now()
		began := c.began[w]
		if began == nil {
			began = map[*node]time.Time{}
			c.began[w] = began
		}
		maps.DeleteFunc(began, func(n *node, _ time.Time) bool { return !slices.Contains(who, n) })
		for _, n := range who {
			if began[n].IsZero() {
				began[n] = now
			}
		}
		delete(c.double, w)
		if len(who) < 2 {
			continue
		}
		c.double[w] = true
		// Since the second of them does: of two hand-overs in a row each has its own time.
		since := slices.SortedFunc(maps.Values(began), time.Time.Compare)[1]
		limit := time.Duration(0)
		names := []string{}
		for _, n := range who {
			limit = max(limit, n.slack(a))
			names = append(names, n.name)
		}
		if d := now.Sub(since); d > limit {
			c.breaks(a, who, "%s is answered by %v for %v, at most %v are good", a, names, d, limit)
		}
	}
}

// watch looks again at what two nodes answer.
func (c *cluster) watch(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		for w := range maps.Clone(c.double) {
			c.look(w.addr)
		}
		c.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
	}
}

// slack is how long n may go on answering for what another has.
func (n *node) slack(a netip.Addr) time.Duration {
	f := n.way.Faults()
	grace := grace + 5*n.c.pass // each end of it may have to wait for a pass
	switch {
	case f != leasetest.NoFaults && n.c.blocksWarning(n):
		return n.clock(10*time.Second) + time.Second // the renew deadline: nobody can tell it
	case n.proc == nil || n.kernel[a].by != n.proc:
		return n.clock(lifetime) + grace // its kernel's
	case n.linger[a] || f.LoseAnswers:
		// It waits to hear its successor. And whoever hands over and does not hear that
		// it was written serves on until its watch shows it.
		return 3*time.Second + grace
	case n.c.wire != nil:
		return time.Second // it learns on the wire that its epoch is over
	}
	return grace
}

// blocksWarning reports whether a blocked heartbeat port may keep n from hearing that its
// epoch is over: its own, or, where a few nodes are all there are, any.
func (c *cluster) blocksWarning(n *node) bool {
	return n.portBlocked || len(c.nodes) < 10 && slices.ContainsFunc(c.nodes, func(o *node) bool { return o.portBlocked })
}

// agreed is called when n has agreed with others to move VIPs without the API
// server: they must be half of the voters, at the least.
func (n *node) agreed() {
	c := n.c
	if c.away.IsZero() {
		return
	}
	c.tally["agreements"]++
	reach := 0
	for _, o := range c.nodes {
		if o == n || time.Since(o.changed) < 1500*time.Millisecond || o.proc != nil && o.cable && o.side == n.side && !o.portBlocked {
			reach++
		}
	}
	if 2*reach < len(c.voters) {
		c.breaks(netip.Addr{}, []*node{n}, "%s is one of %d of a voters of %d or more, and moves VIPs without the API server", n.name, reach, len(c.voters))
	}
}

// judged is called when n voids the claims of a node that is gone from the wire: it must
// see as many as it has lost of those that certainly renew, and that it has met since they
// began to. Who hears of renewals late does not know how many those are.
func (n *node) judged(statuses map[*node]vip.PeerStatus) {
	if !n.reliable() {
		return
	}
	seen, gone := 1, 0
	for o, s := range statuses {
		if s.Liveness == vip.Alive || s.Liveness == vip.Suspect {
			seen++
			continue
		}
		l := n.c.api.Lease(vip.Key{Namespace: "kube-system", Name: lease.NodePrefix + o.name})
		if s.Liveness == vip.Dead && o.reliable() && l != nil && l.Annotations[lease.FencedAnnotation] == "" &&
			time.Since(l.Spec.AcquireTime.Time) > time.Second && s.Heartbeat.Epoch >= int64(*l.Spec.LeaseTransitions) {
			gone++
		}
	}
	if seen < gone {
		n.c.breaks(netip.Addr{}, []*node{n}, "%s sees %d nodes, has lost sight of %d that renew, and judges them", n.name, seen, gone)
	}
}

// reliable reports whether nothing has been in the way of n's renewals, and of what it hears, for long.
func (n *node) reliable() bool {
	return !n.renews.IsZero() && time.Since(n.renews) > 20*time.Second
}
