package l2

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// A node sends parallelVerifies requests for others' VIPs each verifyGap, and for each VIP one each verifyInterval, or
	// verifyRetry after an unconfirmed finding.
	parallelVerifies = 2
	verifyGap        = tick
	verifyInterval   = 5 * time.Second
	verifyRetry      = time.Second
	// Nodes' own addresses are asked for more often, so that a node cut from a VLAN is found in 3 to 5 s. It answers again
	// only after half a minute, so that a flapping link moves VIPs once.
	neighborInterval = 2 * time.Second
	neighborAnswers  = 15
)

// sendVerifies sends due CheckVerify, every other time those with unconfirmed findings.
func (c *AddressChecks) sendVerifies(now time.Time) {
	var due []*addressCheck
	for _, x := range *c.checks.Load() {
		if x.want.Kind == vip.CheckVerify && !x.next.After(now) {
			due = append(due, x)
		}
	}
	if len(due) == 0 {
		return
	}
	c.unconfirmedFirst = !c.unconfirmedFirst
	before := func(x *addressCheck) int {
		if c.unconfirmedFirst && x.hasUnconfirmedFinding() {
			return 0
		}
		return 1
	}
	slices.SortFunc(due, func(x, y *addressCheck) int { return cmp.Or(before(x)-before(y), x.next.Compare(y.next)) })
	for _, x := range due[:min(len(due), parallelVerifies)] {
		c.send(x, now)
	}
	// the next tick, if this is one or comes just after it
	c.nextVerify = c.a.nextTick(now, now.Add(verifyGap/2), verifyGap)
}

// hasUnconfirmedFinding reports whether something must be found again to count.
func (x *addressCheck) hasUnconfirmedFinding() bool {
	if x.unanswered > 0 && x.unanswered < x.silent {
		return true
	}
	for _, h := range x.conflicts {
		if !h.claims || h.rounds < x.heard {
			return true
		}
	}
	return false
}

// countAnswer counts a round; silence only if others were heard: this node may be cut off.
func (c *AddressChecks) countAnswer(x *addressCheck, now time.Time) {
	switch {
	case x.answered && x.unanswered == x.silent && x.answers+1 < x.recovers:
		x.answers++
	case x.answered:
		x.unanswered, x.answers = 0, 0
	default:
		x.answers = 0
		if x.unanswered == 0 {
			x.silentSince = now.Add(-replyTimeout)
		}
		// when all nodes are cut off, or just were, none blames another
		if x.unanswered < x.silent-1 || x.othersHeard && !c.a.heard.floodedSince(x.target.link, x.silentSince) {
			x.unanswered = min(x.unanswered+1, x.silent)
		}
	}
}

const maxNamed = 64

// Unanswered returns up to maxNamed addresses of nodes that nobody answers for, sorted.
func (c *AddressChecks) Unanswered() []netip.Addr {
	var found []netip.Addr
	for a, x := range *c.checks.Load() {
		if x.want.Kind == vip.CheckNeighbor && x.result.Load().NoAnswer {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found[:min(len(found), maxNamed)]
}

const (
	// Each formerGap up to formerRequests requests of CheckFormer are sent, and answered within. A kernel has ceased to
	// answer once maxFormerUnanswered in a row had no reply; twice as many if it has replied: it runs, and may be slow.
	formerGap           = 10 * time.Millisecond
	formerRequests      = 10
	maxFormerUnanswered = 3
	// formerBurst is how many are sent once most of a round, or one within burstTime, had no reply: kernels remove what
	// was renewed together at once.
	formerBurst = 250
	burstTime   = time.Second
	// formerHold is how long results wait at most for addresses that begin to be silent: each report is a pass of the
	// agent, and a rest.
	formerHold = 5 * formerGap
	// Kernels that answer for slowAfter, longer than addresses live unrenewed, may do so for hours. Then one request each
	// slowGap, until one has no reply.
	slowAfter = vip.KernelAnswers + time.Second
	slowGap   = 100 * time.Millisecond
)

// stepFormer goes on with list, all CheckFormer, longest not asked first, and returns when to again.
func (c *AddressChecks) stepFormer(list []*addressCheck, now time.Time) (next time.Time, changed bool) {
	if now.Before(c.nextFormer) {
		return c.nextFormer, false
	}
	limit, gap, late := 1, slowGap, now.Sub(c.nextFormer) >= formerGap
	asked, silent := 0, 0
	for _, x := range list {
		if x.sent > 0 {
			asked++
			changed = c.endFormer(x, list, late, now) || changed
			silent += min(1, x.unanswered)
		}
		changed = c.reportStillAnswers(x, list, now) || changed
		switch r := x.result.Load(); {
		case r.NoAnswer && now.Sub(r.At) < burstTime:
			limit, gap = formerBurst, formerGap
		case r.NoAnswer:
		case x.unanswered > 0 || x.began.IsZero() || now.Sub(x.began) < slowAfter:
			limit, gap = max(limit, formerRequests), formerGap
		}
	}
	if 2*silent > asked {
		limit = formerBurst
	}
	list = slices.DeleteFunc(list, func(x *addressCheck) bool { return x.result.Load().NoAnswer })
	slices.SortFunc(list, func(x, y *addressCheck) int {
		return cmp.Or(min(1, y.unanswered)-min(1, x.unanswered), x.next.Compare(y.next))
	})
	for _, x := range list[:min(limit, len(list))] {
		changed = c.send(x, now) || changed
	}
	if changed && c.formerChanged.IsZero() {
		c.formerChanged = now
	}
	more := slices.ContainsFunc(list, func(x *addressCheck) bool { return x.unanswered > 0 })
	if changed = !c.formerChanged.IsZero() && (!more || now.Sub(c.formerChanged) >= formerHold); changed {
		c.formerChanged = time.Time{}
	}
	if len(list) == 0 {
		return now.Add(never), changed
	}
	c.nextFormer = time.Now().Add(gap) // hundreds of requests take time to be sent, too
	return c.nextFormer, changed
}

// endFormer ends a round of x, one of list, and reports whether NoAnswer is new.
func (c *AddressChecks) endFormer(x *addressCheck, list []*addressCheck, late bool, now time.Time) bool {
	x.sent = 0
	heardNone := func() bool {
		return !slices.ContainsFunc(list,
			func(y *addressCheck) bool { return y.answeredBy != "" && y.target.link == x.target.link })
	}
	switch {
	case x.answered:
		x.unanswered = 0
	case late: // the reply may be unread
	case !c.a.heard.floodedSince(x.target.link, now.Add(-replyTimeout)),
		now.Sub(x.began) >= slowAfter && heardNone(): // some of hundreds are read in a flood, too
		x.unanswered++
	}
	silent := x.silent
	if x.answeredBy != "" {
		silent *= 2
	}
	return x.unanswered >= silent && x.setResult(true, "", now)
}

// reportStillAnswers stores who has answered x for slowAfter, and reports whether that is news.
func (c *AddressChecks) reportStillAnswers(x *addressCheck, list []*addressCheck, now time.Time) bool {
	if x.answeredBy == x.stillAnswers || x.unanswered > 0 || now.Sub(x.began) < slowAfter {
		return false
	}
	if !slices.ContainsFunc(list, func(y *addressCheck) bool { return y.stillAnswers != "" }) {
		c.a.opts.Log.Warn("an address is not bound here: a node that has lost its claims goes on to answer for it, "+
			"longer than a kernel whose Herald has ended",
			"address", x.target.addr, "link", x.target.link, "mac", x.answeredBy)
	}
	x.stillAnswers = x.answeredBy
	return x.setResult(false, "", now)
}
