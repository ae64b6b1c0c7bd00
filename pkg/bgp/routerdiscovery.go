package bgp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/ipv6"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

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

func newRouterDiscovery() *routerDiscovery {
	return &routerDiscovery{heard: mailbox.New[netip.Addr]()}
}

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
	c, _, err := ndp.Listen(&net.Interface{Index: link.Index, Name: link.Name, MTU: 1500}, ndp.LinkLocal)
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
	go d.receive(c)
	return nil
}

// readsPerSecond is how many advertisements are read on a link, for a flood to cost little: a router sends one in 3 s
// at most (RFC 4861 section 10), and each wakes the peer.
const readsPerSecond = 20

// receive puts each advertisement's sender into heard, readsPerSecond at most, until the socket is closed.
func (d *routerDiscovery) receive(c *ndp.Conn) {
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
		// router all the same.
		if _, ok := m.(*ndp.RouterAdvertisement); ok && from.IsLinkLocalUnicast() && control != nil &&
			control.HopLimit == ndp.HopLimit {
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
