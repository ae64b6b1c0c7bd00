package upnp

import (
	"context"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// A gateway is one that has responded to a search. Its own goroutine sends it requests
// one after the other, so that one that hangs delays no other.
type gateway struct {
	m         *Mapper
	discovery *discovery // that found it
	control   controlPoint
	responses *mailbox.Mailbox[*response] // to searches; Changed is also sent when other mappings are wanted
	published atomic.Pointer[gatewayState]

	// Of the discovery's goroutine.
	cancel context.CancelFunc
	seen   time.Time // when it responded last

	// Of its own goroutine.
	state     gatewayState
	entries   map[key]*entry
	want      *wanted   // what entries were last brought up to date with
	handled   *response // the last of responses that was looked at
	at        *response // the one that says where its description is
	described bool      // state.service was read there
	checked   time.Time // when its external address was asked for
	fails     int       // in a row
	failingAt time.Time // no entry that failed the last time is tried again before
	retryAt   time.Time // nothing is asked of it before
	permanent bool      // it accepts mappings without a lease only
	sweep     sweep
}

// A gatewayState is what others may know of a gateway.
type gatewayState struct {
	name         string     // its address, and what it calls itself
	service      service    // the one that opens ports; zero: not known yet
	externalAddr netip.Addr // not valid: it has none, or it is not known yet
	problem      string     // why nothing can be asked of it, or ""
	failing      bool       // the last request was not answered
	restarts     int        // how often it was found to have been restarted, or to have moved
	entries      map[key]entry
}

// An entry is one mapping on one gateway.
type entry struct {
	want        vip.Mapping
	removeSince time.Time // since when it is to be removed; zero: it is wanted

	requested    bool   // it was asked for, and has not been refused
	confirmed    bool   // the gateway has it
	external     uint16 // its external port; 0: not known yet
	pinhole      uint16 // its UniqueID, if pinholeKnown
	pinholeKnown bool
	asked        string      // the description that was asked for last, with want's lease
	kept         portMapping // what the gateway had right after that
	until        time.Time
	renewAt      time.Time // zero: never
	verifyAt     time.Time // when to ask whether the gateway still has it
	losses       int       // how many times in a row it did not; -1: once is not counted
	problem      string
	fails        int
	retryAt      time.Time // nothing is done about it before
}

// maxLosses is how often in a row a gateway may lose a mapping before the user is told.
const maxLosses = 3

func newGateway(d *discovery, r *response) *gateway {
	g := &gateway{
		m: d.m, discovery: d, control: controlPoint{d.segment.link, r.addr}, responses: mailbox.New[*response](),
		seen: time.Now(), state: gatewayState{name: r.addr.String()}, entries: make(map[key]*entry),
	}
	g.published.Store(new(g.state))
	g.responses.Put(r)
	return g
}

// run asks the gateway for what is wanted until ctx ends, and then removes what is to be
// removed, for timing.stopTimeout at most.
func (g *gateway) run(ctx context.Context) {
	for ctx.Err() == nil {
		g.pause(ctx, g.reconcile(ctx))
	}
	defer func() {
		clear(g.entries)
		g.publish()
	}()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.m.timing.stopTimeout)
	defer cancel()
	for g.hasRemovals() && last.Err() == nil {
		if wait := g.reconcile(last); g.hasRemovals() {
			g.pause(last, wait)
		}
	}
}

// pause waits until there may be something to do.
func (g *gateway) pause(ctx context.Context, atMost time.Duration) {
	select {
	case <-ctx.Done():
	case <-g.responses.Changed:
	case <-time.After(atMost):
	}
}

// hasRemovals reports whether a mapping is to be removed.
func (g *gateway) hasRemovals() bool {
	g.updateEntries(time.Now())
	for _, e := range g.entries {
		if !e.removeSince.IsZero() {
			return true
		}
	}
	return false
}

// handleResponse takes over the last response to a search. One with another BOOTID means
// that the gateway was restarted; so does one with another location if the gateway does
// not answer at the one before.
func (g *gateway) handleResponse(now time.Time) {
	r := g.responses.Get()
	if r == g.handled {
		return
	}
	g.handled = r
	switch {
	case g.at == nil:
	case g.at.boot != r.boot:
	case g.at.location.String() == r.location.String():
		return
	case !g.state.failing:
		// A box with two descriptions, or one that was restarted and can't say so: ask it
		// where it was, and move on if it does not answer.
		for _, e := range g.entries {
			e.verifyAt = now
		}
		return
	}
	if g.at != nil {
		g.m.o.Log.Info("a gateway was restarted", "link", g.control.link, "address", g.control.addr)
		g.state.restarts++
	}
	g.at, g.described, g.fails, g.retryAt = r, false, 0, time.Time{}
	for _, e := range g.entries { // nothing is known of what it has now
		e.verifyAt, e.retryAt, e.fails, e.losses, e.pinholeKnown = now, time.Time{}, 0, -1, false
	}
}

// updateEntries makes the entries what is wanted of this gateway.
func (g *gateway) updateEntries(now time.Time) {
	want := g.m.want.Get()
	if want == g.want {
		return
	}
	g.want = want
	for k, e := range g.entries {
		lease, removed := e.want.Lease, !e.removeSince.IsZero()
		switch {
		case !e.update(k, want):
			delete(g.entries, k) // another node's by now
		case !e.removeSince.IsZero() && !removed:
			e.retryAt, e.fails = time.Time{}, 0
		case e.want.Lease != lease:
			e.verifyAt, e.renewAt = now, now
		}
	}
	for k, w := range want.mappings {
		if w.Here && g.entries[k] == nil && segmentOf(w) == g.discovery.segment {
			g.entries[k] = &entry{want: w}
		}
	}
}

// update makes e, the entry of k, what is wanted of it. It reports whether it is this
// node's still.
func (e *entry) update(k key, want *wanted) (own bool) {
	w, wanted := want.mappings[k]
	switch {
	case wanted:
		e.want, e.removeSince = w, time.Time{}
		return w.Here
	case e.removeSince.IsZero():
		e.removeSince = want.at
	}
	return true
}

// publish lets others see the state of the gateway, and pokes if the World changes.
func (g *gateway) publish() {
	before := g.published.Load()
	now := g.state
	now.entries = make(map[key]entry, len(g.entries))
	for k, e := range g.entries {
		now.entries[k] = *e
	}
	g.published.Store(&now)
	g.m.metrics.mappings.Add(now.countConfirmed() - before.countConfirmed())
	at := time.Now()
	same := maps.EqualFunc(before.entries, now.entries, func(a, b entry) bool {
		a.until, b.until = time.Time{}, time.Time{} // a renewal changes nothing that others decide by
		return before.mappingState(a, at) == now.mappingState(b, at)
	})
	if !same {
		g.m.o.Poke()
	}
}

// mappingState is what the World may know of e at now.
func (s *gatewayState) mappingState(e entry, now time.Time) vip.MappingState {
	x := vip.MappingState{Mapping: e.want, Gateway: s.name, Requested: e.requested, Confirmed: e.confirmed, Until: e.until, Problem: e.problem, RemovalSince: e.removeSince}
	if !e.until.IsZero() && now.After(e.until) {
		x.Confirmed = false // it could not be renewed
	}
	if x.Confirmed {
		x.External = netip.AddrPortFrom(s.externalAddr, e.external)
		if e.want.Addr.Is6() {
			x.External = netip.AddrPortFrom(e.want.Addr, e.want.Port)
		} else if !s.externalAddr.IsValid() && x.Problem == "" {
			x.Problem = "the port is mapped, but the gateway has no external address at present; is its line down?"
		}
	}
	if x.Problem == "" {
		x.Problem = s.problem
	}
	if x.Problem == "" && e.losses >= maxLosses {
		x.Problem = "the gateway forgets the mapping again and again before its time is over; " + leaseKey + ": \"0\" may help"
	}
	return x
}

// countConfirmed is how many mappings the gateway has confirmed.
func (s *gatewayState) countConfirmed() (n float64) {
	for _, e := range s.entries {
		if e.confirmed {
			n++
		}
	}
	return n
}
