package upnp

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A gateway is one that has answered. Its requests are made one after the other
// by its own goroutine, so that one that hangs delays no other.
type gateway struct {
	m    *Mapper
	at   place
	line line
	wake chan struct{}

	// Guarded by m.mu.
	cancel   context.CancelFunc
	entries  map[key]*entry
	location *url.URL
	boot     string
	seen     time.Time  // when it answered a search last
	met      int        // how often it has told another location or boot id
	name     string     // its address, and what it calls itself
	problem  string     // why nothing can be asked of it, or ""
	ailing   bool       // the last request came to nothing
	public   netip.Addr // its address on its far side

	// Of its goroutine.
	service   service
	described int       // the met for which service was read; 0: not yet
	checked   time.Time // when public was asked for
	fails     int
	next      time.Time // not to be asked before
	permanent bool      // it takes mappings without a lease only
}

// An entry is one mapping on one gateway.
type entry struct {
	want vip.Mapping
	gone time.Time // since when it is to be removed; zero: it is wanted
	state
}

// A state is what is known of a mapping on a gateway.
type state struct {
	Made     bool
	external uint16
	hole     uint16 // the pinhole's number
	until    time.Time
	renew    time.Time // when to renew; zero: never
	check    time.Time // when to look whether it is still there
	lost     int       // how many times in a row it was not
	problem  string
	fails    int
	next     time.Time // not to be tried before
}

func newGateway(m *Mapper, at place) *gateway {
	return &gateway{
		m: m, at: at, line: line{at.side.link, at.addr}, wake: make(chan struct{}, 1),
		entries: make(map[key]*entry), name: at.addr.String(),
	}
}

// meet takes over an answer. m.mu is held.
func (g *gateway) meet(a answer, now time.Time) {
	g.seen = now
	switch {
	case g.location == nil:
	case g.boot != a.boot:
	case g.location.String() == a.location.String(), !g.ailing:
		return // the same, or another description of a box that has several
	}
	if g.location != nil {
		g.m.o.Log.Info("a gateway was restarted", "link", g.line.link, "address", g.line.addr)
	}
	g.location, g.boot = a.location, a.boot
	g.met++
	for _, e := range g.entries { // nothing is known of what it has now
		e.check, e.next, e.fails, e.lost = now, time.Time{}, 0, -1
		e.hole = 0
	}
	poke(g.wake)
}

// reconcile makes the entries what want asks of this gateway. It reports whether
// there is something to do. m.mu is held.
func (g *gateway) reconcile(want map[key]vip.Mapping, now time.Time) (work bool) {
	for k, e := range g.entries {
		w, wanted := want[k]
		switch {
		case wanted && !w.Here:
			delete(g.entries, k) // another node's by now
		case !wanted && e.gone.IsZero():
			e.gone, e.next, e.fails, work = now, time.Time{}, 0, true
		case wanted:
			work = work || !e.gone.IsZero()
			if e.want.Lease != w.Lease {
				e.check, e.renew, work = now, now, true
			}
			e.want, e.gone = w, time.Time{}
		}
	}
	for k, w := range want {
		if w.Here && g.entries[k] == nil && sideOf(w) == g.at.side {
			g.entries[k] = &entry{want: w}
			work = true
		}
	}
	return work
}

// tell is what the World may know of e. m.mu is held.
func (g *gateway) tell(e *entry) vip.Mapped {
	x := vip.Mapped{Mapping: e.want, Gateway: g.name, Made: e.Made, Until: e.until, Problem: e.problem, Gone: e.gone}
	if !e.until.IsZero() && time.Now().After(e.until) {
		x.Made = false // it could not be renewed
	}
	if x.Made {
		x.External = netip.AddrPortFrom(g.public, e.external)
		if g.at.side.family == vip.IPv6 {
			x.External = netip.AddrPortFrom(e.want.Addr, e.want.Port)
		} else if !g.public.IsValid() && x.Problem == "" {
			x.Problem = "the port is mapped, but the gateway has no external address at present; is its line down?"
		}
	}
	if x.Problem == "" {
		x.Problem = g.problem
	}
	if x.Problem == "" && e.lost >= forgetful {
		x.Problem = "the gateway forgets the mapping again and again before its time is over; " + leaseKey + ": \"0\" may help"
	}
	return x
}

// run asks the gateway for what is wanted until ctx ends, and then removes what is
// to be removed.
func (g *gateway) run(ctx context.Context) {
	for ctx.Err() == nil {
		g.pause(ctx, g.turn(ctx))
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.m.pace.last)
	defer cancel()
	for g.owes() && last.Err() == nil {
		if wait := g.turn(last); g.owes() {
			g.pause(last, wait)
		}
	}
}

// pause waits until there may be something to do.
func (g *gateway) pause(ctx context.Context, atMost time.Duration) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-g.wake:
	case <-timer.C:
	}
}

// owes reports whether something is to be removed.
func (g *gateway) owes() bool {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	for _, e := range g.entries {
		if !e.gone.IsZero() {
			return true
		}
	}
	return false
}

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
	if wait := g.next.Sub(now); wait > 0 {
		return wait
	}
	if err := g.ready(ctx, now); err != nil {
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

// ready reads the gateway's description, if that is not known, and asks now and
// then for its external address.
func (g *gateway) ready(ctx context.Context, now time.Time) error {
	g.m.mu.Lock()
	met, location := g.met, g.location
	g.m.mu.Unlock()
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
