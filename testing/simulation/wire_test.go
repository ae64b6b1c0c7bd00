package simulation

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/vip"
)

// A wire is what nodes see of each other on the LAN, as pkg/peers reports it: a node that answers is
// alive at once, one that does not is found dead after a while, heartbeats arrive a moment after they
// were sent.
type wire struct {
	c *cluster

	mu         sync.Mutex // is taken before the cluster's
	r          *rand.Rand
	heartbeats []vip.Heartbeat          // by node: the last that its process has sent
	views      [][]peerView             // by observer, and node
	deliveries map[time.Time][]delivery // by time

	realGateway bool // the gateway is asked as pkg/peers does, and detection takes as long as there with two nodes
}

// A reachability is what a node would find of another after a while.
type reachability struct {
	liveness vip.Liveness
	ended    bool // Dead: its process has ended, and its kernel answers
	silent   bool // Suspect: nobody hears it
	unasked  bool // and it can't be asked, since nobody hears who asks
	heard    bool // Suspect: it is heard, but hears nothing of the one that finds it so
}

// A peerView is one node's status of another, and how it will find it next.
type peerView struct {
	vip.PeerStatus
	next        reachability
	lostAt      time.Time // when next last ceased to be Alive
	overdueFrom time.Time // when it becomes overdue, if next is not alive
	round       int
	lateUntil   time.Time // a heartbeat is late
}

// overdueAfter is two heartbeat periods of pkg/peers.
const overdueAfter = 200 * time.Millisecond

// unansweredAfter is after what time a node knows that what it sends to another no longer arrives: by pkg/peers' second probe without an answer.
const unansweredAfter = 5 * time.Second

// A delivery changes what one node sees. apply reports whether it has changed anything.
type delivery struct {
	to    *node
	apply func() bool
}

func newWire(c *cluster, r *rand.Rand) *wire {
	w := &wire{c: c, r: r, heartbeats: make([]vip.Heartbeat, len(c.nodes)), deliveries: map[time.Time][]delivery{}}
	for range c.nodes {
		w.views = append(w.views, make([]peerView, len(c.nodes)))
	}
	return w
}

// forget has the other nodes know n no more, as long after its node lease is gone.
func (w *wire) forget(n *node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.views {
		g := &w.views[i][n.id]
		*g = peerView{round: g.round + 1}
	}
}

// A processWire is the wire as a process sees it: lease.Options.Peers and Gateway.
type processWire struct {
	*wire
	p    *process
	last vip.Heartbeat

	gateway *peers.Gateway // nil: it is known at any time
}

// connect returns the wire for a new process, which has seen no other node yet.
func (w *wire) connect(p *process) *processWire {
	n := p.n
	w.mu.Lock()
	for i := range w.views[n.id] {
		g := &w.views[n.id][i]
		*g = peerView{round: g.round + 1}
	}
	w.heartbeats[n.id] = vip.Heartbeat{}
	w.mu.Unlock()
	return &processWire{wire: w, p: p}
}

// Statuses is the state of the other nodes. A step of Leases, which begins with it, takes a tenth of a pass.
func (w *processWire) Statuses() map[string]vip.PeerStatus {
	n := w.p.n
	if n.c.pass > 0 {
		time.Sleep(n.c.pass / 10)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make(map[string]vip.PeerStatus, len(w.c.nodes))
	for i, o := range w.c.nodes {
		if o != n {
			g := w.views[n.id][i] // a copy
			now := time.Now()
			late := g.next.liveness != vip.Alive && !now.Before(g.overdueFrom) || now.Before(g.lateUntil)
			g.Overdue = g.Liveness == vip.Alive && late
			if g.HeardAt = g.lostAt; g.next.liveness == vip.Alive || g.next.heard {
				g.HeardAt = now
			}
			g.Unanswered = g.Liveness == vip.Suspect && g.next.heard && !g.lostAt.IsZero() && now.Sub(g.lostAt) > unansweredAfter
			g.EchoOverdue = g.next.heard && now.Sub(g.lostAt) > overdueAfter
			if g.next.silent && !g.next.unasked || g.next.ended {
				g.AnsweredAt = now
			}
			if g.next.silent && now.Sub(g.lostAt) > overdueAfter {
				g.SilentSince = g.lostAt
			}
			all[o.name] = g.PeerStatus
		}
	}
	return all
}

// statusesOf returns the statuses of the other nodes as n sees them; nil without a wire.
func (w *wire) statusesOf(n *node) map[*node]vip.PeerStatus {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	looks := map[*node]vip.PeerStatus{}
	for i, o := range w.c.nodes {
		if o != n {
			looks[o] = w.views[n.id][i].PeerStatus
		}
	}
	return looks
}

// Liveness is the gateway's, which is on side 0.
func (w *processWire) Liveness(since time.Time) vip.Liveness {
	if w.gateway != nil {
		return w.gateway.Liveness(since)
	}
	return w.gatewayAnswers()
}

// runGateway has the gateway asked as pkg/peers does it, by l2.Resolve, which takes 120 ms if there is no answer.
func (w *processWire) runGateway(ctx context.Context) {
	w.gateway = peers.NewGateway(peers.GatewayOptions{
		Address: func() netip.Addr { return netip.MustParseAddr("10.0.0.254") },
		Answers: func(context.Context, netip.Addr) bool {
			if w.gatewayAnswers() == vip.Alive {
				time.Sleep(time.Millisecond)
				return true
			}
			time.Sleep(120 * time.Millisecond)
			return false
		},
		Poke: w.p.n.wakeLeases,
	})
	go w.gateway.Run(ctx)
}

func (w *processWire) gatewayAnswers() vip.Liveness {
	n := w.p.n
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if n.transmits && n.receives && n.side == 0 {
		return vip.Alive
	}
	return vip.Dead
}

// Off is "": heartbeats are exchanged.
func (w *processWire) Off() string { return "" }

// AddressLost is false: nodes keep their addresses.
func (w *processWire) AddressLost() bool { return false }

// SetHeartbeat delivers a heartbeat that differs from the last one a moment later.
func (w *processWire) SetHeartbeat(h vip.Heartbeat) {
	if h == w.last {
		return
	}
	w.last = h
	n := w.p.n
	w.mu.Lock()
	defer w.mu.Unlock()
	w.c.mu.Lock()
	runs := w.p.runs()
	w.c.mu.Unlock()
	if !runs {
		return
	}
	w.heartbeats[n.id] = h
	for _, o := range w.c.nodes {
		if o != n {
			w.after(w.between(5, 40), o, func() bool { return w.deliverHeartbeat(n, o) })
		}
	}
}

func (w *wire) between(from, to int) time.Duration {
	return time.Duration(from+w.r.IntN(to-from)) * time.Millisecond
}

// after schedules a delivery. As a process takes a moment to read what has arrived, a node is woken
// once for all deliveries within 5 ms.
func (w *wire) after(d time.Duration, to *node, apply func() bool) {
	const grid = 5 * time.Millisecond
	at := time.Now().Add(d).Truncate(grid).Add(grid)
	if len(w.deliveries[at]) == 0 {
		time.AfterFunc(time.Until(at), func() { w.deliverDue(at) })
	}
	w.deliveries[at] = append(w.deliveries[at], delivery{to, apply})
}

// deliverDue makes the deliveries of one time, and wakes the nodes that they changed something for.
func (w *wire) deliverDue(at time.Time) {
	wake := make([]bool, len(w.c.nodes))
	w.mu.Lock()
	for _, m := range w.deliveries[at] {
		if m.apply() {
			wake[m.to.id] = true
		}
	}
	delete(w.deliveries, at)
	w.mu.Unlock()
	for i, n := range w.c.nodes {
		if wake[i] {
			n.wakeLeases()
		}
	}
}

// deliverHeartbeat gives o the heartbeat of n, unless o does not hear n, or has it already. It
// reports whether it was given.
func (w *wire) deliverHeartbeat(n, o *node) bool {
	g := &w.views[o.id][n.id]
	if r := w.reach(o, n); g.Liveness != vip.Alive && g.Liveness != vip.Suspect || g.Heartbeat == w.heartbeats[n.id] || r.liveness != vip.Alive && !r.heard {
		return false
	}
	g.Heartbeat = w.heartbeats[n.id]
	return true
}

// wakeLeases is what pkg/peers does when something it sees has changed.
func (n *node) wakeLeases() {
	n.c.mu.Lock()
	p := n.proc
	n.c.mu.Unlock()
	if p != nil {
		p.leases.Wake()
	}
}

// reach returns how n would find o after a while.
func (w *wire) reach(n, o *node) reachability {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	switch {
	case !w.hears(n, o) && !n.transmits && slices.ContainsFunc(w.c.nodes, func(x *node) bool { return x != n && w.hears(n, x) }):
		return reachability{liveness: vip.Suspect, silent: true, unasked: true}
	case o.off, !n.receives || !o.transmits || n.side != o.side, (!n.transmits || !o.receives) && !w.hears(n, o):
		return reachability{liveness: vip.Dead}
	case !n.transmits, !o.receives:
		return reachability{liveness: vip.Suspect, heard: true}
	case o.proc == nil:
		return reachability{liveness: vip.Dead, ended: true} // its kernel refuses
	case n.portBlocked || o.portBlocked || o.has(hung):
		return reachability{liveness: vip.Suspect, silent: true}
	}
	return reachability{liveness: vip.Alive}
}

// hears reports whether heartbeats of o come to n.
func (w *wire) hears(n, o *node) bool {
	return n.receives && o.transmits && n.side == o.side && o.proc != nil && !o.has(hung) && !n.portBlocked && !o.portBlocked
}

// peersChanged schedules, after a change of n, how n will see the others, and they n.
func (w *wire) peersChanged(n *node) {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, o := range w.c.nodes {
		if o != n {
			w.scheduleView(n, o)
			w.scheduleView(o, n)
		}
	}
}

// scheduleView schedules the moment at which n detects a changed liveness of o.
func (w *wire) scheduleView(n, o *node) {
	g, t := &w.views[n.id][o.id], w.reach(n, o)
	if t == g.next {
		return
	}
	if g.next.liveness == vip.Alive {
		g.lostAt = time.Now()
	}
	g.next, g.overdueFrom = t, time.Now().Add(overdueAfter)
	g.round++
	round, after := g.round, w.between(250, 600)
	if w.realGateway {
		g.overdueFrom, after = time.Now().Add(100*time.Millisecond), w.between(245, 300)
	}
	if t.liveness == vip.Alive {
		after = w.between(20, 300)
	}
	w.after(after, n, func() bool { return w.applyView(n, o, round) })
}

// applyView makes n see the next liveness of o, unless that was rescheduled since (by round). It
// reports whether the liveness has changed.
func (w *wire) applyView(n, o *node, round int) bool {
	g := &w.views[n.id][o.id]
	before := g.PeerStatus
	if g.round != round || g.Liveness == vip.Unknown && g.next.liveness != vip.Alive && !g.next.heard {
		return false
	}
	g.Liveness, g.ProcessEnded, g.Gone = g.next.liveness, g.next.ended, g.next.liveness == vip.Dead && !g.next.ended
	if g.Liveness != before.Liveness {
		g.Since = time.Now()
	} else if g.Gone == before.Gone {
		return false
	}
	if g.Liveness == vip.Alive {
		g.Heartbeat = w.heartbeats[o.id]
	}
	return true
}

// takeForDead makes n see o as dead for a while, though it is alive.
func (w *wire) takeForDead(n, o *node) {
	w.mu.Lock()
	if g := &w.views[n.id][o.id]; g.Liveness == vip.Alive {
		g.Liveness, g.Since, g.ProcessEnded, g.Gone = vip.Dead, time.Now(), false, false
		g.round++
		round := g.round
		w.after(w.between(50, 2000), n, func() bool { return w.applyView(n, o, round) })
	}
	w.mu.Unlock()
	n.wakeLeases()
}
