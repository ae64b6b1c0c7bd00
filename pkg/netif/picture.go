package netif

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// A picture is what is known of the kernel.
type picture struct {
	links   map[int]link
	index   map[string]int // of links, by name
	entries map[place]entry
	routes  []route
}

func newPicture() *picture {
	return &picture{links: map[int]link{}, index: map[string]int{}, entries: map[place]entry{}}
}

// add draws a link, which may have had another name before.
func (p *picture) add(l link) {
	p.remove(l.index)
	p.links[l.index], p.index[l.name] = l, l.index
}

// remove takes a link out. Its addresses have gone before it: the kernel tells so.
func (p *picture) remove(index int) {
	if name := p.links[index].name; p.index[name] == index { // or another has that name by now
		delete(p.index, name)
	}
	delete(p.links, index)
}

// apply draws c into the picture and reports whether that changed it. Renewals,
// which the kernel tells like any other change, don't.
func (p *picture) apply(c change) bool {
	switch {
	case c.link != nil && c.gone:
		_, had := p.links[c.link.index]
		p.remove(c.link.index)
		return had
	case c.link != nil:
		old, had := p.links[c.link.index]
		p.add(*c.link)
		return !had || old != *c.link
	case c.entry != nil && c.gone:
		_, had := p.entries[c.entry.place]
		delete(p.entries, c.entry.place)
		return had
	case c.entry != nil:
		old, had := p.entries[c.entry.place]
		p.entries[c.entry.place] = *c.entry
		return !had || old != *c.entry
	}
	return false
}

// named finds a link by its name.
func (p *picture) named(name string) (link, bool) {
	l, ok := p.links[p.index[name]]
	return l, ok
}

// names lists all links, for messages.
func (p *picture) names() string {
	var names []string
	for _, l := range p.links {
		names = append(names, l.name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// port reports whether l is a port of a bridge or a bond, whose addresses are
// on its master. A link in a VRF has a master too, but stays one of its own.
func (p *picture) port(l link) bool {
	m, ok := p.links[l.master]
	return ok && m.kind != "vrf"
}

// sorted is the entries in the order of links and addresses.
func (p *picture) sorted() []entry {
	all := make([]entry, 0, len(p.entries))
	for _, e := range p.entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(
			strings.Compare(p.links[a.link].name, p.links[b.link].name),
			a.prefix.Addr().Compare(b.prefix.Addr()),
			cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	return all
}

// others is the entries of the same address on the same link, with another
// prefix length.
func (p *picture) others(at place) []entry {
	var found []entry
	for pl, e := range p.entries {
		if pl.link == at.link && pl.prefix.Addr() == at.prefix.Addr() && pl != at {
			found = append(found, e)
		}
	}
	return found
}

// defaultLink is the link of the default route with the lowest metric, IPv4
// before IPv6, or "".
func (p *picture) defaultLink() string {
	best, found := route{}, false
	for _, r := range p.routes {
		if _, ok := p.links[r.link]; !ok {
			continue
		}
		if !found || r.compare(best) < 0 {
			best, found = r, true
		}
	}
	return p.links[best.link].name
}

// compare orders routes: the better one comes first.
func (r route) compare(o route) int {
	return cmp.Or(cmp.Compare(r.family, o.family), cmp.Compare(r.metric, o.metric), cmp.Compare(r.link, o.link))
}

// ipvsLink is where kube-proxy in ipvs mode puts the address of every Service on
// every node. Nobody has left those behind.
const ipvsLink = "kube-ipvs0"

// facts is what a picture means to others.
type facts struct {
	bound []vip.Address // what bears our mark and the kernel answers for
	at    []place       // where those are
	stray []vip.Address // what looks like a VIP but doesn't
	info  vip.NodeInfo
	links []vip.Link            // all, by index
	ours  []link                // macvlans of ours, by name
	via   map[string]netip.Addr // by link: the next hop of its default route
}

// means works the facts out.
func (p *picture) means(o Options) facts {
	f := facts{}
	own, all := map[int][]netip.Prefix{}, map[int][]netip.Prefix{}
	for _, e := range p.sorted() {
		l := p.links[e.link]
		a := vip.Address{Addr: e.prefix.Addr(), Bits: e.prefix.Bits(), Link: l.name}
		switch {
		case e.ours && e.tentative:
		case e.ours:
			f.bound, f.at = append(f.bound, a), append(f.at, e.place)
		case !e.global || e.temporary || !e.prefix.Addr().IsGlobalUnicast() || l.name == ipvsLink:
		default:
			all[l.index] = append(all[l.index], e.prefix)
			if l.loopback {
				break
			}
			if e.prefix.IsSingleIP() {
				f.stray = append(f.stray, a)
			} else {
				own[l.index] = append(own[l.index], e.prefix)
			}
		}
	}
	f.via = map[string]netip.Addr{}
	for _, r := range slices.SortedFunc(slices.Values(p.routes), route.compare) {
		if name := p.links[r.link].name; r.via.IsValid() && !f.via[name].IsValid() {
			f.via[name] = r.via
		}
	}
	byRoute := p.defaultLink()
	f.info.DefaultInterface = cmp.Or(o.Interface, byRoute)
	f.info.Interface = cmp.Or(o.ServicesInterface, o.Interface, byRoute)
	for _, l := range p.links {
		f.links = append(f.links, vip.Link{Index: l.index, Name: l.name, Up: l.up, MAC: l.mac, Prefixes: all[l.index]})
		if l.ours() {
			f.ours = append(f.ours, l) // a VIP's own affair, and no link for others to choose
			continue
		}
		chosen := l.name == f.info.Interface || l.name == f.info.DefaultInterface
		if chosen || p.listed(l, len(own[l.index]) > 0) {
			f.info.Links = append(f.info.Links, vip.Link{Index: l.index, Name: l.name, Up: l.up, MAC: l.mac, Prefixes: own[l.index]})
		}
	}
	slices.SortFunc(f.links, func(a, b vip.Link) int { return cmp.Compare(a.Index, b.Index) })
	slices.SortFunc(f.info.Links, func(a, b vip.Link) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(f.ours, func(a, b link) int { return strings.Compare(a.name, b.name) })
	return f
}

// listed reports whether others should know of l, which is written to the API
// server: those a VIP may sensibly be on. A pod's end of a veth has no address
// of a network; hardware and what is stacked on it may carry VIPs without one.
func (p *picture) listed(l link, addressed bool) bool {
	if l.loopback || p.port(l) {
		return false
	}
	switch l.kind {
	case "", "vlan", "bond", "team", "macvlan":
		return addressed || l.up
	}
	return addressed
}
