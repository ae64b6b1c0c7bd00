// Package bgp advertises VIPs to routers: one BGP session (RFC 4271) per peer, by gobgp behind a guard. No router's
// route is used, and none reaches gobgp.
//
// Each peer has a gobgp server with its own table, so that routes differ in next hop and attributes without policies
// (docs/why.md, "The guard before GoBGP").
package bgp

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/bfd"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

var passwordPeriod = 10 * time.Second

// Options of a Speaker.
type Options struct {
	Node string // this node's name, for the shutdown communication

	// Peers is all peers at present, without blocking.
	Peers func() []vip.BGPPeer
	// ReadPasswords has Peers read files again, each passwordPeriod. It may be nil.
	ReadPasswords func()

	RouterID        netip.Addr // the BGP identifier; zero derives one
	RouterInterface string     // the link whose IPv4 address is the identifier, or ""

	// Links is this node's links and addresses, without Herald's (netif.Interfaces.Links).
	Links func() []vip.Link

	HoldTime      time.Duration // the hold time to offer, whole seconds, at least 3 s
	KeepaliveTime time.Duration // less than HoldTime
	// RestartTime is how long routers keep routes while this process restarts (RFC 4724), or zero.
	RestartTime time.Duration
	// DrainTime is how long a route has GRACEFUL_SHUTDOWN before it is withdrawn.
	DrainTime time.Duration

	// TTLSecurity: peers without Multihop send and take a TTL of 255 only (RFC 5082).
	TTLSecurity bool

	Log  *slog.Logger
	Poke func() // called when a session has changed; must not block
}

// A Speaker advertises routes to all peers, and observes the sessions.
type Speaker struct {
	o Options
	*metrics
	wanted  *mailbox.Mailbox[wanted]         // from Put to Run and the peers
	peers   atomic.Pointer[map[string]*peer] // by name; Run replaces the map
	summary atomic.Pointer[summary]          // what Summary returned last
	bfd     *bfd.Sessions
}

type wanted struct {
	routes   []vip.Route
	prefixes map[netip.Prefix]bool      // of routes
	draining map[netip.Prefix]time.Time // since when each has Drain
}

// New makes a Speaker, which needs Run and a Put.
func New(o Options) *Speaker {
	s := &Speaker{o: o, metrics: newMetrics(), wanted: mailbox.New[wanted](), bfd: bfd.New(o.Log)}
	s.peers.Store(&map[string]*peer{})
	return s
}

// Put replaces the routes; former ones with Keep stay. It does not block. One goroutine calls it.
func (s *Speaker) Put(routes []vip.Route) {
	before := s.wanted.Get()
	next := wanted{routes: slices.Concat(routes, keptRoutes(before.routes, routes))}
	next.prefixes, next.draining = make(map[netip.Prefix]bool), make(map[netip.Prefix]time.Time)
	for _, r := range next.routes {
		next.prefixes[r.Prefix] = true
		if r.Drain {
			next.draining[r.Prefix] = cmp.Or(before.draining[r.Prefix], time.Now())
		}
	}
	s.wanted.Put(next)
}

// keptRoutes is former routes with Keep that routes lacks: the next process takes them over.
func keptRoutes(before, routes []vip.Route) (stay []vip.Route) {
	for _, r := range before {
		if r.Keep && !slices.ContainsFunc(routes, func(o vip.Route) bool { return o.Prefix == r.Prefix }) {
			stay = append(stay, r)
		}
	}
	return stay
}

// Observe fills in BGPSessions, Advertised and RoutesDraining: for DrainTime after the last route began to drain, while
// a session is established.
func (s *Speaker) Observe(w *vip.World) {
	w.BGPSessions, w.Advertised = s.Sessions(), s.wanted.Get().prefixes
	if !slices.ContainsFunc(w.BGPSessions, vip.BGPSession.Up) {
		return
	}
	for _, since := range s.wanted.Get().draining {
		w.RoutesDraining = w.RoutesDraining || w.Now.Sub(since) < s.o.DrainTime
	}
}

// Sessions is all sessions, in the order of Options.Peers, without blocking.
func (s *Speaker) Sessions() (all []vip.BGPSession) {
	peers := *s.peers.Load()
	for _, c := range s.o.Peers() {
		if p := peers[c.Name()]; p != nil {
			all = append(all, p.session())
		} else {
			all = append(all, vip.BGPSession{Peer: c.Name(), AS: c.AS, State: stateWaiting,
				Since:  time.Now(), // it is not late yet
				Reason: "nothing has been planned yet"})
		}
	}
	return all
}

// LinksChanged has peers determine endpoints again, as Options.Links has changed. It does not block.
func (s *Speaker) LinksChanged() {
	for _, p := range *s.peers.Load() {
		p.wake.Send()
	}
}

// Run has sessions from the first Put, so with all routes (RFC 4724 section 4.1), until ctx ends. Then it withdraws
// them and ends sessions with a shutdown communication (RFC 9003), unless a route has Keep: then the process' end does.
func (s *Speaker) Run(ctx context.Context) error {
	var running sync.WaitGroup
	go func() { _ = s.bfd.Run(context.WithoutCancel(ctx)) }() // until the process ends: peers end their BFD sessions
	ticker := time.NewTicker(passwordPeriod)
	defer ticker.Stop()
	for {
		if !s.wanted.Empty() {
			s.startAndStop(ctx, &running)
		}
		select {
		case <-ctx.Done():
			running.Wait()
			return nil
		case <-s.wanted.Changed:
		case <-ticker.C:
			if s.o.ReadPasswords != nil {
				s.o.ReadPasswords()
			}
		}
	}
}

// startAndStop starts new peers' goroutines, ends removed ones, restarts changed ones, and wakes the others.
func (s *Speaker) startAndStop(ctx context.Context, running *sync.WaitGroup) {
	before, peers := *s.peers.Load(), map[string]*peer{}
	for _, c := range s.o.Peers() {
		name := c.Name()
		old := before[name]
		if old != nil && old.config == c {
			peers[name] = old
			old.wake.Send()
			continue
		}
		p := newPeer(c, s)
		peers[name] = p
		running.Go(func() {
			if old != nil { // its series have the same labels, and go with it
				old.stop <- "the configuration of this session changed"
				<-old.ended
			}
			p.run(ctx)
		})
	}
	for name, p := range before {
		if peers[name] == nil {
			p.stop <- "this session is not configured any more"
		}
	}
	if !maps.Equal(before, peers) {
		s.peers.Store(&peers)
	}
}

// summaryPeriod is how often a Summary changes while sessions stay up or down: each change is a write.
const summaryPeriod = 10 * time.Second

// A summary is what Summary last returned, never changed.
type summary struct {
	sessions []vip.BGPSession
	at       time.Time
}

// Summary is the sessions as other nodes are told, not to be changed, without blocking. It changes at once when a
// session goes up or down, or has lasted, comes up with other families, is added or removed, else each summaryPeriod.
// State is "down" if not established.
func (s *Speaker) Summary() []vip.BGPSession {
	return summarize(&s.summary, s.Sessions(), time.Now())
}

func summarize(last *atomic.Pointer[summary], sessions []vip.BGPSession, now time.Time) []vip.BGPSession {
	same := func(x, y vip.BGPSession) bool {
		return x.Peer == y.Peer && x.Up() == y.Up() && x.Lasting == y.Lasting && x.NoIPv4 == y.NoIPv4 &&
			x.NoIPv6 == y.NoIPv6
	}
	if before := last.Load(); before != nil && slices.EqualFunc(before.sessions, sessions, same) &&
		now.Sub(before.at) < summaryPeriod {
		return before.sessions
	}
	next := summary{slices.Clone(sessions), now}
	for i := range next.sessions {
		if x := &next.sessions[i]; !x.Up() {
			x.State = "down" // which of the states before it is up changes every second
		}
	}
	last.Store(&next)
	return next.sessions
}

type metrics struct {
	*metric.Set
	up       *prometheus.GaugeVec
	prefixes *prometheus.GaugeVec
	flaps    *prometheus.CounterVec
	sent     *prometheus.CounterVec
	received *prometheus.CounterVec

	bfdUp       *prometheus.GaugeVec
	bfdFailures *prometheus.CounterVec
}

var labels = []string{"peer", "as"}

func newMetrics() *metrics {
	s := &metric.Set{}
	gauge := func(name, help string) *prometheus.GaugeVec { return metric.Gauges(s, name, help, labels...) }
	counter := func(name, help string) *prometheus.CounterVec { return metric.Counters(s, name, help, labels...) }
	return &metrics{
		Set:      s,
		up:       gauge("herald_bgp_session_up", "Whether the BGP session with the peer is established."),
		prefixes: gauge("herald_bgp_prefixes_advertised", "Prefixes advertised to the peer; 0 while there is no session."),
		flaps:    counter("herald_bgp_session_flaps_total", "Established sessions that ended."),
		sent:     counter("herald_bgp_updates_sent_total", "UPDATE messages sent to the peer."),
		received: counter("herald_bgp_updates_received_total", "UPDATE messages received from the peer. Herald uses none "+
			"of them."),

		bfdUp: gauge("herald_bfd_session_up",
			"Whether the BFD session with the peer is up; no series for a peer without BFD."),
		bfdFailures: counter("herald_bfd_session_failures_total",
			"BFD sessions that were up and failed; not those that the router's administrator ended."),
	}
}

func labelsOf(c vip.BGPPeer) []string {
	return []string{c.Name(), strconv.FormatUint(uint64(c.AS), 10)}
}

func (m *metrics) remove(c vip.BGPPeer) {
	for _, v := range []*prometheus.GaugeVec{m.up, m.prefixes, m.bfdUp} {
		v.DeleteLabelValues(labelsOf(c)...)
	}
	for _, v := range []*prometheus.CounterVec{m.flaps, m.sent, m.received, m.bfdFailures} {
		v.DeleteLabelValues(labelsOf(c)...)
	}
}

func (p *peer) setMetrics() {
	s, l := p.session(), labelsOf(p.config)
	up := 0.0
	if s.Up() {
		up = 1
	}
	p.metrics.up.WithLabelValues(l...).Set(up)
	p.metrics.prefixes.WithLabelValues(l...).Set(float64(s.Prefixes))
	p.metrics.flaps.WithLabelValues(l...) // from 0 on, for rate()
	if p.config.BFD != (vip.BFD{}) {
		up := 0.0
		if x := p.path.status.Load(); x != nil && x.State == bfd.Up {
			up = 1
		}
		p.metrics.bfdUp.WithLabelValues(l...).Set(up)
		p.metrics.bfdFailures.WithLabelValues(l...)
	}
}
