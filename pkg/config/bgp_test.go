package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

const wantAS = "must be an AS number: a whole number from 1 to 4294967294, not 23456"

var bgpErrorTests = []struct{ env, want string }{
	{"bgp_enable=x", `bgp_enable="x" (environment): must be true or false`},
	{"bgp_enable=true", `bgp_enable="true" (environment): needs a peer: set bgp_peers, bgp_peeraddress or annotation`},
	{"bgp_as=0", `bgp_as="0" (environment): ` + wantAS},
	{"bgp_as=4294967296", `bgp_as="4294967296" (environment): ` + wantAS},
	{"bgp_as=23456", `bgp_as="23456" (environment): ` + wantAS},
	{"bgp_peeras=-1", `bgp_peeras="-1" (environment): ` + wantAS},
	{"bgp_peeraddress=router", `bgp_peeraddress="router" (environment): must be an IP address`},
	{"bgp_peeraddress=fe80::1%eth0", `bgp_peeraddress="fe80::1%eth0" (environment): must be an IP address`},
	{"bgp_peeraddress=224.0.0.5", `bgp_peeraddress="224.0.0.5" (environment): must be an address of one host`},
	{"bgp_peerpass=" + strings.Repeat("x", 81), `bgp_peerpass (environment): must be at most 80 bytes`},
	{"bgp_multihop=x", `bgp_multihop="x" (environment): must be true or false`},
	{"bgp_routerid=fd00::1", `bgp_routerid="fd00::1" (environment): must be an IPv4 address`},
	{"bgp_routerinterface=a/b", `bgp_routerinterface="a/b" (environment): must be the name of a link: at most 15 bytes, without slash, colon or space`},
	{"bgp_sourceif=a/b", `bgp_sourceif="a/b" (environment): must be the name of a link: at most 15 bytes, without slash, colon or space`},
	{"bgp_sourceip=10", `bgp_sourceip="10" (environment): must be an IP address`},
	{"bgp_hold_time=2", `bgp_hold_time="2" (environment): must be a whole number of seconds from 3 to 65535`},
	{"bgp_hold_time=65536", `bgp_hold_time="65536" (environment): must be a whole number of seconds from 3 to 65535`},
	{"bgp_keepalive_interval=0", `bgp_keepalive_interval="0" (environment): must be a whole number of seconds from 1 to 65535`},
	{"bgp_enable=true bgp_peeraddress=192.0.2.1 bgp_keepalive_interval=30", `bgp_keepalive_interval="30" (environment): must be less than bgp_hold_time="30" (default)`},
	{"mpbgp_nexthop=self", `mpbgp_nexthop="self" (environment): must be fixed, auto_sourceif or auto_sourceip`},
	{"bgp_enable=true annotation=example.com mpbgp_nexthop=fixed", `mpbgp_nexthop="fixed" (environment): fixed needs mpbgp_ipv4 or mpbgp_ipv6`},
	{"mpbgp_ipv4=fd00::1", `mpbgp_ipv4="fd00::1" (environment): must be an IPv4 address`},
	{"mpbgp_ipv6=192.0.2.1", `mpbgp_ipv6="192.0.2.1" (environment): must be an IPv6 address`},
	{"annotation=a_b", `annotation="a_b" (environment): must be the prefix of annotations, such as example.com`},
	{"herald_bgp_communities=1:2,65536:1", `herald_bgp_communities="1:2,65536:1" (environment): community 2, "65536:1", is neither 0..65535:0..65535, nor a:b:c of 32 bits each, nor a well-known name`},
	{"herald_bgp_localpref=x", `herald_bgp_localpref="x" (environment): must be a whole number from 0 to 4294967295`},
	{"herald_bgp_med=-1", `herald_bgp_med="-1" (environment): must be a whole number from 0 to 4294967295`},
	{"herald_bgp_prepend=17", `herald_bgp_prepend="17" (environment): must be a whole number from 0 to 16`},
	{"herald_bgp_aggregates=192.0.2.1/24", `herald_bgp_aggregates="192.0.2.1/24" (environment): must be prefixes with commas between, such as 192.0.2.0/24,2001:db8::/64; "192.0.2.1/24" is none, or has host bits`},
	{"herald_bgp_restart_time=4096", `herald_bgp_restart_time="4096" (environment): must be a whole number of seconds from 0 to 4095`},
	{"herald_bgp_drain_time=16", `herald_bgp_drain_time="16" (environment): must be a whole number of seconds from 0 to 15`},
	{"herald_bgp_ttl_security=x", `herald_bgp_ttl_security="x" (environment): must be true or false`},
	{"herald_bgp_ready=x", `herald_bgp_ready="x" (environment): must be true or false`},

	// Peers: every wrong one and every wrong field, and no password.
	{"bgp_peers=router:65000", `bgp_peers (environment): peer 1: field 1 (address) must be an IPv4 address, an IPv6 address in brackets, or unnumbered:<interface>`},
	{"bgp_peers=fd00::1:65000", `bgp_peers (environment): peer 1: field 1 (address) must be an IPv4 address, an IPv6 address in brackets, or unnumbered:<interface>`},
	{"bgp_peers=[fd00::1:65000", `bgp_peers (environment): peer 1: field 1 (address) lacks the closing bracket`},
	{"bgp_peers=[fe80::1]:65000", `bgp_peers (environment): peer 1: field 1 (address) must be an address of one router; where there is only a link-local one write unnumbered:<interface>`},
	{"bgp_peers=unnumbered::65000", `bgp_peers (environment): peer 1: field 1 (address) must be unnumbered:<interface> with the name of a link`},
	{"bgp_peers=192.0.2.1", `bgp_peers (environment): peer 1: field 2 (AS number) ` + wantAS},
	{"bgp_peers=192.0.2.1:65000,192.0.2.2:0:s3cret:maybe:99999,192.0.2.3:1:::0:mpbgp_x=1:true", "bgp_peers (environment): peer 2: field 2 (AS number) " + wantAS +
		"\nfield 4 (multihop) must be true or false\nfield 5 (port) must be a port from 1 to 65535" +
		"\npeer 3: field 5 (port) must be a port from 1 to 65535\nfield 6 (mpbgp options) must be mpbgp_nexthop, mpbgp_ipv4 and mpbgp_ipv6, each with a value"},
	{"bgp_peers=192.0.2.1:65000::false:::true;300;5;3", `bgp_peers (environment): peer 1: field 7 (BFD options) has a transmit interval in milliseconds that must be a whole number from 50 to 60000`},
	{"bgp_peers=192.0.2.1:65000::false:::true;;;1", `bgp_peers (environment): peer 1: field 7 (BFD options) has a multiplier that must be a whole number from 2 to 255`},
	{"bgp_peers=192.0.2.1:65000::false:::true;1;2;3;4", `bgp_peers (environment): peer 1: field 7 (BFD options) must be true;receive;transmit;multiplier, such as true;300;300;3, or false`},
	{"bgp_peers=192.0.2.1:65000:pass:word", `bgp_peers (environment): peer 1: field 4 (multihop) must be true or false`},
	{"bgp_enable=true bgp_peers=192.0.2.1:65000,192.0.2.1:65001", `bgp_peers (environment): peer 2: 192.0.2.1 is named twice`},
	{"bgp_enable=true bgp_peers=192.0.2.1:65000:@/run/pass", `bgp_peers (environment): peer 1: the password can't be read: file does not exist`},
	{"bgp_enable=true bgp_peers=unnumbered:eth0:65000:s3cret", `bgp_peers (environment): peer 1: a session without addresses can't have a password: gobgp does not sign link-local ones`},
	{"bgp_enable=true bgp_peers=192.0.2.1:65000::::mpbgp_nexthop=auto_sourceif", `bgp_peers (environment): peer 1: mpbgp_nexthop: auto_sourceif needs bgp_sourceif`},
}

// TestPeers tries what may stand in bgp_peers.
func TestPeers(t *testing.T) {
	ip := netip.MustParseAddr
	peer := func(a string, change func(*vip.BGPPeer)) vip.BGPPeer {
		p := vip.BGPPeer{AS: 65001, LocalAS: 65000, Port: 179}
		if a != "" {
			p.Address = ip(a)
		}
		if change != nil {
			change(&p)
		}
		return p
	}
	tests := []struct {
		env  string
		want []vip.BGPPeer
	}{
		{"bgp_peers=192.0.2.1:65001", []vip.BGPPeer{peer("192.0.2.1", nil)}},
		{"bgp_peers=192.0.2.1:65001::false,192.0.2.2:65001::false,", []vip.BGPPeer{peer("192.0.2.1", nil), peer("192.0.2.2", nil)}},
		{"bgp_peers=192.0.2.1:65001:a/b;c:true:1179", []vip.BGPPeer{peer("192.0.2.1", func(p *vip.BGPPeer) { p.Password, p.Multihop, p.Port = "a/b;c", true, 1179 })}},
		{"bgp_peers=169.254.169.254:65001", []vip.BGPPeer{peer("169.254.169.254", nil)}},
		{"bgp_peers=[2001:db8::1]:65001::false", []vip.BGPPeer{peer("2001:db8::1", nil)}},
		{"bgp_peers=[::ffff:192.0.2.1]:65001", []vip.BGPPeer{peer("192.0.2.1", nil)}},
		{"bgp_peers=192.0.2.1:65001::false::mpbgp_nexthop=fixed;mpbgp_ipv6=2001:db8::2:true;100;200;5", []vip.BGPPeer{peer("192.0.2.1", func(p *vip.BGPPeer) {
			p.NextHop6, p.BFD = ip("2001:db8::2"), vip.BFD{MinReceive: 100 * time.Millisecond, MinTransmit: 200 * time.Millisecond, Multiplier: 5}
		})}},
		{"bgp_peers=192.0.2.1:65001::false:::true;300;;0", []vip.BGPPeer{peer("192.0.2.1", func(p *vip.BGPPeer) { p.BFD = defaultBFD })}},
		{"bgp_peers=192.0.2.1:65001::false:::true,192.0.2.2:65001::false:::false;1;2;3", []vip.BGPPeer{peer("192.0.2.1", func(p *vip.BGPPeer) { p.BFD = defaultBFD }), peer("192.0.2.2", nil)}},
		{"bgp_peers=192.0.2.1:65001::false::mpbgp_nexthop=fixed;mpbgp_ipv6=fd00::", []vip.BGPPeer{peer("192.0.2.1", func(p *vip.BGPPeer) { p.NextHop6 = ip("fd00::") })}},
		{"bgp_peers=192.0.2.1:65001::false/mpbgp_nexthop=auto_sourceif bgp_sourceif=eth0", []vip.BGPPeer{peer("192.0.2.1", func(p *vip.BGPPeer) { p.NextHopInterface, p.SourceInterface = "eth0", "eth0" })}},
		{"bgp_peers=unnumbered:eth0,unnumbered:eth1:65001::true/mpbgp_nexthop=auto_sourceip bgp_sourceip=192.0.2.9", []vip.BGPPeer{
			peer("", func(p *vip.BGPPeer) { p.Interface, p.AS = "eth0", 0 }), peer("", func(p *vip.BGPPeer) { p.Interface, p.Multihop = "eth1", true })}},
		{"bgp_as=65009 bgp_sourceip=192.0.2.9 bgp_peers=192.0.2.1:65001,[2001:db8::1]:65001", []vip.BGPPeer{
			peer("192.0.2.1", func(p *vip.BGPPeer) { p.LocalAS, p.Source = 65009, ip("192.0.2.9") }), peer("2001:db8::1", func(p *vip.BGPPeer) { p.LocalAS = 65009 })}},
		{"bgp_peeraddress=192.0.2.1 bgp_peeras=65001 bgp_peerpass=x bgp_multihop=true", []vip.BGPPeer{peer("192.0.2.1", func(p *vip.BGPPeer) { p.Password, p.Multihop = "x", true })}},
		{"bgp_peeraddress=192.0.2.1 bgp_peeras=65001 bgp_peers=192.0.2.2:65001", []vip.BGPPeer{peer("192.0.2.2", nil), peer("192.0.2.1", nil)}},
		{"bgp_peeraddress=192.0.2.1 bgp_peeras=65002 bgp_peers=192.0.2.1:65001", []vip.BGPPeer{peer("192.0.2.1", nil)}},
		{"bgp_peeraddress=192.0.2.1 bgp_peeras=65001 bgp_peerpass=@/run/secret", []vip.BGPPeer{peer("192.0.2.1", func(p *vip.BGPPeer) { p.Password, p.PasswordFile = "from a file", "/run/secret" })}},
	}
	for _, tt := range tests {
		t.Run(tt.env, func(t *testing.T) {
			c, _, err := Parse(Sources{Env: append(strings.Fields(tt.env), "bgp_enable=true", "svc_enable=true"), Hostname: "n1", ReadFile: readsAs("from a file\n")})
			check.OK(t, err)
			same(t, "", tt.want, c.BGP.Peers)
		})
	}
}

func TestBGPOptions(t *testing.T) {
	c, warnings, err := Parse(Sources{Hostname: "n1", Env: strings.Fields("svc_enable=true bgp_enable=true bgp_peers=192.0.2.1:1::true:::true " +
		"bgp_hold_time=9 bgp_routerid=192.0.2.7 bgp_routerinterface=lo annotation=example.com/ herald_bgp_communities=1:2,1:2:3,no-export " +
		"herald_bgp_localpref=0 herald_bgp_med=7 herald_bgp_prepend=3 herald_bgp_aggregates=192.0.2.0/24,2001:db8::/64 herald_bgp_restart_time=60 herald_bgp_ready=true herald_bgp_ttl_security=true")})
	check.OK(t, err)
	if want := []string{"bgp_peers (environment), peer 1 (192.0.2.1): there is no BFD with a peer that is multihop, since BFD here is over one hop; a short bgp_hold_time takes its place"}; cmp.Diff(want, warnings) != "" {
		t.Errorf("warnings %q", warnings)
	}
	pref, med, prepend := uint32(0), uint32(7), 3
	want := vip.BGPAttributes{Communities: []vip.Community{1<<16 | 2, 0xffffff01}, LargeCommunities: []vip.LargeCommunity{{1, 2, 3}}, LocalPref: &pref, MED: &med, Prepend: &prepend}
	b := c.BGP
	same(t, "", want, b.Attributes)
	got := fmt.Sprintln(b.Hold, b.Keepalive, b.RouterID, b.RouterInterface, b.AnnotationPrefix, b.Aggregates, b.RestartTime, b.DrainTime, b.RequireSession, b.TTLSecurity)
	if want := fmt.Sprintln(9*time.Second, 3*time.Second, "192.0.2.7", "lo", "example.com", "[192.0.2.0/24 2001:db8::/64]", time.Minute, 2*time.Second, true, true); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestAnnotatedPeers(t *testing.T) {
	c, _, err := Parse(Sources{Hostname: "n1", Env: []string{"svc_enable=true", "bgp_enable=true", "annotation=example.com", "bgp_multihop=true"}})
	check.OK(t, err)
	got, err := c.BGP.AnnotatedPeers(map[string]vip.Secret{
		"bgp-peers-0-peer-ip": "192.0.2.1, 192.0.2.2", "bgp-peers-0-peer-asn": "65001", "bgp-peers-0-node-asn": "65009",
		"bgp-peers-0-src-ip": "192.0.2.9", "bgp-peers-0-bgp-pass": "cGFzc3dvcmQ=", "bgp-peers-1-peer-ip": "2001:db8::1", "bgp-peers-1-peer-asn": "65002",
		"bgp-peers-1-peer-port": "1179", "bgp-peers-3-peer-ip": "x",
	})
	check.OK(t, err)
	ip := netip.MustParseAddr
	first := vip.BGPPeer{Address: ip("192.0.2.1"), AS: 65001, LocalAS: 65009, Password: "password", Port: 179, Source: ip("192.0.2.9"), RouterID: ip("192.0.2.9"), Multihop: true}
	second := first
	second.Address = ip("192.0.2.2")
	third := first // but its source, which is of the other family
	third.Address, third.AS, third.Port, third.Source = ip("2001:db8::1"), 65002, 1179, netip.Addr{}
	want := []vip.BGPPeer{first, second, third}
	same(t, "", want, got)
	_, err = c.BGP.AnnotatedPeers(map[string]vip.Secret{"bgp-peers-0-peer-ip": "192.0.2.1,router", "bgp-peers-0-peer-asn": "0", "bgp-peers-0-bgp-pass": "s3cret!"})
	wantErr := "annotation example.com/bgp-peers-0-peer-asn " + wantAS + "\nannotation example.com/bgp-peers-0-bgp-pass must be in base64" +
		"\nannotation example.com/bgp-peers-0-peer-ip must be IP addresses with commas between"
	if err == nil || err.Error() != wantErr {
		t.Errorf("got  %v\nwant %s", err, wantErr)
	}
}

// TestAnnotatedPeersOfKubeVIP: keys without the number are those of index 0, and what an index lacks is as at index 0.
func TestAnnotatedPeersOfKubeVIP(t *testing.T) {
	c, _, err := Parse(Sources{Hostname: "n1", Env: []string{"svc_enable=true", "bgp_enable=true", "annotation=example.com"}})
	check.OK(t, err)
	ip := netip.MustParseAddr
	first := vip.BGPPeer{Address: ip("192.0.2.1"), AS: 65001, LocalAS: 65009, Password: "password", Port: 179, Source: ip("192.0.2.9"), RouterID: ip("192.0.2.9"), Multihop: true}
	second := first
	second.Address = ip("192.0.2.2")
	own := second
	own.AS, own.Multihop = 65002, false
	plain := vip.BGPPeer{Address: ip("192.0.2.2"), AS: 65001, LocalAS: 65000, Port: 179}
	for name, tt := range map[string]struct {
		annotations map[string]vip.Secret
		want        []vip.BGPPeer
		err         string
	}{
		"without a number": {annotations: map[string]vip.Secret{"peer-ip": "192.0.2.1", "peer-asn": "65001", "node-asn": "65009", "src-ip": "192.0.2.9", "bgp-pass": "cGFzc3dvcmQ=", "peer-multi-hop": "true"},
			want: []vip.BGPPeer{first}},
		"both spellings": {annotations: map[string]vip.Secret{"bgp-peers-0-peer-ip": "192.0.2.1", "peer-ip": "192.0.2.7", "peer-asn": "65001", "node-asn": "65009", "src-ip": "192.0.2.9", "bgp-pass": "cGFzc3dvcmQ=", "bgp-peers-0-peer-multi-hop": "true", "peer-multi-hop": "false"},
			want: []vip.BGPPeer{first}},
		"two": {annotations: map[string]vip.Secret{"bgp-peers-0-peer-ip": "192.0.2.1", "bgp-peers-1-peer-ip": "192.0.2.2", "bgp-peers-0-peer-asn": "65001", "bgp-peers-0-node-asn": "65009",
			"bgp-peers-0-src-ip": "192.0.2.9", "bgp-peers-0-bgp-pass": "cGFzc3dvcmQ=", "bgp-peers-0-peer-multi-hop": "true"},
			want: []vip.BGPPeer{first, second}},
		"two, one with its own": {annotations: map[string]vip.Secret{"bgp-peers-0-peer-ip": "192.0.2.1", "bgp-peers-1-peer-ip": "192.0.2.2", "peer-asn": "65001", "bgp-peers-1-peer-asn": "65002", "node-asn": "65009",
			"src-ip": "192.0.2.9", "bgp-pass": "cGFzc3dvcmQ=", "peer-multi-hop": "true", "bgp-peers-1-peer-multi-hop": "false"},
			want: []vip.BGPPeer{first, own}},
		"two, one with none of what the other has": {annotations: map[string]vip.Secret{"bgp-peers-0-peer-ip": "192.0.2.1", "bgp-peers-1-peer-ip": "192.0.2.2", "bgp-peers-0-peer-asn": "65001", "bgp-peers-0-node-asn": "65009",
			"bgp-peers-0-src-ip": "192.0.2.9", "bgp-peers-0-bgp-pass": "cGFzc3dvcmQ=", "bgp-peers-0-peer-multi-hop": "true",
			"bgp-peers-1-peer-asn": "", "bgp-peers-1-node-asn": "", "bgp-peers-1-src-ip": "", "bgp-peers-1-bgp-pass": "", "bgp-peers-1-peer-multi-hop": "", "bgp-peers-1-peer-port": ""},
			want: []vip.BGPPeer{first, plain}},
		"two, and an empty annotation of the first": {annotations: map[string]vip.Secret{"bgp-peers-0-peer-ip": "192.0.2.1", "bgp-peers-1-peer-ip": "192.0.2.2", "peer-asn": "65001", "node-asn": "65009",
			"src-ip": "192.0.2.9", "bgp-peers-0-bgp-pass": "", "bgp-pass": "cGFzc3dvcmQ=", "peer-multi-hop": "true"},
			want: []vip.BGPPeer{first, second}},
		"wrong": {annotations: map[string]vip.Secret{"peer-ip": "192.0.2.1", "peer-multi-hop": "yes", "peer-asn": "0", "bgp-peers-1-peer-ip": "192.0.2.2"},
			err: "annotation example.com/peer-asn " + wantAS + "\nannotation example.com/peer-multi-hop must be true or false"},
		"no AS": {annotations: map[string]vip.Secret{"bgp-peers-0-peer-ip": "192.0.2.1", "bgp-peers-1-peer-ip": "192.0.2.2", "bgp-peers-1-peer-asn": "65001"},
			err: "annotation example.com/bgp-peers-0-peer-asn " + wantAS},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.BGP.AnnotatedPeers(tt.annotations)
			if diff := cmp.Diff(tt.want, got, addresses); diff != "" || err != nil && err.Error() != tt.err || err == nil && tt.err != "" {
				t.Errorf("error %v, want %q; peers, -want +got:\n%s", err, tt.err, diff)
			}
		})
	}
}

// FuzzPeers: any text is parsed into valid peers, or is an error.
func FuzzPeers(f *testing.F) {
	for _, tt := range bgpErrorTests {
		if v, ok := strings.CutPrefix(tt.env, "bgp_peers="); ok {
			f.Add(v)
		}
	}
	f.Add("unnumbered:eth0/,[::1]:1::::mpbgp_ipv6=::1:true")
	f.Fuzz(func(t *testing.T, text string) {
		peers, err := parsePeers(text)
		if err != nil {
			return
		}
		for _, p := range peers {
			if p.peer.Name() == "invalid IP" || p.peer.AS == 0 && p.peer.Interface == "" {
				t.Errorf("%q is taken for %+v", text, p)
			}
		}
	})
}

// FuzzAnnotatedPeers: whatever the annotations of a Node say, they name at most maxAnnotatedPeers
// valid peers, each once, or are an error that tells no password; no file is read.
func FuzzAnnotatedPeers(f *testing.F) {
	f.Add("bgp-peers-0-peer-ip=192.0.2.1,192.0.2.2\nbgp-peers-0-peer-asn=65001\nbgp-peers-0-node-asn=65009\nbgp-peers-0-src-ip=192.0.2.9\nbgp-peers-0-bgp-pass=cGFzc3dvcmQ=\nbgp-peers-0-peer-port=1179", true)
	f.Add("bgp-peers-0-peer-ip=2001:db8::1\nbgp-peers-0-peer-asn=65002\nbgp-peers-1-peer-ip=,\nbgp-peers-1-bgp-pass=QC9ldGMvc2hhZG93", false)
	f.Add("bgp-peers-0-peer-asn=1\nbgp-peers-0-peer-ip="+strings.Repeat("192.0.2.1,", 50000)+"192.0.2.2", true)
	f.Add("bgp-peers-0-peer-asn=1\nbgp-peers-0-peer-ip=fe80::1%eth0,0.0.0.0,224.0.0.1,::ffff:192.0.2.1", true)
	f.Fuzz(func(t *testing.T, text string, multihop bool) {
		annotations := make(map[string]vip.Secret)
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			annotations[key] = vip.Secret(value)
		}
		b := BGP{AnnotationPrefix: "example.com", local: localSide{as: 65000}, single: vip.BGPPeer{Multihop: multihop}}
		peers, err := b.AnnotatedPeers(annotations)
		if err != nil {
			if pass := string(annotations["bgp-peers-0-bgp-pass"]); len(peers) > 0 || len(pass) > 8 && strings.Contains(err.Error(), pass) {
				t.Errorf("%d peers and %v", len(peers), err)
			}
			return
		}
		names := make(map[string]bool)
		for _, p := range peers {
			if names[p.Name()] || p.AS == 0 || p.LocalAS == 0 || p.Port == 0 || !p.Address.IsValid() || p.Address.Is4In6() || len(p.Password) > maxPassword {
				t.Errorf("peer %+v", p)
			}
			names[p.Name()] = true
		}
		if len(peers) > maxAnnotatedPeers {
			t.Errorf("%d peers", len(peers))
		}
	})
}
