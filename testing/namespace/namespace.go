// Package namespace runs the tests of a package in namespaces of their own, where they
// can do no harm to the machine.
package namespace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// env is set in the environment of the child that runs in its own namespaces.
const env = "HERALD_TEST_NAMESPACE"

// Inside reports whether this process is the child that Enter or EnterAs made.
func Inside() bool { return os.Getenv(env) != "" }

// AssumeInside makes Inside true without a child: this process is in namespaces of its own already.
func AssumeInside() { os.Setenv(env, "1") }

// Enter runs this test binary again in a user and network namespace of its own, which needs no
// root, and exits with the child's exit status. The child's arguments are args and those of this
// process. It does not return.
func Enter(args ...string) {
	EnterAs(&syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}, args...)
}

// EnterAsRoot is Enter with mounts, so that ip(8) can name more namespaces. It returns inside; without root it
// skips all tests.
func EnterAsRoot() {
	if !Inside() {
		if os.Getuid() != 0 {
			fmt.Println("skipped: hosts in namespaces need root")
			os.Exit(0)
		}
		EnterAs(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS})
	}
	for _, c := range []string{"mount --make-rprivate /", "mkdir -p /run/netns", "mount -t tmpfs tmpfs /run/netns",
		"ip link set lo up"} {
		if out, err := exec.Command("sh", "-c", c).CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n%s", c, err, out)
			os.Exit(1)
		}
	}
}

// EnterAs is Enter with other namespaces.
func EnterAs(attr *syscall.SysProcAttr, args ...string) {
	cmd := exec.Command("/proc/self/exe", append(args, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), env+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	attr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr = attr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "these tests need namespaces of their own (sysctl user.max_user_namespaces, "+
			"kernel.apparmor_restrict_unprivileged_userns):", err)
		os.Exit(1)
	}
	os.Exit(0)
}
