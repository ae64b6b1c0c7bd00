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

	"github.com/heraldvip/herald/testing/check"
)

const reference = "../../docs/reference"

// TestReference: the pages of the repository are those that the code writes.
func TestReference(t *testing.T) {
	known := map[string]bool{}
	for _, p := range pages {
		known[p.file] = true
		var b bytes.Buffer
		check.OK(t, p.write(&b))
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
	check.OK(t, err)
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
		check.OK(t, err)
		if diff := cmp.Diff(string(have), string(want)); diff != "" {
			t.Errorf("%s is not current (herald docs), -have +now:\n%s", d.file, diff)
		}
	}
}

func TestDocs(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := run(t, docsCommand(), "--dir", dir, "--manifests="); err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		if b, err := os.ReadFile(filepath.Join(dir, p.file)); err != nil || !bytes.HasPrefix(b, []byte("# ")) {
			t.Errorf("%s: %v, %.20q", p.file, err, b)
		}
	}
}

func TestDocsErrors(t *testing.T) {
	if _, _, err := run(t, docsCommand(), "--dir", filepath.Join(t.TempDir(), "none"), "--manifests="); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// TestDocumentedManifests: the commands in the documents work, without
// warnings.
func TestDocumentedManifests(t *testing.T) {
	command := regexp.MustCompile(`(?m)^\s*herald manifest ((?:[^|>\n\\]|\\\n)+)`)
	seen := 0
	for _, file := range []string{"../../README.md", "../../docs/operations.md", "../../docs/control-plane.md", "../../docs/installation.md"} {
		text, err := os.ReadFile(file)
		check.OK(t, err)
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
