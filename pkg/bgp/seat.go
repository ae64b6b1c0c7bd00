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
		link, err := net.InterfaceByName(c.SourceInterface)
		if err != nil {
			return seat{}, fmt.Errorf("bgp_sourceif: this node has no interface %s", c.SourceInterface)
		}
		if link.Flags&net.FlagLoopback == 0 {
			at.bind = link.Name
		}
		if !at.source.IsValid() && c.Interface == "" {
			if at.source = p.addressOf(link.Name, vip.FamilyOf(c.Address)); !at.source.IsValid() {
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
	link := c.NextHopInterface
	if link == "" {
		link = linkOf(local)
	}
	if local.Is4() {
		hop6 = c.NextHop6
		if !hop6.IsValid() {
			hop6 = p.addressOf(link, vip.IPv6)
		}
		return netip.IPv4Unspecified(), hop6
	}
	hop6 = netip.IPv6Unspecified()
	if local.IsLinkLocalUnicast() {
		hop6 = local // gobgp can't tell its own address on a link-local session
	}
	hop4 = c.NextHop4
	if !hop4.IsValid() && (c.Interface == "" || c.NextHopInterface != "") {
		hop4 = p.addressOf(link, vip.IPv4)
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
		if a := p.addressOf(p.o.RouterInterface, vip.IPv4); a.IsValid() {
			return a, nil
		}
		return netip.Addr{}, fmt.Errorf("bgp_routerinterface: interface %s is missing or has no IPv4 address", p.o.RouterInterface)
	}
	links, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}, err
	}
	if local.Is4() {
		return local, nil
	}
	for _, l := range links { // in the order in which they were made, so it stays the same
		if a := p.addressOf(l.Name, vip.IPv4); a.IsValid() && l.Flags&net.FlagUp != 0 {
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

// addressOf is an address of a link that others can reach, or zero: the lowest, so
// that it is always the same. VIPs, which come and go, are none of them.
func (p *peer) addressOf(link string, f vip.Family) netip.Addr {
	own := slices.DeleteFunc(slices.Clone(p.o.Own(link)), func(a netip.Addr) bool {
		return vip.FamilyOf(a) != f || a.IsLoopback() || a.IsLinkLocalUnicast()
	})
	if len(own) == 0 {
		return netip.Addr{}
	}
	return slices.MinFunc(own, netip.Addr.Compare)
}

// Addresses is all that the kernel has on a link, VIPs among them.
func Addresses(link string) []netip.Addr {
	l, err := net.InterfaceByName(link)
	if err != nil {
		return nil
	}
	return addresses(*l)
}

// linkOf is the link that has an address, or "".
func linkOf(a netip.Addr) string {
	links, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, l := range links {
		for _, x := range addresses(l) {
			if x == a {
				return l.Name
			}
		}
	}
	return ""
}

func addresses(l net.Interface) []netip.Addr {
	list, err := l.Addrs()
	if err != nil {
		return nil
	}
	var all []netip.Addr
	for _, x := range list {
		if n, ok := x.(*net.IPNet); ok {
			if a, ok := netip.AddrFromSlice(n.IP); ok {
				all = append(all, a.Unmap())
			}
		}
	}
	return all
}
