package peers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/vip"
)

type metrics struct {
	on                       prometheus.Gauge
	state, detectable        *prometheus.GaugeVec
	sent, dropped            *prometheus.CounterVec
	received, probes, pauses prometheus.Counter
}

// newMetrics makes the metrics, with each result and each reason at 0.
func newMetrics() *metrics {
	m := &metrics{
		on: prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_peers_on", Help: "1 if this node sends " +
			"heartbeats to the other nodes and receives theirs, 0 if not: a dead node's VIPs then move after the lease " +
			"duration. The log says why."}),
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "herald_peers_state", Help: "1 for the state of " +
			"another node by its heartbeats (alive, suspect, dead, unknown), 0 for the others. A node that is suspect has " +
			"its port blocked, or its process hangs."}, []string{"node", "state"}),
		detectable: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "herald_peers_detectable",
			Help: "1 if the death of another node would be detected by heartbeats and probes: it is alive, and its address " +
				"and its port have answered a probe. It is 0 for a moment after a node has become alive."}, []string{"node"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_peers_packets_sent_total",
			Help: "Heartbeats sent to other nodes, by result (ok, error)."}, []string{"result"}),
		received: prometheus.NewCounter(prometheus.CounterOpts{Name: "herald_peers_packets_received_total",
			Help: "Heartbeats received from other nodes, without those that were dropped."}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_peers_packets_dropped_total",
			Help: "Packets received and ignored, by reason: key (encrypted with an unknown key), forged (not authentic), " +
				"format (not Herald's, or of another version), replay (a duplicate, or of a process that has not echoed a " +
				"packet of this one yet)."}, []string{"reason"}),
		probes: prometheus.NewCounter(prometheus.CounterOpts{Name: "herald_peers_probes_total",
			Help: "Times this node probed a silent one by ARP or NDP and TCP."}),
		pauses: prometheus.NewCounter(prometheus.CounterOpts{Name: "herald_peers_pauses_total",
			Help: "Times this process did not run for more than 0.1 s longer than it meant to, and then judged no other " +
				"node for a while."}),
	}
	for _, result := range []string{"ok", "error"} {
		m.sent.WithLabelValues(result)
	}
	for _, reason := range []string{"key", "forged", "format", "replay"} {
		m.dropped.WithLabelValues(reason)
	}
	return m
}

// Collectors are the metrics of this package.
func (p *Peers) Collectors() []prometheus.Collector {
	m := p.metrics
	return []prometheus.Collector{m.on, m.state, m.detectable, m.sent, m.received, m.dropped, m.probes, m.pauses}
}

// setState sets a node's gauge of that state to 1, and its others to 0.
func (m *metrics) setState(node string, state vip.Liveness) {
	for _, s := range []vip.Liveness{vip.Unknown, vip.Alive, vip.Dead, vip.Suspect} {
		m.state.WithLabelValues(node, s.String()).Set(oneIf(s == state))
	}
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// publish sets metrics for changes, logs them, and pokes, once. p.mu is not held.
func (p *Peers) publish(changes []change) {
	if len(changes) == 0 {
		return
	}
	for _, c := range changes {
		if c.forgotten {
			p.metrics.state.DeletePartialMatch(prometheus.Labels{"node": c.node})
			p.metrics.detectable.DeleteLabelValues(c.node)
			continue
		}
		p.metrics.setState(c.node, c.is)
		if c.was != c.is {
			p.metrics.detectable.WithLabelValues(c.node).Set(0)
		}
		if c.was != c.is || c.tcpUnreachable {
			p.logChange(c)
		}
	}
	p.o.Poke()
}

// logChange logs that a node's TCP port can't be reached, or its new state and why.
func (p *Peers) logChange(c change) {
	log := p.o.Log.With("node", c.node)
	if c.why != "" {
		log = log.With("why", c.why)
	}
	silent := c.silent.Round(time.Millisecond)
	switch {
	case c.tcpUnreachable:
		log.Warn("another node is heard by UDP only; open the port between the nodes for TCP as well", "port", p.o.Port)
	case c.is == vip.Alive:
		log.Info("another node is alive", "was", c.was)
	case c.is == vip.Suspect:
		log.Warn("another node is suspect: should it die, its VIPs move only after the lease duration; open the port "+
			"between the nodes, UDP and TCP",
			"port", p.o.Port, "silent", silent)
	case c.is == vip.Dead && c.stopped:
		log.Info("another node has stopped")
	case c.is == vip.Dead:
		log.Warn("another node does not answer on the VIPs' link: it is dead, or one of the two is cut off", "silent", silent)
	default:
		log.Info("another node is unknown: no heartbeats are exchanged with it", "was", c.was)
	}
}
