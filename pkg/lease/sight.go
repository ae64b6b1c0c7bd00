package lease

import (
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Times of what is seen on the wire.
const (
	quickTurn = 150 * time.Millisecond // between the nodes that might fence one that is gone from the wire
	company   = 3 * time.Second        // how long a node must be among the others again before it counts as such
)

// dead reports whether the node is gone from the wire, in the very life that its
// node lease is about. A node that has begun another life since then has no way
// to gossip, or is cut off from this link only: its lease tells.
func (p *peer) dead() bool {
	return p.sight.Liveness == vip.Dead && p.epoch != 0 && p.sight.Heartbeat.Epoch >= p.epoch
}

// yielded reports whether the node says that it holds nothing, since it can't
// renew its lease.
func (p *peer) yielded() bool {
	c := p.sight.Heartbeat
	return p.sight.Liveness == vip.Alive && c.Epoch == p.epoch && p.epoch != 0 && !c.TenureValid && !c.APIReachable
}

// look takes over what is seen on the wire. sights is nil if nothing can be.
func (l *Leases) look(sights map[string]vip.PeerStatus, now time.Time) {
	l.wired = sights != nil
	for _, s := range sights {
		if s.Liveness == vip.Alive && l.own.epoch != 0 && s.Heartbeat.VoidedClaim == claimText(l.o.Node, l.own.epoch) {
			l.lose("another node has voided it")
		}
	}
	for node, p := range l.peers {
		s := sights[node]
		// The rest of the Card is for those without an API server, who say so once it changes anything.
		if s.Liveness != p.sight.Liveness || s.Heartbeat.Epoch != p.sight.Heartbeat.Epoch || s.Heartbeat.TenureValid != p.sight.Heartbeat.TenureValid {
			l.signature.changes++
		}
		p.sight = s
		p.lacked = l.lacks(now) && (p.lacked || s.Liveness == vip.Alive && !s.Heartbeat.APIReachable)
		if !p.yielded() {
			p.yields = time.Time{}
		} else if p.yields.IsZero() {
			p.yields = now
		}
	}
	l.gauge(now)
}

// mute is the nodes that have been mute for a while, sorted.
func (l *Leases) mute(now time.Time) []string {
	var all []string
	for node, p := range l.peers {
		if p.sight.Liveness == vip.Suspect && now.Sub(p.sight.Since) > company && l.renews(p, now) {
			all = append(all, node)
		}
	}
	slices.Sort(all)
	return all
}

// gauge counts who is on the wire: whether this node may speak for the others,
// and whether it is cut off from them.
func (l *Leases) gauge(now time.Time) {
	known, seen, heard := 1, 1, 1
	for _, p := range l.peers {
		if !l.renews(p, now) {
			continue
		}
		switch {
		case p.dead():
			known++
		case p.sight.Liveness == vip.Alive, p.sight.Liveness == vip.Suspect:
			known, seen = known+1, seen+1
			if !p.sight.Overdue {
				heard++
			}
		}
	}
	anchor := vip.Unknown
	if 2*seen == known {
		anchor = l.anchor() // two halves: that which has the gateway is the better one
	}
	l.quorum = 2*heard > known || 2*heard == known && anchor == vip.Alive
	cut := 2*seen < known || 2*seen == known && anchor == vip.Dead
	if cut {
		l.cut = now
	}
	switch {
	case cut && !l.lacks(now):
		if !l.alone {
			l.o.Log.Warn("this node reaches too few other nodes on the VIPs' link, though its link is up; it carries no VIP until it does", "reached", seen-1, "of", known-1)
		}
		l.alone, l.aloneLast = true, now
	case l.alone && now.Sub(l.aloneLast) > company:
		l.alone = false
		l.o.Log.Info("this node reaches the other nodes on the VIPs' link again")
	}
}

// anchor is how the default gateway looks; Unknown if nobody can tell.
func (l *Leases) anchor() vip.Liveness {
	if l.o.Anchor == nil {
		return vip.Unknown
	}
	return l.o.Anchor()
}

// overdue says why claims of p must be voided now, or "".
func (l *Leases) overdue(node string, p *peer, now time.Time) string {
	order := func() time.Duration { return time.Duration(l.turn(node, now)) } // it looks at all nodes
	since := later(p.changed, l.own.unbroken)                                 // a node gets its whole time again once this one can see its renewals
	switch {
	// Who comes back among the others meets them one by one: those that it has not met yet still look gone.
	case p.dead() && l.quorum && now.Sub(l.cut) > company && now.Sub(p.sight.Since) >= order()*quickTurn:
		return "it is gone from the wire"
	case !p.yields.IsZero() && p.silent(now, l.o.RetryPeriod) && now.Sub(p.yields) >= order()*quickTurn:
		return "it says that it can't renew its lease and holds nothing"
	case now.Sub(since) >= l.o.Duration && now.Sub(since) >= l.o.Duration+order()*turn:
		return "its lease is silent"
	}
	return ""
}
