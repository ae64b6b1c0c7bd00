package lease

import (
	"context"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// copyClaims starts, while a change of location is under way, to write copies of this node's claims
// to the new one. Once all are there it acts by the phase for good, which its node lease then says.
func (l *Leases) copyClaims(ctx context.Context, now time.Time) {
	o := &l.location
	t := l.tenure(now)
	if !o.copying() || !t.Holds(now) || !t.Confirmed || len(l.quorum.Moved) > 0 || l.hasUnwritten() || len(l.writes.transferring) > 0 {
		return
	}
	done := len(l.writes.limits.requests) == 0
	for k := range l.cache.mine {
		x := l.cache.latest[k]
		if !l.isVIPLease(k) || l.locationOf(k) != o.from || !x.ours || !l.holds(x, now) || l.copyOf(x) != nil {
			continue
		}
		done = false
		to := l.leaseIn(o.to, l.serviceLease(k))
		if l.writes.mayWrite(to, l.cache.version(to), now) && l.writes.limits.free() > 0 {
			l.writeCopy(ctx, x, to)
		}
	}
	if done {
		o.actsBy = o.version()
	}
}

// writeCopy starts to write a copy of the VIP lease x as the Lease to, over what is there: nobody
// acts on that.
func (l *Leases) writeCopy(ctx context.Context, x *record, to vip.Key) {
	next := x.DeepCopy()
	next.ObjectMeta = metav1.ObjectMeta{Namespace: to.Namespace, Name: to.Name, Labels: x.Labels, Annotations: x.Annotations}
	write := l.store.Create
	if y := l.cache.latest[to]; y != nil {
		write, next.ResourceVersion, next.UID = l.store.Update, y.ResourceVersion, y.UID
	}
	l.setServiceLease(next, l.writes.intents[x.key])
	l.writes.limits.begin(to, l.namespaceOf(to))
	l.start(ctx, l.o.RenewDeadline/2, func(ctx context.Context) func() {
		got, err := write(ctx, next)
		return func() {
			l.applyWrite(to, got, err)
			if why := refusalText(err); why != "" {
				l.o.Log.Warn("the API server refuses to have a VIP lease written where the leases are to be; they stay where they are", "lease", to, "why", why)
				l.location.refused = true
			}
		}
	})
}

// setServiceLease writes on a VIP lease what belongs to its location: in the announcers' namespace which Lease it stands for,
// elsewhere the Service as owner, which must be in the same namespace.
func (l *Leases) setServiceLease(next *coordinationv1.Lease, intent vip.LeaseIntent) {
	s := l.serviceLease(keyOf(next))
	if s == keyOf(next) {
		annotate(next, ServiceLeaseAnnotation, "")
		setOwner(next, "Service", intent.Service.Name, intent.UID)
		return
	}
	annotate(next, ServiceLeaseAnnotation, s.String())
	next.OwnerReferences = nil
}

// allActBy reports whether this node and all others whose epoch is not over act by the version of
// the record that the watch shows. A node with an earlier version of Herald, which knows of no
// record, does not if to is inAnnouncers; otherwise it does not count.
func (l *Leases) allActBy(to location) bool {
	o := &l.location
	if !o.ready || o.copying() {
		return false
	}
	for _, p := range l.peers {
		switch about := p.info.VIPLeases; {
		case p.Over:
		case about == nil && to == inAnnouncers, about != nil && about.Record != o.version():
			return false
		}
	}
	return true
}

// wantedLocation returns where VIP leases should be: in the announcers' namespace if the option of any node whose epoch is not
// over has it so, and all of them know of that.
func (l *Leases) wantedLocation() location {
	wanted := inServices
	if l.o.Announcers {
		wanted = inAnnouncers
	}
	for _, p := range l.peers {
		switch about := p.info.VIPLeases; {
		case p.Over:
		case about == nil:
			return inServices
		case about.Announcers:
			wanted = inAnnouncers
		}
	}
	return wanted
}

// nextPhase returns the phase that this node should write into the record, the Lease that says
// where VIP leases are, now; ok is false if none. One that was lost is written again by any node, unless
// another acts by a later one. Of the nodes that are alive the first by name
// begins and completes a change; any node ends one that can't be completed.
func (l *Leases) nextPhase(now time.Time) (p phase, ok bool) {
	o := &l.location
	p = o.phase
	wanted := l.wantedLocation()
	switch {
	case o.lost():
		return p, l.othersActBy() <= o.version()
	case p.moving() && (wanted == p.from || o.refused || now.Sub(o.since) > copyTimeout):
		return phase{p.from, p.from}, true
	case p.moving():
		return phase{p.to, p.to}, l.isFirst() && l.allActBy(p.to)
	}
	return phase{p.from, wanted}, !o.due.IsZero() && l.isFirst()
}

// movingHint returns what to do, as a part of a message, if the VIP lease k can't be written since Herald has the rights for
// leases in the announcers' namespace already; "" in any other case.
func (l *Leases) movingHint(k vip.Key) string {
	if !l.o.Announcers || l.locationOf(k) != inServices {
		return ""
	}
	hint := ". VIP leases have not moved to the announcers' namespace yet: until they have, keep what herald manifest rbac --servicesLeaseNamespace=services permits"
	var earlier []string
	for node, p := range l.peers {
		if !p.Over && p.info.VIPLeases == nil {
			earlier = append(earlier, node)
		}
	}
	if slices.Sort(earlier); len(earlier) > 0 {
		hint += ", and update Herald on " + strings.Join(earlier, ", ")
	}
	return hint
}

// isFirst reports whether this node comes first by name of those that are alive and know of the
// record.
func (l *Leases) isFirst() bool {
	for node, p := range l.peers {
		if l.decision.Alive[node] && p.info.VIPLeases != nil && node < l.o.Node {
			return false
		}
	}
	return true
}

// writeRecord starts to write the next phase, if there is one, into the record, the Lease that says
// where VIP leases are, over the version that the watch shows. The outcome is what the watch shows
// then: this node knows no version of the record before its node leases are as new.
func (l *Leases) writeRecord(ctx context.Context, now time.Time) {
	o := &l.location
	t := l.tenure(now)
	if !o.ready || o.writing || now.Before(o.nextWrite) || !t.Holds(now) || !t.Confirmed || l.own.RenewingSince.IsZero() {
		return
	}
	p, ok := l.nextPhase(now)
	if !ok {
		return
	}
	next, write := &coordinationv1.Lease{}, l.store.Create
	if o.shown != nil {
		next, write = o.shown.DeepCopy(), l.store.Update
	}
	next.Namespace, next.Name = l.o.Namespace, RecordName
	addLabels(next)
	annotate(next, LocationAnnotation, p.String())
	o.writing = true
	before := o.version()
	l.start(ctx, l.o.RenewDeadline/2, func(ctx context.Context) func() {
		_, err := write(ctx, next)
		return func() {
			o.writing = false
			if err != nil || o.version() == before {
				o.nextWrite = time.Now().Add(recordPause)
			}
			if why := refusalText(err); why != "" {
				l.o.Log.Warn("the API server refuses the record of where VIP leases are; they stay where they are", "lease", l.recordKey(), "why", why)
				o.nextWrite = time.Now().Add(moveAgain)
			}
		}
	})
}

// deleteCopies starts to delete VIP leases that no longer count after a change of location, once
// all nodes know of that: those that have this node as holder, or stand for a VIP that this node
// owns.
func (l *Leases) deleteCopies(ctx context.Context, now time.Time) {
	o := &l.location
	if o.moving() || o.record == nil || now.Before(o.nextCleanup) || !l.allActBy(inAnnouncers) {
		return
	}
	o.nextCleanup = now.Add(cleanupPause)
	for k, y := range l.cache.latest {
		if !l.isVIPLease(k) || l.counts(k) || !y.ours || l.writes.pending(k) {
			continue
		}
		x := l.cache.latest[l.leaseIn(o.from, l.serviceLease(k))]
		if y.holder != l.o.Node && (x == nil || !l.holds(x, now)) {
			continue
		}
		if o.cleaning >= maxCleanup {
			return
		}
		l.deleteCopy(ctx, y)
	}
}

// deleteCopy starts to blank and delete the VIP lease y, which no longer counts. If the API server
// refuses that, none is tried for cleanupRetry, and for longer each time (refuseCleanup).
func (l *Leases) deleteCopy(ctx context.Context, y *record) {
	o := &l.location
	l.writes.limits.begin(y.key, l.namespaceOf(y.key))
	o.cleaning++
	l.start(ctx, l.o.RenewDeadline/2, func(ctx context.Context) func() {
		got, err := l.send(ctx, update{action: release, key: y.key, from: y.Lease}, nil)
		return func() {
			o.cleaning--
			l.applyWrite(y.key, got, err)
			switch why := refusalText(err); {
			case err == nil:
				l.cache.setDeleted(got)
				o.nextCleanup = time.Time{}
			case why != "":
				l.refuseCleanup(y.key, why)
			}
		}
	})
}

// refuseCleanup stores when the next VIP leases that no longer count may be deleted, after the API server has refused that
// of k, and logs the first refusal. More than one refusal at the same look counts once.
func (l *Leases) refuseCleanup(k vip.Key, why string) {
	o, now := &l.location, time.Now()
	if o.nextCleanup.After(now.Add(cleanupPause)) {
		return
	}
	if o.cleanupWait == 0 {
		o.cleanupWait = cleanupRetry
		l.o.Log.Info("VIP leases that no longer count can't be deleted; each goes with its Service. It is tried again less and less often", "lease", k, "why", why)
	}
	o.nextCleanup = now.Add(o.cleanupWait)
	o.cleanupWait = min(2*o.cleanupWait, cleanupDaily)
}
