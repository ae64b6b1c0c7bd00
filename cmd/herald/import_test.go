package main

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/testing/check"
)

var updateImports = flag.Bool("update-imports", false, "write testdata/import/*.golden")

// What is printed of each source, in files beside those that it is read from.
func TestImport(t *testing.T) {
	for _, source := range []string{"metallb", "cilium", "kube-vip"} {
		t.Run(source, func(t *testing.T) {
			file := filepath.Join("testdata", "import", source)
			out, _, err := run(t, root(), "import", source, file+".yaml")
			check.OK(t, err)
			if *updateImports {
				check.OK(t, os.WriteFile(file+".golden", []byte(out), 0o644))
			}
			want := string(check.Value(os.ReadFile(file + ".golden"))(t))
			check.Same(t, strings.Split(want, "\n"), strings.Split(out, "\n"), "what is printed")
			objects := check.Value(config.Documents([]byte(out)))(t)
			data := check.Value(config.ConfigMapData(objects[0]))(t)
			if _, problems := pool.Parse(nil, data); source != "kube-vip" {
				for _, p := range problems {
					if !p.Warning {
						t.Errorf("Herald can't read what it prints: %s: %s", p.Key, p.Message)
					}
				}
			}
		})
	}
}

// A pool that MetalLB refuses to some namespaces is refused to them by Herald, too, also where its selectors can't be written.
func TestImportOfRestrictedPools(t *testing.T) {
	const head = "kind: IPAddressPool\nmetadata: {name: a}\nspec: {addresses: [10.0.0.0/28], serviceAllocation: "
	const many = "{serviceSelectors: [{matchLabels: {x: a}}, {matchLabels: {x: z}}]}}\n"
	for _, tt := range []struct{ name, spec, offered, refused string }{
		{"a label that is there", "{namespaceSelectors: [{matchExpressions: [{key: public, operator: Exists}]}]}}\n", "public", "tenant"},
		{"selectors of which any holds", many, "", "public tenant"},
	} {
		out := check.Value(imported(t, "metallb", head+tt.spec))(t)
		data := check.Value(config.ConfigMapData(check.Value(config.Documents([]byte(out)))(t)[0]))(t)
		pools, _ := pool.Parse(nil, data)
		for _, poolsOnly := range []bool{false, true} {
			why := func(namespace string) string {
				labels := map[string]string{"kubernetes.io/metadata.name": namespace}
				if namespace == "public" {
					labels["public"] = ""
				}
				return pools.WhyNotOffered(namespace, labels, netip.MustParseAddr("10.0.0.5"), poolsOnly)
			}
			for namespace := range strings.FieldsSeq(tt.offered) {
				check.Equal(t, why(namespace), "", "%s, pools only %v", tt.name, poolsOnly)
			}
			for namespace := range strings.FieldsSeq(tt.refused) {
				if why(namespace) == "" {
					t.Errorf("%s, pools only %v: the namespace %s may ask for it:\n%s", tt.name, poolsOnly, namespace, out)
				}
			}
		}
	}
}

// Of several ConfigMaps in files, kubectl get configmaps -A for one, only that of kube-vip's provider has pools.
func TestImportOneConfigMap(t *testing.T) {
	const others = `
apiVersion: v1
kind: List
items:
- {kind: ConfigMap, metadata: {name: kube-root-ca.crt, namespace: kube-system}, data: {ca.crt: x, cidr-global: 10.9.0.0/24}}
- {kind: ConfigMap, metadata: {name: kubevip, namespace: edge}, data: {cidr-global: 10.8.0.0/24}}
`
	const provider = "---\n{kind: ConfigMap, metadata: {name: kubevip, namespace: kube-system}, data: {cidr-global: 10.0.0.0/24}}\n"
	const single = "{kind: ConfigMap, metadata: {name: vips}, data: {cidr-global: 10.7.0.0/24}}\n"
	for _, tt := range []struct{ name, text, args, want, err string }{
		{"of several that of the provider", others + provider, "", "cidr-global: 10.0.0.0/24", ""},
		{"of another name", others + provider, "--from-namespace edge", "cidr-global: 10.8.0.0/24", ""},
		{"the only one", single, "", "cidr-global: 10.7.0.0/24", ""},
		{"none of that name", others, "", "", "none of the 2 ConfigMaps is kube-system/kubevip: name that of the provider by --from and --from-namespace"},
	} {
		got, err := imported(t, "kube-vip", tt.text, strings.Fields(tt.args)...)
		check.Equal(t, text(err), tt.err, "%s: the error", tt.name)
		if tt.want != "" && (strings.Count(got, "cidr-global:") != 1 || !strings.Contains(got, tt.want) || strings.Contains(got, "ca.crt")) {
			t.Errorf("%s: %s is not all in\n%s", tt.name, tt.want, got)
		}
	}
}

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

// A key that the ConfigMap has with another value ends the import before a Service is annotated.
func TestImportOfKeyWithAnotherValue(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		check.Equal(t, r.Method, http.MethodGet, "the method for %s", r.URL.Path)
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/configmaps") {
			fmt.Fprint(w, `{"kind":"ConfigMapList","apiVersion":"v1","items":[{"metadata":{"name":"kubevip"},"data":{"pool-a":"10.0.9.0/28"}}]}`)
			return
		}
		fmt.Fprint(w, `{"kind":"List","apiVersion":"v1","items":[]}`)
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "metallb.yaml")
	check.OK(t, os.WriteFile(file, []byte("kind: IPAddressPool\nmetadata: {name: a}\nspec: {addresses: [10.0.0.0/28]}\n---\n"+
		"kind: Service\nmetadata: {name: web, namespace: shop}\nspec: {type: LoadBalancer}\n"+
		"status: {loadBalancer: {ingress: [{ip: 10.0.0.1}]}}\n"), 0o600))
	_, _, err := run(t, root(), "import", "metallb", file, "--apply", "--kubeconfig="+kubeconfigOf(t, s.URL))
	check.Contains(t, text(err), "nothing was written: the ConfigMap kube-system/kubevip has the key pool-a")
}

// What can't be imported is an error that says why: where there are no pools, what is there instead is named, and the
// source that has it.
func TestImportNamesWhatIsThere(t *testing.T) {
	const cilium = "kind: CiliumLoadBalancerIPPool\nmetadata: {name: blue}\nspec: {blocks: [{cidr: 10.0.0.0/28}]}\n"
	for _, tt := range []struct{ source, text, want string }{
		{"metallb", cilium, "there is no IPAddressPool; there is CiliumLoadBalancerIPPool blue"},
		{"metallb", "kind: Eip\nmetadata: {name: lan}\n---\nkind: Service\nmetadata: {name: web, namespace: shop}\n", "there is Eip lan; Service shop/web"},
		{"cilium", "controller: {}\nspeaker: {}\n", "there is a document without a kind"},
		{"cilium", "", "there is no CiliumLoadBalancerIPPool; nothing is there"},
		{"metallb", "a: [", "-: not YAML"},
		{"metallb", "- a\n", "-: not an object"},
		{"metallb", "kind: IPAddressPool\nmetadata: {name: x}\nspec: {addresses: 7}\n", "IPAddressPool x can't be read"},
		{"metallb", "kind: []\n", "an object can't be read"},
		{"kube-vip", "kind: ConfigMap\nmetadata: {name: kubevip}\ndata: {a: b}\n", "no ConfigMap with pools; there is ConfigMap kubevip"},
		{"metallb", "", "nothing is there at all"},
		{"metallb", "kind: ConfigMap\nmetadata: {name: config, namespace: metallb-system}\ndata: {config: 'address-pools: []'}\n", "there is ConfigMap metallb-system/config, of MetalLB before 0.13. MetalLB's own converter"},
		{"metallb", "kind: AddressPool\nmetadata: {name: lan}\nspec: {protocol: layer2}\n", "there is AddressPool lan, of MetalLB before 0.13"},
		{"metallb", "configInline: {address-pools: [{name: lan}]}\n", "of MetalLB before 0.13"},
	} {
		_, err := imported(t, tt.source, tt.text)
		check.Contains(t, text(err), tt.want)
	}
	printed, err := imported(t, "metallb", "kind: IPAddressPool\nmetadata: {name: a}\nspec: {addresses: [10.0.0.0/28]}\n---\nkind: BFDProfile\nmetadata: {name: fast}\n")
	check.OK(t, err)
	check.Contains(t, printed, "BFDProfile fast") // which is not read
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
