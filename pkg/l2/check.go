package l2

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// defendInterval is the least time between two defences of an address, and between
	// two rounds of probes for it (DEFEND_INTERVAL of RFC 5227 section 1.1).
	defendInterval = 10 * time.Second
	// stepGap is the least time between two steps: a flood of messages is read in batches.
	stepGap = time.Millisecond
	// never is far away.
	never = 1000 * time.Hour
)

// AddressChecks is the agent's Mailbox of address checks: whether a new VIP is free
// (CheckProbe), whether other hosts claim those of this node (CheckDefend), and whether
// other nodes reply for theirs (CheckVerify). Announcer.Run does the work.
type AddressChecks struct {
	a      *Announcer
	wanted *mailbox.Mailbox[[]vip.AddressCheck]
	checks atomic.Pointer[map[netip.Addr]*conflictCheck] // by target's address; the map never changes

	// What follows belongs to run.
	list         []*conflictCheck // checks, to be gone through ten times a second
	nextVerify   time.Time        // when requests of CheckVerify may be sent again
	doubtedFirst bool             // at every other request of CheckVerify
}

func newAddressChecks(a *Announcer) *AddressChecks {
	c := &AddressChecks{a: a, wanted: mailbox.New[[]vip.AddressCheck]()}
	c.checks.Store(&map[netip.Addr]*conflictCheck{})
	return c
}

// AddressChecks is the Mailbox of address checks.
func (a *Announcer) AddressChecks() *AddressChecks { return a.checks }

// Put replaces what is checked. A check that is in want and was before goes on, with its
// result, also if its AllowedMACs have changed.
func (c *AddressChecks) Put(want []vip.AddressCheck) {
	if !slices.Equal(want, c.wanted.Get()) {
		c.wanted.Put(want)
	}
}

// Observe fills in CheckResults of what was put last. A check without a result yet is left
// out, and so is a CheckVerify that was never other than OK.
func (c *AddressChecks) Observe(w *vip.World) {
	w.CheckResults = map[netip.Addr]vip.CheckResult{}
	checks := *c.checks.Load()
	for _, want := range c.wanted.Get() {
		x := checks[newTarget(want.Addr, want.Link).addr]
		if x == nil {
			continue
		}
		if r := x.result.Load(); r.Same(want) && !r.At.IsZero() && (r.Kind != vip.CheckVerify || !r.OK() || !r.ClearedAt.IsZero()) {
			w.CheckResults[x.target.addr] = *r
		}
	}
}

// run checks until ctx ends.
func (c *AddressChecks) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wanted.Changed:
			c.take(time.Now())
		case <-c.a.heard.queued:
			if wait := stepGap - time.Since(last); wait > 0 {
				timer.Reset(wait)
				continue
			}
		case <-timer.C:
		}
		last = time.Now()
		timer.Reset(c.step(last))
	}
}

// step reads the messages that were queued and goes on with the checks that are due. It pokes
// if a result is another than before. It returns how long to wait until a check is due.
func (c *AddressChecks) step(now time.Time) time.Duration {
	changed, checks := false, *c.checks.Load()
	for _, q := range c.a.heard.takeQueue() {
		x := checks[q.message.addr]
		if x == nil || x.target.link != q.link {
			continue
		}
		other, conflict := x.receive(q.message, now)
		changed = changed || other
		if conflict && x.want.Kind == vip.CheckDefend {
			c.a.defend(x.target, now)
		}
	}
	next, other := c.advance(now)
	if changed || other {
		c.count()
		c.a.opts.Poke()
	}
	return max(next.Sub(now), stepGap)
}

// take begins the checks that were put and are new, forgets those that were not put, and pokes
// if new AllowedMACs have changed a result. The address of a new CheckDefend is defended at once.
func (c *AddressChecks) take(now time.Time) {
	want := c.wanted.Get()
	c.list = make([]*conflictCheck, 0, len(want))
	before, checks := *c.checks.Load(), make(map[netip.Addr]*conflictCheck, len(want))
	queued, every := map[target]bool{}, map[target]bool{} // of a CheckVerify replies are enough
	for _, w := range want {
		t := newTarget(w.Addr, w.Link)
		x := before[t.addr]
		if x == nil || !x.want.Same(w) {
			x = newConflictCheck(w, now)
			if w.Kind == vip.CheckDefend {
				c.a.defend(t, now)
			}
		} else if x.setAllowed(w, now) {
			c.a.opts.Poke()
		}
		c.list = append(c.list, x)
		checks[t.addr], queued[t] = x, true
		if w.Kind != vip.CheckVerify {
			every[t] = true
		}
	}
	c.checks.Store(&checks)
	c.a.heard.check(queued)
	c.a.checkEvery(every, now)
	c.count()
}

// advance goes on with all checks that are due. It returns when the next one is due unless a
// message comes before, and whether a result is another than before.
func (c *AddressChecks) advance(now time.Time) (next time.Time, changed bool) {
	probes, verifies := now.Add(never), now.Add(never)
	for _, x := range c.list {
		if x.want.Kind != vip.CheckVerify {
			if !x.next.After(now) {
				changed = c.probe(x, now) || changed
			}
			probes = earlier(probes, x.next)
			continue
		}
		if x.awaiting && !x.next.After(now) {
			changed = c.endVerify(x, now) || changed
		}
		verifies = earlier(verifies, x.next)
	}
	if !c.nextVerify.After(now) {
		for range parallelVerifies {
			if x := c.nextToVerify(now); x != nil {
				c.verify(x, now)
			}
		}
	}
	if verifies.Before(c.nextVerify) {
		verifies = c.nextVerify
	}
	return earlier(probes, verifies), changed
}

// count sets the metric of problems.
func (c *AddressChecks) count() {
	counts := map[string]float64{}
	for _, x := range c.list {
		r := x.result.Load()
		if r.NoAnswer {
			counts["unanswered"]++
		}
		if len(r.UnexpectedMACs) > 0 {
			counts[map[vip.CheckKind]string{vip.CheckProbe: "in_use", vip.CheckDefend: "conflict", vip.CheckVerify: "foreign_mac"}[x.want.Kind]]++
		}
	}
	for _, p := range problems {
		c.a.metrics.problems.WithLabelValues(p).Set(counts[p])
	}
}
