// Package bgp advertises VIPs to routers: one BGP session (RFC 4271) per peer,
// spoken by gobgp. Nothing a router sends is used.
//
// Each peer has a speaker of its own with a table of its own, so that one which
// resets in a loop or sends the whole Internet keeps no other waiting, and the
// routes for each can differ in next hop and attributes without policies.
package bgp

import (
	"context"
	"hash/fnv"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/heraldvip/herald/pkg/vip"
)

// Options of a Speaker.
type Options struct {
	Node string // this node's name, for the shutdown text

	// Peers is the whole of whom to speak to, at any time. It answers from memory.
	Peers func() []vip.BGPPeer

	RouterID        netip.Addr // the BGP identifier; zero derives one
	RouterInterface string     // the link whose IPv4 address is the identifier, or ""

	// Links is the links of this node with their addresses, without those that Herald has
	// bound (netif.Interfaces.Links).
	Links func() []vip.Link

	Hold      time.Duration // the hold time we offer, whole seconds, at least 3 s
	Keepalive time.Duration // less than Hold
	// Restart, if not zero, is how long routers are asked to keep our routes while
	// this process restarts (RFC 4724).
	Restart time.Duration
	Drain   time.Duration // how long a route that is about to go is shown as such

	// Most is how many routes a peer may send before its session is ended: gobgp
	// keeps them all, used or not. 0 is half a million, which take 200 MB.
	Most int

	Log  *slog.Logger
	Poke func() // called when a session changed; must not block
}

// A Speaker is a part over vip.Route, and tells of its sessions.
type Speaker struct {
	o       Options
	metrics *metrics

	mu       sync.Mutex
	started  bool // the first Set was here: what goes out is whole from the start (RFC 4724 section 4.1)
	want     []vip.Route
	peers    map[string]*peer // by name
	draining time.Time        // since when routes drain; zero: none do
	changed  chan struct{}    // cap 1: peers are to be made as wanted
}

// New makes a Speaker. Run does the work.
func New(o Options) *Speaker {
	if o.Most == 0 {
		o.Most = 500_000
	}
	s := &Speaker{o: o, peers: make(map[string]*peer), changed: make(chan struct{}, 1)}
	s.metrics = newMetrics()
	return s
}

// String names the task.
func (s *Speaker) String() string { return "bgp" }

// Set stores what to advertise and returns what the peers with a session have
// been told of, or are being told.
func (s *Speaker) Set(_ context.Context, want []vip.Route) (have []vip.Route, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = true
	want = slices.Concat(want, kept(s.want, want))
	s.want = want
	drain := false
	for _, r := range want {
		drain = drain || r.Drain
	}
	switch {
	case !drain:
		s.draining = time.Time{}
	case s.draining.IsZero():
		s.draining = time.Now()
	}
	nudge(s.changed)
	up := false
	for _, p := range s.peers {
		p.set(want)
		up = up || p.up()
	}
	if up {
		have = want
	}
	return have, nil
}

// Observe fills in the sessions, and whether routers are still to be given time
// to turn away from this node.
func (s *Speaker) Observe(w *vip.World) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.BGPSessions = s.sessions()
	up := false
	for _, x := range w.BGPSessions {
		up = up || x.Up()
	}
	w.BGPDraining = up && !s.draining.IsZero() && w.Now.Sub(s.draining) < s.o.Drain
}

// sessions is the state of all, in the order of Options.Peers. s.mu is held.
func (s *Speaker) sessions() []vip.BGPSession {
	var all []vip.BGPSession
	for _, c := range s.o.Peers() {
		if p := s.peers[c.Name()]; p != nil {
			all = append(all, p.session())
		} else {
			all = append(all, vip.BGPSession{Peer: c.Name(), AS: c.AS, State: waiting, Reason: "nothing has been planned yet"})
		}
	}
	return all
}

// Sessions is the state of all sessions.
func (s *Speaker) Sessions() []vip.BGPSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions()
}

// Run speaks to the peers until ctx ends. Then it withdraws all routes and says
// goodbye with a shutdown text (RFC 9003), unless there are routes to be kept: then it
// says nothing, and the end of the process ends the sessions.
func (s *Speaker) Run(ctx context.Context) error {
	var group errgroup.Group
	for {
		s.mu.Lock()
		if s.started {
			s.adopt(ctx, &group)
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-s.changed:
		}
	}
}

// LinksChanged has the endpoints of all sessions found again: Options.Links has changed.
func (s *Speaker) LinksChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		nudge(p.wake)
	}
}

// adopt starts and ends speakers, so that there is one for each peer. s.mu is held.
func (s *Speaker) adopt(ctx context.Context, group *errgroup.Group) {
	wanted := make(map[string]bool)
	for _, c := range s.o.Peers() {
		name := c.Name()
		wanted[name] = true
		if p := s.peers[name]; p != nil {
			if p.config == c {
				continue
			}
			p.stop("the configuration of this session changed")
		}
		p := newPeer(c, s.o, s.metrics)
		p.set(s.want)
		s.peers[name] = p
		group.Go(func() error { p.run(ctx); return nil })
	}
	for name, p := range s.peers {
		if !wanted[name] {
			p.stop("this session is not configured any more")
			delete(s.peers, name)
		}
	}
}

// kept is what of before stays although it is not wanted any more: the next process
// takes it over.
func kept(before, want []vip.Route) (stay []vip.Route) {
	for _, r := range before {
		if r.Keep && !slices.ContainsFunc(want, func(o vip.Route) bool { return o.Prefix == r.Prefix }) {
			stay = append(stay, r)
		}
	}
	return stay
}

// nudge pokes a channel of capacity 1.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// fallbackID is a BGP identifier for a node without any IPv4 address: any number
// but 0 that is unlikely to be another's (RFC 6286).
func fallbackID(node string) netip.Addr {
	h := fnv.New32a()
	h.Write([]byte(node))
	n := h.Sum32() | 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}
