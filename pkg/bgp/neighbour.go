package bgp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A neighbour finds the router at the other end of a link by its router
// advertisements (RFC 4861 section 6): where no peer has an address there is no
// other name for it. It asks for one until one came. Routers find this node in the
// same way, so it advertises itself too, as one that is no default router.
type neighbour struct {
	conn *net.IPConn
	said time.Time // when this node last advertised itself

	use netip.Addr // the one in use, with its zone

	mu   sync.Mutex
	last netip.Addr // the last one heard
}

// introduce is how often this node advertises itself. Routers forget it after some
// minutes at the earliest.
const introduce = 4 * time.Second

const (
	icmpRouterSolicitation  = 133
	icmpRouterAdvertisement = 134
)

// on is the router on a link, or an error until one was heard. With keep it is the
// one in use, whoever else was heard.
func (n *neighbour) on(link string, keep bool) (netip.Addr, error) {
	if !keep || !n.use.IsValid() {
		n.mu.Lock()
		n.use = n.last
		n.mu.Unlock()
	}
	if n.conn == nil {
		if err := n.open(link); err != nil {
			return netip.Addr{}, fmt.Errorf("can't listen for router advertisements on %s: %w", link, err)
		}
	}
	if time.Since(n.said) > introduce {
		n.said = time.Now()
		// RFC 4861 section 4.2: type, code, checksum (the kernel's), hop limit (unspecified),
		// flags, router lifetime 0, reachable time and retransmission timer (unspecified).
		advert := []byte{icmpRouterAdvertisement, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		if _, err := n.conn.WriteToIP(advert, &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: link}); err != nil {
			return netip.Addr{}, fmt.Errorf("can't send on %s: %w", link, err)
		}
	}
	if n.use.IsValid() {
		return n.use, nil
	}
	// RFC 4861 section 4.1: type, code, checksum (the kernel's), reserved.
	_, err := n.conn.WriteToIP([]byte{icmpRouterSolicitation, 0, 0, 0, 0, 0, 0, 0}, &net.IPAddr{IP: net.IPv6linklocalallrouters, Zone: link})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("can't ask for a router on %s: %w", link, err)
	}
	return netip.Addr{}, fmt.Errorf("no router advertisement was heard on %s yet", link)
}

func (n *neighbour) open(link string) error {
	if _, err := net.InterfaceByName(link); err != nil {
		return errors.New("this node has no such interface")
	}
	c, err := net.ListenIP("ip6:ipv6-icmp", &net.IPAddr{IP: net.IPv6unspecified})
	if err != nil {
		return err
	}
	raw, err := c.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			err = errors.Join(
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0), // or we hear ourselves
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1),
				unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, link),
			)
		}), err)
	}
	if err != nil {
		c.Close()
		return err
	}
	n.conn = c
	go n.listen(link, c)
	return nil
}

// listen takes the sender of each router advertisement for the router, until the
// connection is closed.
func (n *neighbour) listen(link string, c *net.IPConn) {
	packet, control := make([]byte, 1500), make([]byte, 128)
	for {
		size, controls, _, from, err := c.ReadMsgIP(packet, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(look) // a link that went down: the socket lives on
			continue
		}
		addr, ok := netip.AddrFromSlice(from.IP)
		// Nobody beyond the link can send a hop limit of 255 (RFC 4861 section 6.1.2). A router
		// lifetime of 0 means no default router, and is a router all the same.
		if !ok || size < 16 || packet[0] != icmpRouterAdvertisement || !addr.IsLinkLocalUnicast() || hopLimit(control[:controls]) != 255 {
			continue
		}
		n.mu.Lock()
		n.last = addr.WithZone(link)
		n.mu.Unlock()
	}
}

func hopLimit(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		if m.Header.Level == syscall.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_HOPLIMIT && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return 0
}

func (n *neighbour) close() {
	if n.conn != nil {
		n.conn.Close()
	}
}
