package peers

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

type metrics struct {
	*metric.Set
	on                       prometheus.Gauge
	state, detectable        *prometheus.GaugeVec
	sent, dropped            *prometheus.CounterVec
	received, probes, pauses prometheus.Counter
}

func newMetrics() *metrics {
	s := &metric.Set{}
	return &metrics{
		Set: s,
		on: metric.Gauge(s, "herald_peers_on", "1 if this node sends heartbeats to the other nodes and receives theirs, 0 "+
			"if not: a dead node's VIPs then move after the lease duration. The log says why."),
		state: metric.Gauges(s, "herald_peers_state", "1 for the state of another node by its heartbeats (alive, suspect, "+
			"dead, unknown), 0 for the others. A node that is suspect has its port blocked, or its process hangs.", "node",
			"state"),
		detectable: metric.Gauges(s, "herald_peers_detectable", "1 if the death of another node would be detected by "+
			"heartbeats and probes: it is alive, and its address and its port have answered a probe. It is 0 for a moment "+
			"after a node has become alive.", "node"),
		sent: metric.CountersOf(s, "herald_peers_packets_sent_total", "Heartbeats sent to other nodes, by result "+
			"(ok, error).", "result", "ok", "error"),
		received: metric.Counter(s, "herald_peers_packets_received_total", "Heartbeats received from other nodes, without "+
			"those that were dropped."),
		dropped: metric.CountersOf(s, "herald_peers_packets_dropped_total", "Packets received and ignored, by "+
			"reason: key (encrypted with an unknown key), forged (not authentic), format (not Herald's, or of another "+
			"version), replay (a duplicate, or of a process that has not echoed a packet of this one yet).", "reason",
			"key", "forged", "format", "replay"),
		probes: metric.Counter(s, "herald_peers_probes_total", "Times this node probed a silent one by ARP or NDP and TCP."),
		pauses: metric.Counter(s, "herald_peers_pauses_total", "Times this process did not run for more than 0.1 s longer "+
			"than it meant to, and then judged no other node for a while."),
	}
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
