package upnp

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	gateways prometheus.Gauge
	mappings prometheus.Gauge
	renewals prometheus.Counter
	failures *prometheus.CounterVec
}

// Why something failed, as the metric names it.
const (
	failTaken       = "taken"
	failRefused     = "refused"
	failUnreachable = "unreachable"
	failUnreadable  = "unreadable"
	failNoGateway   = "no_gateway"
)

func newMetrics() metrics {
	m := metrics{
		gateways: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "herald_upnp_gateways", Help: "UPnP gateways this node has found on the links of its VIPs.",
		}),
		mappings: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "herald_upnp_mappings", Help: "Port mappings and pinholes that gateways have confirmed to this node.",
		}),
		renewals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "herald_upnp_renewals_total", Help: "Port mappings and pinholes made or renewed by this node.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_upnp_failures_total", Help: "Failed attempts to have a port mapped, by reason: taken (by another " +
				"host), refused, unreachable, unreadable, no_gateway (none answers a search; IPv4 only).",
		}, []string{"reason"}),
	}
	for _, reason := range []string{failTaken, failRefused, failUnreachable, failUnreadable, failNoGateway} {
		m.failures.WithLabelValues(reason) // a series that begins with its first failure hides it from rate()
	}
	return m
}

// Collectors are the metrics of this package.
func (m *Mapper) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.metrics.gateways, m.metrics.mappings, m.metrics.renewals, m.metrics.failures}
}
