package simulation

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A wire is what nodes see of each other on the LAN, as pkg/peers tells it:
// whoever answers is alive at once, whoever is gone is found dead after a while,
// cards arrive a moment after they were told.
type wire struct {
	c *cluster

	mu    sync.Mutex
	r     *rand.Rand
	cards map[*node]vip.Card           // what the process that runs there told last
	seen  map[*node]map[*node]*glimpse // by observer
	mute  map[*node]bool               // its port is blocked
}

// A glimpse is one node's sight of another, and what it is about to become.
type glimpse struct {
	vip.Sight
	next  vip.Seen
	round int
}

func newWire(c *cluster, r *rand.Rand) *wire {
	w := &wire{c: c, r: r, cards: map[*node]vip.Card{}, seen: map[*node]map[*node]*glimpse{}, mute: map[*node]bool{}}
	for _, n := range c.nodes {
		w.seen[n] = map[*node]*glimpse{}
		for _, o := range c.nodes {
			w.seen[n][o] = &glimpse{}
		}
	}
	return w
}

// sights is what lease.Options.Sights wants.
func (w *wire) sights(n *node) func() map[string]vip.Sight {
	if w == nil {
		return nil
	}
	w.mu.Lock() // a new process has met nobody
	for _, g := range w.seen[n] {
		*g = glimpse{round: g.round + 1}
	}
	w.cards[n] = vip.Card{}
	w.mu.Unlock()
	return func() map[string]vip.Sight {
		w.mu.Lock()
		defer w.mu.Unlock()
		all := make(map[string]vip.Sight, len(w.seen[n]))
		for o, g := range w.seen[n] {
			if o != n {
				all[o.name] = g.Sight
			}
		}
		return all
	}
}

// anchor is what lease.Options.Anchor wants: the gateway is on side 0.
func (w *wire) anchor(n *node) func() vip.Seen {
	if w == nil {
		return nil
	}
	return func() vip.Seen {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.cable && n.side == 0 {
			return vip.Alive
		}
		return vip.Dead
	}
}

// tell is what lease.Options.Tell wants.
func (w *wire) tell(n *node) func(vip.Card) {
	if w == nil {
		return nil
	}
	var last vip.Card
	return func(c vip.Card) {
		if c == last {
			return
		}
		last = c
		w.mu.Lock()
		defer w.mu.Unlock()
		w.cards[n] = c
		for _, o := range w.c.nodes {
			if o != n {
				time.AfterFunc(w.between(5, 40), func() { w.deliver(n, o) })
			}
		}
	}
}

func (w *wire) between(least, most int) time.Duration {
	return time.Duration(least+w.r.IntN(most-least)) * time.Millisecond
}

// deliver lets o read the card of n, if anything passes between them.
func (w *wire) deliver(n, o *node) {
	w.mu.Lock()
	g := w.seen[o][n]
	passes := g.State == vip.Alive && w.truth(o, n) == vip.Alive
	if passes {
		g.Card = w.cards[n]
	}
	w.mu.Unlock()
	if passes {
		o.wake()
	}
}

// wake is what pkg/peers does when something it sees has changed.
func (n *node) wake() {
	n.mu.Lock()
	l := n.leases
	n.mu.Unlock()
	if l != nil {
		l.Wake()
	}
}

// truth is how o would look from n after a while.
func (w *wire) truth(n, o *node) vip.Seen {
	n.mu.Lock()
	cable, side := n.cable, n.side
	n.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !cable || !o.cable || side != o.side:
		return vip.Dead
	case o.leases == nil:
		return vip.Dead // its kernel refuses
	case w.mute[n] || w.mute[o]:
		return vip.Mute
	}
	return vip.Alive
}

// change looks at everything again: something about nodes, cables or ports is another.
func (w *wire) change() {
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for n, others := range w.seen {
		for o, g := range others {
			if n == o {
				continue
			}
			t := w.truth(n, o)
			if t == g.next {
				continue
			}
			g.next = t
			g.round++
			round, after := g.round, w.between(250, 600)
			if t == vip.Alive {
				after = w.between(20, 300)
			}
			time.AfterFunc(after, func() { w.turn(n, o, round) })
		}
	}
}

// turn makes o look to n as it is about to look, unless that has changed since.
func (w *wire) turn(n, o *node, round int) {
	w.mu.Lock()
	g := w.seen[n][o]
	if g.round != round || g.next == g.State || g.State == vip.Unknown && g.next != vip.Alive {
		w.mu.Unlock()
		return
	}
	g.State, g.Since = g.next, time.Now()
	if g.State == vip.Alive {
		g.Card = w.cards[o]
	}
	w.mu.Unlock()
	n.wake()
}

// mistake lets n take o for dead for a while, though it is alive.
func (w *wire) mistake(n, o *node) {
	w.mu.Lock()
	g := w.seen[n][o]
	if g.State == vip.Alive {
		g.State, g.Since = vip.Dead, time.Now()
		g.round++
		round := g.round
		time.AfterFunc(w.between(50, 2000), func() { w.turn(n, o, round) })
	}
	w.mu.Unlock()
	n.wake()
}

// block blocks a node's gossip port, or lets it through again.
func (w *wire) block(n *node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mute[n] = !w.mute[n]
}

// deafened reports whether any node's port is blocked.
func (w *wire) deafened() bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.mute {
		if m {
			return true
		}
	}
	return false
}

// heal makes all well again.
func (w *wire) heal() {
	if w == nil {
		return
	}
	w.mu.Lock()
	clear(w.mute)
	w.mu.Unlock()
	w.change()
}
