package routes

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	routes prometheus.Gauge
	errors prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{
		routes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "herald_table_routes", Help: "Routes to VIPs in the routing table of vip_routingtable.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "herald_table_errors_total", Help: "Routes to VIPs that the kernel refused to add or to remove.",
		}),
	}
}

// Collectors returns the metrics of this package.
func (t *Table) Collectors() []prometheus.Collector {
	return []prometheus.Collector{t.metrics.routes, t.metrics.errors}
}
