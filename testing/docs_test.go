package testing_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pages is all Markdown files, by path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
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

// TestDecisions: each has the number that its file's name begins with, and no two
// have one; all are of one form. Numbers are dealt out by tens, so there are gaps.
func TestDecisions(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "docs/decisions/*.md"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	form := regexp.MustCompile(`(?s)^# (\d{4})\. [^\n]+\n\nStatus: (Accepted|Superseded by \d{4})\n\nDate: \d{4}-\d\d-\d\d\n\n## Context\n\n.+\n\n## Decision\n\n.+\n\n## Consequence\n\n.+\n$`)
	seen := map[string]bool{}
	for _, file := range files {
		number, _, _ := strings.Cut(filepath.Base(file), "-")
		if seen[number] {
			t.Errorf("there are two of number %s", number)
		}
		seen[number] = true
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m := form.FindStringSubmatch(string(text))
		if m == nil || m[1] != number {
			t.Errorf("%s is not number %s, or not of the form of the others", file, number)
		}
	}
}

var decision = regexp.MustCompile(`\bdecision (\d{4})\b`)

// TestDecisionsInCode: each decision is named ("decision 0017") by the code that it explains, and
// the code names none that does not exist.
func TestDecisionsInCode(t *testing.T) {
	decisions, named := map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob(filepath.Join(root, "docs/decisions/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		number, _, _ := strings.Cut(filepath.Base(file), "-")
		decisions[number] = true
	}
	eachFile(t, func(file, text string) {
		code := slices.Contains([]string{".go", ".sh"}, filepath.Ext(file)) || filepath.Base(file) == "Makefile"
		if !code || file == filepath.Join(root, "testing/docs_test.go") {
			return
		}
		for _, m := range decision.FindAllStringSubmatch(text, -1) {
			named[m[1]] = true
			if !decisions[m[1]] {
				t.Errorf("%s names decision %s, which does not exist", file, m[1])
			}
		}
	})
	for number := range decisions {
		if !named[number] {
			t.Errorf("no code names decision %s: do so in a comment at the place that it explains", number)
		}
	}
}

// TestTroubleshooting: each row of the page names the test that makes its fault, and that exists.
func TestTroubleshooting(t *testing.T) {
	tests, rows := declaredTests(t), 0
	for line := range strings.Lines(pages(t)["docs/troubleshooting.md"]) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(line, "---") || strings.Contains(cells[3], "made by") || strings.TrimSpace(cells[1]) == "nothing" {
			continue
		}
		rows++
		if name := strings.Trim(cells[3], " `"); !tests[name] {
			t.Errorf("docs/troubleshooting.md names the test %q, which does not exist: %s", name, line)
		}
	}
	if rows < 20 {
		t.Errorf("only %d rows were looked at", rows)
	}
}

// declaredTests is the names of all tests, fuzz targets and benchmarks.
func declaredTests(t *testing.T) map[string]bool {
	t.Helper()
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	eachFile(t, func(file, text string) {
		if strings.HasSuffix(file, "_test.go") {
			for _, m := range declared.FindAllStringSubmatch(text, -1) {
				tests[m[1]] = true
			}
		}
	})
	return tests
}

// TestSecurityPage: each test that docs/security.md names exists, and each of the twenty findings has a row that
// names a test, or says "open".
func TestSecurityPage(t *testing.T) {
	tests := declaredTests(t)
	text, named, rows := pages(t)["docs/security.md"], regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`"), 0
	for line := range strings.Lines(text) {
		names := named.FindAllStringSubmatch(line, -1)
		for _, m := range names {
			if !tests[m[1]] {
				t.Errorf("docs/security.md names %s, which does not exist", m[1])
			}
		}
		if cells := strings.Split(line, "|"); len(cells) == 7 && strings.TrimSpace(cells[1]) == strconv.Itoa(rows+1) {
			rows++
			if len(names) == 0 && !strings.Contains(cells[3], "open") {
				t.Errorf("row %d of docs/security.md names no test", rows)
			}
		}
	}
	if rows != 20 {
		t.Errorf("docs/security.md has %d of the twenty rows", rows)
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
