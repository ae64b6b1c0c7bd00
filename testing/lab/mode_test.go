package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

// TestCommand follows what the command says when its lab is up: every command works as it stands there, also for a user who has
// a KUBECONFIG of another cluster, and nothing is left when its input ends.
func TestCommand(t *testing.T) {
	endSharedLab(t)
	top := check.Value(repoRoot())(t)
	if _, err := os.Stat(filepath.Join(top, "bin", "herald")); err != nil {
		if os.Getenv("HERALD_LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "of-another-cluster"))
	path, dir := filepath.Join(t.TempDir(), "lab"), t.TempDir()
	run := func(input string, args ...string) (string, error) {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Stdin = top, strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run("", "go", "build", "-o", path, "./testing/lab/cmd/lab"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	up := []string{path, "-dir", dir, "-wait", lockTimeout.String()}
	text, err := run("", append(up, "-bare", "-nodes", "1")...)
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var input strings.Builder
	for line := range strings.Lines(text) {
		if command := strings.TrimLeft(line, " "); command != line && command[0] >= 'a' {
			input.WriteString(line)
		}
	}
	out, err := run(input.String(), up...)
	if err != nil || strings.Count(input.String(), "\n") < 13 || !strings.Contains(out, "web w1") || !strings.Contains(out, "service/web") {
		t.Errorf("%v\n%s\n%s", err, input.String(), out)
	}
	for _, bad := range []string{"cable bite n1", "herald stop n1"} {
		if out, err := run(bad, append(up, "-bare", "-nodes", "1")...); err == nil || !strings.Contains(out, "lab: "+bad) {
			t.Errorf("%s: %v: %s", bad, err, out)
		}
	}
	checkNothingLeft(t)
	if left := check.Value(os.ReadDir(dir))(t); len(left) != 1 || left[0].Name() != "logs" {
		t.Errorf("down left %v, want logs only", left)
	}
}
