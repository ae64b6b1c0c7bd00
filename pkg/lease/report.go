package lease

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/metric"
)

// A summary is what of the World changes with time alone, and the metrics have.
type summary struct {
	alive, stable    int // other nodes
	foreign, held    int // units that another program has, and this node
	holds, confirmed bool
	late             bool // a renewal of this node's lease is
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
	l.o.Poke()
}

func (l *Leases) summarize(now time.Time) summary {
	t := l.tenure(now)
	s := summary{holds: t.Holds(now), confirmed: t.Confirmed, late: !t.RenewalLateSince.IsZero()}
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
		if c := l.claim(k, e); c.Valid && c.Holder == l.o.Node {
			s.held++
		}
	}
	return s
}

type metrics struct {
	*metric.Set
	held, members      prometheus.Gauge
	epochsOver, fenced prometheus.Counter
	renewals, written  *prometheus.CounterVec
}

func newMetrics() *metrics {
	s, results := &metric.Set{}, []string{"ok", "conflict", "error"}
	return &metrics{
		Set: s,
		held: metric.Gauge(s, "herald_claims_held", "VIPs that this node owns by the table, and other units: the right to "+
			"give addresses."),
		members: metric.Gauge(s, "herald_members_alive", "Other nodes that may be given VIPs: their Herald renews its node "+
			"lease and is not dead on the VIPs' link."),
		epochsOver: metric.Counter(s, "herald_node_lease_lost_total", "Times this node's right to its VIPs ended: its node "+
			"lease was fenced, in other hands, or not renewed while other nodes renewed theirs."),
		fenced: metric.Counter(s, "herald_nodes_fenced_total", "Dead or silent nodes whose claims this node has voided."),
		renewals: metric.CountersOf(s, "herald_node_lease_renewals_total", "Renewals of this node's lease, by "+
			"result (ok, conflict, error).", "result", results...),
		written: metric.CountersOf(s, "herald_table_writes_total", "Writes of the table of who owns what, by "+
			"result (ok, conflict, error).", "result", results...),
	}
}
