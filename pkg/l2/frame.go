package l2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/ndp"
)

var (
	allNodes   = netip.MustParseAddr("ff02::1")
	allRouters = netip.MustParseAddr("ff02::2")
)

// announcementFrames returns the two frames that announce addr at mac; who knows it needs the first.
func announcementFrames(addr netip.Addr, mac net.HardwareAddr) ([][]byte, error) {
	var first, second []byte
	var err1, err2 error
	if addr.Is4() {
		first, err1 = arpFrame(arp.OperationRequest, addr, mac, addr, make(net.HardwareAddr, 6))
		second, err2 = arpFrame(arp.OperationReply, addr, mac, addr, mac)
	} else {
		na := &ndp.NeighborAdvertisement{
			Override:      true,
			TargetAddress: addr,
			Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: mac}},
		}
		first, err1 = ndpFrame(na, addr, mac, allNodes)
		second, err2 = ndpFrame(na, addr, mac, allRouters)
	}
	return [][]byte{first, second}, errors.Join(err1, err2)
}

// requestFrame returns the frame that asks for addr; a probe, if from no address.
func requestFrame(addr, from netip.Addr, mac net.HardwareAddr) ([]byte, error) {
	if addr.Is4() {
		return arpFrame(arp.OperationRequest, from, mac, addr, make(net.HardwareAddr, 6))
	}
	group, err := ndp.SolicitedNodeMulticast(addr)
	if err != nil {
		return nil, err
	}
	ns := &ndp.NeighborSolicitation{TargetAddress: addr}
	if !from.IsUnspecified() { // RFC 4861 section 4.3: not in a probe
		ns.Options = []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: mac}}
	}
	return ndpFrame(ns, from, mac, group)
}

// arpFrame returns a broadcast frame with an ARP packet.
func arpFrame(op arp.Operation, sender netip.Addr, mac net.HardwareAddr, target netip.Addr,
	targetMAC net.HardwareAddr) ([]byte, error) {
	p, err := arp.NewPacket(op, mac, sender, targetMAC, target)
	if err != nil {
		return nil, err
	}
	payload, err := p.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return ethernetFrame(ethernet.Broadcast, mac, ethernet.EtherTypeARP, payload)
}

// ndpFrame returns a frame with an ICMPv6 message to a multicast group.
func ndpFrame(m ndp.Message, from netip.Addr, mac net.HardwareAddr, group netip.Addr) ([]byte, error) {
	message, err := ndp.MarshalMessageChecksum(m, from, group)
	if err != nil {
		return nil, err
	}
	const icmp6, hopLimit = 58, 255 // 255: it can't have passed a router (RFC 4861 section 7.1)
	packet := binary.BigEndian.AppendUint32(nil, 6<<28)
	packet = binary.BigEndian.AppendUint16(packet, uint16(len(message)))
	packet = append(packet, icmp6, hopLimit)
	packet = append(packet, from.AsSlice()...)
	packet = append(packet, group.AsSlice()...)
	packet = append(packet, message...)
	g := group.As16()
	to := append(net.HardwareAddr{0x33, 0x33}, g[12:]...) // RFC 2464 section 7
	return ethernetFrame(to, mac, ethernet.EtherTypeIPv6, packet)
}

// ethernetFrame returns a frame, unless from has not 6 bytes.
func ethernetFrame(to, from net.HardwareAddr, kind ethernet.EtherType, payload []byte) ([]byte, error) {
	if len(from) != 6 {
		return nil, fmt.Errorf("the link has no Ethernet address (%q)", from)
	}
	f := ethernet.Frame{Destination: to, Source: from, EtherType: kind, Payload: payload}
	return f.MarshalBinary()
}

// A neighborMessage is another host's ARP packet or neighbor advertisement: mac has addr, or, if a probe, asks for it.
type neighborMessage struct {
	addr netip.Addr
	mac  [6]byte
	kind messageKind
	asks netip.Addr // of a request or a probe: for what
}

type messageKind uint8

const (
	messageAnnouncement messageKind = iota // gratuitous ARP or an unsolicited advertisement
	messageRequest                         // an ARP request for another address, sent by addr
	messageReply                           // an ARP reply or a solicited advertisement
	messageProbe                           // an ARP probe (RFC 5227 section 2.1.1): mac's host does not use addr yet
)

// parseARP reads an ARP packet for IPv4 over Ethernet; its sender has the address (RFC 826).
func parseARP(frame []byte) (neighborMessage, bool) {
	const head = 14
	if len(frame) < head+28 || binary.BigEndian.Uint16(frame[12:]) != uint16(ethernet.EtherTypeARP) {
		return neighborMessage{}, false
	}
	b := frame[head:]
	if [6]byte(b[:6]) != [6]byte{0, 1, 8, 0, 6, 4} { // Ethernet, IPv4, and their lengths
		return neighborMessage{}, false
	}
	op, target := arp.Operation(binary.BigEndian.Uint16(b[6:])), netip.AddrFrom4([4]byte(b[24:28]))
	m := neighborMessage{addr: netip.AddrFrom4([4]byte(b[14:18])), mac: [6]byte(b[8:14])}
	switch {
	case m.addr.IsUnspecified() && op == arp.OperationRequest:
		m.addr, m.kind, m.asks = target, messageProbe, target
	case m.addr == target:
		m.kind = messageAnnouncement
	case op == arp.OperationReply:
		m.kind = messageReply
	default:
		m.kind, m.asks = messageRequest, target
	}
	return m, !m.addr.IsUnspecified() && (op == arp.OperationRequest || op == arp.OperationReply) // as in arp_process
}

// parseNA reads a neighbor advertisement with a MAC address; false for others.
func parseNA(m ndp.Message) (neighborMessage, bool) {
	na, ok := m.(*ndp.NeighborAdvertisement)
	if !ok {
		return neighborMessage{}, false
	}
	kind := messageAnnouncement
	if na.Solicited {
		kind = messageReply
	}
	for _, o := range na.Options {
		if l, ok := o.(*ndp.LinkLayerAddress); ok && l.Direction == ndp.Target && len(l.Addr) == 6 {
			return neighborMessage{addr: na.TargetAddress, mac: [6]byte(l.Addr), kind: kind}, true
		}
	}
	return neighborMessage{}, false
}
