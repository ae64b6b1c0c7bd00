package l2

import (
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// A round of probes that can't be sent is tried for sendWithin, each sendAgain. Then the
	// result is that the address is free: to wait for what can't be known would keep the VIP
	// from being served.
	sendWithin = time.Second
	sendAgain  = 2 * time.Millisecond
	// An address that another host has is probed for again after minBackoff, and each time
	// after twice as long, up to maxBackoff (RATE_LIMIT_INTERVAL of RFC 5227 section 1.1).
	minBackoff = 5 * time.Second
	maxBackoff = time.Minute
	// maxConflicts is how many hosts that have the same address are told apart.
	maxConflicts = 4
)

// A conflictCheck is an AddressCheck and how far it has come. It works in rounds: three probes
// (CheckProbe, CheckDefend) or one request (CheckVerify), and the time for replies.
type conflictCheck struct {
	want   vip.AddressCheck
	target target
	result atomic.Pointer[vip.CheckResult] // At is zero as long as nothing is known

	round     int                         // the current one, or between two the last one
	next      time.Time                   // when to send again, or to end the round
	conflicts map[string]*conflictingHost // by MAC address

	// CheckProbe and CheckDefend.
	began   time.Time // when the round did, or zero between rounds
	sent    int       // probes in this round
	backoff time.Duration

	// CheckVerify.
	awaiting   bool // a request was sent and its time isn't over
	answered   bool // an allowed host replied in this round
	anyMessage bool // an announcement counts as a reply: to an NDP probe they look the same
	unanswered int  // rounds in a row in which nobody replied
}

// A conflictingHost is one that claims an address and is not allowed to.
type conflictingHost struct {
	rounds int // in how many it was heard
	last   int // the last of these
}

// newConflictCheck returns a check that begins at once; a CheckVerify begins after
// verifyInterval to twice that, or all VIPs would be asked for at the same time.
func newConflictCheck(w vip.AddressCheck, now time.Time) *conflictCheck {
	x := &conflictCheck{want: w, target: newTarget(w.Addr, w.Link), next: now, conflicts: map[string]*conflictingHost{}}
	x.result.Store(&vip.CheckResult{AddressCheck: w})
	if w.Kind == vip.CheckVerify {
		x.next = now.Add(verifyInterval + rand.N(verifyInterval))
	}
	return x
}

// counts reports whether a host was heard in enough rounds to be in the result: one, or two of
// a CheckVerify, since the new owner of a VIP that moves may be heard before the claim is seen
// to change.
func (x *conflictCheck) counts(h *conflictingHost) bool {
	return h.rounds > 1 || x.want.Kind != vip.CheckVerify
}

// allows reports whether mac may claim the address.
func (x *conflictCheck) allows(mac string) bool {
	return x.want.Kind == vip.CheckVerify && x.want.AllowedMACs == "" || strings.Contains(x.want.AllowedMACs, mac)
}

// setAllowed replaces AllowedMACs by those of w, which is the same check otherwise, forgets
// conflicts that are now allowed, and reports whether that changed the result.
func (x *conflictCheck) setAllowed(w vip.AddressCheck, now time.Time) bool {
	if x.want == w {
		return false
	}
	x.want = w
	maps.DeleteFunc(x.conflicts, func(mac string, _ *conflictingHost) bool { return x.allows(mac) })
	r := x.result.Load()
	return !r.At.IsZero() && x.conclude(r.NoAnswer, "", now)
}

// receive notes a message about the address by its sender's MAC, and reports whether the result
// changed, and whether it is a conflict that is in the result. It ignores probes by other hosts,
// but for a CheckProbe (the kernel replies to them), messages between two rounds of a
// CheckVerify, and hosts beyond maxConflicts. A conflict is in the result at once, or at the end
// of the round of a CheckVerify, and has the next round begin after retryDelay.
func (x *conflictCheck) receive(m neighborMessage, now time.Time) (changed, conflict bool) {
	mac := net.HardwareAddr(m.mac[:]).String()
	switch {
	case m.kind == messageProbe && x.want.Kind != vip.CheckProbe:
		return false, false
	case x.want.Kind == vip.CheckVerify && !x.awaiting:
		return false, false
	case x.allows(mac):
		x.answered = x.answered || m.kind == messageReply || x.anyMessage
		return false, false
	}
	h := x.conflicts[mac]
	if h == nil {
		if len(x.conflicts) == maxConflicts {
			return false, false
		}
		h = &conflictingHost{last: -1}
		x.conflicts[mac] = h
	}
	if h.last != x.round {
		h.last = x.round
		h.rounds++
	}
	if x.want.Kind == vip.CheckVerify {
		return false, false
	}
	if x.sent == 0 {
		x.next = earlier(x.next, now.Add(x.retryDelay()))
	}
	return x.conclude(false, "", now), true
}

// retryDelay is how long to wait before the next round for an address that another host has.
func (x *conflictCheck) retryDelay() time.Duration {
	if x.want.Kind == vip.CheckDefend {
		return defendInterval
	}
	return max(x.backoff, minBackoff)
}

// conclude stores a result with the conflicts that count, and reports whether it differs from
// the one before in more than its times, or is the first of a CheckProbe or CheckDefend.
func (x *conflictCheck) conclude(noAnswer bool, notSent string, now time.Time) bool {
	before := x.result.Load()
	r := &vip.CheckResult{AddressCheck: x.want, At: now, NoAnswer: noAnswer, ClearedAt: before.ClearedAt, NotSent: notSent}
	for mac, h := range x.conflicts {
		if x.counts(h) {
			r.UnexpectedMACs = append(r.UnexpectedMACs, mac)
		}
	}
	slices.Sort(r.UnexpectedMACs)
	switch {
	case !r.OK():
		r.ClearedAt = time.Time{}
	case !before.OK():
		r.ClearedAt = now
	}
	x.result.Store(r)
	first := before.At.IsZero() && x.want.Kind != vip.CheckVerify
	return first || before.NoAnswer != r.NoAnswer || before.NotSent != r.NotSent || !slices.Equal(before.UnexpectedMACs, r.UnexpectedMACs)
}

// startRound begins a round, in which nobody has replied yet.
func (x *conflictCheck) startRound() {
	x.round++
	x.answered = false
}

// endRound ends a round. Hosts that were not heard in it are forgotten, with CheckVerify and
// CheckDefend only at the third in a row: a host may reply at times.
func (x *conflictCheck) endRound() {
	enough := 3
	if x.want.Kind == vip.CheckProbe {
		enough = 1
	}
	maps.DeleteFunc(x.conflicts, func(_ string, h *conflictingHost) bool { return x.round-h.last >= enough })
}

// probe sends the next probe of a round, or ends the round if all were sent, and reports
// whether the result changed. If no probe can be sent within sendWithin, or on a link without
// Ethernet, the result says so, and the next round begins after maxBackoff.
func (c *AddressChecks) probe(x *conflictCheck, now time.Time) bool {
	if x.began.IsZero() {
		x.began = now
	}
	if x.sent == requests {
		return x.endProbes(now)
	}
	err := c.a.whoHas(x.target, vip.FamilyOf(x.target.addr).Unspecified())
	switch {
	case err == nil:
		if x.sent++; x.sent == 1 {
			x.startRound()
		}
		x.next = now.Add(requestGap)
		return false
	case !errors.Is(err, errNoEthernet) && now.Sub(x.began) < sendWithin:
		x.next = now.Add(sendAgain)
		return false
	}
	if !errors.Is(err, errNoEthernet) && x.result.Load().NotSent == "" {
		c.a.opts.Log.Warn("can't ask whether another host has an address", "address", x.target.addr, "link", x.target.link, "err", err)
	}
	x.sent, x.began, x.next = 0, time.Time{}, now.Add(maxBackoff)
	return x.conclude(false, err.Error(), now)
}

// endProbes ends a round of probes, sets when the next one begins, if another host has the
// address, and reports whether the result changed.
func (x *conflictCheck) endProbes(now time.Time) bool {
	x.endRound()
	x.sent, x.began = 0, time.Time{}
	changed := x.conclude(false, "", now)
	delay := x.retryDelay()
	x.next, x.backoff = now.Add(delay), min(2*delay, maxBackoff)
	if x.result.Load().OK() {
		x.next, x.backoff = now.Add(never), 0
	}
	return changed
}
