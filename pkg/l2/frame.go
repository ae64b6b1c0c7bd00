package l2

import (
	"encoding/binary"
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

// announcement is the frames that tell all neighbours that addr is at mac. The
// first of them is the one for repetition: it says all there is to say to a
// neighbour that knows the address.
func announcement(addr netip.Addr, mac net.HardwareAddr) ([][]byte, error) {
	if len(mac) != 6 {
		return nil, fmt.Errorf("the link has no Ethernet address (%q)", mac)
	}
	if addr.Is4() {
		request, err := arpRequest(addr, mac)
		if err != nil {
			return nil, err
		}
		reply, err := arpReply(addr, mac)
		return [][]byte{request, reply}, err
	}
	nodes, err := advertisement(addr, mac, allNodes)
	if err != nil {
		return nil, err
	}
	routers, err := advertisement(addr, mac, allRouters)
	return [][]byte{nodes, routers}, err
}

// arpRequest is an ARP Announcement (RFC 5227 section 2.3): a broadcast request
// in which sender and target are addr. The target hardware address means nothing
// in it, and is 0 (section 1.1).
func arpRequest(addr netip.Addr, mac net.HardwareAddr) ([]byte, error) {
	return arpFrame(arp.OperationRequest, addr, mac, make(net.HardwareAddr, 6))
}

// arpReply is a broadcast reply that says the same, for neighbours that learn
// from replies only. The target hardware address must be the sender's: Linux
// takes no other reply for gratuitous (arp_is_garp).
func arpReply(addr netip.Addr, mac net.HardwareAddr) ([]byte, error) {
	return arpFrame(arp.OperationReply, addr, mac, mac)
}

func arpFrame(op arp.Operation, addr netip.Addr, mac, target net.HardwareAddr) ([]byte, error) {
	p, err := arp.NewPacket(op, mac, addr, target, addr)
	if err != nil {
		return nil, err
	}
	return arpBroadcast(p, mac)
}

func arpBroadcast(p *arp.Packet, mac net.HardwareAddr) ([]byte, error) {
	payload, err := p.MarshalBinary()
	if err != nil {
		return nil, err
	}
	f := ethernet.Frame{Destination: ethernet.Broadcast, Source: mac, EtherType: ethernet.EtherTypeARP, Payload: payload}
	return f.MarshalBinary()
}

// advertisement is an unsolicited neighbor advertisement to a multicast group
// (RFC 4861 section 7.2.6). Override is set, or a neighbour that knows addr at
// another node would keep that. ff02::2 has routers make an entry (RFC 9131).
func advertisement(addr netip.Addr, mac net.HardwareAddr, group netip.Addr) ([]byte, error) {
	na := &ndp.NeighborAdvertisement{
		Override:      true,
		TargetAddress: addr,
		Options:       []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: mac}},
	}
	message, err := ndp.MarshalMessageChecksum(na, addr, group)
	if err != nil {
		return nil, err
	}
	return icmpFrame(message, mac, addr, group)
}

// icmpFrame is an ICMPv6 message to a multicast group.
func icmpFrame(message []byte, mac net.HardwareAddr, from, group netip.Addr) ([]byte, error) {
	const icmp6, hopLimit = 58, 255 // 255: it can't have passed a router (RFC 4861 section 7.1)
	packet := binary.BigEndian.AppendUint32(nil, 6<<28)
	packet = binary.BigEndian.AppendUint16(packet, uint16(len(message)))
	packet = append(packet, icmp6, hopLimit)
	packet = append(packet, from.AsSlice()...)
	packet = append(packet, group.AsSlice()...)
	packet = append(packet, message...)
	g := group.As16()
	f := ethernet.Frame{
		Destination: append(net.HardwareAddr{0x33, 0x33}, g[12:]...), // RFC 2464 section 7
		Source:      mac,
		EtherType:   ethernet.EtherTypeIPv6,
		Payload:     packet,
	}
	return f.MarshalBinary()
}

// question is the frame that asks who has addr. If from is 0.0.0.0 or ::, it is a
// probe: nobody learns anything from it.
func question(addr, from netip.Addr, mac net.HardwareAddr) ([]byte, error) {
	if len(mac) != 6 {
		return nil, fmt.Errorf("the link has no Ethernet address (%q)", mac)
	}
	if addr.Is4() {
		p, err := arp.NewPacket(arp.OperationRequest, mac, from, make(net.HardwareAddr, 6), addr)
		if err != nil {
			return nil, err
		}
		return arpBroadcast(p, mac)
	}
	group, err := ndp.SolicitedNodeMulticast(addr)
	if err != nil {
		return nil, err
	}
	ns := &ndp.NeighborSolicitation{TargetAddress: addr}
	if !from.IsUnspecified() { // RFC 4861 section 4.3: not in a probe
		ns.Options = []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: mac}}
	}
	message, err := ndp.MarshalMessageChecksum(ns, from, group)
	if err != nil {
		return nil, err
	}
	return icmpFrame(message, mac, from, group)
}

// A word is what a neighbour said: addr is at mac.
type word struct {
	addr   netip.Addr
	mac    [6]byte
	probe  bool // it is not: mac's host asks before it uses addr (RFC 5227 section 2.1.1)
	answer bool // it answers a question, and is no announcement
	alone  bool // it is about one neighbour's question; announcements come many at a time
}

// parseARP reads an Ethernet frame. Request or reply, the sender fields say who
// has the address (RFC 826). In a probe the sender is 0.0.0.0.
func parseARP(frame []byte) (word, bool) {
	const head = 14
	if len(frame) < head+28 || binary.BigEndian.Uint16(frame[12:]) != 0x0806 {
		return word{}, false
	}
	b := frame[head:]
	if [6]byte(b[:6]) != [6]byte{0, 1, 8, 0, 6, 4} { // Ethernet, IPv4, and their lengths
		return word{}, false
	}
	w := word{addr: netip.AddrFrom4([4]byte(b[14:18])), mac: [6]byte(b[8:14])}
	if w.addr.IsUnspecified() && b[7] == byte(arp.OperationRequest) {
		w.addr, w.probe = netip.AddrFrom4([4]byte(b[24:28])), true
	}
	w.alone = [4]byte(b[24:28]) != w.addr.As4() || w.probe
	w.answer = w.alone && b[7] == byte(arp.OperationReply)
	return w, !w.addr.IsUnspecified()
}

// parseNA reads a neighbor advertisement. One without the target's link-layer
// address is an answer to one neighbour, and says nothing.
func parseNA(m ndp.Message) (word, bool) {
	na, ok := m.(*ndp.NeighborAdvertisement)
	if !ok {
		return word{}, false
	}
	for _, o := range na.Options {
		if l, ok := o.(*ndp.LinkLayerAddress); ok && l.Direction == ndp.Target && len(l.Addr) == 6 {
			return word{addr: na.TargetAddress, mac: [6]byte(l.Addr), answer: na.Solicited, alone: na.Solicited}, true
		}
	}
	return word{}, false
}
