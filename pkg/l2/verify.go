package l2

import (
	"math/rand/v2"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// A node sends parallelVerifies requests for the VIPs of other nodes each verifyGap,
	// however many VIPs there are, looks at replies no more often, and asks for no VIP more
	// often than each verifyInterval. A VIP that has just moved is left alone for as long.
	parallelVerifies = 2
	verifyGap        = tick
	verifyInterval   = 5 * time.Second
	// replyTimeout is how long a reply may take. An owner that did not reply is asked again
	// after verifyRetry, and maxUnanswered times in a row before it counts.
	replyTimeout  = 500 * time.Millisecond
	verifyRetry   = time.Second
	maxUnanswered = 4
)

// nextToVerify returns the CheckVerify that is due and has waited longest, or nil. At every
// other request those that raised a doubt come first.
func (c *AddressChecks) nextToVerify(now time.Time) *conflictCheck {
	before := func(x, y *conflictCheck) bool {
		if c.doubtedFirst && x.doubted() != y.doubted() {
			return x.doubted()
		}
		return x.next.Before(y.next)
	}
	var first *conflictCheck
	for _, x := range c.list {
		if x.want.Kind == vip.CheckVerify && !x.awaiting && !x.next.After(now) && (first == nil || before(x, first)) {
			first = x
		}
	}
	return first
}

// verify asks who has a VIP of another node. If that can't be sent, which says nothing about
// the owner, it is due again after verifyGap.
func (c *AddressChecks) verify(x *conflictCheck, now time.Time) {
	c.doubtedFirst = !c.doubtedFirst
	from := c.a.source(x.target)
	c.nextVerify = c.a.nextTick(now, now.Add(verifyGap/2), verifyGap) // the next tick, if this is one or comes just after it
	if c.a.whoHas(x.target, from) != nil {
		x.next = now.Add(verifyGap)
		return
	}
	x.startRound()
	x.awaiting, x.next = true, now.Add(replyTimeout)
	x.anyMessage = from.Is6() && from.IsUnspecified() // RFC 4861 section 7.2.4
}

// doubted reports whether the last round had another outcome than the result says: the owner
// did not reply, or another host did, but not often enough to count.
func (x *conflictCheck) doubted() bool {
	if x.unanswered > 0 && x.unanswered < maxUnanswered {
		return true
	}
	for _, h := range x.conflicts {
		if !x.counts(h) {
			return true
		}
	}
	return false
}

// endVerify ends the round of a CheckVerify, sets when the next one begins, and reports whether
// the result changed. It does not count as unanswered if no host at all was heard on the link
// within linkSilentAfter: then it is this node that is cut off.
func (c *AddressChecks) endVerify(x *conflictCheck, now time.Time) bool {
	x.awaiting = false
	for _, h := range x.conflicts {
		x.answered = x.answered || h.last == x.round
	}
	switch {
	case x.answered:
		x.unanswered = 0
	case c.a.heard.since(x.target.link, now) <= linkSilentAfter:
		x.unanswered = min(x.unanswered+1, maxUnanswered)
	}
	x.endRound()
	changed := x.conclude(x.unanswered == maxUnanswered, "", now)
	x.next = now.Add(verifyInterval + rand.N(verifyInterval/5) - replyTimeout)
	if x.doubted() {
		x.next = now.Add(verifyRetry - replyTimeout)
	}
	return changed
}
