package main

import (
	"bytes"
	"flag"
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
			c := root()
			var out bytes.Buffer
			c.SetOut(&out)
			c.SetArgs([]string{"import", source, file + ".yaml"})
			check.OK(t, c.Execute())
			if *updateImports {
				check.OK(t, os.WriteFile(file+".golden", out.Bytes(), 0o644))
			}
			want := string(check.Value(os.ReadFile(file + ".golden"))(t))
			if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(out.String(), "\n")); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			objects := check.Value(config.Documents(out.Bytes()))(t)
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

// What can't be imported is an error that says why.
func TestImportErrors(t *testing.T) {
	for _, tt := range []struct{ source, text, want string }{
		{"metallb", "kind: Service\n", "there is no IPAddressPool, so nothing to import"},
		{"cilium", "", "there is no CiliumLoadBalancerIPPool, so nothing to import"},
		{"kube-vip", "", "there is no ConfigMap with pools, so nothing to import"},
		{"metallb", "a: [", "-: not YAML"},
		{"metallb", "- a\n", "-: not an object"},
		{"metallb", "kind: IPAddressPool\nmetadata: {name: x}\nspec: {addresses: 7}\n", "IPAddressPool x can't be read"},
		{"metallb", "kind: []\n", "an object can't be read"},
	} {
		c := root()
		c.SetOut(&bytes.Buffer{})
		c.SetIn(strings.NewReader(tt.text))
		c.SetArgs([]string{"import", tt.source, "-"})
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s %q: %v, want %s", tt.source, tt.text, err, tt.want)
		}
	}
}
