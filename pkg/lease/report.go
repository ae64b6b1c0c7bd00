package lease

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/vip"
)

// A summary is what of the World changes with time alone, and what the metrics have.
type summary struct {
	alive, stable    int // other nodes
	foreign, held    int // VIP leases with a valid claim of another program, and of this node
	holds, confirmed bool
	late             bool // a renewal of this node's lease is
	waiting          bool // another process has this node's name, and waits
}

// report ends what has expired, and if the World has changed since the last report (l.changed,
// or the summary differs) it sets the metrics and pokes the agent. It logs when this node's
// tenure has run out.
func (l *Leases) report(now time.Time) {
	l.expire(now)
	s := l.summarize(now)
	if l.reported.holds && !s.holds && !l.own.EpochOver { // else endEpoch has said why
		l.o.Log.Warn("the node lease could not be renewed in time: this node gives up its VIPs until it can", "renewed", now.Sub(l.own.Renewed).Round(time.Millisecond).String()+" ago", "renewdeadline", l.o.RenewDeadline)
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

// expire stores which peers are alive by the last decision, and removes what ends with time:
// the mark of nodes that were stalled for stalledFor, or whose epoch fell a lease duration ago, VIP leases that vanished a lease
// duration ago, and hand-overs that have reached their Until. Each of these sets l.changed.
func (l *Leases) expire(now time.Time) {
	for node, p := range l.peers {
		p.setAlive(l.decision.Alive[node], now)
		if !p.fellAt.IsZero() && now.Sub(p.fellAt) >= l.o.LeaseDuration {
			p.fellAt, l.changed = time.Time{}, true
		}
		if !p.stalledSince.IsZero() && now.Sub(p.stalledSince) > stalledFor {
			p.stalledSince, p.expectedSince, l.changed = time.Time{}, time.Time{}, true
			p.unwrittenSince, p.passedOver = time.Time{}, false
		}
	}
	for k := range l.cache.vanished {
		if now.Sub(l.cache.changedAt[k]) >= l.o.LeaseDuration {
			delete(l.cache.vanished, k)
			delete(l.cache.changedAt, k)
			l.changed = true
		}
	}
	for k, v := range l.writes.handingOver {
		if !now.Before(v.Until) && !l.outcomeUnknown(k) {
			delete(l.writes.handingOver, k)
			l.changed = true
		}
	}
}

// outcomeUnknown reports whether this node has sent a hand-over of a VIP lease, and does not know whether it was
// carried out.
func (l *Leases) outcomeUnknown(k vip.Key) bool {
	x := l.cache.latest[k]
	if x == nil || l.cache.ownerOf(x).node != l.o.Node {
		return false
	}
	v, transferring := l.writes.transferring[k]
	return transferring && v == x.version || l.writes.pending(k) || l.writes.failures[k].unanswered == x.version
}

// summarize returns how many other nodes are alive, and how many stable, how many VIP leases have a
// valid claim of this node, and how many one of another program or are orphaned. It adds whether
// this node's tenure holds at now and is confirmed, and whether a renewal is late.
func (l *Leases) summarize(now time.Time) summary {
	t := l.tenure(now)
	s := summary{holds: t.Holds(now), confirmed: t.Confirmed, late: !t.RenewalLateSince.IsZero(), waiting: l.own.waitingHere || l.own.waiting != "" && now.Sub(l.own.waitingAt) < keepWaiting}
	for node, p := range l.peers {
		if l.decision.Alive[node] {
			s.alive++
		}
		if p.stable(now) {
			s.stable++
		}
	}
	for k := range l.cache.changedAt {
		if x := l.cache.latest[k]; x != nil && l.claim(x, now).Valid {
			s.foreign++
		} else if last := l.cache.vanished[k]; last != nil && l.orphanedClaim(last, now).Valid {
			s.foreign++
		}
	}
	for k := range l.ownKeys() {
		if x := l.cache.latest[k]; x != nil && l.counts(k) {
			if c := l.claim(x, now); c.Valid && c.Holder == l.o.Node {
				s.held++
			}
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

// newMetrics makes the metrics, with a series for each result of a renewal. Collectors returns
// them for registration.
func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		held:       prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_claims_held", Help: "VIP leases that this node holds."}),
		members:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_members_alive", Help: "Other nodes that may be given VIPs: their Herald renews its node lease and is not dead on the VIPs' link."}),
		waiting:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_node_second_process", Help: "1 while a second Herald waits for this one to end: one on the same host, or one on a host with the same node name. herald status says which."}),
		epochsOver: counter("herald_node_lease_lost_total", "Times this node's right to its VIPs ended: its node lease was fenced, in other hands, or not renewed while other nodes renewed theirs."),
		fenced:     counter("herald_nodes_fenced_total", "Dead or silent nodes whose claims this node has voided."),
		renewals:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_node_lease_renewals_total", Help: "Renewals of this node's lease, by result (ok, conflict, error)."}, []string{"result"}),
		written:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "herald_vip_lease_writes_total", Help: "Writes on VIP leases, by action (acquire, hand over, release) and result (ok, conflict, refused, error). The owner of a VIP changed with each acquire or hand over that is ok."}, []string{"action", "result"}),
	}
	for _, result := range []string{"ok", "conflict", "error"} {
		m.renewals.WithLabelValues(result) // a series that begins with its first error hides it from rate()
	}
	return m
}

// Collectors returns the metrics of this package.
func (l *Leases) Collectors() []prometheus.Collector {
	m := l.metrics
	return []prometheus.Collector{m.held, m.members, m.waiting, m.epochsOver, m.fenced, m.renewals, m.written}
}
