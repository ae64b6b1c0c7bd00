package lease

import "time"

// A summary is what of the World changes with time alone, or with the end of an epoch.
type summary struct {
	alive, stable, stalled      int // other nodes
	foreign                     int // VIP leases with a valid claim of another program
	vanished, handingOver, held int // VIP leases
	holds, confirmed, isolated  bool
}

// report pokes the agent if the World has changed since the last report.
func (l *Leases) report(now time.Time) {
	l.expire(now)
	s := l.summarize(now)
	if l.reported.holds && !s.holds {
		l.o.Log.Warn("the node lease could not be renewed in time: this node gives up its VIPs until it can", "renewdeadline", l.o.RenewDeadline)
	}
	if s == l.reported && !l.changed {
		return
	}
	l.reported, l.changed = s, false
	l.metrics.held.Set(float64(s.held))
	l.metrics.members.Set(float64(s.alive))
	l.o.Poke()
}

// expire ends what ends with time: nodes that were stalled for stalledFor, VIP leases that
// vanished a lease duration ago, and hand-overs whose successor was not heard.
func (l *Leases) expire(now time.Time) {
	for node, p := range l.peers {
		p.setAlive(l.decision.Alive[node], now)
		if !p.stalledSince.IsZero() && now.Sub(p.stalledSince) > stalledFor {
			p.stalledSince, p.expectedSince = time.Time{}, time.Time{}
		}
	}
	for k := range l.cache.vanished {
		if now.Sub(l.cache.changedAt[k]) >= l.o.Duration {
			delete(l.cache.vanished, k)
			delete(l.cache.changedAt, k)
		}
	}
	for k, v := range l.writes.handingOver {
		if !now.Before(v.Until) {
			delete(l.writes.handingOver, k)
		}
	}
}

func (l *Leases) summarize(now time.Time) summary {
	t := l.tenure(now)
	s := summary{
		vanished: len(l.cache.vanished), handingOver: len(l.writes.handingOver),
		holds: t.Holds(now), confirmed: t.Confirmed, isolated: l.decision.Isolated,
	}
	for node, p := range l.peers {
		if l.decision.Alive[node] {
			s.alive++
		}
		if p.stable(now) {
			s.stable++
		}
		if !p.stalledSince.IsZero() {
			s.stalled++
		}
	}
	for k := range l.cache.changedAt {
		if x := l.cache.latest[k]; x != nil && l.claim(x, now).Valid {
			s.foreign++
		}
	}
	for k := range l.cache.mine {
		if l.nodeOf(k) == "" && l.claim(l.cache.latest[k], now).Valid {
			s.held++
		}
	}
	return s
}
