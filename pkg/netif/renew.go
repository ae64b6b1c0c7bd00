package netif

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// The kernel counts lifetimes in whole seconds. It looks for ended addresses when the first has ended (up to a third of
// a second late), and after any look not again for a second (ADDRCONF_TIMER_FUZZ_MAX in check_lifetime and
// addrconf_verify_rtnl). So addresses renewed together, within ADDRCONF_TIMER_FUZZ_MINUS (20 ms), go together, after
// 5.0 to 5.4 s; another address that changes in the last second may make it 6.1 s. A process that starts 4.2 s after a
// kill finds all, and one kept from running for 4.2 s loses none.
//
// Renewing 333 addresses of both families takes 6 ms (BenchmarkRenewal), a hundredth of a core
// (BenchmarkSecondOfRenewals), mostly for IPv6's groups (ipv6_find_idev calls ipv6_mc_up).
const (
	lifetime = vip.AddressLifetimeSeconds
	period   = vip.AddressRenewal
)

// A renewal is an address that is renewed until it is removed or dropped.
type renewal struct {
	ends   time.Time // when the kernel drops it if it isn't renewed
	failed bool      // the last renewal did
}

type validity struct {
	seconds uint32    // the valid lifetime it may be given now; 0 if it may not be bound or renewed
	end     time.Time // when it must be gone
	over    bool      // it must be removed now
}

// validity returns how long w may be bound at now, by the Tenure of its epoch.
func (n *Interfaces) validity(w vip.Address, now time.Time) validity {
	t := n.opts.Tenure()
	v := validity{end: t.Until}
	if !w.Until.IsZero() && w.Until.Before(v.end) {
		v.end = w.Until
	}
	left := v.end.Sub(now) / time.Second // rounded down: never past the end
	switch {
	case left < 1:
		v.over = true
	case t.Confirmed && t.Epoch == w.Epoch:
		v.seconds = min(uint32(left), lifetime)
	}
	return v
}

// runRenewals renews addresses until ctx ends, and sleeps without any.
func (n *Interfaces) runRenewals(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		}
		tick := time.NewTicker(period)
		for ctx.Err() == nil && len(n.renewedKeys()) > 0 {
			select {
			case <-ctx.Done():
			case <-tick.C:
				n.renew()
			}
		}
		tick.Stop()
	}
}

func (n *Interfaces) renewedKeys() []addressKey {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Keys(n.renewed))
}

// chunk is how many addresses are renewed at a time: cheap, fair, and Set waits about 5 ms.
const chunk = 256

func (n *Interfaces) renew() {
	for part := range slices.Chunk(n.renewedKeys(), chunk) {
		n.renewChunk(part)
	}
}

// renewChunk is renew for some addresses, without those that Set has removed meanwhile.
func (n *Interfaces) renewChunk(part []addressKey) {
	n.mu.Lock()
	defer n.mu.Unlock()
	removed := false
	var requests []bindRequest
	for _, key := range part {
		w := n.wanted[key]
		v := n.validity(w, time.Now())
		switch {
		case n.renewed[key] == nil:
		case v.over:
			removed = true
			n.recordRenewal(key, n.remove(key, "the right to hold it has ended"))
		case v.seconds > 0:
			requests = append(requests, bindRequest{key, w.Link, v.seconds})
		}
	}
	for i, err := range n.bind(n.kernel.renew, requests) {
		n.metrics.renewals.Inc()
		n.recordRenewal(requests[i].addressKey, err)
	}
	if removed {
		n.opts.Poke()
	}
	n.publish()
}

// recordRenewal counts a renewal's error, and logs the first of several.
func (n *Interfaces) recordRenewal(key addressKey, err error) {
	r := n.renewed[key]
	if err != nil {
		n.metrics.errors.Inc()
		if r == nil || !r.failed {
			n.log.Warn("an address can't be renewed", "err", err)
		}
	}
	if r != nil {
		r.failed = err != nil
	}
}
