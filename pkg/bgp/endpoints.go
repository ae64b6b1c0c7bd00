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

// endpoints is a session's two ends, and its routes' next hops.
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

// nextHop is the next hop of prefixes of an address's family, or zero.
func (e endpoints) nextHop(prefix netip.Addr) netip.Addr {
	if prefix.Is4() {
		return e.nextHop4
	}
	return e.nextHop6
}

// findEndpoints determines the endpoints by configuration, links and the kernel's routes, or says what is missing.
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

// nextHops is this node's addresses for a session from local. Of the session's family it is local, unless that is the
// loopback's; others are configured, or of the link configured, of local, or the first.
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

// identifier is this node's BGP identifier: configured, of the link configured, the session's IPv4 address, the first
// of a link that is up, or from the node's name. It fails only if the link configured has no IPv4 address.
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

// idFromName is a likely unique identifier for a node without IPv4, never 0 (RFC 6286).
func idFromName(node string) netip.Addr {
	h := fnv.New32a()
	h.Write([]byte(node))
	n := h.Sum32() | 1
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// sourceTowards is where the kernel would send from to a, without sending; an error without a route.
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

const loopback = "lo"

// link is the link of that name, or zero.
func (p *peer) link(name string) vip.Link {
	return p.findLink(func(l vip.Link) bool { return l.Name == name })
}

// linkWith is the link that has address a or is called zone, or zero.
func (p *peer) linkWith(a netip.Addr, zone string) vip.Link {
	return p.findLink(func(l vip.Link) bool { return l.Name == zone || hasAddress(l, a) })
}

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

// addressOf is the lowest, and so stable, address of l and f that others can reach, or zero. One alone in its network
// may be another program's VIP, so it counts only if l has no network.
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
