package netif

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"
)

// follow keeps the picture current until ctx ends, and pokes when what it means
// has changed.
func (n *Interfaces) follow(ctx context.Context) {
	said := ""
	for ctx.Err() == nil {
		err := n.listen(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errMissed) {
			n.log.Debug("reading links and addresses anew", "why", err)
			continue
		}
		if text := err.Error(); text != said {
			n.log.Warn("can't follow the kernel's changes of links and addresses, trying again every second", "err", err)
			said = text
		}
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
	for {
		if changed {
			n.opts.Poke()
		}
		if err != nil {
			return err
		}
		var changes []change
		if changes, err = feed.next(); err != nil {
			return err
		}
		changed, err = n.learn(changes)
	}
}

// reread reads the kernel anew and reports whether a fact has changed, or
// something is lost that was held.
func (n *Interfaces) reread() (bool, error) {
	n.op.Lock() // what is read is older than what Set would do meanwhile
	defer n.op.Unlock()
	p, err := n.kernel.read()
	if err != nil {
		return false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	lost := false
	for at := range n.held {
		e, ok := p.entries[at]
		switch {
		case !ok:
			delete(n.held, at)
			lost = true
		case !n.kernel.marks():
			e.ours = true
			p.entries[at] = e
		}
	}
	n.picture = p
	return n.conclude() || lost, nil
}

// learn draws changes and reports whether they changed any fact.
func (n *Interfaces) learn(changes []change) (bool, error) {
	var routes []route
	moved := slices.ContainsFunc(changes, func(c change) bool { return c.routes })
	if moved {
		var err error
		if routes, err = n.kernel.routes(); err != nil {
			return false, err
		}
	}
	n.mu.Lock()
	if moved {
		n.picture.routes = routes
	}
	drawn, doubt := moved, false
	for _, c := range changes {
		if c.entry != nil && n.stale(c) {
			doubt = true
			continue
		}
		drawn = n.picture.apply(c) || drawn
	}
	changed := drawn && n.conclude()
	n.mu.Unlock()
	if !doubt {
		return changed, nil
	}
	reread, err := n.reread()
	return changed || reread, err
}

// stale reports whether c contradicts what this process knows of an address that
// it holds, or of one that it has just removed. It may be older than that, since a
// change is heard of later than the answer to a request: then only a new reading
// tells. n.mu is held.
func (n *Interfaces) stale(c change) bool {
	known, there := n.picture.entries[c.entry.place]
	if n.held[c.entry.place] == nil {
		return !c.gone && c.entry.ours && !(there && known.ours)
	}
	if !n.kernel.marks() {
		c.entry.ours = true
	}
	return c.gone || *c.entry != known
}

// draw is for what Set does itself: nobody needs to be poked, and what an address means
// is worked out when somebody asks. n.mu is held.
func (n *Interfaces) draw(c change) {
	n.drawn = n.picture.apply(c) || n.drawn
	if c.link != nil && n.drawn {
		n.conclude()
	}
}

// conclude works out what the picture means and reports whether that is news.
// n.mu is held.
func (n *Interfaces) conclude() bool {
	n.drawn = false
	f, before := n.picture.means(n.opts), n.facts
	n.facts = f
	if !reflect.DeepEqual(f.links, before.links) && n.opts.OnLinkChange != nil {
		n.opts.OnLinkChange()
	}
	before.links = f.links
	if reflect.DeepEqual(f, before) {
		return false
	}
	n.meters.addresses.Set(float64(len(f.bound)))
	return true
}

// known is what the picture means. n.mu is held.
func (n *Interfaces) known() facts {
	if n.drawn {
		n.conclude()
	}
	return n.facts
}
