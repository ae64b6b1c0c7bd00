package upnp

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// idle is how long a gateway of which nothing is wanted is left alone, unless something is.
const idle = time.Hour

// reconcile makes the mappings on the gateway what is wanted, those for which it is time.
// It returns after what time it is to be called again at the latest.
func (g *gateway) reconcile(ctx context.Context) time.Duration {
	defer g.publish()
	now := time.Now()
	g.handleResponse(now)
	g.updateEntries(now)
	maps.DeleteFunc(g.entries, func(_ key, e *entry) bool { // what can't be removed has ended by itself
		return !e.removeSince.IsZero() && !e.until.IsZero() && now.After(e.until)
	})
	if wait := g.untilSweep(now); len(g.entries) == 0 && wait > 0 {
		return wait // nothing is wanted: nothing is asked
	}
	if wait := g.retryAt.Sub(now); wait > 0 {
		return wait
	}
	if err := g.prepare(ctx, now); err != nil {
		return g.recordFailure(ctx, err)
	}
	for _, k := range g.due(now) {
		if ctx.Err() != nil {
			return 0
		}
		g.updateEntries(time.Now())
		e := g.entries[k]
		if e == nil { // another node's meanwhile
			continue
		}
		err := g.apply(ctx, e)
		if err != nil && failureReason(err) == failUnreachable {
			return g.recordFailure(ctx, err)
		}
		g.recordResult(k, e, err)
		g.publish()
	}
	if g.untilSweep(time.Now()) == 0 {
		if err := g.sweepMappings(ctx); err != nil {
			return g.recordFailure(ctx, err)
		}
	}
	g.fails, g.retryAt, g.state.problem, g.state.failing = 0, time.Time{}, "", false
	wait := g.untilSweep(time.Now())
	for _, e := range g.entries {
		wait = min(wait, max(0, time.Until(g.dueAt(e))))
	}
	return wait
}

// maxOfAKind is how many entries of each kind one pass works on. In the next pass namespaces take turns
// again, so the many mappings of one, which its gateway may refuse after a dozen requests each, delay another's new one little.
const maxOfAKind = 16

// due is the entries about which something is to be done at now: first those that are
// wanted, then those that are to be removed, and last those that failed the last time, the
// longest overdue first; maxOfAKind of each, and of the last each retryMin: a gateway that refuses them all is not asked without end.
func (g *gateway) due(now time.Time) (keys []key) {
	var kinds [3][]key
	for k, e := range g.entries {
		kind := 0
		switch {
		case g.dueAt(e).After(now):
			continue
		case e.fails > 0:
			kind = 2
		case !e.removeSince.IsZero():
			kind = 1
		}
		kinds[kind] = append(kinds[kind], k)
	}
	slices.SortFunc(kinds[2], func(a, b key) int { return g.entries[a].retryAt.Compare(g.entries[b].retryAt) })
	for _, list := range kinds {
		vip.TakeTurns(list, nil, func(k key) string { return g.entries[k].want.Service.Namespace })
		keys = append(keys, list[:min(len(list), maxOfAKind)]...)
	}
	if len(kinds[2]) > 0 {
		g.failingAt = now.Add(g.m.timing.retryMin)
	}
	return keys
}

// dueAt is when something is to be done about e: not before failingAt if it failed the last time.
func (g *gateway) dueAt(e *entry) time.Time {
	at := e.dueAt()
	if e.fails > 0 && at.Before(g.failingAt) {
		return g.failingAt
	}
	return at
}

// dueAt is when something is to be done about e by what is known of it alone.
func (e *entry) dueAt() time.Time {
	at := e.verifyAt
	switch {
	case !e.removeSince.IsZero() || !e.confirmed || e.problem != "":
		return e.retryAt
	case !e.renewAt.IsZero() && e.renewAt.Before(at):
		at = e.renewAt
	}
	if e.retryAt.After(at) {
		return e.retryAt
	}
	return at
}

// apply makes the gateway do what is wanted of e.
func (g *gateway) apply(ctx context.Context, e *entry) error {
	remove, six := !e.removeSince.IsZero(), g.discovery.segment.family == vip.IPv6
	switch {
	case remove && six:
		return g.deletePinhole(ctx, e)
	case remove:
		return g.deletePortMapping(ctx, e)
	case six:
		return g.ensurePinhole(ctx, e)
	}
	return g.ensurePortMapping(ctx, e)
}

// recordResult records the outcome of apply: done, or err, a refusal.
func (g *gateway) recordResult(k key, e *entry, err error) {
	now := time.Now()
	switch {
	case err != nil:
		why := explain(err)
		if e.problem != why {
			g.m.o.Log.Debug("a gateway refuses", "gateway", g.state.name, "service", e.want.Service, "port", e.want.Port, "remove", !e.removeSince.IsZero(), "err", err)
		}
		e.problem, e.retryAt = why, now.Add(g.m.backoff(e.fails))
		e.fails++
		g.m.metrics.failures.WithLabelValues(failureReason(err)).Inc()
	case !e.removeSince.IsZero():
		delete(g.entries, k)
		for _, x := range g.entries { // its port may be what another one waits for
			if x.problem != "" {
				x.retryAt = time.Time{}
			}
			if x.want.External == e.external {
				x.fails = 0
			}
		}
	default:
		e.problem, e.fails, e.retryAt, e.verifyAt = "", 0, time.Time{}, now.Add(g.m.timing.verify)
	}
}

// backoff is how long to wait after so many failures.
func (m *Mapper) backoff(fails int) time.Duration {
	return min(m.timing.retryMin<<min(fails, 10), m.timing.retryMax)
}

// prepare reads the gateway's description, if that is not known, and asks for its
// external address each timing.verify.
func (g *gateway) prepare(ctx context.Context, now time.Time) error {
	six := g.discovery.segment.family == vip.IPv6
	if !g.described {
		d, err := g.control.fetchDescription(ctx, g.at.location)
		if err != nil {
			return err
		}
		if g.state.service, err = g.control.chooseService(ctx, d, six); err != nil {
			return err
		}
		g.described, g.checked, g.permanent = true, time.Time{}, false
		g.state.name = g.control.addr.String()
		if d.name != "" {
			g.state.name += " (" + d.name + ")"
		}
	}
	if six || now.Sub(g.checked) < g.m.timing.verify {
		return nil
	}
	addr, err := g.control.externalAddr(ctx, g.state.service)
	if err != nil {
		return err
	}
	g.checked = now
	if addr != g.state.externalAddr {
		g.state.externalAddr = addr
		g.m.o.Log.Info("a gateway's external address", "gateway", g.state.name, "address", addr)
	}
	return nil
}

// recordFailure records that the gateway can't be used because of err, has a search begin,
// and returns how long to wait before it is tried again. The first failure in a row is not
// published while the gateway has mappings: it may be about to be restarted.
func (g *gateway) recordFailure(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return 0 // it is this process that ends
	}
	why := explain(err)
	for _, e := range g.entries {
		if g.fails == 0 && e.confirmed {
			why = g.state.problem
		}
	}
	if g.state.problem != why {
		g.m.o.Log.Debug("a gateway can't be used at present", "gateway", g.control.addr, "err", err)
	}
	wait := g.m.backoff(g.fails)
	g.fails++
	g.retryAt, g.described = time.Now().Add(wait), false
	g.state.problem, g.state.failing = why, true
	g.m.metrics.failures.WithLabelValues(failureReason(err)).Inc()
	g.discovery.soon.Send() // it may have moved
	return wait
}

// failureReason is why something failed, as the metric names it. All but failUnreachable
// mean that the gateway has answered.
func failureReason(err error) string {
	_, taken := errors.AsType[*takenError](err)
	switch {
	case taken:
		return failTaken
	case errors.Is(err, errUnreadable):
		return failUnreadable
	case faultCode(err) != 0, errors.Is(err, errUnwilling):
		return failRefused
	}
	return failUnreachable
}
