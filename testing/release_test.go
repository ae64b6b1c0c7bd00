package testing_test

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
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

// TestRelease: what "make release" makes of one architecture, without the image, which manifests/image tests: the program says its version, the
// chart has all files, and krew's manifest and the list of checksums have the right ones.
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
	if got, want := slices.Sorted(maps.Keys(sums)), []string{chart, "herald.yaml", program}; !slices.Equal(got, want) {
		t.Errorf("checksums of %q, want %q", got, want)
	}

	var krew struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, Homepage, ShortDescription, Description string
			Platforms                                        []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, Sha256, Bin string
			}
		}
	}
	check.OK(t, yaml.UnmarshalStrict(check.Value(os.ReadFile(filepath.Join(out, "herald.yaml")))(t), &krew))
	if krew.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || krew.Kind != "Plugin" || krew.Metadata.Name != "herald" || krew.Spec.Version != manifest.Release || len(krew.Spec.Platforms) != 2 {
		t.Errorf("krew's manifest: %+v", krew)
	}
	for _, p := range krew.Spec.Platforms {
		file := fmt.Sprintf("herald_%s_%s_%s.tar.gz", manifest.Release, p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"])
		if want := "https://github.com/heraldvip/herald/releases/download/" + manifest.Release + "/" + file; p.URI != want || p.Bin != "herald" {
			t.Errorf("krew's manifest has %s and %s, want %s and herald", p.URI, p.Bin, want)
		}
		if p.Selector.MatchLabels["arch"] == runtime.GOARCH && p.Sha256 != sums[file] {
			t.Errorf("krew's manifest has the checksum %s of %s, want %s", p.Sha256, file, sums[file])
		}
	}

	// As krew has it: under the name by which kubectl starts it.
	files := unpack(t, filepath.Join(out, program))
	plugin := filepath.Join(t.TempDir(), "kubectl-herald")
	check.OK(t, os.WriteFile(plugin, files["herald"], 0o700))
	if text, err := exec.CommandContext(t.Context(), plugin, "version").CombinedOutput(); err != nil || !strings.HasPrefix(string(text), "herald "+manifest.Release+" (") {
		t.Errorf("kubectl-herald version: %s, %v", text, err)
	}
	packed := unpack(t, filepath.Join(out, chart))
	for _, name := range []string{"Chart.yaml", "values.yaml", "values.schema.json", "README.md", "LICENSE", "templates/daemonset.yaml", "templates/NOTES.txt"} {
		if len(packed["herald/"+name]) == 0 {
			t.Errorf("the chart has no %s", name)
		}
	}
}

// unpack returns the files of an archive by name.
func unpack(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f := check.Value(os.Open(file))(t)
	defer f.Close()
	files, r := make(map[string][]byte), tar.NewReader(check.Value(gzip.NewReader(f))(t))
	for {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		check.OK(t, err)
		files[h.Name] = check.Value(io.ReadAll(r))(t)
	}
}

// TestWorkflow: the workflow that publishes a release is YAML of the right form, uses actions by commit, and names only targets of the Makefile and
// files that a release has.
func TestWorkflow(t *testing.T) {
	text := string(check.Value(os.ReadFile("../.github/workflows/release.yml"))(t))
	var w struct {
		Permissions map[string]string
		Jobs        map[string]struct {
			Permissions map[string]string
			Steps       []struct{ Uses, Run string }
		}
	}
	check.OK(t, yaml.Unmarshal([]byte(text), &w))
	if len(w.Permissions) > 0 || len(w.Jobs) != 1 || len(w.Jobs["release"].Steps) < 5 {
		t.Errorf("permissions %v, %d jobs, %d steps", w.Permissions, len(w.Jobs), len(w.Jobs["release"].Steps))
	}
	pinned, made, target := regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`), regexp.MustCompile(`bin/release/([^\s":]+)`), regexp.MustCompile(`\bmake ([\w-]+)`)
	script, makefile := string(check.Value(os.ReadFile("../manifests/release/release.sh"))(t)), string(check.Value(os.ReadFile("../Makefile"))(t))
	known := []string{"*", "herald_$GITHUB_REF_NAME.oci.tar", "herald_$GITHUB_REF_NAME.oci.$arch.spdx.json", "herald-${GITHUB_REF_NAME#v}.tgz", "checksums.txt", "checksums.txt.sigstore.json"}
	files, targets := 0, 0
	for _, s := range w.Jobs["release"].Steps {
		if s.Uses != "" && !pinned.MatchString(s.Uses) {
			t.Errorf("%s is not pinned by its commit", s.Uses)
		}
		for _, m := range made.FindAllStringSubmatch(s.Run, -1) {
			files++
			if !slices.Contains(known, m[1]) {
				t.Errorf("no release has %s", m[1])
			}
		}
		for _, m := range target.FindAllStringSubmatch(s.Run, -1) {
			targets++
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("there is no target %s", m[1])
			}
		}
		if s.Run != "" {
			c := exec.CommandContext(t.Context(), "bash", "-n")
			c.Stdin = strings.NewReader(s.Run)
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%v: %s\n%s", err, out, s.Run)
			}
		}
	}
	if files < 6 || targets != 1 || !strings.Contains(script, `"$out/herald_$version.oci.tar"`) {
		t.Errorf("%d files, %d targets", files, targets)
	}
}
