package vip

import (
	"net/netip"
	"testing"
)

func TestHeartbeatAddress(t *testing.T) {
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, s := range texts {
			all = append(all, netip.MustParsePrefix(s))
		}
		return all
	}
	links := []Link{ // IPv4 first, as pkg/netif has them
		{Name: "eth0", Prefixes: prefixes("10.0.0.1/24", "10.0.0.2/24", "fd00::1/64")},
		{Name: "eth1", Prefixes: prefixes("fe80::1/64", "fd00::2/64")},
		{Name: "lo"},
	}
	for _, tt := range []struct {
		link, fallback, heartbeats string
		want                       netip.Addr
	}{
		{link: "eth0", want: netip.MustParseAddr("10.0.0.1")},
		{link: "eth1", want: netip.MustParseAddr("fe80::1")},
		{link: "auto", fallback: "eth0", want: netip.MustParseAddr("10.0.0.1")},
		{link: "eth2"},
		{link: "lo"},
		{link: "lo", fallback: "lo", heartbeats: "eth0", want: netip.MustParseAddr("10.0.0.1")}, // vip_interface=lo
		{link: "auto", fallback: "lo", heartbeats: "eth1", want: netip.MustParseAddr("fe80::1")},
	} {
		info := NodeInfo{Interface: tt.link, DefaultInterface: tt.fallback, HeartbeatInterface: tt.heartbeats, Links: links}
		if got := info.HeartbeatAddress(); got != tt.want {
			t.Errorf("link %s: got %v, want %v", tt.link, got, tt.want)
		}
	}
	byDHCP := NodeInfo{Interface: "eth0", Links: []Link{{Name: "eth0", Up: true, Prefixes: OwnPrefixes([]netip.Prefix{
		netip.MustParsePrefix("2001:db8::5/128"), netip.MustParsePrefix("10.0.0.1/24")})}}}
	byDHCP.PutFirst([]netip.Addr{netip.MustParseAddr("2001:db8::5")})
	if got := byDHCP.HeartbeatAddress().String(); got != "10.0.0.1" {
		t.Errorf("heartbeats by %s, in whose network nobody is, want the one with a network", got)
	}
	for named, want := range map[string]string{"10.0.0.2": "10.0.0.2", "fd00::1": "fd00::1", "192.0.2.1": "10.0.0.1"} {
		info := NodeInfo{Interface: "eth0", Links: links}
		info.PutFirst([]netip.Addr{netip.MustParseAddr(named)})
		if got := info.HeartbeatAddress(); got.String() != want || len(info.Links[0].Prefixes) != 3 || links[0].Prefixes[0].Addr().String() != "10.0.0.1" {
			t.Errorf("of a Node with the address %s: got %v, want %s, of %v", named, got, want, info.Links)
		}
	}
}
