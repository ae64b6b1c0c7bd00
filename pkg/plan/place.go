package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// place gives every unit that is free, or that this node must give away, the
// node that is to have it.
//
// A free unit goes to the eligible node that holds the fewest, ties by
// rendezvous hash. The oldest comes first and counts for the next, so that a
// burst of new Services spreads evenly although every node plans alone: a node's
// own count is exact and the counts it sees of others are at worst too low,
// hence nobody takes more than its share of what there is.
//
// A node that had the unit before is preferred: a lease that was deleted or
// blanked by hand moves nothing.
func (m *maker) place() {
	for _, u := range m.units {
		if mb := m.members[u.claim.Holder]; mb != nil {
			mb.units++
		}
	}
	self := m.members[m.Self]
	for _, u := range m.units {
		switch {
		case u.claim.Holder == "":
			u.target = m.former(u)
			if u.target == nil {
				u.target = m.best(u)
			}
		case u.claim.Holder == m.Self && self != nil && m.barred(u, self) != "":
			u.target = m.best(u)
		}
		if u.target != nil {
			u.target.units++
		}
	}
	if self != nil && m.Election {
		m.restore(self)
		m.rebalance(self)
	}
}

// former is the node that a free unit was on, if it may have it again: the one
// named by its lease, by the lease of another of its Services, or by a status.
func (m *maker) former(u *unit) *member {
	may := func(name string) *member {
		if mb := m.members[name]; mb != nil && mb.Alive && !mb.Stalled && m.barred(u, mb) == "" {
			return mb
		}
		return nil
	}
	if mb := may(m.Claims[u.lease].Holder); mb != nil {
		return mb
	}
	for _, k := range u.records {
		if c := m.Claims[k]; c.Valid {
			if mb := may(c.Holder); mb != nil {
				return mb
			}
		}
	}
	for _, s := range u.services {
		if mb := may(s.host); mb != nil {
			return mb
		}
	}
	return nil
}

// best is the first in rank of the nodes that may have u. Nodes that were slow
// to claim what was theirs come after all others.
func (m *maker) best(u *unit) *member {
	var best *member
	var order uint64
	for _, mb := range m.alive {
		if best != nil && (mb.Stalled && !best.Stalled || mb.Stalled == best.Stalled && mb.units > best.units) {
			continue // before the dearer question whether it may
		}
		if m.barred(u, mb) != "" {
			continue
		}
		r := rank(u.hash, mb.hash)
		if best == nil || best.Stalled && !mb.Stalled || mb.units < best.units || r > order {
			best, order = mb, r
		}
	}
	return best
}

// barred says why mb may not carry u, or "".
func (m *maker) barred(u *unit, mb *member) string {
	switch {
	case u.control && mb.refuses != "":
		return mb.refuses
	case u.control:
		// What Kubernetes says of the node (taints, labels, conditions) is about Services.
	case mb.excluded != "":
		return mb.excluded
	case !m.Election:
		// One owner for all: a single Service's link or endpoints must not decide for the others.
		return linkFault(mb.Info.LinkFor(""), &mb.Info)
	}
	for _, s := range u.services {
		if len(s.hires) > 0 {
			if fault := linkFault(parent(s, &mb.Info), &mb.Info); fault != "" {
				return fault
			}
		}
		for _, a := range s.addrs {
			if s.leased(a.Addr) || !s.arp { // a route leads to the node, not to one of its links
				continue
			}
			link := s.Interface
			if link == "" {
				link = mb.Info.Interface
			}
			if link == "auto" {
				link, _ = m.locate(a.Addr, link, &mb.Info)
			}
			if fault := linkFault(link, &mb.Info); fault != "" {
				return fault
			}
		}
	}
	switch nodes, local := m.local(u); {
	case !local || slices.Contains(nodes, mb.Name):
	case u.control:
		return "its own API server is not ready"
	default:
		return "no ready endpoint there (externalTrafficPolicy Local)"
	}
	return ""
}

// linkFault says what is wrong with a link of a node, or "".
func linkFault(link string, info *vip.NodeInfo) string {
	switch l := linkOf(info, link); {
	case l != nil && l.Up:
		return ""
	case l != nil:
		return "its link " + link + " is down"
	case link == "":
		return "it has no default route, so vip_interface must name the link"
	}
	return "it has no link " + link
}

// local is the nodes that serve all Services of u with externalTrafficPolicy
// Local, and whether there are such Services. Where no node serves all, those
// that serve the oldest.
func (m *maker) local(u *unit) (nodes []string, local bool) {
	var first []string
	for _, s := range u.services {
		if !s.Local {
			continue
		}
		on := s.Endpoints.Local()
		if !local {
			nodes, first, local = on, on, true
			continue
		}
		var both []string
		for _, n := range nodes {
			if slices.Contains(on, n) {
				both = append(both, n)
			}
		}
		nodes = both
	}
	if len(nodes) == 0 {
		nodes = first
	}
	return nodes, local
}

// why lists what keeps every node from u, a few of them by name.
func (m *maker) why(u *unit) string {
	return m.reasons(func(mb *member) string { return m.barred(u, mb) })
}

// reasons lists what keeps every node that lives from something.
func (m *maker) reasons(against func(*member) string) string {
	const most = 5
	var all []string
	for _, mb := range m.alive {
		if fault := against(mb); fault != "" {
			all = append(all, mb.Name+": "+fault)
		}
	}
	if len(all) == 0 {
		return "no node runs Herald at present"
	}
	more := ""
	if len(all) > most {
		all, more = all[:most], fmt.Sprintf("; and %d more", len(all)-most)
	}
	return "no node may carry it at present: " + strings.Join(all, "; ") + more
}

// hash is a hash of a name that is the same on every node and in every version
// (FNV-1a).
func hash(s string) uint64 { return mix(14695981039346656037, s) }

// hashKey is the hash of k.String().
func hashKey(k vip.Key) uint64 {
	if k.Namespace == "" {
		return hash(k.Name)
	}
	return mix(mix(hash(k.Namespace), "/"), k.Name)
}

func mix(h uint64, s string) uint64 {
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// rank is the rendezvous weight of a node for a unit: the highest wins
// (the finalizer of splitmix64, so that each pair is as good as random).
func rank(unit, node uint64) uint64 {
	x := unit ^ (node + 0x9e3779b97f4a7c15)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
