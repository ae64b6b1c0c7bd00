package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// rbac is the rights of the lab's Herald in these tests.
const rbac = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: herald-test}
rules: [{apiGroups: [""], resources: [services], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: herald-test}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: herald-test}
subjects: [{kind: ServiceAccount, namespace: kube-system, name: herald}]
`

// lockTimeout is how long these tests wait for another package's lab to end.
const lockTimeout = 5 * time.Minute

// shared is the lab of most tests, brought up by the first that needs it.
var shared *Lab

func TestMain(m *testing.M) {
	if os.Getenv("HERALD_LAB_TEST_CHILD") != "" {
		runChildLab()
	}
	code := m.Run()
	if err := shutSharedLab(); err != nil {
		fmt.Fprintln(os.Stderr, "lab down:", err)
		code = 1
	}
	os.Exit(code)
}

func shutSharedLab() error {
	if shared == nil {
		return nil
	}
	l := shared
	shared = nil
	return l.Down()
}

// requireLab skips the test where no lab can come up, unless HERALD_LAB=require.
func requireLab(t *testing.T) {
	t.Helper()
	if err := Check(Options{}); err != nil {
		if os.Getenv("HERALD_LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func sharedLab(t *testing.T) *Lab {
	t.Helper()
	requireLab(t)
	if shared == nil {
		shared = bringUp(t, Options{RBAC: rbac})
	}
	return shared
}

// endSharedLab ends the shared lab, so that the test can have one of its own.
func endSharedLab(t *testing.T) {
	t.Helper()
	requireLab(t)
	check.OK(t, shutSharedLab())
}

func bringUp(t *testing.T, opts Options) *Lab {
	t.Helper()
	if opts.Wait == 0 {
		opts.Wait = lockTimeout
	}
	script, err := filepath.Abs("testdata/herald.sh")
	check.OK(t, err)
	opts.Herald = script
	ctx, cancel := context.WithTimeout(t.Context(), lockTimeout+time.Minute)
	defer cancel()
	l, err := Up(ctx, opts)
	check.OK(t, err)
	return l
}

// withTimeout is a context that ends if what should happen does not.
func withTimeout(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("10 s are over"))
	t.Cleanup(cancel)
	return ctx
}

// run runs a command line in a namespace and returns what it prints.
func run(t *testing.T, l *Lab, ns, line string) string {
	t.Helper()
	return check.Value(l.Run(withTimeout(t), ns, strings.Fields(line)...))(t)
}

// bindAddress puts an address on a node's eth0 until the test ends or unbind is called, in the
// way an announcer does: as no source address.
func bindAddress(t *testing.T, l *Lab, node string, addr netip.Addr) (unbind func()) {
	t.Helper()
	p := netip.PrefixFrom(addr, addr.BitLen()).String()
	args := []string{"ip", "address", "add", p, "dev", "eth0"}
	if addr.Is6() {
		args = append(args, "nodad", "preferred_lft", "0")
	}
	check.Value(l.Run(withTimeout(t), node, args...))(t)
	bound := true
	unbind = func() {
		if bound {
			bound = false
			check.Value(l.Run(context.WithoutCancel(t.Context()), node, "ip", "address", "del", p, "dev", "eth0"))(t)
		}
	}
	t.Cleanup(unbind)
	return unbind
}

// checkNothingLeft checks that no process, namespace or directory of a lab is left. It waits while
// another package's tests have a lab up.
func checkNothingLeft(t *testing.T) {
	t.Helper()
	lock := check.Value(lockMachine(t.Context(), "checking", lockTimeout))(t)
	defer lock.Close()
	if left := check.Value(NamespaceProcesses())(t); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), tempPattern)); len(dirs) > 0 {
		t.Errorf("left behind: %v", dirs)
	}
}

// awaitSweep is Sweep, after another package's lab.
func awaitSweep(t *testing.T) {
	t.Helper()
	check.Until(t, lockTimeout, "no other lab is up", Sweep)
}

func TestUpAndDown(t *testing.T) {
	endSharedLab(t)
	var log strings.Builder
	dir := t.TempDir()
	l := bringUp(t, Options{Nodes: 1, Dir: dir, Log: &log, RBAC: rbac})
	out, err := l.Kubectl(withTimeout(t), "get", "nodes", "-o", "custom-columns=N:.metadata.name,R:.status.conditions[0].status,C:.spec.podCIDRs", "--no-headers")
	if err != nil {
		t.Error(err)
	}
	for _, want := range []string{"n1", "w1", "True", "10.240.1.0/24", "fd77:240:1::/64", "10.240.31.0/24"} {
		if !strings.Contains(out, want) {
			t.Errorf("nodes lack %s:\n%s", want, out)
		}
	}
	began := time.Now()
	if _, err := Up(t.Context(), Options{}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("another lab is up on this machine; end it first: "+
		`pid %d as long as it runs: `, os.Getpid())) {
		t.Errorf("a second lab: got error %v", err)
	} else if d := time.Since(began); d > time.Second {
		t.Errorf("the second lab was refused after %v, want at once", d)
	}
	if err := Sweep(); err == nil {
		t.Error("Sweep removed a lab that is up")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Up(ctx, Options{Wait: time.Minute}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for the lab to end: got error %v, want deadline exceeded", err)
	}
	var wg sync.WaitGroup
	for range 2 { // a test's end and Ctrl-C may come together
		wg.Go(func() {
			if err := l.Down(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// Down again does no harm to the next lab.
	next := bringUp(t, Options{Nodes: 1})
	if err := l.Down(); err != nil {
		t.Error(err)
	}
	run(t, next, "n1", "true")
	if err := next.Down(); err != nil {
		t.Error(err)
	}
	checkNothingLeft(t)
	if s := log.String(); !strings.Contains(s, "up: nodes [n1], kube-proxy in nftables mode") || !strings.Contains(s, "down\n") {
		t.Errorf("progress:\n%s", s)
	}
	entries := check.Value(os.ReadDir(dir))(t)
	if len(entries) != 1 || entries[0].Name() != "logs" {
		t.Errorf("Down left %v in the given directory, want logs only", entries)
	}
	if _, err := os.Stat(filepath.Join(dir, "logs", "kube-proxy-n1.log")); err != nil {
		t.Error(err)
	}
}

func TestUpFails(t *testing.T) {
	endSharedLab(t)
	for name, opts := range map[string]Options{
		"an unready part": {RBAC: "kind: Nonsense\n"},
		"no parts":        {Parts: t.TempDir()},
	} {
		opts.Wait = lockTimeout
		if l, err := Up(t.Context(), opts); err == nil {
			t.Errorf("%s: want an error", name)
			_ = l.Down()
		}
		checkNothingLeft(t)
	}
	// The error for a program that ends at once has the end of its log.
	parts := t.TempDir()
	real := check.Value(Options{}.withDefaults())(t).Parts
	for _, p := range []string{"etcd", "endpointslices", "kube-proxy", "kubectl"} {
		check.OK(t, os.Symlink(filepath.Join(real, p), filepath.Join(parts, p)))
	}
	check.OK(t, os.WriteFile(filepath.Join(parts, "kube-apiserver"), []byte("#!/bin/sh\necho no memory today\nexit 7\n"), 0o755))
	_, err := Up(t.Context(), Options{Parts: parts, Wait: lockTimeout})
	if err == nil || !strings.Contains(err.Error(), "kube-apiserver ended: exit status 7") || !strings.Contains(err.Error(), "no memory today") {
		t.Errorf("got error %v", err)
	}
	checkNothingLeft(t)
}

// runChildLab brings a lab up in this process, which is a test's child and will be killed.
func runChildLab() {
	l, err := Up(context.Background(), Options{Nodes: 1, Wait: lockTimeout, Log: os.Stdout})
	if err != nil {
		fmt.Println("FAILED", err)
		os.Exit(1)
	}
	if err := l.AddPod(context.Background(), Pod{Name: "a", Node: "n1"}); err != nil {
		fmt.Println("FAILED", err)
	}
	fmt.Println("READY")
	select {}
}

// startChildLab runs this test binary as runChildLab, and returns it when its lab is up.
func startChildLab(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "HERALD_LAB_TEST_CHILD=yes")
	out := check.Value(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	check.OK(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "READY") {
			return cmd
		}
		if strings.Contains(lines.Text(), "FAILED") {
			break
		}
	}
	_ = cmd.Process.Kill()
	t.Fatalf("the other process printed %q", lines.Text())
	return nil
}

func kill(t *testing.T, cmd *exec.Cmd, sig syscall.Signal) {
	t.Helper()
	check.OK(t, cmd.Process.Signal(sig))
	_ = cmd.Wait() // says that it was killed
}

func TestKilledRun(t *testing.T) {
	endSharedLab(t)
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		cmd := startChildLab(t)
		running := map[int]NamespaceProcess{}
		for _, r := range check.Value(NamespaceProcesses())(t) {
			if r.Pid != 0 {
				running[r.Pid] = r
			}
		}
		if len(running) < 6 { // etcd, API server, the controller, two kube-proxies, a pod; an nft at times
			t.Errorf("the other process's lab runs %v", running)
		}
		kill(t, cmd, sig)
		// Only a parent can wait for a process to end: this test is not theirs.
		check.Until(t, 5*time.Second, fmt.Sprintf("the lab's processes end with the one that got %v", sig), func() error {
			maps.DeleteFunc(running, func(pid int, _ NamespaceProcess) bool { return dead(pid) })
			if len(running) > 0 {
				return fmt.Errorf("these run on: %v", running)
			}
			return nil
		})
		awaitSweep(t)
		checkNothingLeft(t)
	}
}
