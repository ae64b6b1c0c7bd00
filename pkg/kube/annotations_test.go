package kube

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestReadAnnotations(t *testing.T) {
	long := strings.Repeat("x", 300)
	sixteen := make([]string, maxAddresses)
	for i := range sixteen {
		sixteen[i] = fmt.Sprintf("10.0.0.%d", i+1)
	}
	most := strings.Join(sixteen, ",")
	type test struct {
		key, value string
		want       vip.Service
	}
	tests := []test{
		{addressesKey, "192.168.0.10", vip.Service{Addresses: addrs("192.168.0.10"), Source: addressesKey}},
		{addressesKey, " 192.168.0.10 ,\tfd00::10 ", vip.Service{Addresses: addrs("192.168.0.10", "fd00::10"), Source: addressesKey}},
		{addressesKey, "192.168.0.10,192.168.0.10,::ffff:192.168.0.10", vip.Service{Addresses: addrs("192.168.0.10"),
			Source: addressesKey}},
		{addressesKey, "fd00::1,FD00:0::1", vip.Service{Addresses: addrs("fd00::1"), Source: addressesKey}},
		{addressesKey, "0.0.0.0,::", vip.Service{Addresses: addrs("0.0.0.0", "::"), Source: addressesKey}},
		{addressesKey, "", vip.Service{}},
		{addressesKey, "  ", vip.Service{}},
		{poolKey, " web , db,,web", vip.Service{Pools: []string{"web", "db"}}},
		{"metallb.io/address-pool", "web", vip.Service{Pools: []string{"web"}}},
		{"metallb.universe.tf/address-pool", "web", vip.Service{Pools: []string{"web"}}},
		{"metallb.io/allow-shared-ip", "x", vip.Service{SharingKey: "x"}},
		{"metallb.universe.tf/allow-shared-ip", "x", vip.Service{SharingKey: "x"}},
		{"lbipam.cilium.io/sharing-key", "x", vip.Service{SharingKey: " default/x"}},
		{sharingKeyKey, " default/x", vip.Service{SharingKey: "default/x"}}, // and not Cilium's
		{allocatedKey, "web", vip.Service{Allocated: "web"}},
		{"metallb.io/loadBalancerIPs", "192.168.0.10, fd00::10", vip.Service{Addresses: addrs("192.168.0.10", "fd00::10"),
			Source: "metallb.io/loadBalancerIPs"}},
		{"metallb.universe.tf/loadBalancerIPs", "192.168.0.10", vip.Service{Addresses: addrs("192.168.0.10"),
			Source: "metallb.universe.tf/loadBalancerIPs"}},
		{"lbipam.cilium.io/ips", "192.168.0.10", vip.Service{Addresses: addrs("192.168.0.10"), Source: "lbipam.cilium.io/ips"}},
		{"io.cilium/lb-ipam-ips", "192.168.0.10", vip.Service{Addresses: addrs("192.168.0.10"), Source: "io.cilium/lb-ipam-ips"}},
		{announceKey, "bgp", vip.Service{Announce: []vip.Method{vip.ByBGP}}},
		{announceKey, " ARP, bgp,arp", vip.Service{Announce: []vip.Method{vip.ByARP, vip.ByBGP}}},
		{announceKey, "", vip.Service{}},
		{communitiesKey, "65000:100, 65000:1:100,no-export",
			vip.Service{BGPAttributes: vip.BGPAttributes{Communities: []vip.Community{65000<<16 | 100, 0xffffff01},
				LargeCommunities: []vip.LargeCommunity{{65000, 1, 100}}}}},
		{communitiesKey, "none", vip.Service{BGPAttributes: vip.BGPAttributes{Communities: []vip.Community{}}}},
		{localPrefKey, "0", vip.Service{BGPAttributes: vip.BGPAttributes{LocalPref: new(uint32)}}},
		{peersKey, "192.0.2.1, FD00:0::1,eth0", vip.Service{BGPAttributes: vip.BGPAttributes{Peers: []string{"192.0.2.1",
			"fd00::1", "eth0"}}}},
		{peersKey, strings.Repeat("eth0,", maxPeers) + "eth1",
			vip.Service{BGPAttributes: vip.BGPAttributes{Peers: []string{}}, Invalid: []string{
				`heraldvip.io/bgp-peers is "` + strings.Repeat("eth0,", 12) +
					`"...: it names 101 peers, and may name 100. The VIP is announced to no peer.`}}},
		{ignoreKey, "true", vip.Service{Ignore: true}},
		{ignoreKey, "T", vip.Service{Ignore: true}},
		{ignoreKey, " 1 ", vip.Service{Ignore: true}},
		{ignoreKey, "false", vip.Service{}},
		{ignoreKey, "", vip.Service{}},
		{withoutEndpointsKey, "true", vip.Service{AllowWithoutEndpoints: true}},
		{allPortsKey, "true", vip.Service{AllPorts: true}},
		{interfaceKey, "eth0.100", vip.Service{Interface: "eth0.100"}},
		{interfaceKey, "auto", vip.Service{Interface: "auto"}},
		{interfaceKey, " eth1 ", vip.Service{Interface: "eth1"}},
		{leaseNameKey, "shared", vip.Service{Lease: "shared"}},
		{leaseNameKey, "default/shared", vip.Service{Lease: "shared"}},
		{leaseNameKey, "", vip.Service{}},
		{leaseNameKey, "herald-pools-2", vip.Service{Lease: "herald-pools-2"}},
		{leaseNameKey, long, vip.Service{Invalid: []string{
			`kube-vip.io/leaseName is "` + long[:60] +
				`"...: no name that a Lease can have; write lower case letters, digits, - and . only. The default is used.`}}},
		{addressesKey, most + ", 10.0.0.1", vip.Service{Addresses: addrs(sixteen...), Source: addressesKey}},
		{addressesKey, most + ",10.0.0.17,no address", vip.Service{Addresses: addrs(sixteen...), Source: addressesKey, Invalid: []string{
			`kube-vip.io/loadbalancerIPs is "10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4,10.0.0.5,10.0.0.6,10.0.0"...: a Service may have 16 addresses; those after 10.0.0.16 are left out.`}}},
		{sharingKeyKey, " a key, of two words ", vip.Service{SharingKey: "a key, of two words"}},
		{sharingKeyKey, strings.Repeat("k", 254), vip.Service{Invalid: []string{
			`heraldvip.io/sharing-key is "` + strings.Repeat("k", 60) +
				`"...: longer than 253 bytes; write a shorter text. The addresses are shared with no other namespace.`}}},
		{ipModeKey, "VIP", vip.Service{IPMode: vip.ModeVIP}},
		{ipModeKey, "proxy", vip.Service{IPMode: vip.ModeProxy}},
		{ipModeKey, "", vip.Service{}},
		{vipHostKey, "n1", vip.Service{VIPHost: "n1"}},
		{egressKey, "false", vip.Service{}},
		{serviceVLANKey, "", vip.Service{}},
		{hwaddrKey, "00:00:6C:00:00:01", vip.Service{DHCP: vip.DHCP{MAC: "00:00:6c:00:00:01"}}},
		{hwaddrKey, "0E-00-5e-00-00-01", vip.Service{DHCP: vip.DHCP{MAC: "0e:00:5e:00:00:01"}}},
		{hostnameKey, "mydhcp-test", vip.Service{DHCP: vip.DHCP{Hostname: "mydhcp-test"}}},
		{hostnameKey, "Web.Example.COM", vip.Service{DHCP: vip.DHCP{Hostname: "Web.Example.COM"}}},
		{requestedKey, "10.0.0.5,fd00::5", vip.Service{DHCP: vip.DHCP{Requested: addrs("10.0.0.5", "fd00::5")}}},
		{requestedKey, "0.0.0.0", vip.Service{}},
		{macvlanKey, "shared", vip.Service{DHCP: vip.DHCP{Macvlan: "shared"}}},
		{broadcastKey, "true", vip.Service{DHCP: vip.DHCP{Broadcast: true}}},
		{rpFilterKey, "1", vip.Service{DHCP: vip.DHCP{RPFilter: "1"}}},
		{dhcpLeaseKey, `[{"address":"10.0.0.5","bits":24,"mac":"02:00:00:00:00:01","server":"10.0.0.1","expires":"2026-01-01T00:00:00Z"},{"address":"fd00::5","bits":128,"mac":"02:00:00:00:00:01"}]`,
			vip.Service{DHCP: vip.DHCP{Leases: []vip.DHCPLease{
				{Addr: addrs("10.0.0.5")[0], Bits: 24, MAC: "02:00:00:00:00:01", Server: "10.0.0.1",
					Expires: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)},
				{Addr: addrs("fd00::5")[0], Bits: 128, MAC: "02:00:00:00:00:01"}}}}},
		{dhcpLeaseKey, `[{"address":"10.0.0.5","bits":99,"mac":"02:00:00:00:00:01"},{"address":"127.0.0.1","bits":8},{"bits":8},{"address":"fe80::1%eth0","bits":128}]`, vip.Service{}},
		{dhcpLeaseKey, `{`, vip.Service{}},
		{"example.com/anything", "goes", vip.Service{}},
		{"kube-vip.io/active-endpoint", "10.0.0.1", vip.Service{}}, // kube-vip writes it
		{"kube-vip.io/egress-ipv6", "true", vip.Service{}},
		{"kube-vip.io/ignored-by-nobody", "x", vip.Service{}},
	}
	none := vip.Service{}
	const writeAddresses = "; write IP addresses separated by commas, such as 192.168.0.10,fd00::10."
	const noAddress = "is not an IP address" + writeAddresses
	for _, tt := range []struct {
		key, value string
		want       vip.Service
		wrong      string // what is said, without the annotation and its value
	}{
		{addressesKey, "192.168.0.300", vip.Service{Source: addressesKey}, `"192.168.0.300" ` + noAddress},
		{addressesKey, "192.168.0.1,oops", vip.Service{Source: addressesKey}, `"oops" ` + noAddress},
		{addressesKey, "192.168.0.1,", vip.Service{Source: addressesKey}, "an address is missing" + writeAddresses},
		{addressesKey, "fe80::1%eth0", vip.Service{Source: addressesKey},
			`"fe80::1%eth0" has a zone, which an address of a Service can't have` + writeAddresses},
		{addressesKey, "192.168.0.1/24", vip.Service{Source: addressesKey}, `"192.168.0.1/24" ` + noAddress},
		{"lbipam.cilium.io/ips", "x", vip.Service{Source: "lbipam.cilium.io/ips"}, `"x" ` + noAddress},
		{announceKey, "bgp,ospf", vip.Service{Announce: []vip.Method{}},
			"write arp, bgp, or both with a comma between. Until then the VIP is not announced, unless it is already and only one of the two is enabled."},
		{communitiesKey, "1:2,x", none,
			`community 2, "x", is neither 0..65535:0..65535, nor a:b:c of 32 bits each, nor a well-known name. The default is used.`},
		{medKey, "4294967296", none, "write a whole number from 0 to 4294967295. The default is used."},
		{prependKey, "17", none, "write a whole number from 0 to 16. The default is used."},
		{peersKey, "192.0.2.1,", vip.Service{BGPAttributes: vip.BGPAttributes{Peers: []string{}}},
			"write the addresses or interfaces of peers with commas between. The VIP is announced to no peer."},
		{ignoreKey, "yes", none, "neither true nor false, so it counts as false."},
		{withoutEndpointsKey, "no!", none, "neither true nor false, so it counts as false."},
		{interfaceKey, "averylongname015", vip.Service{Interface: "averylongname015"},
			"no name of a network interface; write one of at most 15 characters, or auto."},
		{interfaceKey, "a/b", vip.Service{Interface: "a/b"}, "no name of a network interface; write one of at most 15 characters, or auto."},
		{leaseNameKey, "kube-system/kube-scheduler", none,
			"the Lease must be in the Service's own namespace; write a name, or default/name. The default is used."},
		{leaseNameKey, "/shared", none, "the Lease must be in the Service's own namespace; write a name, or default/name. The default is used."},
		{leaseNameKey, "Shared", none, "no name that a Lease can have; write lower case letters, digits, - and . only. The default is used."},
		{leaseNameKey, "default/a/b", none, "no name that a Lease can have; write lower case letters, digits, - and . only. The default is used."},
		{leaseNameKey, "herald-node-n1", none, "names that begin with herald-node- are those of node leases; write another. The default is used."},
		{leaseNameKey, "herald-table", none, "a Lease that Herald uses for something else; write another. The default is used."},
		{leaseNameKey, "default/herald-pools", none, "a Lease that Herald uses for something else; write another. The default is used."},
		{ipModeKey, "NAT", none, "write VIP or Proxy. The default is used."},
		{serviceVLANKey, "100", none,
			"kube-vip.io/serviceVLAN is not supported by this version of Herald: the VIP is announced without a VLAN; make an interface for the VLAN on the nodes, and name it in kube-vip.io/serviceInterface."},
		{egressKey, "true", none, "the Service has no spec.selector, which says what its pods are. What they send keeps its source."},
		{"kube-vip.io/egress-allowed-network", "10.0.0.0/8", none,
			"kube-vip.io/egress-allowed-network is not known; did you mean kube-vip.io/egress-allowed-networks? It has no effect."},
		{hwaddrKey, "00:00:5e:00:01:07", none,
			"not locally administered: the second digit must be 2, 6, a or e, as in 02:00:5e:10:20:30. The default is used."},
		{hwaddrKey, "01:00:5e:00:00:01", none, "no MAC address of one interface; write one such as 02:00:5e:10:20:30. The default is used."},
		{hwaddrKey, "00:00:00:00:00:00", none, "no MAC address of one interface; write one such as 02:00:5e:10:20:30. The default is used."},
		{hwaddrKey, "00-00", none, "no MAC address of one interface; write one such as 02:00:5e:10:20:30. The default is used."},
		{hostnameKey, "a b", none, "no host name; write letters, digits, dashes and dots, at most 63 between two dots. No name is given."},
		{requestedKey, "10.0.0.5,10.0.0.6", none, "two addresses of one family; write one IP address, or one of each family. No address is asked for."},
		{requestedKey, "x", none, `"x" is not an IP address; write one IP address, or one of each family. No address is asked for.`},
		{macvlanKey, "../eth0", none, "no name of a network interface; write one of at most 15 characters. The default is used."},
		{rpFilterKey, "3", none, "write 0, 1 or 2. The default is used."},
		{"kube-vip.io/loadbalancerIP", "192.168.0.10", none,
			"kube-vip.io/loadbalancerIP is not known; did you mean kube-vip.io/loadbalancerIPs? It has no effect."},
		{"kube-vip.io/LoadBalancerIPs", "192.168.0.10", none,
			"kube-vip.io/LoadBalancerIPs is not known; did you mean kube-vip.io/loadbalancerIPs? It has no effect."},
		{"heraldvip.io/loadbalancerIPs", "192.168.0.10", none,
			"heraldvip.io/loadbalancerIPs is not known; did you mean kube-vip.io/loadbalancerIPs? It has no effect."},
		{"heraldvip.io/allowed-annotations", "*", none, "heraldvip.io/allowed-annotations is not known on a Service. It has no effect."},
	} {
		if !strings.HasPrefix(tt.wrong, tt.key) {
			tt.wrong = fmt.Sprintf("%s is %q: %s", tt.key, tt.value, tt.wrong)
		}
		tt.want.Invalid = []string{tt.wrong}
		tests = append(tests, test{tt.key, tt.value, tt.want})
	}
	for _, tt := range tests {
		t.Run(tt.key+"="+tt.value[:min(len(tt.value), 40)], func(t *testing.T) {
			key := vip.Key{Namespace: "default", Name: "web"}
			got := vip.Service{Key: key}
			readAnnotations(&got, map[string]string{tt.key: tt.value}, nil, "")
			tt.want.Key = key
			same(t, "", tt.want, got)
		})
	}
}

// TestManyUnknownAnnotations: of thousands of annotations that nobody knows three are named, and reading them takes little time.
func TestManyUnknownAnnotations(t *testing.T) {
	many := map[string]string{"kube-vip.io/ignor": "true"}
	for i := range 15000 { // about as many as fit into 256 KiB, what the API server permits
		many[fmt.Sprintf("heraldvip.io/%04d", i)] = ""
	}
	began := time.Now()
	var s vip.Service
	readAnnotations(&s, many, nil, "")
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("reading them took %v", took)
	}
	want := []string{
		"heraldvip.io/0000 is not known on a Service. It has no effect.",
		"heraldvip.io/0001 is not known on a Service. It has no effect.",
		"heraldvip.io/0002 is not known on a Service. It has no effect.",
	}
	same(t, "what is said of them", want, s.Invalid)
}

// TestAnnotationsTable: every key is in the table once, explained, and what this version reads is not marked as unsupported.
func TestAnnotationsTable(t *testing.T) {
	rows := make(map[string]Annotation)
	for _, a := range Annotations {
		if _, twice := rows[a.Key]; twice {
			t.Errorf("%s is in the table twice", a.Key)
		}
		rows[a.Key] = a
		if a.Value == "" || !strings.HasSuffix(a.Meaning, ".") {
			t.Errorf("%s is not explained: value %q, meaning %q", a.Key, a.Value, a.Meaning)
		}
		if one := (a.Consequence != "") != (a.Instead != ""); one != a.Unsupported {
			t.Errorf("%s: Consequence is %q, Instead %q, want one of them for an unsupported annotation, and none otherwise",
				a.Key, a.Consequence, a.Instead)
		}
		if prefix, _, _ := strings.Cut(a.Key, "/"); prefix != "kube-vip.io" && prefix != "heraldvip.io" {
			t.Errorf("%s has a prefix that is not ours", a.Key)
		}
	}
	for _, key := range []string{addressesKey, ignoreKey, interfaceKey, leaseNameKey, withoutEndpointsKey, ipModeKey, vipHostKey} {
		if a, ok := rows[key]; !ok || a.Unsupported {
			t.Errorf("%s is read, but the table says %+v", key, a)
		}
	}
	if !rows[vipHostKey].Written {
		t.Errorf("%s is not marked as written", vipHostKey)
	}
}

// TestPoolsAreBounded: of thousands of names of pools the first 16 are read, and the others cost nothing: while a
// Service is read, all others wait.
func TestPoolsAreBounded(t *testing.T) {
	var text strings.Builder
	for i := range 40000 {
		fmt.Fprintf(&text, "%x,", i)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	names, problem := parsePools(text.String())
	runtime.ReadMemStats(&after)
	if len(names) != 16 || names[15] != "f" || problem == "" {
		t.Errorf("%d names, %q", len(names), problem)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<10 {
		t.Errorf("it takes %d KiB", n>>10)
	}
	if names, problem := parsePools("a, b,a,,b"); !slices.Equal(names, []string{"a", "b"}) || problem != "" {
		t.Errorf("got %q, %q", names, problem)
	}
}
