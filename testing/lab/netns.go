package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// prefix marks every network namespace of a lab, so that a sweep finds them.
	prefix = "hl-"
	// netnsDir is where ip-netns(8) looks for named namespaces.
	netnsDir = "/run/netns"
)

// netnsPath is what the namespace ns ("n1", "cl", "switch") is mounted on.
func netnsPath(ns string) string { return filepath.Join(netnsDir, prefix+ns) }

// InNamespace runs fn on a thread in the network namespace ns: "n1".., "w1", "cl", "pr", "rt", "cp", "switch", or of
// PodNamespace. Sockets that fn opens stay there. Goroutines that fn starts run outside.
func (l *Lab) InNamespace(ns string, fn func() error) error { return inNamespace(ns, fn) }

func inNamespace(ns string, fn func() error) error {
	return onThread(func() error { return inNamespaceOnThread(ns, fn) })
}

// onThread runs fn on a locked thread with its own goroutine: a thread stuck in a namespace must never serve others,
// and ends with its goroutine.
func onThread(fn func() error) error {
	err := errors.New("the function ended its goroutine")
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		err = fn()
		if _, stranded := errors.AsType[*strandedError](err); !stranded {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return err
}

// strandedError says that a thread could not return to its own namespace.
type strandedError struct{ err error }

func (e *strandedError) Error() string { return "return from namespace: " + e.err.Error() }

// inNamespaceOnThread runs fn inside ns on the calling thread, which must be locked.
func inNamespaceOnThread(ns string, fn func() error) error {
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	to, err := netns.GetFromPath(netnsPath(ns))
	if err != nil {
		return fmt.Errorf("namespace %s: %w", ns, err)
	}
	defer to.Close()
	if err := netns.Set(to); err != nil {
		return fmt.Errorf("enter namespace %s: %w", ns, err)
	}
	err = fn()
	if back := netns.Set(home); back != nil {
		return &strandedError{errors.Join(back, err)}
	}
	return err
}

// createNetns makes the namespace ns, with loopback up and sysctls set ("net/ipv4/ip_forward=1"), without those that
// the kernel lacks.
func createNetns(ns string, sysctls ...string) error {
	if err := onThread(func() error { return newNamed(ns) }); err != nil {
		return fmt.Errorf("make namespace %s: %w", ns, err)
	}
	return inNamespace(ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return err
		}
		return setSysctls(sysctls...)
	})
}

// newNamed makes the namespace ns. The calling thread must be locked.
func newNamed(ns string) error {
	if err := shareNetnsDir(); err != nil {
		return fmt.Errorf("share the mounts in %s: %w", netnsDir, err)
	}
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	h, err := netns.NewNamed(prefix + ns) // enters it, too
	if err == nil {
		h.Close()
	}
	if back := netns.Set(home); back != nil {
		return &strandedError{errors.Join(back, err)}
	}
	return err
}

// shareNetnsDir makes netnsDir a shared mount point, like ip-netns(8) with its first namespace. Done while a lab is up,
// each namespace would be mounted twice, once where nobody can unmount it.
func shareNetnsDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) { // EINVAL: it is no mount point
		return err
	}
	if err := unix.Mount(netnsDir, netnsDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return unix.Mount("", netnsDir, "", unix.MS_SHARED|unix.MS_REC, "")
}

// unshareNetnsDir undoes shareNetnsDir if there is no namespace left.
func unshareNetnsDir() error {
	if left, err := os.ReadDir(netnsDir); err != nil || len(left) > 0 {
		return nil // another's, or there is no directory
	}
	if err := unix.Unmount(netnsDir, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("unmount %s: %w", netnsDir, err)
	}
	return nil
}

// setSysctls sets "net/...=value" in the namespace of the calling thread.
func setSysctls(settings ...string) error {
	var errs []error
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		err := os.WriteFile("/proc/sys/"+name, []byte(value), 0)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// deleteNetns unmounts the namespace's name; the kernel removes it once no process or socket is in it.
func deleteNetns(ns string) error {
	path := netnsPath(ns)
	// Not mounted (EINVAL) is what an interrupted creation leaves.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
		!errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func listNetns() ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if ns, ok := strings.CutPrefix(e.Name(), prefix); ok {
			names = append(names, ns)
		}
	}
	return names, nil
}

// childStarter returns the queue of the thread that starts all children, and lives as long as the process:
// PR_SET_PDEATHSIG fires when the thread that forked ends (prctl(2)).
var childStarter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for fn := range work {
			fn()
		}
	}()
	return work
})

// startChild runs fn on childStarter's thread, inside ns, and returns its error.
func startChild(ns string, fn func() error) error {
	done := make(chan error)
	childStarter() <- func() { done <- inNamespaceOnThread(ns, fn) }
	return <-done
}
