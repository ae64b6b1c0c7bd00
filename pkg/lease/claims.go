package lease

import (
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// members returns World.Members, sorted by name: this node with the given info, if it has an
// epoch, and each other node whose node lease was seen (l.peers), fenced or not, with its info
// and whether it is stalled and stable. This node is Alive while its tenure holds at now,
// another if the last decision has it as Alive.
func (l *Leases) members(now time.Time, info vip.NodeInfo) []vip.Member {
	all := make([]vip.Member, 0, len(l.peers)+1)
	if t := l.tenure(now); t.Epoch != 0 {
		all = append(all, vip.Member{Name: l.o.Node, Epoch: t.Epoch, Alive: t.Holds(now), Rejoining: l.decision.Rejoining, Info: info})
	}
	for name, p := range l.peers {
		all = append(all, vip.Member{
			Name: name, Epoch: p.Epoch, Alive: l.decision.Alive[name], Gone: p.gone, APIUnreached: p.noAPI, HeardAt: p.lastHeard(), Unproven: !p.renewed && p.heardAt.IsZero(),
			AnswersUntil: p.mayAnswerUntil(l.decision.AnswersUntil[name], now), Stalled: !p.stalledSince.IsZero(), Stable: p.stable(now), Info: p.info,
		})
	}
	slices.SortFunc(all, func(a, b vip.Member) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// claims returns World.Claims: of each VIP lease that exists (every Lease that is no node
// lease) what claim returns; of each that vanished, that is, was deleted by another program
// than its holder, what orphanedClaim returns, until expire removes it after a lease duration.
func (l *Leases) claims(now time.Time) map[vip.Key]vip.Claim {
	all := make(map[vip.Key]vip.Claim, len(l.cache.latest))
	for k, x := range l.cache.vanished {
		if l.counts(k) {
			all[l.serviceLease(k)] = l.orphanedClaim(x, now)
		}
	}
	for k, x := range l.cache.latest {
		if l.counts(k) {
			if s := l.serviceLease(k); !l.foreignClaim(k, now) {
				all[s] = l.claim(x, now)
			}
		} else if l.locationOf(k) == inServices && l.isForeign(x, now) {
			all[k] = l.claim(x, now)
		}
	}
	return all
}

// moveOf returns the Move that was agreed on without the API server in place of what a VIP
// lease says; ok is false if there is none, or x is not the version that it replaces.
func (l *Leases) moveOf(x *record) (m quorum.Move, ok bool) {
	m, ok = l.quorum.Moved[x.key]
	return m, ok && m.Version == x.version
}

// claim returns the Move that was agreed on without the API server in place of x, if there is
// one (moveOf): valid as moveHolds has it. Otherwise it returns the orphaned claim if another program has blanked the holder,
// or else what x says: Foreign if another program wrote the holder, Valid as valid has it.
func (l *Leases) claim(x *record, now time.Time) vip.Claim {
	o := l.cache.ownerOf(x)
	if m, ok := l.moveOf(x); ok {
		return vip.Claim{
			Holder: m.Holder, PreviousHolder: o.node, Transitions: addTransitions(x.Lease, 1),
			Valid: l.moveHolds(m),
		}
	}
	if x.orphaned {
		return l.orphanedClaim(x.Lease, now)
	}
	if o.unwritten {
		return l.unwrittenClaim(x, &o, now)
	}
	c := x.said
	c.Valid = l.valid(x, now)
	return c
}

// moveHolds reports whether the node to which m gave a VIP still has it: this one in its present epoch, which is not over; another whose claims
// of that epoch are not void, and may not be moved in turn.
func (l *Leases) moveHolds(m quorum.Move) bool {
	if m.Holder == l.o.Node {
		return m.Epoch == l.own.Epoch && !l.own.EpochOver
	}
	p := l.peers[m.Holder]
	return p != nil && !p.void(m.Epoch) && !l.decision.Released[m.Holder]
}

// unwrittenClaim returns the claim of the owner o of x to which it was transferred. As this node's own it has an Until.
func (l *Leases) unwrittenClaim(x *record, o *owner, now time.Time) vip.Claim {
	c := vip.Claim{
		Holder: o.node, FormerHolders: o.formerHolders(x), Transitions: addTransitions(x.Lease, len(o.before)), Cause: o.cause, AcquiredAt: o.at,
		Valid: l.valid(x, now),
	}
	if len(o.before) > 0 {
		c.PreviousHolder = o.before[0]
	}
	if o.node == l.o.Node {
		c.Until = l.actUntil()
	}
	return c
}

// valid reports whether a VIP lease is held, so that no other node may
// acquire it. It depends on its owner, which is the holder unless the claim was transferred (ownerOf):
//   - none: false; but if another program has blanked the lease, as orphanedClaim has it.
//   - another program: it has changed the lease within the duration that it names; false if
//     the holder has this node's name.
//   - this node: the claim is of its present epoch, which is not over, no newer version of
//     the lease is known to exist (cache.outdated), and mayAct allows it. If it was transferred and is
//     not written, only until actUntil, and not while claims may be moved without the API server, or were and this node does not know which
//     (quorum.Decision.UnknownMoves).
//   - another node, to which it was transferred, and is not written: its node lease is in the epoch of the claim, which
//     is not over, and it was not passed over; while claims may be moved without the API server instead, it is neither known to act on its claims, so that it has to
//     agree to that, nor to act on none: it may reach the API server, and have written this.
//   - another node: its node lease has reached the epoch of the claim, which is not over, and
//     the last decision has not released its claims to be moved.
//   - a node without a node lease, or whose node lease has not reached the epoch of the claim
//     (unproven): the lease was seen to change within the lease duration, or the epoch of the
//     node lease to fall. The node lease may have been deleted or blanked by hand, and is put
//     back by then, or be on its way by another watch.
func (l *Leases) valid(x *record, now time.Time) bool {
	o := l.cache.ownerOf(x)
	switch node := o.node; {
	case x.orphaned:
		return l.orphanedClaim(x.Lease, now).Valid
	case node == "":
		return false
	case !x.ours:
		// With this node's own name: an earlier program here, which has ended since Herald
		// runs. Any other lasts until it isn't renewed for its own duration.
		return node != l.o.Node && now.Sub(l.cache.changedAt[x.key]) < duration(x.Lease, l.o.LeaseDuration)
	case node == l.o.Node:
		return o.epoch == l.own.Epoch && !l.own.EpochOver && l.cache.outdated[x.key] != x.version && l.mayAct(x) && (!o.unwritten || now.Before(l.actUntil()) && !l.quorum.Moving() && !l.decision.UnknownMoves)
	case o.unwritten:
		p := l.peers[node]
		free := p != nil && p.passedOver
		if l.quorum.Moving() {
			free = l.decision.Alive[node] || l.decision.Released[node]
		}
		return p != nil && p.Exists && p.Epoch == o.epoch && !p.void(o.epoch) && !free
	default:
		if l.unproven(x) {
			p := l.peers[node]
			return now.Sub(l.cache.changedAt[x.key]) < l.o.LeaseDuration || p != nil && !p.fellAt.IsZero()
		}
		return !l.peers[node].void(x.epoch) && !l.decision.Released[node]
	}
}

// holds reports whether this node has a valid claim on x.
func (l *Leases) holds(x *record, now time.Time) bool {
	return l.cache.ownerOf(x).node == l.o.Node && l.valid(x, now)
}

// orphanedClaim returns the claim, with Holder, Transitions and Until only, on a VIP lease that
// another program than its holder has blanked or deleted; x is the last version. The holder
// announces the VIP until it sees that, and while it writes the lease again. So the claim is valid for a lease
// duration from when that was seen, if the holder is another node that is known and whose
// epoch is not over. As this node's own, of its present epoch, it has an Until: it lasts as long as one that was transferred and is not
// written may (actTime), since a process that has begun after the lease was deleted takes it for free.
func (l *Leases) orphanedClaim(x *coordinationv1.Lease, now time.Time) vip.Claim {
	node, epoch, _ := parseClaim(x)
	c := vip.Claim{Holder: node, Transitions: addTransitions(x, 0)}
	since := l.cache.changedAt[keyOf(x)]
	if node == l.o.Node {
		c.Until = since.Add(l.actTime())
		c.Valid = epoch == l.own.Epoch && !l.own.EpochOver && now.Before(c.Until) && !l.quorum.Moving()
		return c
	}
	p := l.peers[node]
	c.Valid = p != nil && !p.void(epoch) && now.Sub(since) < l.o.LeaseDuration
	return c
}

// orphanedElsewhere reports whether another program has blanked or deleted a VIP lease, of which x is the last version, while another node
// has it (orphanedClaim). What was this node's own is to be written again.
func (l *Leases) orphanedElsewhere(x *coordinationv1.Lease, now time.Time) bool {
	c := l.orphanedClaim(x, now)
	return c.Valid && c.Holder != l.o.Node
}

// proposedMoves returns, by VIP lease, where the plan would have the claims go that are not
// valid (claim): to this node if its intent is to acquire it, or to the ExpectedHolder of one
// that it follows; each with the version and the claim that it replaces. Leases that do not
// exist, hand-overs, and intents without an ExpectedHolder are left out. Move.Epoch is left
// for State.Propose. From is the node that the lease names, whose claim is void once the Move is carried out; it is empty if that has
// transferred the VIP lease: it acts on it no more, and may have others.
func (l *Leases) proposedMoves(want []vip.LeaseIntent, now time.Time) map[vip.Key]quorum.Move {
	all := make(map[vip.Key]quorum.Move)
	for _, s := range want {
		node := s.ExpectedHolder
		if s.Action == vip.Acquire {
			node = l.o.Node
		}
		if x := l.cache.latest[s.Lease]; x != nil && node != "" && s.Action != vip.HandOver && !l.claim(x, now).Valid {
			m := quorum.Move{Holder: node, Version: x.version, From: x.holder, FromEpoch: x.epoch}
			if l.cache.ownerOf(x).unwritten {
				m.From, m.FromEpoch = "", 0
			}
			all[s.Lease] = m
		}
	}
	return all
}

// nodeOf returns the node whose node lease k is: what follows NodePrefix, in the namespace of
// the node leases. "" for any other Lease.
func (l *Leases) nodeOf(k vip.Key) string {
	if node, ok := strings.CutPrefix(k.Name, NodePrefix); ok && k.Namespace == l.o.Namespace {
		return node
	}
	return ""
}

// nodeLeaseKey returns the key of a node's node lease.
func (l *Leases) nodeLeaseKey(node string) vip.Key {
	return vip.Key{Namespace: l.o.Namespace, Name: NodePrefix + node}
}

// isHolder reports whether any VIP lease that exists names the node as its holder, whether its
// claim is valid or not.
func (l *Leases) isHolder(node string) bool {
	for x := range maps.Values(l.cache.latest) {
		if x.holder == node && l.isVIPLease(x.key) {
			return true
		}
	}
	return false
}
