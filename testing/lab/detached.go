package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// stateFile is the file that a detached lab has in its directory once it is up.
const stateFile = "lab.json"

// state is what Attach needs to know of a detached lab.
type state struct {
	Nodes     int
	ProxyMode string
	IPv6Only  bool
	Parts     string
	Herald    string
	Since     time.Time
	Pods      map[string]*backend
}

func (l *Lab) saveState() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := json.MarshalIndent(state{l.opts.Nodes, l.opts.ProxyMode, l.opts.IPv6Only, l.opts.Parts, l.opts.Herald, l.began, l.pods}, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(l.dir, stateFile)
	if err := os.WriteFile(path+".new", b, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path) // never half a file
}

// Attach finds the detached lab whose directory is dir. It can do everything but
// stop and start the API server.
func Attach(dir string) (*Lab, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, fmt.Errorf("no lab is up here, \"lab up\" makes one: %w", err)
	}
	var s state
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	l := &Lab{dir: dir, hosts: hosts(s.Nodes, s.IPv6Only), pods: s.Pods, began: s.Since}
	l.opts, err = Options{Nodes: s.Nodes, ProxyMode: s.ProxyMode, IPv6Only: s.IPv6Only, Dir: dir, Parts: s.Parts, Herald: s.Herald, Detached: true}.withDefaults()
	if err != nil {
		return nil, err
	}
	if l.ca, err = os.ReadFile(l.pki("ca.crt")); err != nil {
		return nil, err
	}
	return l, l.connect()
}

// Since is when the lab was brought up.
func (l *Lab) Since() time.Time { return l.began }

// Exec replaces this process by argv, run in the namespace ns with this process's
// environment and the admin's KUBECONFIG. It returns only if that fails.
func (l *Lab) Exec(ns string, argv ...string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // execve(2) leaves the thread that calls it, with its namespace
	defer runtime.UnlockOSThread()
	return inNamespaceOnThread(ns, func() error {
		// Of two KUBECONFIGs in an environment the first counts: the user's own may be in this one.
		env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "KUBECONFIG=") })
		return syscall.Exec(path, argv, append(env, "KUBECONFIG="+l.kubeconfig("admin")))
	})
}

// ExecKubectl replaces this process by kubectl, run by the admin.
func (l *Lab) ExecKubectl(args ...string) error {
	return l.Exec("cp", append([]string{l.programPath("kubectl")}, args...)...)
}

// A NamespaceProcess is a process that runs in a namespace of the lab.
type NamespaceProcess struct {
	Namespace string
	Pid       int
	Command   string
}

// NamespaceProcesses lists the processes in the lab's namespaces, ordered by namespace. A namespace
// without any is listed with Pid 0.
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
