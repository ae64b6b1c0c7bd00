package peers

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/vip"
)

type meters struct {
	on            prometheus.Gauge
	state         *prometheus.GaugeVec
	guarded       *prometheus.GaugeVec
	sent          *prometheus.CounterVec
	heard         prometheus.Counter
	dropped       *prometheus.CounterVec
	asked, lapses prometheus.Counter
}

func newMeters() *meters {
	m := &meters{
		on:      prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_peers_on", Help: "1 if this node and the others watch each other on the wire, 0 if not: a dead node's VIPs then move after the lease duration. The log says why."}),
		state:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "herald_peers_state", Help: "1 for the state in which this node sees another one on the wire (alive, dead, mute, unknown), 0 for the others. A node that is mute has its port blocked, or its process hangs."}, []string{"node", "state"}),
		guarded: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "herald_peers_guarded", Help: "1 if the death of another node would be noticed on the wire: its address has been seen to be answered for and its port to be open. It is 0 for a moment after the nodes have met."}, []string{"node"}),
		sent:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_peers_packets_sent_total", Help: "Packets by which this node told another one that it lives, by result (ok, error)."}, []string{"result"}),
		heard:   prometheus.NewCounter(prometheus.CounterOpts{Name: "herald_peers_packets_heard_total", Help: "Packets of other nodes that were good."}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_peers_packets_dropped_total", Help: "Packets that were not taken for another node's, by reason: key (sealed with a key that is not known here), forged, foreign (not Herald's, or of another version), old (a duplicate, or of a process that is gone)."}, []string{"reason"}),
		asked:   prometheus.NewCounter(prometheus.CounterOpts{Name: "herald_peers_asked_total", Help: "Times this node asked after a silent one by ARP or NDP and TCP."}),
		lapses:  prometheus.NewCounter(prometheus.CounterOpts{Name: "herald_peers_lapses_total", Help: "Times this process was held up for more than 0.1 s, and passed no verdict on others for a while."}),
	}
	for _, result := range []string{"ok", "error"} {
		m.sent.WithLabelValues(result)
	}
	for _, reason := range []string{"key", "forged", "foreign", "old"} {
		m.dropped.WithLabelValues(reason)
	}
	return m
}

func (m *meters) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.on, m.state, m.guarded, m.sent, m.heard, m.dropped, m.asked, m.lapses}
}

var states = []vip.Liveness{vip.Unknown, vip.Alive, vip.Dead, vip.Suspect}

// show puts how a node looks into the metric.
func (m *meters) show(node string, is vip.Liveness) {
	for _, s := range states {
		value := 0.0
		if s == is {
			value = 1
		}
		m.state.WithLabelValues(node, s.String()).Set(value)
	}
}

// guard puts into the metric whether the death of a node would be noticed.
func (m *meters) guard(node string, is bool) {
	value := 0.0
	if is {
		value = 1
	}
	m.guarded.WithLabelValues(node).Set(value)
}

// forget takes a node out of the metric.
func (m *meters) forget(node string) {
	m.state.DeletePartialMatch(prometheus.Labels{"node": node})
	m.guarded.DeleteLabelValues(node)
}
