package l2

import (
	"math/rand/v2"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

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
		"arrive",
		"address", x.target.addr, "link", x.target.link)
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
