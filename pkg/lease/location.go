package lease

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// RecordName is the Lease in the announcers' namespace that says where VIP leases are.
	RecordName = "herald-vip-leases"
	// LocationAnnotation, on that Lease, is a phase.
	LocationAnnotation = "heraldvip.io/vip-leases"
	// ServiceLeaseAnnotation, on a VIP lease in the announcers' namespace, is namespace/name of the
	// Lease in the Service's namespace that it stands for (vip.VIPLeaseIn).
	ServiceLeaseAnnotation = "heraldvip.io/service-lease"
)

// A location is where VIP leases count.
type location string

// The locations.
const (
	inServices   location = "services"   // in the namespaces of the Services
	inAnnouncers location = "announcers" // all in the announcers' namespace
)

// A phase is what the record says: VIP leases count in from. While to differs, each node copies its claims there,
// and writes no others. Once all nodes act by that version of the record, the next phase counts them in to. So two
// nodes whose caches show phases next to each other never hold different claims on a VIP (docs/ownership.md, docs/why.md, "What tenants can write").
type phase struct{ from, to location }

// moving reports whether VIP leases are being copied from one location to the other.
func (p phase) moving() bool { return p.from != p.to }

// String is the text of the phase in the record: "services", or "services to announcers".
func (p phase) String() string {
	if p.moving() {
		return string(p.from) + " to " + string(p.to)
	}
	return string(p.from)
}

// parsePhase parses a phase as phase.String writes it, "services" or "services to announcers"; ok
// is false if text is none.
func parsePhase(text string) (p phase, ok bool) {
	from, to, two := strings.Cut(text, " to ")
	if !two {
		to = from
	}
	known := func(s string) bool { return s == string(inServices) || s == string(inAnnouncers) }
	return phase{location(from), location(to)}, known(from) && known(to)
}

// Times of a change of location.
const (
	copyTimeout  = 5 * time.Second  // a phase in which claims are copied ends after this, with or without success
	moveAgain    = time.Minute      // how long after one without success the next begins
	recordPause  = time.Second      // between two writes of the record by this node
	dueTime      = time.Second      // how long no claims are written because a change should begin
	cleanupPause = 2 * time.Second  // between two looks for VIP leases that do not count, at least
	cleanupRetry = 10 * time.Minute // after the API server has refused to have one deleted; twice as long after each look at which it does again
	cleanupDaily = 24 * time.Hour   // but no longer than this
	maxCleanup   = 4                // such leases deleted at a time
)

// locations is what this node knows of where VIP leases are, and what it does about it.
type locations struct {
	phase                         // as the watch shows the record; in the namespaces of the Services if there is none
	record  *coordinationv1.Lease // the newest version that the watch has shown and that can be read; nil: none was seen
	shown   *coordinationv1.Lease // what the watch shows, to be written over: nil, or one that can't be read, if record was deleted or spoilt
	since   time.Time             // when phase began
	actsBy  uint64                // the version by which this node acts for good: if phase is one of copying, it has copied its claims
	refused bool                  // the API server refuses a copy
	retryAt time.Time             // when the next change may begin
	due     time.Time             // since when one should begin; zero: it should not

	ready        bool   // this node may act on VIP leases: its cache is not older than its epoch, and it knows what was moved without the API server
	began        bool   // it was ready in any epoch
	epochVersion uint64 // of the node lease that began the epoch

	writing     bool // a write of the record is under way
	nextWrite   time.Time
	cleaning    int // deletions of VIP leases that do not count
	nextCleanup time.Time
	cleanupWait time.Duration // how long the pause after the next refusal is; 0: none has been refused in this phase

	services map[vip.Key]vip.Key // by VIP lease in the announcers' namespace that a plan has named: that of the Service
}

// version returns the version of the record; 0 if there is none.
func (o *locations) version() uint64 {
	if o.record == nil {
		return 0
	}
	return version(o.record)
}

// lost reports whether the record was deleted, or what is there now can't be read.
func (o *locations) lost() bool { return o.shown != o.record }

// copying reports whether a change of location is under way and this node has not copied all its
// claims to the new one yet.
func (o *locations) copying() bool { return o.moving() && o.actsBy != o.version() }

// recordKey returns the key of the record, the Lease that says where VIP leases are (RecordName).
func (l *Leases) recordKey() vip.Key { return vip.Key{Namespace: l.o.Namespace, Name: RecordName} }

// isVIPLease reports whether k is neither a node lease nor the record of where VIP leases are.
func (l *Leases) isVIPLease(k vip.Key) bool { return l.nodeOf(k) == "" && k != l.recordKey() }

// locationOf returns the location of the VIP lease k; "" if it counts whatever the record says:
// those that options name, and those of Services in the announcers' namespace.
func (l *Leases) locationOf(k vip.Key) location {
	switch {
	case l.o.Fixed[k]:
		return ""
	case k.Namespace != l.o.Namespace:
		return inServices
	case l.serviceLease(k) != k:
		return inAnnouncers
	}
	return ""
}

// counts reports whether k is a VIP lease that decides who owns a VIP: it is in the location that
// the record names at present, or counts in any.
func (l *Leases) counts(k vip.Key) bool {
	at := l.locationOf(k)
	return l.isVIPLease(k) && (at == "" || at == l.location.from)
}

// serviceLease returns the key by which the plan knows the VIP lease k: of one in the announcers' namespace that
// stands for a Lease in a Service's namespace, that; else k.
func (l *Leases) serviceLease(k vip.Key) vip.Key {
	if k.Namespace != l.o.Namespace {
		return k
	}
	if s, ok := l.location.services[k]; ok {
		return s
	}
	if x := l.cache.latest[k]; x != nil {
		return serviceLeaseOf(x.Lease)
	}
	if x := l.cache.vanished[k]; x != nil {
		return serviceLeaseOf(x)
	}
	return k
}

// serviceLeaseOf returns the key of the Lease in a Service's namespace for which x stands by its annotation; that of
// x itself without the annotation, or if x has not the name that VIPLeaseIn gives (anyone's annotation would count else).
func serviceLeaseOf(x *coordinationv1.Lease) vip.Key {
	k := keyOf(x)
	namespace, name, _ := strings.Cut(x.Annotations[ServiceLeaseAnnotation], "/")
	if s := (vip.Key{Namespace: namespace, Name: name}); namespace != "" && vip.VIPLeaseIn(k.Namespace, s) == k {
		return s
	}
	return k
}

// leaseIn returns the VIP lease that stands for the Service's, k, in a location.
func (l *Leases) leaseIn(at location, k vip.Key) vip.Key {
	if at == inServices || l.o.Fixed[k] || k.Namespace == l.o.Namespace {
		return k
	}
	in := vip.VIPLeaseIn(l.o.Namespace, k)
	l.location.services[in] = k
	return in
}

// locateIntents returns a copy of the intents of a plan, each with the key of the Lease that counts
// in this phase in place of the key by which the plan knows it.
func (l *Leases) locateIntents(want []vip.LeaseIntent) []vip.LeaseIntent {
	clear(l.location.services)
	all := make([]vip.LeaseIntent, len(want))
	for i, intent := range want {
		all[i] = intent
		all[i].Lease = l.leaseIn(l.location.from, intent.Lease)
	}
	return all
}

// copyOf returns what this node's claim on the VIP lease x was copied to; nil if it was not, or not in this phase.
func (l *Leases) copyOf(x *record) *record {
	y := l.cache.latest[l.leaseIn(l.location.to, l.serviceLease(x.key))]
	if y == nil || !y.ours || y.holder != x.holder || y.epoch != x.epoch || l.cache.outdated[y.key] == y.version {
		return nil
	}
	return y
}

// mayAct reports whether this node may act on x, a VIP lease of which it has a valid claim. It may,
// except after it has copied its claims to the new location, while others still copy: then only on
// those that are written on their lease and of which there is a copy, and on those that count in any phase (locationOf).
func (l *Leases) mayAct(x *record) bool {
	o := &l.location
	if !o.moving() || o.copying() || l.locationOf(x.key) == "" {
		return true
	}
	return !l.cache.ownerOf(x).unwritten && l.copyOf(x) != nil // what there may be is a copy of an earlier owner's claim
}

// mayChange reports whether this node may write a claim on the VIP lease k. It may not while claims
// are copied to the other location, except to write down what was moved without the API server, or transferred to it,
// before that; nor for dueTime after a change of location became due, since in a new installation
// Herald is not allowed to write to the old one. A lease that counts in any phase may always be
// written.
func (l *Leases) mayChange(k vip.Key, now time.Time) bool {
	o := &l.location
	switch {
	case l.locationOf(k) == "":
		return true
	case !o.moving():
		return o.due.IsZero() || now.Sub(o.due) > dueTime
	}
	_, moved := l.quorum.Moved[k]
	return (moved || l.unwritten.owners[k].node == l.o.Node) && o.copying()
}

// updateLocationDue stores since when a change of the location of VIP leases should begin; zero if
// they are where they should be, a change is under way, the last one had no success though it was wanted
// to the end and was less than moveAgain ago, or not all nodes act by the newest record.
func (l *Leases) updateLocationDue(now time.Time) {
	o := &l.location
	wanted := l.wantedLocation()
	switch {
	case o.moving() || wanted == o.from || now.Before(o.retryAt) || !l.allActBy(wanted):
		o.due = time.Time{}
	case o.due.IsZero():
		o.due = now
	}
}

// foreignClaim reports whether another program holds the VIP lease in the Service's namespace that k stands for,
// which counts in any phase.
func (l *Leases) foreignClaim(k vip.Key, now time.Time) bool {
	s := l.serviceLease(k)
	return s != k && l.isForeign(l.cache.latest[s], now)
}

// isForeign reports whether another program holds x; false for nil.
func (l *Leases) isForeign(x *record, now time.Time) bool {
	return x != nil && !x.ours && x.holder != "" && l.valid(x, now)
}

// readRecord stores what the watch shows of the record, the Lease that says where VIP leases are:
// x, or nil: it was deleted. If it was, or can't be read, it counts as before until a node has
// written it again, over what is there.
func (l *Leases) readRecord(x *coordinationv1.Lease, now time.Time) {
	o := &l.location
	if o.shown = x; x == nil {
		return
	}
	p, ok := parsePhase(x.Annotations[LocationAnnotation])
	if !ok {
		l.o.Log.Error("the record of where VIP leases are can't be read; it counts as before, and is written again", "lease", l.recordKey(), LocationAnnotation, truncateCause(x.Annotations[LocationAnnotation]))
		return
	}
	before, copying := o.phase, o.copying()
	o.record, o.nextWrite, l.changed = x, time.Time{}, true
	if p == before && copying {
		return
	}
	l.setPhase(p, now)
	if before.moving() && p.from == before.from && !p.moving() && l.wantedLocation() != p.from {
		o.retryAt = now.Add(moveAgain)
	}
	if !p.moving() || p == before || !o.ready {
		o.actsBy = version(x)
	}
}

// setPhase stores the phase p. What is planned, and what was agreed on without the API server, is forgotten: it was meant for
// the phase before.
func (l *Leases) setPhase(p phase, now time.Time) {
	o := &l.location
	before := o.phase
	o.phase = p
	l.quorum = l.quorum.Propose(nil)
	l.writes.intents, l.writes.unplanned = map[vip.Key]vip.LeaseIntent{}, nil
	l.markOutdated()
	if p != before {
		o.since, o.refused = now, false
		o.nextCleanup, o.cleanupWait = time.Time{}, 0
		l.o.Log.Info("where VIP leases are: "+p.String(), "lease", l.recordKey())
	}
	if p.from != before.from {
		handingOver := make(map[vip.Key]vip.HandingOver, len(l.writes.handingOver))
		for k, v := range l.writes.handingOver {
			handingOver[l.leaseIn(p.from, l.serviceLease(k))] = v
		}
		l.writes.handingOver = handingOver
	}
}

// markOutdated has this node not act on what the VIP leases say that do not count at present, also
// when they count again: of those, it acts only on versions that it writes later.
func (l *Leases) markOutdated() {
	for k, x := range l.cache.latest {
		if (x.holder == l.o.Node || l.cache.ownerOf(x).node == l.o.Node) && l.isVIPLease(k) && !l.counts(k) {
			l.cache.outdated[k] = x.version
		}
	}
}

// updateReady stores whether this node may act on VIP leases: the watch has shown the write that began its epoch, and so
// any version of the record that was written before. Whoever changed the record later has seen this node, or the next
// who does will. If there is no record that can be read although a node acts by one, this one waits until it is written again.
// Before that it waits until it knows what was moved without the API server (mayNotKnow), or that nothing was.
// If no node does, one that has seen an earlier record goes by that no more, as if it had started now: others may have.
func (l *Leases) updateReady(now time.Time) {
	o, k := &l.location, l.nodeLeaseKey(l.o.Node)
	if l.own.Epoch == 0 || l.own.EpochOver {
		o.ready = false
		return
	}
	shown := l.cache.watched[k]
	if o.ready || shown == nil || version(shown) < o.epochVersion || l.mayNotKnow(now) {
		return
	}
	if o.record == nil || o.lost() {
		if l.othersActBy() != 0 {
			return
		}
		if o.record != nil {
			o.record = nil
			l.setPhase(phase{inServices, inServices}, now)
		}
	}
	o.ready, o.began, o.actsBy, l.changed = true, true, o.version(), true
	l.markOutdated()
}

// othersActBy returns the newest version of the record by which another node acts whose epoch is not over; 0 if none
// acts by one.
func (l *Leases) othersActBy() (newest uint64) {
	for _, p := range l.peers {
		if !p.Over && p.info.VIPLeases != nil {
			newest = max(newest, p.info.VIPLeases.Record)
		}
	}
	return newest
}
