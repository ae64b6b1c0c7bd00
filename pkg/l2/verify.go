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

// nextToVerify returns the CheckVerify that is due (next) and not waiting for replies, and of
// several the one that was due first; nil if there is none. While unconfirmedFirst, those with
// an unconfirmed finding come before all without.
func (c *AddressChecks) nextToVerify(now time.Time) *conflictCheck {
	before := func(x, y *conflictCheck) bool {
		if c.unconfirmedFirst && x.hasUnconfirmedFinding() != y.hasUnconfirmedFinding() {
			return x.hasUnconfirmedFinding()
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

// sendVerify sends one request for the VIP of another node, from an address of this node or
// else as a probe, and sets nextVerify to the next tick of verifyGap. If it was sent, a round
// begins that waits replyTimeout for replies. If not, which says nothing about the owner, x is
// due again after verifyGap. Each call toggles unconfirmedFirst.
func (c *AddressChecks) sendVerify(x *conflictCheck, now time.Time) {
	c.unconfirmedFirst = !c.unconfirmedFirst
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

// hasUnconfirmedFinding reports whether something was found that is not in the result yet,
// since it must be found again: the owner did not reply in the last round, but not
// maxUnanswered times in a row yet; or another host has replied in one round only, and is not
// forgotten since (forgetSilentHosts).
func (x *conflictCheck) hasUnconfirmedFinding() bool {
	if x.unanswered > 0 && x.unanswered < maxUnanswered {
		return true
	}
	for _, h := range x.conflicts {
		if !x.isEstablished(h) {
			return true
		}
	}
	return false
}

// endVerify ends the round of a CheckVerify, stores its result, and reports whether that
// changed. The round is answered if an allowed or a conflicting host replied. The result is
// NoAnswer after maxUnanswered rounds in a row that were not; a round without an answer does
// not count if no host at all was heard on the link within linkSilentAfter: then it is this
// node that is cut off; or if messages were dropped meanwhile, in a flood. The next request is due after verifyInterval and up to a fifth more,
// or after verifyRetry with an unconfirmed finding.
func (c *AddressChecks) endVerify(x *conflictCheck, now time.Time) bool {
	x.awaiting = false
	for _, h := range x.conflicts {
		x.answered = x.answered || h.last == x.round
	}
	switch {
	case x.answered:
		x.unanswered = 0
	case c.a.heard.since(x.target.link, now) <= linkSilentAfter && !c.a.heard.floodedSince(x.target.link, now.Add(-replyTimeout)):
		x.unanswered = min(x.unanswered+1, maxUnanswered)
	}
	x.forgetSilentHosts()
	changed := x.setResult(x.unanswered == maxUnanswered, "", now)
	x.next = now.Add(verifyInterval + rand.N(verifyInterval/5) - replyTimeout)
	if x.hasUnconfirmedFinding() {
		x.next = now.Add(verifyRetry - replyTimeout)
	}
	return changed
}
