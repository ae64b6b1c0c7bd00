package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/testing/check"
)

// TestTally has the go command test small modules, and reads what it prints.
func TestTally(t *testing.T) {
	const good = "package x\nimport \"testing\"\nfunc TestGood(t *testing.T) { t.Log(\"quiet\") }\n"
	tests := []struct {
		name    string
		code    string
		each    bool
		passed  bool
		says    []string // parts of the output, in order
		silent  string   // what must not be part of it
		skipped []string
		kept    string // part of what is shown again in the summary
	}{
		{name: "good", code: good, passed: true, says: []string{"  ok ", "s  x (1 tests)\n"}, silent: "TestGood"},
		{name: "each", code: good, each: true, passed: true, says: []string{"    ok ", "s  TestGood\n", "  ok ", "s  x (1 tests)\n"}},
		{
			name: "skipped",
			code: good + "func TestOff(t *testing.T) { t.Log(\"first\"); t.Skip(\"needs\\tan API server\") }\nfunc TestNoWord(t *testing.T) { t.SkipNow() }\n",

			passed:  true,
			says:    []string{"  ok ", "s  x (3 tests, 2 skipped)\n"},
			skipped: []string{"x TestOff: needs\tan API server", "x TestNoWord: no reason given"},
		},
		{
			name:   "failed",
			code:   good + "func TestBad(t *testing.T) { t.Run(\"part\", func(t *testing.T) { t.Error(\"it broke\") }) }\n",
			says:   []string{"x_test.go:4: it broke\n", "--- FAIL: TestBad/part", "  FAIL ", "s  x (3 tests)\n"},
			silent: "quiet",
			kept:   "x TestBad/part:\n      x_test.go:4: it broke\n",
		},
		{
			name: "long",
			code: good + "func TestLong(t *testing.T) { for n := 0; n < 100; n++ { t.Log(\"line\", n) }; t.Fail() }\n",
			says: []string{"line 0\n", "line 99\n", "  FAIL "},
			kept: "x TestLong:\n      x_test.go:4: line 71\n",
		},
		{
			name: "panic",
			code: good + "func TestPanic(t *testing.T) { panic(\"at the disco\") }\n",
			says: []string{"panic: at the disco", "  FAIL ", "s  x ("},
		},
		{name: "exits", code: good + "func TestExit(t *testing.T) { println(\"farewell\"); exit() }\n", says: []string{"farewell", "  FAIL "}},
		{name: "does not build", code: good + "func TestType(t *testing.T) { var x int = \"\" }\n", says: []string{"x_test.go:4:", "  FAIL ", "s  x (0 tests)\n"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range map[string]string{
				"go.mod":    "module x\n",
				"x.go":      "package x\nimport \"os\"\nfunc exit() { os.Exit(3) }\n",
				"x_test.go": tt.code,
			} {
				check.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
			}
			cmd := exec.CommandContext(t.Context(), "go", "test", "-json", "./...")
			cmd.Dir = dir
			stdout, err := cmd.Output()
			if (err == nil) != tt.passed {
				t.Fatalf("go test: %v\n%s", err, stdout)
			}
			var out bytes.Buffer
			tally := newTally(&out, tt.each)
			check.OK(t, tally.read(bytes.NewReader(stdout)))
			if tally.passed() != tt.passed {
				t.Errorf("passed is %v", tally.passed())
			}
			rest := out.String()
			for _, part := range tt.says {
				_, after, ok := strings.Cut(rest, part)
				if !ok {
					t.Fatalf("no %q, or not in that order, in\n%s", part, out.String())
				}
				rest = after
			}
			if tt.silent != "" && strings.Contains(out.String(), tt.silent) {
				t.Errorf("%q in\n%s", tt.silent, out.String())
			}
			if kept := strings.Join(tally.failures, "\n"); tt.kept != "" && !strings.Contains(kept, tt.kept) || tt.passed && kept != "" {
				t.Errorf("kept for the summary: %q, want %q in it", kept, tt.kept)
			}
			if diff := cmp.Diff(tt.skipped, tally.skipped); diff != "" {
				t.Errorf("skipped: -want +got:\n%s", diff)
			}
		})
	}
}

// TestNothing: no result is no success.
func TestNothing(t *testing.T) {
	var out bytes.Buffer
	tally := newTally(&out, false)
	check.OK(t, tally.read(strings.NewReader("go: go.mod file not found\n")))
	if tally.passed() {
		t.Error("passed without a package")
	}
	if out.String() != "go: go.mod file not found\n" {
		t.Errorf("got %q", out.String())
	}
}

func TestAppendLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skips")
	for _, lines := range [][]string{{"a", "b"}, nil, {"c"}} {
		check.OK(t, appendLines(file, lines))
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "a\nb\nc\n" {
		t.Errorf("%q, %v", got, err)
	}
	if err := appendLines(filepath.Dir(file), []string{"x"}); err == nil {
		t.Error("a directory was written to")
	}
}
