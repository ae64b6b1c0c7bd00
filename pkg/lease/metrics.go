package lease

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	held, members    prometheus.Gauge
	lost, fenced     prometheus.Counter
	renewals, writes *prometheus.CounterVec
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		held:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_claims_held", Help: "VIP leases that this node holds."}),
		members:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_members_alive", Help: "Other nodes whose Herald renews its node lease."}),
		lost:     counter("herald_node_lease_lost_total", "Times this node found its node lease fenced or in other hands."),
		fenced:   counter("herald_nodes_fenced_total", "Silent nodes whose claims this node has voided."),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_node_lease_renewals_total", Help: "Renewals of this node's lease, by result (ok, conflict, error)."}, []string{"result"}),
		writes:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_vip_lease_writes_total", Help: "Writes on VIP leases, by what they were to do (take, give, release) and result (ok, conflict, error). The owner of a VIP changed with each take or give that is ok."}, []string{"op", "result"}),
	}
	for _, result := range []string{"ok", "conflict", "error"} {
		m.renewals.WithLabelValues(result) // a series that begins with its first error hides it from rate()
	}
	return m
}

// Collectors are the metrics of this package.
func (l *Leases) Collectors() []prometheus.Collector {
	m := l.metrics
	return []prometheus.Collector{m.held, m.members, m.lost, m.fenced, m.renewals, m.writes}
}
