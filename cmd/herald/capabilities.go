package main

import (
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// raiseCapabilities makes the permitted capabilities effective, on all threads. A file's capabilities are permitted
// only: were they effective at once, the kernel would not start the program where a container lacks one
// (capabilities(7), "Safety checking for capability-dumb binaries").
func raiseCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // of capabilities 0 to 31, and 32 to 63
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("can't read the capabilities of this process: %w", err)
	}
	missing := false
	for i := range sets {
		missing = missing || sets[i].Effective != sets[i].Permitted
		sets[i].Effective = sets[i].Permitted
	}
	if !missing {
		return nil
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&sets[0])), 0); errno != 0 {
		return fmt.Errorf("can't make the permitted capabilities of this process effective: %w", errno)
	}
	return nil
}
