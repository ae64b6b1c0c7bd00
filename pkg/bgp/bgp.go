// Package bgp advertises VIPs to routers: one BGP session (RFC 4271) per peer, by gobgp behind a guard. No router's
// route is used, and none reaches gobgp.
//
// Each peer has a gobgp server with its own table, so that routes differ in next hop and attributes without policies
// (docs/why.md, "The guard before GoBGP").
package bgp

import (
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
	o       Options
	metrics *metrics
	wanted  *mailbox.Mailbox[wanted]         // from Put to Run and the peers
	peers   atomic.Pointer[map[string]*peer] // by name; Run replaces the map
	summary atomic.Pointer[summary]          // what Summary returned last
	bfd     *bfd.Sessions
}

type wanted struct {
	routes        []vip.Route
	drainingSince time.Time // when a route first had Drain; zero if none has
}

// New makes a Speaker, which needs Run and a Put.
func New(o Options) *Speaker {
	s := &Speaker{o: o, metrics: newMetrics(), wanted: mailbox.New[wanted](), bfd: bfd.New(o.Log)}
	s.peers.Store(&map[string]*peer{})
	return s
}

// String names the task.
func (s *Speaker) String() string { return "bgp" }

// Put replaces the routes; former ones with Keep stay. It does not block. One goroutine calls it.
func (s *Speaker) Put(routes []vip.Route) {
	before := s.wanted.Get()
	next := wanted{routes: slices.Concat(routes, keptRoutes(before.routes, routes))}
	if slices.ContainsFunc(next.routes, func(r vip.Route) bool { return r.Drain }) {
		next.drainingSince = before.drainingSince
		if next.drainingSince.IsZero() {
			next.drainingSince = time.Now()
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

// Observe fills in BGPSessions and RoutesDraining: for DrainTime after routes began to drain, while a session is
// established.
func (s *Speaker) Observe(w *vip.World) {
	w.BGPSessions = s.Sessions()
	since := s.wanted.Get().drainingSince
	up := slices.ContainsFunc(w.BGPSessions, vip.BGPSession.Up)
	w.RoutesDraining = up && !since.IsZero() && w.Now.Sub(since) < s.o.DrainTime
}

// Sessions is all sessions, in the order of Options.Peers, without blocking.
func (s *Speaker) Sessions() (all []vip.BGPSession) {
	peers := *s.peers.Load()
	for _, c := range s.o.Peers() {
		if p := peers[c.Name()]; p != nil {
			all = append(all, p.session())
		} else {
			none := vip.BGPSession{Peer: c.Name(), AS: c.AS, State: stateWaiting, Reason: "nothing has been planned yet"}
			all = append(all, none)
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
	var running, monitoring sync.WaitGroup
	bfdContext, stopBFD := context.WithCancel(context.WithoutCancel(ctx)) // it ends after the peers
	defer monitoring.Wait()
	defer stopBFD()
	monitoring.Go(func() { _ = s.bfd.Run(bfdContext) })
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
		p := before[name]
		if p != nil && p.config == c {
			peers[name] = p
			p.wake.Send()
			continue
		}
		if p != nil {
			p.stop <- "the configuration of this session changed"
		}
		p = newPeer(c, s)
		peers[name] = p
		running.Go(func() { p.run(ctx) })
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
// session goes up or down, comes up with other families, is added or removed, else each summaryPeriod. State is "down"
// if not established.
func (s *Speaker) Summary() []vip.BGPSession {
	return summarize(&s.summary, s.Sessions(), time.Now())
}

func summarize(last *atomic.Pointer[summary], sessions []vip.BGPSession, now time.Time) []vip.BGPSession {
	same := func(x, y vip.BGPSession) bool {
		return x.Peer == y.Peer && x.Up() == y.Up() && x.NoIPv4 == y.NoIPv4 && x.NoIPv6 == y.NoIPv6
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
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &metrics{
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

// Collectors are the metrics of this package.
func (s *Speaker) Collectors() []prometheus.Collector {
	m := s.metrics
	return []prometheus.Collector{m.up, m.prefixes, m.flaps, m.sent, m.received, m.bfdUp, m.bfdFailures}
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
