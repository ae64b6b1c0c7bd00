package plan

import (
	"cmp"
	"fmt"
	"slices"
)

// A placement is the second stage: which nodes units go to.
type placement struct{ *admission }

// place sets the targets of units that are free or leave (docs/why.md, "Placement").
func place(a *admission) {
	p := &placement{a}
	for _, u := range p.units {
		if n := p.members[u.claim.Holder]; n != nil {
			n.units++
		}
	}
	for _, u := range p.units {
		switch {
		case u.claim.Holder == "":
			if u.target = p.formerHolder(u); u.target == nil {
				u.target = p.bestOf(u, p.alive)
			}
			u.cause = p.whyFree(u)
		case p.self == nil || u.claim.Holder != p.Self:
		case p.self.Rejoining && p.self.isolatedOnly(&u.requirements):
			// All may have been isolated: then nothing moves to the first that is not.
		case whyIneligible(&u.requirements, p.self) != "":
			u.target, u.cause = p.bestSuccessor(u, false), p.Self+": "+whyIneligible(&u.requirements, p.self)
		default:
			u.target, u.cause = p.betterNode(u)
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

// whyFree returns why free u left its node, or "".
func (p *placement) whyFree(u *unit) string {
	claim := p.Claims[u.lease]
	before := cmp.Or(claim.Holder, claim.PreviousHolder)
	n := p.members[before]
	switch {
	case before == "" || claim.Foreign || u.target != nil && u.target.Name == before:
		return ""
	case n == nil:
		return before + ": its Herald has stopped"
	case !n.Alive:
		return before + ": " + n.WhyNotAlive()
	case whyIneligible(&u.requirements, n) != "":
		return before + ": " + whyIneligible(&u.requirements, n)
	}
	return before + " no longer had it"
}

// betterNode returns where u moves for a fault, and that.
func (p *placement) betterNode(u *unit) (to *member, cause string) {
	fault := p.faultHere(u)
	if fault == "" || !p.Tenure.Holds(p.Now) || !p.Tenure.RenewalLateSince.IsZero() {
		return nil, ""
	}
	// after a restart of all routers this node may be the next to have a session
	lasting := p.self.rankFor(&u.requirements) == rankNoSession
	limit := rankFaulty
	if p.self.shuttingDown { // then any that clients reach
		limit = rankNoSession
	}
	if n := p.bestSuccessor(u, lasting); n != nil && n != p.self && n.rankFor(&u.requirements) < limit {
		return n, p.Self + ": " + fault
	}
	return nil, ""
}

func (p *placement) faultHere(u *unit) string {
	switch {
	case p.self.shuttingDown:
		return shuttingDownFault
	case p.DataPlaneFault != "" && u.requirements.nodeExclusion:
		return p.DataPlaneFault
	case p.self.unheardLink(&u.requirements) != "":
		return "the other nodes get no answer from it on the VIP's link"
	case p.self.isOffLink(&u.requirements):
		return "its link is in no network of the VIP"
	case u.requirements.ownerAdvertises && p.self.lostSessions():
		return "its BGP sessions are down"
	}
	return ""
}

// formerHolder returns who had free u, and may again: deleting a lease moves nothing.
func (p *placement) formerHolder(u *unit) *member {
	names := append(make([]string, 0, 8), p.Claims[u.lease].Holder)
	for _, s := range u.services {
		if c := p.Claims[s.lease]; s.decisive && s.lease != u.lease && c.Valid {
			names = append(names, c.Holder)
		}
	}
	for _, s := range u.services {
		if s.decisive {
			names = append(names, s.statusBy)
		}
	}
	for _, name := range names {
		if n := p.members[name]; n != nil && n.Alive && n.rankFor(&u.requirements) <= rankNotReady &&
			whyIneligible(&u.requirements, n) == "" {
			return n
		}
	}
	return nil
}

// bestSuccessor returns the best node seen alive, or nil; with lasting, of those that have a lasting BGP session.
func (p *placement) bestSuccessor(u *unit, lasting bool) *member {
	return p.bestOf(u, slices.DeleteFunc(slices.Clone(p.alive), func(n *member) bool {
		return n.Unproven || lasting && !n.lastingSession() // one that was dead before looks alive for a lease duration
	}))
}

// bestOf returns which of nodes is to have u, or nil (docs/why.md, "Placement").
func (p *placement) bestOf(u *unit, nodes []*member) *member {
	var best *member
	var bestRank rank
	var bestWeight int
	var bestHash uint64
	for _, n := range nodes {
		rank, weight, h := n.rankFor(&u.requirements), n.weightFor(&u.requirements), rendezvousHash(u.hash, n.hash)
		if best != nil && cmp.Or(cmp.Compare(rank, bestRank), cmp.Compare(bestWeight, weight), cmp.Compare(n.units,
			best.units), cmp.Compare(bestHash, h)) > 0 {
			continue // before the dearer question whether it is eligible
		}
		if whyIneligible(&u.requirements, n) == "" {
			best, bestRank, bestWeight, bestHash = n, rank, weight, h
		}
	}
	return best
}

// returnUnits returns units to undrained nodes that had them directly before.
func (p *placement) returnUnits() {
	undrained := make(map[string]*member)
	for _, o := range p.Nodes {
		if n := p.members[o.Name]; n != nil && n != p.self && n.Alive && p.Now.Before(o.ReturnUntil) {
			undrained[o.Name] = n
			p.replanAfter(o.ReturnUntil.Sub(p.Now))
		}
	}
	for _, u := range p.units {
		if to := undrained[u.claim.PreviousHolder]; to != nil && p.mayMove(u) &&
			to.rankFor(&u.requirements) <= rankNotReady && whyIneligible(&u.requirements, to) == "" {
			u.target, u.cause = to, to.Name+" was undrained"
			p.self.units--
			to.units++
		}
	}
}

// rebalance moves the youngest unit for which a node is preferred or has two fewer.
func (p *placement) rebalance() {
	if !p.Rebalance || len(p.HandingOver) > 0 {
		return
	}
	for _, u := range slices.Backward(p.units) { // the youngest has the fewest clients that know it
		if !p.mayMove(u) {
			continue
		}
		here, most := p.self.weightFor(&u.requirements), 0
		for _, n := range p.alive {
			weight := n.weightFor(&u.requirements)
			better := weight > here || weight == here && n.units+2 <= p.self.units
			if better && n.Stable && n.rankFor(&u.requirements) == rankWell && (u.target == nil || weight > most ||
				weight == most && n.units < u.target.units) && whyIneligible(&u.requirements, n) == "" {
				u.target, most, u.cause = n, weight, p.whyBalanced(n, weight > here)
			}
		}
		if u.target != nil {
			return
		}
	}
}

func (p *placement) whyBalanced(n *member, weighsMore bool) string {
	if weighsMore {
		return "vip_rebalance: " + n.Name + " is preferred by its pool to " + p.Self
	}
	return fmt.Sprintf("vip_rebalance: %s had %d of them, %s %d", p.Self, p.self.units, n.Name, n.units)
}

// mayMove reports whether u, held here, may move although it could stay.
func (p *placement) mayMove(u *unit) bool {
	return u.claim.Holder == p.Self && u.target == nil && u.services[0].movable && p.Tenure.Holds(p.Now) &&
		p.Tenure.RenewalLateSince.IsZero()
}
