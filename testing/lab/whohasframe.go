package lab

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"github.com/mdlayher/socket"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const (
	ethLen  = 14
	ipv6Len = 40
)

// marshalRequest is the frame by which self asks for target: a broadcast ARP request (RFC 826) or a multicast Neighbour
// Solicitation (RFC 4861 section 7.2.2), from its own addresses.
func marshalRequest(self host, target netip.Addr) ([]byte, error) {
	mac := self.mac(0x77)
	if target.Is4() {
		p, err := arp.NewPacket(arp.OperationRequest, mac, self.lan4(), make(net.HardwareAddr, 6), target)
		if err != nil {
			return nil, err
		}
		b, err := p.MarshalBinary()
		return append(ethernetHeader([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, unix.ETH_P_ARP), b...), err
	}
	group, err := ndp.SolicitedNodeMulticast(target)
	if err != nil {
		return nil, err
	}
	ns := &ndp.NeighborSolicitation{TargetAddress: target,
		Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: mac}}}
	b, err := ndp.MarshalMessageChecksum(ns, self.lan6(), group)
	if err != nil {
		return nil, err
	}
	g := group.As16()
	frame := ethernetHeader([]byte{0x33, 0x33, g[12], g[13], g[14], g[15]}, mac, unix.ETH_P_IPV6) // RFC 2464 section 7
	frame = append(frame, 0x60, 0, 0, 0)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(b)))
	frame = append(frame, unix.IPPROTO_ICMPV6, ndp.HopLimit)
	frame = append(frame, self.lan6().AsSlice()...)
	frame = append(frame, g[:]...)
	return append(frame, b...), nil
}

func ethernetHeader(dst, src net.HardwareAddr, etherType uint16) []byte {
	h := append(append(make([]byte, 0, 128), dst...), src...)
	return binary.BigEndian.AppendUint16(h, etherType)
}

// parseAnswer reads an answer to self: an ARP reply or a solicited Neighbour Advertisement addressed to it. All else is
// not ok.
func parseAnswer(self host, frame []byte) (addr netip.Addr, mac string, ok bool) {
	if len(frame) < ethLen || net.HardwareAddr(frame[:6]).String() != self.mac(0x77).String() {
		return addr, "", false
	}
	body := frame[ethLen:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		var p arp.Packet
		if p.UnmarshalBinary(body) != nil || p.Operation != arp.OperationReply || p.TargetIP != self.lan4() {
			return addr, "", false
		}
		return p.SenderIP, p.SenderHardwareAddr.String(), true
	case unix.ETH_P_IPV6:
		// Linux sends advertisements without extension headers.
		if len(body) < ipv6Len+8 || body[6] != unix.IPPROTO_ICMPV6 ||
			body[ipv6Len] != byte(ipv6.ICMPTypeNeighborAdvertisement) {
			return addr, "", false
		}
		m, err := ndp.ParseMessage(body[ipv6Len:])
		na, isNA := m.(*ndp.NeighborAdvertisement)
		if err != nil || !isNA || !na.Solicited {
			return addr, "", false
		}
		for _, o := range na.Options {
			if lla, is := o.(*ndp.LinkLayerAddress); is && lla.Direction == ndp.Target {
				return na.TargetAddress, lla.Addr.String(), true
			}
		}
		return na.TargetAddress, net.HardwareAddr(frame[6:12]).String(), true
	}
	return addr, "", false
}

// listenPackets opens a packet socket on the host's eth0, for one EtherType, with the kernel's times.
func listenPackets(ns string, etherType uint16) (*socket.Conn, error) {
	var conn *socket.Conn
	err := inNamespace(ns, func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		proto := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, etherType))
		c, err := socket.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(proto), "packet", nil)
		if err != nil {
			return err
		}
		for _, err := range []error{
			c.SetsockoptInt(unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
			// A thousand answers may come at once.
			c.SetsockoptInt(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
			c.Bind(&unix.SockaddrLinklayer{Protocol: proto, Ifindex: ifi.Index}),
		} {
			if err != nil {
				c.Close()
				return err
			}
		}
		conn = c
		return nil
	})
	return conn, err
}

// readFrame waits for a frame and returns it with the kernel's time, on the wall clock.
func readFrame(c *socket.Conn, buf, oob []byte) (frame []byte, at time.Time, err error) {
	n, oobn, _, _, err := c.Recvmsg(context.Background(), buf, oob, 0)
	if err != nil {
		return nil, at, err
	}
	at = time.Now().Round(0)
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return nil, at, err
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			at = time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return buf[:n], at, nil
}
