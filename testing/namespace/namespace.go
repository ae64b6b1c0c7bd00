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
