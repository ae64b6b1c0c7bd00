package lab

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestIptables(t *testing.T) {
	alone(t)
	l := up(t, Options{Nodes: 2, ProxyMode: "iptables"})
	t.Cleanup(func() {
		if err := l.Down(); err != nil {
			t.Error(err)
		}
	})
	v4, v6 := netip.MustParseAddr("10.77.0.50"), netip.MustParseAddr("fd77::1050")
	bind(t, l, "n1", v4)
	bind(t, l, "n1", v6)
	addPod(t, l, Pod{Name: "a", Node: "n2", Labels: map[string]string{"app": "web"}})
	createService(t, l, Service("default", "web", WithVIPs(v4, v6)), v4, v6)
	if got, want := answers(t, l, v4), "a n2 10.77.0.11"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := answers(t, l, v6), "a n2 fd77::11"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if s := run(t, l, "n1", "iptables-save"); !strings.Contains(s, v4.String()) {
		t.Errorf("the rules of n1 lack the VIP:\n%s", s)
	}
}

// TestCommand walks through what the command offers, with the lab in between outliving each.
func TestCommand(t *testing.T) {
	alone(t)
	root := must(repoRoot())(t)
	lab := filepath.Join(t.TempDir(), "lab")
	build := exec.Command("go", "build", "-o", lab, "./testing/lab/cmd/lab")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	dir := t.TempDir()
	try := func(args ...string) (string, error) {
		cmd := exec.Command(lab, args...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "HERALD_LAB_DIR="+dir)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	do := func(args ...string) string {
		t.Helper()
		out, err := try(args...)
		if err != nil {
			t.Fatalf("lab %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return out
	}
	if out, err := try("status"); err == nil || !strings.Contains(out, `"lab up" makes one`) {
		t.Errorf("status without a lab: %v: %s", err, out)
	}
	if out := do(); !strings.Contains(out, "lab pod add NAME NODE") {
		t.Errorf("usage: %s", out)
	}
	defer do("down")
	if out := do("up", "--bare", "--nodes", "1"); !strings.Contains(out, "up: nodes [n1]") || !strings.Contains(out, lab+" kubectl get nodes") {
		t.Errorf("up: %s", out)
	}
	if out, err := try("up", "--bare"); err == nil || !strings.Contains(out, "another lab is up") {
		t.Errorf("up twice: %v: %s", err, out)
	}
	if err := Sweep(); err == nil {
		t.Error("Sweep removes a detached lab")
	}
	do("pod", "add", "web", "w1")
	do("pod", "add", "web2", "n1", "app=web", "tier=front")
	do("kubectl", "expose", "pod", "web", "--port=80", "--type=LoadBalancer", "--external-ip=10.77.0.50")
	do("exec", "n1", "ip", "address", "add", "10.77.0.50/32", "dev", "eth0")
	l := must(Attach(dir))(t)
	if got := answers(t, l, netip.MustParseAddr("10.77.0.50")); !strings.HasPrefix(got, "web") {
		t.Errorf("got %q, want an answer by web or web2", got)
	}
	if err := l.StopAPI(); err == nil {
		t.Error("stop the API server of another process's lab: want an error")
	}
	l.idle()
	out := do("status")
	for _, want := range []string{"HOST", "etcd --name=lab", "p-default-web2", "herald-lab-backend web w1", "service/web", "pod/web2", "10.77.0.50"} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	do("pod", "remove", "web2", "--grace", "1s")
	if out := do("kubectl", "get", "pods", "-o", "name"); strings.TrimSpace(out) != "pod/web" {
		t.Errorf("pods: %s", out)
	}
	for _, args := range [][]string{{"frobnicate"}, {"exec"}, {"exec", "n9", "true"}, {"pod", "add", "x"}, {"pod", "add", "x", "n1", "y"}, {"up", "--nodes"}} {
		if out, err := try(args...); err == nil || !strings.Contains(out, "lab: ") && !strings.Contains(out, "flag") {
			t.Errorf("lab %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	do("down")
	nothingLeft(t)
	do("down") // nothing to do is fine
	attached := must(os.ReadDir(dir))(t)
	if len(attached) != 1 || attached[0].Name() != "logs" {
		t.Errorf("down left %v, want logs only", attached)
	}
}
