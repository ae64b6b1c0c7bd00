package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"

	"github.com/heraldvip/herald/pkg/mailbox"
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
		link = p.findLink(func(l vip.Link) bool { return l.Name == c.Address.Zone() || hasAddress(l, local) })
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

// addressOf is the lowest, and so stable, of l's own addresses of f, or zero.
func addressOf(l vip.Link, f vip.Family) (lowest netip.Addr) {
	for _, p := range vip.OwnPrefixes(l.Prefixes) {
		if a := p.Addr(); vip.FamilyOf(a) == f && (!lowest.IsValid() || a.Less(lowest)) {
			lowest = a
		}
	}
	return lowest
}

// A routerDiscovery finds the router on a link by its advertisements (RFC 4861 section 6), and solicits them until one
// came, for a session without addresses (unnumbered). Such routers find this node likewise, so it advertises itself,
// with router lifetime 0.
type routerDiscovery struct {
	conn       *ndp.Conn // nil while it isn't open
	index      int       // of the link that conn is on
	advertised time.Time // when this node last advertised itself
	used       netip.Addr

	heard *mailbox.Mailbox[netip.Addr] // the sender of the last advertisement, with its zone
}

// advertiseInterval is how often this node advertises itself: routers forget it after minutes.
const advertiseInterval = 4 * time.Second

// router is the last router heard on the link, or with keep the one last returned. It is an error until one was heard,
// while sending fails, and if link is zero. It is called every pollInterval, since it sends what is due.
func (d *routerDiscovery) router(link vip.Link, name string, keep bool) (netip.Addr, error) {
	if d.conn != nil && d.index != link.Index { // the link is gone, or was made again
		d.close()
	}
	if d.conn == nil {
		if err := d.open(link); err != nil {
			return netip.Addr{}, fmt.Errorf("can't listen for router advertisements on %s: %w", name, err)
		}
	}
	if !keep || !d.used.IsValid() {
		d.used = d.heard.Get()
	}
	if time.Since(d.advertised) > advertiseInterval {
		d.advertised = time.Now()
		if err := d.send(&ndp.RouterAdvertisement{}, netip.IPv6LinkLocalAllNodes()); err != nil {
			return netip.Addr{}, fmt.Errorf("can't send on %s: %w", name, err)
		}
	}
	if d.used.IsValid() {
		return d.used, nil
	}
	if err := d.send(&ndp.RouterSolicitation{}, netip.IPv6LinkLocalAllRouters()); err != nil {
		return netip.Addr{}, fmt.Errorf("can't ask for a router on %s: %w", name, err)
	}
	return netip.Addr{}, fmt.Errorf("no router advertisement was heard on %s yet", name)
}

// send sends a message. After an error router opens the socket again: the link-local address may have changed.
func (d *routerDiscovery) send(m ndp.Message, to netip.Addr) error {
	err := d.conn.WriteTo(m, nil, to)
	if err != nil {
		d.close()
	}
	return err
}

func (d *routerDiscovery) open(link vip.Link) error {
	if link.Name == "" {
		return errors.New("this node has no such interface")
	}
	c, own, err := ndp.Listen(&net.Interface{Index: link.Index, Name: link.Name, MTU: 1500}, ndp.LinkLocal)
	if err != nil {
		return err
	}
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeRouterAdvertisement)
	err = errors.Join(c.SetICMPFilter(&filter), c.SetControlMessage(ipv6.FlagHopLimit, true),
		c.JoinGroup(netip.IPv6LinkLocalAllNodes()))
	if err != nil {
		c.Close()
		return err
	}
	d.conn, d.index = c, link.Index
	go d.receive(c, own)
	return nil
}

// readsPerSecond is how many advertisements are read on a link, for a flood to cost little: a router sends one in 3 s
// at most (RFC 4861 section 10), and each wakes the peer.
const readsPerSecond = 20

// receive puts the sender of each advertisement but own into heard, readsPerSecond at most, until the socket is closed.
func (d *routerDiscovery) receive(c *ndp.Conn, own netip.Addr) {
	b := make([]byte, 1500)
	for limit := (mailbox.Limit{PerSecond: readsPerSecond}); ; limit.Read() {
		n, control, from, err := c.ReadRaw(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(pollInterval) // the link went down: the socket lives on
			continue
		}
		m, err := ndp.ParseMessage(b[:n])
		if err != nil {
			continue
		}
		// Nobody beyond the link can send a hop limit of 255 (RFC 4861 section 6.1.2). With a router lifetime of 0 it is a
		// router all the same. The kernel loops back what own sends.
		if _, ok := m.(*ndp.RouterAdvertisement); ok && from.IsLinkLocalUnicast() && control != nil &&
			control.HopLimit == ndp.HopLimit && from != own {
			d.heard.Put(from)
		}
	}
}

func (d *routerDiscovery) close() {
	if d.conn != nil {
		d.conn.Close()
		d.conn = nil
	}
}
