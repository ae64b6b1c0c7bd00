package netif

import "github.com/prometheus/client_golang/prometheus"

// metrics are the metrics of Interfaces.
type metrics struct {
	addresses prometheus.Gauge
	bound     prometheus.Counter
	removed   prometheus.Counter
	renewals  prometheus.Counter
	errors    prometheus.Counter
}

func newMetrics() metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return metrics{
		addresses: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "herald_addresses",
			Help: "VIPs that the kernel of this node has bound for Herald.",
		}),
		bound:   counter("herald_addresses_bound_total", "VIPs that were bound to an interface of this node."),
		removed: counter("herald_addresses_removed_total", "VIPs that were removed from an interface of this node."),
		renewals: counter("herald_address_renewals_total", "Renewals of the lifetime of a bound VIP. Each VIP is renewed "+
			"each 0.75 s."),
		errors: counter("herald_address_errors_total", "Failures to bind, renew or remove a VIP."),
	}
}

func (m metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.addresses, m.bound, m.removed, m.renewals, m.errors}
}
