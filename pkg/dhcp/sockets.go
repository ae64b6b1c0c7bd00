package dhcp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	clientPort4, serverPort4 = 68, 67
	clientPort6, serverPort6 = 546, 547
)

// A PacketAddr is the addresses of a packet to or from a server.
type PacketAddr struct {
	Src, Dst netip.Addr
	MAC      net.HardwareAddr // of the neighbour it goes to, or came from; nil: of all
}

// Network is "dhcp".
func (*PacketAddr) Network() string { return "dhcp" }

// String is for messages.
func (p *PacketAddr) String() string { return fmt.Sprintf("%s to %s by %s", p.Src, p.Dst, p.MAC) }

// Open opens the link of r: for DHCPv4 a packet socket, which needs no address, works beside the node's DHCP client,
// and gets no traffic of the VIP; for DHCPv6 a raw socket on the link-local address. Neither takes the client's port,
// below 1024: another client has it, and a UDP socket would need CAP_NET_BIND_SERVICE.
func Open(r vip.DHCPRequest) (net.PacketConn, error) {
	ifi, err := net.InterfaceByName(r.Link)
	if err != nil {
		return nil, fmt.Errorf("the node has no such link: %w", err)
	}
	if r.Family == vip.IPv6 {
		return open6(ifi)
	}
	c, err := packet.Listen(ifi, packet.Datagram, unix.ETH_P_IP, &packet.Config{Filter: clientPortFilter})
	if err != nil {
		return nil, fmt.Errorf("can't open a packet socket: %w%s", err, vip.RawHint(err))
	}
	return conn4{c}, nil
}

// clientPortFilter passes whole UDP packets to the client's port (packet(7), without the link's header).
var clientPortFilter = func() []bpf.RawInstruction {
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 6},
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x3fff, SkipTrue: 4}, // a fragment
		bpf.LoadMemShift{Off: 0},
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: clientPort4, SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		panic(err) // the program is constant
	}
	return raw
}()

// conn4 puts messages into IPv4 and UDP.
type conn4 struct{ *packet.Conn }

func (c conn4) WriteTo(b []byte, to net.Addr) (int, error) {
	p := to.(*PacketAddr)
	if !p.Src.Is4() || !p.Dst.Is4() {
		return 0, fmt.Errorf("not IPv4: from %s to %s", p.Src, p.Dst)
	}
	mac := p.MAC
	if len(mac) != 6 {
		mac = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	}
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return 0, err
	}
	_, err := c.Conn.WriteTo(marshalUDP4(b, p.Src, p.Dst), &packet.Addr{HardwareAddr: mac})
	return len(b), err
}

// ReadFrom returns errNotForUs for an unreadable packet, which counts as read: anybody on the link may send many.
func (c conn4) ReadFrom(b []byte) (int, net.Addr, error) {
	buf := make([]byte, len(b)+60+8)
	n, from, err := c.Conn.ReadFrom(buf)
	if err != nil {
		return 0, nil, err
	}
	payload, p := parseUDP4(buf[:n])
	if p == nil {
		return 0, nil, errNotForUs
	}
	if a, ok := from.(*packet.Addr); ok {
		p.MAC = a.HardwareAddr
	}
	return copy(b, payload), p, nil
}

// marshalUDP4 is b in UDP and IPv4, from the client's to the server's port.
func marshalUDP4(b []byte, src, dst netip.Addr) []byte {
	const ip, udp = 20, 8
	d := make([]byte, ip+udp, ip+udp+len(b))
	s4, d4 := src.As4(), dst.As4()
	d[0], d[8], d[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(d[2:], uint16(ip+udp+len(b)))
	copy(d[12:], s4[:])
	copy(d[16:], d4[:])
	binary.BigEndian.PutUint16(d[10:], checksum(0, d[:ip]))
	binary.BigEndian.PutUint16(d[ip:], clientPort4)
	binary.BigEndian.PutUint16(d[ip+2:], serverPort4)
	binary.BigEndian.PutUint16(d[ip+4:], uint16(udp+len(b)))
	d = append(d, b...)
	sum := checksum(uint32(unix.IPPROTO_UDP)+uint32(udp+len(b)), d[12:]) // the addresses are next to UDP: a pseudo-header
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(d[ip+6:], sum)
	return d
}

func checksum(sum uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// parseUDP4 is payload and addresses of a packet from the server's to the client's port, else nil. The checksum is not
// verified: that of a packet which stayed on the machine may be missing, and the payload is checked.
func parseUDP4(d []byte) ([]byte, *PacketAddr) {
	if len(d) < 20 || d[0]>>4 != 4 {
		return nil, nil
	}
	ip, total := int(d[0]&15)*4, int(binary.BigEndian.Uint16(d[2:]))
	if ip < 20 || total > len(d) || total < ip+8 || d[9] != unix.IPPROTO_UDP ||
		binary.BigEndian.Uint16(d[6:])&0x3fff != 0 {
		return nil, nil
	}
	u := d[ip:total]
	length := int(binary.BigEndian.Uint16(u[4:]))
	if binary.BigEndian.Uint16(u) != serverPort4 || binary.BigEndian.Uint16(u[2:]) != clientPort4 || length < 8 ||
		length > len(u) {
		return nil, nil
	}
	return u[8:length], &PacketAddr{Src: netip.AddrFrom4([4]byte(d[12:16])), Dst: netip.AddrFrom4([4]byte(d[16:20]))}
}

func open6(ifi *net.Interface) (net.PacketConn, error) {
	addrs, err := ifi.Addrs()
	if err != nil {
		return nil, err
	}
	for _, a := range addrs {
		local, err := netip.ParsePrefix(a.String())
		if err != nil || !local.Addr().Is6() || !local.Addr().IsLinkLocalUnicast() {
			continue
		}
		config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			return errors.Join(c.Control(func(fd uintptr) {
				err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, udpChecksum),
					unix.BindToDevice(int(fd), ifi.Name))
			}), err)
		}}
		// Without a zone: the socket's device tells the link, while package net remembers a name's index for a minute.
		c, err := config.ListenPacket(context.Background(), "ip6:udp", local.Addr().WithZone("").String())
		if err != nil {
			return nil, fmt.Errorf("can't listen on it: %w%s", err, vip.RawHint(err))
		}
		return conn6{c}, nil
	}
	return nil, errors.New("the link has no link-local address")
}

const (
	udpHeader   = 8 // bytes
	udpChecksum = 6 // where in the header the kernel puts the checksum, and verifies it (RFC 3542 section 3.1)
)

// conn6 puts messages into UDP, with PacketAddr, empty for packets received.
type conn6 struct{ net.PacketConn }

func (c conn6) WriteTo(b []byte, to net.Addr) (int, error) {
	p := to.(*PacketAddr)
	d := make([]byte, udpHeader, udpHeader+len(b))
	binary.BigEndian.PutUint16(d, clientPort6)
	binary.BigEndian.PutUint16(d[2:], serverPort6)
	binary.BigEndian.PutUint16(d[4:], uint16(udpHeader+len(b)))
	_, err := c.PacketConn.WriteTo(append(d, b...), &net.IPAddr{IP: p.Dst.AsSlice()})
	return len(b), err
}

// ReadFrom returns errNotForUs for a packet to another port. Servers may send from any (RFC 8415 section 7.2).
func (c conn6) ReadFrom(b []byte) (int, net.Addr, error) {
	d := make([]byte, udpHeader+len(b))
	n, _, err := c.PacketConn.ReadFrom(d)
	if err != nil {
		return 0, nil, err
	}
	length := int(binary.BigEndian.Uint16(d[4:])) // with the header
	if n < udpHeader || length < udpHeader || length > n || binary.BigEndian.Uint16(d[2:]) != clientPort6 {
		return 0, nil, errNotForUs
	}
	return copy(b, d[udpHeader:length]), &PacketAddr{}, nil
}
