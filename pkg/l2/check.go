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
// (CheckProbe), whether other hosts claim those of this node (CheckDefend), whether
// other nodes reply for theirs (CheckVerify), and whether nodes that have lost theirs go on to (CheckFormer). Announcer.Run does the work.
type AddressChecks struct {
	a      *Announcer
	wanted *mailbox.Mailbox[[]vip.AddressCheck]
	checks atomic.Pointer[map[netip.Addr]*conflictCheck] // by target's address; the map never changes

	// What follows belongs to run.
	list             []*conflictCheck // checks, to be gone through ten times a second
	nextFormer       time.Time        // when requests of CheckFormer may be sent again
	formerChanged    time.Time        // since when results of them have changed, of which stepFormer has not told; zero: there are none
	nextVerify       time.Time        // when requests of CheckVerify may be sent again
	unconfirmedFirst bool             // those with an unconfirmed finding come first; toggled by each request of CheckVerify
}

// newAddressChecks returns AddressChecks with no check, which send and receive by a.
func newAddressChecks(a *Announcer) *AddressChecks {
	c := &AddressChecks{a: a, wanted: mailbox.New[[]vip.AddressCheck]()}
	c.checks.Store(&map[netip.Addr]*conflictCheck{})
	return c
}

// AddressChecks is the Mailbox of address checks.
func (a *Announcer) AddressChecks() *AddressChecks { return a.checks }

// Put replaces what is checked, and wakes up run; it does not block. If want equals what was
// put last, nothing happens. A check that differs from one before in AllowedMACs at most
// (vip.AddressCheck.Same) goes on, with its result. want must not be changed afterwards.
func (c *AddressChecks) Put(want []vip.AddressCheck) {
	if !slices.Equal(want, c.wanted.Get()) {
		c.wanted.Put(want)
	}
}

// Observe sets w.CheckResults to the last result of each check that was put last, by address.
// Left out are a check that run has not taken yet, one without a result yet, and a CheckVerify,
// CheckNeighbor or CheckFormer whose results were all OK, if its requests were sent.
func (c *AddressChecks) Observe(w *vip.World) {
	w.CheckResults = map[netip.Addr]vip.CheckResult{}
	checks := *c.checks.Load()
	for _, want := range c.wanted.Get() {
		x := checks[newTarget(want.Addr, want.Link).addr]
		if x == nil {
			continue
		}
		if r := x.result.Load(); r.Same(want) && !r.At.IsZero() && (!x.verifies() || !r.OK() || !r.ClearedAt.IsZero() || r.NotSent != "") {
			w.CheckResults[x.target.addr] = *r
		}
	}
}

// run does the checks until ctx ends: it takes over what is put, and calls step when a message
// was queued, but not within stepGap of the last step, and when a check is due.
func (c *AddressChecks) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wanted.Changed:
			c.takeWanted(time.Now())
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

// step hands the queued messages to the checks of their addresses, and then goes on with the
// checks that are due (advance). A message from a link other than the check's is dropped; one
// that conflicts with a CheckDefend has the address announced at once (defend). If a result
// changed it updates the metric and pokes. It returns how long to wait until a check is due,
// stepGap at least.
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
		c.updateMetric()
		c.a.opts.PokeNow()
	}
	return max(time.Until(next), stepGap)
}

// takeWanted replaces the checks by those that were put last. One that was there before (Same)
// goes on with its new AllowedMACs, unless it is a probe and these are fewer; the others begin from nothing, and the address of such a
// CheckDefend is announced at once (defend). From now on messages about the targets of all
// checks are queued. It updates the metric, and pokes if new AllowedMACs changed a result; new checks do not
// poke.
func (c *AddressChecks) takeWanted(now time.Time) {
	want := c.wanted.Get()
	c.list = make([]*conflictCheck, 0, len(want))
	before, checks := *c.checks.Load(), make(map[netip.Addr]*conflictCheck, len(want))
	queued := map[target]bool{}
	for _, w := range want {
		t := newTarget(w.Addr, w.Link)
		x := before[t.addr]
		if x == nil || !x.want.Same(w) || x.mustProbeAgain(w) {
			x = newConflictCheck(w, now)
			if w.Kind == vip.CheckDefend {
				c.a.defend(t, now)
			}
		} else if x.setAllowed(w, now) {
			c.a.opts.Poke()
		}
		c.list = append(c.list, x)
		checks[t.addr], queued[t] = x, true
	}
	c.checks.Store(&checks)
	c.a.heard.setChecked(queued)
	c.updateMetric()
}

// advance goes on with each CheckProbe and CheckDefend that is due (stepProbes), evaluates the
// replies to each CheckVerify and CheckNeighbor whose time for them is over (none counts as NoAnswer only after
// maxUnanswered requests in a row), and sends the requests of each CheckNeighbor that is due, and,
// each verifyGap, of up to parallelVerifies of CheckVerify (nextToVerify); and has stepFormer go on with each CheckFormer. It returns when something is due next
// (in 1000 hours, never, if there is no check), and whether a result changed.
func (c *AddressChecks) advance(now time.Time) (next time.Time, changed bool) {
	probes, verifies := now.Add(never), now.Add(never)
	var former []*conflictCheck
	for _, x := range c.list {
		if x.isFormer() {
			former = append(former, x)
			continue
		}
		if !x.verifies() {
			if !x.next.After(now) {
				changed = c.stepProbes(x, now) || changed
			}
			probes = earlier(probes, x.next)
			continue
		}
		if x.awaiting && !x.next.After(now) {
			changed = c.endVerify(x, now) || changed
		}
		if x.want.Kind == vip.CheckNeighbor { // few, and not to wait for the VIPs
			if !x.awaiting && !x.next.After(now) {
				c.sendRequest(x, now)
			}
			probes = earlier(probes, x.next)
			continue
		}
		verifies = earlier(verifies, x.next)
	}
	if len(former) > 0 {
		again, other := c.stepFormer(former, now)
		probes, changed = earlier(probes, again), changed || other
	}
	if !c.nextVerify.After(now) {
		for range parallelVerifies {
			if x := c.nextToVerify(now); x != nil {
				c.sendVerify(x, now)
			}
		}
	}
	if verifies.Before(c.nextVerify) {
		verifies = c.nextVerify
	}
	return earlier(probes, verifies), changed
}

// updateMetric sets the gauge of problems: "unanswered" to the number of CheckVerify with NoAnswer,
// "node_unanswered" to that of CheckNeighbor with it, and "in_use", "conflict" and "foreign_mac" to those of CheckProbe, CheckDefend and
// CheckVerify with UnexpectedMACs; "former_owner" to that of CheckFormer for which a VIP waits for long. One check may be in two of them.
func (c *AddressChecks) updateMetric() {
	counts := map[string]float64{}
	for _, x := range c.list {
		r := x.result.Load()
		switch {
		case x.isFormer() && (r.StillAnsweredBy != "" || r.NotSent != "" && !r.NoAnswer):
			counts["former_owner"]++
		case x.isFormer():
		case r.NoAnswer && x.want.Kind == vip.CheckNeighbor:
			counts["node_unanswered"]++
		case r.NoAnswer:
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
