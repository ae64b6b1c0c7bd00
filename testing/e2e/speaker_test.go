package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/mdlayher/ndp"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// speakerVIPs is the addresses, with commas between, that this test binary answers for as a stand-in for a speaker of MetalLB: on the
// link eth0 it answers ARP requests and Neighbour Solicitations for them with its own hardware address, and announces the IPv4 ones once. It
// binds them to no link, as a speaker does not. Asked to stop, it ends.
const speakerVIPs = "HERALD_SPEAKER_VIPS"

// allHosts is the Ethernet broadcast address.
var allHosts = net.HardwareAddr{255, 255, 255, 255, 255, 255}

// speak runs as the stand-in until it is asked to stop.
func speak() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	var vips []netip.Addr
	for text := range strings.SplitSeq(os.Getenv(speakerVIPs), ",") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return err
		}
		vips = append(vips, a)
	}
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return err
	}
	solicited := make(chan error, 1)
	go func() { solicited <- answer(ctx, link, vips, unix.ETH_P_IPV6, solicitedFor) }()
	if err := answer(ctx, link, vips, unix.ETH_P_ARP, requestedBy); err != nil {
		return err
	}
	return <-solicited
}

// answer answers frames of one EtherType until ctx ends: asks returns what a frame asks for, and the frame that answers it.
func answer(ctx context.Context, link *net.Interface, vips []netip.Addr, etherType int, asks func(own net.HardwareAddr, frame []byte) (netip.Addr, []byte)) error {
	conn, err := packet.Listen(link, packet.Raw, etherType, nil)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	for _, a := range vips {
		if a.Is4() && etherType == unix.ETH_P_ARP {
			if _, err := conn.WriteTo(arpReply(link.HardwareAddr, allHosts, a, a), &packet.Addr{HardwareAddr: allHosts}); err != nil {
				return err
			}
		}
	}
	for b := make([]byte, 1500); ; {
		n, _, err := conn.ReadFrom(b)
		if err != nil {
			return nil // closed
		}
		target, reply := asks(link.HardwareAddr, b[:n])
		if !slices.Contains(vips, target) {
			continue
		}
		if _, err := conn.WriteTo(reply, &packet.Addr{HardwareAddr: reply[:6]}); err != nil && ctx.Err() == nil {
			fmt.Println("not answered:", err)
		}
	}
}

// requestedBy returns the address that an ARP request (RFC 826) asks for, and the reply.
func requestedBy(own net.HardwareAddr, frame []byte) (target netip.Addr, reply []byte) {
	// Operation, sender and target of the request after the Ethernet header of 14 octets.
	if len(frame) < 42 || frame[20] != 0 || frame[21] != 1 {
		return target, nil
	}
	mac, from, target := net.HardwareAddr(slices.Clone(frame[22:28])), netip.AddrFrom4([4]byte(frame[28:32])), netip.AddrFrom4([4]byte(frame[38:42]))
	return target, arpReply(own, mac, target, from)
}

// arpReply is a frame that says that the address is at own, to the host that has mac and the address to.
func arpReply(own, mac net.HardwareAddr, address, to netip.Addr) []byte {
	return slices.Concat(mac, own, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, own, address.AsSlice(), mac, to.AsSlice())
}

// solicitedFor returns the address that a Neighbour Solicitation (RFC 4861 section 4.3) asks for, and the advertisement that answers it.
func solicitedFor(own net.HardwareAddr, frame []byte) (target netip.Addr, reply []byte) {
	const header = 14 + 40 // Ethernet, IPv6
	if len(frame) < header+24 || frame[20] != unix.IPPROTO_ICMPV6 {
		return target, nil
	}
	m, err := ndp.ParseMessage(frame[header:])
	solicitation, ok := m.(*ndp.NeighborSolicitation)
	from := netip.AddrFrom16([16]byte(frame[22:38]))
	if err != nil || !ok || from.IsUnspecified() {
		return target, nil
	}
	target = solicitation.TargetAddress
	body, err := ndp.MarshalMessageChecksum(&ndp.NeighborAdvertisement{
		Solicited: true, Override: true, TargetAddress: target, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: own}},
	}, target, from)
	if err != nil {
		return netip.Addr{}, nil
	}
	reply = slices.Concat(frame[6:12], own, []byte{0x86, 0xdd, 0x60, 0, 0, 0})
	reply = binary.BigEndian.AppendUint16(reply, uint16(len(body)))
	reply = append(reply, unix.IPPROTO_ICMPV6, ndp.HopLimit)
	return target, slices.Concat(reply, target.AsSlice(), from.AsSlice(), body)
}

// startBGPSpeakers runs BIRD on each node as a stand-in for the BGP part of MetalLB's speakers: it has a session with the router rt, and
// advertises one address.
func startBGPSpeakers(t *testing.T, vip string) map[string]*lab.Router {
	t.Helper()
	speakers := make(map[string]*lab.Router)
	for i, n := range cluster.Nodes() {
		own := fmt.Sprintf("10.77.0.%d", 11+i)
		speakers[n] = check.Value(cluster.BIRD(t.Context(), n, "router id "+own+`;
protocol device {}
protocol static { ipv4; route `+vip+`/32 unreachable; }
protocol bgp lab {
 local `+own+` as 65000;
 neighbor 10.77.0.1 as 65001;
 ipv4 { import none; export all; next hop self; };
}
`))(t)
		t.Cleanup(func() { check.OK(t, speakers[n].Close()) })
	}
	return speakers
}
