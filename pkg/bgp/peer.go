package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	look    = time.Second     // how often the node's addresses, and an unnumbered neighbour, are looked at
	goodbye = time.Second     // how long the last words may take
	retry   = 3               // seconds: attempts to connect are 3 to 6 s apart; the first is after 1 to 2 s
	farHops = 64              // TTL towards an eBGP peer that is more than one hop away
	waiting = "waiting"       // the state of a session that can't be tried yet
	rejoin  = 5 * time.Second // gobgp's pause after a session ended
	ban     = 5 * time.Minute // the pause after a peer sent too many routes
)

// A peer is the speaker for one peer. run owns what has no lock.
type peer struct {
	config  vip.BGPPeer
	o       Options
	metrics *metrics
	log     *slog.Logger
	server  *speaker // nil until the session can be tried
	at      seat     // what the session was set up with; zero: it is not
	called  bool     // it was, at least once
	told    map[netip.Prefix]advert
	unsaid  string // what could not be advertised, once told
	router  neighbour

	banned         time.Time // until then there is to be no session
	sent, received uint64    // UPDATE messages, as far as the metrics know

	wake chan struct{} // cap 1
	gone chan struct{} // closed by stop

	mu      sync.Mutex
	want    []vip.Route
	state   string
	since   time.Time
	reason  string
	count   int    // prefixes told
	flaps   uint64 // sessions that ended
	bye     string
	parting bool          // this node ends the session
	remote  string        // the peer's address as gobgp tells it
	turned  chan struct{} // cap 1: the state changed
}

func newPeer(c vip.BGPPeer, o Options, m *metrics) *peer {
	p := &peer{
		config: c, o: o, metrics: m, log: o.Log.With("peer", c.Name()), told: make(map[netip.Prefix]advert),
		wake: make(chan struct{}, 1), gone: make(chan struct{}), turned: make(chan struct{}, 1),
		state: waiting, since: time.Now(),
	}
	return p
}

// set says what to advertise.
func (p *peer) set(want []vip.Route) {
	p.mu.Lock()
	p.want = want
	p.mu.Unlock()
	nudge(p.wake)
}

// stop ends run, which tells the peer the reason.
func (p *peer) stop(why string) {
	p.mu.Lock()
	p.bye = why
	p.mu.Unlock()
	close(p.gone)
}

func (p *peer) up() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state == vip.Established
}

func (p *peer) session() vip.BGPSession {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := vip.BGPSession{Peer: p.config.Name(), AS: p.config.AS, State: p.state, Since: p.since, Reason: p.reason}
	if s.Up() {
		s.Prefixes, s.Reason = p.count, ""
	}
	return s
}

// learn takes over why there is no session.
func (p *peer) learn(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason = reason
}

// run keeps the peer told, until ctx ends or the peer is stopped.
func (p *peer) run(ctx context.Context) {
	defer p.router.close()
	defer p.metrics.forget(p.config)
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		p.keep()
		p.show()
		select {
		case <-ctx.Done():
			if !p.keeps() {
				p.leave("Herald on node " + p.o.Node + " stops")
			}
			return
		case <-p.gone:
			p.mu.Lock()
			why := p.bye
			p.mu.Unlock()
			p.leave(why)
			return
		case <-p.wake:
		case <-ticker.C:
			if before := p.received; p.tally() > before && p.kept() > p.o.Most {
				p.shun()
			}
		}
	}
}

// keeps reports whether routes are to outlive this process.
func (p *peer) keeps() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.want, func(r vip.Route) bool { return r.Keep })
}

// keep makes the session and what is told on it as wanted.
func (p *peer) keep() {
	at, err := p.sit()
	if err != nil {
		p.mu.Lock()
		if p.state == waiting {
			p.reason = err.Error()
		}
		p.mu.Unlock()
		if p.server == nil {
			return
		}
		at = p.at // what stands may go on
	}
	if p.server == nil {
		if err := p.begin(at); err != nil {
			p.learn(err.Error())
			return
		}
	}
	p.tell(at)
	switch {
	case p.at.key() == at.key():
		p.at = at // the next hops may be others
	case time.Now().After(p.banned):
		p.call(at)
	}
}

// begin takes a speaker, which so far speaks to nobody.
func (p *peer) begin(at seat) (err error) {
	if p.server, err = take(at.id); err != nil {
		return err
	}
	p.server.listen.connecting.Store(true)
	p.server.listen.of.Store(p)
	return nil
}

// call begins to try for a session, in place of another.
func (p *peer) call(at seat) {
	ctx := context.Background()
	if p.at != (seat{}) {
		p.log.Info("the BGP session is set up anew", "to", at.remote, "from", at.source)
		if err := p.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.at.remote}); err != nil {
			p.learn(err.Error())
		}
	}
	p.mu.Lock()
	p.remote, p.reason = bare(at.remote), ""
	p.mu.Unlock()
	if err := p.server.AddPeer(ctx, &api.AddPeerRequest{Peer: p.neighbor(at, !p.called)}); err != nil {
		p.learn(err.Error())
		p.at = seat{}
		return
	}
	p.at, p.called = at, true
}

// neighbor is the peer as gobgp takes it.
func (p *peer) neighbor(at seat, first bool) *api.Peer {
	n := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: at.remote, PeerAsn: p.config.AS, LocalAsn: p.config.LocalAS, AuthPassword: string(p.config.Password)},
		Timers: &api.Timers{Config: &api.TimersConfig{
			ConnectRetry: retry, HoldTime: uint64(p.o.Hold / time.Second), KeepaliveInterval: uint64(p.o.Keepalive / time.Second),
			IdleHoldTimeAfterReset: uint64(rejoin / time.Second),
		}},
		Transport: &api.Transport{RemotePort: uint32(p.config.Port), BindInterface: at.bind},
	}
	if at.source.IsValid() {
		n.Transport.LocalAddress = at.source.String()
	}
	if p.config.Multihop {
		n.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: farHops}
	}
	if p.o.Restart > 0 {
		n.GracefulRestart = &api.GracefulRestart{
			Enabled: true, NotificationEnabled: true, RestartTime: uint32(p.o.Restart / time.Second), LocalRestarting: first, DeferralTime: 10,
		}
	}
	for _, f := range []*api.Family{ipv4Unicast, ipv6Unicast} {
		n.AfiSafis = append(n.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: f, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: p.o.Restart > 0}},
		})
	}
	return n
}

// tell makes what is advertised as wanted: new and changed prefixes first, then
// those to be withdrawn. A prefix that did not change costs nothing on the wire.
func (p *peer) tell(at seat) {
	p.mu.Lock()
	routes := p.want
	p.mu.Unlock()
	ctx := context.Background()
	repeat := p.config.LocalAS
	if p.config.AS == p.config.LocalAS {
		repeat = 0
	}
	var unsaid []string
	want := make(map[netip.Prefix]bool, len(routes))
	for _, r := range routes {
		if to := r.Attributes.Peers; to != nil && !slices.Contains(to, p.config.Name()) {
			continue
		}
		a := advert{Route: r, hop: at.hop(r.Prefix.Addr())}
		if !a.hop.IsValid() {
			unsaid = append(unsaid, r.Prefix.String())
			continue
		}
		want[r.Prefix] = true
		if old, ok := p.told[r.Prefix]; ok && old.equal(a) {
			continue
		}
		if _, err := p.server.AddPath(ctx, &api.AddPathRequest{Path: a.path(repeat)}); err != nil {
			unsaid = append(unsaid, fmt.Sprintf("%s: %v", r.Prefix, err))
			continue
		}
		p.told[r.Prefix] = a
	}
	for prefix, a := range p.told {
		if want[prefix] {
			continue
		}
		if err := p.server.DeletePath(ctx, &api.DeletePathRequest{Path: a.path(repeat)}); err != nil {
			unsaid = append(unsaid, fmt.Sprintf("withdrawal of %s: %v", prefix, err))
			continue
		}
		delete(p.told, prefix)
	}
	p.mu.Lock()
	changed := p.count != len(p.told)
	p.count = len(p.told)
	p.mu.Unlock()
	if changed {
		p.o.Poke() // what it is told of is part of the World
	}
	if text := strings.Join(unsaid, ", "); text != p.unsaid {
		p.unsaid = text
		if text != "" {
			p.log.Warn("not advertised: this node has no address that could be the next hop (mpbgp_nexthop, bgp_sourceif)", "prefixes", text)
		}
	}
}

// bare is an address as gobgp tells it in events, or "" for a link-local one, which it spells in several ways.
func bare(remote string) string {
	a, err := netip.ParseAddr(remote)
	if err != nil || a.Zone() != "" {
		return ""
	}
	return a.String()
}

// hear follows the state of the session.
func (p *peer) hear(e *api.WatchEventResponse) {
	x := e.GetPeer().GetPeer().GetState()
	if x == nil || e.GetPeer().GetType() == api.WatchEventResponse_PeerEvent_END_OF_INIT {
		return
	}
	p.mu.Lock()
	if p.remote != "" && x.NeighborAddress != p.remote {
		p.mu.Unlock()
		return // a peer that the speaker had before
	}
	was, now := p.state, strings.ToLower(x.SessionState.String())
	p.state = now
	up := now == vip.Established
	if up != (was == vip.Established) || was == waiting {
		p.since = time.Now()
	}
	if was == vip.Established && !up {
		p.flaps++
		p.metrics.flaps.WithLabelValues(labelsOf(p.config)...).Inc()
	}
	if up {
		p.reason = ""
	}
	reason, count, parting := p.reason, p.count, p.parting
	p.mu.Unlock()
	p.server.listen.connecting.Store(!up)
	nudge(p.turned)
	nudge(p.wake)
	switch {
	case up && was != vip.Established:
		p.log.Info("BGP session up", "as", x.PeerAsn, "router", x.RouterId, "prefixes", count)
	case !up && was == vip.Established && !parting: // else it was told before
		p.log.Warn("BGP session down", "reason", reason)
	}
	if was != now {
		p.o.Poke()
	}
}

// kept is how many routes of the peer gobgp keeps.
func (p *peer) kept() int { return keeps(p.server, p.at.remote) }

// keeps is how many routes of a neighbor a speaker keeps.
func keeps(s *speaker, neighbor string) int {
	n := 0
	for _, f := range []*api.Family{ipv4Unicast, ipv6Unicast} {
		r, err := s.GetTable(context.Background(), &api.GetTableRequest{TableType: api.TableType_ADJ_IN, Family: f, Name: neighbor})
		if err == nil {
			n += int(r.NumPath)
		}
	}
	return n
}

// shun ends the session of a peer that floods this node, for a while.
func (p *peer) shun() {
	why := fmt.Sprintf("more than %d routes, and this node needs none: filter what is sent to it", p.o.Most)
	p.log.Warn("the BGP session is ended, since the peer sends too much", "reason", why, "again", ban)
	p.part(why)
	p.at, p.banned = seat{}, time.Now().Add(ban)
	p.learn("the peer sent " + why)
}

// leave withdraws everything and says why the session ends. It waits until that
// is on its way.
func (p *peer) leave(why string) {
	if p.server == nil {
		return
	}
	if p.up() {
		p.log.Info("this node ends the BGP session", "reason", why)
		_ = p.server.DeletePath(context.Background(), &api.DeletePathRequest{}) // all of ours
	}
	p.part(why)
	give(p.server)
}

// part ends the session with words (RFC 9003), which are at most 128 bytes long.
func (p *peer) part(why string) {
	ctx := context.Background()
	if p.up() {
		p.mu.Lock()
		p.parting = true
		p.mu.Unlock()
		_ = p.server.DisablePeer(ctx, &api.DisablePeerRequest{Address: p.at.remote, Communication: why})
		for deadline := time.After(goodbye); p.up(); {
			select {
			case <-p.turned:
				continue
			case <-deadline:
			}
			break
		}
	}
	if p.at != (seat{}) {
		_ = p.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.at.remote})
	}
	p.mu.Lock()
	p.parting = false
	p.mu.Unlock()
}
