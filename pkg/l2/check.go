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
	// defendInterval is the least time between defences, and rounds of probes, of an address (DEFEND_INTERVAL, RFC 5227
	// section 1.1).
	defendInterval = 10 * time.Second
	// stepGap is the least time between steps: floods are read in batches.
	stepGap = time.Millisecond
	// never is far away.
	never = 1000 * time.Hour
)

// A rule says how checks of a kind ask, and what follows.
type rule struct {
	requests int           // in a round, or so many are sent
	gap      time.Duration // between them, and how long replies to the last may take
	retry    time.Duration // after a request that could not be sent
	giveUp   time.Duration // so long after the first such request the result says so
	silent   int           // so many rounds in a row without a reply are NoAnswer; 0: nobody is expected to reply
	recovers int           // so many with one take that back
	interval time.Duration // between rounds, without an unconfirmed finding
	heard    int           // in so many rounds another host must be heard to count
	forget   int           // after so many rounds without it a host is forgotten
	noAnswer string        // the problem that NoAnswer is
	foreign  string        // the problem that another host is
}

// rules are by kind: other hosts may reply at times only, and a moved VIP's owner be heard before its claim is seen.
var rules = map[vip.CheckKind]rule{
	vip.CheckProbe: {requests: requests, gap: requestGap, retry: sendAgain, giveUp: sendWithin, heard: 1, forget: 1,
		foreign: "in_use"},
	vip.CheckDefend: {requests: requests, gap: requestGap, retry: sendAgain, giveUp: sendWithin, heard: 1, forget: 3,
		foreign: "conflict"},
	vip.CheckVerify: {
		requests: 1, gap: replyTimeout, retry: verifyGap, giveUp: never, silent: 4, recovers: 1, interval: verifyInterval,
		heard: 2, forget: 3, noAnswer: "unanswered", foreign: "foreign_mac",
	},
	vip.CheckNeighbor: {
		requests: 1, gap: replyTimeout, retry: verifyGap, giveUp: never, silent: 3, recovers: neighborAnswers,
		interval: neighborInterval, heard: 2, forget: 3, noAnswer: "node_unanswered",
	},
	vip.CheckFormer: {requests: 1, gap: formerGap, giveUp: slowAfter, silent: maxFormerUnanswered},
}

// AddressChecks is the agent's Mailbox of address checks; Announcer.Run works.
type AddressChecks struct {
	a      *Announcer
	wanted *mailbox.Mailbox[[]vip.AddressCheck]
	checks atomic.Pointer[map[netip.Addr]*addressCheck] // by target's address; the map never changes

	nextFormer       time.Time // when requests of CheckFormer may be sent again
	formerChanged    time.Time // since when stepFormer has not told of results that have changed; zero: there are none
	nextVerify       time.Time // when requests of CheckVerify may be sent again
	unconfirmedFirst bool      // those with an unconfirmed finding come first; toggled by each request of CheckVerify
}

func newAddressChecks(a *Announcer) *AddressChecks {
	c := &AddressChecks{a: a, wanted: mailbox.New[[]vip.AddressCheck]()}
	c.checks.Store(&map[netip.Addr]*addressCheck{})
	return c
}

// AddressChecks is the Mailbox of address checks.
func (a *Announcer) AddressChecks() *AddressChecks { return a.checks }

// Put replaces the checks; the same one (vip.AddressCheck.Same) goes on.
func (c *AddressChecks) Put(want []vip.AddressCheck) {
	if !slices.Equal(want, c.wanted.Get()) {
		c.wanted.Put(want)
	}
}

// Observe sets w.CheckResults to the last results that were ever not as expected.
func (c *AddressChecks) Observe(w *vip.World) {
	w.CheckResults = map[netip.Addr]vip.CheckResult{}
	checks := *c.checks.Load()
	for _, want := range c.wanted.Get() {
		x := checks[newTarget(want.Addr, want.Link).addr]
		if x == nil { // run has not taken it yet
			continue
		}
		r := x.result.Load()
		if r.Same(want) && !r.At.IsZero() && (x.silent == 0 || !r.OK() || !r.ClearedAt.IsZero() || r.NotSent != "") {
			w.CheckResults[x.target.addr] = *r
		}
	}
}

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

// step hands messages to checks, goes on with due ones, and returns how long to wait.
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

// takeWanted replaces the checks by those put last, and announces what is to be defended.
func (c *AddressChecks) takeWanted(now time.Time) {
	want := c.wanted.Get()
	before, checks := *c.checks.Load(), make(map[netip.Addr]*addressCheck, len(want))
	queued := map[target]bool{}
	for _, w := range want {
		t := newTarget(w.Addr, w.Link)
		x := before[t.addr]
		if x == nil || !x.want.Same(w) || x.mustProbeAgain(w) {
			x = newAddressCheck(w, now)
			if w.Kind == vip.CheckDefend {
				c.a.defend(t, now)
			}
		} else if x.setAllowed(w, now) {
			c.a.opts.Poke()
		}
		checks[t.addr], queued[t] = x, true
	}
	c.checks.Store(&checks)
	c.a.heard.setChecked(queued)
	c.updateMetric()
}

// advance ends rounds, sends due requests, and returns when to go on, and whether results changed.
func (c *AddressChecks) advance(now time.Time) (next time.Time, changed bool) {
	next, verifies := now.Add(never), now.Add(never)
	var former []*addressCheck
	for _, x := range *c.checks.Load() {
		if x.want.Kind == vip.CheckFormer {
			former = append(former, x)
			continue
		}
		if x.sent == x.requests && !x.next.After(now) {
			changed = c.end(x, now) || changed
		}
		if x.want.Kind == vip.CheckVerify { // there may be many
			verifies = vip.Earlier(verifies, x.next)
			continue
		}
		if !x.next.After(now) {
			changed = c.send(x, now) || changed
		}
		next = vip.Earlier(next, x.next)
	}
	if len(former) > 0 {
		again, other := c.stepFormer(former, now)
		next, changed = vip.Earlier(next, again), changed || other
	}
	if !c.nextVerify.After(now) {
		c.sendVerifies(now)
	}
	if verifies.Before(c.nextVerify) {
		verifies = c.nextVerify
	}
	return vip.Earlier(next, verifies), changed
}

func (c *AddressChecks) updateMetric() {
	counts := map[string]float64{}
	for _, x := range *c.checks.Load() {
		r := x.result.Load()
		if x.want.Kind == vip.CheckFormer && (r.StillAnsweredBy != "" || r.NotSent != "" && !r.NoAnswer) {
			counts["former_owner"]++
		}
		if r.NoAnswer {
			counts[x.noAnswer]++
		}
		if len(r.UnexpectedMACs) > 0 {
			counts[x.foreign]++
		}
	}
	for _, p := range problems {
		c.a.metrics.problems.WithLabelValues(p).Set(counts[p])
	}
}
