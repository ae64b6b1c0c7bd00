package netif

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// kernel is what Interfaces needs of the operating system: rtnetlink, but for tests.
type kernel interface {
	// read reads all links, addresses and what routes reads.
	read() (*snapshot, error)
	// bind adds addresses, or renews and takes over existing ones, with an error for each.
	bind([]bindRequest) []error
	// renew is bind for bound addresses. Subscriptions need not hear of it.
	renew([]bindRequest) []error
	// unbind removes an address, if it is there.
	unbind(addressKey) error
	// promoteSecondaries sets that sysctl of a link, and reports whether it was not in force.
	promoteSecondaries(index int, name string) (changed bool, err error)
	// resetConnections ends some TCP connections to an address, and returns how many.
	resetConnections(netip.Addr, connectionKinds) (int, error)
	// forgetStale has conntrack forget stale flows to addresses and of pods.
	forgetStale([]netip.Addr, map[netip.Addr]sender) error
	// routes reads default routes and those of IPv6 networks on a link.
	routes() ([]route, error)
	keepsMark() bool
	subscribe() (subscription, error)
}

type subscription interface {
	// receive blocks until there are changes, or returns errOverrun if some were lost.
	receive() ([]change, error)
	// close ends the subscription, and its receive.
	close()
}

// errOverrun: changes were not read fast enough (netlink(7), ENOBUFS).
var errOverrun = errors.New("changes of links and addresses were lost")

// An addressKey identifies an address of this node. IPv4 tells prefix lengths apart, IPv6 does not.
type addressKey struct {
	link   int // interface index
	prefix netip.Prefix
}

type bindRequest struct {
	addressKey
	linkName string
	seconds  uint32 // valid lifetime; the preferred one is always 0
}

type link struct {
	index int
	name  string
	alts  string // its alternative names (ip link property), with spaces between
	kind  string // what ip link calls it: bridge, veth, vlan...; "" for hardware
	up    bool   // up, and with a carrier if the kernel knows of one
	// no IPv6 there: disable_ipv6, an MTU below 1280, or none at all
	noIPv6   bool
	loopback bool
	master   int    // the link it belongs to, or 0
	mac      string // its Ethernet address as net.HardwareAddr writes it, or ""

	// Of a macvlan:
	parent  int    // the link it sits on
	alias   string // ip link set alias; Herald's mark, see macvlan.go
	adminUp bool   // it was set up (IFF_UP); its parent may lack a carrier all the same
}

// byHerald reports whether a Herald made the link.
func (l link) byHerald() bool { return l.kind == "macvlan" && strings.HasPrefix(l.alias, aliasMark) }

// macvlanOfKubeVIP is named after a Service's UID.
var macvlanOfKubeVIP = regexp.MustCompile("^vip-[0-9a-f]{8}$")

// byKubeVIP reports whether a kube-vip made the link for a VIP by DHCP.
func (l link) byKubeVIP() bool { return l.kind == "macvlan" && macvlanOfKubeVIP.MatchString(l.name) }

type kernelAddress struct {
	addressKey
	marked bool // it bears Herald's mark
	// another program had duplicates looked for: it does not answer yet, or never, for another has it
	tentative bool
	temporary bool // IPv6: made up for privacy, and replaced every day (RFC 8981)
	secondary bool // IPv4, without our mark: another address of the link with that network came first
	permanent bool // without our mark, and without an end, as kube-vip's, and no DHCP server's
	global    bool // its scope
}

// A route is a default route, or that of an IPv6 network on its link.
type route struct {
	family  vip.Family
	link    int
	metric  uint32
	via     netip.Addr   // zero: none, or more than one
	network netip.Prefix // zero: it is a default route
}

// A change is one of link, address and routes.
type change struct {
	link    *link
	address *kernelAddress
	routes  bool // a route that matters came or went: read them again
	gone    bool // link or address was removed
}

// A snapshot is the state of the kernel's links, addresses and routes.
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

// leftMacvlans returns what an earlier process made: a VIP stays bound there while its owner starts again.
func (s *snapshot) leftMacvlans() map[string]vip.Macvlan {
	all := make(map[string]vip.Macvlan)
	for _, l := range s.macvlans() {
		all[l.name] = vip.Macvlan{Name: l.name, Parent: s.links[l.parent].name, MAC: l.mac}
	}
	return all
}

// realName is the name of the link that has name, maybe as an alternative one; else name.
func (s *snapshot) realName(name string) string {
	if _, ok := s.index[name]; !ok && name != "" {
		for _, l := range s.links {
			if slices.Contains(strings.Fields(l.alts), name) {
				return l.name
			}
		}
	}
	return name
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

// prefixByRoute returns a's prefix, or of a single address by DHCPv6 that with the network of its link's longest route.
func (s *snapshot) prefixByRoute(a kernelAddress) netip.Prefix {
	if !a.prefix.IsSingleIP() || a.permanent || a.marked || s.links[a.link].byHerald() {
		return a.prefix
	}
	var network netip.Prefix
	for _, r := range s.routes {
		if r.link == a.link && r.network.Contains(a.prefix.Addr()) && r.network.Bits() > network.Bits() {
			network = r.network
		}
	}
	if !network.IsValid() {
		return a.prefix
	}
	for _, o := range s.addresses {
		if o.link == a.link && !o.marked && o.prefix.Masked() == network { // beside it a may be another program's VIP
			return a.prefix
		}
	}
	return netip.PrefixFrom(a.prefix.Addr(), network.Bits())
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
	if l.loopback || s.isPort(l) || l.byKubeVIP() {
		return false
	}
	switch l.kind {
	case "", "vlan", "bond", "team", "bridge", "macvlan":
		return addressed || l.up
	}
	return addressed
}

// isPort reports whether l's addresses are on its master: of a bridge or bond, not of a VRF.
func (s *snapshot) isPort(l link) bool {
	master, ok := s.links[l.master]
	return ok && master.kind != "vrf"
}
