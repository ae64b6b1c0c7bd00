package bgp

import (
	"context"
	"strconv"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are read from the sessions when somebody asks.
type metrics struct {
	of       *Speaker
	up       *prometheus.Desc
	prefixes *prometheus.Desc
	flaps    *prometheus.Desc
	sent     *prometheus.Desc
	received *prometheus.Desc
}

func newMetrics(s *Speaker) *metrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"peer", "as"}, nil)
	}
	return &metrics{
		of:       s,
		up:       desc("herald_bgp_session_up", "Whether the BGP session with the peer is established."),
		prefixes: desc("herald_bgp_prefixes_advertised", "Prefixes the peer is told of; 0 while there is no session."),
		flaps:    desc("herald_bgp_session_flaps_total", "Established sessions that ended."),
		sent:     desc("herald_bgp_updates_sent_total", "UPDATE messages sent to the peer."),
		received: desc("herald_bgp_updates_received_total", "UPDATE messages received from the peer. Herald uses none of them."),
	}
}

// Describe tells which metrics there are.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.up, m.prefixes, m.flaps, m.sent, m.received} {
		c <- d
	}
}

// Collect reads the sessions.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	m.of.mu.Lock()
	peers := make([]*peer, 0, len(m.of.peers))
	for _, p := range m.of.peers {
		peers = append(peers, p)
	}
	m.of.mu.Unlock()
	for _, p := range peers {
		s := p.session()
		labels := []string{s.Peer, strconv.FormatUint(uint64(s.AS), 10)}
		up := 0.0
		if s.Up() {
			up = 1
		}
		p.mu.Lock()
		flaps, remote := p.flaps, p.remote
		p.mu.Unlock()
		sent, received := remote.updates()
		c <- prometheus.MustNewConstMetric(m.up, prometheus.GaugeValue, up, labels...)
		c <- prometheus.MustNewConstMetric(m.prefixes, prometheus.GaugeValue, float64(s.Prefixes), labels...)
		c <- prometheus.MustNewConstMetric(m.flaps, prometheus.CounterValue, float64(flaps), labels...)
		c <- prometheus.MustNewConstMetric(m.sent, prometheus.CounterValue, float64(sent), labels...)
		c <- prometheus.MustNewConstMetric(m.received, prometheus.CounterValue, float64(received), labels...)
	}
}

// Collectors are the metrics of this package.
func (s *Speaker) Collectors() []prometheus.Collector { return []prometheus.Collector{s.metrics} }

// updates counts the UPDATE messages of a session set up for remote.
func (r remote) updates() (sent, received uint64) {
	if r.server == nil {
		return 0, 0
	}
	_ = r.server.ListPeer(context.Background(), &api.ListPeerRequest{Address: r.address}, func(x *api.Peer) {
		sent, received = x.GetState().GetMessages().GetSent().GetUpdate(), x.GetState().GetMessages().GetReceived().GetUpdate()
	})
	return sent, received
}
