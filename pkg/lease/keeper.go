package lease

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// Times of the table.
const (
	overlap     = 3 * time.Second        // how long a node goes on answering for what it has given away
	keeperDelay = 150 * time.Millisecond // how much later each further node places a unit that nobody has
	gatherTime  = 100 * time.Millisecond // between two writes that place units; more while there are many
	maxGather   = 500 * time.Millisecond
	behindTime  = 100 * time.Millisecond  // how long the watch may take to show a table that another node has
	beginTime   = 500 * time.Millisecond  // an epoch places nothing: nodes meet, and one that nobody hears learns that
	followTime  = 1500 * time.Millisecond // how long an agent may take to carry out a table
	unknownTime = 3 * time.Second         // how long this node keeps a unit that no Service in its cache has
	forgetTime  = time.Minute             // after this a unit that nobody has, or wants, is forgotten
)

// A table is what this node knows of the table, and wants of it.
type table struct {
	known    *Table                // the newest that it has seen; it counts until there is a newer one
	object   *coordinationv1.Lease // what a write replaces; nil: none exists
	version  uint64                // of that
	stale    bool                  // it must be read before it is written
	rewrite  bool                  // the object says less than known: it was deleted, spoilt, or restored
	fullWith int                   // with how many units it was last logged to be full
	readIn   int64                 // the epoch of this node in which it was last read past the watch

	actsIn int64 // the epoch in which this node may act: it has read the table, and in its first one heard the others

	first int64 // the number that it had when this process first saw it

	sure int64 // the number that it had when this node last knew of all moves

	wanted   map[vip.Key]vip.Owner
	planned  bool  // there was a plan
	observed int64 // the number that the plan under way knows
	carried  int64 // the number that the last plan knew that was carried out

	needs    map[vip.Key]time.Time // since when a unit has needed an owner, or this node has had it in vain
	needsNow time.Time             // since when rewrite is set
	unproven map[string]time.Time  // claims of which no node lease shows the epoch, and since when
	aheadAt  time.Time             // since when another node is known to have a newer table
	placedAt time.Time             // when the last write was started that placed units
	gather   time.Duration
	wake     *time.Timer
	pending  bool      // a read or write is under way
	failures int       // of writes, in a row, but for conflicts; few, and the next times out soon
	until    time.Time // no write is started before

	doubt       *doubt
	handingOver map[vip.Key]vip.HandingOver
}

// A doubt is a write of unknown outcome: the node acts on nothing given away by it, and answers for that.
type doubt struct {
	base int64            // the number of the table that it was to replace
	next *Table           // what it was to write
	sent []*Table         // that, and what was sent before over the same table
	over map[vip.Key]bool // what was given away
}

// setWanted stores where the plan has units, the former being carried out.
func (t *table) setWanted(want []vip.Owner) {
	t.wanted, t.planned, t.carried = make(map[vip.Key]vip.Owner, len(want)), true, t.observed
	for _, w := range want {
		t.wanted[w.Unit] = w
	}
}

// doubted returns what a write of unknown outcome has made of e; not ok if that gave nothing away.
func (t *table) doubted(k vip.Key, e Entry) (next Entry, ok bool) {
	if t.doubt == nil || !t.doubt.over[k] || e.Number > t.doubt.base {
		return e, false
	}
	return t.doubt.next.Units[k], true // which is nobody's, if it is not in there
}

func (l *Leases) tableKey() vip.Key { return vip.Key{Namespace: l.o.Namespace, Name: TableName} }

// setTable takes in a version of the table; if its number went back, the known one counts, and is written again.
func (l *Leases) setTable(x *coordinationv1.Lease, now time.Time) {
	t := &l.table
	if version(x) <= t.version {
		return
	}
	t.object, t.version, t.stale = x, version(x), false
	got, err := parseTable(x)
	if err != nil || got.Number < t.known.Number || got.Number == t.known.Number && got.digest != t.known.digest {
		if !t.rewrite {
			l.o.Log.Warn("the table of who owns what is older than what this node knows, or can't be read; it is written again",
				"lease", l.tableKey(), "number", transitions(x), "known", t.known.Number)
		}
		t.rewrite = true
		return
	}
	t.rewrite = false
	l.takeTable(got, now)
}

// takeTable has got count, and ends the doubt that it settles.
func (l *Leases) takeTable(got *Table, now time.Time) {
	t := &l.table
	if got.Number <= t.known.Number && t.known.Number != 0 {
		return
	}
	if t.known.Number == 0 {
		t.first = got.Number
	}
	t.known, l.changed = got, true
	if d := t.doubt; d != nil && got.Number > d.base {
		t.doubt = nil
		for k := range d.over {
			l.endDoubt(k, now)
		}
	}
}

// endDoubt has this node answer, until the other is heard, for a unit that is the other's now; else it stays.
func (l *Leases) endDoubt(k vip.Key, now time.Time) {
	h, ok := l.table.handingOver[k]
	if e := l.table.known.Units[k]; ok && e.Owner != l.o.Node && e.Owner != "" {
		h.Successor, h.Until = e.Owner, now.Add(overlap)
		l.table.handingOver[k] = h
	} else {
		delete(l.table.handingOver, k)
	}
	l.changed = true
}

// tableGone takes in that the table was deleted, last in version x.
func (l *Leases) tableGone(x *coordinationv1.Lease) {
	t := &l.table
	if version(x) < t.version {
		return
	}
	t.object, t.version = nil, version(x)
	if t.rewrite = len(t.known.Units) > 0; t.rewrite {
		l.o.Log.Warn("the table of who owns what was deleted; it is written again as it was", "lease", l.tableKey())
	}
}

// updateBehind finds whose tables are newer or older, and whether an unanswered write was carried out.
func (l *Leases) updateBehind(now time.Time) {
	t, statuses, ahead := &l.table, l.statuses, false
	for node, s := range statuses {
		h := s.Heartbeat
		if s.Liveness != vip.Alive && s.Liveness != vip.Suspect || h.Table <= t.known.Number {
			continue
		}
		ahead = true
		if d := t.doubt; d != nil && h.Table > d.base && s.Liveness == vip.Alive {
			written := d.next
			if i := slices.IndexFunc(d.sent, func(t *Table) bool { return t.digest == h.TableDigest }); i >= 0 {
				written = d.sent[i]
			} else if h.Table == d.base+1 {
				written = nil // another was faster
			}
			l.resolve(node, written, now)
		}
	}
	for _, p := range l.peers { // the table may have been deleted, or spoilt, before this process began
		ahead = ahead || p.Exists && !p.Over && p.info.Table > t.known.Number
	}
	if !ahead {
		t.aheadAt = time.Time{}
	} else if t.aheadAt.IsZero() {
		t.aheadAt = now
		time.AfterFunc(behindTime, l.Wake)
	}
	for node, p := range l.peers {
		l.updateFollows(node, p, now)
	}
}

// updateFollows finds what the agent of another node has carried out, and since when it has been behind.
func (l *Leases) updateFollows(node string, p *peer, now time.Time) {
	t := &l.table
	carried, at, s := p.info.Table, p.Changed, l.statuses[node]
	told := s.Liveness == vip.Alive || s.ProcessEnded
	if told {
		carried, at = s.Heartbeat.Carried, s.HeardAt
	}
	if p.servedAt.IsZero() { // it may have carried out what was there before this process
		p.served, p.servedAt = t.first, now
	}
	if carried >= p.served {
		p.served, p.servedAt = carried, quorum.Later(p.servedAt, at)
	}
	if !told && s.Liveness != vip.Unknown {
		carried = t.known.Number // nothing is known of its agent
	}
	if carried != p.carried || carried >= t.known.Number || t.carried < t.known.Number && !now.After(p.followBy) {
		p.carried, p.behindSince = carried, now
	}
	within := followTime
	if !told {
		within += 2 * l.o.RetryPeriod // it says so with its renewals
	} else if s.ProcessEnded {
		within = 0 // it never will
	}
	p.followBy = p.behindSince.Add(within)
	given := t.known.newest[quorum.ClaimText(node, p.Epoch)]
	if given <= carried {
		p.owesSince = now
	}
	// it may have been stalled before it was given something
	p.overdueAt = quorum.Later(p.followBy, p.owesSince.Add(within))
	if given <= p.served { // its kernel answers, and the next process may begin slowly
		p.overdueAt = quorum.Later(p.overdueAt, p.servedAt.Add(l.o.RestartTime()))
	}
	// one that has carried out nothing yet may begin slowly; where all begin, each gets its part
	begins := told && carried == 0 && t.known.Number > 1 && now.Sub(l.own.epochAt) > followTime
	stalled := now.After(p.followBy) || begins
	if stalled != p.stalled {
		p.stalled, l.changed = stalled, true
	}
}

// resolve ends the doubt by what another node says.
func (l *Leases) resolve(node string, written *Table, now time.Time) {
	d := l.table.doubt
	if written != nil {
		l.o.Log.Info("another node shows that what this one gave away was written, though there was no answer", "node", node)
		l.table.stale = true // the object is not known
		l.takeTable(written, now)
		return
	}
	l.table.doubt, l.table.stale, l.changed = nil, true, true
	for k := range d.over {
		delete(l.table.handingOver, k)
	}
}

// updateActs lets this node act once it has read the table in its epoch, and heard others that may have moved claims;
// and on what it was given, once it knows of all moves.
func (l *Leases) updateActs(now time.Time) {
	t, knows := &l.table, !l.mayNotKnow(now)
	if l.own.Epoch != 0 && t.readIn == l.own.Epoch && t.actsIn != t.readIn && (t.actsIn != 0 || knows) {
		t.actsIn, l.changed = t.readIn, true
	}
	if knows && t.sure != t.known.Number {
		t.carried = min(t.carried, t.sure) // no plan knows what it has been given since
		t.sure, l.changed = t.known.Number, true
	}
}

// neglects returns how long overdue a node's unit is, or 0.
func (l *Leases) neglects(node string, p *peer, now time.Time) time.Duration {
	if !p.stalled || l.table.known.newest[quorum.ClaimText(node, p.Epoch)] <= p.carried {
		return 0
	}
	return max(0, now.Sub(p.overdueAt))
}

// mayWriteTable reports whether this node has read the table in its epoch, acts on claims, and knows of no newer one.
func (l *Leases) mayWriteTable(now time.Time) bool {
	t := l.tenure(now)
	return l.table.planned && t.Holds(now) && t.Confirmed && l.decision.Verdict != quorum.Holding &&
		l.table.aheadAt.IsZero()
}

// turn returns how long after the first node this one places units; nodes that serve other Services don't count.
func (l *Leases) turn() (d time.Duration) {
	own := &l.about
	for node, p := range l.peers {
		if l.decision.Alive[node] && node < l.o.Node && p.info.AnnouncesServices() == own.AnnouncesServices() &&
			p.info.SameServices(own) && p.info.Excluded == "" && !p.info.Isolated {
			d += keeperDelay
		}
	}
	return d
}

// listChanges returns what to write: units given away, agreed moves past their fence, and free units in its turn.
func (l *Leases) listChanges(now time.Time) []change {
	t := &l.table
	d := dues{now: now, turn: l.turn(), before: t.needs, needs: make(map[vip.Key]time.Time)}
	alone := beginTime - now.Sub(l.own.epochAt)
	d.lookAgain(alone)
	place := !l.mayNotKnow(now) && !l.isolated() && l.decision.MayPlace && alone <= 0 && l.about.Excluded == ""
	all := append(l.plannedChanges(&d, place), l.otherChanges(&d, place)...)
	t.needs = d.needs
	if t.wake != nil {
		t.wake.Stop()
	}
	if d.again > 0 {
		t.wake = time.AfterFunc(d.again, l.Wake)
	}
	slices.SortFunc(all, func(a, b change) int { return a.unit.Compare(b.unit) })
	return all
}

// dues is since when units have needed something, for one look at them.
type dues struct {
	now           time.Time
	turn          time.Duration
	before, needs map[vip.Key]time.Time // at the last look, and at this one
	again         time.Duration         // until the next look; 0: nothing is due later
}

// lookAgain asks for a look after d, if later than now.
func (s *dues) lookAgain(d time.Duration) {
	if d > 0 && (s.again == 0 || d < s.again) {
		s.again = d
	}
}

// due reports whether what has stood for d is to be done.
func (s *dues) due(k vip.Key, d time.Duration) bool {
	since, ok := s.before[k]
	if !ok {
		since = s.now
	}
	s.needs[k] = since
	left := d - s.now.Sub(since)
	s.lookAgain(left)
	return left <= 0
}

// plannedChanges returns what changes of units in the plan: this node's that go elsewhere, and, with place, free ones.
func (l *Leases) plannedChanges(d *dues, place bool) (all []change) {
	for k, w := range l.table.wanted {
		e := l.table.known.Units[k]
		c, f := l.claim(k, e), l.beside.foreign[k]
		mine := c.Valid && c.Holder == l.o.Node && e.Owner == l.o.Node
		if mine && e.Number > l.table.carried && !l.own.releasing { // the plan does not know that it is
			continue
		}
		m, moved := l.quorum.Moved[k]
		switch p := l.peers[w.Node]; {
		case w.Stays, moved && (l.holds(m.Holder, m.Epoch) || l.valid(e)): // else neither acts on it
		case f != nil && f.valid(d.now):
			if mine {
				all = append(all, change{unit: k, cause: "another program renews its Lease"})
			}
		case mine && w.Node == l.o.Node:
		case mine && w.Node == "":
			all = append(all, change{unit: k, cause: w.Cause})
		case mine:
			if p != nil && l.decision.Alive[w.Node] {
				all = append(all, change{unit: k, owner: w.Node, epoch: p.Epoch, cause: w.Cause})
			}
		case c.Valid || w.Node == "" || !place:
		case w.Node == l.o.Node && d.due(k, d.turn):
			all = append(all, change{unit: k, owner: w.Node, epoch: l.own.Epoch, cause: w.Cause})
		case p != nil && l.decision.Alive[w.Node] && d.due(k, d.turn):
			all = append(all, change{unit: k, owner: w.Node, epoch: p.Epoch, cause: w.Cause})
		}
	}
	return all
}

// otherChanges returns what changes of other units: those moved without the API server, and those in no plan.
func (l *Leases) otherChanges(d *dues, place bool) (all []change) {
	for k, e := range l.table.known.Units {
		m, moved := l.quorum.Moved[k]
		_, wanted := l.table.wanted[k]
		switch {
		case moved && l.holds(m.Holder, m.Epoch) && l.void(e.Owner, e.Epoch) && l.decision.WriteMoves:
			if d.due(k, d.turn) {
				all = append(all, change{unit: k, owner: m.Holder, epoch: m.Epoch, cause: "the nodes agreed on it without the " +
					"API server"})
			}
		case wanted, moved:
		case l.valid(e) && e.Owner == l.o.Node:
			if l.own.releasing {
				all = append(all, change{unit: k, cause: "the Herald of its node stops"})
			} else if d.due(k, unknownTime) {
				all = append(all, change{unit: k, drop: true, cause: unneeded})
			}
		case !l.valid(e) && place && d.due(k, forgetTime+10*d.turn):
			all = append(all, change{unit: k, drop: true, cause: unneeded})
		}
	}
	return all
}

// unneeded is why a unit leaves the table.
const unneeded = "no Service needs it any more: it was deleted or changed, or has no endpoints"

// writeTable starts a due write: at once for what this node gives away, else gatherTime apart.
func (l *Leases) writeTable(ctx context.Context, now time.Time) {
	t := &l.table
	if t.pending || t.stale || now.Before(t.until) || !l.mayWriteTable(now) {
		return
	}
	rewrite := t.rewrite && l.rewriteDue(now)
	if t.rewrite && !rewrite { // what is known is written before anything else
		return
	}
	all := l.listChanges(now)
	if len(all) == 0 && !rewrite && t.doubt == nil {
		t.failures, t.until = 0, time.Time{} // another node may have written it, or is to
		return
	}
	given := make(map[vip.Key]bool)
	all = append(all, l.again()...)
	for i, c := range all {
		e := t.known.Units[c.unit]
		if e.Owner == l.o.Node && e.Epoch == l.own.Epoch && l.valid(e) {
			given[c.unit] = true
		} else if p := l.peers[e.Owner]; p != nil {
			all[i].heard = p.lastHeard()
		}
	}
	if len(given) == 0 && !rewrite && t.doubt == nil {
		if since := now.Sub(t.placedAt); since < t.gather {
			time.AfterFunc(t.gather-since, l.Wake)
			return
		} else if since > 2*maxGather {
			t.gather = gatherTime
		} else {
			t.gather = min(2*t.gather, maxGather)
		}
		t.placedAt = now
	}
	base := t.known
	// it was spoilt by hand
	if t.object != nil && transitions(t.object) > base.Number && transitions(t.object) < lastNumber {
		base = newTable(transitions(t.object), base.Units)
		base.moves = t.known.moves
	}
	all, next := l.fit(base, all, now)
	if len(all) == 0 && !rewrite && t.doubt == nil {
		return
	}
	l.beginDoubt(given, next, now)
	l.sendTable(ctx, next, given)
}

// fit returns the next table, and which changes it has: of new units those of namespaces that have least. None gets
// more than half of the room.
func (l *Leases) fit(base *Table, all []change, now time.Time) ([]change, *Table) {
	next := base.with(all, now)
	if len(next.text()) <= maxNew/2 {
		return all, next
	}
	room := make(map[string]int)
	for k := range base.Units {
		room[k.Namespace] += len(k.String())
	}
	var there, fresh []change
	place := make(map[vip.Key]int)
	for _, c := range all {
		if _, ok := base.Units[c.unit]; ok {
			there = append(there, c)
		} else if r := room[c.unit.Namespace] + len(c.unit.String()); r <= maxNew/2 {
			fresh = append(fresh, c)
			place[c.unit], room[c.unit.Namespace] = r, r
		}
	}
	slices.SortStableFunc(fresh, func(a, b change) int { return cmp.Compare(place[a.unit], place[b.unit]) })
	for len(fresh) > 0 {
		if len(base.with(slices.Concat(there, fresh), now).text()) <= maxNew {
			break
		}
		fresh = fresh[:len(fresh)/2]
	}
	kept := slices.Concat(there, fresh)
	if t := &l.table; len(kept) < len(all) && t.fullWith != len(base.Units) {
		t.fullWith = len(base.Units)
		l.o.Log.Warn("the table of who owns what is full, or half of it is one namespace's; Services that are new get no "+
			"VIP: delete some, or have a second installation announce some (docs/operations.md, Two installations)",
			"lease", l.tableKey(), "units", t.fullWith)
	}
	return kept, base.with(kept, now)
}

// again returns what was given away by an unanswered write that may yet be carried out, while the next owner lives.
func (l *Leases) again() (all []change) {
	t := &l.table
	if t.doubt == nil || t.doubt.base != t.known.Number {
		return nil
	}
	for k := range t.doubt.over {
		e, ok := t.doubt.next.Units[k]
		if !ok || e.Owner == "" || l.decision.Alive[e.Owner] {
			all = append(all, change{unit: k, owner: e.Owner, epoch: e.Epoch, cause: e.Cause, drop: !ok})
		}
	}
	return all
}

// rewriteDue reports whether this node is to write a lost table again.
func (l *Leases) rewriteDue(now time.Time) bool {
	t := &l.table
	if t.needsNow.IsZero() || now.Sub(t.needsNow) > forgetTime {
		t.needsNow = now
	}
	left := l.turn() - now.Sub(t.needsNow)
	if left > 0 {
		time.AfterFunc(left, l.Wake)
	} else {
		t.needsNow = time.Time{}
	}
	return left <= 0
}

// beginDoubt notes that a write gives away units: this node answers for them until it hears their next owners.
func (l *Leases) beginDoubt(given map[vip.Key]bool, next *Table, now time.Time) {
	for k := range given {
		e := next.Units[k]
		if e.Owner == "" {
			continue
		}
		h := l.table.handingOver[k]
		if l.table.doubt == nil || !l.table.doubt.over[k] { // else it was given away before
			h.Since = now
		}
		h.Successor, h.Until = e.Owner, now.Add(overlap)
		l.table.handingOver[k] = h
	}
	l.changed = l.changed || len(given) > 0
}

// sendTable starts to write next, which gives units away. A refused write is followed by a read, an unanswered one by a
// write: after a higher number nothing sent before can be carried out.
func (l *Leases) sendTable(ctx context.Context, next *Table, given map[vip.Key]bool) {
	t := &l.table
	t.pending = true
	before, known := t.doubt, t.version
	unsure := mergeDoubt(before, next, given)
	t.doubt = unsure
	x := next.lease(t.object, l.o.Namespace, l.o.Node, time.Now())
	timeout := l.o.RenewDeadline / 2
	if t.failures < shortTries && l.own.shortTries > 0 {
		timeout = min(timeout, shortTimeout)
	}
	l.start(ctx, timeout, func(ctx context.Context) func() {
		got, err := l.store.Write(ctx, x)
		refused := apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err)
		var read *coordinationv1.Lease
		var readErr error
		if refused {
			read, readErr = l.store.Get(ctx, l.o.Namespace, TableName)
		}
		return func() {
			now := time.Now()
			t.pending = false
			switch {
			case err == nil:
				l.metrics.written.WithLabelValues("ok").Inc()
				if t.failures > 0 {
					l.o.Log.Info("the table of who owns what is written again", "lease", l.tableKey())
				}
				t.failures, t.until = 0, time.Time{}
				l.setTable(got, now) // unless the watch has shown a later one meanwhile, which may be spoilt
				l.takeTable(next, now)
				return
			case refused:
				l.metrics.written.WithLabelValues("conflict").Inc()
				if t.doubt == unsure {
					t.doubt = before
				}
				for k := range given {
					if t.doubt == nil || !t.doubt.over[k] {
						delete(t.handingOver, k)
					}
				}
				l.changed = l.changed || len(given) > 0
				l.applyRead(read, known, readErr, now)
			default:
				l.metrics.written.WithLabelValues("error").Inc()
				if t.failures == 0 {
					l.o.Log.Warn("the table of who owns what can't be written; trying on", "lease", l.tableKey(), "err",
						err)
				}
				t.failures = min(t.failures+1, 6)
				t.until = now.Add(25 * time.Millisecond << t.failures)
			}
		}
	})
}

// mergeDoubt adds an unknown write to the doubt, if both replace one table.
func mergeDoubt(before *doubt, next *Table, given map[vip.Key]bool) *doubt {
	base := next.Number - 1
	if before != nil && before.base == base {
		over := maps.Clone(before.over)
		maps.Copy(over, given)
		return &doubt{base, next, append(slices.Clone(before.sent), next), over}
	}
	if len(given) == 0 {
		return before
	}
	return &doubt{base, next, []*Table{next}, given}
}

// applyRead takes in a read of the table past the watch, begun when that version was known.
func (l *Leases) applyRead(x *coordinationv1.Lease, known uint64, err error, now time.Time) {
	t := &l.table
	switch {
	case err == nil:
		l.checkRestored(x, known)
		t.stale = false
		l.setTable(x, now)
	case apierrors.IsNotFound(err):
		t.stale, t.object = false, nil
		t.rewrite = len(t.known.Units) > 0
	default:
		t.stale = true
	}
}

// readTable starts a read past the watch: once in each epoch, if another's is newer, or if a write was refused.
func (l *Leases) readTable(ctx context.Context, now time.Time) {
	t := &l.table
	ahead := !t.aheadAt.IsZero() && now.Sub(t.aheadAt) >= behindTime
	epoch := l.own.Epoch
	first := epoch != 0 && t.readIn != epoch && !l.own.EpochOver
	if t.pending || now.Before(t.until) && !first || l.own.RenewingSince.IsZero() || !ahead && !first && !t.stale {
		return
	}
	t.pending = true
	known := t.version
	l.start(ctx, l.o.RenewDeadline/2, func(ctx context.Context) func() {
		x, err := l.store.Get(ctx, l.o.Namespace, TableName)
		return func() {
			now := time.Now()
			t.pending, t.until = false, now.Add(behindTime)
			l.applyRead(x, known, err, now)
			if err == nil || apierrors.IsNotFound(err) {
				t.readIn, t.until, l.changed = epoch, now, true
				if ahead {
					t.until = now.Add(behindTime)
				}
			}
		}
	})
}

// endHandingOver removes what was given away long ago, unless it has no answer, or the heir does not know of it.
func (l *Leases) endHandingOver(now time.Time) {
	t := &l.table
	for k, h := range t.handingOver {
		e, s := t.known.Units[k], l.statuses[h.Successor]
		unknown := e.Owner == h.Successor && s.Liveness == vip.Alive && s.Heartbeat.Table < e.Number
		if unknown || t.doubt != nil && t.doubt.over[k] {
			if h.Until.Sub(now) < overlap/2 {
				h.Until = now.Add(overlap)
				t.handingOver[k] = h
				l.changed = true
			}
		} else if !now.Before(h.Until) {
			delete(t.handingOver, k)
			l.changed = true
		}
	}
}
