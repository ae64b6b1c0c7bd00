package dhcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// How an address is looked for: three times, and then a moment longer. Servers have
// looked themselves, so this is shorter than RFC 5227 has it.
const (
	probes     = 3
	probeGap   = 100 * time.Millisecond
	probeGrace = 200 * time.Millisecond
)

// InUse asks the neighbours of a link who has addr: by ARP probes, which no cache
// takes note of (RFC 5227 section 2.1.1), or by neighbor solicitations from the
// unspecified address (RFC 4862 section 5.4.2). It returns the hardware address of
// the first that has it. If the link can't be asked, nobody has.
func InUse(ctx context.Context, link string, addr netip.Addr) (mac string, used bool) {
	ifi, err := net.InterfaceByName(link)
	if err != nil || len(ifi.HardwareAddr) != 6 {
		return "", false
	}
	kind, to, question := unix.ETH_P_ARP, net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, arpProbe(ifi.HardwareAddr, addr)
	if addr.Is6() {
		kind, to, question = unix.ETH_P_IPV6, solicited(addr), solicitation(addr)
	}
	c, err := packet.Listen(ifi, packet.Datagram, kind, nil)
	if err != nil {
		return "", false
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 1500)
	for n := range probes {
		if _, err := c.WriteTo(question, &packet.Addr{HardwareAddr: to}); err != nil {
			return "", false
		}
		wait := probeGap
		if n == probes-1 {
			wait += probeGrace
		}
		if c.SetReadDeadline(time.Now().Add(wait)) != nil || ctx.Err() != nil {
			return "", false
		}
		for {
			n, from, err := c.ReadFrom(buf)
			if os.IsTimeout(err) && ctx.Err() == nil {
				break
			}
			if err != nil {
				return "", false
			}
			peer, ok := from.(*packet.Addr)
			if !ok || bytes.Equal(peer.HardwareAddr, ifi.HardwareAddr) {
				continue
			}
			if by := owner(buf[:n], addr); by != nil {
				return by.String(), true
			}
			if answers(buf[:n], addr) {
				return peer.HardwareAddr.String(), true
			}
		}
	}
	return "", false
}

// arpProbe asks for addr and names no sender (RFC 5227).
func arpProbe(mac net.HardwareAddr, addr netip.Addr) []byte {
	b := make([]byte, 28)
	copy(b, []byte{0, 1, 8, 0, 6, 4, 0, 1})
	copy(b[8:], mac)
	copy(b[24:], addr.AsSlice())
	return b
}

// owner is who claims addr in an ARP message, or nil.
func owner(b []byte, addr netip.Addr) net.HardwareAddr {
	if len(b) < 28 || !addr.Is4() || !bytes.Equal(b[:6], []byte{0, 1, 8, 0, 6, 4}) || !bytes.Equal(b[14:18], addr.AsSlice()) {
		return nil
	}
	return bytes.Clone(b[8:14])
}

// solicited is the hardware address of addr's solicited-node group (RFC 2464 section 7).
func solicited(addr netip.Addr) net.HardwareAddr {
	a := addr.As16()
	return net.HardwareAddr{0x33, 0x33, 0xff, a[13], a[14], a[15]}
}

// solicitation asks for addr from nobody.
func solicitation(addr netip.Addr) []byte {
	a := addr.As16()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(group[13:], a[13:])
	b := make([]byte, 40+24)
	b[0], b[6], b[7] = 0x60, unix.IPPROTO_ICMPV6, 255
	binary.BigEndian.PutUint16(b[4:], 24)
	copy(b[24:], group[:])
	b[40] = 135
	copy(b[48:], a[:])
	binary.BigEndian.PutUint16(b[42:], checksum(24+unix.IPPROTO_ICMPV6, b[8:])) // source, destination, message
	return b
}

// answers reports whether b is an advertisement of addr.
func answers(b []byte, addr netip.Addr) bool {
	if len(b) < 64 || !addr.Is6() || b[0]>>4 != 6 || b[6] != unix.IPPROTO_ICMPV6 || b[7] != 255 || b[40] != 136 {
		return false
	}
	a := addr.As16()
	return bytes.Equal(b[48:64], a[:])
}
