package l2

import (
	"math/rand/v2"
	"net/netip"
	"slices"
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
	// after verifyRetry, and maxVIPUnanswered times in a row before it counts.
	replyTimeout     = 500 * time.Millisecond
	verifyRetry      = time.Second
	maxVIPUnanswered = 4
	// The addresses of other nodes themselves are asked for more often, so that a node that a switch has cut
	// from a VLAN is found in 3 to 5 s. It is not found to answer again before it has for half a minute, so
	// that a link that comes and goes moves VIPs once.
	neighborInterval      = 2 * time.Second
	maxNeighborUnanswered = 3
	neighborAnswers       = 15
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

// sendVerify sends the request of a CheckVerify (sendRequest), and sets nextVerify to the next tick of
// verifyGap. Each call toggles unconfirmedFirst.
func (c *AddressChecks) sendVerify(x *conflictCheck, now time.Time) {
	c.unconfirmedFirst = !c.unconfirmedFirst
	c.nextVerify = c.a.nextTick(now, now.Add(verifyGap/2), verifyGap) // the next tick, if this is one or comes just after it
	c.sendRequest(x, now)
}

// sendRequest sends one request for an address of another node, from an address of this node or
// else as a probe. If it was sent, a round begins that waits replyTimeout for replies. If not, which
// says nothing about the owner, x is due again after verifyGap.
func (c *AddressChecks) sendRequest(x *conflictCheck, now time.Time) {
	from := c.a.asHost(x.target)
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
// maxUnanswered times in a row yet (or no other host was heard meanwhile, with CheckNeighbor); or another host has replied in one round only, and is not
// forgotten since (forgetSilentHosts).
func (x *conflictCheck) hasUnconfirmedFinding() bool {
	if x.unanswered > 0 && x.unanswered < x.maxUnanswered() {
		return true
	}
	for _, h := range x.conflicts {
		if !x.isEstablished(h) {
			return true
		}
	}
	return false
}

// endVerify ends the round of a CheckVerify or CheckNeighbor (countNeighborAnswer), stores its result, and reports whether that
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
	case x.want.Kind == vip.CheckNeighbor:
		c.countNeighborAnswer(x, now)
	case x.answered:
		x.unanswered = 0
	case c.a.heard.since(x.target.link, now) <= linkSilentAfter && !c.a.heard.floodedSince(x.target.link, now.Add(-replyTimeout)):
		x.unanswered = min(x.unanswered+1, maxVIPUnanswered)
	}
	x.forgetSilentHosts()
	changed := x.setResult(x.unanswered == x.maxUnanswered(), "", now)
	interval := verifyInterval
	if x.want.Kind == vip.CheckNeighbor {
		interval = neighborInterval
	}
	x.next = now.Add(interval + rand.N(interval/5) - replyTimeout)
	if x.hasUnconfirmedFinding() {
		x.next = now.Add(verifyRetry - replyTimeout)
	}
	return changed
}

// maxUnanswered returns how many rounds in a row without a reply make the result NoAnswer.
func (x *conflictCheck) maxUnanswered() int {
	if x.want.Kind == vip.CheckNeighbor {
		return maxNeighborUnanswered
	}
	return maxVIPUnanswered
}

// countNeighborAnswer counts a round of a CheckNeighbor with or without a reply. The last of
// maxNeighborUnanswered that makes it NoAnswer counts only if another host was heard on the link since the first of
// these requests, and no messages were dropped since then: else it may be this node that is cut off. When all nodes are,
// none says so of another. After NoAnswer, neighborAnswers replies in a row are needed to
// take it back.
func (c *AddressChecks) countNeighborAnswer(x *conflictCheck, now time.Time) {
	switch {
	case x.answered && x.unanswered == maxNeighborUnanswered && x.answers+1 < neighborAnswers:
		x.answers++
	case x.answered:
		x.unanswered, x.answers = 0, 0
	default:
		x.answers = 0
		if x.unanswered == 0 {
			x.silentSince = now.Add(-replyTimeout)
		}
		if x.unanswered < maxNeighborUnanswered-1 || c.a.heard.since(x.target.link, now) < now.Sub(x.silentSince) && !c.a.heard.floodedSince(x.target.link, x.silentSince) {
			x.unanswered = min(x.unanswered+1, maxNeighborUnanswered)
		}
	}
}

// maxNamed is how many addresses Unanswered returns.
const maxNamed = 64

// Unanswered returns the addresses of other nodes that nobody answers for (the results of CheckNeighbor with
// NoAnswer), sorted, maxNamed of them at most.
func (c *AddressChecks) Unanswered() []netip.Addr {
	var found []netip.Addr
	for a, x := range *c.checks.Load() {
		if r := x.result.Load(); r.Kind == vip.CheckNeighbor && r.NoAnswer {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found[:min(len(found), maxNamed)]
}
