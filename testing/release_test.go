package testing_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/pkg/manifest"
	"github.com/heraldvip/herald/testing/check"
)

// TestOneVersion: chart, manifests, documentation and tests name one version, that of manifest.Release, and no image that a later release changes.
func TestOneVersion(t *testing.T) {
	var chart struct{ Version, AppVersion string }
	check.OK(t, yaml.Unmarshal(check.Value(os.ReadFile("../manifests/helm/herald/Chart.yaml"))(t), &chart))
	if chart.AppVersion != manifest.Release || "v"+chart.Version != manifest.Release {
		t.Errorf("the chart is %s of %s, want both %s", chart.Version, chart.AppVersion, manifest.Release)
	}
	named, n := regexp.MustCompile(`(?:heraldvip/herald:|example\.com/herald:|newTag: |heraldvip/herald\S*\?ref=|VERSION=|-version )(latest|v\d[\w.]*)`), 0
	eachFile(t, func(file, text string) {
		name := filepath.ToSlash(check.Value(filepath.Rel(root, file))(t))
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "manifests/image/") || strings.HasPrefix(name, "testing/nodes/testdata/") {
			return
		}
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			n++
			if m[1] != manifest.Release {
				t.Errorf("%s names %s, want %s", name, m[0], manifest.Release)
			}
		}
	})
	if n < 10 {
		t.Errorf("only %d places were looked at", n)
	}
}

// TestRelease: what "make release" makes of one architecture, without the image, which manifests/image tests: the program says
// its version, and the checksums of the list, and the one of krew's manifest, are right.
func TestRelease(t *testing.T) {
	out := t.TempDir()
	c := exec.CommandContext(t.Context(), "../manifests/release/release.sh", out)
	c.Env = append(os.Environ(), "IMAGE=no", "ARCHS="+runtime.GOARCH)
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	program := fmt.Sprintf("herald_%s_linux_%s.tar.gz", manifest.Release, runtime.GOARCH)
	chart := "herald-" + strings.TrimPrefix(manifest.Release, "v") + ".tgz"
	sums := make(map[string]string)
	for line := range strings.Lines(string(check.Value(os.ReadFile(filepath.Join(out, "checksums.txt")))(t))) {
		f := strings.Fields(line)
		sums[f[1]] = f[0]
		if got := fmt.Sprintf("%x", sha256.Sum256(check.Value(os.ReadFile(filepath.Join(out, f[1])))(t))); got != f[0] {
			t.Errorf("the checksum of %s is %s, want %s", f[1], f[0], got)
		}
	}
	krew := string(check.Value(os.ReadFile(filepath.Join(out, "herald.yaml")))(t))
	uri := "https://github.com/heraldvip/herald/releases/download/" + manifest.Release + "/" + program
	if len(sums) != 3 || !strings.Contains(krew, sums[program]) || !strings.Contains(krew, uri) {
		t.Errorf("checksums of %v; krew's manifest:\n%s", sums, krew)
	}
	check.OK(t, exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(out, program), "-C", out).Run())
	text, err := exec.CommandContext(t.Context(), filepath.Join(out, "herald"), "version").Output()
	if err != nil || !strings.HasPrefix(string(text), "herald "+manifest.Release+" (") {
		t.Errorf("herald version: %s, %v", text, err)
	}
	list := string(check.Value(exec.CommandContext(t.Context(), "tar", "-tzf", filepath.Join(out, chart)).Output())(t))
	for _, name := range []string{"Chart.yaml", "values.yaml", "values.schema.json", "README.md", "LICENSE", "templates/daemonset.yaml"} {
		if !strings.Contains(list, "herald/"+name+"\n") {
			t.Errorf("the chart has no %s:\n%s", name, list)
		}
	}
}

// TestWorkflow: the workflow that publishes a release uses actions by commit.
func TestWorkflow(t *testing.T) {
	uses := regexp.MustCompile(`uses: (\S+)`).FindAllStringSubmatch(string(check.Value(os.ReadFile("../.github/workflows/release.yml"))(t)), -1)
	for _, m := range uses {
		if !regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`).MatchString(m[1]) {
			t.Errorf("%s is not pinned by its commit", m[1])
		}
	}
	if len(uses) < 2 {
		t.Errorf("only %d actions were looked at", len(uses))
	}
}
