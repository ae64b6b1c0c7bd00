package nft

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	formerOwners prometheus.Gauge
	errors       prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{
		formerOwners: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "herald_former_owners", Help: "VIPs for which this node sends packets of connections that it does not " +
				"know to a former owner.",
		}),
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "herald_nftables_errors_total", Help: "Transactions that nftables refused.",
		}),
	}
}

// Collectors returns the metrics of this package.
func (t *Tables) Collectors() []prometheus.Collector {
	return []prometheus.Collector{t.metrics.formerOwners, t.metrics.errors}
}
