package netif

import (
	"context"
	"errors"
	"slices"
	"time"
)

// followKernel keeps the snapshot current until ctx ends, and pokes when the view differs. After
// an error it begins again, a second later unless changes were lost. An error is logged once
// until another follows.
func (n *Interfaces) followKernel(ctx context.Context) {
	logged := ""
	for ctx.Err() == nil {
		err := n.followSubscription(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errOverrun) {
			n.log.Debug("reading links and addresses again", "why", err)
			continue
		}
		if text := err.Error(); text != logged {
			n.log.Warn("can't follow the kernel's changes of links and addresses, trying again every second", "err", err)
			logged = text
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// followSubscription subscribes, reads everything once, and then applies change after change,
// until ctx ends or an error.
func (n *Interfaces) followSubscription(ctx context.Context) error {
	sub, err := n.kernel.subscribe()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, sub.close)()
	defer sub.close()
	n.mu.Lock()
	differs, err := n.readAll()
	n.mu.Unlock()
	for {
		if differs {
			n.opts.Poke()
		}
		if err != nil {
			return err
		}
		var changes []change
		if changes, err = sub.receive(); err != nil {
			return err
		}
		differs, err = n.applyChanges(changes)
	}
}

// readAll reads the kernel again, forgets the renewals of addresses that it has no more, and
// publishes. It reports whether there were any, or the view differs. n.mu is held.
func (n *Interfaces) readAll() (bool, error) {
	s, err := n.kernel.read()
	if err != nil {
		return false, err
	}
	lost := false
	for key := range n.renewed {
		a, ok := s.addresses[key]
		switch {
		case !ok:
			delete(n.renewed, key)
			lost = true
		case !n.kernel.keepsMark():
			a.marked, a.secondary = true, false
			s.addresses[key] = a
		}
	}
	n.snapshot, n.changed = s, true
	return n.publish() || lost, nil
}

// applyChanges applies changes to the snapshot, publishes, and reports whether the view differs.
// It reads everything again if a change is doubtful.
func (n *Interfaces) applyChanges(changes []change) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.ContainsFunc(changes, func(c change) bool { return c.routes }) {
		routes, err := n.kernel.routes()
		if err != nil {
			return false, err
		}
		n.snapshot.routes, n.changed = routes, true
	}
	doubt := false
	for _, c := range changes {
		if c.address != nil && n.contradicts(c) {
			doubt = true
			continue
		}
		n.apply(c)
	}
	differs := n.publish()
	if !doubt {
		return differs, nil
	}
	again, err := n.readAll()
	return differs || again, err
}

// contradicts reports whether c differs from what this process knows of an address that
// it renews, or of one that it has just removed. c may be older than that, since a change is
// received later than the answer to a request: then only a new reading tells. n.mu is held.
func (n *Interfaces) contradicts(c change) bool {
	known, there := n.snapshot.addresses[c.address.addressKey]
	if n.renewed[c.address.addressKey] == nil {
		return !c.gone && c.address.marked && !(there && known.marked)
	}
	if !n.kernel.keepsMark() {
		c.address.marked, c.address.secondary = true, false
	}
	return c.gone || *c.address != known
}

// apply applies a change to the snapshot, without publishing it. n.mu is held.
func (n *Interfaces) apply(c change) {
	n.changed = n.snapshot.apply(c) || n.changed
}
