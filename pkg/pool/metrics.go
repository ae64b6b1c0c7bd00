package pool

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/vip"
)

type metrics struct {
	size, used *prometheus.GaugeVec
	waiting    prometheus.Gauge
	problems   prometheus.Gauge
}

func newMetrics() *metrics {
	gauge := func(name, help string) prometheus.GaugeOpts { return prometheus.GaugeOpts{Name: name, Help: help} }
	return &metrics{
		size:     prometheus.NewGaugeVec(gauge("herald_pool_addresses", "Addresses that a pool gives to Services, by pool and family. Only on the node that allocates."), []string{"pool", "family"}),
		used:     prometheus.NewGaugeVec(gauge("herald_pool_addresses_used", "Addresses of a pool that Services have or name, by pool and family. Only on the node that allocates."), []string{"pool", "family"}),
		waiting:  prometheus.NewGauge(gauge("herald_pool_services_waiting", "Services for which no pool has an address. 0 on nodes that do not allocate.")),
		problems: prometheus.NewGauge(gauge("herald_pool_problems", "Keys of the ConfigMap of pools that can't be read, or have an effect that is probably not meant.")),
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.size, m.used, m.waiting, m.problems}
}

// observe sets all of them.
func (m *metrics) observe(a *Assigner) {
	m.problems.Set(float64(len(a.problems)))
	waiting := 0
	for _, x := range a.assignments {
		if len(x.Addresses) == 0 {
			waiting++
		}
	}
	m.waiting.Set(float64(waiting))
	m.size.Reset()
	m.used.Reset()
	if a.allocator == nil {
		return
	}
	for _, p := range a.pools.all {
		for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
			if n := p.Size(f); n > 0 {
				m.size.WithLabelValues(p.Name, f.String()).Set(n)
				m.used.WithLabelValues(p.Name, f.String()).Set(float64(a.allocator.Used(p, f)))
			}
		}
	}
}
