package netif

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// readInterval is how often all routes, maybe a million, or everything is read at most: others on a link can cause it
// by router advertisements.
const readInterval = time.Second / 4

// followKernel keeps the snapshot current until ctx ends, also after errors.
func (n *Interfaces) followKernel(ctx context.Context) {
	logged := ""
	var lost time.Time
	for ctx.Err() == nil {
		err := n.followSubscription(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errOverrun) {
			n.log.Debug("reading links and addresses again", "why", err)
			mailbox.Sleep(ctx, time.Until(lost.Add(readInterval)))
			lost = time.Now()
			continue
		}
		if text := err.Error(); text != logged {
			n.log.Warn("can't follow the kernel's changes of links and addresses, trying again every second", "err", err)
			logged = text
		}
		mailbox.Sleep(ctx, time.Second)
	}
}

// followRoutes reads routes readInterval after a change, to miss no replaced one.
func (n *Interfaces) followRoutes(ctx context.Context) {
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.routesChanged:
		}
		mailbox.Sleep(ctx, readInterval)
		differs, err := n.readRoutes()
		if differs {
			n.opts.Poke()
		}
		if err != nil {
			if !failed {
				n.log.Warn("can't follow the kernel's changes of routes, trying again every second", "err", err)
			}
			mailbox.Sleep(ctx, time.Second-readInterval)
			n.routesChanged.Send()
		}
		failed = err != nil
	}
}

// readRoutes reads the routes, without n.mu, and reports whether the view differs.
func (n *Interfaces) readRoutes() (bool, error) {
	n.mu.Lock()
	before := n.snapshot
	n.mu.Unlock()
	routes, err := n.kernel.routes()
	if err != nil {
		return false, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.snapshot != before { // everything was read meanwhile, routes too, and what is older must not replace it
		return false, nil
	}
	n.snapshot.routes, n.changed = routes, true
	return n.publish(), nil
}

// followSubscription reads everything once, then changes, until ctx ends or an error.
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

// readAll reads the kernel again, and reports whether anything differs. n.mu is held.
func (n *Interfaces) readAll() (bool, error) {
	s, err := n.kernel.read()
	if err != nil {
		return false, err
	}
	lost := false
	for key, r := range n.renewed {
		a, ok := s.addresses[key]
		switch {
		case !ok:
			l := s.links[key.link]
			if l.up && !(l.noIPv6 && key.prefix.Addr().Is6()) && time.Now().Before(r.ends) {
				n.recordTaken(key, l.name)
			}
			delete(n.renewed, key)
			lost = true
		case !n.kernel.keepsMark():
			a.marked, a.secondary, a.permanent = true, false, false
			s.addresses[key] = a
		}
	}
	n.snapshot, n.changed = s, true
	return n.publish() || lost, nil
}

// fightTimes is how often within FightWindow a VIP is removed before users are told.
const fightTimes = 3

// recordTaken notes that another program has removed a VIP. n.mu is held.
func (n *Interfaces) recordTaken(key addressKey, link string) {
	now, a := time.Now(), key.prefix.Addr()
	n.log.Warn("another program has removed a VIP from this node; it is put back", "address", key.prefix, "link", link)
	maps.DeleteFunc(n.taken, func(_ netip.Addr, times []time.Time) bool {
		return now.Sub(times[len(times)-1]) > vip.FightWindow
	})
	n.taken[a] = append(slices.Clone(n.taken[a][max(0, len(n.taken[a])-fightTimes+1):]), now)
}

// applyChanges reports whether the view differs; doubtful changes have all read again.
func (n *Interfaces) applyChanges(changes []change) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.ContainsFunc(changes, func(c change) bool { return c.routes }) {
		n.routesChanged.Send()
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

// contradicts reports whether c, maybe old, differs from what was done here. n.mu is held.
func (n *Interfaces) contradicts(c change) bool {
	known, there := n.snapshot.addresses[c.address.addressKey]
	if n.renewed[c.address.addressKey] == nil {
		return !c.gone && c.address.marked && !(there && known.marked)
	}
	if !n.kernel.keepsMark() {
		c.address.marked, c.address.secondary, c.address.permanent = true, false, false
	}
	return c.gone || *c.address != known
}

// apply applies a change to the snapshot, unpublished. n.mu is held.
func (n *Interfaces) apply(c change) {
	n.changed = n.snapshot.apply(c) || n.changed
}
