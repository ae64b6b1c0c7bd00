package netif

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/mdlayher/ndp"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
)

// To a link with max_addresses addresses, VIPs too, the kernel adds none by router advertisements. The log says so, once, if it adds any there.
func TestKernelMaxAddresses(t *testing.T) {
	const conf = "net/ipv6/conf/eth0/"
	newVeth(t, "eth0")
	for name, value := range map[string]string{"accept_ra": "2", "forwarding": "1", "autoconf": "1", "max_addresses": "16"} {
		sysctl(t, conf+name, value)
	}
	r, stop := kernelRig(t)
	defer stop()
	var all []vip.Address
	for i := range 15 {
		all = append(all, addr(fmt.Sprintf("2001:db8::%x/128", i+1), "eth0"))
	}
	const warning = "level=WARN msg=\"the kernel adds no address to a link with so many, by router advertisements: raise the sysctl max_addresses\" link=eth0 max_addresses=16\n"
	set := func(what string, vips int, want string) {
		t.Helper()
		r.log.reset()
		_, err := r.Set(t.Context(), all[:vips])
		check.OK(t, err)
		var got strings.Builder
		for line := range strings.Lines(r.log.String()) {
			if strings.Contains(line, "level=WARN") {
				got.WriteString(line)
			}
		}
		if d := diff(want, got.String()); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	set("14 VIPs, and the link-local address", 14, "")
	for name, values := range map[string][2]string{"accept_ra": {"1", "2"}, "autoconf": {"0", "1"}, "max_addresses": {"0", "16"}} {
		sysctl(t, conf+name, values[0])
		set(name+" is "+values[0], 15, "")
		sysctl(t, conf+name, values[1])
	}
	set("15 VIPs", 15, warning)
	set("once more", 15, "")

	advertise := func(prefix string) { // as a router at the other end; not by a socket of IPv6, since package net remembers the index of a link
		t.Helper()
		p, from, to := netip.MustParsePrefix(prefix), netip.MustParseAddr("fe80::77"), netip.MustParseAddr("ff02::1")
		m, err := ndp.MarshalMessageChecksum(&ndp.RouterAdvertisement{Options: []ndp.Option{&ndp.PrefixInformation{
			PrefixLength: uint8(p.Bits()), Prefix: p.Addr(), AutonomousAddressConfiguration: true, ValidLifetime: time.Hour, PreferredLifetime: time.Hour,
		}}}, from, to)
		check.OK(t, err)
		header := []byte{0x60, 0, 0, 0, 0, byte(len(m)), unix.IPPROTO_ICMPV6, 255}
		ifi, err := net.InterfaceByName("eth0p")
		check.OK(t, err)
		c, err := packet.Listen(ifi, packet.Datagram, unix.ETH_P_IPV6, nil)
		check.OK(t, err)
		defer c.Close()
		_, err = c.WriteTo(slices.Concat(header, from.AsSlice(), to.AsSlice(), m), &packet.Addr{HardwareAddr: net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}})
		check.OK(t, err)
	}
	advertise("2001:db8:1::/64")
	sysctl(t, conf+"max_addresses", "17")
	advertise("2001:db8:2::/64")
	check.True(t, 10*time.Second, "an address of the second network", func() bool { return strings.Contains(addresses(t, "eth0"), "2001:db8:2:") })
	if got := addresses(t, "eth0"); strings.Contains(got, "2001:db8:1:") {
		t.Errorf("the kernel has more than 16:\n%s", got)
	}
}
