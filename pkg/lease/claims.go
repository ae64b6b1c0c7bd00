package lease

import (
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// members returns World.Members by name: this node, if it has an epoch, and all with node leases, fenced or not.
func (l *Leases) members(now time.Time, info vip.NodeInfo) []vip.Member {
	all := make([]vip.Member, 0, len(l.peers)+1)
	if t := l.tenure(now); t.Epoch != 0 {
		all = append(all, vip.Member{Name: l.o.Node, Epoch: t.Epoch, Alive: t.Holds(now), Rejoining: l.decision.Rejoining,
			Info: info})
	}
	for name, p := range l.peers {
		all = append(all, vip.Member{
			Name: name, Epoch: p.Epoch, Alive: l.decision.Alive[name], Gone: p.gone, APIUnreached: p.noAPI,
			HeardAt: p.lastHeard(), Heard: l.statuses[name].Liveness == vip.Alive,
			Unproven: !p.renewed && p.heardAt.IsZero(), AnswersUntil: l.decision.AnswersUntil[name], Stalled: p.stalled,
			Stable: p.stable(now), Info: p.info,
		})
	}
	slices.SortFunc(all, func(a, b vip.Member) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// claims returns World.Claims, of the table and other programs' Leases.
func (l *Leases) claims(now time.Time) map[vip.Key]vip.Claim {
	all := make(map[vip.Key]vip.Claim, len(l.table.known.Units)+len(l.beside.foreign))
	for k, e := range l.table.known.Units {
		all[k] = l.claim(k, e)
	}
	for k, f := range l.beside.foreign {
		if f.valid(now) {
			all[k] = vip.Claim{Holder: f.holder, Foreign: true, Valid: true}
		}
	}
	return all
}

// claim returns who has the unit of e, unless it was moved, or given away by a write that may have failed. What the
// table gives this node while another acts on moves unknown here may be one of them: it stays where it was.
func (l *Leases) claim(k vip.Key, e Entry) vip.Claim {
	if m, ok := l.quorum.Moved[k]; ok {
		return vip.Claim{Holder: m.Holder, PreviousHolder: e.Owner, Transitions: e.Transitions + 1,
			Valid: l.holds(m.Holder, m.Epoch)}
	}
	if next, ok := l.table.doubted(k, e); ok {
		c := next.claim()
		c.Valid = c.Holder != ""
		return c
	}
	c := e.claim()
	if c.Valid = l.valid(e); c.Valid && c.Holder == l.o.Node && e.Number > l.table.sure && c.PreviousHolder != "" {
		c.Holder = c.PreviousHolder
	}
	return c
}

// void reports whether the claims of a node's epoch are void: by its node lease or, of this node, since it has no such
// epoch.
func (l *Leases) void(node string, epoch int64) bool {
	if node == l.o.Node {
		return epoch != l.own.Epoch || l.own.EpochOver
	}
	p := l.peers[node]
	return p == nil || p.void(epoch)
}

// holds reports whether a node still has what it got in an epoch that its node lease shows.
func (l *Leases) holds(node string, epoch int64) bool {
	return !l.void(node, epoch) && !l.decision.Released[node]
}

// valid reports whether the epoch of e is not over; the node lease may show it later than the table.
func (l *Leases) valid(e Entry) bool {
	p := l.peers[e.Owner]
	if e.Owner != "" && e.Owner != l.o.Node &&
		(p == nil || p.lease == nil || !p.Exists && !p.void(e.Epoch) || e.Epoch > p.Epoch) {
		return true // until it is fenced (fenceUnproven)
	}
	return l.holds(e.Owner, e.Epoch)
}

// updateUnproven stores since when no node lease has shown a claim's epoch.
func (l *Leases) updateUnproven(now time.Time) {
	before := l.table.unproven
	l.table.unproven = make(map[string]time.Time)
	for claim := range l.table.known.newest {
		node, epoch, _ := parseClaimText(claim)
		p := l.peers[node]
		if node == "" || node == l.o.Node || p != nil && (p.Exists || p.void(epoch)) && p.Epoch >= epoch {
			continue
		}
		since, ok := before[claim]
		if !ok {
			since = now
		}
		l.table.unproven[claim] = since
	}
}

// proposedMoves returns the plan's moves of units that nobody has; State.Propose sets Move.Epoch.
func (l *Leases) proposedMoves() map[vip.Key]quorum.Move {
	all := make(map[vip.Key]quorum.Move)
	for k, w := range l.table.wanted {
		e, ok := l.table.known.Units[k]
		if c := l.claim(k, e); ok && w.Node != "" && !w.Stays && !c.Valid {
			all[k] = quorum.Move{Holder: w.Node, Version: uint64(e.Number), From: e.Owner, FromEpoch: e.Epoch}
		}
	}
	return all
}

// nodeOf returns the node of the node lease k, or "".
func (l *Leases) nodeOf(k vip.Key) string {
	if node, ok := strings.CutPrefix(k.Name, vip.NodeLeasePrefix); ok && k.Namespace == l.o.Namespace {
		return node
	}
	return ""
}
