package upnp

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A gateway is one that has responded. One goroutine at a time has it.
type gateway struct {
	m         *Mapper
	segment   segment
	control   controlPoint
	published atomic.Pointer[map[key]vip.MappingState] // what others may know of entries

	seen   time.Time // when it responded last
	latest response  // then
	at     response  // the one that says where its description is

	name         string     // its address, and what it calls itself
	described    bool       // service was read
	service      service    // the one that opens ports
	externalAddr netip.Addr // not valid: it has none, or it is not known yet
	checked      time.Time  // when its external address was asked for
	problem      string     // why nothing can be asked of it, or ""
	fails        int        // how often in a row it did not answer
	retryAt      time.Time  // nothing is asked of it before

	want    *wanted // what entries were last brought up to date with
	entries map[key]*entry
}

// An entry is one mapping on one gateway; publishing fills in Gateway and External.
type entry struct {
	vip.MappingState
	pinhole      uint16 // its UniqueID, if pinholeKnown
	pinholeKnown bool
	asked        string      // the description that was asked for last, with Lease
	kept         portMapping // what the gateway had right after that
	renewAt      time.Time   // zero: never
	dueAt        time.Time   // nothing is done about it before
	losses       int         // how many times in a row the gateway did not have it
}

// maxLosses is how often in a row a mapping may be lost before the user is told.
const maxLosses = 3

func newGateway(m *Mapper, s segment, r response) *gateway {
	g := &gateway{
		m: m, segment: s, control: controlPoint{s.link, r.addr}, seen: time.Now(), latest: r, at: r,
		name: r.addr.String(), entries: make(map[key]*entry),
	}
	g.published.Store(&map[key]vip.MappingState{})
	return g
}

// reconcile makes some of the mappings that are due what is wanted.
func (g *gateway) reconcile(ctx context.Context) {
	defer g.publish()
	g.updateEntries()
	now := time.Now()
	maps.DeleteFunc(g.entries, func(_ key, e *entry) bool { // what can't be removed has ended by itself
		return !e.RemovalSince.IsZero() && !e.Until.IsZero() && now.After(e.Until)
	})
	if g.fails > 0 && g.move() {
		g.retryAt = time.Time{}
	}
	if g.dueAt().After(now) {
		return
	}
	err := g.ask(ctx)
	if err != nil && g.move() {
		err = g.ask(ctx)
	}
	switch {
	case err == nil:
		g.fails, g.retryAt, g.problem = 0, time.Time{}, ""
	case ctx.Err() == nil: // else it is this process that ends
		g.recordFailure(err)
	}
}

// ask does some of what is due; an error if the gateway can't be used.
func (g *gateway) ask(ctx context.Context) error {
	if err := g.prepare(ctx); err != nil {
		return err
	}
	for _, k := range g.due(time.Now()) {
		g.updateEntries()
		e := g.entries[k]
		if e == nil { // another node's meanwhile
			continue
		}
		err := g.apply(ctx, e)
		if err != nil && failureReason(err) == failUnreachable {
			return err
		}
		g.recordResult(k, e, err)
		g.publish()
	}
	return nil
}

func (g *gateway) removeAll(ctx context.Context) {
	g.updateEntries()
	maps.DeleteFunc(g.entries, func(_ key, e *entry) bool { return e.RemovalSince.IsZero() })
	if len(g.entries) == 0 || g.prepare(ctx) != nil {
		return
	}
	for _, e := range g.entries {
		if err := g.apply(ctx, e); err != nil && failureReason(err) == failUnreachable {
			return
		}
	}
}

// move takes over where a restarted gateway is, once it does not answer where it was: some have two descriptions.
func (g *gateway) move() bool {
	if g.at.location.String() == g.latest.location.String() {
		return false
	}
	g.m.o.Log.Info("a gateway was restarted", "link", g.control.link, "address", g.control.addr)
	g.at, g.described = g.latest, false
	for _, e := range g.entries { // nothing is known of what it has now
		e.dueAt, e.pinholeKnown = time.Time{}, false
	}
	return true
}

func (g *gateway) updateEntries() {
	want := g.m.want.Get()
	if want == g.want {
		return
	}
	g.want = want
	for k, e := range g.entries {
		before := e.MappingState
		if !want.update(&e.MappingState) {
			delete(g.entries, k) // another node's by now
		} else if e.Lease != before.Lease || e.RemovalSince.IsZero() != before.RemovalSince.IsZero() {
			e.dueAt, e.renewAt = time.Time{}, time.Now()
		}
	}
	for k, w := range want.mappings {
		if w.Here && g.entries[k] == nil && segmentOf(w) == g.segment {
			e := &entry{MappingState: vip.MappingState{Mapping: w, Requested: w.Gone}} // another process may have asked for it
			want.update(&e.MappingState)
			g.entries[k] = e
		}
	}
}

// publish lets others see the entries, and pokes if the World changes.
func (g *gateway) publish() {
	before, now := *g.published.Load(), make(map[key]vip.MappingState, len(g.entries))
	confirmed := 0
	for k, e := range g.entries {
		now[k] = g.mappingState(e)
		if now[k].Confirmed {
			confirmed++
		}
	}
	for _, x := range before {
		if x.Confirmed {
			confirmed--
		}
	}
	g.published.Store(&now)
	g.m.metrics.mappings.Add(float64(confirmed))
	if !maps.EqualFunc(before, now, func(a, b vip.MappingState) bool {
		a.Until, b.Until = time.Time{}, time.Time{} // a renewal changes nothing that others decide by
		return a == b
	}) {
		g.m.o.Poke()
	}
}

func (g *gateway) mappingState(e *entry) vip.MappingState {
	x := e.MappingState
	x.Gateway = g.name
	if !x.Until.IsZero() && time.Now().After(x.Until) {
		x.Confirmed = false // it could not be renewed
	}
	switch {
	case x.Confirmed && x.Addr.Is6():
		x.External = netip.AddrPortFrom(x.Addr, x.Port)
	case x.Confirmed:
		x.External = netip.AddrPortFrom(g.externalAddr, x.Mapping.External)
	}
	switch {
	case x.Problem != "":
	case x.Confirmed && !x.External.Addr().IsValid():
		x.Problem = "the port is mapped, but the gateway has no external address at present; is its line down?"
	case g.problem != "":
		x.Problem = g.problem
	case e.losses >= maxLosses:
		x.Problem = "the gateway forgets the mapping again and again before its time is over; " + leaseKey +
			": \"0\" may help"
	}
	return x
}

func (g *gateway) dueAt() time.Time {
	at := time.Now().Add(idle)
	for _, e := range g.entries {
		at = vip.Earlier(at, e.dueAt)
	}
	if g.retryAt.After(at) {
		return g.retryAt
	}
	return at
}

// maxOfAKind is how many entries of each kind a pass works on, so that namespaces delay each other little.
const maxOfAKind = 16

// due is up to maxOfAKind of each kind: wanted, to be removed, and failed last time, the longest overdue first.
func (g *gateway) due(now time.Time) (keys []key) {
	var kinds [3][]key
	for k, e := range g.entries {
		kind := 0
		switch {
		case e.dueAt.After(now):
			continue
		case e.Problem != "":
			kind = 2
		case !e.RemovalSince.IsZero():
			kind = 1
		}
		kinds[kind] = append(kinds[kind], k)
	}
	slices.SortFunc(kinds[2], func(a, b key) int { return g.entries[a].dueAt.Compare(g.entries[b].dueAt) })
	for _, list := range kinds {
		list = vip.TakeTurns(list, func(k key) string { return g.entries[k].Service.Namespace })
		keys = append(keys, list[:min(len(list), maxOfAKind)]...)
	}
	return keys
}

func (g *gateway) apply(ctx context.Context, e *entry) error {
	remove, six := !e.RemovalSince.IsZero(), g.segment.family == vip.IPv6
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
	e.dueAt = time.Now().Add(g.m.timing.period)
	switch {
	case err != nil:
		why := explain(err)
		if e.Problem != why {
			g.m.o.Log.Debug("a gateway refuses", "gateway", g.name, "service", e.Service, "port", e.Port,
				"remove", !e.RemovalSince.IsZero(), "err", err)
		}
		e.Problem = why
		g.m.metrics.failures.WithLabelValues(failureReason(err)).Inc()
	case !e.RemovalSince.IsZero():
		if e.Requested, e.Confirmed = false, false; !e.Gone { // else it is to be known that it was removed
			delete(g.entries, k)
		}
		for _, x := range g.entries { // its port may be what another one waits for
			if x.Problem != "" && x.Mapping.External == k.External && x.Protocol == k.Protocol {
				x.dueAt = time.Time{}
			}
		}
	default:
		e.Problem = ""
		if !e.renewAt.IsZero() {
			e.dueAt = vip.Earlier(e.dueAt, e.renewAt)
		}
	}
}

// prepare reads an unknown description, and asks for the external address each timing.period.
func (g *gateway) prepare(ctx context.Context) error {
	six := g.segment.family == vip.IPv6
	if !g.described {
		d, err := g.control.fetchDescription(ctx, g.at.location)
		if err != nil {
			return err
		}
		if g.service, err = g.control.chooseService(ctx, d, six); err != nil {
			return err
		}
		g.described, g.checked = true, time.Time{}
		g.name = g.control.addr.String()
		if d.name != "" {
			g.name += " (" + d.name + ")"
		}
	}
	if six || time.Since(g.checked) < g.m.timing.period {
		return nil
	}
	addr, err := g.control.externalAddr(ctx, g.service)
	if err != nil {
		return err
	}
	g.checked = time.Now()
	if addr != g.externalAddr {
		g.externalAddr = addr
		g.m.o.Log.Info("a gateway's external address", "gateway", g.name, "address", addr)
	}
	return nil
}

// recordFailure records why the gateway can't be used; a first failure with mappings is not shown: it may restart.
func (g *gateway) recordFailure(err error) {
	why, confirmed := explain(err), false
	for _, e := range g.entries {
		confirmed = confirmed || e.Confirmed
	}
	if g.problem != why {
		g.m.o.Log.Debug("a gateway can't be used at present", "gateway", g.control.addr, "err", err)
	}
	if g.fails > 0 || !confirmed {
		g.problem = why
	}
	g.fails++
	g.retryAt, g.described = time.Now().Add(g.m.timing.period), false
	g.m.metrics.failures.WithLabelValues(failureReason(err)).Inc()
}

// failureReason is the metric's name of a failure. All but failUnreachable mean that the gateway has answered.
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
