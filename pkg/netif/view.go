package netif

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// ipvsLink is where kube-proxy in ipvs mode has every Service's address on every node: not own, not left behind.
const ipvsLink = "kube-ipvs0"

// A view is what others are told of a snapshot, replaced as a whole.
type view struct {
	bound     []vip.Address         // what bears our mark and the kernel answers for
	unmanaged []vip.Address         // what looks like a VIP and has no mark
	info      vip.NodeInfo          // of this node's links
	links     []vip.Link            // all, by index
	gateways  map[string]netip.Addr // by link: the next hop of its default route
	local     map[netip.Addr]bool   // every address of this node: whether it is a VIP

	macvlans       []vip.Macvlan // those that are ready and up, by name
	macvlanErrors  map[string]string
	macvlansWanted bool

	taken map[netip.Addr][]time.Time
}

// publish replaces a changed view, and reports whether more than links differ. n.mu is held.
func (n *Interfaces) publish() (differs bool) {
	if n.setting {
		n.unpublished = n.unpublished || n.changed
		return false
	}
	if !n.changed {
		return false
	}
	n.changed = false
	before, now := *n.view.Load(), n.newView()
	n.view.Store(now)
	if !reflect.DeepEqual(before.links, now.links) && n.opts.OnLinkChange != nil {
		n.opts.OnLinkChange()
	}
	before.links, before.local = now.links, now.local
	return !reflect.DeepEqual(before, *now)
}

// newView makes a view of snapshot, wishes and macvlans. n.mu is held.
func (n *Interfaces) newView() *view {
	s := n.snapshot
	v := &view{gateways: map[string]netip.Addr{}, macvlanErrors: n.macvlans.errors,
		macvlansWanted: len(n.macvlans.wanted) > 0, local: make(map[netip.Addr]bool, len(s.addresses)),
		taken: maps.Clone(n.taken)}
	p := n.addAddresses(v)
	first := v.setGateways(s)
	configured := s.realName(n.opts.Interface)
	v.info.DefaultInterface = cmp.Or(configured, n.linkByRoute(first))
	v.info.Interface = cmp.Or(s.realName(n.opts.ServicesInterface), v.info.DefaultInterface)
	// heartbeats go by whichever link works
	v.info.HeartbeatInterface = s.withoutLoopback(v.info.LinkFor(""), configured, first)
	for _, l := range s.links {
		link := vip.Link{Index: l.index, Name: l.name, Up: l.up, NoIPv6: l.noIPv6, MAC: l.mac, Prefixes: p.all[l.index]}
		v.links = append(v.links, link)
		if l.byHerald() { // for one VIP, and no link for others to choose
			if m, ok := n.macvlans.ready[l.name]; ok && l.adminUp && l.mac == m.MAC {
				v.macvlans = append(v.macvlans, m)
			}
			continue
		}
		chosen := l.name == v.info.Interface || l.name == v.info.DefaultInterface || l.name == v.info.HeartbeatInterface
		link.TentativeNetworks = p.tentative[l.index]
		link.Prefixes = vip.OwnPrefixes(p.own[l.index], link.TentativeNetworks...)
		left := slices.DeleteFunc(slices.Clone(p.own[l.index]), func(x netip.Prefix) bool { return !x.IsSingleIP() })
		if chosen || s.mayCarryVIPs(l, len(left) < len(p.own[l.index])+len(link.TentativeNetworks)) {
			v.info.Links = append(v.info.Links, link)
			p.all[l.index], left = without(p.all[l.index], link.Prefixes), without(left, link.Prefixes)
		}
		p.others = append(p.others, p.all[l.index]...)
		for _, x := range left {
			v.unmanaged = append(v.unmanaged, vip.Address{Addr: x.Addr(), Bits: x.Bits(), Link: l.name})
		}
	}
	v.info.OtherAddresses, v.info.Gateways = otherAddresses(p.others), v.globalGateways()
	slices.SortFunc(v.links, func(a, b vip.Link) int { return cmp.Compare(a.Index, b.Index) })
	slices.SortFunc(v.info.Links, func(a, b vip.Link) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(v.unmanaged, func(a, b vip.Address) int {
		return cmp.Or(strings.Compare(a.Link, b.Link), a.Prefix().Compare(b.Prefix()))
	})
	slices.SortFunc(v.macvlans, func(a, b vip.Macvlan) int { return strings.Compare(a.Name, b.Name) })
	n.metrics.addresses.Set(float64(len(v.bound)))
	return v
}

// prefixes are of this node's addresses that are not Herald's and may concern VIPs.
type prefixes struct {
	// by link: of usable addresses, and those of them that may be the node's own
	all, own  map[int][]netip.Prefix
	tentative map[int][]netip.Prefix // by link: networks of addresses that it can't use
	others    []netip.Prefix         // of addresses that no VIP may be, beside those of all
}

// addAddresses sets bound, unmanaged and local, and returns the prefixes of other addresses.
func (n *Interfaces) addAddresses(v *view) prefixes {
	s := n.snapshot
	p := prefixes{all: map[int][]netip.Prefix{}, own: map[int][]netip.Prefix{}, tentative: map[int][]netip.Prefix{}}
	for _, a := range s.sortedAddresses() {
		l := s.links[a.link]
		entry := vip.Address{Addr: a.prefix.Addr(), Bits: a.prefix.Bits(), Link: l.name}
		v.local[entry.Addr] = v.local[entry.Addr] || a.marked || l.name == ipvsLink
		a.prefix = s.prefixByRoute(a)
		switch {
		case a.marked && a.tentative:
		case a.marked:
			if w, ok := n.wanted[a.addressKey]; ok { // the kernel doesn't know its Lease
				entry = w
			}
			v.bound = append(v.bound, entry)
		case !a.global || a.temporary || !a.prefix.Addr().IsGlobalUnicast() || l.name == ipvsLink:
		case a.tentative: // no VIP may be it, but this node can't use it, and if another host has it (DADFAILED) never will
			if !l.byHerald() {
				p.others = append(p.others, a.prefix)
			}
			if a.prefix.IsSingleIP() {
				v.unmanaged = append(v.unmanaged, entry)
			} else if network := a.prefix.Masked(); !slices.Contains(p.tentative[l.index], network) {
				p.tentative[l.index] = append(p.tentative[l.index], network)
			}
		default:
			p.all[l.index] = append(p.all[l.index], a.prefix)
			switch {
			case l.loopback:
			case a.secondary, l.byKubeVIP(), (a.permanent || l.byHerald()) && a.prefix.IsSingleIP():
				v.unmanaged = append(v.unmanaged, entry)
			default:
				p.own[l.index] = append(p.own[l.index], a.prefix)
			}
		}
	}
	return p
}

// setGateways sets gateways, and returns the link of the first default route, or "".
func (v *view) setGateways(s *snapshot) (byRoute string) {
	for _, r := range slices.SortedFunc(slices.Values(s.routes), route.compare) {
		if r.network.IsValid() {
			continue
		}
		name := s.links[r.link].name
		byRoute = cmp.Or(byRoute, name)
		if r.via.IsValid() && !v.gateways[name].IsValid() {
			v.gateways[name] = r.via
		}
	}
	return byRoute
}

// linkByRoute returns the link of VIPs by default routes; the former stays while it is down, and while no link has one.
func (n *Interfaces) linkByRoute(first string) string {
	// a lost carrier takes the route away, and the next may be in another network
	l, there := n.snapshot.linkNamed(n.byRoute)
	hasRoute := slices.ContainsFunc(n.snapshot.routes, func(r route) bool {
		return r.link == l.index && !r.network.IsValid()
	})
	if !there || n.snapshot.isPort(l) || l.up && hasRoute {
		n.byRoute = first
	}
	return n.byRoute
}

func without(list, unwanted []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool { return slices.Contains(unwanted, p) })
}

// maxOtherAddresses is how many NodeInfo.OtherAddresses are on a node lease.
const maxOtherAddresses = 256

// otherAddresses returns up to maxOtherAddresses of prefixes, sorted, each once.
func otherAddresses(prefixes []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range prefixes {
		addrs = append(addrs, p.Addr())
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	return addrs[:min(len(addrs), maxOtherAddresses)]
}

// globalGateways returns the gateways that are not link-local, sorted, each once.
func (v *view) globalGateways() (addrs []netip.Addr) {
	for _, a := range v.gateways {
		if a.IsGlobalUnicast() {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
