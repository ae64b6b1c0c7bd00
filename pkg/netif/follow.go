package netif

import (
	"context"
	"errors"
	"reflect"
	"time"
)

// follow keeps the picture current until ctx ends, and pokes when what it means
// has changed.
func (n *Interfaces) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := n.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errMissed) {
			n.log.Debug("reading links and addresses anew", "why", err)
			continue
		}
		n.log.Warn("can't follow the kernel's changes of links and addresses, trying again in a second", "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// listen subscribes, reads everything once, and then draws change after change.
func (n *Interfaces) listen(ctx context.Context) error {
	feed, err := n.kernel.subscribe()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, feed.close)()
	defer feed.close()
	changed, err := n.reread()
	if err != nil {
		return err
	}
	for {
		if changed {
			n.opts.Poke()
		}
		changes, err := feed.next()
		if err != nil {
			return err
		}
		changed = n.learn(changes)
	}
}

// reread reads the kernel anew and reports whether that changed any fact.
func (n *Interfaces) reread() (bool, error) {
	n.op.Lock() // or what Set does meanwhile would be overwritten
	defer n.op.Unlock()
	p, err := n.kernel.read()
	if err != nil {
		return false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for at, e := range p.entries {
		e.ours = e.ours || n.held[at] != nil
		p.entries[at] = e
	}
	n.picture = p
	for at := range n.held {
		if _, ok := p.entries[at]; !ok {
			delete(n.held, at)
		}
	}
	return n.conclude(), nil
}

// learn draws changes and reports whether they changed any fact.
func (n *Interfaces) learn(changes []change) bool {
	drawn, poke := false, false
	for _, c := range changes {
		if c.routes {
			if routes, err := n.kernel.routes(); err == nil {
				n.mu.Lock()
				n.picture.routes, drawn = routes, true
				n.mu.Unlock()
			}
			continue
		}
		n.mu.Lock()
		if e := c.entry; e != nil {
			h := n.held[e.place]
			e.ours = e.ours || h != nil // kernels before 5.18 don't keep the mark
			if c.gone && h != nil {
				delete(n.held, e.place)
				poke = true
				if e.duplicate {
					n.refused[e.place] = time.Now()
					n.meters.duplicates.Inc()
				}
			}
			if had, ok := n.picture.entries[e.place]; ok && had.tentative != e.tentative {
				poke = true
			}
		}
		drawn = n.picture.apply(c) || drawn
		n.mu.Unlock()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return (drawn && n.conclude()) || poke
}

// draw is for what Set does itself: nobody needs to be told. n.mu is held.
func (n *Interfaces) draw(c change) {
	if n.picture.apply(c) {
		n.conclude()
	}
}

// conclude works out what the picture means and reports whether that is news.
// n.mu is held.
func (n *Interfaces) conclude() bool {
	f := n.picture.means(n.opts)
	if reflect.DeepEqual(f, n.facts) {
		return false
	}
	n.facts = f
	n.meters.addresses.Set(float64(len(f.bound)))
	return true
}
