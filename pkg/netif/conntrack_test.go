package netif

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// When an address comes, conntrack forgets the flows to it that were not translated, but for TCP connections that were answered, and
// TCP connections that have ended. What has been translated, and what is for other addresses, stays.
func TestKernelForgetsStale(t *testing.T) {
	newVeth(t, "eth0", "10.0.0.1/24", "fd00::1/64")
	families := []netlink.InetFamily{unix.AF_INET, unix.AF_INET6}
	pod := map[bool]string{true: "10.1.0.2", false: "fd01::2"} // by whether it is IPv4's
	known := func(of netip.Addr, port uint16, protocol uint8, state uint8, translated bool) {
		t.Helper()
		family, from := families[0], "10.0.0.9"
		if of.Is6() {
			family, from = families[1], "fd00::9"
		}
		client, server := net.ParseIP(from), net.IP(of.AsSlice())
		if translated {
			server = net.ParseIP(pod[of.Is4()])
		}
		flow := &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 60,
			Forward: netlink.IPTuple{SrcIP: client, DstIP: of.AsSlice(), SrcPort: port, DstPort: 6443, Protocol: protocol},
			Reverse: netlink.IPTuple{SrcIP: server, DstIP: client, SrcPort: 6443, DstPort: port, Protocol: protocol},
		}
		if protocol == unix.IPPROTO_TCP {
			flow.ProtoInfo = &netlink.ProtoInfoTCP{State: state}
		}
		check.OK(t, netlink.ConntrackCreate(netlink.ConntrackTable, family, flow))
	}
	vips := []netip.Addr{netip.MustParseAddr("10.0.0.50"), netip.MustParseAddr("fd00::50")}
	var want []vip.Address
	for _, a := range vips {
		const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
		known(a, 1001, tcp, nl.TCP_CONNTRACK_SYN_SENT, false)
		known(a, 1002, tcp, nl.TCP_CONNTRACK_ESTABLISHED, true)
		known(a.Next(), 1003, tcp, nl.TCP_CONNTRACK_SYN_SENT, false)
		known(a, 1004, tcp, nl.TCP_CONNTRACK_SYN_SENT, true)
		known(a, 1005, tcp, nl.TCP_CONNTRACK_TIME_WAIT, true)
		known(a, 1006, tcp, nl.TCP_CONNTRACK_CLOSE, true)
		known(a, 1007, tcp, nl.TCP_CONNTRACK_LAST_ACK, true)
		known(a, 1008, udp, 0, false)
		known(a, 1009, udp, 0, true)
		known(a.Next(), 1010, udp, 0, false)
		want = append(want, vip.Address{Addr: a, Bits: a.BitLen(), Link: "eth0", LocalDelivery: a.Is6()})
	}
	n, stop := kernelRig(t)
	defer stop()
	check.Value(n.Set(t.Context(), want))(t)
	check.Until(t, 10*time.Second, "conntrack to forget the stale ones", func() error {
		var left []string
		for _, family := range families {
			all, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, c := range all {
				left = append(left, fmt.Sprint(c.Forward.DstIP, " ", c.Forward.SrcPort))
			}
		}
		slices.Sort(left)
		if want := []string{
			"10.0.0.50 1002", "10.0.0.50 1004", "10.0.0.50 1007", "10.0.0.50 1009", "10.0.0.51 1003", "10.0.0.51 1010",
			"fd00::50 1002", "fd00::50 1004", "fd00::50 1007", "fd00::50 1009", "fd00::51 1003", "fd00::51 1010",
		}; !slices.Equal(left, want) {
			return fmt.Errorf("conntrack has %q, want %q", left, want)
		}
		return nil
	})
}
