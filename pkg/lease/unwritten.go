package lease

import (
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	maxUnwritten = 8  // requests at a time that write transferred claims on their VIP leases: nobody waits for them
	maxSent      = 64 // writes of this node that the watch has not shown, and that are remembered
)

// unwritten is what this node knows of claims that were transferred and are not written on their VIP leases.
//
// A node that was given a VIP by a transfer acts on it at once. If it does not write it on the VIP lease, others pass it over after
// stalledAfter: they write the VIP lease, in the version that the transfer names, which ends the transfer. This node must not go on then though its
// watch is stuck. So it acts on an unwritten claim only for a while after the moment up to which it knows all that was written (asOf).
type unwritten struct {
	owners map[vip.Key]owner // of the VIP leases that count
	limits writeLimits       // of requests that write such claims
	asOf   time.Time         // the watch has shown all that was written before this
	sent   []sentWrite       // that the watch has not shown yet
}

// A sentWrite is the version of a Lease that a write of this node has made, and when that was sent: once the
// watch shows that version, or a later one of any Lease, it has shown whatever was written before.
type sentWrite struct {
	version uint64
	at      time.Time
}

// addSent remembers a write that succeeded.
func (u *unwritten) addSent(got *coordinationv1.Lease, at time.Time) {
	u.sent = addSent(u.sent, got, at)
}

// addSent returns sent with a write that succeeded: of more than maxSent the first, which the watch shows first, and the last.
func addSent(sent []sentWrite, got *coordinationv1.Lease, at time.Time) []sentWrite {
	return append(sent[:min(len(sent), maxSent-1)], sentWrite{version(got), at})
}

// updateUnwritten stores the owners of the VIP leases that count and whose claims are not written, and up to when the watch has
// shown everything. It sets l.changed if any of the owners has changed, and if the latter has and this node is one of them: the plan says until
// when each is bound.
func (l *Leases) updateUnwritten() {
	u := &l.unwritten
	before := u.asOf
	u.sent = slices.DeleteFunc(u.sent, func(w sentWrite) bool {
		shown := w.version <= l.cache.shown
		if shown && w.at.After(u.asOf) {
			u.asOf = w.at
		}
		return shown
	})
	transferred := l.cache.listTransferred()
	if len(transferred) == 0 && len(u.owners) == 0 {
		return
	}
	owners := u.owners
	u.owners = make(map[vip.Key]owner, len(transferred))
	for k := range transferred {
		if o := l.cache.ownerOf(l.cache.latest[k]); l.counts(k) {
			u.owners[k] = o
			l.changed = l.changed || o.node == l.o.Node && !u.asOf.Equal(before)
		}
	}
	l.changed = l.changed || !maps.EqualFunc(owners, u.owners, func(a, b owner) bool { return a.node == b.node && a.epoch == b.epoch })
}

// actUntil returns until when this node may act on a claim of its own that is not written: for one and a half retry
// periods and a second after asOf, also without the API server: another node may have written its own claim just before that went away.
// Once claims may be moved without it (State.Moving), one that is not written is free, and goes where all agree.
func (l *Leases) actUntil() time.Time { return l.unwritten.asOf.Add(l.actTime()) }

// actTime returns how long after a moment up to which a node knows all that was written it may act on claims that are not written.
func (l *Leases) actTime() time.Duration { return l.o.RetryPeriod*3/2 + time.Second }

// ownKeys returns the VIP leases that are written in this node's name, and those that were transferred to it, whether they
// count or not.
func (l *Leases) ownKeys() map[vip.Key]bool {
	if len(l.unwritten.owners) == 0 {
		return l.cache.mine
	}
	all := make(map[vip.Key]bool, len(l.cache.mine)+len(l.unwritten.owners))
	for k := range l.cache.mine {
		all[k] = true
	}
	for k, o := range l.unwritten.owners {
		if o.node == l.o.Node {
			all[k] = true
		}
	}
	return all
}

// hasUnwritten reports whether a claim was transferred to this node, in its present epoch, and is not written yet.
func (l *Leases) hasUnwritten() bool {
	for _, o := range l.unwritten.owners {
		if o.node == l.o.Node && o.epoch == l.own.Epoch && !l.own.EpochOver {
			return true
		}
	}
	return false
}

// updatePassedOver marks, and logs, the nodes that were given VIPs by a transfer, and have written no VIP lease for stalledAfter,
// counted while this node's own renewals succeed. Leases in namespaces in which the API server refuses the node's writes do not count, and
// none does while VIP leases are copied elsewhere.
func (l *Leases) updatePassedOver(now time.Time) {
	expected := make(map[string]bool)
	if !l.own.RenewingSince.IsZero() && !l.location.moving() {
		for k, o := range l.unwritten.owners {
			if p := l.peers[o.node]; p != nil && p.Epoch == o.epoch && !p.void(o.epoch) && !p.info.LeasesRefused(k.Namespace) {
				expected[o.node] = true
			}
		}
	}
	for node, p := range l.peers {
		if p.updatePassedOver(expected[node], l.stalledAfter(), now) {
			l.changed = true
			l.o.Log.Info("a node does not write down the VIPs that were transferred to it; others go ahead of it", "node", node)
		}
		if p.passedOver { // it may not know that yet, or have ended
			p.answersUntil = now.Add(l.actTime() + vip.AddressRemovalDelay)
		}
	}
}

// updatePassedOver stores since when the node has had claims that are not written, and marks it as passed over, and stalled,
// once it has had such claims, and written no VIP lease, for stalledAfter. It reports whether it has just done that. Without such claims the mark
// goes, and stalledSince stays.
func (p *peer) updatePassedOver(expected bool, after time.Duration, now time.Time) bool {
	if !expected {
		p.unwrittenSince, p.passedOver = time.Time{}, false
		return false
	}
	if p.unwrittenSince.IsZero() {
		p.unwrittenSince = now
	}
	if p.passedOver || min(now.Sub(p.unwrittenSince), now.Sub(p.acquiredAt)) <= after {
		return false
	}
	p.passedOver, p.stalledSince = true, now
	return true
}

// addTransfers adds to next, the node lease of a node that is to be fenced with it, where its VIPs go from then on: those that
// it owns in its epoch, by the VIP leases or by transfers, each to the node to which a plan would give it if it were free. What is left out is free
// once the node is fenced: VIP leases without such a node, and those that were moved without the API server. It adds none at all
// if a node that is not fenced does not understand them, or while VIP leases are copied elsewhere. It blocks as long as a plan; mu is not held.
func (l *Leases) addTransfers(next *coordinationv1.Lease, node string) {
	l.mu.Lock()
	may := l.mayTransfer(node)
	l.mu.Unlock()
	if l.o.Successors == nil || !may {
		return
	}
	info := l.o.Info()
	successors := l.o.Successors(func(w *vip.World) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.observeWithout(w, node, info)
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	all, at := l.keptTransfers(node), time.Now().UnixMicro()
	for s, to := range successors {
		k := l.leaseIn(l.location.from, s)
		x := l.cache.latest[k]
		if x == nil || !l.counts(k) {
			continue
		}
		if o := l.cache.ownerOf(x); o.node == node && o.epoch == transitions(next) && x.ours && l.mayReceive(to.Node, o) {
			if _, moved := l.moveOf(x); !moved {
				all = append(all, transferred{x.digest, quorum.ClaimText(to.Node, l.epochOf(to.Node)), at, to.Cause})
			}
		}
	}
	annotate(next, TransfersAnnotation, transfersText(all))
}

// mayTransfer reports whether all nodes that are not fenced, but for one, understand transfers, VIP leases stay where they are, and
// none was, or may have been, moved without the API server that this node does not know of.
func (l *Leases) mayTransfer(without string) bool {
	for node, p := range l.peers {
		if node != without && p.Exists && !p.Over && !p.info.Transfers {
			return false
		}
	}
	return !l.location.moving() && l.location.ready && !l.decision.UnknownMoves && !l.decision.PossibleMoves
}

// mayReceive reports whether what o has may be transferred to a node: it is this one, or alive and in an epoch that is not over, and has not
// had it by a transfer before, or as the lease is written; and no more than maxHops transfers lead to it then.
func (l *Leases) mayReceive(node string, o owner) bool {
	if slices.Contains(o.before, node) || len(o.before) >= maxHops {
		return false
	}
	if node == l.o.Node {
		return l.own.Epoch != 0 && !l.own.EpochOver
	}
	p := l.peers[node]
	return node != o.node && p != nil && l.decision.Alive[node] && p.Exists && !p.void(p.Epoch)
}

// epochOf returns the epoch of a node: this one, or a peer that is known.
func (l *Leases) epochOf(node string) int64 {
	if node == l.o.Node {
		return l.own.Epoch
	}
	return l.peers[node].Epoch
}

// knowsVIPLeases reports whether all VIP leases are known that a Herald has claimed: before the first plan they are not, nor while the Store may not tell of all.
func (l *Leases) knowsVIPLeases() bool {
	return l.writes.planned && (l.o.VIPLeasesKnown == nil || l.o.VIPLeasesKnown())
}

// keptTransfers returns what of the transfers on the lease of a node the owner of a VIP lease still follows from; all while not all VIP
// leases are known.
func (l *Leases) keptTransfers(node string) []transferred {
	if !l.knowsVIPLeases() {
		return l.cache.transfers[node].list()
	}
	return l.keptOf(l.cache.transfers[node])
}

// keptOf returns what of t the owner of a VIP lease still follows from. t may be nil.
func (l *Leases) keptOf(t *transfers) (kept []transferred) {
	if t == nil {
		return nil
	}
	for _, x := range l.cache.latest {
		if g := t.find(x.digest); g != nil && x.ours {
			kept = append(kept, transferred{x.digest, g.To, g.At, g.Cause})
		}
	}
	return kept
}

// observeWithout stores in w what Observe does of Members and Claims, as if the node were fenced already. info is of this node.
func (l *Leases) observeWithout(w *vip.World, node string, info vip.NodeInfo) {
	w.Now = time.Now()
	l.observeOwnership(w, info)
	for i := range w.Members {
		if w.Members[i].Name == node {
			w.Members[i].Alive = false
		}
	}
	for k, c := range w.Claims {
		if c.Holder == node && !c.Foreign {
			c.Valid = false
			w.Claims[k] = c
		}
	}
}

// mayDropTransfers reports whether the transfers on a node lease may go: the watch has shown them, and with them all VIP leases that they
// name, and the owner of none follows from them. mu is held.
func (l *Leases) mayDropTransfers(x *coordinationv1.Lease) bool {
	text := x.Annotations[TransfersAnnotation]
	return text == "" || l.transfersShown(x) && !l.cache.leads(parseTransfers(text))
}

// transfersPending reports whether this node has transferred VIP leases, or may have, that their new owners have not written. Those do not count that the nodes have agreed to move
// since, without the API server, and whose new owners say that they have done so: they need this node's agreement no longer. mu is held.
func (l *Leases) transfersPending() bool {
	if len(l.writes.transferring) > 0 {
		return true
	}
	t := l.cache.transfers[l.o.Node]
	if t == nil {
		return false
	}
	for _, x := range l.cache.latest {
		if m, moved := l.moveOf(x); x.ours && t.find(x.digest) != nil && !(moved && l.quorum.KnownToAct(m.Holder)) {
			return true
		}
	}
	return false
}

// transfersShown reports whether the watch has shown the transfers on a node lease, and with them all VIP leases that they name (knowsVIPLeases). x may be nil.
func (l *Leases) transfersShown(x *coordinationv1.Lease) bool {
	if x == nil || !l.knowsVIPLeases() {
		return false
	}
	shown := l.cache.watched[keyOf(x)]
	return shown != nil && shown.Annotations[TransfersAnnotation] == x.Annotations[TransfersAnnotation]
}
