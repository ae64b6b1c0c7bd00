package netif

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// The kernel counts lifetimes in whole seconds. It looks for addresses that have
// ended when the first of them has (up to a third of a second late, by the grain
// of its timers), and after each look, whatever was the reason for it, not again
// for a second (ADDRCONF_TIMER_FUZZ_MAX in check_lifetime and
// addrconf_verify_rtnl). So addresses that were renewed together, within
// ADDRCONF_TIMER_FUZZ_MINUS (20 ms), go together, 3.0 to 3.4 s after that; a
// change of any other address within the last of these seconds may make it 4.1 s.
// A process that starts 2.2 s after another was killed still finds all, and one that is
// kept from running for 2.2 s loses none.
//
// 333 addresses of both families take 6 ms to renew (see BenchmarkRenewal), and so a
// hundredth of a core (BenchmarkSecond). Most of that is the kernel's with IPv6: it
// joins the link's groups anew each time (ipv6_find_idev calls ipv6_mc_up).
const (
	lifetime = 3 // seconds
	period   = 750 * time.Millisecond
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

// rouse wakes renewals. n.mu is held.
func (n *Interfaces) rouse() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// renewals renews what is held until ctx ends. It sleeps while nothing is.
func (n *Interfaces) renewals(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		tick := time.NewTicker(period)
		for ctx.Err() == nil && !n.idle() {
			select {
			case <-ctx.Done():
			case <-tick.C:
				n.renew()
			}
		}
		tick.Stop()
	}
}

// idle reports whether there is nothing to renew.
func (n *Interfaces) idle() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.held) == 0
}

// chunk is how many addresses are renewed at a time: so many that it is cheap,
// and so few that Set does not wait for long.
const chunk = 64

// renew renews what is held, and removes what must go.
func (n *Interfaces) renew() {
	n.mu.Lock()
	held := slices.Collect(maps.Keys(n.held))
	n.mu.Unlock()
	for part := range slices.Chunk(held, chunk) {
		n.renewSome(part)
	}
}

func (n *Interfaces) renewSome(part []place) {
	n.op.Lock()
	defer n.op.Unlock()
	over := false
	var due []binding
	for _, p := range part {
		n.mu.Lock()
		_, held := n.held[p]
		w := n.wants[p]
		n.mu.Unlock()
		r := n.right(w, time.Now())
		switch {
		case !held: // Set has been here meanwhile
		case r.over:
			over = true
			n.complain(p, n.release(p, "the right to hold it has ended"))
		case r.seconds > 0:
			due = append(due, binding{place: p, link: w.Link, seconds: r.seconds})
		}
	}
	for i, err := range n.bindAll(n.kernel.renew, due) {
		n.meters.renewals.Inc()
		n.complain(due[i].place, err)
	}
	if over {
		n.opts.Poke()
	}
}

// complain warns once of a renewal that fails. It is tried again while the kernel
// still has the address; when that drops it, the next Set knows.
func (n *Interfaces) complain(p place, err error) {
	if err != nil {
		n.meters.errors.Inc()
	}
	n.mu.Lock()
	h := n.held[p]
	first := err != nil && (h == nil || !h.failed)
	if h != nil {
		h.failed = err != nil
	}
	n.mu.Unlock()
	if first {
		n.log.Warn("an address can't be renewed", "err", err)
	}
}
