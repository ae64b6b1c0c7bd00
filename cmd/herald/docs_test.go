package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const reference = "../../docs/reference"

// TestReference: the pages of the repository are what the code says now.
func TestReference(t *testing.T) {
	known := map[string]bool{}
	for _, p := range pages {
		known[p.file] = true
		var b bytes.Buffer
		if err := p.write(&b); err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(filepath.Join(reference, p.file))
		if err != nil {
			t.Errorf("%v (herald docs writes it)", err)
			continue
		}
		if diff := cmp.Diff(string(have), b.String()); diff != "" {
			t.Errorf("%s is not current (herald docs), -have +now:\n%s", p.file, diff)
		}
	}
	entries, err := os.ReadDir(reference)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !known[e.Name()] {
			t.Errorf("%s/%s is written by nothing: add it to pages", reference, e.Name())
		}
	}
}

// TestDerived: so are the files of manifests/ that follow from what "herald manifest" prints.
func TestDerived(t *testing.T) {
	for _, d := range derived {
		have, err := os.ReadFile(filepath.Join("../../manifests", d.file))
		if err != nil {
			t.Errorf("%v (herald docs writes it)", err)
			continue
		}
		want, err := d.write(have)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(have), string(want)); diff != "" {
			t.Errorf("%s is not current (herald docs), -have +now:\n%s", d.file, diff)
		}
	}
}

// TestReadme: the README's table of options is current.
func TestReadme(t *testing.T) {
	have, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := withSummary(have)
	if err != nil {
		t.Fatalf("README.md %v", err)
	}
	if diff := cmp.Diff(string(want), string(have)); diff != "" {
		t.Errorf("README.md is not current (herald docs), -now +have:\n%s", diff)
	}
}

func TestDocs(t *testing.T) {
	dir := t.TempDir()
	readme := filepath.Join(dir, "README.md")
	const before, after = "# Herald\n\n", "\n## More\n"
	if err := os.WriteFile(readme, []byte(before+summaryBegin+"old\n"+summaryEnd+after), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time changes nothing
		if _, _, err := run(t, docsCommand(), "--dir", dir, "--manifests=", "--readme", readme); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(readme)
		if err != nil {
			t.Fatal(err)
		}
		table, ok := strings.CutPrefix(string(got), before+summaryBegin+"| group |")
		table, end := strings.CutSuffix(table, "|\n"+summaryEnd+after)
		if !ok || !end || strings.Contains(table, "old\n") || !strings.Contains(table, "`vip_arp`") {
			t.Errorf("got\n%s", got)
		}
	}
	for _, p := range pages {
		if b, err := os.ReadFile(filepath.Join(dir, p.file)); err != nil || !bytes.HasPrefix(b, []byte("# ")) {
			t.Errorf("%s: %v, %.20q", p.file, err, b)
		}
	}
}

func TestDocsErrors(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := run(t, docsCommand(), "--dir", filepath.Join(dir, "none"), "--manifests=", "--readme="); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	readme := filepath.Join(dir, "README.md")
	if _, _, err := run(t, docsCommand(), "--dir", dir, "--manifests=", "--readme", readme); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no README: %v", err)
	}
	for _, content := range []string{"", summaryBegin, summaryEnd + summaryBegin} {
		if err := os.WriteFile(readme, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := run(t, docsCommand(), "--dir", dir, "--manifests=", "--readme", readme); err == nil || !strings.Contains(err.Error(), "has no place for the table of options") {
			t.Errorf("README %q: %v", content, err)
		}
		if got, err := os.ReadFile(readme); err != nil || string(got) != content {
			t.Errorf("README became %q, %v", got, err)
		}
	}
}

// TestDocumentedManifests: the commands that the documents tell to run work, and
// have nothing to warn of.
func TestDocumentedManifests(t *testing.T) {
	command := regexp.MustCompile(`(?m)^\s*herald manifest ((?:[^|>\n\\]|\\\n)+)`)
	seen := 0
	for _, file := range []string{"../../README.md", "../../docs/operations.md", "../../docs/control-plane.md", "../../docs/installation.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range command.FindAllStringSubmatch(string(text), -1) {
			seen++
			args := strings.Fields(strings.ReplaceAll(m[1], "\\\n", " "))
			if stdout, stderr, err := run(t, manifestCommand(), args...); err != nil || stderr != "" || stdout == "" {
				t.Errorf("%s: herald manifest %q: %v, stderr %q", file, args, err, stderr)
			}
		}
	}
	if seen < 6 {
		t.Errorf("only %d commands found", seen)
	}
}
