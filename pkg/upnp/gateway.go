package upnp

import (
	"context"
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
	tried     int       // the met of the last turn
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
	case g.location.String() == a.location.String():
		return
	case !g.ailing:
		// A box with two descriptions, or one that was restarted and can't say so: ask it
		// where it was, and believe it if that comes to nothing.
		for _, e := range g.entries {
			e.check = now
		}
		poke(g.wake)
		return
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
func (g *gateway) tell(e *entry) vip.MappingState {
	x := vip.MappingState{Mapping: e.want, Gateway: g.name, Confirmed: e.Made, Until: e.until, Problem: e.problem, RemovalSince: e.gone}
	if !e.until.IsZero() && time.Now().After(e.until) {
		x.Confirmed = false // it could not be renewed
	}
	if x.Confirmed {
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
