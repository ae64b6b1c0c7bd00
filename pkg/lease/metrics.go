package lease

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	held, members     prometheus.Gauge
	epochsOver        prometheus.Counter
	fenced            prometheus.Counter
	renewals, written *prometheus.CounterVec
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		held:       prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_claims_held", Help: "VIP leases that this node holds."}),
		members:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_members_alive", Help: "Other nodes that may be given VIPs: their Herald renews its node lease and is not dead on the VIPs' link."}),
		epochsOver: counter("herald_node_lease_lost_total", "Times this node's right to its VIPs ended: its node lease was fenced, in other hands, or not renewed while other nodes renewed theirs."),
		fenced:     counter("herald_nodes_fenced_total", "Dead or silent nodes whose claims this node has voided."),
		renewals:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_node_lease_renewals_total", Help: "Renewals of this node's lease, by result (ok, conflict, error)."}, []string{"result"}),
		written:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_vip_lease_writes_total", Help: "Writes on VIP leases, by action (acquire, hand_over, release) and result (ok, conflict, error). The owner of a VIP changed with each acquire or hand_over that is ok."}, []string{"action", "result"}),
	}
	for _, result := range []string{"ok", "conflict", "error"} {
		m.renewals.WithLabelValues(result) // a series that begins with its first error hides it from rate()
	}
	return m
}

// Collectors are the metrics of this package.
func (l *Leases) Collectors() []prometheus.Collector {
	m := l.metrics
	return []prometheus.Collector{m.held, m.members, m.epochsOver, m.fenced, m.renewals, m.written}
}
