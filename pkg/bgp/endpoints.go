package bgp

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/heraldvip/herald/pkg/vip"
)

// endpoints is the two ends of a session, and the next hops of the routes on it.
type endpoints struct {
	remote   string     // the peer's address, with its zone if it is link-local
	source   netip.Addr // this node's, if it is not left to the kernel
	local    netip.Addr // source, or what the kernel chose
	bind     string     // the link the session must leave by, or ""
	id       netip.Addr // this node's BGP identifier
	nextHop4 netip.Addr // of IPv4 prefixes; zero: there is none
	nextHop6 netip.Addr
}

// sessionKey is what can't change while a session stands. The identifier is chosen once.
func (e endpoints) sessionKey() [3]string { return [3]string{e.remote, e.local.String(), e.bind} }

// nextHop is the next hop of prefixes of an address's family; zero if there is none.
func (e endpoints) nextHop(prefix netip.Addr) netip.Addr {
	if prefix.Is4() {
		return e.nextHop4
	}
	return e.nextHop6
}

// findEndpoints determines the endpoints of the session by the configuration, Options.Links and
// the kernel's routes. Its error says what is missing.
func (p *peer) findEndpoints() (endpoints, error) {
	c := p.config
	at := endpoints{remote: c.Address.String(), source: c.Source, id: p.at.id}
	if c.Interface != "" {
		router, err := p.discovery.router(p.link(c.Interface), c.Interface, p.up())
		if err != nil {
			return endpoints{}, err
		}
		at.remote, c.Address = router.String(), router
	}
	if c.SourceInterface != "" {
		link := p.link(c.SourceInterface)
		if link.Name == "" {
			return endpoints{}, fmt.Errorf("bgp_sourceif: this node has no interface %s", c.SourceInterface)
		}
		if link.Name != loopback {
			at.bind = link.Name
		}
		if !at.source.IsValid() && c.Interface == "" {
			if at.source = addressOf(link, vip.FamilyOf(c.Address)); !at.source.IsValid() {
				return endpoints{}, fmt.Errorf("bgp_sourceif: interface %s has no %s address", link.Name, vip.FamilyOf(c.Address))
			}
			if hasAddress(link, p.at.source) { // a lower address that is new, such as another program's VIP, ends no session
				at.source = p.at.source
			}
		}
	}
	local, err := at.source, error(nil)
	if !local.IsValid() {
		if local, err = sourceTowards(c.Address, c.Port); err != nil {
			return endpoints{}, fmt.Errorf("no way to the peer: %w", err)
		}
		if local != p.at.local && p.up() && p.owns(p.at.local) { // a session stays where it is while it can
			local = p.at.local
		}
	}
	at.local = local
	at.nextHop4, at.nextHop6 = p.nextHops(c, local)
	if !at.id.IsValid() {
		at.id, err = p.identifier(local)
	}
	return at, err
}

// nextHops is the next hops on a session from local: addresses of this node. Those of the session's family are its
// own, unless that is one of the loopback interface; all others are configured, or of the link configured, or of the
// link with local, or of the first link.
func (p *peer) nextHops(c vip.BGPPeer, local netip.Addr) (hop4, hop6 netip.Addr) {
	link := p.link(c.NextHopInterface)
	switch {
	case c.NextHopInterface != "":
	case local.IsLoopback():
		link = p.findLink(func(l vip.Link) bool { return l.Up && l.Name != loopback && len(l.Prefixes) > 0 })
	default:
		link = p.linkWith(local, c.Address.Zone())
	}
	if local.IsLoopback() { // the router is on this node, and those that it tells can't use the session's own address
		return cmp.Or(c.NextHop4, addressOf(link, vip.IPv4)), cmp.Or(c.NextHop6, addressOf(link, vip.IPv6))
	}
	if local.Is4() {
		if c.NextHop6.IsValid() {
			return local, c.NextHop6
		}
		return local, addressOf(link, vip.IPv6)
	}
	hop4, hop6 = c.NextHop4, local
	if !hop4.IsValid() && (c.Interface == "" || c.NextHopInterface != "") {
		hop4 = addressOf(link, vip.IPv4)
	}
	if !hop4.IsValid() {
		hop4 = hop6 // an IPv6 next hop for IPv4 prefixes (RFC 8950)
	}
	return hop4, hop6
}

// identifier is this node's BGP identifier: the one configured for the peer or for all, the
// address of the link configured, the session's own IPv4 address, the first IPv4 address of a link
// that is up, or a number derived from the node's name. It fails only if the link configured
// has no IPv4 address.
func (p *peer) identifier(local netip.Addr) (netip.Addr, error) {
	switch id := cmp.Or(p.config.RouterID, p.o.RouterID); {
	case id.IsValid():
		return id, nil
	case p.o.RouterInterface != "":
		if a := addressOf(p.link(p.o.RouterInterface), vip.IPv4); a.IsValid() {
			return a, nil
		}
		return netip.Addr{}, fmt.Errorf(
			"bgp_routerinterface: interface %s is missing or has no IPv4 address", p.o.RouterInterface)
	case local.Is4() && !local.IsLoopback():
		return local, nil
	}
	for _, l := range p.o.Links() { // in the order in which they were made, so it stays the same
		if a := addressOf(l, vip.IPv4); a.IsValid() && l.Up {
			return a, nil
		}
	}
	return idFromName(p.o.Node), nil
}

// idFromName is a BGP identifier for a node without any IPv4 address: any number but 0
// that is unlikely to be another's (RFC 6286).
func idFromName(node string) netip.Addr {
	h := fnv.New32a()
	h.Write([]byte(node))
	n := h.Sum32() | 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// sourceTowards is the address that the kernel would send from to a; an error if there is no
// route. Nothing is sent.
func sourceTowards(a netip.Addr, port uint16) (netip.Addr, error) {
	c, err := net.Dial("udp", net.JoinHostPort(a.String(), strconv.Itoa(int(port))))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone(""), nil
}

// owns reports whether this node has the address a now.
func (p *peer) owns(a netip.Addr) bool {
	own, err := p.ownAddresses()
	return err != nil || slices.ContainsFunc(own, func(x net.Addr) bool {
		n, ok := x.(*net.IPNet)
		return ok && n.IP.Equal(a.AsSlice())
	})
}

// loopback is the name of the link that no packet leaves by.
const loopback = "lo"

// link is the link of that name; the zero Link if this node has none.
func (p *peer) link(name string) vip.Link {
	return p.findLink(func(l vip.Link) bool { return l.Name == name })
}

// linkWith is the link that has address a or is called zone; the zero Link if there is none.
func (p *peer) linkWith(a netip.Addr, zone string) vip.Link {
	return p.findLink(func(l vip.Link) bool { return l.Name == zone || hasAddress(l, a) })
}

// hasAddress reports whether l has the address a.
func hasAddress(l vip.Link, a netip.Addr) bool {
	return slices.ContainsFunc(l.Prefixes, func(x netip.Prefix) bool { return x.Addr() == a })
}

func (p *peer) findLink(match func(vip.Link) bool) (l vip.Link) {
	all := p.o.Links()
	if i := slices.IndexFunc(all, match); i >= 0 {
		l = all[i]
	}
	return l
}

// addressOf is an address of l and family f that others can reach: the lowest, so that it is
// always the same; zero if there is none. An address that is alone in its network may be
// a VIP that another program left, so it is taken only if no address of l has a network.
func addressOf(l vip.Link, f vip.Family) (lowest netip.Addr) {
	networks := slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return !p.IsSingleIP() })
	for _, p := range l.Prefixes {
		a := p.Addr()
		if vip.FamilyOf(a) == f && p.IsSingleIP() != networks && (!lowest.IsValid() || a.Less(lowest)) {
			lowest = a
		}
	}
	return lowest
}
