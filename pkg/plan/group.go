package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// groupIntoUnits makes units, oldest first, of the Services that share an address, a lease or a DHCP client.
// Services that have no owner are in none. services are sorted, oldest first.
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

// join merges the younger of u and the unit that has k, if there is one, into the older. It returns that unit,
// which has k now.
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

// completeUnit fills in the rest of a unit whose Services are known: its leases, its claim, what it requires of
// a node, and the links of its addresses.
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

// completeAddress fills in all of a but its Addr, as this node would bind it: on the macvlan if it is leased
// and this node holds the unit; for another holder, on the link that has the macvlan.
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

// isNew reports whether no node has announced a for s yet, so that another host may have it: no status of u's
// Services names it. A claim that has changed hands does not mean that its address was ever bound: it may have
// been in use. Only where no status is written it is judged by the claim, whose transitions say nothing about s
// if the lease was made for others too.
func (p *pass) isNew(u *unit, s *service, a netip.Addr) bool {
	if !s.statusTellsUse {
		return u.claim.Transitions == 0 || !s.ownLease
	}
	return !slices.ContainsFunc(u.services, func(o *service) bool { return o.inStatus(a) })
}

// ownerRequirements is what u requires of the node that announces it: an endpoint of each of its Services whose
// owner needs one, or, where no node has that, of the oldest of these.
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
