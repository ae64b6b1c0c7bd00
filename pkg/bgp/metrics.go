package bgp

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/bfd"
	"github.com/heraldvip/herald/pkg/vip"
)

type metrics struct {
	up       *prometheus.GaugeVec
	prefixes *prometheus.GaugeVec
	flaps    *prometheus.CounterVec
	sent     *prometheus.CounterVec
	received *prometheus.CounterVec

	bfdUp       *prometheus.GaugeVec
	bfdFailures *prometheus.CounterVec
}

var labels = []string{"peer", "as"}

func newMetrics() *metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &metrics{
		up:       gauge("herald_bgp_session_up", "Whether the BGP session with the peer is established."),
		prefixes: gauge("herald_bgp_prefixes_advertised", "Prefixes advertised to the peer; 0 while there is no session."),
		flaps:    counter("herald_bgp_session_flaps_total", "Established sessions that ended."),
		sent:     counter("herald_bgp_updates_sent_total", "UPDATE messages sent to the peer."),
		received: counter("herald_bgp_updates_received_total", "UPDATE messages received from the peer. Herald uses none "+
			"of them."),

		bfdUp: gauge("herald_bfd_session_up",
			"Whether the BFD session with the peer is up; no series for a peer without BFD."),
		bfdFailures: counter("herald_bfd_session_failures_total",
			"BFD sessions that were up and failed; not those that the router's administrator ended."),
	}
}

// Collectors are the metrics of this package.
func (s *Speaker) Collectors() []prometheus.Collector {
	m := s.metrics
	return []prometheus.Collector{m.up, m.prefixes, m.flaps, m.sent, m.received, m.bfdUp, m.bfdFailures}
}

func labelsOf(c vip.BGPPeer) []string {
	return []string{c.Name(), strconv.FormatUint(uint64(c.AS), 10)}
}

func (m *metrics) remove(c vip.BGPPeer) {
	for _, v := range []*prometheus.GaugeVec{m.up, m.prefixes, m.bfdUp} {
		v.DeleteLabelValues(labelsOf(c)...)
	}
	for _, v := range []*prometheus.CounterVec{m.flaps, m.sent, m.received, m.bfdFailures} {
		v.DeleteLabelValues(labelsOf(c)...)
	}
}

func (p *peer) setMetrics() {
	s, l := p.session(), labelsOf(p.config)
	up := 0.0
	if s.Up() {
		up = 1
	}
	p.metrics.up.WithLabelValues(l...).Set(up)
	p.metrics.prefixes.WithLabelValues(l...).Set(float64(s.Prefixes))
	p.metrics.flaps.WithLabelValues(l...) // from 0 on, for rate()
	if p.config.BFD != (vip.BFD{}) {
		up := 0.0
		if x := p.path.status.Load(); x != nil && x.State == bfd.Up {
			up = 1
		}
		p.metrics.bfdUp.WithLabelValues(l...).Set(up)
		p.metrics.bfdFailures.WithLabelValues(l...)
	}
}
