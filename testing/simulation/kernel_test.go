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
	maxLifetime = vip.KernelAnswers // of a bound address that nobody refreshes
	refresh     = vip.AddressRenewal

	// grace is how long two nodes may answer at once while a watch event and a frame are on
	// their way.
	grace = 100 * time.Millisecond

	// agentRest is how long an agent rests at most after a pass, as one that hung.
	agentRest = 250 * time.Millisecond
)

// addrOnSide is an address on one side of the LAN.
type addrOnSide struct {
	addr netip.Addr
	side int
}

// A kernelAddress is the state of an address in a node's kernel.
type kernelAddress struct {
	until time.Time // the kernel removes it then
	by    *process  // who put it there, or refreshed it last
	lease vip.Key   // for which by did
	epoch int64     // in which by did
}

// lifetime is how long the kernel of n keeps an address that nobody refreshes: each node's is late by another time.
func (n *node) lifetime() time.Duration {
	return n.clock(vip.AddressLifetime) + time.Duration(n.id*370%1100)*time.Millisecond
}

// put puts an address into the kernel of p's node, or refreshes it.
func (p *process) put(want vip.Address, until time.Time) {
	n, a := p.n, want.Addr
	if b := n.kernel[a]; b != nil {
		b.until, b.by, b.lease, b.epoch = until, p, want.Lease, want.Epoch
		return
	}
	n.kernel[a] = &kernelAddress{until, p, want.Lease, want.Epoch}
	n.c.bound[a] = append(n.c.bound[a], n)
	n.c.checkOwners(a)
}

// unbind takes a out of the kernel.
func (n *node) unbind(a netip.Addr) {
	delete(n.kernel, a)
	n.c.bound[a] = slices.DeleteFunc(n.c.bound[a], func(o *node) bool { return o == n })
	n.c.checkOwners(a)
}

// expire removes the addresses whose lifetime is over; all at the zero time.
func (n *node) expire(now time.Time) {
	for a, b := range n.kernel {
		if now.IsZero() || !now.Before(b.until) {
			n.unbind(a)
		}
	}
}

func (p *process) bind(want []vip.Address) (have []vip.Address, err error) {
	n := p.n
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	for p.runs() && n.has(bindHangs) {
		n.c.resumed.Wait()
	}
	if !p.awaitRunning() {
		return nil, nil
	}
	n.c.mu.Unlock()
	t := p.leases.Tenure()
	n.c.mu.Lock()
	now := time.Now()
	n.expire(now)
	wanted := map[netip.Addr]bool{}
	var handingOver map[vip.Key]vip.HandingOver
	if last := p.agent.Last(); last != nil { // of this pass
		handingOver = last.World.HandingOver
	}
	for _, a := range want {
		until := t.Until
		_, hands := handingOver[a.Lease]
		n.untilHeard[a.Addr] = !a.Until.IsZero() && hands
		if !a.Until.IsZero() && a.Until.Before(until) {
			until = a.Until
		}
		if end := now.Add(n.lifetime()); end.Before(until) {
			until = end
		}
		if until.Sub(now) < time.Second {
			continue
		}
		wanted[a.Addr] = true
		if n.kernel[a.Addr] == nil {
			if !t.Confirmed || a.Epoch != t.Epoch {
				continue
			}
			n.c.recordLocked(n, a.Addr, "binds %s on %s", a.Addr, a.Lease.Name)
			n.c.eventCount["binds"]++
		}
		if a.Epoch == t.Epoch {
			p.put(a, until)
		}
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

// refresh extends the lifetime of bound addresses while the node's tenure lasts, and repeats the
// announcements, until ctx or p ends.
func (p *process) refresh(ctx context.Context) {
	n := p.n
	for ticker := time.NewTicker(n.clock(refresh)); ; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C:
		}
		n.c.mu.Lock()
		runs := p.awaitRunning()
		n.c.mu.Unlock()
		if !runs {
			return
		}
		t, now := p.leases.Tenure(), time.Now()
		n.c.mu.Lock()
		before := len(n.kernel)
		n.expire(now)
		for a, b := range n.kernel {
			if end := now.Add(n.lifetime()); t.Confirmed && t.Until.Sub(now) >= time.Second && !n.untilHeard[a] && b.by == p && b.epoch == t.Epoch {
				if t.Until.Before(end) {
					end = t.Until
				}
				b.until = end
			}
		}
		lost := len(n.kernel) != before
		announced := slices.Collect(maps.Keys(n.announced))
		for a, s := range n.heard {
			if !n.listens[a] && now.Sub(s.At) > 5*time.Second {
				delete(n.heard, a)
			}
		}
		n.c.mu.Unlock()
		n.sendAnnouncements(announced) // as l2 does every 3 s
		if lost {
			n.poke()
		}
	}
}

// announce sends an announcement for each address that was not wanted before.
func (p *process) announce(want []vip.Announcement) ([]vip.Announcement, error) {
	n := p.n
	n.c.mu.Lock()
	if !p.awaitRunning() {
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

// sendAnnouncements sends one frame for each address to the nodes on the same side of the LAN that
// listen for it, and pokes their agents, for one address at most once a second.
func (n *node) sendAnnouncements(addrs []netip.Addr) {
	c := n.c
	c.mu.Lock()
	poke := map[*node]bool{}
	for _, a := range addrs {
		if !n.transmits && !c.apart || n.proc == nil || n.has(hung) {
			break
		}
		for _, o := range c.listeners[a] {
			if o == n || !c.apart && (!o.receives || o.side != n.side) {
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

// reaches reports whether frames of n on the VIPs' link come to o, and back.
func (n *node) reaches(o *node) bool {
	return !n.off && !o.off && (n.c.apart || n.transmits && n.receives && o.transmits && o.receives && n.side == o.side)
}

// answers returns the nodes that answer for an address on one side of the LAN now.
func (c *cluster) answers(a netip.Addr, side int) (who []*node) {
	now := time.Now()
	for _, n := range c.bound[a] {
		if n.reaches(n) && (n.side == side || c.apart) && now.Before(n.kernel[a].until) {
			who = append(who, n)
		}
	}
	return who
}

// checkOwners checks that no two nodes answer for an address for longer than maxOverlap, and that one
// does if mustAnswer is set.
// It is called whenever a kernel, a cable, a side or a process has changed, and each 20 ms
// for as long as two answer.
func (c *cluster) checkOwners(a netip.Addr) {
	sides := 2
	if c.apart {
		sides = 1
	}
	for side := range sides {
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
		// Since the second of them answers: of two hand-overs in a row each has its own time.
		since := slices.SortedFunc(maps.Values(began), time.Time.Compare)[1]
		limit := time.Duration(0)
		names := []string{}
		for _, n := range who {
			limit = max(limit, n.maxOverlap(a))
			names = append(names, n.name)
		}
		if d := now.Sub(since); d > limit {
			c.fail(a, who, "%s is answered by %v for %v, at most %v are allowed", a, names, d, limit)
		}
	}
}

// recheckOverlaps calls checkOwners every 20 ms for addresses that two nodes answer for, and checkSilence.
func (c *cluster) recheckOverlaps(ctx context.Context) {
	for ctx.Err() == nil {
		c.mu.Lock()
		for w := range maps.Clone(c.overlaps) {
			c.checkOwners(w.addr)
		}
		c.checkSilence()
		c.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
	}
}

// checkSilence checks that no VIP has been unanswered for longer than maxSilence, if that is set.
func (c *cluster) checkSilence() {
	for _, s := range c.services {
		a := s.Addresses[0]
		switch {
		case c.maxSilence == 0 || len(c.answers(a, 0)) > 0:
			delete(c.silentSince, a)
		case c.silentSince[a].IsZero():
			c.silentSince[a] = time.Now()
		case time.Since(c.silentSince[a]) > c.maxSilence:
			c.fail(a, c.nodes, "nobody answers for %s since %v", a, time.Since(c.silentSince[a]))
		}
	}
}

// maxOverlap is how long n may go on answering for an address after another has bound it.
func (n *node) maxOverlap(a netip.Addr) time.Duration {
	f := n.client.Faults()
	grace := grace + 5*n.c.pass // each end of it may have to wait for a pass
	switch {
	case n.c.strict && !n.untilHeard[a]:
		return grace
	case f != leasetest.NoFaults && n.c.blocksWarning(n):
		return n.clock(n.c.timing.RenewDeadline) + time.Second // it can't be warned
	case n.proc == nil || n.has(hung) || n.has(bindHangs) || n.kernel[a].by != n.proc || time.Since(n.changed) < grace+agentRest: // a process that no longer hangs needs a moment
		return n.clock(maxLifetime) + grace // its kernel's
	case n.untilHeard[a] || f.LoseAnswers:
		// It keeps the address until it hears its successor, or, if the answer to its write is
		// lost, until its watch shows the write.
		return 3*time.Second + grace
	case n.c.wire != nil:
		return time.Second // heartbeats show it that its epoch is over
	}
	return grace
}

// blocksWarning reports whether a blocked heartbeat port may keep n from hearing that its
// epoch is over: its own, or any in a cluster of less than ten nodes.
func (c *cluster) blocksWarning(n *node) bool {
	return n.portBlocked || len(c.nodes) < 10 && slices.ContainsFunc(c.nodes, func(o *node) bool { return o.portBlocked })
}

// checkAgreement checks, when n has agreed with others to move VIPs without the API server,
// that they are at least half of the voters.
func (n *node) checkAgreement() {
	c := n.c
	if c.apiAwaySince.IsZero() {
		return
	}
	c.eventCount["agreements"]++
	reach := 0
	for _, o := range c.nodes {
		if o == n || time.Since(o.changed) < 1500*time.Millisecond || o.proc != nil && o.transmits && o.receives && o.side == n.side && !o.portBlocked {
			reach++
		}
	}
	if 2*reach < len(c.voters) {
		c.fail(netip.Addr{}, []*node{n}, "%s is one of %d nodes of %d voters or more, and moves VIPs without the API server", n.name, reach, len(c.voters))
	}
}

// checkFence checks, when n fences a node, that n sees at least as many nodes as it has lost: those
// that certainly renew, and whose heartbeats of the current epoch n has received. If n's own
// watch was not reliable, it can't know these, and nothing is checked.
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
		l := n.c.api.Lease(vip.Key{Namespace: "kube-system", Name: vip.NodeLeasePrefix + o.name})
		if s.Liveness == vip.Dead && o.renewsReliably() && l != nil && l.Annotations[lease.FencedAnnotation] == "" &&
			time.Since(l.Spec.AcquireTime.Time) > time.Second && s.Heartbeat.Epoch >= int64(*l.Spec.LeaseTransitions) {
			gone++
		}
	}
	if seen < gone {
		n.c.fail(netip.Addr{}, []*node{n}, "%s sees %d nodes, has lost %d that renew, and fences them", n.name, seen, gone)
	}
}

// renewsReliably reports whether n's renewals and watch have been without a fault for 20 s.
func (n *node) renewsReliably() bool {
	return !n.renews.IsZero() && time.Since(n.renews) > 20*time.Second
}
