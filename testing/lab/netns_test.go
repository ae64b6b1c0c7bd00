package lab

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/testing/check"
)

// Somebody who uses ip netns while a lab is up makes netnsDir a mount point, and would have all mounts in it twice; a lab leaves nothing all the same.
func TestNetnsBesideIPNetns(t *testing.T) {
	requireLab(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread, whose mounts are its own, ends with the goroutine
		done <- errors.Join(unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), besideIPNetns())
	}()
	check.OK(t, <-done)
}

func besideIPNetns() error {
	if err := errors.Join(
		unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
		unix.Mount("tmpfs", "/run", "tmpfs", 0, ""),
	); err != nil {
		return err
	}
	if err := newNamed("test"); err != nil {
		return err
	}
	for _, command := range []string{"add", "del"} {
		if out, err := exec.Command("ip", "netns", command, "other").CombinedOutput(); err != nil {
			return errors.New(string(out))
		}
	}
	if err := deleteNetns("test"); err != nil {
		return err
	}
	if left, err := os.ReadDir(netnsDir); err != nil || len(left) > 0 {
		return errors.Join(err, errors.New("something is left"))
	}
	return nil
}
