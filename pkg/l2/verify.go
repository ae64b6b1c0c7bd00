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
		// when all nodes are cut off, none blames another
		if x.unanswered < x.silent-1 || c.a.heard.since(x.target.link, now) < now.Sub(x.silentSince) &&
			!c.a.heard.floodedSince(x.target.link, x.silentSince) {
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
