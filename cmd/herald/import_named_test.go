package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/testing/check"
)

// imported returns what "herald import" prints of text.
func imported(t *testing.T, source, text string, args ...string) (string, error) {
	t.Helper()
	c := root()
	c.SetIn(strings.NewReader(text))
	out, _, err := run(t, c, append([]string{"import", source, "-"}, args...)...)
	return out, err
}

// option matches an option and its value in a note.
var option = regexp.MustCompile(`\b([a-z][a-z0-9]*(?:_[a-z0-9]+)+)=(\S+[^\s.,;)])`)

// checkAccepted has Herald's parsers read all that an import has printed: the pools, and each option in the notes.
func checkAccepted(t *testing.T, printed string) {
	t.Helper()
	data := check.Value(config.ConfigMapData(check.Value(config.Documents([]byte(printed)))(t)[0]))(t)
	if _, problems := pool.Parse(nil, data); len(problems) > 0 {
		t.Errorf("Herald refuses its own pools: %v\n%s", problems, printed)
	}
	env := []string{"vip_arp=true"}
	for _, m := range option.FindAllStringSubmatch(printed, -1) {
		if slices.ContainsFunc(config.Options, func(o config.Option) bool { return o.Env == m[1] }) {
			env = append(env, m[1]+"="+m[2])
		}
	}
	if _, _, err := config.Parse(config.Sources{Env: env, Hostname: "n1"}); err != nil {
		t.Errorf("Herald refuses %v: %v\n%s", env, err, printed)
	}
}

// Where there are no pools, what is there instead is named, and the source that has it.
func TestImportNamesWhatIsThere(t *testing.T) {
	const cilium = "kind: CiliumLoadBalancerIPPool\nmetadata: {name: blue}\nspec: {blocks: [{cidr: 10.0.0.0/28}]}\n"
	for _, tt := range []struct{ source, text, want string }{
		{"metallb", cilium, "there is no IPAddressPool; there is CiliumLoadBalancerIPPool blue"},
		{"metallb", "kind: Eip\nmetadata: {name: lan}\n---\nkind: Service\nmetadata: {name: web, namespace: shop}\n", "there is Eip lan; Service shop/web"},
		{"cilium", "controller: {}\nspeaker: {}\n", "there is a document without a kind"},
		{"kube-vip", "kind: ConfigMap\nmetadata: {name: kubevip}\ndata: {a: b}\n", "no ConfigMap with pools; there is ConfigMap kubevip"},
		{"metallb", "", "nothing is there at all"},
		{"metallb", "kind: ConfigMap\nmetadata: {name: config, namespace: metallb-system}\ndata: {config: 'address-pools: []'}\n", "there is ConfigMap metallb-system/config, of MetalLB before 0.13. MetalLB's own converter"},
		{"metallb", "kind: AddressPool\nmetadata: {name: lan}\nspec: {protocol: layer2}\n", "there is AddressPool lan, of MetalLB before 0.13"},
		{"metallb", "configInline: {address-pools: [{name: lan}]}\n", "of MetalLB before 0.13"},
	} {
		if _, err := imported(t, tt.source, tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s of %q: %v, want %s", tt.source, tt.text, err, tt.want)
		}
	}
	printed, err := imported(t, "metallb", "kind: IPAddressPool\nmetadata: {name: a}\nspec: {addresses: [10.0.0.0/28]}\n---\nkind: BFDProfile\nmetadata: {name: fast}\n")
	if check.OK(t, err); !strings.Contains(printed, "BFDProfile fast") {
		t.Errorf("what is not read is not named:\n%s", printed)
	}
}

// Whatever the objects have, Herald accepts what is printed of them, options in notes included.
func TestImportIsAccepted(t *testing.T) {
	const metal = "kind: IPAddressPool\nmetadata: {name: a}\nspec: {addresses: [10.0.0.0/28]}\n---\n"
	const cilium = "kind: CiliumLoadBalancerIPPool\nmetadata: {name: a}\nspec: {blocks: [{cidr: 10.0.0.0/28}]"
	peer := func(spec string) string {
		return metal + "kind: BGPPeer\nmetadata: {name: tor}\nspec: {" + spec + "}\n"
	}
	for _, tt := range []struct{ source, text string }{
		{"metallb", metal + `{kind: BGPAdvertisement, metadata: {name: x}, spec: {communities: ["large:64512:1:100", "64512:7"]}}`},
		{"metallb", metal + `{kind: BGPAdvertisement, metadata: {name: x}, spec: {communities: [undefined], localPref: 7}}`},
		{"metallb", peer("myASN: 64512, peerASN: 64512, peerAddress: 'fd00::1', peerPort: 1179")},
		{"metallb", peer("myASN: 64512, dynamicASN: external, peerAddress: 10.0.0.1")},
		{"metallb", peer("myASN: 64512, dynamicASN: external, interface: eth1, peerPort: 1179")},
		{"metallb", peer("myASN: 64512, peerASN: 64513, peerAddress: 'fe80::1'")},
		{"metallb", peer("myASN: 64512, peerASN: 64513, peerAddress: router.example.com")},
		{"metallb", peer("myASN: 64512, peerASN: 64513, peerAddress: 0.0.0.0, password: 'a:b'")},
		{"metallb", peer("peerASN: 64513, peerAddress: 10.0.0.1")},
		{"metallb", peer("myASN: 64512, peerASN: 64513, interface: much-too-long-for-a-link")},
		{"metallb", metal + "{kind: L2Advertisement, metadata: {name: x}, spec: {interfaces: [much-too-long-for-a-link]}}"},
		{"metallb", metal + "{kind: L2Advertisement, metadata: {name: x}, spec: {nodeSelectors: [{matchLabels: {'a b': c}}]}}"},
		{"metallb", metal + "{kind: IPAddressPool, metadata: {name: b}, spec: {addresses: [10.0.1.0-10, 0.0.0.0]}}"},
		{"metallb", metal + "{kind: IPAddressPool, metadata: {name: pool-x}, spec: {addresses: [10.0.1.5/24, '10.0.2.5 - 10.0.2.9'], serviceAllocation: {namespaces: ['NOT one']}}}"},
		{"metallb", metal + "{kind: IPAddressPool, metadata: {name: b}, spec: {addresses: [10.0.1.0/24], serviceAllocation: {priority: 99999999, serviceSelectors: [{matchExpressions: [{key: a, operator: Odd}]}]}}}"},
		{"metallb", metal + "{kind: Service, metadata: {name: s, namespace: d}, spec: {type: LoadBalancer, loadBalancerClass: 'x.y/z'}}"},
		{"cilium", cilium + ", serviceSelector: {matchLabels: {'a b': c}}}\n"},
		{"cilium", cilium + ", serviceSelector: {matchExpressions: [{key: io.kubernetes.service.namespace, operator: In, values: []}]}}\n"},
		{"cilium", cilium + "}\n---\n{kind: CiliumL2AnnouncementPolicy, metadata: {name: x}, spec: {loadBalancerIPs: true, interfaces: [much-too-long-for-a-link]}}\n"},
		{"cilium", cilium + "}\n---\n{kind: CiliumLoadBalancerIPPool, metadata: {name: b}, spec: {blocks: [{start: '::', stop: 'x'}, {cidr: 10.0.9.0/99}]}}\n"},
		{"kube-vip", "{kind: ConfigMap, metadata: {name: x}, data: {cidr-global: '10.0.0.0/28,fd00::/120', search-order: desc, skip-end-ips-in-cidr: 'true'}}"},
	} {
		printed, err := imported(t, tt.source, tt.text)
		if err != nil {
			t.Errorf("%s: %v", tt.text, err)
			continue
		}
		checkAccepted(t, printed)
	}
}
