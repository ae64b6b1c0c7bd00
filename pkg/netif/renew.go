package netif

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// The kernel counts lifetimes in whole seconds and looks at most once a second
// for those that have ended (ADDRCONF_TIMER_FUZZ_MAX in its check_lifetime and
// addrconf_verify_rtnl), so an address may live up to one second longer than
// it was given. With these numbers it is gone at most 4.0 s after its last
// renewal, and a process that starts at most 2.5 s after another was killed still finds it.
const (
	lifetime = 3                      // seconds
	period   = 500 * time.Millisecond // between two renewals of one address
	step     = 50 * time.Millisecond  // between two looks at which are due
	// retryDuplicate is how long an address that another host uses is left alone.
	retryDuplicate = 30 * time.Second
)

// A right is for how long an address may be held.
type right struct {
	seconds uint32    // the lifetime it may be given now; 0 if it may not be bound or renewed
	end     time.Time // when it must be gone
	over    bool      // it must go now
}

// right of w at now. It asks Tenure, so n.mu is not held.
func (n *Interfaces) right(w vip.Address, now time.Time) right {
	t := n.opts.Tenure()
	n.mu.Lock()
	epoch := n.epoch
	n.mu.Unlock()
	r := right{end: t.Until}
	if !w.Until.IsZero() && w.Until.Before(r.end) {
		r.end = w.Until
	}
	left := r.end.Sub(now) / time.Second // rounded down: never past the end
	switch {
	case left < 1:
		r.over = true
	case t.Confirmed && t.Epoch == epoch: // another epoch has other claims: the next Set knows them
		r.seconds = min(uint32(left), lifetime)
	}
	return r
}

// firstDue spreads the renewals of addresses that were bound together, to be
// kind to all who listen to the kernel's changes.
func (n *Interfaces) firstDue() time.Duration {
	return time.Duration(rand.Int64N(int64(period)))
}

// rouse wakes renewals. n.mu is held.
func (n *Interfaces) rouse() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// renewals renews what is held until ctx ends. It sleeps while nothing is.
func (n *Interfaces) renewals(ctx context.Context) {
	tick := time.NewTicker(step)
	defer tick.Stop()
	for ctx.Err() == nil {
		if n.idle() {
			tick.Stop()
			select {
			case <-ctx.Done():
				return
			case <-n.wake:
				tick.Reset(step)
			}
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
			n.renew()
		}
	}
}

// idle reports whether there is nothing to renew or to retry.
func (n *Interfaces) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.held) == 0 && len(n.refused) == 0
}

// renew renews what is due, and removes what must go.
func (n *Interfaces) renew() {
	n.op.Lock()
	defer n.op.Unlock()
	lost := n.forgive()
	for p, w := range n.due() {
		r := n.right(w, time.Now())
		n.mu.Lock()
		e, there := n.picture.entries[p]
		n.mu.Unlock()
		var err error
		switch {
		case r.over:
			lost = true
			err = n.release(p, "the right to hold it has ended")
		case r.seconds > 0 && there:
			err = n.bind(p, w, r, e.tentative)
			n.meters.renewals.Inc()
		}
		if err != nil {
			lost = true
			n.meters.errors.Inc()
			n.log.Warn("an address can't be renewed", "err", err)
			n.drop(p)
		}
	}
	if lost {
		n.opts.Poke()
	}
}

// due is what is to be renewed now. What is given out is due again a period later.
func (n *Interfaces) due() map[place]vip.Address {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	due := map[place]vip.Address{}
	for p, h := range n.held {
		if h.due.After(now) {
			continue
		}
		due[p] = n.wants[p]
		if h.due = h.due.Add(period); h.due.Before(now) {
			h.due = now.Add(period)
		}
	}
	return due
}

// drop no longer renews what is at p; the next Set decides.
func (n *Interfaces) drop(p place) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.held, p)
}

// forgive lets addresses that another host used be tried again, and reports
// whether there were any.
func (n *Interfaces) forgive() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	any := false
	for p, found := range n.refused {
		if time.Since(found) >= retryDuplicate {
			delete(n.refused, p)
			any = true
		}
	}
	return any
}
