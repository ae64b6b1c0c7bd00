package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// groupIntoUnits returns the units, complete, of the Services that share an address, a lease
// or a DHCP client; a Service that shares nothing is a unit of its own. It sets the unit of
// each. Services without an owner are left out. services must be sorted, oldest first; so are
// the units.
func groupIntoUnits(p *pass, services []*service) []*unit {
	byClient := make(map[*dhcpClient]*unit)
	byAddr := make(map[netip.Addr]*unit, len(services))
	byLease := make(map[vip.Key]*unit, len(services))
	units := make([]*unit, 0, len(services))
	for _, s := range services {
		if !s.owned {
			continue
		}
		u := &unit{services: []*service{s}}
		units = append(units, u)
		u = join(byLease, s.lease, u)
		for _, a := range s.addrs {
			u = join(byAddr, a.Addr, u)
		}
		if s.client != nil {
			join(byClient, s.client, u)
		}
	}
	units = slices.DeleteFunc(units, func(u *unit) bool { return u.mergedInto != nil })
	for _, u := range units {
		p.completeUnit(u)
	}
	return units
}

// join records in units that u has k. If another unit has k, or what that was merged into, the
// two become one: the Services of the one whose first Service is younger are appended to the
// other, and its mergedInto is set. It returns the unit that has k now.
func join[K comparable](units map[K]*unit, k K, u *unit) *unit {
	o := units[k]
	for o != nil && o.mergedInto != nil {
		o = o.mergedInto
	}
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

// completeUnit sets what follows for u from its Services: their order and unit, its leases,
// hash, claim (without a Holder if not valid) and requirements, and Link, Bits and the rest of
// each address. Services that share an address get the same link, that of the oldest.
func (p *pass) completeUnit(u *unit) {
	slices.SortFunc(u.services, byAge)
	u.lease = u.services[0].lease
	u.hash = hashKey(u.lease)
	u.claim = p.Claims[u.lease]
	if !u.claim.Valid {
		u.claim.Holder = ""
	}
	seen := make(map[netip.Addr]vip.Address)
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
			seen[a.Addr] = a.Address
		}
	}
	u.requirements = ownerRequirements(u)
}

// completeAddress sets Lease (the VIP lease of u), LocalDelivery and New of a, and, if this node is known, Link and
// Bits as this node would bind it. Link is the one that s names or the node's default; the
// macvlan if a is leased and this node holds u. Bits are those of the options, else of the
// DHCP lease, else of the link's subnet with a, else all of the address.
func (p *pass) completeAddress(u *unit, s *service, a *address) {
	a.Lease, a.LocalDelivery = u.lease, s.localDelivery
	a.New = a.client == nil && p.isNew(u, s, a.Addr) // the DHCP client has asked whether it is free
	if p.self == nil {
		return
	}
	named := a.Addr
	if a.client != nil {
		named = netip.Addr{} // which subnet has it says nothing about links
	}
	var subnet int
	a.Link, subnet = linkFor(&p.self.Info, s.Interface, named)
	if a.client != nil && u.claim.Holder == p.Self {
		a.Link = a.client.link
	}
	bits := p.Bits4 // 0 leaves it to the DHCP lease or the subnet
	if a.Addr.Is6() {
		bits = p.Bits6
	}
	a.Bits = cmp.Or(bits, a.Bits, subnet, a.Addr.BitLen())
}

// isNew reports whether a was never announced for u as far as records tell, so that another
// host may have it: no status of u's Services names it. A claim that changed hands proves
// nothing: its address may never have been bound.
//
// Where no status is written (the control plane, disable_service_updates) a is new if the
// claim never changed hands, or the lease is not that of s alone.
func (p *pass) isNew(u *unit, s *service, a netip.Addr) bool {
	if !s.statusTellsUse {
		return u.claim.Transitions == 0 || !s.ownLease
	}
	return !slices.ContainsFunc(u.services, func(o *service) bool { return o.inStatus(a) })
}

// ownerRequirements returns what u requires of its owner: links for all its addresses, and, of
// Services whose owner needs an endpoint, one of each; if no node has one of each, one of the
// oldest of these. If one node owns all Services it requires only that the node's default link
// is up.
func ownerRequirements(u *unit) requirements {
	need := requirements{capabilities: &u.services[0].capabilities}
	if need.sharesOwner {
		need.linkOfVIPs = true
		return need
	}
	need.bound = u.services
	var first []string
	for _, s := range u.services {
		switch local := s.Endpoints.Local(); {
		case !s.ownerNeedsEndpoint:
		case !need.endpoint:
			need.endpoint, need.endpoints, first = true, local, local
		default:
			need.endpoints = slices.DeleteFunc(slices.Clone(need.endpoints), func(n string) bool { return !slices.Contains(local, n) })
		}
	}
	if len(need.endpoints) == 0 {
		need.endpoints = first
	}
	return need
}
