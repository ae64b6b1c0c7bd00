package upnp

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const idle = time.Hour

// forgetful is how often in a row a gateway may lose a mapping without a word.
const forgetful = 3

// turn does what is due, and returns when to come back at the latest.
func (g *gateway) turn(ctx context.Context) time.Duration {
	now := time.Now()
	g.forget(now)
	if len(g.due(time.Time{})) == 0 {
		return idle // nothing is wanted: nothing is asked
	}
	met, location := g.whereabouts()
	if met != g.tried { // it is back: no reason to wait
		g.tried, g.fails, g.next = met, 0, time.Time{}
	}
	if wait := g.next.Sub(now); wait > 0 {
		return wait
	}
	if err := g.ready(ctx, now, met, location); err != nil {
		return g.fail(ctx, err)
	}
	for _, j := range g.due(now) {
		if ctx.Err() != nil {
			return 0
		}
		after, done, err := g.do(ctx, j)
		if err != nil && !refused(err) {
			return g.fail(ctx, err)
		}
		g.settle(j, after, done, err)
	}
	g.fails, g.next = 0, time.Time{}
	g.clear()
	return g.rest(time.Now())
}

// A job is an entry that is due, as it was.
type job struct {
	key   key
	entry *entry
	want  vip.Mapping
	gone  bool
	state state
	met   int // how often the gateway had been met
}

// due is what is to be done at now, or, for the zero time, all there is: what is
// wanted first, then what is to be removed.
func (g *gateway) due(now time.Time) (jobs []job) {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	for _, gone := range []bool{false, true} {
		for k, e := range g.entries {
			if !e.gone.IsZero() == gone && (now.IsZero() || !e.due().After(now)) {
				jobs = append(jobs, job{k, e, e.want, gone, e.state, g.met})
			}
		}
	}
	return jobs
}

// due is when something is to be done about e.
func (e *entry) due() time.Time {
	switch {
	case !e.gone.IsZero() || !e.Made || e.problem != "":
		return e.next
	case !e.renew.IsZero() && e.renew.Before(e.check):
		return later(e.renew, e.next)
	}
	return later(e.check, e.next)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// rest is how long there is nothing to do.
func (g *gateway) rest(now time.Time) time.Duration {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	wait := idle
	for _, e := range g.entries {
		wait = min(wait, max(0, e.due().Sub(now)))
	}
	return wait
}

// forget drops what is to be removed and has ended by itself.
func (g *gateway) forget(now time.Time) {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	for k, e := range g.entries {
		if !e.gone.IsZero() && !e.until.IsZero() && now.After(e.until) {
			delete(g.entries, k)
		}
	}
}

// do makes one job. done says that the entry is no more.
func (g *gateway) do(ctx context.Context, j job) (after state, done bool, err error) {
	six := g.at.side.family == vip.IPv6
	switch {
	case j.gone && six:
		return j.state, true, g.close(ctx, j)
	case j.gone:
		return j.state, true, g.remove(ctx, j)
	case six:
		after, err = g.open(ctx, j)
	default:
		after, err = g.hold(ctx, j)
	}
	return after, false, err
}

// settle takes over how a job ended.
func (g *gateway) settle(j job, after state, done bool, err error) {
	now := time.Now()
	g.m.mu.Lock()
	e := g.entries[j.key]
	if e != j.entry { // given away meanwhile
		g.m.mu.Unlock()
		return
	}
	changed := false
	switch {
	case err != nil:
		why := explain(err)
		changed = e.problem != why
		if changed {
			g.m.o.Log.Debug("a gateway refuses", "gateway", g.name, "service", j.want.Service, "port", j.want.Port, "remove", j.gone, "err", err)
		}
		e.Made, e.problem = after.Made, why
		e.next = now.Add(g.m.backoff(e.fails))
		e.fails++
		g.m.meters.failures.WithLabelValues(reason(err)).Inc()
	case done:
		changed = true
		g.drop(j.key, e)
	default:
		changed = j.state.Made != after.Made || j.state.external != after.external || j.state.lost != after.lost || e.problem != ""
		after.problem, after.fails, after.next = "", 0, time.Time{}
		after.check = now.Add(g.m.pace.check)
		e.state = after
	}
	if g.met != j.met { // it has been restarted since
		e.check, e.next, e.hole = now, time.Time{}, 0
	}
	g.m.count()
	g.m.mu.Unlock()
	if changed {
		g.m.o.Poke()
	}
}

// drop forgets a mapping that was removed. m.mu is held.
func (g *gateway) drop(k key, e *entry) {
	if e.gone.IsZero() { // wanted again meanwhile
		e.state = state{}
	} else {
		delete(g.entries, k)
	}
	for _, x := range g.entries { // its port may be what another one waits for
		if x.problem != "" {
			x.next = time.Time{}
		}
	}
}

// backoff is how long to wait after so many failures.
func (m *Mapper) backoff(fails int) time.Duration {
	return min(m.pace.backoff<<min(fails, 10), m.pace.most)
}

// refused reports whether the gateway has answered, if only to say no.
func refused(err error) bool {
	_, taken := errors.AsType[*takenError](err)
	return taken || code(err) != 0 || errors.Is(err, errUnreadable) || errors.Is(err, errUnwilling)
}

// reason is why something failed, for the metric.
func reason(err error) string {
	_, taken := errors.AsType[*takenError](err)
	switch {
	case taken:
		return failTaken
	case errors.Is(err, errUnreadable):
		return failUnreadable
	case refused(err):
		return failRefused
	}
	return failUnreachable
}

// whereabouts is what the gateway said last of where it is.
func (g *gateway) whereabouts() (met int, location *url.URL) {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	return g.met, g.location
}

// ready reads the gateway's description, if that is not known, and asks now and
// then for its external address.
func (g *gateway) ready(ctx context.Context, now time.Time, met int, location *url.URL) error {
	six := g.at.side.family == vip.IPv6
	if g.described != met {
		d, err := g.line.describe(ctx, location)
		if err != nil {
			return err
		}
		if g.service, err = g.line.choose(ctx, d, six); err != nil {
			return err
		}
		g.described, g.checked, g.permanent = met, time.Time{}, false
		g.m.mu.Lock()
		g.name = g.line.addr.String()
		if d.name != "" {
			g.name += " (" + d.name + ")"
		}
		g.m.mu.Unlock()
	}
	if six || now.Sub(g.checked) < g.m.pace.check {
		return nil
	}
	public, err := g.line.external(ctx, g.service)
	if err != nil {
		return err
	}
	g.checked = now
	g.m.mu.Lock()
	changed := public != g.public
	g.public = public
	g.m.mu.Unlock()
	if changed {
		g.m.o.Log.Info("a gateway's external address", "gateway", g.name, "address", public)
		g.m.o.Poke()
	}
	return nil
}

// fail notes that the gateway as a whole is of no use at present.
func (g *gateway) fail(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return 0 // it is this process that ends
	}
	wait := g.m.backoff(g.fails)
	g.fails++
	first := g.fails == 1 // it may be about to be restarted
	g.next = time.Now().Add(wait)
	g.described = 0
	g.m.meters.failures.WithLabelValues(reason(err)).Inc()
	g.m.mu.Lock()
	why := explain(err)
	for _, e := range g.entries {
		if first && e.Made {
			why = g.problem
		}
	}
	changed := g.problem != why
	g.problem, g.ailing = why, true
	g.m.mu.Unlock()
	if changed {
		g.m.o.Log.Debug("a gateway is of no use at present", "gateway", g.line.addr, "err", err)
		g.m.o.Poke()
	}
	g.m.seek(g.at.side) // it may have moved
	return wait
}

// clear notes that the gateway works.
func (g *gateway) clear() {
	g.m.mu.Lock()
	changed := g.problem != ""
	g.problem, g.ailing = "", false
	g.m.mu.Unlock()
	if changed {
		g.m.o.Poke()
	}
}
