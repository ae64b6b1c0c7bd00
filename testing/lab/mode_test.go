package lab

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

func TestIptables(t *testing.T) {
	endSharedLab(t)
	l := bringUp(t, Options{Nodes: 2, ProxyMode: "iptables"})
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	v4, v6 := netip.MustParseAddr("10.77.0.50"), netip.MustParseAddr("fd77::1050")
	bindAddress(t, l, "n1", v4)
	bindAddress(t, l, "n1", v6)
	addPod(t, l, Pod{Name: "a", Node: "n2", Labels: map[string]string{"app": "web"}})
	createService(t, l, Service("default", "web", WithVIPs(v4, v6)), v4, v6)
	if got, want := awaitAnswer(t, l, v4), "a n2 10.77.0.11"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := awaitAnswer(t, l, v6), "a n2 fd77::11"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if s := run(t, l, "n1", "iptables-save"); !strings.Contains(s, v4.String()) {
		t.Errorf("the rules of n1 lack the VIP:\n%s", s)
	}
}

// labCommand is the built command, with a directory for its lab.
type labCommand struct{ path, dir, root string }

func buildCommand(t *testing.T) labCommand {
	t.Helper()
	c := labCommand{filepath.Join(t.TempDir(), "lab"), t.TempDir(), check.Value(repoRoot())(t)}
	build := exec.Command("go", "build", "-o", c.path, "./testing/lab/cmd/lab")
	build.Dir = c.root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return c
}

func (c labCommand) runMayFail(args ...string) (string, error) {
	cmd := exec.Command(c.path, args...)
	cmd.Dir, cmd.Env = c.root, append(os.Environ(), "HERALD_LAB_DIR="+c.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c labCommand) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.runMayFail(args...)
	if err != nil {
		t.Fatalf("lab %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

func (c labCommand) runFails(t *testing.T, want string, args ...string) {
	t.Helper()
	if out, err := c.runMayFail(args...); err == nil || !strings.Contains(out, want) {
		t.Errorf("lab %s: error %v, %s; want it to fail and say %q", strings.Join(args, " "), err, out, want)
	}
}

// runDownAgain checks that there may be nothing to do, or another package's lab.
func (c labCommand) runDownAgain(t *testing.T) {
	t.Helper()
	if out, err := c.runMayFail("down"); err != nil && !strings.Contains(out, "another lab is up") {
		t.Errorf("lab down: %v: %s", err, out)
	}
}

// TestCommand walks through what the command offers. The lab outlives each step.
func TestCommand(t *testing.T) {
	endSharedLab(t)
	c := buildCommand(t)
	if out := c.run(t); !strings.Contains(out, "lab pod add NAME NODE") {
		t.Errorf("usage: %s", out)
	}
	c.runFails(t, `"lab up" makes one`, "status")
	defer c.runDownAgain(t)
	if out := c.run(t, "up", "--bare", "--nodes", "1", "--wait", lockTimeout.String()); !strings.Contains(out, "up: nodes [n1]") || !strings.Contains(out, c.path+" kubectl get nodes") {
		t.Errorf("up: %s", out)
	}
	c.runFails(t, "another lab is up", "up", "--bare")
	if err := Sweep(); err == nil {
		t.Error("Sweep removes a detached lab")
	}
	c.run(t, "pod", "add", "web", "w1")
	c.run(t, "pod", "add", "web2", "n1", "app=web", "tier=front")
	c.run(t, "kubectl", "expose", "pod", "web", "--port=80", "--type=LoadBalancer", "--external-ip=10.77.0.50")
	c.run(t, "exec", "n1", "ip", "address", "add", "10.77.0.50/32", "dev", "eth0")
	l := check.Value(Attach(c.dir))(t)
	if got := awaitAnswer(t, l, netip.MustParseAddr("10.77.0.50")); !strings.HasPrefix(got, "web") {
		t.Errorf("got %q, want an answer by web or web2", got)
	}
	if err := l.StopAPI(); err == nil {
		t.Error("stop the API server of another process's lab: want an error")
	}
	l.idle()
	out := c.run(t, "status")
	for _, want := range []string{"HOST", "etcd --name=lab", "p-default-web2", "herald-lab-backend web w1", "service/web", "pod/web2", "10.77.0.50"} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	c.run(t, "pod", "remove", "web2", "--grace", "1s")
	if out := c.run(t, "kubectl", "get", "pods", "-o", "name"); strings.TrimSpace(out) != "pod/web" {
		t.Errorf("pods: %s", out)
	}
	for _, args := range []string{"frobnicate", "exec", "exec n9 true", "pod add x", "pod add x n1 y", "pod add x n9", "up --nodes"} {
		c.runFails(t, "lab: ", strings.Fields(args)...)
	}
	c.run(t, "down")
	checkNothingLeft(t)
	c.runDownAgain(t)
	if left := check.Value(os.ReadDir(c.dir))(t); len(left) != 1 || left[0].Name() != "logs" {
		t.Errorf("down left %v, want logs only", left)
	}
}

// TestCommandText follows what "lab up" prints, line by line: every command works as it stands there, also for a user who
// has a KUBECONFIG of another cluster.
func TestCommandText(t *testing.T) {
	endSharedLab(t)
	c := buildCommand(t)
	if _, err := os.Stat(filepath.Join(c.root, "bin", "herald")); err != nil {
		if os.Getenv("HERALD_LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "of-another-cluster"))
	defer c.runDownAgain(t)
	text, followed := c.run(t, "up", "--wait", lockTimeout.String()), 0
	for line := range strings.Lines(text) {
		command, _, _ := strings.Cut(line, "#")
		args := strings.Fields(command)
		if len(args) == 0 || args[0] != c.path {
			continue
		}
		followed++
		var out string
		check.Until(t, 15*time.Second, "what lab up says works: "+command, func() (err error) { // kube-proxy may not know a VIP yet
			if out, err = c.runMayFail(args[1:]...); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
		c.checkDone(t, args[1:])
	}
	if followed < 14 {
		t.Errorf("%d commands in what lab up says:\n%s", followed, text)
	}
	checkNothingLeft(t)
}

// checkDone checks what a command of the lab that makes a fault, or mends it, has brought about.
func (c labCommand) checkDone(t *testing.T, args []string) {
	t.Helper()
	switch strings.Join(args, " ") {
	case "herald stop n1":
		if out := c.run(t, "exec", "n1", "ip", "address", "show", "eth0"); strings.Contains(out, "10.77.0.50") {
			t.Errorf("Herald has stopped on n1, and the VIP is there:\n%s", out)
		}
		c.runFails(t, `none runs on "n1"`, "herald", "kill", "n1")
		if got := c.run(t, "exec", "cl", "curl", "-s", "http://10.77.0.50"); !strings.HasPrefix(got, "web w1") {
			t.Errorf("a client gets %q", got)
		}
	case "herald start n1":
		c.runFails(t, "a Herald runs on n1 already", "herald", "start", "n1")
		check.Until(t, 15*time.Second, "the Herald of n1 has the rights that it needs", func() error {
			_, err := c.runMayFail("exec", "n1", "curl", "-sf", "http://127.0.0.1:2112/readyz")
			return err
		})
	case "cable pull n2":
		if out := c.run(t, "exec", "n2", "ip", "link", "show", "eth0"); !strings.Contains(out, "NO-CARRIER") {
			t.Errorf("the cable is pulled:\n%s", out)
		}
	case "cable plug n2":
		if out := c.run(t, "exec", "n2", "ip", "link", "show", "eth0"); strings.Contains(out, "NO-CARRIER") {
			t.Errorf("the cable is plugged in:\n%s", out)
		}
		c.run(t, "herald", "kill", "n2")
		c.runFails(t, "want: lab cable", "cable", "bite", "n2")
		c.runFails(t, "want: lab herald", "herald", "bite", "n2")
	}
}
