package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// speakerVIPs is the addresses, with commas between, that this test binary answers for as a stand-in for a speaker of MetalLB: on the
// link eth0 it answers ARP requests for them with its own hardware address, and announces them once. It binds them
// to no link, as a speaker does not. Asked to stop, it ends.
const speakerVIPs = "HERALD_SPEAKER_VIPS"

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
	conn, err := packet.Listen(link, packet.Raw, unix.ETH_P_ARP, nil)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	all := net.HardwareAddr{255, 255, 255, 255, 255, 255}
	for _, a := range vips {
		if _, err := conn.WriteTo(arpReply(link.HardwareAddr, all, a, a), &packet.Addr{HardwareAddr: all}); err != nil {
			return err
		}
	}
	for b := make([]byte, 1500); ; {
		n, _, err := conn.ReadFrom(b)
		if err != nil {
			return nil // closed
		}
		// Operation, sender and target of the request (RFC 826) after the Ethernet header of 14 octets.
		if n < 42 || b[20] != 0 || b[21] != 1 {
			continue
		}
		mac, from, target := net.HardwareAddr(slices.Clone(b[22:28])), netip.AddrFrom4([4]byte(b[28:32])), netip.AddrFrom4([4]byte(b[38:42]))
		if !slices.Contains(vips, target) {
			continue
		}
		if _, err := conn.WriteTo(arpReply(link.HardwareAddr, mac, target, from), &packet.Addr{HardwareAddr: mac}); err != nil && ctx.Err() == nil {
			fmt.Println("not answered:", err)
		}
	}
}

// arpReply is a frame that says that the address is at own, to the host that has mac and the address to.
func arpReply(own, mac net.HardwareAddr, address, to netip.Addr) []byte {
	frame := slices.Concat(mac, own, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, own, address.AsSlice(), mac, to.AsSlice())
	return frame
}
