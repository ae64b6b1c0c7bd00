package health

import (
	"context"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	d := &DataPlane{o: o, gauge: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "herald_data_plane_fault", Help: "1 if this node would not forward packets to VIPs to their Services, so " +
			"that it hands its VIPs to nodes that would; 0 if it would, or that is not known.",
	})}
	d.proxyPort, d.askProxy, d.forwards = proxyPort, d.askKubeProxy, d.forwardsToAPIServers
	d.published.Store(&publishedFault{unproven: true})
	return d
}

// String names the task.
func (d *DataPlane) String() string { return "data plane" }

// Collectors returns the metric.
func (d *DataPlane) Collectors() []prometheus.Collector { return []prometheus.Collector{d.gauge} }

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
