package lease

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// A node that hands over VIP leases transfers them: one write of its own node lease names the successor of each, as a
// fence does (docs/ownership.md, docs/why.md, "The lease decides"). What differs is that this node lives, and might write such a VIP lease
// as well. That would end the transfer while the successor may not know of it. So from the moment the write of the node
// lease is sent it writes none of them, until a later write of the node lease has succeeded: by then the one before was
// carried out, as what it has replaced shows, or never will be.

// transferPause is for how long hand-overs are writes on their VIP leases after a transfer that failed.
const transferPause = 5 * time.Second

// splitHandOvers returns the hand-overs among all that one write of this node's own lease can transfer, and the rest of
// all that need not wait. There are none of the first kind transferPause after a transfer has failed, or if nothing may
// be transferred (mayTransfer). A VIP lease that the successor had before, of which a write may still arrive, or that
// does not fit on the node lease is in the rest.
func (l *Leases) splitHandOvers(all []update, now time.Time) (transfer, rest []update) {
	which := l.transferable(all, now)
	for i, u := range all {
		if which[i] {
			transfer = append(transfer, u)
		} else if !u.waits {
			rest = append(rest, u)
		}
	}
	return transfer, rest
}

// transferable returns of each of all whether it is a hand-over to be transferred.
func (l *Leases) transferable(all []update, now time.Time) []bool {
	which := make([]bool, len(all))
	if l.o.Successors == nil || now.Before(l.writes.transferAfter) || !slices.ContainsFunc(all, func(u update) bool { return u.action == vip.HandOver }) || !l.mayTransfer("") {
		return which
	}
	leases := l.keptTransfers(l.o.Node)
	for i, u := range all {
		if which[i] = l.mayTransferUpdate(u); which[i] {
			leases = append(leases, transferredBy(u, now))
		}
	}
	fit := parseTransfers(transfersText(leases))
	for i, u := range all {
		which[i] = which[i] && fit.find(digestOf(u.key, version(u.from))) != nil
	}
	return which
}

// mayTransferUpdate reports whether u is a hand-over that may be transferred, as far as that depends on its VIP lease
// and successor.
func (l *Leases) mayTransferUpdate(u update) bool {
	if u.action != vip.HandOver || version(u.from) <= l.writes.failures[u.key].unanswered || !l.mayReceive(u.holder, u.owner) {
		return false
	}
	x := l.cache.latest[u.key]
	_, moved := l.moveOf(x)
	return x.ours && !moved && l.epochOf(u.holder) == u.epoch
}

// transferredBy returns the transfer of the VIP lease of a hand-over.
func transferredBy(u update, now time.Time) transferred {
	return transferred{digestOf(u.key, version(u.from)), quorum.ClaimText(u.holder, u.epoch), now.UnixMicro(), u.intent.Cause}
}

// beginTransfers notes that a write of this node's own lease is about to transfer the VIP leases of handOvers: this
// node answers for them until it hears their successors.
func (l *Leases) beginTransfers(handOvers []update, now time.Time) {
	for _, u := range handOvers {
		l.writes.transferring[u.key] = version(u.from)
		// From now on, not from the answer on: the watch may show the transfer first.
		l.writes.handingOver[u.key] = vip.HandingOver{Successor: u.holder, Since: now, Until: now.Add(overlap)}
		l.changed = true
	}
}

// endTransfers takes in the outcome of a write of this node's own lease, which was to transfer VIP leases (tried) or
// not. After success it is known of all that were to be transferred whether they are; those that are not are this
// node's as before, and may be written. After an error it is not. If this write failed, but for a conflict, or did not
// transfer all of them, transferPause begins.
func (l *Leases) endTransfers(tried bool, err error) {
	pause := err != nil && !apierrors.IsConflict(err)
	if err == nil {
		for k, v := range l.writes.transferring {
			if x := l.cache.latest[k]; x != nil && x.version == v && l.cache.ownerOf(x).node == l.o.Node {
				delete(l.writes.handingOver, k)
				pause = true
			}
			l.changed = true
		}
		clear(l.writes.transferring)
	}
	if tried && pause {
		l.writes.transferAfter = time.Now().Add(transferPause)
	}
}

// storeRead stores this node's own lease as it was read past the watch, which may show an earlier version, or none:
// what it transfers counts at once. It does nothing for nil. mu is held.
func (l *Leases) storeRead(x *coordinationv1.Lease) {
	if x != nil && version(x) > l.cache.version(keyOf(x)) {
		l.cache.setWritten(x)
		l.changed = true
	}
}

// ownTransfers returns the TransfersAnnotation to be written on this node's own lease over known: what is there, unless
// the watch has shown that, and with it all VIP leases that it names, and none of them follows from it any more; and
// the transfers of handOvers that are this node's still. A VIP lease that is transferred already is not transferred
// again. mu is held.
func (l *Leases) ownTransfers(known *coordinationv1.Lease, handOvers []update) string {
	text := ""
	if known != nil && !l.mayDropTransfers(known) {
		text = known.Annotations[TransfersAnnotation]
	}
	if len(handOvers) == 0 {
		return text
	}
	before, now := parseTransfers(text), time.Now()
	all := before.list()
	if l.transfersShown(known) {
		all = l.keptOf(before)
	}
	for _, u := range handOvers {
		x := l.cache.latest[u.key]
		if x == nil || x.version != version(u.from) || l.writes.pending(u.key) || before.find(x.digest) != nil {
			continue
		}
		if o := l.cache.ownerOf(x); o.node == l.o.Node && o.epoch == l.own.Epoch {
			all = append(all, transferredBy(u, now))
		}
	}
	return transfersText(all)
}
