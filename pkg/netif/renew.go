package netif

import (
	"context"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// The kernel counts lifetimes in whole seconds, and after it has looked for
// addresses that have ended, it looks again a second later at the earliest
// (ADDRCONF_TIMER_FUZZ_MAX in its check_lifetime and addrconf_verify_rtnl, and up to 30 ms for
// the timer). So an address may live a second longer than it was given if one
// that ends shortly before it, but more than ADDRCONF_TIMER_FUZZ_MINUS (20 ms)
// before, has the kernel look. Renewing in slots, which are further apart than that, makes
// it 4.0 s at most from the death of the process until all its addresses are
// gone, and 3.0 to 3.3 s for most. A process that starts at most 2.5 s after
// another was killed still finds them.
const (
	lifetime = 3                      // seconds
	slots    = 5                      // each address is renewed in one of them
	step     = 100 * time.Millisecond // from one slot to the next; half a second for all
)

// retryDuplicate is how long an address that another host uses is left alone.
const retryDuplicate = 30 * time.Second

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

// rouse wakes renewals. n.mu is held.
func (n *Interfaces) rouse() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// renewals renews what is held until ctx ends. It sleeps while nothing is.
func (n *Interfaces) renewals(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		began, done := time.Now(), 0
		tick := time.NewTicker(step)
		for ctx.Err() == nil && !n.idle() {
			select {
			case <-ctx.Done():
			case <-tick.C:
				// A tick that was late stands for all that were due before it.
				now := int(time.Since(began) / step)
				n.renew(func(slot int) bool { return due(slot, done, now) })
				done = now
			}
		}
		tick.Stop()
	}
}

// due reports whether a slot's turn came after tick done and not after tick now.
func due(slot, done, now int) bool {
	last := now - ((now-slot)%slots+slots)%slots // its last turn
	return last > done
}

// idle reports whether there is nothing to renew or to retry.
func (n *Interfaces) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.held) == 0 && len(n.refused) == 0
}

// renew renews what is in the slots that are due, and removes what must go.
func (n *Interfaces) renew(due func(slot int) bool) {
	n.op.Lock()
	defer n.op.Unlock()
	lost := n.forgive()
	for p, w := range n.inSlots(due) {
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

// inSlots is what is held in those slots.
func (n *Interfaces) inSlots(slot func(int) bool) map[place]vip.Address {
	n.mu.Lock()
	defer n.mu.Unlock()
	due := map[place]vip.Address{}
	for p, h := range n.held {
		if slot(h.slot) {
			due[p] = n.wants[p]
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
