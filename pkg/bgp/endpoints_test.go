package bgp

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// Where a session begins, and what is the next hop on it: r32 has 10.32.0.2 and
// fd32::2, lo has 192.0.2.32 (and another one during other tests, so this one has none beside it).
func TestEndpoints(t *testing.T) {
	r := newRouter(t, 32)
	sh(t, "ip addr add 192.0.2.32/32 dev lo")
	t.Cleanup(func() { sh(t, "ip addr del 192.0.2.32/32 dev lo") })
	ip := func(s string) netip.Addr {
		if s == "" {
			return netip.Addr{}
		}
		return netip.MustParseAddr(s)
	}
	tests := []struct {
		name           string
		peer           vip.BGPPeer
		source         string
		hop4, hop6, id string
		bind, wrong    string
	}{
		{name: "IPv4", peer: vip.BGPPeer{Address: r.v4()}, hop4: "10.32.0.2", hop6: "fd32::2", id: "10.32.0.2"},
		{name: "IPv6", peer: vip.BGPPeer{Address: r.v6()}, hop4: "10.32.0.2", hop6: "fd32::2"},
		{name: "fixed", peer: vip.BGPPeer{Address: r.v4(), NextHop6: ip("fd00::9")}, hop4: "10.32.0.2", hop6: "fd00::9", id: "10.32.0.2"},
		{name: "fixed on IPv6", peer: vip.BGPPeer{Address: r.v6(), NextHop4: ip("192.0.2.9")}, hop4: "192.0.2.9", hop6: "fd32::2"},
		{name: "of an interface", peer: vip.BGPPeer{Address: r.v6(), NextHopInterface: "lo"}, hop4: "192.0.2.32", hop6: "fd32::2"},
		{name: "of one without", peer: vip.BGPPeer{Address: r.v4(), NextHopInterface: "lo"}, hop4: "10.32.0.2", hop6: "", id: "10.32.0.2"},
		{name: "no IPv4 there: RFC 8950", peer: vip.BGPPeer{Address: r.v6(), NextHopInterface: "none"}, hop4: "fd32::2", hop6: "fd32::2"},
		{name: "source address", peer: vip.BGPPeer{Address: r.v4(), Source: ip("192.0.2.32")}, source: "192.0.2.32", hop4: "192.0.2.32", id: "192.0.2.32"},
		{name: "source interface", peer: vip.BGPPeer{Address: r.v4(), SourceInterface: "r32"}, source: "10.32.0.2", bind: "r32", hop4: "10.32.0.2", hop6: "fd32::2", id: "10.32.0.2"},
		{name: "source interface lo", peer: vip.BGPPeer{Address: r.v4(), SourceInterface: "lo"}, source: "192.0.2.32", hop4: "192.0.2.32", id: "192.0.2.32"},
		{name: "a router on this node", peer: vip.BGPPeer{Address: ip("127.0.0.1")}, hop4: "10.32.0.2", hop6: "fd32::2"},
		{name: "the same by IPv6", peer: vip.BGPPeer{Address: ip("::1")}, hop4: "10.32.0.2", hop6: "fd32::2"},
		{name: "the same, next hop of an interface", peer: vip.BGPPeer{Address: ip("127.0.0.1"), NextHopInterface: "lo"}, hop4: "192.0.2.32",
			hop6: ""},
		{name: "the same, fixed", peer: vip.BGPPeer{Address: ip("127.0.0.1"), NextHop4: ip("192.0.2.9"), NextHop6: ip("fd00::9")},
			hop4: "192.0.2.9", hop6: "fd00::9"},
		{name: "no such interface", peer: vip.BGPPeer{Address: r.v4(), SourceInterface: "eth9"}, wrong: "no interface eth9"},
		{name: "no address there", peer: vip.BGPPeer{Address: r.v6(), SourceInterface: "lo"}, wrong: "lo has no IPv6 address"},
		{name: "no route", peer: vip.BGPPeer{Address: ip("203.0.113.1")}, wrong: "no way to the peer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.peer.Port = 179
			at, err := newPeer(tt.peer, New(Options{Node: "n1", Log: check.Log(t), Links: kernelLinks})).findEndpoints()
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) {
					t.Errorf("%v, want %s", err, tt.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if at.remote != tt.peer.Address.String() || at.source != ip(tt.source) || at.bind != tt.bind || at.nextHop4 != ip(tt.hop4) || at.nextHop6 != ip(tt.hop6) {
				t.Errorf("%+v", at)
			}
			if tt.id != "" && at.id != ip(tt.id) || !at.id.Is4() {
				t.Errorf("identifier %s, want %s", at.id, tt.id)
			}
		})
	}
}

// Of several addresses it is always the same one; what may be another program's VIP comes last.
func TestOwnAddresses(t *testing.T) {
	t.Parallel()
	links := map[string]vip.Link{
		"eth0": {Prefixes: prefixes("fd34::3/64", "10.34.0.9/24", "10.34.0.1/32", "fd34::2/64", "10.34.0.2/24")},
		"lo":   {Prefixes: prefixes("10.34.0.9/32", "10.34.0.8/32")},
	}
	for link, want := range map[string][2]string{"eth0": {"10.34.0.2", "fd34::2"}, "lo": {"10.34.0.8", "invalid IP"}, "eth9": {"invalid IP", "invalid IP"}} {
		if got := [2]string{addressOf(links[link], vip.IPv4).String(), addressOf(links[link], vip.IPv6).String()}; got != want {
			t.Errorf("%s: %v, want %v", link, got, want)
		}
	}
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

// The identifier that is asked for wins.
func TestIdentifier(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for _, tt := range []struct {
		peer vip.BGPPeer
		o    Options
		want string
	}{
		{vip.BGPPeer{RouterID: a}, Options{RouterID: b}, "192.0.2.1"},
		{vip.BGPPeer{}, Options{RouterID: b, RouterInterface: "none"}, "192.0.2.2"},
		{vip.BGPPeer{}, Options{RouterInterface: "none"}, "bgp_routerinterface: interface none"},
		{vip.BGPPeer{}, Options{}, "10.0.0.1"},
	} {
		tt.o.Log, tt.o.Links = check.Log(t), kernelLinks
		id, err := newPeer(tt.peer, New(tt.o)).identifier(netip.MustParseAddr("10.0.0.1"))
		if got := id.String(); err == nil && got != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %v, want %s", got, err, tt.want)
		}
	}
	if x, y := idFromName("n1"), idFromName("n2"); x == y || !x.Is4() || x.IsUnspecified() {
		t.Errorf("made of names: %s and %s", x, y)
	}
}
