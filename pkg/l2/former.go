package l2

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// Each formerGap requests are sent for up to formerRequests of the addresses with a CheckFormer, and replies
	// are waited for as long. A kernel has ceased to answer once maxFormerUnanswered of them in a row had none.
	formerGap           = 10 * time.Millisecond
	formerRequests      = 10
	maxFormerUnanswered = 3
	// formerBurst is how many requests are sent each formerGap once most of a round had no reply, or one address is known since less than burstTime not to be
	// answered for: a kernel removes those that were renewed together at the same time.
	formerBurst = 250
	burstTime   = time.Second
	// formerHold is how long results of a CheckFormer are kept back at most while other addresses have begun to be silent: each report is a pass of the agent, after
	// which it rests, and the others would have to wait for the next.
	formerHold = 5 * formerGap
	// Kernels that have answered for slowAfter, longer than an address lives that nobody renews, may do so for hours. Then one request is sent each slowGap,
	// until one of them has no reply.
	slowAfter = vip.AddressLifetime + vip.AddressRemovalDelay + time.Second
	slowGap   = 100 * time.Millisecond
)

// stepFormer goes on with list, all CheckFormer, once nextFormer has come: it ends the rounds that wait for replies (endFormer), and sends the
// next requests (sendFormer): first for addresses that were not answered for in the last round, then for those that were asked for
// the longest time ago. It returns when to call it again, and whether results have changed: of addresses that cease to be answered for
// together, once all have (formerHold).
func (c *AddressChecks) stepFormer(list []*conflictCheck, now time.Time) (next time.Time, changed bool) {
	if now.Before(c.nextFormer) {
		return c.nextFormer, false
	}
	limit, gap, late := 1, slowGap, now.Sub(c.nextFormer) >= formerGap
	asked, silent := 0, 0
	for _, x := range list {
		if x.awaiting {
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
	list = slices.DeleteFunc(list, func(x *conflictCheck) bool { return x.result.Load().NoAnswer })
	slices.SortStableFunc(list, func(x, y *conflictCheck) int {
		return cmp.Or(cmp.Compare(min(1, y.unanswered), min(1, x.unanswered)), x.next.Compare(y.next))
	})
	for _, x := range list[:min(limit, len(list))] {
		if c.sendFormer(x, now) {
			changed = true
		}
	}
	if changed && c.formerChanged.IsZero() {
		c.formerChanged = now
	}
	more := slices.ContainsFunc(list, func(x *conflictCheck) bool { return x.unanswered > 0 })
	if changed = !c.formerChanged.IsZero() && (!more || now.Sub(c.formerChanged) >= formerHold); changed {
		c.formerChanged = time.Time{}
	}
	if len(list) == 0 {
		return now.Add(never), changed
	}
	c.nextFormer = time.Now().Add(gap) // hundreds of requests take time to be sent, too
	return c.nextFormer, changed
}

// endFormer ends a round of a CheckFormer, and stores NoAnswer, which it reports, after maxFormerUnanswered in a row without a reply of an
// allowed host. A round without one does not count if this process was late to look, or messages were dropped in a flood, for the
// reply may be unread, until x has asked for slowAfter, and no request of list on its link has ever had one: some of
// hundreds are read in a flood, too.
func (c *AddressChecks) endFormer(x *conflictCheck, list []*conflictCheck, late bool, now time.Time) bool {
	x.awaiting = false
	switch {
	case x.answered:
		x.unanswered = 0
	case late:
	case !c.a.heard.floodedSince(x.target.link, now.Add(-replyTimeout)),
		now.Sub(x.began) >= slowAfter && !slices.ContainsFunc(list, func(y *conflictCheck) bool { return y.answeredBy != "" && y.target.link == x.target.link }):
		x.unanswered++
	}
	return x.unanswered >= maxFormerUnanswered && x.setResult(true, "", now)
}

// reportStillAnswers stores which host answers x, a CheckFormer that has asked for slowAfter, and reports whether that is a change: the VIP waits for
// it, for hours perhaps. The first of list is logged.
func (c *AddressChecks) reportStillAnswers(x *conflictCheck, list []*conflictCheck, now time.Time) bool {
	if x.answeredBy == x.stillAnswers || x.unanswered > 0 || now.Sub(x.began) < slowAfter {
		return false
	}
	if !slices.ContainsFunc(list, func(y *conflictCheck) bool { return y.stillAnswers != "" }) {
		c.a.opts.Log.Warn("an address is not bound here: a node that has lost its claims goes on to answer for it, longer than a kernel whose Herald has ended",
			"address", x.target.addr, "link", x.target.link, "mac", x.answeredBy)
	}
	x.stillAnswers = x.answeredBy
	return x.setResult(false, "", now)
}

// sendFormer sends one request for the address of a CheckFormer, as sendRequest does, and begins a round. If the link has no neighbors to
// be asked, NoAnswer is stored, which it reports; after any other failure it stores nothing, but once there were only such for slowAfter it stores
// NotSent until one is sent.
func (c *AddressChecks) sendFormer(x *conflictCheck, now time.Time) bool {
	from := c.a.source(x.target)
	switch err := c.a.whoHas(x.target, from); {
	case errors.Is(err, errNoEthernet):
		return x.setResult(true, err.Error(), now)
	case err != nil:
		if x.unsentSince.IsZero() {
			x.unsentSince = now
		}
		return now.Sub(x.unsentSince) >= slowAfter && x.setResult(false, err.Error(), now)
	}
	x.startRound()
	if x.began.IsZero() {
		x.began = now
	}
	x.awaiting, x.next, x.unsentSince, x.anyMessage = true, now, time.Time{}, from.Is6() && from.IsUnspecified() // RFC 4861 section 7.2.4
	return x.result.Load().NotSent != "" && x.setResult(false, "", now)
}

// isFormer reports whether x is a CheckFormer.
func (x *conflictCheck) isFormer() bool { return x.want.Kind == vip.CheckFormer }
