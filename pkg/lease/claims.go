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

// members is World.Members: this node, if it has an epoch, with the given info, and every
// node whose node lease was ever seen.
func (l *Leases) members(now time.Time, info vip.NodeInfo) []vip.Member {
	all := make([]vip.Member, 0, len(l.peers)+1)
	if t := l.tenure(now); t.Epoch != 0 {
		all = append(all, vip.Member{Name: l.o.Node, Epoch: t.Epoch, Alive: t.Holds(now), Info: info})
	}
	for name, p := range l.peers {
		if p.lease != nil {
			all = append(all, vip.Member{
				Name: name, Epoch: p.Epoch, Alive: l.decision.Alive[name],
				Stalled: !p.stalledSince.IsZero(), Stable: p.stable(now), Info: p.info,
			})
		}
	}
	slices.SortFunc(all, func(a, b vip.Member) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// claims is World.Claims: what each VIP lease says, and each that was deleted by another
// program than its holder.
func (l *Leases) claims(now time.Time) map[vip.Key]vip.Claim {
	all := make(map[vip.Key]vip.Claim, len(l.cache.latest))
	for k, x := range l.cache.vanished {
		all[k] = l.orphanedClaim(x, now)
	}
	for k, x := range l.cache.latest {
		if l.nodeOf(k) == "" {
			all[k] = l.claim(x, now)
		}
	}
	return all
}

// moved is the Move that a VIP lease was subject to while the API server was away; ok is
// false if there is none, or the lease was written since.
func (l *Leases) moved(x *record) (m quorum.Move, ok bool) {
	m, ok = l.quorum.Moved[x.key]
	return m, ok && m.Version == x.version
}

// claim is what a VIP lease says, or the Move that was agreed on in its place without the
// API server.
func (l *Leases) claim(x *record, now time.Time) vip.Claim {
	if m, ok := l.moved(x); ok {
		return vip.Claim{
			Holder: m.Holder, PreviousHolder: x.holder, Transitions: transitions(x.Lease) + 1,
			Valid: m.Holder != l.o.Node || m.Epoch == l.own.Epoch && !l.own.EpochOver,
		}
	}
	if x.orphaned {
		return l.orphanedClaim(x.Lease, now)
	}
	c := vip.Claim{Holder: x.holder, PreviousHolder: x.Annotations[FromAnnotation], Transitions: transitions(x.Lease)}
	if x.Spec.AcquireTime != nil {
		c.AcquiredAt = x.Spec.AcquireTime.Time
	}
	c.Foreign = x.holder != "" && !x.ours
	c.Valid = l.valid(x, now)
	return c
}

// valid reports whether a VIP lease, as it is written, is held: by another program, if that
// has changed it within its own duration; by this node, in its epoch, unless that is over or
// a newer version is known to exist; or by another node whose epoch is not over and whose
// claims may not be moved.
func (l *Leases) valid(x *record, now time.Time) bool {
	switch node := x.holder; {
	case x.orphaned:
		return l.orphanedClaim(x.Lease, now).Valid
	case node == "":
		return false
	case !x.ours:
		// With this node's own name: an earlier program here, which has ended since Herald
		// runs. Any other lasts until it isn't renewed for its own duration.
		return node != l.o.Node && now.Sub(l.cache.changedAt[x.key]) < duration(x.Lease, l.o.LeaseDuration)
	case node == l.o.Node:
		return x.epoch == l.own.Epoch && !l.own.EpochOver && l.cache.outdated[x.key] != x.version
	default:
		p := l.peers[node] // absent: it has stopped, or been silent long after it was fenced
		return p != nil && !p.void(x.epoch) && !l.decision.Released[node]
	}
}

// orphanedClaim is the claim on a VIP lease that was blanked or deleted by another program
// than its holder. The holder, if its epoch is not over, announces the VIP until it sees that
// and claims it again: the claim is valid for a lease duration, but not for the holder itself.
func (l *Leases) orphanedClaim(x *coordinationv1.Lease, now time.Time) vip.Claim {
	node, epoch, _ := parseClaim(x)
	p := l.peers[node]
	return vip.Claim{
		Holder: node, Transitions: transitions(x),
		Valid: node != l.o.Node && p != nil && !p.void(epoch) && now.Sub(l.cache.changedAt[keyOf(x)]) < l.o.LeaseDuration,
	}
}

// moves is where the plan would have the VIP leases go whose claims are void.
func (l *Leases) moves(want []vip.LeaseIntent, now time.Time) map[vip.Key]quorum.Move {
	all := make(map[vip.Key]quorum.Move)
	for _, s := range want {
		node := s.ExpectedHolder
		if s.Action == vip.Acquire {
			node = l.o.Node
		}
		if x := l.cache.latest[s.Lease]; x != nil && node != "" && s.Action != vip.HandOver && !l.claim(x, now).Valid {
			all[s.Lease] = quorum.Move{Holder: node, Version: x.version, From: x.holder, FromEpoch: x.epoch}
		}
	}
	return all
}

// nodeOf is the node whose node lease k names, or "".
func (l *Leases) nodeOf(k vip.Key) string {
	if node, ok := strings.CutPrefix(k.Name, NodePrefix); ok && k.Namespace == l.o.Namespace {
		return node
	}
	return ""
}

// isHolder reports whether any VIP lease names the node as its holder.
func (l *Leases) isHolder(node string) bool {
	for x := range maps.Values(l.cache.latest) {
		if x.holder == node && l.nodeOf(x.key) == "" {
			return true
		}
	}
	return false
}
