package lease

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A summary is what of the World changes with time alone, and the metrics have.
type summary struct {
	alive, stable    int // other nodes
	foreign, held    int // units that another program has, and this node
	holds, confirmed bool
	late             bool // a renewal of this node's lease is
	waiting          bool // another process has this node's name, and waits
}

// report stores which peers are alive, ends what has expired, and if the World has changed sets metrics and pokes the
// agent.
func (l *Leases) report(now time.Time) {
	for node, p := range l.peers {
		p.setAlive(l.decision.Alive[node], now)
	}
	l.endHandingOver(now)
	s := l.summarize(now)
	if l.reported.holds && !s.holds && !l.own.EpochOver { // else endEpoch has said why
		l.o.Log.Warn("the node lease could not be renewed in time: this node gives up its VIPs until it can", "renewed",
			now.Sub(l.own.Renewed).Round(time.Millisecond).String()+" ago", "renewdeadline", l.o.RenewDeadline)
	}
	if s == l.reported && !l.changed {
		return
	}
	l.reported, l.changed = s, false
	l.metrics.held.Set(float64(s.held))
	l.metrics.members.Set(float64(s.alive))
	l.metrics.waiting.Set(0)
	if s.waiting {
		l.metrics.waiting.Set(1)
	}
	l.o.Poke()
}

func (l *Leases) summarize(now time.Time) summary {
	t := l.tenure(now)
	s := summary{holds: t.Holds(now), confirmed: t.Confirmed, late: !t.RenewalLateSince.IsZero(),
		waiting: l.own.waiting != "" && now.Sub(l.own.waitingAt) < keepWaiting}
	for node, p := range l.peers {
		if l.decision.Alive[node] {
			s.alive++
		}
		if p.stable(now) {
			s.stable++
		}
	}
	for k, f := range l.beside.foreign {
		if f.valid(now) {
			s.foreign++
		} else if now.Sub(f.changedAt) > forgetTime+f.duration {
			delete(l.beside.foreign, k)
		}
	}
	for k, e := range l.table.known.Units {
		if c := l.claim(k, e, now); c.Valid && c.Holder == l.o.Node {
			s.held++
		}
	}
	return s
}

type metrics struct {
	held, members     prometheus.Gauge
	waiting           prometheus.Gauge
	epochsOver        prometheus.Counter
	fenced            prometheus.Counter
	renewals, written *prometheus.CounterVec
}

// newMetrics makes the metrics, with a series for each result.
func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_claims_held", Help: "VIPs that this node owns " +
			"by the table, and other units: the right to give addresses."}),
		members: prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_members_alive", Help: "Other nodes that may " +
			"be given VIPs: their Herald renews its node lease and is not dead on the VIPs' link."}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_node_second_process",
			Help: "1 while a Herald on another host with the same node name waits for this one to end. herald status says " +
				"where."}),
		epochsOver: counter("herald_node_lease_lost_total", "Times this node's right to its VIPs ended: its node lease "+
			"was fenced, in other hands, or not renewed while other nodes renewed theirs."),
		fenced: counter("herald_nodes_fenced_total", "Dead or silent nodes whose claims this node has voided."),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_node_lease_renewals_total",
			Help: "Renewals of this node's lease, by result (ok, conflict, error)."}, []string{"result"}),
		written: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_table_writes_total",
			Help: "Writes of the table of who owns what, by result (ok, conflict, error)."}, []string{"result"}),
	}
	for _, result := range []string{"ok", "conflict", "error"} {
		m.written.WithLabelValues(result)
		m.renewals.WithLabelValues(result) // a series that begins with its first error hides it from rate()
	}
	return m
}

// Collectors returns the metrics of this package.
func (l *Leases) Collectors() []prometheus.Collector {
	m := l.metrics
	return []prometheus.Collector{m.held, m.members, m.waiting, m.epochsOver, m.fenced, m.renewals, m.written}
}
