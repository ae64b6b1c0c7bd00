package netif

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// describeInfo is a NodeInfo as text.
func describeInfo(i vip.NodeInfo) string {
	var b strings.Builder
	fmt.Fprintf(&b, "interface %s default %s\n", i.Interface, i.DefaultInterface)
	if i.HeartbeatInterface != "" {
		fmt.Fprintf(&b, "heartbeats %s\n", i.HeartbeatInterface)
	}
	for _, l := range i.Links {
		state := "down"
		if l.Up {
			state = "up"
		}
		if l.MAC != "" {
			state += " " + l.MAC
		}
		if len(l.TentativeNetworks) > 0 {
			state += fmt.Sprint(" tentative ", l.TentativeNetworks)
		}
		fmt.Fprintf(&b, "%s %s %v\n", l.Name, state, l.Prefixes)
	}
	if len(i.OtherAddresses)+len(i.Gateways) > 0 {
		fmt.Fprintf(&b, "others %v gateways %v\n", i.OtherAddresses, i.Gateways)
	}
	return b.String()
}

// A static single address is no own one for VIPs, but BGP may have sessions from it.
func TestLinksHaveStaticAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newFake(`
			link 1 lo loopback
			link 2 eth0 up
			eth0 10.1.0.5/32 permanent
			default 4 eth0 100 10.1.0.1`), func(o *Options) { o.Interface, o.AllowNotUp = "eth0", true })
		for _, l := range r.Links() {
			if l.Name == "eth0" {
				check.Equal(t, fmt.Sprint(l.Prefixes), "[10.1.0.5/32]", "addresses of eth0")
			}
		}
		check.Equal(t, len(r.Info().Links[0].Prefixes), 0, "own addresses for VIPs")
	})
}

func TestInfo(t *testing.T) {
	tests := []struct {
		name      string
		kernel    string
		vip, svc  string // vip_interface, vip_servicesinterface
		want      string
		unmanaged string
	}{
		{
			name: "a node",
			kernel: `
				link 1 lo loopback
				link 2 eth0 up mac=02:00:00:00:00:0a
				link 3 eth1 up
				link 4 eth2 down
				link 5 cni0 up bridge
				link 6 vetha up veth master=5
				link 7 vethb up veth
				link 8 kube-ipvs0 down dummy
				lo 127.0.0.1/8
				lo ::1/128
				lo 10.0.0.77/32
				eth0 10.0.0.5/24
				eth0 10.0.0.9/32 marked
				eth0 10.0.0.10/32
				eth0 10.9.0.10/32 linkscope
				eth0 2001:db8::5/64
				eth0 fd00::5/64
				eth0 2001:db8::1234/64 temporary
				eth0 fe80::5/64 linkscope
				eth0 169.254.3.5/16 linkscope
				eth1 2001:db8::77/128
				cni0 10.244.0.1/24
				vetha fe80::6/64 linkscope
				vethb fe80::7/64 linkscope
				vethb 10.244.0.1/32
				kube-ipvs0 10.0.0.10/32
				kube-ipvs0 10.96.0.1/32
				default 4 eth0 100 10.0.0.1
				default 6 eth1 100 fe80::1`,
			want: `
				interface eth0 default eth0
				cni0 up [10.244.0.1/24]
				eth0 up 02:00:00:00:00:0a [10.0.0.5/24 2001:db8::5/64 fd00::5/64]
				eth1 up [2001:db8::77/128]
				others [10.0.0.10 10.0.0.77 10.244.0.1] gateways [10.0.0.1]`,
			unmanaged: `
				eth0 10.0.0.10/32
				vethb 10.244.0.1/32`,
		},
		{
			name: "addresses by DHCPv6, or of a cloud, are alone in their network; beside a network they are other programs'",
			kernel: `
				link 1 lo loopback
				link 2 eth0 up veth
				link 3 eth1 up
				link 4 eth2 up
				link 5 vetha up veth
				link 6 eth3 up
				lo 2001:db8:9::1/128
				eth0 10.0.0.5/24
				eth0 10.0.0.50/32
				eth0 2001:db8::5/128
				eth0 2001:db8::50/128 permanent
				eth0 2001:db8::51/128 marked
				eth0 2001:db8::52/128 temporary
				eth0 fe80::5/64 linkscope
				eth1 10.1.0.5/32
				eth1 10.1.0.50/32 permanent
				eth1 2001:db8:1::5/64
				eth1 2001:db8:1::50/128
				eth2 2001:db8:2::5/64 tentative
				eth2 2001:db8:2::50/128
				vetha 10.244.0.1/32
				eth3 10.3.0.5/24
				eth3 10.3.0.6/24 secondary
				default 4 eth0 100 10.0.0.1`,
			want: `
				interface eth0 default eth0
				eth0 up [10.0.0.5/24 2001:db8::5/128]
				eth1 up [2001:db8:1::5/64 10.1.0.5/32]
				eth2 up tentative [2001:db8:2::/64] []
				eth3 up [10.3.0.5/24]
				others [10.0.0.50 10.1.0.50 10.3.0.6 10.244.0.1 2001:db8::50 2001:db8:1::50 2001:db8:2::5 2001:db8:2::50 2001:db8:9::1] gateways [10.0.0.1]`,
			unmanaged: `
				eth0 10.0.0.50/32
				eth0 2001:db8::50/128
				eth1 10.1.0.50/32
				eth1 2001:db8:1::50/128
				eth2 2001:db8:2::50/128
				eth3 10.3.0.6/24
				vetha 10.244.0.1/32`,
		},
		{
			name: "an address by DHCPv6 is in the longest network that its link has by a route, but not one beside an address of that network",
			kernel: `
				link 2 eth0 up
				link 3 eth1 up
				link 4 eth2 up
				link 5 eth3 up
				link 6 vip0 up herald
				eth0 10.0.0.5/32
				eth0 2001:db8::5/128
				eth0 2001:db8:0:1::5/128
				eth0 2001:db8::50/128 permanent
				eth0 2001:db8::51/128 marked
				eth0 fd00::5/64
				eth1 2001:db8:1::5/128 tentative
				eth2 2001:db8:2::5/64
				eth2 2001:db8:2::50/128
				eth3 2001:db8:3::5/128
				vip0 2001:db8::60/128
				onlink eth0 2001:db8::/48
				onlink eth0 2001:db8::/64
				onlink eth0 2001:db8::/56
				onlink eth1 2001:db8:1::/64
				onlink eth2 2001:db8:2::/64
				onlink eth2 2001:db8:3::/64
				onlink vip0 2001:db8::/64
				default 6 eth0 100 fe80::1`,
			want: `
				interface eth0 default eth0
				eth0 up [2001:db8::5/64 2001:db8:0:1::5/56 fd00::5/64 10.0.0.5/32]
				eth1 up tentative [2001:db8:1::/64] []
				eth2 up [2001:db8:2::5/64]
				eth3 up [2001:db8:3::5/128]
				others [2001:db8::50 2001:db8:1::5 2001:db8:2::50] gateways []`,
			unmanaged: `
				eth0 2001:db8::50/128
				eth2 2001:db8:2::50/128
				vip0 2001:db8::60/128`,
		},
		{
			name: "routes of networks on a link choose no link of VIPs",
			kernel: `
				link 2 a up
				link 3 b up
				onlink a 2001:db8::/64
				default 6 b 100`,
			want: "interface b default b\n a up []\n b up []",
		},
		{
			name: "the default route of IPv4 goes before that of IPv6, a low metric before a high one",
			kernel: `
				link 2 a up
				link 3 b up
				link 4 c up
				default 6 a 1
				default 4 b 200
				default 4 c 100`,
			want: "interface c default c\n a up []\n b up []\n c up []",
		},
		{
			name:   "IPv6 only",
			kernel: "link 2 a up\n default 6 a 1024",
			want:   "interface a default a\n a up []",
		},
		{
			name:   "named",
			kernel: "link 2 a up\n link 3 b up veth\n default 4 a",
			vip:    "b",
			want:   "interface b default b\n a up []\n b up []",
		},
		{
			name:   "named for Services",
			kernel: "link 2 a up\n link 3 b up\n link 4 c down veth\n default 4 a",
			vip:    "b", svc: "c",
			want: "interface c default b\n a up []\n b up []\n c down []",
		},
		{
			name:   "the link of VIPs is a loopback, where no other node is",
			kernel: "link 1 lo loopback\n link 2 a up\n link 3 b up\n lo 127.0.0.1/8\n lo 10.0.0.77/32\n b 10.1.0.5/24\n default 4 b 100 10.1.0.1",
			vip:    "lo",
			want:   "interface lo default lo\n heartbeats b\n a up []\n b up [10.1.0.5/24]\n lo up []\n others [10.0.0.77] gateways [10.1.0.1]",
		},
		{
			name:   "the same, and the default route is by a port of a bridge",
			kernel: "link 1 lo loopback\n link 2 a up master=4\n link 4 br0 up bridge\n a 10.1.0.5/24\n default 4 a",
			vip:    "lo",
			want:   "interface lo default lo\n heartbeats a\n a up [10.1.0.5/24]\n br0 up []\n lo up []",
		},
		{
			name:   "the same for Services alone",
			kernel: "link 1 lo loopback\n link 2 a up\n link 3 b up\n default 4 a",
			vip:    "b", svc: "lo",
			want: "interface lo default b\n heartbeats b\n a up []\n b up []\n lo up []",
		},
		{
			name:   "the same without a default route",
			kernel: "link 1 lo loopback\n link 2 a up",
			vip:    "lo",
			want:   "interface lo default lo\n a up []\n lo up []",
		},
		{
			name:   "auto where vip_interface is a loopback",
			kernel: "link 1 lo loopback\n link 2 a up\n default 4 a",
			vip:    "lo", svc: "auto",
			want: "interface auto default lo\n heartbeats a\n a up []\n lo up []",
		},
		{
			name:   "auto",
			kernel: "link 2 a up\n link 3 b up veth\n default 4 a",
			svc:    "auto",
			want:   "interface auto default a\n a up []",
		},
		{
			name: "ports have no addresses of their own, a VRF's links do",
			kernel: `
				link 2 eth0 up master=4
				link 3 eth1 up master=5
				link 4 bond0 up bond
				link 5 red up vrf
				bond0 10.0.0.5/24
				eth1 10.1.0.5/24
				default 4 bond0`,
			want: "interface bond0 default bond0\n bond0 up [10.0.0.5/24]\n eth1 up [10.1.0.5/24]",
		},
		{
			name:   "hardware, a VLAN or a bridge without an address only while it is up",
			kernel: "link 2 eth0 up\n link 3 eth1 down\n link 4 eth2 up\n link 5 eth2.7 up vlan\n link 6 tun0 up tun\n link 7 br0 up bridge\n link 8 br1 down bridge\n default 4 eth0",
			want:   "interface eth0 default eth0\n br0 up []\n eth0 up []\n eth2 up []\n eth2.7 up []",
		},
		{
			name: "an address that is tentative, or that another host has, is not used, and no VIP may be it",
			kernel: `
				link 2 eth0 up
				link 3 herald-vip up herald
				herald-vip 2001:db8::3/64 tentative
				eth0 2001:db8::5/64 tentative
				eth0 2001:db8::6/64 tentative temporary
				eth0 2001:db8::7/128 tentative
				eth0 2001:db8::8/128 tentative marked
				eth0 2001:db8::9/64
				eth0 fe80::5/64 tentative linkscope
				default 6 eth0`,
			want: `
				interface eth0 default eth0
				eth0 up tentative [2001:db8::/64] [2001:db8::9/64]
				others [2001:db8::5 2001:db8::7] gateways []`,
			unmanaged: "eth0 2001:db8::7/128",
		},
		{
			name: "what another program left with the mask of the network or the node's second address is an other address",
			kernel: `
				link 2 eth0 up
				eth0 10.0.0.5/24
				eth0 10.0.0.3/24 secondary
				eth0 10.1.0.5/24
				default 4 eth0`,
			want: `
				interface eth0 default eth0
				eth0 up [10.0.0.5/24 10.1.0.5/24]
				others [10.0.0.3] gateways []`,
			unmanaged: "eth0 10.0.0.3/24",
		},
		{
			name: "a macvlan that kube-vip left, with a VIP by DHCP, is no link of VIPs; other macvlans are",
			kernel: `
				link 2 eth0 up
				link 3 vip-398f068d up macvlan mac=d6:41:b6:bc:a9:df
				link 4 vip-lan up macvlan
				link 5 vip-398f068e up vlan
				eth0 10.0.0.5/24
				vip-398f068d 10.0.0.50/24
				default 4 eth0`,
			want: `
				interface eth0 default eth0
				eth0 up [10.0.0.5/24]
				vip-398f068e up []
				vip-lan up []
				others [10.0.0.50] gateways []`,
			unmanaged: "vip-398f068d 10.0.0.50/24",
		},
		{
			name: "a link without a carrier, on which addresses stay tentative, is in their networks",
			kernel: `
				link 1 lo loopback
				link 2 eth0 up
				link 3 eth1 down
				link 4 eth2 down
				link 5 br0 up bridge
				eth1 2001:db8:1::5/64 tentative
				eth1 2001:db8:1::6/64 tentative
				eth1 2001:db8:2::5/48 tentative
				eth2 2001:db8:3::5/128 tentative
				br0 2001:db8:4::5/64 tentative
				default 6 eth0`,
			want: `
				interface eth0 default eth0
				br0 up tentative [2001:db8:4::/64] []
				eth0 up []
				eth1 down tentative [2001:db8:1::/64 2001:db8:2::/48] []
				others [2001:db8:1::5 2001:db8:1::6 2001:db8:2::5 2001:db8:3::5 2001:db8:4::5] gateways []`,
			unmanaged: "eth2 2001:db8:3::5/128",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, newFake(tt.kernel), func(o *Options) {
					o.Interface, o.ServicesInterface, o.AllowNotUp = tt.vip, tt.svc, true
				})
				check.Same(t, check.Lines(tt.want), check.Lines(describeInfo(r.Info())), "Info")
				check.Same(t, check.Lines(tt.unmanaged), text(worldOf(r.Interfaces).Unmanaged), "Unmanaged")
			})
		})
	}
}

func TestInfoFollowsTheKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake("link 2 eth0 up\n link 3 eth1 up\n link 7 vetha up veth\n eth0 10.0.0.5/24\n eth1 10.1.0.5/24\n default 4 eth0")
		r := newRig(t, k, func(o *Options) { o.Interface = "" })
		defer r.run(t)()
		check.Value(r.Set(t.Context(), []vip.Address{addr("10.0.0.9/32", "eth0")}))(t)
		for _, step := range []struct {
			name   string
			change func()
			poke   bool
			want   string
		}{
			{"nothing", func() {}, false, "interface eth0 default eth0\n eth0 up [10.0.0.5/24]\n eth1 up [10.1.0.5/24]"},
			{"the link goes down", func() { k.setLink(link{index: 2, name: "eth0"}) }, true, "interface eth0 default eth0\n eth0 down [10.0.0.5/24]\n eth1 up [10.1.0.5/24]"},
			{"and up", func() { k.setLink(link{index: 2, name: "eth0", up: true}) }, true, "interface eth0 default eth0\n eth0 up [10.0.0.5/24]\n eth1 up [10.1.0.5/24]"},
			{"a pod comes", func() { k.setLink(link{index: 8, name: "vethb", kind: "veth", up: true}) }, false, "interface eth0 default eth0\n eth0 up [10.0.0.5/24]\n eth1 up [10.1.0.5/24]"},
			{"a pod goes", func() { k.removeLink("vetha") }, false, "interface eth0 default eth0\n eth0 up [10.0.0.5/24]\n eth1 up [10.1.0.5/24]"},
			{"another address", func() { k.add("eth0", "2001:db8::5/64") }, true, "interface eth0 default eth0\n eth0 up [10.0.0.5/24 2001:db8::5/64]\n eth1 up [10.1.0.5/24]"},
			{"an address goes", func() { k.drop(k.at("eth1", "10.1.0.5/24")) }, true, "interface eth0 default eth0\n eth0 up [10.0.0.5/24 2001:db8::5/64]\n eth1 up []"},
			{"another default route", func() {
				k.setDefaults(route{family: vip.IPv4, link: 3, metric: 0}, route{family: vip.IPv4, link: 2, metric: 1})
			}, true, "interface eth1 default eth1\n eth0 up [10.0.0.5/24 2001:db8::5/64]\n eth1 up []"},
			{"one of a link that nobody knows", func() {
				k.setDefaults(route{family: vip.IPv4, link: 99, metric: 0}, route{family: vip.IPv4, link: 2, metric: 7}, route{family: vip.IPv4, link: 3, metric: 8})
			}, true, "interface eth0 default eth0\n eth0 up [10.0.0.5/24 2001:db8::5/64]\n eth1 up []"},
			{"none", func() { k.setDefaults() }, false, "interface eth0 default eth0\n eth0 up [10.0.0.5/24 2001:db8::5/64]\n eth1 up []"},
			{"a link is renamed", func() { k.setLink(link{index: 3, name: "lan", up: true}) }, true, "interface eth0 default eth0\n eth0 up [10.0.0.5/24 2001:db8::5/64]\n lan up []"},
			{"two links swap names", func() {
				k.setLink(link{index: 2, name: "lan", up: true})
				k.setLink(link{index: 3, name: "eth0", up: true})
			}, true, "interface  default \n eth0 up []\n lan up [10.0.0.5/24 2001:db8::5/64]"},
			{"and back", func() {
				k.setLink(link{index: 3, name: "lan", up: true})
				k.setLink(link{index: 2, name: "eth0", up: true})
			}, true, "interface  default \n eth0 up [10.0.0.5/24 2001:db8::5/64]\n lan up []"},
			{"a link goes", func() { k.removeLink("lan") }, true, "interface  default \n eth0 up [10.0.0.5/24 2001:db8::5/64]"},
			{"an address is tentative", func() { k.addTentative("eth0", "2001:db8::4/64") }, true, "interface  default \n eth0 up tentative [2001:db8::/64] [10.0.0.5/24 2001:db8::5/64]\n others [2001:db8::4] gateways []"},
			{"and nobody else has it", func() { k.add("eth0", "2001:db8::4/64") }, true, "interface  default \n eth0 up [10.0.0.5/24 2001:db8::4/64 2001:db8::5/64]"},
		} {
			before := r.pokes.Load()
			step.change()
			time.Sleep(readInterval) // until routes are read
			synctest.Wait()
			check.Equal(t, r.pokes.Load() > before, step.poke, "%s: poked", step.name)
			check.Same(t, check.Lines(step.want), check.Lines(describeInfo(r.Info())), "%s", step.name)
			for _, l := range r.Info().Links {
				check.Value(r.keyOf(addr("10.0.0.9/32", l.Name)))(t)
			}
		}
	})
}

// A link that has lost its carrier loses its default route, too, by the program that configures it. No other becomes the link of VIPs then, also while
// the carrier is back and the route is not: it may be one of another network. Nor does "none" while no link has a default route.
func TestLinkOfVIPsWithoutItsRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake("link 2 eth0 up\n link 3 eth1 up\n link 4 br0 up bridge\n link 5 vrf0 up vrf\n eth0 10.0.0.5/24\n eth1 10.1.0.5/24\n default 4 eth0 100\n default 4 eth1 101")
		r := newRig(t, k, func(o *Options) { o.Interface = "" })
		defer r.run(t)()
		by := func(link int, metric uint32) route { return route{family: vip.IPv4, link: link, metric: metric} }
		for _, step := range []struct {
			name   string
			change func()
			want   string
		}{
			{"nothing", func() {}, "eth0"},
			{"no carrier", func() { k.setLink(link{index: 2, name: "eth0"}) }, "eth0"},
			{"no address", func() { k.drop(k.at("eth0", "10.0.0.5/24")) }, "eth0"},
			{"no route", func() { k.setDefaults(by(3, 101)) }, "eth0"},
			{"changes were lost", k.overrun, "eth0"},
			{"none at all", func() { k.setDefaults() }, "eth0"},
			{"that of the other link is back", func() { k.setDefaults(by(3, 101)) }, "eth0"},
			{"the carrier is back", func() { k.setLink(link{index: 2, name: "eth0", up: true}) }, "eth0"},
			{"the address is", func() { k.add("eth0", "10.0.0.5/24") }, "eth0"},
			{"a VRF", func() { k.setLink(link{index: 2, name: "eth0", up: true, master: 5}) }, "eth0"},
			{"up, and no link has a route: nobody advertises any more, say", func() { k.setDefaults() }, "eth0"},
			{"the route is, and comes second", func() { k.setDefaults(by(2, 102), by(3, 101)) }, "eth1"},
			{"that one has no route", func() { k.setDefaults(by(2, 102)) }, "eth1"},
			{"has it again, second", func() { k.setDefaults(by(2, 102), by(3, 103)) }, "eth0"},
			{"becomes a port of a bridge, and has no route", func() {
				k.setLink(link{index: 2, name: "eth0", up: true, master: 4})
				k.setDefaults(by(4, 100), by(3, 101))
			}, "br0"},
			{"goes", func() { k.setDefaults(by(3, 101)); k.removeLink("br0") }, "eth1"},
			{"goes, and there is no route", func() { k.setDefaults(); k.removeLink("eth1") }, ""},
		} {
			step.change()
			time.Sleep(readInterval) // until routes are read
			synctest.Wait()
			if i := r.Info(); i.Interface != step.want || i.DefaultInterface != step.want {
				t.Errorf("%s: it is %q, by default %q, want %q", step.name, i.Interface, i.DefaultInterface, step.want)
			}
		}
	})
}

// Heartbeats go by the default route that there is, where VIPs are on a loopback: no VIP is on the link that they use.
func TestHeartbeatsFollowTheRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake("link 1 lo loopback\n link 2 eth0 up\n link 3 eth1 up\n eth0 10.0.0.5/24\n eth1 10.1.0.5/24\n default 4 eth0 100\n default 4 eth1 101")
		r := newRig(t, k, func(o *Options) { o.Interface = "lo" })
		defer r.run(t)()
		check.Equal(t, r.Info().HeartbeatInterface, "eth0", "heartbeats at first")
		k.setLink(link{index: 2, name: "eth0"})
		k.setDefaults(route{family: vip.IPv4, link: 3, metric: 101})
		time.Sleep(readInterval)
		synctest.Wait()
		check.Equal(t, r.Info().HeartbeatInterface, "eth1", "heartbeats without its carrier and its route")
	})
}

// A link that is down at the start, or a default route that is not there yet, is waited for; one that does not exist is a mistake, unless it is to be made later.
func TestNewChecksTheInterface(t *testing.T) {
	const kernel = "link 1 lo loopback\n link 2 eth0 up\n link 3 eth1 down\n default 4 eth0"
	const none = ": this node has no such interface; it has eth0, eth1, lo. Correct the name, or set vip_allow_interface_not_up=true if the interface is made later"
	const down = "vip_interface=eth1: the interface is not up: check its cable and the switch port"
	const route = "vip_interface is not set, and this node has no default route to choose an interface by: set vip_interface"
	for _, tt := range []struct {
		vip, svc string
		without  bool   // a default route
		want     string // what is wrong
		fails    bool   // to start
	}{
		{"", "", false, "<nil>", false},
		{"", "auto", false, "<nil>", false},
		{"eth0", "eth0", true, "<nil>", false},
		{"eth7", "", false, "vip_interface=eth7" + none, true},
		{"eth0", "eth7", false, "vip_servicesinterface=eth7" + none, true},
		{"eth1", "", false, down, false},
		{"eth1", "eth1", false, down, false},
		{"eth0", "eth1", false, strings.Replace(down, "vip_interface", "vip_servicesinterface", 1), false},
		{"eth1", "eth7", false, down + "\nvip_servicesinterface=eth7" + none, true},
		{"", "", true, route, false},
		{"", "auto", true, route, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			k := newFake(kernel)
			if tt.without {
				k.setDefaults()
			}
			logger, logged := log()
			o := Options{Log: logger, Poke: func() {}, Tenure: always, Interface: tt.vip, ServicesInterface: tt.svc}
			_, err := newInterfaces(o, k)
			check.Equal(t, err != nil, tt.fails, "%q %q: fails", tt.vip, tt.svc)
			if tt.fails {
				check.Same(t, check.Lines(tt.want), check.Lines(fmt.Sprint(err)), "%q %q", tt.vip, tt.svc)
			} else {
				check.Equal(t, strings.Contains(logged.String(), "level=WARN"), tt.want != "<nil>", "%q %q: warned", tt.vip, tt.svc)
			}
			o.AllowNotUp = true
			_, err = check.Value(newInterfaces(o, k))(t).WhyNotUp()
			check.Same(t, check.Lines(tt.want), check.Lines(fmt.Sprint(err)), "%q %q", tt.vip, tt.svc)
			check.Equal(t, strings.Contains(logged.String(), "level=WARN"), tt.want != "<nil>", "%q %q: warned", tt.vip, tt.svc)
		})
	}
}

// Links is all links with their own addresses, and OnLinkChange is called for each change
// of them: not for VIPs, nor for addresses that the kernel chose for the link alone.
func TestLinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(`
			link 3 eth0 up mac=02:00:00:00:00:0a
			link 1 lo loopback
			link 4 vetha up veth master=5
			link 5 cni0 down bridge
			link 8 kube-ipvs0 down dummy
			lo 127.0.0.1/8
			lo 192.0.2.7/32
			lo 10.0.0.8/32 marked
			eth0 10.0.0.5/24
			eth0 10.0.0.9/32
			eth0 fe80::5/64 linkscope
			kube-ipvs0 10.96.0.1/32`)
		changes := 0
		r := newRig(t, k, func(o *Options) { o.OnLinkChange = func() { changes++ } })
		defer r.run(t)()
		want := "1 lo up [192.0.2.7/32]\n3 eth0 up 02:00:00:00:00:0a [10.0.0.5/24 10.0.0.9/32]\n4 vetha up []\n5 cni0 down []\n8 kube-ipvs0 down []"
		for _, step := range []struct {
			name   string
			change func()
			calls  int
			want   string
		}{
			{"nothing", func() {}, 0, want},
			{"a VIP", func() { _, err := r.Set(t.Context(), []vip.Address{addr("10.0.0.1/32", "eth0")}); check.OK(t, err) }, 0, want},
			{"an address of the kernel's", func() { k.add("eth0", "fe80::6/64") }, 0, want},
			{"a tentative address", func() { k.addTentative("eth0", "2001:db8::4/64") }, 0, want},
			{"that nobody else has", func() { k.add("eth0", "2001:db8::4/64") }, 1, strings.Replace(want, "10.0.0.9/32]", "10.0.0.9/32 2001:db8::4/64]", 1)},
			{"and goes", func() { k.drop(k.at("eth0", "2001:db8::4/64")) }, 1, want},
			{"the link goes down", func() { k.setLink(link{index: 3, name: "eth0", mac: "02:00:00:00:00:0a"}) }, 1, strings.Replace(want, "eth0 up", "eth0 down", 1)},
			{"and up", func() { k.setLink(link{index: 3, name: "eth0", up: true, mac: "02:00:00:00:00:0a"}) }, 1, want},
			{"a pod goes", func() { k.removeLink("vetha") }, 1, strings.Replace(want, "4 vetha up []\n", "", 1)},
			{"another link of that name", func() {
				k.removeLink("cni0")
				k.setLink(link{index: 9, name: "cni0"})
			}, 2, strings.NewReplacer("4 vetha up []\n", "", "5 cni0 down []\n", "", "kube-ipvs0 down []", "kube-ipvs0 down []\n9 cni0 down []").Replace(want)},
		} {
			before := changes
			step.change()
			synctest.Wait()
			check.Equal(t, changes-before, step.calls, "%s: calls of OnLinkChange", step.name)
			var got strings.Builder
			for _, l := range r.Links() {
				_, line, _ := strings.Cut(describeInfo(vip.NodeInfo{Links: []vip.Link{l}}), "\n")
				fmt.Fprintf(&got, "%d %s", l.Index, line)
			}
			check.Same(t, check.Lines(step.want), check.Lines(got.String()), "%s", step.name)
		}
	})
}

// IsLocal knows every address of the node, and IsVIP which of them are there for Services.
func TestIsLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(`
			link 3 eth0 up mac=02:00:00:00:00:0a
			link 1 lo loopback
			link 8 kube-ipvs0 down dummy
			lo 127.0.0.1/8
			lo 10.0.0.8/32 marked
			eth0 10.0.0.5/24
			eth0 fe80::5/64 linkscope
			kube-ipvs0 10.96.0.1/32`)
		r := newRig(t, k)
		defer r.run(t)()
		check.Value(r.Set(t.Context(), []vip.Address{addr("10.0.0.1/32", "eth0"), addr("10.0.0.8/32", "lo")}))(t)
		synctest.Wait()
		for a, want := range map[string][2]bool{
			"127.0.0.1": {true, false}, "10.0.0.5": {true, false}, "fe80::5": {true, false},
			"10.0.0.1": {true, true}, "10.0.0.8": {true, true}, "10.96.0.1": {true, true},
			"10.0.0.6": {false, false}, "127.0.0.2": {false, false},
		} {
			if a := netip.MustParseAddr(a); r.IsLocal(a) != want[0] || r.IsVIP(a) != want[1] {
				t.Errorf("%s: local %v, VIP %v, want %v", a, r.IsLocal(a), r.IsVIP(a), want)
			}
		}
	})
}
