package health

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

// DataPlaneOptions of a DataPlane.
type DataPlaneOptions struct {
	// APIService returns cluster IP and port of default/kubernetes, and the API servers; invalid and nil if unknown.
	APIService func() (service netip.AddrPort, servers []netip.AddrPort)
	Hosts      func() []netip.Addr // this node's addresses: kube-proxy may listen there instead of on loopback
	Checker    *Checker            // knows healthCheckNodePorts that have been answered
	// NetworkNotReady reports whether kubelet says that the network plugin (CNI) does not work.
	NetworkNotReady func() bool

	Log     *slog.Logger
	Changed func() // called from Run when Fault, or what Observe fills in, has changed
}

// Times of a DataPlane (docs/why.md, "Failing data plane").
const (
	askPeriod         = time.Second      // between two requests to kube-proxy
	forwardPeriod     = 10 * time.Second // between two connections to the API servers' Service while all is well
	forwardFailures   = 3                // connections in a row that must fail
	slowFault         = time.Minute      // a fault that does not stop packets at once must have lasted for so long
	actAfter          = 2 * time.Second  // from when a fault is published until VIPs are handed over
	wellAfter         = 10 * time.Second // a fault ends after so long without, twice as long for each fault before
	maxWellAfter      = 5 * time.Minute
	forgetFaultsAfter = 10 * time.Minute // faults before count no more after so long without one
)

// A DataPlane finds out whether this node would forward packets to VIPs to their Services. What it can't find out is no
// fault.
type DataPlane struct {
	metric.Set
	o         DataPlaneOptions
	gauge     prometheus.Gauge
	published atomic.Pointer[publishedFault]

	proxyPort uint16
	askProxy  func(context.Context) proxyAnswer
	forwards  func(context.Context) (ok, known bool)
	proxy     signal
	proxySaid proxyAnswer // the last time
	healthz   bool        // kube-proxy's health check has been well once
	network   signal      // of kubelet about the network plugin
	forward   signal
	forwardAt time.Time // when it was asked last
	faults    int       // without forgetFaultsAfter between two of them
	wellSince time.Time // since when nothing is wrong, though the fault is still published; zero: something is
	ended     time.Time // when the last fault ended
}

// A publishedFault is why packets are not forwarded, since when, and whether VIPs leave for it; without a fault,
// whether forwarding was never seen.
type publishedFault struct {
	why      string
	since    time.Time
	act      bool
	unproven bool
}

// A signal is the results of one kind of request.
type signal struct {
	well     bool      // one has succeeded in the life of this process
	failures int       // in a row
	since    time.Time // of the first of these
}

func (s *signal) update(ok bool, now time.Time) {
	switch {
	case ok:
		*s = signal{well: true}
	case s.failures == 0:
		s.failures, s.since = 1, now
	default:
		s.failures++
	}
}

// failingFor returns the time since the first failure in a row, or 0.
func (s *signal) failingFor(now time.Time) time.Duration {
	if s.failures == 0 {
		return 0
	}
	return now.Sub(s.since)
}

// NewDataPlane makes a DataPlane. Run does the asking.
func NewDataPlane(o DataPlaneOptions) *DataPlane {
	d := &DataPlane{o: o}
	d.gauge = metric.Gauge(&d.Set, "herald_data_plane_fault", "1 if this node would not forward packets to VIPs to their "+
		"Services, so that it hands its VIPs to nodes that would; 0 if it would, or that is not known.")
	d.proxyPort, d.askProxy, d.forwards = proxyPort, d.askKubeProxy, d.forwardsToAPIServers
	d.published.Store(&publishedFault{unproven: true})
	return d
}

// Fault is vip.NodeInfo.DataPlaneFault. It does not block.
func (d *DataPlane) Fault() string { return d.published.Load().why }

// Unproven is vip.NodeInfo.DataPlaneUnproven, once Run runs. It does not block.
func (d *DataPlane) Unproven() bool { return d.published.Load().unproven }

// Observe fills in World.DataPlaneFault: Fault, once it has been published for actAfter.
func (d *DataPlane) Observe(w *vip.World) {
	if p := d.published.Load(); p.act {
		w.DataPlaneFault = p.why
	}
}

// Run asks every askPeriod until ctx ends.
func (d *DataPlane) Run(ctx context.Context) error {
	ticker := time.NewTicker(askPeriod)
	defer ticker.Stop()
	for {
		d.ask(ctx)
		if ctx.Err() == nil {
			d.publish(time.Now())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// ask looks at what kubelet says, asks kube-proxy, and connects to the API servers' Service if that or the last
// connection failed, or forwardPeriod is over.
func (d *DataPlane) ask(ctx context.Context) {
	now := time.Now()
	d.network.update(!d.o.NetworkNotReady(), now)
	d.proxySaid = d.askProxy(ctx)
	switch d.proxySaid {
	case proxyUnknown:
		d.proxy.failures = 0
	default:
		d.proxy.update(d.proxySaid == proxyWell, now)
	}
	if d.proxy.failures == 0 && d.forward.failures == 0 && now.Sub(d.forwardAt) < forwardPeriod {
		return
	}
	d.forwardAt = now
	if ok, known := d.forwards(ctx); known && ctx.Err() == nil {
		d.forward.update(ok, now)
	}
}

// why returns what is wrong, or "". What was never well counts only after slowFault, of kube-proxy never: it may not
// run here, or listen elsewhere. What leaves rules in place waits for slowFault, too.
func (d *DataPlane) why(now time.Time) string {
	if d.forward.failures >= forwardFailures && (d.forward.well || d.forward.failingFor(now) >= slowFault) {
		return "its connections to Services lead nowhere: default/kubernetes is not forwarded to the API servers, though " +
			"each of these answers it directly; look at kube-proxy, or what replaces it, on that node"
	}
	if d.network.failingFor(now) >= slowFault {
		return "its kubelet says that the network plugin (CNI) does not work (condition Ready of the Node); look at the " +
			"CNI on that node"
	}
	if !d.proxy.well || d.proxy.failingFor(now) < slowFault {
		return ""
	}
	if d.proxySaid == proxyOutOfDate {
		return "its kube-proxy says (port 10256, /healthz) that its rules are out of date"
	}
	return "its kube-proxy has not answered for a minute (port 10256, or healthCheckNodePorts)"
}

// publish updates Fault, Unproven and what Observe fills in; changes are logged, and call Changed.
func (d *DataPlane) publish(now time.Time) {
	last := *d.published.Load()
	next, why := last, d.why(now)
	switch {
	case why != "":
		next.why, d.wellSince = why, time.Time{}
	case last.why != "" && d.wellSince.IsZero():
		d.wellSince = now
	case last.why != "" && now.Sub(d.wellSince) >= min(wellAfter<<min(d.faults-1, 8), maxWellAfter):
		next = publishedFault{}
	}
	switch {
	case last.why == "" && next.why != "":
		if now.Sub(d.ended) > forgetFaultsAfter {
			d.faults = 0
		}
		d.faults++
		next.since = now
		d.gauge.Set(1)
		d.o.Log.Warn("this node would not forward packets to VIPs; they go to other nodes, if there are any without such "+
			"a fault", "why", next.why, "faults", d.faults)
	case last.why != "" && next.why == "":
		d.ended = now
		d.gauge.Set(0)
		d.o.Log.Info("this node forwards packets to VIPs again")
	}
	next.unproven = next.why == "" && d.forward.failures > 0 && !d.forward.well
	next.act = next.why != "" && now.Sub(next.since) >= actAfter
	if next != last {
		d.published.Store(&next)
		d.o.Changed()
	}
}

const (
	proxyPort      = 10256 // kube-proxy's healthzBindAddress, if it is not configured
	forwardTimeout = time.Second
	maxProxyAnswer = 4 << 10 // bytes that are read
	maxServers     = 8       // API servers that are connected to
	maxAskedAtOnce = 4       // healthCheckNodePorts
)

// A proxyAnswer is what kube-proxy's health check says.
type proxyAnswer int

const (
	proxyUnknown   proxyAnswer = iota // there is nobody to ask
	proxySilent                       // nobody answers
	proxyOutOfDate                    // it has not been able to write its rules for a while
	proxyWell
)

// askKubeProxy asks kube-proxy's health check. If that was never well, any answer of a healthCheckNodePort that
// answered before is proxyWell; proxyUnknown is that there is no such Service.
func (d *DataPlane) askKubeProxy(ctx context.Context) proxyAnswer {
	if answer := d.askHealthz(ctx); answer != proxySilent || d.healthz {
		d.healthz = d.healthz || answer == proxyWell
		return answer
	}
	answer := proxyUnknown
	for _, c := range d.o.Checker.answered(maxAskedAtOnce) {
		if d.o.Checker.status(ctx, c) != 0 {
			return proxyWell
		}
		answer = proxySilent
	}
	return answer
}

// askHealthz returns the health check's answer; proxySilent if there is none, or it is no kube-proxy's.
func (d *DataPlane) askHealthz(ctx context.Context) proxyAnswer {
	answer := d.o.Checker.firstAnswer(ctx, d.o.Hosts(), d.proxyPort)
	if answer == nil {
		return proxySilent
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return proxyWell
	case http.StatusServiceUnavailable:
		// Well, too, if only the Node is about to be deleted: the Node decides that.
		var said struct{ NodeEligible *bool }
		_ = json.NewDecoder(io.LimitReader(answer.Body, maxProxyAnswer)).Decode(&said) // without: as before 1.28
		if said.NodeEligible != nil && !*said.NodeEligible {
			return proxyWell
		}
		return proxyOutOfDate
	}
	return proxySilent
}

// forwardsToAPIServers reports whether the API servers' cluster IP leads to one of them, if known.
func (d *DataPlane) forwardsToAPIServers(ctx context.Context) (ok, known bool) {
	service, servers := d.o.APIService()
	if !service.IsValid() || len(servers) == 0 || len(servers) > maxServers {
		return false, false
	}
	if !hasRoute(service) {
		return false, false // the packets end before any rule of kube-proxy
	}
	if connects(ctx, service) == nil {
		return true, true
	}
	for _, s := range servers {
		if connects(ctx, s) != nil {
			return false, false
		}
	}
	return false, true
}

// hasRoute reports whether the kernel has a route, without sending: connect(2) of a UDP socket.
func hasRoute(to netip.AddrPort) bool {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// connects makes a connection and a TLS handshake of any outcome: API servers count connections that end before.
func connects(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
	return nil
}
