package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// groupIntoUnits returns units of services, oldest first, by shared address, lease or client.
func (p *draft) groupIntoUnits(services []*service) []*unit {
	byClient := make(map[*dhcpClient]*unit)
	byAddr := make(map[netip.Addr]*unit, len(services))
	units := make([]*unit, 0, len(services))
	owned := make([]*service, 0, len(services))
	backing := make([]unit, len(services))
	for i, s := range services {
		if !s.owned {
			continue
		}
		owned = append(owned, s)
		u := &backing[i]
		u.services = slices.Clip(owned[len(owned)-1:]) // appending to it must not write to owned
		s.unit = u
		units = append(units, u)
		if s.client != nil {
			u = join(byClient, s.client, u)
		}
		for _, a := range s.addrs {
			s.hasAny = s.hasAny || p.has(s, a.Addr)
			if !s.apart {
				u = join(byAddr, a.Addr, u)
			}
		}
	}
	p.joinByLease(owned)
	units = slices.DeleteFunc(units, func(u *unit) bool { return u.mergedInto != nil })
	for _, u := range units {
		p.completeUnit(u)
	}
	return units
}

// unitOfOne returns a unit of s, not s.unit; nil without owner.
func (p *draft) unitOfOne(s *service) *unit {
	units := p.groupIntoUnits([]*service{s})
	s.unit = nil
	return append(units, nil)[0]
}

// joinByLease sets claims, and merges units of one lease within one namespace.
func (p *draft) joinByLease(services []*service) {
	units := make(map[vip.Key]*unit, len(services))
	several := make(map[*unit]bool) // those of several namespaces
	for _, s := range services {
		u := s.unit.current()
		if u == s.unit {
			several[u] = s.leaseFollows && severalNamespaces(u.services)
		}
		if several[u] {
			units[s.lease] = u
		}
	}
	for _, s := range services {
		// else who names another's lease could move all to where that is held
		if u := s.unit.current(); !several[u] {
			if several[units[s.lease].current()] {
				s.lease = vip.OwnLeaseKey(s.Key)
				s.verdict.Lease = s.lease
				p.addEventIfResponsible(s, vip.InvalidField,
					"kube-vip.io/leaseName has no effect: the Service whose lease it names shares an address with a "+
						"Service of another namespace")
			}
			join(units, s.lease, u)
		}
		s.claim = p.Claims[s.lease]
	}
}

func (u *unit) current() *unit {
	for u != nil && u.mergedInto != nil {
		u = u.mergedInto
	}
	return u
}

func severalNamespaces(services []*service) bool {
	return slices.ContainsFunc(services, func(s *service) bool { return s.Key.Namespace != services[0].Key.Namespace })
}

// join merges u into units[k], the older first, and returns that.
func join[K comparable](units map[K]*unit, k K, u *unit) *unit {
	o := units[k].current()
	if o != nil && o != u {
		if byAge(o.services[0], u.services[0]) < 0 {
			o, u = u, o
		}
		u.services = append(u.services, o.services...)
		o.mergedInto = u
	}
	units[k] = u
	return u
}

// completeUnit derives u from its Services; decisive are those with addresses.
func (p *draft) completeUnit(u *unit) {
	slices.SortFunc(u.services, func(a, b *service) int { return cmp.Or(cmp.Compare(a.rank(), b.rank()), byAge(a, b)) })
	u.lease = u.services[0].lease
	u.hash = hashKey(u.lease)
	u.claim = u.services[0].claim
	if !u.claim.Valid {
		u.claim.Holder = ""
	}
	nobodyHas := !slices.ContainsFunc(u.services, func(s *service) bool { return s.hasAny })
	seen := make(map[vip.Key]bool)
	for _, s := range u.services {
		// who joins changes neither its lease nor where it may be
		s.unit, s.decisive = u, s.hasAny || nobodyHas
		if !seen[s.lease] {
			seen[s.lease], u.leases = true, append(u.leases, s.lease)
		}
	}
	u.requirements = p.ownerRequirements(u)
	p.completeAddresses(u)
}

// rank returns the place of s in its unit: by lease held, then address.
func (s *service) rank() int {
	switch {
	case isHeld(s.claim) && s.hasAny:
		return 0
	case isHeld(s.claim):
		return 1
	case s.hasAny:
		return 2
	}
	return 3
}

// completeAddresses sets the links, and completes the addresses, of u.
func (p *draft) completeAddresses(u *unit) {
	alone := len(u.services) == 1 // as most are: nothing is shared
	var first map[netip.Addr]*service
	if !alone {
		first = p.namesLink(u)
	}
	done := make(map[netip.Addr]vip.Address, len(first))
	for _, s := range u.services {
		need := s.decisive && s.bindsAddresses && !s.sharesOwner
		if need && len(s.dhcpFamilies) > 0 {
			u.requirements.links = append(u.requirements.links, linkOf{requested: s.Interface})
		}
		for i := range s.addrs {
			a := &s.addrs[i]
			if !alone && first[a.Addr] != s {
				continue
			}
			p.completeAddress(u, s, a)
			if !alone {
				done[a.Addr] = a.Address
			}
			if need && a.client == nil && (alone || !s.hasAny || p.has(s, a.Addr)) {
				u.requirements.links = append(u.requirements.links, linkOf{s.Interface, a.Addr})
			}
		}
	}
	if alone {
		return
	}
	for _, s := range u.services {
		for i := range s.addrs {
			s.addrs[i].Address = done[s.addrs[i].Addr]
		}
	}
}

// namesLink returns by address the first Service that names an up link.
func (p *draft) namesLink(u *unit) map[netip.Addr]*service {
	first := make(map[netip.Addr]*service)
	for _, s := range u.services {
		for _, a := range s.addrs {
			if o := first[a.Addr]; o == nil || p.has(s, a.Addr) && (!p.has(o, a.Addr) || s.Interface != o.Interface &&
				!p.anyLinkUp(o.Interface) && p.anyLinkUp(s.Interface)) {
				first[a.Addr] = s
			}
		}
	}
	return first
}

// anyLinkUp reports whether an alive node has the link up, or "auto".
func (p *draft) anyLinkUp(requested string) bool {
	return requested == "" || requested == "auto" || requested == vip.DefaultLink || slices.ContainsFunc(p.alive,
		func(n *member) bool { return linkFault(&n.Info, requested) == "" })
}

// completeAddress derives a as this node would bind it.
func (p *draft) completeAddress(u *unit, s *service, a *address) {
	a.Lease, a.LocalDelivery = u.lease, s.localDelivery
	a.ResetTranslated = s.localDelivery && p.self != nil && !p.self.Info.APIServerReady
	a.New = a.client == nil && p.isNew(u, s, a.Addr) // the DHCP client has asked whether it is free
	if p.self == nil {
		return
	}
	link, subnet := linkFor(&p.self.Info, s.Interface, a.Addr)
	a.Link, a.offLink = link, subnet == 0
	if a.client != nil {
		// not that of its subnet, which says nothing about links, nor the mask of the lease: anybody may have sent that
		a.Link, a.offLink = p.self.Info.LinkFor(s.Interface), false
		_, subnet = linkFor(&p.self.Info, a.Link, a.Addr)
		if u.claim.Holder == p.Self || p.HandingOver[u.lease].InDoubt {
			a.Link = a.client.link
		}
	}
	bits := p.Bits4 // 0 leaves it to the subnet
	if a.Addr.Is6() {
		bits = p.Bits6
	}
	a.Bits = cmp.Or(bits, subnet, a.Addr.BitLen())
}

// isNew reports whether a was never announced for u, so others may have it.
func (p *draft) isNew(u *unit, s *service, a netip.Addr) bool {
	// a claim proves nothing: the address may never have been bound
	if !s.statusTellsUse {
		return u.claim.Transitions == 0 || !s.ownLease
	}
	if u.named == nil {
		u.named = make(map[netip.Addr]bool, len(u.services))
		for _, o := range u.services {
			for _, i := range o.Ingress {
				u.named[i.Addr] = u.named[i.Addr] || o.statusHas(i.Addr)
			}
		}
	}
	return !u.named[a]
}

// ownerRequirements returns what u requires of its owner, but no links.
func (p *draft) ownerRequirements(u *unit) requirements {
	need := requirements{capabilities: &u.services[0].capabilities}
	if need.sharesOwner {
		need.linkOfVIPs = true
		return need
	}
	var first []string
	for _, s := range u.services {
		if s.decisive {
			p.addPoolsOf(&need, s)
		}
		switch local := s.Endpoints.Local(); {
		case !s.ownerNeedsEndpoint, !s.decisive:
		case !need.endpoint:
			need.endpoint, need.endpoints, first = true, local, local
		default:
			need.endpoints = slices.DeleteFunc(slices.Clone(need.endpoints),
				func(n string) bool { return !containsSorted(local, n) })
		}
	}
	if len(need.endpoints) == 0 {
		need.endpoints = first
	}
	return need
}
