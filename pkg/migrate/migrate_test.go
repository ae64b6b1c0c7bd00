package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// data returns the data and the Pins of a Result, sorted, in few words.
func data(r Result) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(r.Data)) {
		out = append(out, k+": "+r.Data[k])
	}
	for _, k := range slices.SortedFunc(maps.Keys(r.Pins), vip.Key.Compare) {
		out = append(out, fmt.Sprintf("%s %v", k, r.Pins[k]))
	}
	return strings.Join(out, "\n")
}

// from is From of objects without quotes around keys and values, so that they are short.
func from(t *testing.T, source string, objects ...string) Result {
	t.Helper()
	var all []json.RawMessage
	for _, o := range objects {
		all = append(all, json.RawMessage(o))
	}
	return check.Value(From(source, all))(t)
}

func metalLB(kind, name, spec string) string {
	return fmt.Sprintf(`{"kind":%q,"metadata":{"name":%q,"namespace":"metallb-system"},"spec":{%s}}`, kind, name, spec)
}

func loadBalancer(name, annotations, ip string) string {
	return fmt.Sprintf(`{"kind":"Service","metadata":{"name":%q,"namespace":"default","annotations":{%s}},"spec":{"type":"LoadBalancer"},"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, name, annotations, ip)
}

func TestMetalLB(t *testing.T) {
	const pool = `"addresses":["10.0.0.0/28"]`
	for _, tt := range []struct {
		name    string
		objects []string
		want    string
		note    string // part of one of the notes
	}{
		{"one address", []string{metalLB("IPAddressPool", "a", `"addresses":["10.0.0.7-10.0.0.7","10.0.0.9/32","fd00::1-fd00::f"]`)}, "pool-a: 10.0.0.7,10.0.0.9/32,fd00::1-fd00::f", "IPAddressPool a, by hand: .announce, since nothing advertises it"},
		{"a name that is a key's", []string{metalLB("IPAddressPool", "cidr-x", pool)}, "pool-metallb-cidr-x: 10.0.0.0/28", "called metallb-cidr-x"},
		{"names that become one", []string{metalLB("IPAddressPool", "a.b", pool), metalLB("IPAddressPool", "a-b", pool)}, "pool-a-b: 10.0.0.0/28\npool-metallb-a-b: 10.0.0.0/28", "called metallb-a-b"},
		{"the lowest priority comes first, 0 last", []string{
			metalLB("IPAddressPool", "a", pool+`,"serviceAllocation":{"priority":100}`), metalLB("IPAddressPool", "b", pool+`,"serviceAllocation":{"priority":7}`), metalLB("IPAddressPool", "c", pool+`,"serviceAllocation":{}`),
		}, "pool-a: 10.0.0.0/28\npool-a.priority: 1\npool-b: 10.0.0.0/28\npool-b.priority: 2\npool-c: 10.0.0.0/28", ""},
		{"selectors that can't be one", []string{metalLB("IPAddressPool", "a", pool), metalLB("L2Advertisement", "x", `"nodeSelectors":[{"matchLabels":{"a":"1"}},{"matchLabels":{"b":"1"}}]`)},
			"pool-a: 10.0.0.0/28\npool-a.announce: arp", `IPAddressPool a, by hand: .nodes: ["a=1" "b=1"]`},
		{"selectors of one label", []string{metalLB("IPAddressPool", "a", pool), metalLB("L2Advertisement", "x", `"nodeSelectors":[{"matchLabels":{"kubernetes.io/hostname":"n2"}},{"matchLabels":{"kubernetes.io/hostname":"n1"}}]`)},
			"pool-a: 10.0.0.0/28\npool-a.announce: arp\npool-a.nodes: kubernetes.io/hostname in (n1,n2)", ""},
		{"one selector", []string{metalLB("IPAddressPool", "a", pool), metalLB("L2Advertisement", "x", `"nodeSelectors":[{"matchExpressions":[{"key":"a","operator":"In","values":["1","2"]}]}],"interfaces":["eth1"]`)},
			"pool-a: 10.0.0.0/28\npool-a.announce: arp\npool-a.interface: eth1\npool-a.nodes: a in (1,2)", ""},
		{"all nodes by another advertisement", []string{metalLB("IPAddressPool", "a", pool), metalLB("L2Advertisement", "x", `"nodeSelectors":[{"matchLabels":{"a":"2"}}]`), metalLB("L2Advertisement", "y", ``)},
			"pool-a: 10.0.0.0/28\npool-a.announce: arp", `by hand: .nodes: ["" "a=2"]`},
		{"Services that are selected", []string{metalLB("IPAddressPool", "a", pool+`,"serviceAllocation":{"serviceSelectors":[{"matchLabels":{"x":"1"}}]}`)},
			"pool-a: 10.0.0.0/28\npool-a.services: x=1", "IPAddressPool a, by hand: who may ask for an address by name is limited by .namespaces only"},
		{"namespaces that have a label", []string{metalLB("IPAddressPool", "a", pool+`,"serviceAllocation":{"namespaceSelectors":[{"matchExpressions":[{"key":"public","operator":"Exists"}]}]}`)},
			"pool-a: 10.0.0.0/28\npool-a.namespaces: public,kubernetes.io/metadata.name!=", ""},
		{"selectors of which any holds", []string{metalLB("IPAddressPool", "a", pool+`,"autoAssign":false,"serviceAllocation":{"priority":1,"serviceSelectors":[{"matchLabels":{"x":"1"}},{"matchLabels":{"y":"1"}}]}`)},
			"pool-a: 10.0.0.0/28\npool-a.auto: false\npool-a.namespaces: kubernetes.io/metadata.name=\npool-a.priority: 1", "IPAddressPool a, by hand: serviceAllocation"},
		{"namespaces by name or by selector", []string{metalLB("IPAddressPool", "a", pool+`,"serviceAllocation":{"namespaces":["x"],"namespaceSelectors":[{"matchLabels":{"y":"1"}}]}`)},
			"pool-a: 10.0.0.0/28\npool-a.namespaces: kubernetes.io/metadata.name=", "IPAddressPool a, by hand: serviceAllocation"},
		{"a selector that can't be read", []string{metalLB("IPAddressPool", "a", pool+`,"serviceAllocation":{"namespaceSelectors":[{"matchExpressions":[{"key":"a","operator":"Odd"}]}]}`)},
			"pool-a: 10.0.0.0/28\npool-a.namespaces: kubernetes.io/metadata.name=", "IPAddressPool a, by hand: serviceAllocation"},
		{"nodes by ARP and others by BGP", []string{metalLB("IPAddressPool", "a", pool), metalLB("L2Advertisement", "x", `"nodeSelectors":[{"matchLabels":{"zone":"a"}}]`), metalLB("BGPAdvertisement", "y", `"nodeSelectors":[{"matchLabels":{"zone":"b"}}]`)},
			"pool-a: 10.0.0.0/28\npool-a.announce: arp,bgp\npool-a.nodes: zone in (a,b)", `IPAddressPool a, by hand: .nodes: ["zone=a" "zone=b"]; a pool has one value, for all ways to announce`},
		{"all namespaces by an empty selector", []string{metalLB("IPAddressPool", "a", pool+`,"serviceAllocation":{"namespaces":["x"],"namespaceSelectors":[{}]}`)}, "pool-a: 10.0.0.0/28", ""},
		{"a Service that names no address", []string{metalLB("IPAddressPool", "a", pool), loadBalancer("s", "", "10.0.0.9")},
			"pool-a: 10.0.0.0/28\ndefault/s map[heraldvip.io/allocated:a heraldvip.io/allocated-addresses:10.0.0.9 kube-vip.io/loadbalancerIPs:10.0.0.9]", ""},
		{"a Service that names another", []string{metalLB("IPAddressPool", "a", pool), loadBalancer("s", `"metallb.io/loadBalancerIPs":"10.0.0.5"`, "10.0.0.9")},
			"pool-a: 10.0.0.0/28\ndefault/s map[kube-vip.io/loadbalancerIPs:10.0.0.9]", "asks for [10.0.0.5], and has [10.0.0.9]"},
		{"a Service with an address that no pool has", []string{metalLB("IPAddressPool", "a", pool), loadBalancer("s", "", "10.9.9.9")}, "pool-a: 10.0.0.0/28\ndefault/s map[kube-vip.io/loadbalancerIPs:10.9.9.9]", "in no pool. It keeps it"},
		{"a Service that asks by name, and for a pool that is renamed", []string{metalLB("IPAddressPool", "a.b", pool), loadBalancer("s", `"kube-vip.io/loadbalancerIPs":"10.0.0.5","metallb.universe.tf/address-pool":"a.b"`, "10.0.0.5")},
			"pool-metallb-a-b: 10.0.0.0/28\ndefault/s map[heraldvip.io/pool:metallb-a-b]", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := from(t, "metallb", tt.objects...)
			if got := data(r); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, tt.note) {
				t.Errorf("%q is not in\n%s", tt.note, notes)
			}
		})
	}
}

// The same nodes by ARP and by BGP are no reason for a note.
func TestSameNodesForBothWays(t *testing.T) {
	const nodes = `"nodeSelectors":[{"matchLabels":{"zone":"a","rack":"7"}}]`
	const turned = `"nodeSelectors":[{"matchLabels":{"rack":"7","zone":"a"}}]`
	r := from(t, "metallb", metalLB("IPAddressPool", "a", `"addresses":["10.0.0.0/28"]`), metalLB("L2Advertisement", "x", nodes), metalLB("BGPAdvertisement", "y", turned))
	if notes := strings.Join(r.Notes, "\n"); strings.Contains(notes, ".nodes") {
		t.Error(notes)
	}
}

// Whatever pools are called there, they have names here that Herald takes, each its own.
func TestLongNames(t *testing.T) {
	const pool = `"addresses":["10.0.0.0/28"]`
	long := strings.Repeat("a", 63)
	r := from(t, "metallb", metalLB("IPAddressPool", long, pool), metalLB("IPAddressPool", long+".b", pool), metalLB("IPAddressPool", long+".c", pool), metalLB("IPAddressPool", "cidr-"+long[5:], pool), metalLB("IPAddressPool", "metallb-"+long[:47], pool))
	pools := 0
	for k := range r.Data {
		if pools++; !poolName.MatchString(strings.TrimPrefix(k, "pool-")) || reservedName.MatchString(strings.TrimPrefix(k, "pool-")) {
			t.Errorf("%s is no name of a pool", k)
		}
	}
	if pools != 5 {
		t.Errorf("%d pools, want 5:\n%s", pools, data(r))
	}
}

// The ConfigMap of kube-vip's provider is taken over as it is, and its addresses, single ones too, are those of pools.
func TestKubeVIP(t *testing.T) {
	config := `{"kind":"ConfigMap","metadata":{"name":"kubevip","namespace":"kube-system"},"data":{"cidr-global":"10.0.0.0/30, 10.0.0.9","range-shop":"10.0.1.1-10.0.1.9","pool-edge":"10.0.2.0/28","pool-edge.auto":"false"}}`
	r := from(t, "kube-vip", config, loadBalancer("a", "", "10.0.0.9"), loadBalancer("b", "", "10.0.2.3"), loadBalancer("c", "", "10.0.3.3"))
	if got, want := len(r.Data), 4; got != want {
		t.Errorf("%d keys, want %d", got, want)
	}
	got := slices.DeleteFunc(r.Notes, func(n string) bool { return !strings.Contains(n, "in no pool") })
	if want := []string{"Service default/c has 10.0.3.3, which is in no pool. It keeps it."}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The status that kube-vip wrote may have the gateway's external address, too (UPnP): that is pinned for no Service.
func TestKubeVIPWithUPnP(t *testing.T) {
	config := `{"kind":"ConfigMap","metadata":{"name":"kubevip","namespace":"kube-system"},"data":{"cidr-global":"10.0.0.0/28"}}`
	for _, tt := range []struct{ name, annotations, want, note string }{
		{"named", `"kube-vip.io/loadbalancerIPs":"10.0.0.5","kube-vip.io/forwardUPNP":"true"`, "", ""},
		{"named since", `"kube-vip.io/loadbalancerIPs":"10.0.0.6"`, "", ""},
		{"not named", `"kube-vip.io/forwardUPNP":"true"`, "\ndefault/s map[heraldvip.io/allocated:cidr-global heraldvip.io/allocated-addresses:10.0.0.5 kube-vip.io/loadbalancerIPs:10.0.0.5]", ""},
		{"two addresses", `"x":""`, "\ndefault/s map[heraldvip.io/allocated:cidr-global heraldvip.io/allocated-addresses:10.0.0.5,203.0.113.7 kube-vip.io/loadbalancerIPs:10.0.0.5,203.0.113.7]", "has 203.0.113.7, which is in no pool"},
		{"ignored", `"kube-vip.io/ignore":"true"`, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := from(t, "kube-vip", config, strings.Replace(loadBalancer("s", tt.annotations, "10.0.0.5"), `]`, `,{"ip":"203.0.113.7"}]`, 1))
			check.Equal(t, data(r), "cidr-global: 10.0.0.0/28"+tt.want, "data and pins")
			notes := strings.Join(slices.DeleteFunc(r.Notes, func(n string) bool { return !strings.Contains(n, "default/s") }), "\n")
			if !strings.Contains(notes, tt.note) || tt.note == "" && notes != "" {
				t.Errorf("notes %q, want %q", notes, tt.note)
			}
		})
	}
}

// What Cilium announces by BGP, or not by L2 announcements, is not announced by ARP alone.
func TestCiliumPolicies(t *testing.T) {
	const (
		pool   = `{"kind":"CiliumLoadBalancerIPPool","metadata":{"name":"a"},"spec":{"blocks":[{"cidr":"10.0.0.0/28"}]}}`
		l2     = `{"kind":"CiliumL2AnnouncementPolicy","metadata":{"name":"l2"},"spec":{"loadBalancerIPs":true,"interfaces":["eth1"]}}`
		others = `{"kind":"CiliumL2AnnouncementPolicy","metadata":{"name":"others"},"spec":{"externalIPs":true,"interfaces":["eth2"]}}`
		bgp    = `{"kind":"CiliumBGPClusterConfig","metadata":{"name":"tor"},"spec":{}}`
	)
	for _, tt := range []struct {
		name    string
		objects []string
		want    string
		note    string // part of one of the notes
	}{
		{"L2 alone", []string{pool, l2}, "pool-a: 10.0.0.0/28\npool-a.announce: arp\npool-a.interface: eth1", ""},
		{"L2 and BGP", []string{pool, l2, bgp}, "pool-a: 10.0.0.0/28\npool-a.interface: eth1", "CiliumL2AnnouncementPolicy l2, by hand: .announce of the pools"},
		{"externalIPs", []string{pool, others}, "pool-a: 10.0.0.0/28", ""},
		{"both of these", []string{pool, others, l2}, "pool-a: 10.0.0.0/28\npool-a.announce: arp\npool-a.interface: eth1", ""},
	} {
		r := from(t, "cilium", tt.objects...)
		if got := data(r); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.name, got, tt.want)
		}
		if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, tt.note) {
			t.Errorf("%s: %q is not in\n%s", tt.name, tt.note, notes)
		}
	}
}

// A pool of Cilium that is for some namespaces is closed to others, and what its serviceSelector refuses otherwise is said.
func TestCiliumServiceSelectors(t *testing.T) {
	const refuses = "CiliumLoadBalancerIPPool a, by hand: " + whoMayAsk
	for _, tt := range []struct{ name, selector, want, note string }{
		{"labels", `"matchLabels":{"tier":"gold"}`, "pool-a.services: tier=gold", refuses},
		{"a namespace", `"matchLabels":{"io.kubernetes.service.namespace":"shop"}`, "pool-a.namespaces: shop", ""},
		{"a namespace and labels", `"matchLabels":{"io.kubernetes.service.namespace":"shop","tier":"gold"}`, "pool-a.namespaces: shop\npool-a.services: tier=gold", refuses},
		{"all namespaces but one", `"matchExpressions":[{"key":"io.kubernetes.service.namespace","operator":"NotIn","values":["shop"]}]`, "pool-a.namespaces: kubernetes.io/metadata.name notin (shop)", ""},
		{"both", `"matchExpressions":[{"key":"io.kubernetes.service.namespace","operator":"In","values":["shop","web"]},{"key":"io.kubernetes.service.namespace","operator":"NotIn","values":["web"]}]`,
			"pool-a.namespaces: kubernetes.io/metadata.name in (shop,web),kubernetes.io/metadata.name notin (web)", ""},
		{"a Service by its name", `"matchLabels":{"io.kubernetes.service.name":"web"}`, "pool-a.auto: false", whoMayAsk},
	} {
		r := from(t, "cilium", `{"kind":"CiliumLoadBalancerIPPool","metadata":{"name":"a"},"spec":{"blocks":[{"cidr":"10.0.0.0/28"}],"serviceSelector":{`+tt.selector+`}}}`)
		if got, want := data(r), "pool-a: 10.0.0.0/28\n"+tt.want; got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.name, got, want)
		}
		if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, tt.note) || tt.note == "" && strings.Contains(notes, whoMayAsk) {
			t.Errorf("%s: %q is not in, or more:\n%s", tt.name, tt.note, notes)
		}
	}
}

// Fields of a BGPPeer that are not imported are named, without what they say: one may be a password. A peer that bgp_peers can't have is left out.
func TestPeers(t *testing.T) {
	const tor = `"myASN":64500,"peerASN":64501,"peerAddress":"10.0.0.1"`
	for _, tt := range []struct{ name, spec, want string }{
		{"fields", tor + `,"holdTime":"90s","vrf":"red","password":"secret","new":["x"]`, "BGPPeer tor, by hand: holdTime; new; password; vrf.|BGP: run Herald with bgp_enable=true, bgp_as=64500 and bgp_peers=10.0.0.1:64501; herald manifest takes them from its environment."},
		{"what changes nothing", tor + `,"disableMP":false,"vrf":"","passwordSecret":{},"connectTime":null,"peerPort":179`, "BGP: run Herald with bgp_enable=true, bgp_as=64500 and bgp_peers=10.0.0.1:64501; herald manifest takes them from its environment."},
		{"port and hops", `"myASN":64500,"peerASN":64501,"peerAddress":"fd00::1","ebgpMultiHop":true,"peerPort":1179`, "BGP: run Herald with bgp_enable=true, bgp_as=64500 and bgp_peers=[fd00::1]:64501::true:1179; herald manifest takes them from its environment."},
		{"an AS that the router tells", `"myASN":64500,"dynamicASN":"external","peerAddress":"10.0.0.1"`, "BGPPeer tor, by hand: dynamicASN; all of it (bgp_as, bgp_peers)"},
		{"a link", `"myASN":64500,"peerASN":64501,"interface":"eth1"`, "BGPPeer tor, by hand: interface; all of it (bgp_as, bgp_peers)"},
	} {
		r := from(t, "metallb", metalLB("IPAddressPool", "a", `"addresses":["10.0.0.0/28"]`), metalLB("BGPPeer", "tor", tt.spec))
		got := strings.Join(slices.DeleteFunc(r.Notes, func(n string) bool { return !strings.Contains(n, "BGP") }), "|")
		for part := range strings.SplitSeq(tt.want, "|") {
			if !strings.Contains(got, part) || strings.Contains(got, "secret") || strings.Count(tt.want, "|") != strings.Count(got, "|") {
				t.Errorf("%s: got\n%s\nwant\n%s", tt.name, got, tt.want)
			}
		}
	}
}

// A Service that shares an address with other namespaces by an annotation that Herald does not read is named.
func TestCiliumSharingAcrossNamespaces(t *testing.T) {
	const pool = `{"kind":"CiliumLoadBalancerIPPool","metadata":{"name":"a"},"spec":{"blocks":[{"cidr":"10.0.0.0/28"}]}}`
	for _, key := range []string{"lbipam.cilium.io/sharing-cross-namespace", "io.cilium/lb-ipam-sharing-cross-namespace"} {
		r := from(t, "cilium", pool, loadBalancer("s", `"`+key+`":"*"`, "10.0.0.5"), loadBalancer("alone", `"lbipam.cilium.io/sharing-key":"x"`, "10.0.0.6"))
		want := "Service default/s shares addresses with other namespaces by " + key + ", which Herald does not read: what it has it keeps. For what is shared later give each of these Services the same heraldvip.io/sharing-key."
		if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, want) || strings.Contains(notes, "default/alone") {
			t.Errorf("%s: %q is not in, or more:\n%s", key, want, notes)
		}
	}
}

// However many Services there are, notes about them are few.
func TestNotesAreBounded(t *testing.T) {
	objects := []string{metalLB("IPAddressPool", "a", `"addresses":["10.0.0.0/28"]`)}
	for i := range 1000 {
		objects = append(objects, loadBalancer(fmt.Sprintf("s%d", i), "", "10.9.9.9"))
	}
	r := from(t, "metallb", objects...)
	if len(r.Pins) != 1000 || len(r.Notes) > maxServiceNotes+5 {
		t.Errorf("%d pins, %d notes", len(r.Pins), len(r.Notes))
	}
}
