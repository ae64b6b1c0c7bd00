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
	minBackoff = time.Second
	maxBackoff = time.Minute
	// maxConflicts is how many hosts that have the same address are told apart.
	maxConflicts = 4
	// A host that probes for the same address at the same time wants it, or is a switch that answers each probe with one of its own. So
	// probes that are all that it sends count for nothing after as many rounds: fewer if this node's MAC is the lower one, so that of two such nodes one goes first.
	firstProbeRounds, secondProbeRounds = 3, 6
)

// A conflictCheck is an AddressCheck and how far it has come. It works in rounds: three probes
// (CheckProbe, CheckDefend) or one request (CheckVerify, CheckNeighbor), and the time for replies.
type conflictCheck struct {
	want   vip.AddressCheck
	target target
	result atomic.Pointer[vip.CheckResult] // At is zero as long as nothing is known

	round     int                         // the current one, or between two the last one
	next      time.Time                   // when to send again, or to end the round
	conflicts map[string]*conflictingHost // by MAC address

	// CheckProbe and CheckDefend.
	began   time.Time // when the round did, or zero between rounds; with CheckFormer when the first did
	sent    int       // probes in this round
	backoff time.Duration
	flooded time.Time // when the first of the rounds in a row began in which a reply may have been missed; zero: the last one was none
	ignored []string  // the hosts, maxConflicts at most, that were heard and are allowed, of a CheckProbe

	// CheckVerify.
	awaiting   bool // a request was sent and its time isn't over
	answered   bool // an allowed host replied in this round
	anyMessage bool // an announcement counts as a reply: to an NDP probe they look the same
	unanswered int  // rounds in a row in which nobody replied

	// CheckNeighbor, which also uses those of CheckVerify.
	silentSince time.Time // when the first of the unanswered requests was sent
	answers     int       // rounds in a row with a reply, since NoAnswer

	// CheckFormer, which also uses those of CheckVerify.
	answeredBy   string    // the MAC of the allowed host that replied last; "" if none ever did
	stillAnswers string    // the same, once the result has it: it goes on to answer
	unsentSince  time.Time // since when no request could be sent; zero: the last one was
}

// A conflictingHost is one that claims an address and is not allowed to.
type conflictingHost struct {
	rounds int  // in how many it was heard
	last   int  // the last of these
	claims bool // it has sent more than probes
}

// newConflictCheck returns a check without a result, which is due at once; a CheckVerify is
// due after verifyInterval to twice that, or all VIPs would be asked for at the same time; a
// CheckNeighbor within neighborInterval.
func newConflictCheck(w vip.AddressCheck, now time.Time) *conflictCheck {
	x := &conflictCheck{want: w, target: newTarget(w.Addr, w.Link), next: now, conflicts: map[string]*conflictingHost{}}
	x.result.Store(&vip.CheckResult{AddressCheck: w})
	switch w.Kind {
	case vip.CheckVerify:
		x.next = now.Add(verifyInterval + rand.N(verifyInterval))
	case vip.CheckNeighbor:
		x.next = now.Add(rand.N(neighborInterval))
	}
	return x
}

// verifies reports whether x asks for an address that another node has, or had: CheckVerify, CheckNeighbor or CheckFormer.
func (x *conflictCheck) verifies() bool {
	return x.want.Kind == vip.CheckVerify || x.want.Kind == vip.CheckNeighbor || x.isFormer()
}

// isEstablished reports whether h was heard in enough rounds to be in the result: one, or with
// CheckVerify two, not necessarily in a row, since the new owner of a VIP that moves may be
// heard before the claim is seen to change.
func (x *conflictCheck) isEstablished(h *conflictingHost) bool {
	return h.claims && (h.rounds > 1 || !x.verifies())
}

// allows reports whether mac may claim the address: it is in AllowedMACs, or these are empty
// and it is a CheckVerify, or it is a CheckNeighbor.
func (x *conflictCheck) allows(mac string) bool {
	return x.want.Kind == vip.CheckNeighbor || x.want.Kind == vip.CheckVerify && x.want.AllowedMACs == "" || strings.Contains(x.want.AllowedMACs, mac)
}

// mustProbeAgain reports whether x is a CheckProbe that has ignored hosts which w, the same check, does not allow any more.
func (x *conflictCheck) mustProbeAgain(w vip.AddressCheck) bool {
	return slices.ContainsFunc(x.ignored, func(mac string) bool { return !strings.Contains(w.AllowedMACs, mac) })
}

// setAllowed replaces x.want by w, another AllowedMACs of the same check, and forgets
// conflicting hosts that are now allowed, and a host that has answered a CheckFormer and is allowed no more. If there is a result already it stores a new one, of
// the remaining hosts and the same NoAnswer, and reports whether that differs, or it is one of a CheckProbe, of which the plan wants to know whom it allows. If w equals
// x.want it does nothing and returns false. A host that is allowed no longer is a conflict
// once it is heard again.
func (x *conflictCheck) setAllowed(w vip.AddressCheck, now time.Time) bool {
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

// receive stores what a message of another host about the address says: that a host which may have
// it has answered, or that there is a conflicting host. It ignores a probe, unless x is a
// CheckProbe (the kernel replies to probes for a bound address), and any message between two rounds
// of a CheckVerify. A CheckFormer ignores hosts that are not allowed. An allowed host that sends a reply (or anything, if anyMessage) has answered.
// Any other host is stored as conflicting in this round, unless maxConflicts others are.
//
// With CheckVerify that changes the result only at the end of the round, so both returns are
// false. With the other kinds a conflicting host is in the result at once: conflict is true,
// changed says whether the result is another one, and between two rounds the next begins after
// retryDelay at the latest.
func (x *conflictCheck) receive(m neighborMessage, now time.Time) (changed, conflict bool) {
	mac := net.HardwareAddr(m.mac[:]).String()
	switch {
	case m.kind == messageProbe && x.want.Kind != vip.CheckProbe:
		return false, false
	case x.verifies() && !x.awaiting:
		return false, false
	case x.allows(mac):
		if m.kind == messageReply || x.anyMessage {
			x.answered, x.answeredBy = true, mac
		}
		if x.want.Kind == vip.CheckProbe && len(x.ignored) < maxConflicts && !slices.Contains(x.ignored, mac) {
			x.ignored = append(x.ignored, mac)
		}
		return false, false
	case x.isFormer():
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
	if x.verifies() || !h.claims { // endProbes looks at probes
		return false, false
	}
	if x.sent == 0 {
		x.next = earlier(x.next, now.Add(x.retryDelay()))
	}
	return x.setResult(false, "", now), true
}

// retryDelay returns how long after a conflict the next round of probes begins: defendInterval
// for a CheckDefend, else backoff (set by endProbes), and minBackoff at least.
func (x *conflictCheck) retryDelay() time.Duration {
	if x.want.Kind == vip.CheckDefend {
		return defendInterval
	}
	return max(x.backoff, minBackoff)
}

// setResult stores a result of now, with noAnswer, notSent, stillAnswers (unless noAnswer) and the MACs of the established
// conflicting hosts. Its ClearedAt is now if the result before was not OK and this one is, and
// zero while it is not OK. It reports whether NoAnswer, NotSent, StillAnsweredBy or UnexpectedMACs differ from
// the result before, or this is the first result of a CheckProbe or CheckDefend.
func (x *conflictCheck) setResult(noAnswer bool, notSent string, now time.Time) bool {
	before := x.result.Load()
	r := &vip.CheckResult{AddressCheck: x.want, At: now, NoAnswer: noAnswer, ClearedAt: before.ClearedAt, NotSent: notSent}
	if !noAnswer {
		r.StillAnsweredBy = x.stillAnswers
	}
	for mac, h := range x.conflicts {
		if x.isEstablished(h) {
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
	first := before.At.IsZero() && !x.verifies()
	return first || before.NoAnswer != r.NoAnswer || before.NotSent != r.NotSent || before.StillAnsweredBy != r.StillAnsweredBy || !slices.Equal(before.UnexpectedMACs, r.UnexpectedMACs)
}

// startRound raises x.round by one, and clears x.answered. Conflicting hosts of earlier rounds
// stay.
func (x *conflictCheck) startRound() {
	x.round++
	x.answered = false
}

// forgetSilentHosts removes the conflicting hosts that were not heard in this round, or, with
// CheckVerify and CheckDefend, in none of the last three: a host may reply at times. The
// result stays as it is.
func (x *conflictCheck) forgetSilentHosts() {
	enough := 3
	if x.want.Kind == vip.CheckProbe {
		enough = 1
	}
	maps.DeleteFunc(x.conflicts, func(_ string, h *conflictingHost) bool { return x.round-h.last >= enough })
}

// stepProbes sends the next probe of x's round, or ends the round if all three were sent, sets
// x.next, when to call it again, and reports whether the result changed. A probe that can't be
// sent is tried again each sendAgain. Once sendWithin has passed since the round began, or at
// once on a link without Ethernet, the round is given up: the result says why in NotSent (so
// the address counts as free), that is logged the first time, but not for a link without
// Ethernet, and the next round begins after maxBackoff.
func (c *AddressChecks) stepProbes(x *conflictCheck, now time.Time) bool {
	if x.began.IsZero() {
		x.began = now
	}
	if x.sent == requests {
		if c.mayHaveMissed(x, now) {
			x.sent, x.began = 0, now
		} else {
			return c.endProbes(x, now)
		}
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
	return x.setResult(false, err.Error(), now)
}

// In a flood of messages a CheckProbe probes on for floodWithin, before it takes the address for free.
const floodWithin = 5 * time.Second

// mayHaveMissed reports whether x is to probe again instead of ending its round at now: it is a CheckProbe that has found nobody, messages on
// its link were dropped meanwhile since there were too many, and that has not gone on for floodWithin. After that it logs a warning: whoever
// floods a link must not keep VIPs from being served.
func (c *AddressChecks) mayHaveMissed(x *conflictCheck, now time.Time) bool {
	heardNobody := !slices.ContainsFunc(slices.Collect(maps.Values(x.conflicts)), func(h *conflictingHost) bool { return h.last == x.round })
	if x.want.Kind != vip.CheckProbe || !heardNobody || !c.a.heard.floodedSince(x.target.link, x.began) {
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
	c.a.opts.Log.Warn("another host may have an address: its reply could be lost, since too many ARP or NDP messages arrive", "address", x.target.addr, "link", x.target.link)
	return false
}

// endProbes stores the result of a round whose probes were all sent, and when the next round
// begins, and reports whether the result changed. If another host has the address the next round
// begins after retryDelay, whose backoff doubles each time up to maxBackoff. If none has it there
// is no next round until a conflict is received. If hosts only probe for it, it is left open (anotherProbes).
func (c *AddressChecks) endProbes(x *conflictCheck, now time.Time) bool {
	x.forgetSilentHosts()
	x.sent, x.began = 0, time.Time{}
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

// anotherProbes reports whether a host was heard in this round that only probes for x's address, in too few rounds yet to be ignored, and
// none that claims it.
func (c *AddressChecks) anotherProbes(x *conflictCheck) bool {
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
