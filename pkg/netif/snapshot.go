package netif

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// A snapshot is the state of the kernel's links, addresses and default routes.
type snapshot struct {
	links     map[int]link   // by index
	index     map[string]int // of links, by name
	addresses map[addressKey]kernelAddress
	routes    []route
}

func newSnapshot() *snapshot {
	return &snapshot{links: map[int]link{}, index: map[string]int{}, addresses: map[addressKey]kernelAddress{}}
}

// setLink adds or replaces a link, maybe of another name.
func (s *snapshot) setLink(l link) {
	s.removeLink(l.index)
	s.links[l.index], s.index[l.name] = l, l.index
}

// removeLink removes a link; the kernel tells of its addresses before.
func (s *snapshot) removeLink(index int) {
	if name := s.links[index].name; s.index[name] == index { // or another has that name by now
		delete(s.index, name)
	}
	delete(s.links, index)
}

// apply makes the change c of a link or address, and reports whether it was one.
func (s *snapshot) apply(c change) bool {
	switch {
	case c.link != nil:
		old, had := s.links[c.link.index]
		if c.gone {
			s.removeLink(c.link.index)
			return had
		}
		s.setLink(*c.link)
		return !had || old != *c.link
	case c.address != nil:
		old, had := s.addresses[c.address.addressKey]
		if c.gone {
			delete(s.addresses, c.address.addressKey)
			return had
		}
		s.addresses[c.address.addressKey] = *c.address
		return !had || old != *c.address
	}
	return false
}

func (s *snapshot) linkNamed(name string) (link, bool) {
	l, ok := s.links[s.index[name]]
	return l, ok
}

func (s *snapshot) names() string {
	return strings.Join(slices.Sorted(maps.Keys(s.index)), ", ")
}

func (s *snapshot) macvlans() (all []link) {
	for _, name := range slices.Sorted(maps.Keys(s.index)) {
		if l := s.links[s.index[name]]; l.byHerald() {
			all = append(all, l)
		}
	}
	return all
}

// sortedAddresses returns all addresses by link, address and length.
func (s *snapshot) sortedAddresses() []kernelAddress {
	return slices.SortedFunc(maps.Values(s.addresses), func(a, b kernelAddress) int {
		return cmp.Or(strings.Compare(s.links[a.link].name, s.links[b.link].name), a.prefix.Addr().Compare(b.prefix.Addr()),
			cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
}

// otherLengths is the address on its link with other prefix lengths.
func (s *snapshot) otherLengths(key addressKey) (others []kernelAddress) {
	addr := key.prefix.Addr()
	for bits := range addr.BitLen() + 1 { // a look-up each: there may be thousands of addresses
		if a, ok := s.addresses[addressKey{key.link, netip.PrefixFrom(addr, bits)}]; ok && bits != key.prefix.Bits() {
			others = append(others, a)
		}
	}
	return others
}

// compare orders routes: IPv4 first, then by metric.
func (r route) compare(o route) int {
	return cmp.Or(cmp.Compare(r.family, o.family), cmp.Compare(r.metric, o.metric), cmp.Compare(r.link, o.link))
}

// withoutLoopback returns link, or the first of others if that is a loopback.
func (s *snapshot) withoutLoopback(link string, others ...string) string {
	if l, _ := s.linkNamed(link); !l.loopback {
		return ""
	}
	for _, name := range others {
		if l, ok := s.linkNamed(name); ok && !l.loopback {
			return name
		}
	}
	return ""
}

// mayCarryVIPs reports whether a VIP may be on l, so it is in NodeInfo.
func (s *snapshot) mayCarryVIPs(l link, addressed bool) bool {
	if l.loopback || s.isPort(l) {
		return false
	}
	switch l.kind {
	case "", "vlan", "bond", "team", "macvlan":
		return addressed || l.up
	}
	return addressed
}

// isPort reports whether l's addresses are on its master: of a bridge or bond, not of a VRF.
func (s *snapshot) isPort(l link) bool {
	master, ok := s.links[l.master]
	return ok && master.kind != "vrf"
}
