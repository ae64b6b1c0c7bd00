package plan

import (
	"slices"
)

// restore finds a target for what this node has from one that was drained and is
// drained no more.
func (m *maker) restore(self *member) {
	back := make(map[string]*member)
	for _, n := range m.Nodes {
		if mb := m.members[n.Name]; mb != nil && mb != self && mb.Alive && m.Now.Before(n.ReturnUntil) {
			back[n.Name] = mb
			m.again(n.ReturnUntil.Sub(m.Now))
		}
	}
	if len(back) == 0 {
		return
	}
	for _, u := range m.units {
		if to := back[u.claim.PreviousHolder]; to != nil && m.staying(u) && m.barred(u, to) == "" {
			u.target = to
			self.units--
			to.units++
		}
	}
}

// rebalance finds a target for one unit of this node if another node has less by
// two or more. One at a time: the next follows when the successor of that one has
// been heard or the time for it is over. A node that came back a while ago only
// counts once it is calm, so that one which comes and goes moves nothing.
func (m *maker) rebalance(self *member) {
	if !m.Rebalance || len(m.HandingOver) > 0 {
		return
	}
	for _, u := range slices.Backward(m.units) { // the youngest first: it has the fewest who know it
		if !m.staying(u) {
			continue
		}
		var to *member
		for _, mb := range m.alive {
			if mb.Stable && !mb.Stalled && mb.units+2 <= self.units && (to == nil || mb.units < to.units) && m.barred(u, mb) == "" {
				to = mb
			}
		}
		if to != nil {
			u.target = to
			return
		}
	}
}

// staying reports whether u would stay on this node.
func (m *maker) staying(u *unit) bool {
	return u.claim.Holder == m.Self && u.target == nil && !u.control && m.held(u)
}

// held reports whether u is this node's beyond doubt: claimed, and not being given away.
func (m *maker) held(u *unit) bool {
	_, leaving := m.HandingOver[u.lease]
	return !leaving && m.Tenure.Holds(m.Now) && m.Tenure.RenewalLateSince.IsZero() && u.claim.Holder == m.Self
}
