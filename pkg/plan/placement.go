package plan

import (
	"slices"
)

// A placement gives units to nodes.
type placement struct {
	*pass
	units []*unit
}

// setTargets sets the target of every unit that is free, or that this node holds and must or may hand over.
//
// A free unit goes to the node that had it, else to the best. The oldest comes first and counts for the next,
// so that a burst of new Services spreads evenly although every node plans alone: a node's own count is exact
// and the counts it has of others are at worst too low, hence nobody takes more than its share of what there
// is (decision 0010).
func (p *placement) setTargets() {
	for _, u := range p.units {
		if n := p.members[u.claim.Holder]; n != nil {
			n.units++
		}
	}
	for _, u := range p.units {
		switch {
		case u.claim.Holder == "":
			if u.target = p.former(u); u.target == nil {
				u.target = p.best(u)
			}
		case p.self != nil && u.claim.Holder == p.Self && ineligible(&u.requirements, p.self) != "":
			u.target = p.best(u)
		}
		if u.target != nil {
			u.target.units++
		}
	}
	if p.self != nil {
		p.returnUnits()
		p.rebalance()
	}
}

// former is the node that had a free unit, if it is alive, not stalled and eligible: the one named by u's
// lease, by the lease of another of its Services, or by a status. nil if there is none. So a lease that was
// deleted or blanked by hand moves nothing.
func (p *placement) former(u *unit) *member {
	names := append(make([]string, 0, 8), p.Claims[u.lease].Holder)
	for _, k := range u.records {
		if c := p.Claims[k]; c.Valid {
			names = append(names, c.Holder)
		}
	}
	for _, s := range u.services {
		names = append(names, s.statusBy)
	}
	for _, name := range names {
		if n := p.members[name]; n != nil && n.Alive && !n.Stalled && ineligible(&u.requirements, n) == "" {
			return n
		}
	}
	return nil
}

// best is the eligible node that is to have u, or nil if there is none: one that is not stalled (slow to claim
// what was its to claim) before one that is; then the one with the fewest units; then the one with the highest
// rendezvous hash.
func (p *placement) best(u *unit) *member {
	var best *member
	var bestRank uint64
	for _, n := range p.alive {
		if best != nil && (n.Stalled && !best.Stalled || n.Stalled == best.Stalled && n.units > best.units) {
			continue // before the dearer question whether it is eligible
		}
		if ineligible(&u.requirements, n) != "" {
			continue
		}
		r := rendezvousHash(u.hash, n.hash)
		if best == nil || best.Stalled && !n.Stalled || n.units < best.units || r > bestRank {
			best, bestRank = n, r
		}
	}
	return best
}

// returnUnits makes a node that was drained (herald undrain) the target of the units that this node has from
// it, until the Node's ReturnUntil.
func (p *placement) returnUnits() {
	undrained := make(map[string]*member)
	for _, o := range p.Nodes {
		if n := p.members[o.Name]; n != nil && n != p.self && n.Alive && p.Now.Before(o.ReturnUntil) {
			undrained[o.Name] = n
			p.replanAfter(o.ReturnUntil.Sub(p.Now))
		}
	}
	if len(undrained) == 0 {
		return
	}
	for _, u := range p.units {
		if to := undrained[u.claim.PreviousHolder]; to != nil && p.mayMove(u) && ineligible(&u.requirements, to) == "" {
			u.target = to
			p.self.units--
			to.units++
		}
	}
}

// rebalance gives the youngest unit of this node that may move a target that has at least two units fewer, is
// stable (alive without a break for a while) and not stalled, if there is one. It does nothing without
// vip_rebalance, or while this node is handing over another unit: one at a time.
func (p *placement) rebalance() {
	if !p.Rebalance || len(p.HandingOver) > 0 {
		return
	}
	for _, u := range slices.Backward(p.units) { // the youngest has the fewest clients that know it
		if !p.mayMove(u) {
			continue
		}
		for _, n := range p.alive {
			if n.Stable && !n.Stalled && n.units+2 <= p.self.units && (u.target == nil || n.units < u.target.units) && ineligible(&u.requirements, n) == "" {
				u.target = n
			}
		}
		if u.target != nil {
			return
		}
	}
}

// mayMove reports whether u may be moved although this node could keep it: this node holds it beyond doubt (its
// tenure is valid, no renewal is late), it is not being handed over already, and it is not of a kind that never
// moves so.
func (p *placement) mayMove(u *unit) bool {
	return u.claim.Holder == p.Self && u.target == nil && u.services[0].movable && !p.handingOver(u) &&
		p.Tenure.Holds(p.Now) && p.Tenure.RenewalLateSince.IsZero()
}
