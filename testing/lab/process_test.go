package lab

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

func TestRun(t *testing.T) {
	l := sharedLab(t)
	if got := run(t, l, "n2", "ip -brief -4 address show eth0"); !strings.Contains(got, "10.77.0.12/24") {
		t.Errorf("n2 has %s", got)
	}
	_, err := l.Run(withTimeout(t), "n2", "sh", "-c", "echo to standard output; echo no such thing >&2; exit 4")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 4 || !strings.Contains(err.Error(), "no such thing") || !strings.Contains(err.Error(), "n2: sh -c") {
		t.Errorf("got error %v", err)
	}
	if _, err := l.Run(withTimeout(t), "n99", "true"); err == nil || !strings.Contains(err.Error(), "namespace n99") {
		t.Errorf("an unknown host: got error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	if _, err := l.Run(ctx, "n1", "sleep", "60"); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("after %v: got error %v, want one soon", time.Since(began), err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.1.2.3")
	if got := run(t, l, "n1", "env"); strings.Contains(got, "10.1.2.3") {
		t.Errorf("the environment of this process reaches the lab's:\n%s", got)
	}
}

func TestInNamespace(t *testing.T) {
	l := sharedLab(t)
	here := check.Value(os.Readlink("/proc/thread-self/ns/net"))(t)
	for range 3 * runtime.GOMAXPROCS(0) { // so that threads are used again
		var names []string
		err := l.InNamespace("rt", func() error {
			ifs, err := net.Interfaces()
			for _, i := range ifs {
				names = append(names, i.Name)
			}
			return err
		})
		if err != nil || strings.Join(names, " ") != "lo eth0" {
			t.Fatalf("links of rt: %v, error %v", names, err)
		}
	}
	want := errors.New("mine")
	if err := l.InNamespace("rt", func() error { return want }); err != want {
		t.Errorf("got error %v, want the function's", err)
	}
	if err := l.InNamespace("rt", func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("a function that does not return: want an error")
	}
	if got := check.Value(os.Readlink("/proc/thread-self/ns/net"))(t); got != here {
		t.Errorf("the test is now in %s, was in %s", got, here)
	}
}

func TestProcess(t *testing.T) {
	l := sharedLab(t)
	p := check.Value(l.Start("n1", "busy", []string{"sh", "-c", `trap 'echo bye; exit 5' USR1; echo hello $A >&2; while :; do :; done`}, "A=b"))(t)
	defer p.Kill()
	check.OK(t, p.WaitLog(withTimeout(t), "hello b"))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 200*time.Millisecond, errors.New("enough"))
	defer cancel()
	if err := p.Wait(ctx); err == nil || !strings.Contains(err.Error(), "runs on: enough") || !p.Running() {
		t.Errorf("wait for a process that runs: got error %v", err)
	}
	if err := p.WaitLog(ctx, "bye"); err == nil || !strings.Contains(err.Error(), "hello b") {
		t.Errorf("wait for what is not printed: got error %v, want one that shows the log", err)
	}
	cpu, rss, err := p.Usage()
	if err != nil || cpu <= 0 || cpu > time.Second || rss < 100<<10 || rss > 100<<20 {
		t.Errorf("after 200 ms of a busy loop: CPU %v, resident %d bytes, error %v", cpu, rss, err)
	}
	if ns := check.Value(os.Readlink("/proc/" + strconv.Itoa(p.Pid) + "/ns/net"))(t); !netnsInodes("n1")[ns] {
		t.Errorf("it runs in %s", ns)
	}
	check.OK(t, p.Signal(syscall.SIGUSR1))
	if err := p.WaitLog(withTimeout(t), "bye"); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := p.Wait(withTimeout(t)); !errors.As(err, &exit) || exit.ExitCode() != 5 || p.Running() {
		t.Errorf("got error %v, want exit status 5", err)
	}
	p.Kill() // is fine
	if err := p.Signal(syscall.SIGTERM); err == nil {
		t.Error("signal to a process that has ended: want an error")
	}
	if err := p.WaitLog(withTimeout(t), "never printed"); err == nil || !strings.Contains(err.Error(), "running: false") {
		t.Errorf("wait for the log of a process that has ended: got error %v", err)
	}
	if _, _, err := p.Usage(); err == nil {
		t.Error("usage of a process that has ended: want an error")
	}
	if _, err := l.Start("n1", "none", []string{"/no/such/program"}); err == nil || !strings.Contains(err.Error(), "start none in n1") {
		t.Errorf("got error %v", err)
	}
}
