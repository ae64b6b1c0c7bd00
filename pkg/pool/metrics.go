package pool

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

type metrics struct {
	*metric.Set
	size, used, free *prometheus.GaugeVec // by pool and family
	waiting          *prometheus.GaugeVec // by pool
	outside          prometheus.Gauge
	problems         prometheus.Gauge
	have             map[series]float64 // what the vectors have
}

func newMetrics() *metrics {
	s := &metric.Set{}
	return &metrics{
		Set: s,
		size: metric.Gauges(s, "herald_pool_addresses", "Addresses that a pool gives to Services, by pool and family. Only "+
			"on the node that allocates.", "pool", "family"),
		used: metric.Gauges(s, "herald_pool_addresses_used", "Addresses of a pool that Services have or name, by pool and "+
			"family. Only on the node that allocates.", "pool", "family"),
		free: metric.Gauges(s, "herald_pool_addresses_free", "Addresses of a pool that can be given now: neither reserved "+
			"nor a Service's, by pool and family. Only on the node that allocates.", "pool", "family"),
		waiting: metric.Gauges(s, "herald_pool_services_waiting", "Services for which no pool has an address, by the first "+
			"pool that they may have one of; with an empty pool if there is none. Only on the node that allocates.", "pool"),
		outside: metric.Gauge(s, "herald_pool_addresses_outside", "Addresses that Services were given and that no pool "+
			"offers any more. 0 on nodes that do not allocate."),
		problems: metric.Gauge(s, "herald_pool_problems", "Keys of the ConfigMap of pools that can't be read, or have an "+
			"effect that is probably not meant."),
	}
}

// A series is one of a vector by pool, or by pool and family.
type series struct {
	vec          *prometheus.GaugeVec
	pool, family string
}

func (s series) labels() []string {
	if s.family == "" {
		return []string{s.pool}
	}
	return []string{s.pool, s.family}
}

// observe sets all, each series once, since it may be scraped meanwhile.
func (m *metrics) observe(a *Assigner) {
	m.problems.Set(float64(len(a.problems)))
	m.outside.Set(float64(a.decided.outside))
	now := make(map[series]float64)
	if a.allocates {
		for _, p := range a.pools.all {
			now[series{m.waiting, p.Name, ""}] = 0
			for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
				if n := p.Size(f); n > 0 {
					now[series{m.size, p.Name, f.String()}] = n
					used, free := a.decided.usage(p, f)
					now[series{m.used, p.Name, f.String()}] = float64(used)
					now[series{m.free, p.Name, f.String()}] = free
				}
			}
		}
		for _, x := range a.decided.assignments {
			if len(x.Addresses) == 0 {
				now[series{m.waiting, x.Pool, ""}]++
			}
		}
	}
	for s, n := range now {
		s.vec.WithLabelValues(s.labels()...).Set(n)
		delete(m.have, s)
	}
	for s := range m.have {
		s.vec.DeleteLabelValues(s.labels()...)
	}
	m.have = now
}
