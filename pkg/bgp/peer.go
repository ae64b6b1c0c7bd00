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
	"sync"
	"sync/atomic"
	"time"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/log"
	"github.com/osrg/gobgp/v3/pkg/server"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	pollInterval = time.Second      // how often the way to the peer is looked up
	shutdownWait = time.Second      // how long the shutdown communication may take
	lastingAfter = 10 * time.Second // how long a session has been up, or down, to be BGPSession.Lasting
	multihopTTL  = 64               // IP TTL towards an eBGP peer that is more than one hop away

	stateWaiting = "waiting" // the State of a session that can't be tried yet
	stateIdle    = "idle"
)

// guardAddress is every peer's address for GoBGP; each guard has its port.
const guardAddress = "127.0.0.1"

// A peer keeps a BGP session and its routes as wanted. Its goroutine is run.
type peer struct {
	config  vip.BGPPeer
	o       Options
	metrics *metrics
	log     *slog.Logger
	wanted  *mailbox.Mailbox[wanted] // Changed is Run's; wake is sent after it

	wake   mailbox.Signal
	stop   chan string   // capacity 1: ends run; the reason is for the peer
	events chan progress // the session's state changed; in order, by the guard's goroutine
	ended  chan struct{} // closed when run has returned

	status atomic.Pointer[vip.BGPSession] // run writes it

	ownAddresses func() ([]net.Addr, error) // of all links; net.InterfaceAddrs

	server     *gobgpServer // nil until the endpoints were known; guard, too
	guard      *guard
	at         endpoints // of the session that is tried for or stands; zero if there is none
	as         uint32    // the peer's AS number, as configured, or as it said in the last session; 0: not known
	advertised map[netip.Prefix]advert
	failures   string   // what gobgp refuses, as logged last
	heard      progress // the last of events
	discovery  *routerDiscovery
	path       pathMonitor
}

func newPeer(c vip.BGPPeer, s *Speaker) *peer {
	p := &peer{
		config: c, o: s.o, metrics: s.metrics, log: s.o.Log.With("peer", c.Name()), wanted: s.wanted,
		wake: mailbox.NewSignal(), stop: make(chan string, 1), events: make(chan progress), ended: make(chan struct{}),
		advertised: make(map[netip.Prefix]advert), ownAddresses: net.InterfaceAddrs, as: c.AS,
		discovery: &routerDiscovery{heard: mailbox.New[netip.Addr]()},
		path:      pathMonitor{sessions: s.bfd, changed: mailbox.NewSignal()},
	}
	p.status.Store(&vip.BGPSession{Peer: c.Name(), AS: c.AS, State: stateWaiting, Since: time.Now()})
	return p
}

func (p *peer) up() bool { return p.status.Load().Up() }

func (p *peer) session() vip.BGPSession {
	s := *p.status.Load()
	if failure := p.path.failure.Load(); failure != nil && !s.Up() {
		s.Reason = strings.Trim("BFD: "+*failure+"; "+s.Reason, "; ")
	}
	if x := p.path.status.Load(); x != nil {
		s.BFD = cmp.Or(x.Error, x.State.String())
	}
	return s
}

func (p *peer) setReason(text string) {
	s := *p.status.Load()
	s.Reason = text
	p.status.Store(&s)
}

// run keeps session and routes as wanted until ctx ends or stop has a reason. Then it withdraws and ends them; when ctx
// ends and a route has Keep, the process' end does.
func (p *peer) run(ctx context.Context) {
	defer close(p.ended)
	defer p.metrics.remove(p.config)
	defer p.discovery.close()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		p.update()
		p.setLasting()
		p.setMetrics()
		select {
		case <-ctx.Done():
			if !slices.ContainsFunc(p.wanted.Get().routes, func(r vip.Route) bool { return r.Keep }) {
				p.shutDown("Herald on node " + p.o.Node + " stops")
			} // else BFD goes on, too: FRR takes its end for a failure
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
		}
	}
}

// update advertises what is wanted, and tries for changed endpoints; without any an established session stays.
func (p *peer) update() {
	at, err := p.findEndpoints()
	if err != nil {
		if p.at == (endpoints{}) {
			p.setReason(err.Error())
		}
		if at = p.at; p.server == nil || at == (endpoints{}) {
			p.updateBFD(at)
			return
		}
	}
	if p.server == nil {
		if err := p.start(); err != nil {
			p.setReason(err.Error())
			return
		}
	}
	p.advertise(at)
	p.updateBFD(at)
	if p.at.sessionKey() == at.sessionKey() {
		p.at = at // the next hops may be others
		return
	}
	p.connect(at)
}

// start takes a server of gobgp, and makes its guard.
func (p *peer) start() (err error) {
	if p.guard, err = newGuard(p.config, p.o, p.metrics, p.deliver); err != nil {
		return err
	}
	if p.server, err = takeServer(p.log); err != nil {
		p.guard.listener.Close()
		return err
	}
	go p.guard.run() // until stop
	return nil
}

// connect has gobgp try for a session, in place of a former one.
func (p *peer) connect(at endpoints) {
	ctx := context.Background()
	if p.at != (endpoints{}) {
		p.log.Info("the BGP session is set up again", "to", at.remote, "from", at.local)
		if err := p.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: guardAddress}); err != nil {
			p.setReason(err.Error())
		}
	}
	p.setReason("")
	p.guard.to.Store(&at)
	if err := p.server.AddPeer(ctx, &api.AddPeerRequest{Peer: p.neighbor()}); err != nil {
		p.setReason(err.Error())
		p.at = endpoints{}
		return
	}
	p.at = at
}

// neighbor is the configuration for gobgp, which would wait for an End-of-RIB if it knew that the process just started.
func (p *peer) neighbor() *api.Peer {
	restart := p.o.RestartTime > 0
	n := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: guardAddress, PeerAsn: p.config.AS, LocalAsn: p.config.LocalAS},
		Timers: &api.Timers{Config: &api.TimersConfig{
			ConnectRetry: 1, HoldTime: uint64(p.o.HoldTime / time.Second),
			KeepaliveInterval: uint64(p.o.KeepaliveTime / time.Second),
		}},
		Transport: &api.Transport{RemotePort: uint32(p.guard.port())},
	}
	if restart {
		n.GracefulRestart = &api.GracefulRestart{
			Enabled: true, NotificationEnabled: true, RestartTime: uint32(p.o.RestartTime / time.Second),
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

// advertise brings gobgp's table to what is wanted: first new and changed prefixes, then withdrawals; others cost no
// message. One without a next hop is withdrawn. Errors are logged once, and tried again by the next call.
func (p *peer) advertise(at endpoints) {
	ctx := context.Background()
	var failed []string
	want := make(map[netip.Prefix]bool)
	for _, r := range p.wanted.Get().routes {
		a, names := p.advertOf(r, at), r.Attributes.Peers
		if names != nil && !slices.Contains(names, p.config.Name()) || !a.nextHop.IsValid() {
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
	if s := p.carrying(*p.status.Load(), at); s != *p.status.Load() {
		p.status.Store(&s)
		p.o.Poke() // it is part of the World
	}
	if text := strings.Join(failed, ", "); text != p.failures {
		p.failures = text
		if text != "" {
			p.log.Warn("not all that is wanted is advertised", "errors", text)
		}
	}
}

// carrying is s with the families that the router takes and that have a next hop, and the count of their prefixes.
func (p *peer) carrying(s vip.BGPSession, at endpoints) vip.BGPSession {
	s.NoIPv4 = p.heard.noIPv4 || !p.nextHop(at, vip.IPv4).IsValid()
	s.NoIPv6 = p.heard.noIPv6 || !p.nextHop(at, vip.IPv6).IsValid()
	s.Prefixes = 0
	for prefix := range p.advertised {
		if s.Takes(prefix.Addr()) {
			s.Prefixes++
		}
	}
	return s
}

// nextHop is the next hop of a family's prefixes that the router takes, or zero.
func (p *peer) nextHop(at endpoints, f vip.Family) netip.Addr {
	switch {
	case f == vip.IPv6:
		return at.nextHop6
	case at.nextHop4.Is6() && p.heard.noHop6:
		return netip.Addr{}
	}
	return at.nextHop4
}

// deliver hands a change from the guard's goroutine to run, and blocks until that takes it or ends.
func (p *peer) deliver(x progress) {
	select {
	case p.events <- x:
	case <-p.ended:
	}
}

// changeState stores the session's new state, counts and logs its ends, and pokes; with ending that was logged before.
func (p *peer) changeState(x progress, ending bool) {
	s := *p.status.Load()
	before := s
	s.State, p.heard = x.state, x
	if s.Reason = cmp.Or(x.reason, s.Reason); s.Up() {
		s.Reason = ""
	}
	if s.Up() != before.Up() || before.State == stateWaiting {
		s.Since, s.Lasting = time.Now(), false
	}
	p.as = cmp.Or(x.router.as, p.as)
	s = p.carrying(s, p.at)
	switch {
	case s.Up() && !before.Up():
		p.log.Info("BGP session up", "as", x.router.as, "router", netip.AddrFrom4(x.router.id), "prefixes", s.Prefixes)
	case before.Up() && !s.Up():
		p.metrics.flaps.WithLabelValues(labelsOf(p.config)...).Inc()
		if !ending {
			p.log.Warn("BGP session down", "reason", s.Reason)
		}
	}
	p.status.Store(&s)
	if s.State != before.State {
		p.o.Poke()
	}
}

// setLasting pokes once the session lasts. Nodes notice a dead router up to a third of the hold time apart.
func (p *peer) setLasting() {
	if s := *p.status.Load(); !s.Lasting && time.Since(s.Since) >= max(lastingAfter, p.o.HoldTime/3) {
		s.Lasting = true
		p.status.Store(&s)
		p.o.Poke()
	}
}

// shutDown withdraws all routes, ends the session and then BFD, and gives the server back, within shutdownWait.
func (p *peer) shutDown(why string) {
	defer p.stopBFD()
	if p.server == nil {
		return
	}
	if p.up() {
		p.log.Info("this node ends the BGP session", "reason", why)
	}
	_ = p.server.DeletePath(context.Background(), &api.DeletePathRequest{}) // all
	p.endSession(why)
	p.guard.listener.Close() // once gobgp connects to it no more: another process could have the port
	giveServer(p.server)
}

// endSession ends an established session by a shutdown communication (RFC 9003, at most 128 bytes) in shutdownWait.
func (p *peer) endSession(why string) {
	ctx := context.Background()
	if p.up() {
		_ = p.server.DisablePeer(ctx, &api.DisablePeerRequest{Address: guardAddress, Communication: why})
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
		_ = p.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: guardAddress})
	}
}

// A gobgpServer is a gobgp server for one peer at a time, and its log.
type gobgpServer struct {
	*server.BgpServer
	log atomic.Pointer[slog.Logger] // of the peer
}

// pool is the servers without a peer. A server can't be ended without a trace, so it is kept; and starting one writes
// variables that all servers read, so some are started before the first is used.
var pool struct {
	sync.Mutex // guards idle, and that one at a time starts servers
	idle       []*gobgpServer
}

// startedTogether is how many servers are started at a time. An idle one costs four goroutines and 40 kB.
var startedTogether = 4

// takeServer is a server without peer or routes, which logs to log; it starts some if none is idle.
func takeServer(log *slog.Logger) (*gobgpServer, error) {
	pool.Lock()
	defer pool.Unlock()
	for len(pool.idle) == 0 {
		for range startedTogether {
			s, err := startServer()
			if err != nil {
				return nil, err
			}
			pool.idle = append(pool.idle, s)
		}
	}
	s := pool.idle[0]
	pool.idle = pool.idle[1:]
	s.log.Store(log)
	return s, nil
}

// giveServer puts back a server without peer and routes.
func giveServer(s *gobgpServer) {
	pool.Lock()
	defer pool.Unlock()
	pool.idle = append(pool.idle, s)
}

func startServer() (*gobgpServer, error) {
	s := &gobgpServer{}
	s.log.Store(slog.New(slog.DiscardHandler))
	s.BgpServer = server.NewBgpServer(server.LoggerOption(gobgpLog{s}))
	go s.Serve()
	return s, s.StartBgp(context.Background(), &api.StartBgpRequest{Global: &api.Global{
		Asn:        1,           // each peer has its own
		ListenPort: -1,          // none
		RouterId:   "192.0.2.2", // guards put each peer's in its place
	}})
}

// A gobgpLog logs what gobgp says as Debug: the guard tells users. It ends no process.
type gobgpLog struct{ *gobgpServer }

func (l gobgpLog) write(msg string, f log.Fields) {
	l.log.Load().Debug("gobgp: "+msg, "fields", fmt.Sprint(map[string]any(f)))
}
func (l gobgpLog) Panic(msg string, f log.Fields) { l.write(msg, f) }
func (l gobgpLog) Fatal(msg string, f log.Fields) { l.write(msg, f) }
func (l gobgpLog) Error(msg string, f log.Fields) { l.write(msg, f) }
func (l gobgpLog) Warn(msg string, f log.Fields)  { l.write(msg, f) }
func (l gobgpLog) Info(msg string, f log.Fields)  { l.write(msg, f) }
func (l gobgpLog) Debug(string, log.Fields)       {} // one for each message
func (l gobgpLog) SetLevel(log.LogLevel)          {}
func (l gobgpLog) GetLevel() log.LogLevel         { return log.InfoLevel }
