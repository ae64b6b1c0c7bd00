package manifest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/testing/check"
)

var update = flag.Bool("update", false, "rewrite manifests/*.yaml")

// files are the manifests the repository carries.
var files = []struct {
	name  string
	write func(Request) ([]byte, error)
	args  string
}{
	{"daemonset.yaml", DaemonSet, "--arp --services --servicesElection"},
	{"pod.yaml", Pod, "--arp --services --servicesElection"},
	{"rbac.yaml", RBAC, ""},
	{"rbac-namespaced.yaml", RBAC, "--serviceNamespace default"},
}

// request is what args ask for, as the command reads them.
func request(t *testing.T, args ...string) Request {
	t.Helper()
	fs := pflag.NewFlagSet("herald", pflag.ContinueOnError)
	config.AddFlags(fs)
	check.OK(t, fs.Parse(args))
	src := config.Sources{Flags: fs, Hostname: "n1"}
	c, _, err := config.Parse(src)
	check.OK(t, err)
	given, err := config.Given(src)
	check.OK(t, err)
	return Request{Config: c, Given: given, Image: Image("")}
}

// TestFiles: manifests/*.yaml are what the command prints. go test -update rewrites them.
func TestFiles(t *testing.T) {
	const dir = "../../manifests"
	known := map[string]bool{}
	for _, f := range files {
		t.Run(f.name, func(t *testing.T) {
			known[f.name] = true
			path := filepath.Join(dir, f.name)
			got, err := f.write(request(t, strings.Fields(f.args)...))
			check.OK(t, err)
			if *update {
				check.OK(t, os.WriteFile(path, got, 0o644))
			}
			want, err := os.ReadFile(path)
			check.OK(t, err)
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s is not what is written now (go test ./pkg/manifest -update), -file +now:\n%s", path, diff)
			}
		})
	}
	entries, err := os.ReadDir(dir)
	check.OK(t, err)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".yaml") && !known[e.Name()] {
			t.Errorf("%s/%s is written by nothing", dir, e.Name())
		}
	}
}
