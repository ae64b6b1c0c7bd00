package main

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
			if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(out, "\n")); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
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
		out, err := imported(t, "metallb", head+tt.spec)
		check.OK(t, err)
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
				if got := why(namespace); got != "" {
					t.Errorf("%s, pools only %v: %s", tt.name, poolsOnly, got)
				}
			}
			for namespace := range strings.FieldsSeq(tt.refused) {
				if why(namespace) == "" {
					t.Errorf("%s, pools only %v: the namespace %s may ask for it:\n%s", tt.name, poolsOnly, namespace, out)
				}
			}
		}
	}
}

// What can't be imported is an error that says why.
func TestImportErrors(t *testing.T) {
	for _, tt := range []struct{ source, text, want string }{
		{"metallb", "kind: Service\n", "there is no IPAddressPool; there is Service"},
		{"cilium", "", "there is no CiliumLoadBalancerIPPool; nothing is there"},
		{"kube-vip", "", "there is no ConfigMap with pools; nothing is there"},
		{"metallb", "a: [", "-: not YAML"},
		{"metallb", "- a\n", "-: not an object"},
		{"metallb", "kind: IPAddressPool\nmetadata: {name: x}\nspec: {addresses: 7}\n", "IPAddressPool x can't be read"},
		{"metallb", "kind: []\n", "an object can't be read"},
	} {
		if _, err := imported(t, tt.source, tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %q: %v, want %s", tt.source, tt.text, err, tt.want)
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
		if text(err) != tt.err {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.err)
		}
		if tt.want != "" && (strings.Count(got, "cidr-global:") != 1 || !strings.Contains(got, tt.want) || strings.Contains(got, "ca.crt")) {
			t.Errorf("%s: %s is not all in\n%s", tt.name, tt.want, got)
		}
	}
}
