package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Process is a program running in one of the lab's namespaces.
type Process struct {
	Name      string // what it was started as
	Namespace string // where
	Pid       int
	LogFile   string // its standard output and error; programs of one name share a file

	logStart int64 // where in LogFile this run begins
	cmd      *exec.Cmd
	ended    chan struct{}
	err      error // how it ended; read it after ended is closed
}

// Start runs argv in the namespace ns, with env and this process's PATH. Its output is appended to logs/<name>.log. It
// dies with this process.
func (l *Lab) Start(ns, name string, argv []string, env ...string) (*Process, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = l.environment(env...)
	return l.spawn(ns, name, cmd)
}

// environment is for the lab's children: PATH, a HOME in the lab's directory, and env.
func (l *Lab) environment(env ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.conf("home")}, env...)
}

func (l *Lab) spawn(ns, name string, cmd *exec.Cmd) (*Process, error) {
	p := &Process{Name: name, Namespace: ns, cmd: cmd, ended: make(chan struct{}),
		LogFile: filepath.Join(l.dir, "logs", name+".log")}
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	if p.logStart, err = log.Seek(0, io.SeekEnd); err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	// Its own session, so that Ctrl-C reaches only this process, which ends its children in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := startChild(ns, cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", name, ns, err)
	}
	p.Pid = cmd.Process.Pid
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Signal sends sig to the process; one that has ended is an error. After SIGSTOP it waits until no thread runs.
func (p *Process) Signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if err == nil && sig == syscall.SIGSTOP {
		err = unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED, nil)
	}
	if err != nil {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Wait waits until the process has ended: nil for exit status 0, else an *exec.ExitError, or the context's error.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		if !p.Running() {
			return p.err
		}
		return fmt.Errorf("%s (pid %d) runs on: %w", p.Name, p.Pid, context.Cause(ctx))
	}
}

// Kill ends the process by SIGKILL, if it runs, and waits until it is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.ended
}

// Running reports whether the process has not ended yet. A stopped one runs.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Log returns what the process has printed so far.
func (p *Process) Log() string {
	b, err := os.ReadFile(p.LogFile)
	if err != nil || int64(len(b)) < p.logStart {
		return ""
	}
	return string(b[p.logStart:])
}

func (p *Process) tail() string {
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}

// WaitLog waits until the process has printed s; an error if the process or ctx ends before.
func (p *Process) WaitLog(ctx context.Context, s string) error {
	watch, err := watchFile(p.LogFile)
	if err != nil {
		return err
	}
	defer watch.Close()
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(over, func() { _ = watch.SetReadDeadline(time.Unix(1, 0)) })
	go func() {
		select {
		case <-p.ended:
			cancel()
		case <-over.Done():
		}
	}()
	events := make([]byte, 4096)
	for {
		last := over.Err() != nil // the log is read once more after the end
		if strings.Contains(p.Log(), s) {
			return nil
		}
		if last {
			return fmt.Errorf("%s (pid %d, running: %v) did not print %q:\n%s", p.Name, p.Pid, p.Running(), s, p.tail())
		}
		if _, err := watch.Read(events); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// watchFile returns a file that can be read whenever path was written to (inotify(7)).
func watchFile(path string) (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), "inotify"), nil
}

// Usage returns the process's CPU time, user and system, in steps of 10 ms, and resident bytes (proc(5)).
func (p *Process) Usage() (cpu time.Duration, rss int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
	if err != nil {
		return 0, 0, err
	}
	// The name, in parentheses, may hold anything; fields count from behind it.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 22 {
		return 0, 0, fmt.Errorf("%s: /proc/%d/stat has %d fields", p.Name, p.Pid, len(fields))
	}
	var n [3]int64
	for i, at := range []int{11, 12, 21} { // utime, stime, rss
		if n[i], err = strconv.ParseInt(fields[at], 10, 64); err != nil {
			return 0, 0, fmt.Errorf("%s: /proc/%d/stat: %w", p.Name, p.Pid, err)
		}
	}
	const tick = time.Second / 100 // USER_HZ is 100 on every architecture Go runs on
	return time.Duration(n[0]+n[1]) * tick, n[2] * int64(os.Getpagesize()), nil
}

// Run runs argv in the namespace ns and returns its standard output; an error has its standard error.
func (l *Lab) Run(ctx context.Context, ns string, argv ...string) (string, error) {
	return l.run(ctx, ns, "", argv...)
}

func (l *Lab) run(ctx context.Context, ns, stdin string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = l.environment("KUBECONFIG=" + l.kubeconfig("admin"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second // a child that another call has forked has the pipe until it execs
	var out, errout bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errout
	err := startChild(ns, cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		message := strings.TrimSpace(errout.String())
		err = fmt.Errorf("%s: %s: %w: %s", ns, strings.Join(argv, " "), err, message)
	}
	return out.String(), err
}
