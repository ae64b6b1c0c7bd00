package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// group makes units, oldest first, of the Services that share an address, a lease or a DHCP client. Services
// that have no owner are in none. services are sorted, oldest first.
func group(p *pass, services []*service) []*unit {
	byClient := make(map[*dhcpClient]*unit)
	byAddr := make(map[netip.Addr]*unit, len(services))
	byLease := make(map[vip.Key]*unit, len(services))
	units := make([]*unit, 0, len(services))
	merged := make(map[*unit]*unit) // a unit that is part of another now -> that one
	find := func(u *unit) *unit {
		for u != nil && merged[u] != nil {
			u = merged[u]
		}
		return u
	}
	for _, s := range services { // oldest first, so the first Service of a unit is its oldest
		if !s.owned {
			continue
		}
		u := find(byLease[s.lease])
		join := func(o *unit) {
			switch {
			case o == nil || o == u:
			case u == nil:
				u = o
			default:
				if byAge(o.services[0], u.services[0]) < 0 {
					u, o = o, u
				}
				u.services = append(u.services, o.services...)
				merged[o] = u
			}
		}
		for _, a := range s.addrs {
			join(find(byAddr[a.Addr]))
		}
		if s.client != nil {
			join(find(byClient[s.client]))
		}
		if u == nil {
			u = &unit{}
			units = append(units, u)
		}
		u.services = append(u.services, s)
		byLease[s.lease] = u
		if s.client != nil {
			byClient[s.client] = u
		}
		for _, a := range s.addrs {
			byAddr[a.Addr] = u
		}
	}
	units = slices.DeleteFunc(units, func(u *unit) bool { return merged[u] != nil })
	for _, u := range units {
		p.complete(u)
	}
	return units
}

// complete fills in the rest of a unit whose Services are known: its leases, its claim, what it
// requires of a node, and the links of its addresses.
func (p *pass) complete(u *unit) {
	slices.SortFunc(u.services, byAge)
	u.lease = u.services[0].lease
	u.hash = hashKey(u.lease)
	u.claim = p.Claims[u.lease]
	if !u.claim.Valid {
		u.claim.Holder = ""
	}
	var seen map[netip.Addr]vip.Address // a single Service names no address twice
	if len(u.services) > 1 {
		seen = make(map[netip.Addr]vip.Address)
	}
	for _, s := range u.services {
		s.unit = u
		if s.lease != u.lease && !slices.Contains(u.records, s.lease) {
			u.records = append(u.records, s.lease)
		}
		for i := range s.addrs {
			a := &s.addrs[i]
			if first, ok := seen[a.Addr]; ok { // one address, one link: the oldest Service says which
				a.Address = first
				continue
			}
			p.completeAddress(u, s, a)
			if seen != nil {
				seen[a.Addr] = a.Address
			}
		}
	}
	u.needs = needsOf(u)
}

// completeAddress fills in all of a but its Addr, as this node would bind it: on the macvlan if
// it is leased and this node holds the unit; for another holder, on the link that has the macvlan.
func (p *pass) completeAddress(u *unit, s *service, a *address) {
	a.Lease, a.LocalDelivery = u.lease, s.localDelivery
	a.New = !a.leased && p.isNew(u, s, a.Addr) // the DHCP client has asked whether it is free
	if p.self == nil {
		return
	}
	leasedBits := a.Bits
	var subnet int
	a.Link, subnet = linkFor(&p.self.Info, s.Interface, a.Addr)
	a.Bits = cmp.Or(p.prefixLen(a.Addr), subnet, a.Addr.BitLen())
	switch {
	case a.leased && u.claim.Holder == p.Self:
		a.Link, a.Bits = s.client.link, cmp.Or(p.prefixLen(a.Addr), leasedBits)
	case a.leased:
		a.Link, a.Bits = p.self.Info.LinkFor(s.Interface), a.Addr.BitLen()
	}
}

// prefixLen is the prefix length that the options give to a, or 0 if they leave it to its subnet.
func (p *pass) prefixLen(a netip.Addr) int {
	if a.Is6() {
		return p.Bits6
	}
	return p.Bits4
}

// isNew reports whether no node has announced a for s yet, so that another host may have it: no
// status of u's Services names it. A claim that has changed hands
// does not mean that its address was ever bound: it may have been in use. Only
// where no status is written it is judged by the claim, whose transitions say
// nothing about s if the lease was made for others too.
func (p *pass) isNew(u *unit, s *service, a netip.Addr) bool {
	if !s.hasStatus || !s.statusTellsUse {
		return u.claim.Transitions == 0 || !s.ownLease
	}
	return !slices.ContainsFunc(u.services, func(o *service) bool { return o.inStatus(a) })
}

// needsOf is what u requires of the node that announces it.
func needsOf(u *unit) requirements {
	need := requirements{notExcluded: u.services[0].nodeExclusion, noneThere: u.services[0].noEndpointThere}
	if u.services[0].sharesOwner {
		need.links = []linkChoice{{}}
		return need
	}
	need.endpoints, need.endpoint = endpointNodes(u)
	for _, s := range u.services {
		if !s.bindsAddresses { // a route leads to the node, not to one of its links
			continue
		}
		if len(s.dhcpFamilies) > 0 {
			need.links = append(need.links, linkChoice{want: s.Interface})
		}
		for _, a := range s.addrs {
			if !a.leased {
				need.links = append(need.links, linkChoice{s.Interface, a.Addr})
			}
		}
	}
	return need
}

// endpointNodes are the names of the nodes with endpoints of all Services of u whose owner needs one; where no node has,
// those with endpoints of the oldest of these. ok is false if there is no such Service.
func endpointNodes(u *unit) (nodes []string, ok bool) {
	var first []string
	for _, s := range u.services {
		switch local := s.Endpoints.Local(); {
		case !s.ownerNeedsEndpoint:
		case !ok:
			nodes, first, ok = local, local, true
		default:
			nodes = slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return !slices.Contains(local, n) })
		}
	}
	if len(nodes) == 0 {
		nodes = first
	}
	return nodes, ok
}
