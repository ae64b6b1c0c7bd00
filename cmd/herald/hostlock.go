package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// hostSocket is the lock that lets one Herald work on a host: two would take away each other's addresses. It is a Unix
// socket in the abstract namespace (unix(7); "@" is Go's for it), which belongs to the network namespace, as VIPs do.
// The kernel removes it with the process that has it, however that ends.
const hostSocket = "@heraldvip.io/herald"

// otherHerald is what a process that does not get the lock says. Any user of the host can take the name, in its network
// namespace. Whoever does is waited for: two Heralds are worse than none.
const otherHerald = "another Herald has the name of this node: it runs on this host. This one waits until that ends. " +
	"End one of them (on the host, as root: ss -xap | grep heraldvip.io/herald)"

// tryHostLock takes the lock, for as long as the result is open; nil if another process has it. If the kernel has no
// such sockets it says so, and returns nothing to wait for.
func tryHostLock(name string, log *slog.Logger) (lock net.Listener, mine bool) {
	lock, err := net.Listen("unix", name)
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
		log.Warn("no lock can be made that keeps a second Herald from working on this host", "err", err)
	}
	return lock, !errors.Is(err, syscall.EADDRINUSE)
}

// awaitHostLock takes the lock once no other process has it, or returns the error of ctx. While it waits it logs, and
// calls tell, at once and each hour.
func awaitHostLock(ctx context.Context, name string, log *slog.Logger, tell func()) (net.Listener, error) {
	var said time.Time
	for {
		if lock, mine := tryHostLock(name, log); mine {
			return lock, nil
		}
		if time.Since(said) > time.Hour {
			said = time.Now()
			log.Error(otherHerald)
			tell()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// hostID identifies this host until it is restarted: the boot ID of its kernel (random(4)), and the inode of this
// process's network namespace, since hosts can be containers of one machine. "" if either can't be read.
func hostID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var ns syscall.Stat_t
	if err != nil || syscall.Stat("/proc/self/ns/net", &ns) != nil {
		return ""
	}
	return fmt.Sprintf("%s/%d", strings.TrimSpace(string(boot)), ns.Ino)
}
