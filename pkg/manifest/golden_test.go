package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"github.com/spf13/pflag"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/testing/check"
)

// manifests is the directory of the manifests.
const manifests = "../../manifests"

// files are the manifests the repository carries.
var files = []struct {
	name  string
	write func(Request) ([]byte, error)
	args  string
}{
	{"daemonset.yaml", DaemonSet, "--arp --services --servicesElection"},
	{"pod.yaml", Pod, "--arp --services --servicesElection"},
	{"admission.yaml", Admission, ""},
	{"rbac.yaml", RBAC, ""},
	{"rbac-namespaced.yaml", RBAC, "--serviceNamespace default"},
	{"rbac-own-namespace.yaml", RBAC, "--namespace herald"},
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
	given := check.Value(config.Given(src))(t)
	return Request{Config: c, Given: given, Image: Image("")}
}

// TestFiles: manifests/*.yaml are what the command prints.
func TestFiles(t *testing.T) {
	known := map[string]bool{}
	for _, f := range files {
		t.Run(f.name, func(t *testing.T) {
			known[f.name] = true
			got, err := f.write(request(t, strings.Fields(f.args)...))
			check.OK(t, err)
			check.Golden(t, filepath.Join(manifests, f.name), string(got))
		})
	}
	entries := check.Value(os.ReadDir(manifests))(t)
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".yaml") && !known[e.Name()] {
			t.Errorf("%s/%s is written by nothing", manifests, e.Name())
		}
	}
}

// TestReference: docs/reference/rbac.md has every row of the table of permissions.
func TestReference(t *testing.T) {
	page := template.Must(template.New("rbac.md.tmpl").Funcs(template.FuncMap{"join": strings.Join}).ParseFiles("testdata/rbac.md.tmpl"))
	var b strings.Builder
	check.OK(t, page.Execute(&b, rules))
	check.Golden(t, "../../docs/reference/rbac.md", b.String())
	check.Equal(t, strings.Count(b.String(), "\n| "), len(rules)+1, "how many rows and heads there are")
}
