package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/heraldvip/herald/pkg/vip"
)

// A seat is where a session begins and ends, and what is the next hop there.
type seat struct {
	remote string     // the peer's address, with its zone if it is link-local
	source netip.Addr // ours, if it is not left to the kernel
	bind   string     // the link the session must leave by, or ""
	id     netip.Addr // our BGP identifier
	hop4   netip.Addr // next hop of IPv4 prefixes; unspecified: the session's own; zero: there is none
	hop6   netip.Addr
}

// key is what a session can't change while it stands. The identifier is chosen once.
func (s seat) key() [3]string { return [3]string{s.remote, s.source.String(), s.bind} }

func (s seat) hop(prefix netip.Addr) netip.Addr {
	if prefix.Is4() {
		return s.hop4
	}
	return s.hop6
}

// sit finds the seat of the session at this moment, or says what is missing.
func (p *peer) sit() (seat, error) {
	c := p.config
	at := seat{remote: c.Address.String(), source: c.Source, id: p.at.id}
	if c.Interface != "" {
		router, err := p.router.on(c.Interface, p.up())
		if err != nil {
			return seat{}, err
		}
		at.remote = router.String()
		c.Address = router
	}
	if c.SourceInterface != "" {
		link := p.link(c.SourceInterface)
		if link.Name == "" {
			return seat{}, fmt.Errorf("bgp_sourceif: this node has no interface %s", c.SourceInterface)
		}
		if link.Name != loopback {
			at.bind = link.Name
		}
		if !at.source.IsValid() && c.Interface == "" {
			if at.source = addressOf(link, vip.FamilyOf(c.Address)); !at.source.IsValid() {
				return seat{}, fmt.Errorf("bgp_sourceif: interface %s has no %s address", link.Name, vip.FamilyOf(c.Address))
			}
		}
	}
	local := at.source
	if !local.IsValid() {
		var err error
		if local, err = towards(c.Address, c.Port); err != nil {
			return seat{}, fmt.Errorf("no way to the peer: %w", err)
		}
	}
	at.hop4, at.hop6 = p.hops(c, local)
	if !at.id.IsValid() {
		var err error
		if at.id, err = p.identifier(local); err != nil {
			return seat{}, err
		}
	}
	return at, nil
}

// hops finds the next hops on a session from local: it is always this node.
func (p *peer) hops(c vip.BGPPeer, local netip.Addr) (hop4, hop6 netip.Addr) {
	link := p.link(c.NextHopInterface)
	if c.NextHopInterface == "" {
		link = p.linkWith(local, c.Address.Zone())
	}
	if local.Is4() {
		hop6 = c.NextHop6
		if !hop6.IsValid() {
			hop6 = addressOf(link, vip.IPv6)
		}
		return netip.IPv4Unspecified(), hop6
	}
	hop6 = netip.IPv6Unspecified()
	if local.IsLinkLocalUnicast() {
		hop6 = local // gobgp can't tell its own address on a link-local session
	}
	hop4 = c.NextHop4
	if !hop4.IsValid() && (c.Interface == "" || c.NextHopInterface != "") {
		hop4 = addressOf(link, vip.IPv4)
	}
	if !hop4.IsValid() {
		hop4 = hop6 // an IPv6 next hop for IPv4 prefixes (RFC 8950)
	}
	return hop4, hop6
}

// identifier is our BGP identifier: the one configured, the address of the link
// configured, or the first IPv4 address that serves.
func (p *peer) identifier(local netip.Addr) (netip.Addr, error) {
	switch {
	case p.config.RouterID.IsValid():
		return p.config.RouterID, nil
	case p.o.RouterID.IsValid():
		return p.o.RouterID, nil
	case p.o.RouterInterface != "":
		if a := addressOf(p.link(p.o.RouterInterface), vip.IPv4); a.IsValid() {
			return a, nil
		}
		return netip.Addr{}, fmt.Errorf("bgp_routerinterface: interface %s is missing or has no IPv4 address", p.o.RouterInterface)
	}
	if local.Is4() {
		return local, nil
	}
	for _, l := range p.o.Links() { // in the order in which they were made, so it stays the same
		if a := addressOf(l, vip.IPv4); a.IsValid() && l.Up {
			return a, nil
		}
	}
	return fallbackID(p.o.Node), nil
}

// towards is the address that the kernel would send from. Nothing is sent.
func towards(a netip.Addr, port uint16) (netip.Addr, error) {
	c, err := net.Dial("udp", net.JoinHostPort(a.String(), strconv.Itoa(int(port))))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap().WithZone(""), nil
}

// loopback is the name of the link that no packet leaves by.
const loopback = "lo"

// link is the link of that name; the zero Link if this node has none.
func (p *peer) link(name string) vip.Link {
	return p.findLink(func(l vip.Link) bool { return l.Name == name })
}

// linkWith is the link that has address a or is called zone; the zero Link if there is none.
func (p *peer) linkWith(a netip.Addr, zone string) vip.Link {
	return p.findLink(func(l vip.Link) bool {
		return l.Name == zone || slices.ContainsFunc(l.Prefixes, func(x netip.Prefix) bool { return x.Addr() == a })
	})
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
