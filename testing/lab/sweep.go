package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tempPattern names the directories of labs without Options.Dir.
const tempPattern = "herald-lab-*"

// lockPath is the file whose lock says that a lab is up on this machine.
func lockPath() string { return filepath.Join(os.TempDir(), "herald-lab.lock") }

// lockMachine takes the machine's lab lock within wait, and writes what to the file, for others to read. The lock ends
// when no process has the file open.
func lockMachine(ctx context.Context, what string, wait time.Duration) (*os.File, error) {
	f, err := os.OpenFile(lockPath(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := awaitLock(ctx, f, wait); err != nil {
		f.Close()
		return nil, err
	}
	owner := fmt.Sprintf("pid %d\n%s\n%s\n", os.Getpid(), what, strings.Join(os.Args, " "))
	if err := errors.Join(f.Truncate(0), writeAt(f, owner)); err != nil {
		f.Close()
		return nil, fmt.Errorf("write %s: %w", lockPath(), err)
	}
	return f, nil
}

func awaitLock(ctx context.Context, f *os.File, wait time.Duration) error {
	timeout := time.After(max(wait, 500*time.Millisecond))
	tick := time.NewTicker(20 * time.Millisecond) // flock(2) can't be waited for with a deadline
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		select {
		case <-timeout:
			who, err := os.ReadFile(lockPath())
			return errors.Join(fmt.Errorf("another lab is up on this machine; end it first: %s",
				strings.Join(strings.Fields(string(who)), " ")), err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

// Sweep removes what a killed run left: processes in a lab's namespaces, these and their links, and temporary
// directories. It refuses while a lab is up.
func Sweep() error {
	lock, err := lockMachine(context.Background(), "sweeping", 0)
	if err != nil {
		return err
	}
	defer lock.Close()
	return sweep()
}

func sweep() error {
	err := errors.Join(clearNetns(), removeCgroups(prefix+"*"))
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), tempPattern)) // the pattern is well-formed
	for _, d := range dirs {
		if fi, e := os.Stat(d); e == nil && fi.IsDir() {
			err = errors.Join(err, os.RemoveAll(d))
		}
	}
	return err
}

func clearNetns() error {
	names, err := listNetns()
	if err != nil {
		return err
	}
	if err := killProcessesIn(names...); err != nil {
		return err
	}
	var errs []error
	for _, ns := range names {
		errs = append(errs, deleteNetns(ns))
	}
	return errors.Join(append(errs, unshareNetnsDir())...)
}

// killProcessesIn ends every process in the named namespaces, and waits until they are gone.
func killProcessesIn(names ...string) error {
	inodes := netnsInodes(names...)
	deadline := time.Now().Add(10 * time.Second)
	killed := map[int]bool{}
	for {
		for _, pid := range processesIn(inodes) {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
			killed[pid] = true
		}
		maps.DeleteFunc(killed, func(pid int, _ bool) bool { return dead(pid) })
		if len(killed) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v in the lab's namespaces survive SIGKILL", slices.Sorted(maps.Keys(killed)))
		}
		time.Sleep(5 * time.Millisecond) // only a parent can wait for a process
	}
}

// dead reports whether nothing is left of a process but its exit status: its files close with its last thread.
func dead(pid int) bool {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || len(threads) <= 1 && strings.Contains(string(stat), ") Z ")
}

// netnsInodes are the namespaces as /proc/<pid>/ns/net shows them, "net:[inode]".
func netnsInodes(names ...string) map[string]bool {
	set := map[string]bool{}
	for _, ns := range names {
		var st unix.Stat_t
		if err := unix.Stat(netnsPath(ns), &st); err == nil {
			set[fmt.Sprintf("net:[%d]", st.Ino)] = true
		}
	}
	return set
}

func processesIn(inodes map[string]bool) []int {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/net") // the pattern is well-formed
	var pids []int
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || !inodes[target] {
			continue // zombies have no namespace
		}
		if pid, err := strconv.Atoi(strings.Split(link, "/")[2]); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// repoRoot is the directory of Herald's go.mod, above the working directory.
func repoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		b, err := os.ReadFile(filepath.Join(at, "go.mod"))
		if err == nil && strings.HasPrefix(string(b), "module github.com/heraldvip/herald\n") {
			return at, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is not inside a checkout of Herald", dir)
		}
	}
}

// A NamespaceProcess is a process in a namespace of the lab.
type NamespaceProcess struct {
	Namespace string
	Pid       int
	Command   string
}

// NamespaceProcesses lists the processes in the lab's namespaces, by namespace, with Pid 0 for an empty one.
func NamespaceProcesses() ([]NamespaceProcess, error) {
	names, err := listNetns()
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var list []NamespaceProcess
	for _, ns := range names {
		pids := processesIn(netnsInodes(ns))
		for _, pid := range pids {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
				continue // it has ended
			}
			if err != nil {
				return nil, err
			}
			argv := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
			argv[0] = filepath.Base(argv[0])
			list = append(list, NamespaceProcess{ns, pid, strings.Join(argv[:min(3, len(argv))], " ")})
		}
		if len(pids) == 0 {
			list = append(list, NamespaceProcess{Namespace: ns})
		}
	}
	return list, nil
}
