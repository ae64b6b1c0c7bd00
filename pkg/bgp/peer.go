package bgp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	api "github.com/osrg/gobgp/v3/api"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	pollInterval = time.Second     // how often the route to the peer and gobgp's counters are read
	shutdownWait = time.Second     // how long the shutdown communication may take
	connectRetry = 3               // seconds: attempts to connect are 3 to 6 s apart; the first is after 1 to 2 s
	multihopTTL  = 64              // IP TTL towards an eBGP peer that is more than one hop away
	idleHoldTime = 5 * time.Second // gobgp's pause after a session has ended
	floodPause   = 5 * time.Minute // the pause after a peer has sent too many routes

	waiting = "waiting" // the State of a session that can't be tried yet
)

// A peer keeps the session with one BGP peer, and the routes that are advertised on it,
// as wanted. Its goroutine is run.
type peer struct {
	config  vip.BGPPeer
	o       Options
	metrics *metrics
	log     *slog.Logger
	wanted  *mailbox.Mailbox[wanted] // Changed is Run's; wake is sent after it

	wake   mailbox.Signal
	stop   chan string    // capacity 1: ends run; the reason is for the peer
	events chan *api.Peer // the session's state changed; in order, by gobgp's goroutine
	ended  chan struct{}  // closed when run has returned

	status atomic.Pointer[vip.BGPSession] // but for Reason; run writes it
	reason atomic.Pointer[string]         // why the session is not established; gobgp's goroutines write it, too

	ownAddresses func() ([]net.Addr, error) // of all links; net.InterfaceAddrs

	// What follows belongs to run.
	server     *gobgpServer // nil until the endpoints were known
	at         endpoints    // of the session that gobgp tries for or has; zero if there is none
	attempted  bool         // there was one before, or is
	local      netip.Addr   // this node's, of the session that was established last; zero: not known
	as         uint32       // the peer's AS number, as configured, or as it said in the last session; 0: not known
	advertised map[netip.Prefix]advert
	failures   string // what can't be advertised, as logged last
	discovery  *routerDiscovery
	path       pathMonitor

	pausedUntil    time.Time // no session until then: the peer sent too many routes
	sent, received uint64    // UPDATE messages that the metrics have
}

func newPeer(c vip.BGPPeer, s *Speaker) *peer {
	p := &peer{
		config: c, o: s.o, metrics: s.metrics, log: s.o.Log.With("peer", c.Name()), wanted: s.wanted,
		wake: mailbox.NewSignal(), stop: make(chan string, 1), events: make(chan *api.Peer), ended: make(chan struct{}),
		advertised: make(map[netip.Prefix]advert), ownAddresses: net.InterfaceAddrs, as: c.AS, discovery: newRouterDiscovery(), path: pathMonitor{sessions: s.bfd, changed: mailbox.NewSignal()},
	}
	p.status.Store(&vip.BGPSession{Peer: c.Name(), AS: c.AS, State: waiting, Since: time.Now()})
	p.setReason("")
	return p
}

func (p *peer) up() bool { return p.status.Load().Up() }

// session is the state of the session.
func (p *peer) session() vip.BGPSession {
	s := *p.status.Load()
	if !s.Up() {
		s.Reason = p.whyDown()
	}
	if x := p.path.status.Load(); x != nil {
		s.BFD = cmp.Or(x.Error, x.State.String())
	}
	return s
}

func (p *peer) setReason(text string) { p.reason.Store(&text) }

// run keeps the session and its routes as wanted until ctx ends or stop has a reason. It
// then withdraws the routes and ends the session; when ctx ends and a route has Keep, it
// leaves both to the end of the process.
func (p *peer) run(ctx context.Context) {
	defer close(p.ended)
	defer p.metrics.remove(p.config)
	defer p.discovery.close()
	defer p.stopBFD() // after the BGP session
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		p.update()
		p.setMetrics()
		select {
		case <-ctx.Done():
			if !slices.ContainsFunc(p.wanted.Get().routes, func(r vip.Route) bool { return r.Keep }) {
				p.shutDown("Herald on node " + p.o.Node + " stops")
			}
			return
		case why := <-p.stop:
			p.shutDown(why)
			return
		case x := <-p.events:
			p.changeState(x, false)
		case <-p.wake:
		case <-p.discovery.heard.Changed:
		case <-p.path.changed:
			p.followBFD()
		case <-ticker.C:
			if before := p.received; p.countUpdates() > before && receivedRoutes(p.server, p.at.remote) > p.o.MaxReceived {
				p.endFloodedSession()
			}
		}
	}
}

// update advertises what is wanted, and has gobgp try for a session with other endpoints
// if they changed, or the session's own address has gone. Without endpoints an established session stays as it is,
// and so does what is advertised to a peer without one.
func (p *peer) update() {
	at, err := p.findEndpoints()
	if err != nil {
		if p.at == (endpoints{}) && time.Now().After(p.pausedUntil) {
			p.setReason(err.Error())
		}
		if at = p.at; p.server == nil || at == (endpoints{}) {
			p.updateBFD(at)
			return
		}
		at.local = p.local // there is no other to go on from
	}
	if p.server == nil {
		if p.server, err = takeServer(at.id); err != nil {
			p.setReason(err.Error())
			return
		}
		p.server.peer.Store(p)
	}
	p.advertise(at)
	p.updateBFD(at)
	switch {
	case p.at.sessionKey() == at.sessionKey() && !p.addressGone(at.local):
		p.at = at // the next hops may be others
	case time.Now().After(p.pausedUntil):
		p.connect(at)
	}
}

// connect has gobgp try for a session, in place of the one that it tried for or had.
func (p *peer) connect(at endpoints) {
	ctx := context.Background()
	if p.at != (endpoints{}) {
		p.log.Info("the BGP session is set up again", "to", at.remote, "from", at.source)
		if err := p.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.at.remote}); err != nil {
			p.setReason(err.Error())
		}
	}
	p.local = netip.Addr{}
	p.setReason("")
	if err := p.server.AddPeer(ctx, &api.AddPeerRequest{Peer: p.neighbor(at, !p.attempted)}); err != nil {
		p.setReason(err.Error())
		p.at = endpoints{}
		return
	}
	p.at, p.attempted = at, true
}

// neighbor is the peer's configuration for gobgp. The first session of this process
// says that this node restarts (RFC 4724), if RestartTime is set.
func (p *peer) neighbor(at endpoints, first bool) *api.Peer {
	restart := p.o.RestartTime > 0
	n := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: at.remote, PeerAsn: p.config.AS, LocalAsn: p.config.LocalAS, AuthPassword: string(p.config.Password)},
		Timers: &api.Timers{Config: &api.TimersConfig{
			ConnectRetry: connectRetry, HoldTime: uint64(p.o.HoldTime / time.Second), KeepaliveInterval: uint64(p.o.KeepaliveTime / time.Second),
			IdleHoldTimeAfterReset: uint64(idleHoldTime / time.Second),
		}},
		Transport: &api.Transport{RemotePort: uint32(p.config.Port), BindInterface: at.bind},
	}
	if p.config.Multihop {
		n.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: multihopTTL}
	} else if p.o.TTLSecurity {
		n.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 255}
	}
	if at.source.IsValid() {
		n.Transport.LocalAddress = at.source.String()
	}
	if restart {
		n.GracefulRestart = &api.GracefulRestart{
			Enabled: true, NotificationEnabled: true, RestartTime: uint32(p.o.RestartTime / time.Second), LocalRestarting: first, DeferralTime: 10,
		}
	}
	for _, f := range []*api.Family{ipv4Unicast, ipv6Unicast} {
		n.AfiSafis = append(n.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: f, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: restart}},
		})
	}
	return n
}

// advertise brings gobgp's table to what is wanted for this peer: new and changed prefixes
// first, then it withdraws the others. A prefix that did not change costs no message.
// One without a next hop is not advertised, and withdrawn if it was; what fails is logged
// once, and tried again by the next call.
func (p *peer) advertise(at endpoints) {
	ctx := context.Background()
	var failed []string
	want := make(map[netip.Prefix]bool)
	for _, r := range p.wanted.Get().routes {
		if names := r.Attributes.Peers; names != nil && !slices.Contains(names, p.config.Name()) {
			continue
		}
		a := p.advertOf(r, at)
		if !a.nextHop.IsValid() {
			failed = append(failed, r.Prefix.String())
			continue
		}
		want[r.Prefix] = true
		if old, ok := p.advertised[r.Prefix]; ok && old.equal(a) {
			continue
		}
		if _, err := p.server.AddPath(ctx, &api.AddPathRequest{Path: a.path(p.config)}); err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v", r.Prefix, err))
			continue
		}
		p.advertised[r.Prefix] = a
	}
	for prefix, a := range p.advertised {
		if want[prefix] {
			continue
		}
		if err := p.server.DeletePath(ctx, &api.DeletePathRequest{Path: a.path(p.config)}); err != nil {
			failed = append(failed, fmt.Sprintf("withdrawal of %s: %v", prefix, err))
			continue
		}
		delete(p.advertised, prefix)
	}
	if s := *p.status.Load(); s.Prefixes != p.taken(s) {
		s.Prefixes = p.taken(s)
		p.status.Store(&s)
		p.o.Poke() // it is part of the World
	}
	if text := strings.Join(failed, ", "); text != p.failures {
		p.failures = text
		if text != "" {
			p.log.Warn("not advertised: this node has no address that could be the next hop (mpbgp_nexthop, bgp_sourceif)", "prefixes", text)
		}
	}
}

// taken counts the prefixes of gobgp's table that it advertises on a session: it sends none of a family that was not negotiated.
func (p *peer) taken(on vip.BGPSession) (n int) {
	for prefix := range p.advertised {
		if on.Takes(prefix.Addr()) {
			n++
		}
	}
	return n
}

// refused returns which families the peer has not named as its capabilities (RFC 4760 section 8) in the session that has just come up; one that names none
// takes IPv4, as gobgp has it.
func (p *peer) refused() (v4, v6 bool) {
	var named []*api.Family
	_ = p.server.ListPeer(context.Background(), &api.ListPeerRequest{}, func(x *api.Peer) {
		for _, c := range x.GetState().GetRemoteCap() {
			if m := new(api.MultiProtocolCapability); c.MessageIs(m) && c.UnmarshalTo(m) == nil {
				named = append(named, m.Family)
			}
		}
	})
	lacks := func(f *api.Family) bool {
		return len(named) > 0 && !slices.ContainsFunc(named, func(o *api.Family) bool { return o.GetAfi() == f.Afi && o.GetSafi() == f.Safi })
	}
	return lacks(ipv4Unicast), lacks(ipv6Unicast)
}

// deliver hands a change of the session's state from gobgp's goroutine to run. It blocks
// until run takes it or has returned; gobgp queues the changes that follow.
func (p *peer) deliver(e *api.WatchEventResponse) {
	x := e.GetPeer().GetPeer()
	if x.GetState() == nil || e.GetPeer().GetType() == api.WatchEventResponse_PeerEvent_END_OF_INIT {
		return
	}
	select {
	case p.events <- x:
	case <-p.ended:
	}
}

// changeState stores the session's new state, counts and logs its beginning and end, and
// pokes. With ending, this node ends the session itself, which was logged before. A change
// that is about an address the peer had before is ignored.
func (p *peer) changeState(to *api.Peer, ending bool) {
	x := to.State
	a, err := netip.ParseAddr(p.at.remote)
	if err == nil && a.Zone() == "" && x.NeighborAddress != a.String() { // gobgp spells a zone in several ways
		return
	}
	s := *p.status.Load()
	before := s
	s.State = strings.ToLower(x.SessionState.String())
	if s.Up() != before.Up() || before.State == waiting {
		s.Since = time.Now()
	}
	switch {
	case s.Up() && !before.Up():
		p.as = cmp.Or(x.PeerAsn, p.as)
		p.local, _ = netip.ParseAddr(to.GetTransport().GetLocalAddress()) // none for one with a zone
		s.NoIPv4, s.NoIPv6 = p.refused()
		s.Prefixes = p.taken(s)
		p.log.Info("BGP session up", "as", x.PeerAsn, "router", x.RouterId, "prefixes", s.Prefixes)
		p.setReason("")
	case before.Up() && !s.Up():
		s.NoIPv4, s.NoIPv6, s.Prefixes = false, false, 0
		p.metrics.flaps.WithLabelValues(labelsOf(p.config)...).Inc()
		if !ending {
			p.log.Warn("BGP session down", "reason", *p.reason.Load())
		}
	}
	p.status.Store(&s)
	if s.State != before.State {
		p.o.Poke()
	}
}

// receivedRoutes is how many routes from a neighbor gobgp keeps.
func receivedRoutes(s *gobgpServer, neighbor string) (n int) {
	for _, f := range []*api.Family{ipv4Unicast, ipv6Unicast} {
		r, err := s.GetTable(context.Background(), &api.GetTableRequest{TableType: api.TableType_ADJ_IN, Family: f, Name: neighbor})
		if err == nil {
			n += int(r.NumPath)
		}
	}
	return n
}

// endFloodedSession ends the session for floodPause, since the peer has sent too many routes.
func (p *peer) endFloodedSession() {
	why := fmt.Sprintf("more than %d routes, and this node needs none: filter what is sent to it", p.o.MaxReceived)
	p.log.Warn("the BGP session is ended, since the peer sends too much", "reason", why, "again", floodPause)
	p.endSession(why)
	p.at, p.pausedUntil = endpoints{}, time.Now().Add(floodPause)
	p.setReason("the peer sent " + why)
}

// shutDown withdraws all routes, ends the session with the reason, and gives the server
// back. It blocks until the peer knows, for shutdownWait at most.
func (p *peer) shutDown(why string) {
	if p.server == nil {
		return
	}
	if p.up() {
		p.log.Info("this node ends the BGP session", "reason", why)
	}
	_ = p.server.DeletePath(context.Background(), &api.DeletePathRequest{}) // all
	p.endSession(why)
	giveServer(p.server)
}

// endSession ends an established session with a shutdown communication (RFC 9003, at most
// 128 bytes), waits until it has ended, for shutdownWait at most, and has gobgp try no more.
func (p *peer) endSession(why string) {
	ctx := context.Background()
	if p.up() {
		_ = p.server.DisablePeer(ctx, &api.DisablePeerRequest{Address: p.at.remote, Communication: why})
		for late := time.After(shutdownWait); late != nil && p.up(); {
			select {
			case x := <-p.events:
				p.changeState(x, true)
			case <-late:
				late = nil
			}
		}
	}
	if p.at != (endpoints{}) {
		_ = p.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: p.at.remote})
	}
}
