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

// addrOnSide is an address on one side of the LAN.
type addrOnSide struct {
	addr netip.Addr
	side int
}

// A kernelAddress address is in a node's kernel.
type kernelAddress struct {
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
	n.kernel[a] = &kernelAddress{until, p}
	n.c.bound[a] = append(n.c.bound[a], n)
	n.c.checkOwners(a)
}

// unbind takes a out of the kernel.
func (n *node) unbind(a netip.Addr) {
	delete(n.kernel, a)
	n.c.bound[a] = slices.DeleteFunc(n.c.bound[a], func(o *node) bool { return o == n })
	n.c.checkOwners(a)
}

// expire drops what nobody refreshes any more; at no time: all.
func (n *node) expire(now time.Time) {
	for a, b := range n.kernel {
		if now.IsZero() || !now.Before(b.until) {
			n.unbind(a)
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
		n.untilHeard[a.Addr] = !a.Until.IsZero()
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
			n.c.recordLocked(n, a.Addr, "binds %s on %s", a.Addr, a.Lease.Name)
			n.c.eventCount["binds"]++
		}
		p.put(a.Addr, until)
		have = append(have, a)
	}
	for a := range n.kernel {
		if !wanted[a] {
			n.c.recordLocked(n, a, "removes %s", a)
			n.unbind(a)
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
			if end := now.Add(n.clock(lifetime)); t.Confirmed && t.Until.Sub(now) >= time.Second && !n.untilHeard[a] && b.by == p {
				if t.Until.Before(end) {
					end = t.Until
				}
				b.until = end
			}
		}
		lost := len(n.kernel) != before
		said := slices.Collect(maps.Keys(n.announced))
		for a, s := range n.heard {
			if !n.listens[a] && now.Sub(s.At) > 5*time.Second {
				delete(n.heard, a)
			}
		}
		n.c.mu.Unlock()
		n.sendAnnouncements(said) // as l2 does every 3 s
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
	said, heard := n.announced, n.listens
	n.announced, n.listens = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	var news []netip.Addr
	for _, w := range want {
		n.listens[w.Addr] = true
		if !heard[w.Addr] {
			n.c.listeners[w.Addr] = append(n.c.listeners[w.Addr], n)
		}
		if w.ListenOnly {
			continue
		}
		n.announced[w.Addr] = true
		if !said[w.Addr] {
			news = append(news, w.Addr)
		}
	}
	for a := range heard {
		if !n.listens[a] {
			n.c.listeners[a] = slices.DeleteFunc(n.c.listeners[a], func(o *node) bool { return o == n })
			delete(n.poked, a)
		}
	}
	n.c.mu.Unlock()
	n.sendAnnouncements(news)
	return want, nil
}

// sendAnnouncements is one frame for each address, heard by whoever listens on the LAN: it is
// worth a poke if it is news, and once a second after that.
func (n *node) sendAnnouncements(addrs []netip.Addr) {
	c := n.c
	c.mu.Lock()
	poke := map[*node]bool{}
	for _, a := range addrs {
		if !n.cable || n.proc == nil {
			break
		}
		for _, o := range c.listeners[a] {
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
	for _, n := range c.bound[a] {
		if n.cable && n.side == side && now.Before(n.kernel[a].until) {
			who = append(who, n)
		}
	}
	return who
}

// checkOwners checks that no two nodes answer for an address for longer than they may.
// It is called whenever a kernel, a cable, a side or a process has changed, and each 20 ms
// for as long as two answer.
func (c *cluster) checkOwners(a netip.Addr) {
	for side := range 2 {
		w := addrOnSide{a, side}
		who := c.answers(a, side)
		if c.mustAnswer && len(who) == 0 && side == 0 {
			c.fail(a, c.nodes, "nobody answers for %s", a)
		}
		now := time.Now()
		began := c.answersSince[w]
		if began == nil {
			began = map[*node]time.Time{}
			c.answersSince[w] = began
		}
		maps.DeleteFunc(began, func(n *node, _ time.Time) bool { return !slices.Contains(who, n) })
		for _, n := range who {
			if began[n].IsZero() {
				began[n] = now
			}
		}
		delete(c.overlaps, w)
		if len(who) < 2 {
			continue
		}
		c.overlaps[w] = true
		// Since the second of them does: of two hand-overs in a row each has its own time.
		since := slices.SortedFunc(maps.Values(began), time.Time.Compare)[1]
		limit := time.Duration(0)
		names := []string{}
		for _, n := range who {
			limit = max(limit, n.maxOverlap(a))
			names = append(names, n.name)
		}
		if d := now.Sub(since); d > limit {
			c.fail(a, who, "%s is answered by %v for %v, at most %v are good", a, names, d, limit)
		}
	}
}

// recheckOverlaps looks again at what two nodes answer.
func (c *cluster) recheckOverlaps(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		for w := range maps.Clone(c.overlaps) {
			c.checkOwners(w.addr)
		}
		c.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
	}
}

// maxOverlap is how long n may go on answering for what another has.
func (n *node) maxOverlap(a netip.Addr) time.Duration {
	f := n.client.Faults()
	grace := grace + 5*n.c.pass // each end of it may have to wait for a pass
	switch {
	case f != leasetest.NoFaults && n.c.blocksWarning(n):
		return n.clock(10*time.Second) + time.Second // the renew deadline: nobody can tell it
	case n.proc == nil || n.kernel[a].by != n.proc:
		return n.clock(lifetime) + grace // its kernel's
	case n.untilHeard[a] || f.LoseAnswers:
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

// checkAgreement is called when n has agreed with others to move VIPs without the API
// server: they must be half of the voters, at the least.
func (n *node) checkAgreement() {
	c := n.c
	if c.apiAwaySince.IsZero() {
		return
	}
	c.eventCount["agreements"]++
	reach := 0
	for _, o := range c.nodes {
		if o == n || time.Since(o.changed) < 1500*time.Millisecond || o.proc != nil && o.cable && o.side == n.side && !o.portBlocked {
			reach++
		}
	}
	if 2*reach < len(c.voters) {
		c.fail(netip.Addr{}, []*node{n}, "%s is one of %d of a voters of %d or more, and moves VIPs without the API server", n.name, reach, len(c.voters))
	}
}

// checkFence is called when n voids the claims of a node that is gone from the wire: it must
// see as many as it has lost of those that certainly renew, and that it has met since they
// began to. Who hears of renewals late does not know how many those are.
func (n *node) checkFence(statuses map[*node]vip.PeerStatus) {
	if !n.renewsReliably() {
		return
	}
	seen, gone := 1, 0
	for o, s := range statuses {
		if s.Liveness == vip.Alive || s.Liveness == vip.Suspect {
			seen++
			continue
		}
		l := n.c.api.Lease(vip.Key{Namespace: "kube-system", Name: lease.NodePrefix + o.name})
		if s.Liveness == vip.Dead && o.renewsReliably() && l != nil && l.Annotations[lease.FencedAnnotation] == "" &&
			time.Since(l.Spec.AcquireTime.Time) > time.Second && s.Heartbeat.Epoch >= int64(*l.Spec.LeaseTransitions) {
			gone++
		}
	}
	if seen < gone {
		n.c.fail(netip.Addr{}, []*node{n}, "%s sees %d nodes, has lost sight of %d that renew, and judges them", n.name, seen, gone)
	}
}

// renewsReliably reports whether nothing has been in the way of n's renewals, and of what it hears, for long.
func (n *node) renewsReliably() bool {
	return !n.renews.IsZero() && time.Since(n.renews) > 20*time.Second
}
