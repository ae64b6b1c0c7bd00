package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// group makes units of the Services that share an address, a lease, or what a DHCP
// server has leased.
func (m *maker) group() {
	byTenant := make(map[*tenant]*unit)
	byAddr := make(map[netip.Addr]*unit, len(m.serving))
	byLease := make(map[vip.Key]*unit, len(m.serving))
	m.units = make([]*unit, 0, len(m.serving))
	merged := make(map[*unit]*unit) // a unit that was swallowed -> the one that has it now
	find := func(u *unit) *unit {
		for u != nil && merged[u] != nil {
			u = merged[u]
		}
		return u
	}
	for _, s := range m.serving { // oldest first, so the first Service of a unit is its oldest
		if m.free(s) {
			s.verdict.Lease = vip.Key{}
			continue
		}
		u := find(byLease[s.lease])
		join := func(o *unit) {
			switch {
			case o == nil || o == u:
			case u == nil:
				u = o
			default:
				if older(o.services[0], u.services[0]) < 0 {
					u, o = o, u
				}
				u.services = append(u.services, o.services...)
				merged[o] = u
			}
		}
		for _, a := range s.addrs {
			join(find(byAddr[a.Addr]))
		}
		if s.tenant != nil {
			join(find(byTenant[s.tenant]))
		}
		if u == nil {
			u = &unit{}
			m.units = append(m.units, u)
		}
		u.services = append(u.services, s)
		byLease[s.lease] = u
		if s.tenant != nil {
			byTenant[s.tenant] = u
		}
		for _, a := range s.addrs {
			byAddr[a.Addr] = u
		}
	}
	m.units = slices.DeleteFunc(m.units, func(u *unit) bool { return merged[u] != nil })
	for _, u := range m.units {
		m.seal(u)
	}
}

// seal gives a unit whose Services are known its lease, claim and links.
func (m *maker) seal(u *unit) {
	slices.SortFunc(u.services, older)
	u.lease, u.control = u.services[0].lease, u.services[0].control
	u.hash = hashKey(u.lease)
	u.claim = m.Claims[u.lease]
	if !u.claim.Valid {
		u.claim.Holder = "" // it may be taken, whoever's name is still on it
	}
	var links map[netip.Addr]vip.Address // a single Service names no address twice
	if len(u.services) > 1 {
		links = make(map[netip.Addr]vip.Address)
	}
	self := m.members[m.Self]
	for _, s := range u.services {
		s.unit = u
		s.verdict.Owner = u.claim.Holder
		if s.lease != u.lease && !slices.Contains(u.records, s.lease) {
			u.records = append(u.records, s.lease)
		}
		for i := range s.addrs {
			a := &s.addrs[i]
			if first, ok := links[a.Addr]; ok { // one address, one link: the oldest Service says which
				*a = first
				continue
			}
			a.Lease, a.LocalDelivery = u.lease, u.control
			a.New = m.isNew(u, s, a.Addr)
			switch leased := s.leased(a.Addr); {
			case self == nil:
			case leased && u.claim.Holder == m.Self:
				a.Link, a.Bits, a.New = s.tenant.link, m.bits(a.Addr, a.Bits), false // the client has asked
			case leased: // as others see it
				a.Link, a.Bits, a.New = parent(s, &self.Info), a.Addr.BitLen(), false
			default:
				a.Link, a.Bits = m.locate(a.Addr, s.Interface, &self.Info)
			}
			if links != nil {
				links[a.Addr] = *a
			}
		}
	}
}

// isNew reports whether no node has carried a for s yet, as far as is known, so
// that another host may have it: no status names it. A claim that has changed hands
// does not mean that its address was ever bound: it may have been in use. Only
// where no status is written the claim is all there is to judge by; but the changes
// of a lease that stands for several Services say nothing about one.
func (m *maker) isNew(u *unit, s *service, a netip.Addr) bool {
	if s.control || m.NoStatus {
		return u.claim.Transitions == 0 || !s.control && (!m.Election || s.Lease != "")
	}
	for _, o := range u.services {
		if slices.ContainsFunc(o.Ingress, func(i vip.Ingress) bool { return i.Addr == a }) {
			return false
		}
	}
	return true
}

// bits is the prefix length of a: that of its subnet only if the options leave it to
// that.
func (m *maker) bits(a netip.Addr, subnet int) int {
	if a.Is6() {
		return cmp.Or(m.Bits6, subnet)
	}
	return cmp.Or(m.Bits4, subnet)
}

// locate is the link that carries a on a node, and the prefix length it gets there.
// The link is "" if the node names none.
func (m *maker) locate(a netip.Addr, want string, info *vip.NodeInfo) (link string, bits int) {
	if want == "" {
		want = info.Interface
	}
	link = want
	mask := 0
	for _, l := range info.Links {
		if want != "auto" && l.Name != want {
			continue
		}
		for _, p := range l.Prefixes {
			if p.Contains(a) && p.Bits() > mask {
				link, mask = l.Name, p.Bits()
			}
		}
	}
	if link == "auto" {
		link = info.DefaultInterface
	}
	return link, cmp.Or(m.bits(a, mask), a.BitLen())
}
