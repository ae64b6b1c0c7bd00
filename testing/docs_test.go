package testing_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

// pages is all Markdown files, by path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "manifests/helm/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(root, file)
			if err != nil {
				t.Fatal(err)
			}
			texts[filepath.ToSlash(name)] = string(text)
		}
	}
	if len(texts) < 20 {
		t.Fatalf("only %d pages found", len(texts))
	}
	return texts
}

var (
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	unnamed = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// anchors is what links may name in a page, made as GitHub does.
func anchors(text string) []string {
	var names []string
	for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		names = append(names, strings.ReplaceAll(unnamed.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return names
}

// TestLinks: links between pages lead somewhere.
func TestLinks(t *testing.T) {
	texts := pages(t)
	checked := 0
	for name, text := range texts {
		for _, l := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			if strings.Contains(l[1], "://") {
				continue
			}
			checked++
			file, anchor, _ := strings.Cut(l[1], "#")
			to := name
			if file != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(name), file))
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links to %s: %v", name, l[1], err)
			} else if anchor != "" && !slices.Contains(anchors(texts[to]), anchor) {
				t.Errorf("%s links to %s: %s has no such heading", name, l[1], to)
			}
		}
	}
	if checked < 20 {
		t.Errorf("only %d links were looked at", checked)
	}
}

// TestAnchors: as GitHub makes them.
func TestAnchors(t *testing.T) {
	got := anchors("# A `b` c, (d)\ntext\n```\n# not one\n```\n## E-f  g!\n")
	if want := []string{"a-b-c-d", "e-f--g"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestRouterConfigurations: docs/bgp.md has the whole configurations of routers that the tests in the lab run.
func TestRouterConfigurations(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root, "testing/e2e/bgp_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)const (frrConf|birdConf) = `(.*?)`").FindAllStringSubmatch(string(source), -1)
	if len(found) != 2 {
		t.Fatalf("%d configurations in the test, want 2", len(found))
	}
	for _, m := range found {
		if !strings.Contains(pages(t)["docs/bgp.md"], "```\n"+m[2]+"```") {
			t.Errorf("docs/bgp.md has not the whole of %s", m[1])
		}
	}
}

// eachFile calls look with every file of the checkout that is text somebody wrote, by its path.
func eachFile(t *testing.T, look func(file, text string)) {
	t.Helper()
	check.OK(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.Name() == ".git", d.IsDir() && (d.Name() == ".lab" || d.Name() == "bin"):
			if d.IsDir() {
				return filepath.SkipDir
			}
			return nil // of a worktree: where its repository is
		case !d.Type().IsRegular() || slices.Contains([]string{".sum", ".test", ".prof"}, filepath.Ext(file)):
			return nil
		}
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // some other test's
		}
		if err == nil {
			look(file, string(text))
		}
		return err
	}))
}

// machine is a path that exists only where somebody wrote this. The classes of one letter keep this file from containing one.
var machine = regexp.MustCompile(`(^|[^\w.\-])/([w]ork|[t]mp/brief|[t]mp/bash_jobs)/|\.\./[s]hared\b|/[r]oot/go\b`)

// TestNoPathsOfAMachine: nothing here depends on, or tells of, a machine it was written on.
func TestNoPathsOfAMachine(t *testing.T) {
	eachFile(t, func(file, text string) {
		for n, line := range strings.Split(text, "\n") {
			if found := machine.FindString(line); found != "" {
				t.Errorf("%s:%d names a path of somebody's machine: %q", file, n+1, strings.TrimSpace(found))
			}
		}
	})
	if bad := "cd /wo" + "rk/main"; !machine.MatchString(bad) {
		t.Errorf("nothing is said against %q", bad)
	}
}

// TestManifestsAreMoved: a shell empties the file after > before the command runs. One that fails, as at a typo, would end a static Pod that runs.
func TestManifestsAreMoved(t *testing.T) {
	written := regexp.MustCompile(`(>|tee) */etc/kubernetes/mani` + `fests`)
	eachFile(t, func(file, text string) {
		if found := written.FindString(text); found != "" {
			t.Errorf("%s writes at once to where kubelet reads: %s", file, found)
		}
	})
}
