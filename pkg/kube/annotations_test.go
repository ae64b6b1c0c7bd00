package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// TestLongLists: of lists as long as an annotation may be, no more is compared than counts.
func TestLongLists(t *testing.T) {
	o := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	o.Annotations = map[string]string{addressesKey: "10.0.0.1" + strings.Repeat(",x", 100000)}
	for _, k := range addressesKeys[1:] {
		o.Annotations[k] = "10.0.0.2"
	}
	check.Allocates(t, 2<<20, func() { readService(o) })
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
		{serviceVLANKey, "eth0.200", vip.Service{Interface: "eth0.200"}},
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
		{serviceVLANKey, "eth0/200", vip.Service{Interface: "eth0/200"}, "no name of a network interface; write one of at most 15 characters, or auto."},
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
			check.Same(t, tt.want, got, "")
		})
	}
}

// TestServiceVLAN: the link of a VLAN goes before another one.
func TestServiceVLAN(t *testing.T) {
	var s vip.Service
	readAnnotations(&s, map[string]string{interfaceKey: "eth1", serviceVLANKey: "eth0.200"}, nil, "")
	check.Same(t, vip.Service{Interface: "eth0.200"}, s, "")
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
	check.Same(t, want, s.Invalid, "what is said of them")
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
		check.Equal(t, (a.Instead != ""), a.Unsupported, "%s is unsupported, and there is some text instead: %q", a.Key, a.Instead)
		if prefix, _, _ := strings.Cut(a.Key, "/"); prefix != "kube-vip.io" && prefix != "heraldvip.io" {
			t.Errorf("%s has a prefix that is not ours", a.Key)
		}
	}
	for _, key := range []string{addressesKey, ignoreKey, interfaceKey, leaseNameKey, withoutEndpointsKey, ipModeKey, vipHostKey} {
		if a, ok := rows[key]; !ok || a.Unsupported {
			t.Errorf("%s is read, but the table says %+v", key, a)
		}
	}
	check.Equal(t, rows[vipHostKey].Written, true, "%s is marked as written", vipHostKey)
}

// TestPoolsAreBounded: of thousands of names of pools the first 16 are read, and the others cost nothing: while a
// Service is read, all others wait.
func TestPoolsAreBounded(t *testing.T) {
	var text strings.Builder
	for i := range 40000 {
		fmt.Fprintf(&text, "%x,", i)
	}
	check.Allocates(t, 16<<10, func() {
		if names, problem := parsePools(text.String()); len(names) != 16 || names[15] != "f" || problem == "" {
			t.Errorf("%d names, %q", len(names), problem)
		}
	})
}

// What a person asks for wins over what Herald gave, in whichever field; of several fields the first counts, and
// whoever wrote another is told of both.
func TestPrecedence(t *testing.T) {
	const (
		metallb = "metallb.io/loadBalancerIPs"
		cilium  = "lbipam.cilium.io/ips"
	)
	given := func(more map[string]string) map[string]string {
		all := map[string]string{addressesKey: "10.0.0.7", allocatedKey: "web"}
		for k, v := range more {
			all[k] = v
		}
		return all
	}
	for _, tt := range []struct {
		name        string
		annotations map[string]string
		spec        string
		want        string // addresses, source, pools
		superseded  bool
		invalid     string
	}{
		{"given", given(nil), "", "10.0.0.7 " + addressesKey + " web", false, ""},
		{"then the spec", given(nil), "10.0.0.50", "10.0.0.50 spec.loadBalancerIP ", true, ""},
		{"... the same address", given(nil), "10.0.0.7", "10.0.0.7 spec.loadBalancerIP ", true, ""},
		{"... what is no address", given(nil), "x", "10.0.0.7 " + addressesKey + " web", false,
			"As long as spec.loadBalancerIP can't be read the Service keeps 10.0.0.7."},
		{"then MetalLB's", given(map[string]string{metallb: "10.0.0.50"}), "", "10.0.0.50 " + metallb + " ", true, ""},
		{"then Cilium's", given(map[string]string{cilium: "10.0.0.50,fd00::5"}), "", "10.0.0.50,fd00::5 " + cilium + " ", true, ""},
		{"two of a person", map[string]string{addressesKey: "10.0.0.8"}, "10.0.0.50", "10.0.0.8 " + addressesKey + " ", false,
			`spec.loadBalancerIP asks for "10.0.0.50", and has no effect: kube-vip.io/loadbalancerIPs, which comes first, asks for "10.0.0.8". Remove one of them.`},
		{"two that agree", map[string]string{addressesKey: "10.0.0.8, FD00::1"}, "fd00:0::1", "10.0.0.8,fd00::1 " +
			addressesKey + " ", false, ""},
		{"two that agree, of which the second names fewer and one twice", map[string]string{addressesKey: "10.0.0.8,10.0.0.9", cilium: "10.0.0.9,10.0.0.9"}, "",
			"10.0.0.8,10.0.0.9 " + addressesKey + " ", false, ""},
		{"two of a person beside what was given", given(map[string]string{cilium: "10.0.0.8"}), "10.0.0.50", "10.0.0.8 " +
			cilium + " ", true, `spec.loadBalancerIP asks for "10.0.0.50", and has no effect: lbipam.cilium.io/ips, which comes first`},
		{"given, and so written", given(map[string]string{allocatedAddressesKey: "10.0.0.7"}), "", "10.0.0.7 " + addressesKey + " web", false, ""},
		{"... then the spec", given(map[string]string{allocatedAddressesKey: "10.0.0.7"}), "10.0.0.50", "10.0.0.50 spec.loadBalancerIP ", true, ""},
		{"... then another in its place", map[string]string{addressesKey: "10.0.0.8", allocatedKey: "web", allocatedAddressesKey: "10.0.0.7"},
			"", "10.0.0.8 " + addressesKey + " ", true, ""},
		{"... of both families", map[string]string{addressesKey: "10.0.0.8", allocatedKey: "web", allocatedAddressesKey: "10.0.0.7,fd00::1"},
			"", "10.0.0.8 " + addressesKey + " ", true, ""},
		{"... what is no address in its place", map[string]string{addressesKey: "x", allocatedKey: "web", allocatedAddressesKey: "10.0.0.7"},
			"", "10.0.0.7 " + allocatedAddressesKey + " web", false, "As long as kube-vip.io/loadbalancerIPs can't be read the Service keeps 10.0.0.7."},
		{"... then it goes", map[string]string{allocatedKey: "web", allocatedAddressesKey: "10.0.0.7"}, "", "10.0.0.7 " + allocatedAddressesKey + " web", false, ""},
		{"pools", map[string]string{poolKey: "a", "metallb.io/address-pool": "b"}, "", "  ", false,
			`metallb.io/address-pool asks for "b", and has no effect: heraldvip.io/pool, which comes first, asks for "a"`},
		{"sharing keys", map[string]string{sharingKeyKey: "a", "lbipam.cilium.io/sharing-key": "b"}, "", "  ", false,
			`lbipam.cilium.io/sharing-key asks for "b", and has no effect`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerIP: tt.spec}}
			o.Annotations = tt.annotations
			s := readService(o)
			check.Equal(t, vip.JoinAddrs(s.Addresses, ",")+" "+s.Source+" "+s.Allocated, tt.want, "addresses, source and pools")
			check.Equal(t, s.Superseded, tt.superseded, "superseded")
			told := strings.Join(s.Invalid, " ")
			if tt.invalid == "" && told != "" || !strings.Contains(told, tt.invalid) {
				t.Errorf("told %q, want %q", told, tt.invalid)
			}
		})
	}
}

// TestGivenBesideOwn: what was given of pools stays beside what a person names, as the other family of a Service of two.
func TestGivenBesideOwn(t *testing.T) {
	const require, prefer, single = corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicySingleStack
	var many []netip.Addr
	for i := range maxAddresses {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}))
	}
	sixteen := vip.JoinAddrs(many, ",")
	for _, tt := range []struct {
		name         string
		policy       corev1.IPFamilyPolicy
		named, given string // by kube-vip.io/loadbalancerIPs, of the pool web
		spec         string
		want         string // addresses, source, pools
		superseded   bool
	}{
		{"given beside an own one", require, "10.0.0.8", "fd00::1", "", "10.0.0.8,fd00::1 " + addressesKey + " web", false},
		{"... which is not required any more", prefer, "10.0.0.8", "fd00::1", "", "10.0.0.8,fd00::1 " + addressesKey + " web", false},
		{"... of a family that it has not any more", single, "10.0.0.8", "fd00::1", "", "10.0.0.8 " + addressesKey + " ", true},
		{"... beside as many as there may be", require, sixteen, "fd00::1,fd00::2", "", sixteen + ",fd00::1 " + addressesKey + " web", false},
		{"... of the spec", require, "", "fd00::1", "10.0.0.8", "10.0.0.8,fd00::1 spec.loadBalancerIP web", false},
		{"... then both families are named", require, "10.0.0.8,fd00::2", "fd00::1", "", "10.0.0.8,fd00::2 " + addressesKey + " ", true},
		{"... then the own one goes", require, "", "fd00::1", "", "fd00::1 " + allocatedAddressesKey + " web", false},
		{"both given, then one is named", require, "10.0.0.8", "10.0.0.7,fd00::1", "", "10.0.0.8,fd00::1 " + addressesKey + " web", false},
		{"... the other one", require, "fd00::2", "10.0.0.7,fd00::1", "", "fd00::2,10.0.0.7 " + addressesKey + " web", false},
		{"... and neither is required", prefer, "10.0.0.8", "10.0.0.7,fd00::1", "", "10.0.0.8,fd00::1 " + addressesKey + " web", false},
		{"... then both", require, "10.0.0.8,fd00::2", "10.0.0.7,fd00::1", "", "10.0.0.8,fd00::2 " + addressesKey + " ", true},
	} {
		o := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerIP: tt.spec, IPFamilyPolicy: &tt.policy}}
		o.Annotations = map[string]string{addressesKey: tt.named, allocatedKey: "web", allocatedAddressesKey: tt.given}
		s := readService(o)
		check.Equal(t, vip.JoinAddrs(s.Addresses, ",")+" "+s.Source+" "+s.Allocated, tt.want, "%s", tt.name)
		check.Equal(t, s.Superseded, tt.superseded, "%s: superseded", tt.name)
	}
}

// A lease is written beside the status, and what is written is what is read. When it is gone the address stays as the one to ask for.
func TestStatusWithDHCPLease(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		d.edit(serviceKey(0), func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerIP = corev1.ServiceTypeLoadBalancer, "0.0.0.0"
			s.Annotations = map[string]string{requestedKey: "fd00::99,10.0.0.99", "example.com/theirs": "stays"}
		})
		advance(time.Second)
		want := statusOf(0)
		want.DHCPLeases = []vip.DHCPLease{{Addr: want.Ingress[0].Addr, Bits: 24, MAC: "02:00:00:00:00:01", Server: "10.0.0.1",
			Expires: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}, {Addr: netip.MustParseAddr("fd00::5"), Bits: 128,
			MAC: "02:00:00:00:00:01"}}
		both := want.DHCPLeases
		for i, requested := range []string{"10.0.0.0,fd00::99", "10.0.0.0,fd00::5"} { // one family is leased first
			want.DHCPLeases = both[:i+1]
			d.plan(want)
			advance(time.Minute)
			if d.writes(serviceKey(0)) != i+1 || d.written() != 1 {
				t.Fatalf("%d writes, %d hold", d.writes(serviceKey(0)), d.written())
			}
			check.Equal(t, d.at(serviceKey(0)).Annotations[requestedKey], requested, "requestedIP")
		}
		check.Same(t, want.DHCPLeases, readService(d.at(serviceKey(0))).DHCP.Leases, "")
		want.DHCPLeases[0].Expires = want.DHCPLeases[0].Expires.Add(time.Hour)
		d.plan(want)
		advance(time.Minute)
		check.Equal(t, d.writes(serviceKey(0)), 3, "writes after a renewal")
		d.edit(serviceKey(0), func(s *corev1.Service) { s.Annotations[dhcpLeaseKey] = "spoilt" })
		advance(time.Minute)
		check.Same(t, want.DHCPLeases, readService(d.at(serviceKey(0))).DHCP.Leases, "")
		d.plan(vip.Status{Service: serviceKey(0), UID: "uid"})
		advance(time.Minute)
		got := d.at(serviceKey(0))
		if diff := cmp.Diff(map[string]string{requestedKey: "10.0.0.0,fd00::5", "example.com/theirs": "stays"},
			got.Annotations); diff != "" || len(got.Status.LoadBalancer.Ingress) > 0 {
			t.Errorf("status %v, annotations %s", got.Status, diff)
		}
	})
}

// What a Service says about egress is read with its limits; what can't be read leaves the Service without egress, and its user is told.
func TestEgressAnnotations(t *testing.T) {
	networks := func(text string) (all []netip.Prefix) {
		for _, x := range strings.Fields(text) {
			all = append(all, netip.MustParsePrefix(x))
		}
		return all
	}
	tests := []struct {
		name        string
		annotations map[string]string
		want        *vip.EgressRule
		invalid     string
	}{
		{"not asked for", map[string]string{egressAllowedNetworksKey: "10.0.0.0/8"}, nil, ""},
		{"false", map[string]string{egressKey: "false", egressAllowedNetworksKey: "x"}, nil, ""},
		{"all", map[string]string{egressKey: "true"}, &vip.EgressRule{Selector: "app=web"}, ""},
		{"limits", map[string]string{egressKey: "true", egressAllowedNetworksKey: "192.168.0.7/16, fd00::/8,10.0.0.1",
			egressDeniedNetworksKey: "192.168.1.0/24", egressDestinationPortsKey: "80,udp:53, SCTP:9", egressSourcePortsKey: "tcp:3000"},
			&vip.EgressRule{Selector: "app=web",
				EgressLimits: vip.EgressLimits{AllowedNetworks: networks("192.168.0.0/16 fd00::/8 10.0.0.1/32"),
					DeniedNetworks:   networks("192.168.1.0/24"),
					DestinationPorts: []vip.Port{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 53}, {Protocol: "SCTP", Port: 9}},
					SourcePorts:      []vip.Port{{Protocol: "TCP", Port: 3000}}}}, ""},
		{"a network that is none", map[string]string{egressKey: "true", egressAllowedNetworksKey: "10.0.0.0/8,10.0.0.0/33"}, nil,
			`kube-vip.io/egress-allowed-networks is "10.0.0.0/8,10.0.0.0/33": "10.0.0.0/33" is no network; write networks separated by commas, such as 192.168.0.0/16,fd00::/8. Until then what the Service's pods send keeps its source.`},
		{"too many networks", map[string]string{egressKey: "true", egressDeniedNetworksKey: strings.Repeat("10.0.0.0/8,",
			64) + "10.0.0.0/8"}, nil, "more than 64 networks"},
		{"a port that is none", map[string]string{egressKey: "true", egressDestinationPortsKey: "tcp:0"}, nil,
			`"tcp:0" is no port; write ports separated by commas, such as tcp:443,udp:53. Until then`},
		{"a protocol that is none", map[string]string{egressKey: "true", egressDestinationPortsKey: "icmp:8"}, nil, `"icmp:8" is no port`},
		{"too many ports", map[string]string{egressKey: "true", egressSourcePortsKey: strings.Repeat("80,", 64) + "80"}, nil,
			"more than 64 ports"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var s vip.Service
			readAnnotations(&s, tt.annotations, map[string]string{"app": "web"}, "")
			check.Same(t, tt.want, s.Egress, "")
			if got := strings.Join(s.Invalid, "\n"); tt.invalid == "" && got != "" || !strings.Contains(got, tt.invalid) {
				t.Errorf("invalid: %q, want %q", got, tt.invalid)
			}
		})
	}
}

// TestEgressSelectorIsBounded: a selector of a megabyte, which each node would keep and send with each list of pods, is refused.
func TestEgressSelectorIsBounded(t *testing.T) {
	o := tenantService(egressKey+"=true\n"+addressesKey+"=10.0.0.1", "", []byte{79}, 0)
	o.Spec.Selector = make(map[string]string)
	for i := range 10000 {
		o.Spec.Selector[fmt.Sprintf("label-%d", i)] = strings.Repeat("x", 60)
	}
	s := readService(o)
	if s.Egress != nil || len(s.Invalid) != 1 || !strings.Contains(s.Invalid[0], "spec.selector has 10000 labels") {
		t.Errorf("egress %.200v, %q", s.Egress, s.Invalid)
	}
}

// TestWritten: Written is when Herald changed the status, not when somebody else did, or Herald something else.
func TestWritten(t *testing.T) {
	at := func(seconds int64) *metav1.Time { return new(metav1.Unix(seconds, 0)) }
	s := readService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		{Manager: "herald", Subresource: "status", Time: at(100)}, {Manager: "herald", Time: at(200)},
		{Manager: "kubectl", Subresource: "status", Time: at(300)}}}})
	check.Equal(t, s.Written.Unix(), 100, "written at")
}

// FuzzEgress: whatever the annotations and the selector say, what is kept is bounded, and sound: nftables takes it as it is.
func FuzzEgress(f *testing.F) {
	f.Add("192.168.0.0/16,fd00::/8", "10.0.0.1", "tcp:443,udp:53", "80", "app", "web")
	f.Add("0.0.0.0/0,::/0", "::ffff:10.0.0.0/104,fe80::1%eth0", "0,65536", ":,sctp:1", "", strings.Repeat("x", 5000))
	f.Add(strings.Repeat("10.0.0.0/8,", 65)+"10.0.0.0/8", "", strings.Repeat("1,", 70), " TCP : 1 ", "a/b", "\x00")
	f.Fuzz(func(t *testing.T, allowed, denied, destination, source, label, value string) {
		o := tenantService(egressKey+"=true", "", nil, 0)
		maps.Copy(o.Annotations, map[string]string{egressAllowedNetworksKey: allowed, egressDeniedNetworksKey: denied,
			egressDestinationPortsKey: destination, egressSourcePortsKey: source})
		o.Spec.Selector = map[string]string{label: value}
		s := readService(o)
		if s.Egress == nil {
			if len(s.Invalid) == 0 {
				t.Error("no egress, and nothing is said")
			}
			return
		}
		for _, list := range [][]netip.Prefix{s.Egress.AllowedNetworks, s.Egress.DeniedNetworks} {
			for _, n := range list {
				if !n.IsValid() || n != n.Masked() || n.Addr().Zone() != "" || n.Addr().Is4In6() || len(list) > maxEgressLimits {
					t.Errorf("networks %v", list)
				}
			}
		}
		for _, list := range [][]vip.Port{s.Egress.DestinationPorts, s.Egress.SourcePorts} {
			for _, p := range list {
				if p.Port == 0 || !slices.Contains([]string{"TCP", "UDP", "SCTP"}, p.Protocol) || len(list) > maxEgressLimits {
					t.Errorf("ports %v", list)
				}
			}
		}
		if len(s.Egress.Selector) > maxSelector {
			t.Errorf("a selector of %d bytes", len(s.Egress.Selector))
		}
	})
}

func TestForwardAnnotations(t *testing.T) {
	one := []vip.Port{{Protocol: "TCP", Port: 53}, {Protocol: "UDP", Port: 53}}
	two := []vip.Port{{Protocol: "TCP", Port: 80}, {Protocol: "TCP", Port: 443}}
	hour := func(change ...func(*vip.Forward)) *vip.Forward {
		f := &vip.Forward{Lease: time.Hour}
		for _, c := range change {
			c(f)
		}
		return f
	}
	to := func(ports map[uint16]uint16) func(*vip.Forward) { return func(f *vip.Forward) { f.External = ports } }
	tests := []struct {
		on, lease, external string
		ports               []vip.Port
		want                *vip.Forward
		wrong               string // part of the sentence
	}{
		{"", "5m", "any", one, nil, ""},
		{"false", "5m", "rubbish", one, nil, ""},
		{"yes", "", "", one, nil, "neither true nor false"},
		{"true", "", "", one, hour(), ""},
		{"TRUE", " 5m ", "", one, hour(func(f *vip.Forward) { f.Lease = 5 * time.Minute }), ""},
		{"true", "0", "", one, hour(func(f *vip.Forward) { f.Lease = 0 }), ""},
		{"true", "7200", "", one, hour(func(f *vip.Forward) { f.Lease = 2 * time.Hour }), ""},
		{"true", "1s", "", one, hour(), "30s to 168h0m0s"},
		{"true", "-1h", "", one, hour(), "The default, 1h0m0s, is used"},
		{"true", "99999999999999999999h", "", one, hour(), "upnp-lease-duration"},
		{"true", "", "any", one, nil, "external-port"},
		{"true", "", "5353", one, hour(to(map[uint16]uint16{53: 5353})), ""},
		{"true", "", "5353", two, nil, "80=8080"},
		{"true", "", "80=8080, 443 = 8443", two, hour(to(map[uint16]uint16{80: 8080, 443: 8443})), ""},
		{"true", "", "80=8080", two, hour(to(map[uint16]uint16{80: 8080})), ""},
		{"true", "", "80=8080,80=8081", two, nil, "No gateway is asked"},
		{"true", "", "80=9000,443=9000", two, nil, "No gateway is asked"},
		{"true", "", "80=443", two, nil, "No gateway is asked"},
		{"true", "", "80=443,443=80", two, hour(to(map[uint16]uint16{80: 443, 443: 80})), ""},
		{"true", "", "22=8080", two, nil, "No gateway is asked"},
		{"true", "", "80=0", two, nil, "No gateway is asked"},
		{"true", "", "80=65536", two, nil, "No gateway is asked"},
		{"true", "", "5353,5354", one, nil, "No gateway is asked"},
		{"true", "", "\x7f;$(reboot)", one, nil, "No gateway is asked"},
	}
	for _, tt := range tests {
		t.Run(tt.on+" "+tt.lease+" "+tt.external, func(t *testing.T) {
			s := vip.Service{Ports: tt.ports}
			readAnnotations(&s, map[string]string{upnpKey: tt.on, upnpLeaseKey: tt.lease, externalPortKey: tt.external}, nil, "")
			check.Same(t, tt.want, s.Forward, "")
			got := strings.Join(s.Invalid, " ")
			if tt.wrong == "" && got != "" || !strings.Contains(got, tt.wrong) {
				t.Errorf("got %q, want %q", got, tt.wrong)
			}
		})
	}
}

// TestGatewayAddressIsNoVIP: what a gateway has on its far side is no address to announce.
func TestGatewayAddressIsNoVIP(t *testing.T) {
	v, x := vip.Ingress{Addr: addrs("10.0.0.50")[0], IPMode: vip.ModeVIP}, vip.Ingress{Addr: addrs("11.22.33.1")[0], IPMode: vip.ModeProxy}
	alone := v
	alone.IPMode = vip.ModeProxy
	for _, ingress := range [][]vip.Ingress{{v, x}, {alone}} {
		r := &cachedService{}
		r.Ingress = ingress
		annotationReader{&r.Service, nil}.readAddresses("")
		check.Same(t, addrs("10.0.0.50"), r.Addresses, "%v", ingress)
	}
}

// TestStatusWithoutModes: an API server that drops ipMode is sent VIPs only.
func TestStatusWithoutModes(t *testing.T) {
	key := vip.Key{Namespace: "default", Name: "web"}
	r := &cachedService{}
	s := newStatuses(Options{}, func(vip.Key) *cachedService { return r }, newMetrics())
	v, x := vip.Ingress{Addr: addrs("10.0.0.50")[0], IPMode: vip.ModeVIP},
		vip.Ingress{Addr: addrs("11.22.33.1")[0], IPMode: vip.ModeProxy}
	for _, tt := range []struct {
		dropsIPMode   bool
		want, pending []vip.Ingress
	}{
		{false, []vip.Ingress{v, x}, []vip.Ingress{v, x}},
		{true, []vip.Ingress{v, x}, []vip.Ingress{v}},
		{true, []vip.Ingress{x}, []vip.Ingress{x}}, // its VIP has that mode
	} {
		s.dropsIPMode.Store(tt.dropsIPMode)
		want := []vip.Status{{Service: key, VIPHost: "n1", Ingress: tt.want}}
		s.Put(want)
		check.Same(t, tt.pending, s.states[key].errands[ofStatus].want.status.Ingress, "%v of %v", tt.dropsIPMode, tt.want)
	}
}
