package agent

import (
	"hash/fnv"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

type metrics struct {
	*metric.Set
	passes        prometheus.Histogram
	errors        *prometheus.CounterVec
	services      *prometheus.GaugeVec
	counted       map[vip.Reason]float64 // what services has
	announced     *prometheus.GaugeVec
	announcedHash uint64 // of what announced has
}

func newMetrics() *metrics {
	s := &metric.Set{}
	return &metrics{
		Set: s,
		passes: metric.Add(s, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "herald_pass_duration_seconds",
			Help:    "How long it takes to plan for all Services and to tell all parts of Herald.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 5},
		})),
		errors: metric.CountersOf(s, "herald_apply_errors_total", "Failed tries to make addresses, routes or "+
			"nftables as planned, by the part of Herald that tried.", "applier", "announcements", "addresses", "links"),
		services: metric.Gauges(s, "herald_services", "Services of type LoadBalancer as this node sees them, by verdict "+
			"(the reasons of /debug/plan).", "verdict"),
		announced: metric.Gauges(s, "herald_service_announced", "1 for each Service that this node announces, 2000 of them "+
			"at most.", "service_namespace", "service"), // not "namespace", which Prometheus has for the Pod's
	}
}

func (m *metrics) observe(p vip.Plan, took time.Duration) {
	m.passes.Observe(took.Seconds())
	m.observeServices(p.Verdicts)
	m.observeAnnounced(p.Verdicts)
}

// observeServices sets herald_services, each series once: it may be scraped meanwhile.
func (m *metrics) observeServices(verdicts []vip.Verdict) {
	counts := make(map[vip.Reason]float64)
	for i := range verdicts {
		counts[verdicts[i].Reason]++
	}
	for reason, n := range counts {
		m.services.WithLabelValues(string(reason)).Set(n)
		delete(m.counted, reason)
	}
	for reason := range m.counted {
		m.services.DeleteLabelValues(string(reason))
	}
	m.counted = counts
}

const maxAnnounced = 2000

// observeAnnounced sets a changed herald_service_announced.
func (m *metrics) observeAnnounced(verdicts []vip.Verdict) {
	h := fnv.New64a()
	for i := range verdicts {
		if v := &verdicts[i]; v.AnnouncedHere {
			_, _ = io.WriteString(h, v.Service.Namespace+"/"+v.Service.Name+"\n") // never fails
		}
	}
	if h.Sum64() == m.announcedHash {
		return
	}
	m.announcedHash = h.Sum64()
	m.announced.Reset()
	n := 0
	for i := range verdicts {
		if v := &verdicts[i]; v.AnnouncedHere && n < maxAnnounced {
			n++
			m.announced.WithLabelValues(v.Service.Namespace, v.Service.Name).Set(1)
		}
	}
}
