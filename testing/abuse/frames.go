package abuse

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// floodHost is the host of the link that sends the frames, and opens the connections.
const floodHost = "rt"

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// A neighbour is a node as the frames name it.
type neighbour struct {
	mac  net.HardwareAddr
	addr netip.Addr
	key  []byte // the ID of the key of the heartbeats, which is not secret
}

// startFloods sends frames of each kind, until ctx ends.
func (r *Running) startFloods(ctx context.Context) error {
	nodes, err := r.neighbours(ctx)
	if err != nil {
		return err
	}
	var conn *packet.Conn
	var own net.HardwareAddr
	err = r.lab.InNamespace(floodHost, func() error {
		ifi, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		own = ifi.HardwareAddr
		conn, err = packet.Listen(ifi, packet.Raw, 0, nil)
		return err
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	send := func(kind string, frame []byte) error {
		_, err := conn.WriteTo(frame, &packet.Addr{HardwareAddr: frame[:6]})
		r.made[kind].Add(1)
		return err
	}
	r.goOn(ctx, func(ctx context.Context) error {
		return each(ctx, r.load[ARP], func(i int) error { return send(ARP, r.arpFrame(i, own, nodes)) })
	})
	r.goOn(ctx, func(ctx context.Context) error {
		return each(ctx, r.load[Heartbeats]*len(nodes), func(i int) error {
			to, from := nodes[i%len(nodes)], nodes[(i+1)%len(nodes)]
			return send(Heartbeats, udpFrame(own, to.mac, netip.AddrPortFrom(from.addr, 7947), netip.AddrPortFrom(to.addr, 7947), heartbeat(to.key)))
		})
	})
	r.goOn(ctx, func(ctx context.Context) error {
		return each(ctx, r.load[Offers], func(int) error { return send(Offers, offerFrame(own)) })
	})
	return nil
}

// neighbours is the nodes. The IDs of keys are those that the node leases name.
func (r *Running) neighbours(ctx context.Context) (all []neighbour, err error) {
	for _, n := range r.lab.Nodes() {
		l, err := r.lab.Client().CoordinationV1().Leases("kube-system").Get(ctx, lease.NodePrefix+n, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		var info vip.NodeInfo
		if err := json.Unmarshal([]byte(l.Annotations[lease.NodeAnnotation]), &info); err != nil {
			return nil, fmt.Errorf("node lease of %s: %w", n, err)
		}
		x := neighbour{key: make([]byte, 4)}
		if len(info.HeartbeatKeys) > 0 {
			if x.key, err = hex.DecodeString(info.HeartbeatKeys[0]); err != nil {
				return nil, err
			}
		}
		if x.mac, err = net.ParseMAC(r.lab.MAC(n)); err != nil {
			return nil, err
		}
		x.addr, _ = r.lab.Addrs(n)
		all = append(all, x)
	}
	return all, nil
}

// arpFrame is the i-th ARP frame (RFC 826): by turns a broadcast request and an announcement of
// addresses that nobody has, and a request and a reply that say that a VIP is at another MAC. The
// latter two reach one node only: a host that believed them would lose its way to the VIP, and no
// Herald could help.
func (r *Running) arpFrame(i int, own net.HardwareAddr, nodes []neighbour) []byte {
	operation, sender, target, to := uint16(1), randomAddr(), randomAddr(), broadcast
	switch i % 4 {
	case 1:
		target = sender
	case 2, 3:
		sender, to = r.vips[i/4%len(r.vips)], nodes[i/4%len(nodes)].mac
		target, operation = sender, uint16(i%4-1)
	}
	f := binary.BigEndian.AppendUint16(append(append([]byte{}, to...), own...), unix.ETH_P_ARP)
	f = binary.BigEndian.AppendUint16(append(f, 0, 1, 8, 0, 6, 4), operation)
	f = append(append(f, randomMAC()...), sender.AsSlice()...)
	return append(append(f, make([]byte, 6)...), target.AsSlice()...)
}

// heartbeat is a packet that has the form of a heartbeat, the ID of a key that its receiver has, and
// nothing that was encrypted with it.
func heartbeat(key []byte) []byte {
	b := append([]byte{'H', 'P', 1, 0}, key...)
	for len(b) < 200 {
		b = binary.BigEndian.AppendUint64(b, rand.Uint64())
	}
	return b
}

// offerFrame is a DHCPOFFER (RFC 2131) to a random client.
func offerFrame(own net.HardwareAddr) []byte {
	server := netip.MustParseAddr("10.77.0.1").AsSlice()
	b := binary.BigEndian.AppendUint32([]byte{2, 1, 6, 0}, rand.Uint32())
	b = append(b, make([]byte, 8)...)
	b = append(append(append(b, randomAddr().AsSlice()...), server...), 0, 0, 0, 0)
	b = append(append(b, randomMAC()...), make([]byte, 10+192)...)
	b = append(b, 99, 130, 83, 99, 53, 1, 2, 54, 4)
	b = append(append(b, server...), 51, 4, 0, 0, 14, 16, 255)
	b = append(b, make([]byte, max(0, 300-len(b)))...)
	return udpFrame(own, broadcast, netip.AddrPortFrom(netip.MustParseAddr("10.77.0.1"), 67), netip.MustParseAddrPort("255.255.255.255:68"), b)
}

// udpFrame is an Ethernet frame with a UDP datagram in IPv4 (RFC 768, RFC 791), without a checksum of UDP.
func udpFrame(own, to net.HardwareAddr, from, dst netip.AddrPort, payload []byte) []byte {
	ip := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(28+len(payload)))
	ip = append(ip, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	ip = append(append(ip, from.Addr().AsSlice()...), dst.Addr().AsSlice()...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	f := binary.BigEndian.AppendUint16(append(append([]byte{}, to...), own...), unix.ETH_P_IP)
	f = append(f, ip...)
	for _, n := range []int{int(from.Port()), int(dst.Port()), 8 + len(payload), 0} {
		f = binary.BigEndian.AppendUint16(f, uint16(n))
	}
	return append(f, payload...)
}

// randomAddr is an address of the link that no host has.
func randomAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 77, 128 | byte(rand.IntN(64)), byte(rand.IntN(256))})
}

// randomMAC is a MAC address with the bit for local administration.
func randomMAC() net.HardwareAddr {
	return append(net.HardwareAddr{2}, binary.BigEndian.AppendUint64(nil, rand.Uint64())[:5]...)
}
