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
	// A probe that can't be sent is tried for sendWithin, each sendAgain. Then the address is free: else what can't be
	// known would keep the VIP from being served.
	sendWithin = time.Second
	sendAgain  = 2 * time.Millisecond
	// maxConflicts is how many hosts with the same address are told apart.
	maxConflicts = 4
	replyTimeout = 500 * time.Millisecond
)

// An addressCheck is an AddressCheck with its progress, in rounds of requests.
type addressCheck struct {
	rule
	want   vip.AddressCheck
	target target
	result atomic.Pointer[vip.CheckResult] // At is zero as long as nothing is known

	round       int                         // the current one, or between two the last one
	sent        int                         // requests in this round; 0: between two
	began       time.Time                   // when this round did; with CheckFormer the first
	next        time.Time                   // when to send again, or to end the round
	unsentSince time.Time                   // since when no request could be sent; zero: the last one was
	conflicts   map[string]*conflictingHost // by MAC address

	// Where nobody is expected to reply.
	backoff time.Duration
	// when the first round in a row began that may have missed a reply; zero: the last did not
	flooded time.Time
	ignored []string // the hosts, maxConflicts at most, that were heard and are allowed, of a CheckProbe

	answered    bool      // an allowed host replied in this round
	anyMessage  bool      // an announcement counts as a reply: to an NDP probe they look the same (RFC 4861 section 7.2.4)
	unanswered  int       // rounds in a row in which nobody replied
	silentSince time.Time // when the first of these began
	othersHeard bool      // since then, before this round's request
	answers     int       // rounds in a row with a reply, since NoAnswer

	answeredBy   string // of a CheckFormer, the MAC of the allowed host that replied last; "" if none ever did
	stillAnswers string // the same, once the result has it: it goes on to answer
}

// A conflictingHost claims an address, and is not allowed to.
type conflictingHost struct {
	rounds int  // in how many it was heard
	last   int  // the last of these
	claims bool // it has sent more than probes
}

// newAddressCheck returns a check without result; those of others' addresses begin later.
func newAddressCheck(w vip.AddressCheck, now time.Time) *addressCheck {
	x := &addressCheck{rule: rules[w.Kind], want: w, target: newTarget(w.Addr, w.Link), next: now,
		conflicts: map[string]*conflictingHost{}}
	x.result.Store(&vip.CheckResult{AddressCheck: w})
	switch w.Kind {
	case vip.CheckVerify: // it may just have moved
		x.next = now.Add(x.interval + rand.N(x.interval))
	case vip.CheckNeighbor:
		x.next = now.Add(rand.N(x.interval))
	}
	return x
}

func (x *addressCheck) allows(mac string) bool {
	return x.want.Kind == vip.CheckNeighbor || x.want.Kind == vip.CheckVerify && x.want.AllowedMACs == "" ||
		strings.Contains(x.want.AllowedMACs, mac)
}

// mustProbeAgain reports whether x has ignored hosts that w, the same check, does not allow.
func (x *addressCheck) mustProbeAgain(w vip.AddressCheck) bool {
	return slices.ContainsFunc(x.ignored, func(mac string) bool { return !strings.Contains(w.AllowedMACs, mac) })
}

// setAllowed replaces x.want by w, the same check, and reports whether that is news.
func (x *addressCheck) setAllowed(w vip.AddressCheck, now time.Time) bool {
	if x.want == w {
		return false
	}
	x.want = w
	maps.DeleteFunc(x.conflicts, func(mac string, _ *conflictingHost) bool { return x.allows(mac) })
	if !x.allows(x.answeredBy) {
		x.answeredBy, x.stillAnswers = "", ""
	}
	r := x.result.Load()
	return !r.At.IsZero() && (x.setResult(r.NoAnswer, r.NotSent, now) || w.Kind == vip.CheckProbe)
}

// send sends the next request of x's round, and reports a change.
func (c *AddressChecks) send(x *addressCheck, now time.Time) bool {
	from := vip.FamilyOf(x.target.addr).Unspecified()
	if x.silent > 0 {
		from = c.a.source(x.target, x.want.Kind != vip.CheckFormer)
	}
	err := c.a.whoHas(x.target, from)
	if err == nil {
		if x.began.IsZero() {
			x.began = now
		}
		if x.sent++; x.sent == 1 {
			x.round++
			x.answered, x.anyMessage = false, from.Is6() && from.IsUnspecified()
			x.othersHeard = c.a.heard.since(x.target.link, now) < now.Sub(x.silentSince)
		}
		x.next, x.unsentSince = now.Add(x.gap), time.Time{}
		return x.want.Kind == vip.CheckFormer && x.result.Load().NotSent != "" && x.setResult(false, "", now)
	}
	if x.unsentSince.IsZero() {
		x.unsentSince = now
	}
	x.next = now.Add(x.retry)
	nobody := errors.Is(err, errNoEthernet)
	if x.giveUp == never || !nobody && now.Sub(x.unsentSince) < x.giveUp {
		return false
	}
	if x.silent == 0 {
		if !nobody && x.result.Load().NotSent == "" {
			c.a.opts.Log.Warn("can't ask whether another host has an address", "address", x.target.addr, "link", x.target.link,
				"err", err)
		}
		x.sent, x.began, x.unsentSince, x.next = 0, time.Time{}, time.Time{}, now.Add(maxBackoff)
	}
	return x.setResult(nobody && x.silent > 0, err.Error(), now)
}

// receive stores another host's message, and reports whether that is news at once.
func (x *addressCheck) receive(m neighborMessage, now time.Time) (changed, conflict bool) {
	mac := net.HardwareAddr(m.mac[:]).String()
	switch {
	case m.kind == messageProbe && x.want.Kind != vip.CheckProbe: // the kernel replies to probes for a bound address
		return false, false
	case x.silent > 0 && x.sent == 0:
		return false, false
	case x.allows(mac):
		if m.kind == messageReply || x.anyMessage {
			x.answered, x.answeredBy = true, mac
		}
		if x.want.Kind == vip.CheckProbe && len(x.ignored) < maxConflicts && !slices.Contains(x.ignored, mac) {
			x.ignored = append(x.ignored, mac)
		}
		return false, false
	case x.want.Kind == vip.CheckFormer:
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
	h.claims = h.claims || m.kind != messageProbe
	if x.silent > 0 || !h.claims { // the end of the round looks at them
		return false, false
	}
	if x.sent == 0 {
		x.next = vip.Earlier(x.next, now.Add(x.retryDelay()))
	}
	return x.setResult(false, "", now), true
}

// setResult stores a result of now, and reports whether that is news.
func (x *addressCheck) setResult(noAnswer bool, notSent string, now time.Time) bool {
	before := x.result.Load()
	r := &vip.CheckResult{AddressCheck: x.want, At: now, NoAnswer: noAnswer, ClearedAt: before.ClearedAt, NotSent: notSent}
	if !noAnswer {
		r.StillAnsweredBy = x.stillAnswers
	}
	for mac, h := range x.conflicts {
		if h.claims && h.rounds >= x.heard {
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
	return before.At.IsZero() && x.silent == 0 || before.NoAnswer != r.NoAnswer || before.NotSent != r.NotSent ||
		before.StillAnsweredBy != r.StillAnsweredBy || !slices.Equal(before.UnexpectedMACs, r.UnexpectedMACs)
}

// end ends a round whose requests were sent, and reports a change.
func (c *AddressChecks) end(x *addressCheck, now time.Time) bool {
	if x.silent == 0 && c.mayHaveMissed(x, now) {
		x.sent, x.began = 0, time.Time{}
		return false
	}
	x.sent = 0
	for _, h := range x.conflicts {
		x.answered = x.answered || h.last == x.round
	}
	maps.DeleteFunc(x.conflicts, func(_ string, h *conflictingHost) bool { return x.round-h.last >= x.forget })
	if x.silent == 0 {
		return c.endProbes(x, now)
	}
	c.countAnswer(x, now)
	changed := x.setResult(x.unanswered == x.silent, "", now)
	x.next = now.Add(x.interval + rand.N(x.interval/5) - replyTimeout)
	if x.hasUnconfirmedFinding() {
		x.next = now.Add(verifyRetry - replyTimeout)
	}
	return changed
}

const (
	// An address that another host has is probed for again after minBackoff, doubled up to maxBackoff
	// (RATE_LIMIT_INTERVAL, RFC 5227 section 1.1).
	minBackoff = time.Second
	maxBackoff = time.Minute
	// A host that probes for the same address wants it, too, or is a switch that answers so. Probes alone count for
	// nothing after as many rounds: fewer for the lower MAC, so that one of two nodes goes first.
	firstProbeRounds, secondProbeRounds = 3, 6
	// In a flood a CheckProbe goes on for floodWithin, and then the address is free: floods must not keep VIPs from being
	// served.
	floodWithin = 5 * time.Second
)

// retryDelay returns when after a conflict the next round of probes begins.
func (x *addressCheck) retryDelay() time.Duration {
	if x.want.Kind == vip.CheckDefend {
		return defendInterval
	}
	return max(x.backoff, minBackoff)
}

// mayHaveMissed reports whether x found nobody, but messages were dropped.
func (c *AddressChecks) mayHaveMissed(x *addressCheck, now time.Time) bool {
	missed := x.want.Kind == vip.CheckProbe && c.a.heard.floodedSince(x.target.link, x.began)
	for _, h := range x.conflicts {
		missed = missed && h.last != x.round
	}
	if !missed {
		x.flooded = time.Time{}
		return false
	}
	if x.flooded.IsZero() {
		x.flooded = x.began
	}
	if now.Sub(x.flooded) < floodWithin {
		return true
	}
	x.flooded = time.Time{}
	c.a.opts.Log.Warn("another host may have an address: its reply could be lost, since too many ARP or NDP messages "+
		"arrive", "address", x.target.addr, "link", x.target.link)
	return false
}

// endProbes stores a round's result, and the next round, and reports a change.
func (c *AddressChecks) endProbes(x *addressCheck, now time.Time) bool {
	x.began = time.Time{}
	if x.want.Kind == vip.CheckProbe && c.anotherProbes(x) {
		x.next = now.Add(minBackoff + rand.N(minBackoff))
		return false
	}
	changed := x.setResult(false, "", now)
	delay := x.retryDelay()
	x.next, x.backoff = now.Add(delay), min(2*delay, maxBackoff)
	if x.result.Load().OK() {
		x.next, x.backoff = now.Add(never), 0
	}
	return changed
}

// anotherProbes reports whether few rounds heard only probes of others.
func (c *AddressChecks) anotherProbes(x *addressCheck) bool {
	own := c.a.mac(x.target.link)
	found := false
	for mac, h := range x.conflicts {
		rounds := firstProbeRounds
		if mac < own {
			rounds = secondProbeRounds
		}
		if h.claims {
			return false
		}
		found = found || h.last == x.round && h.rounds < rounds
	}
	return found
}
