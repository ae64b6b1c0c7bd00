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

// hostSocket is the lock that lets one Herald work on a host: two would take away each other's addresses. An abstract
// Unix socket (unix(7)) belongs to the network namespace, as VIPs do, and ends with its process.
const hostSocket = "@heraldvip.io/herald"

// otherHerald is what a process without the lock says. Any user of the host can take the name; then Herald waits: two
// are worse than none.
const otherHerald = "another Herald has the name of this node: it runs on this host. This one waits until that ends. " +
	"End one of them (on the host, as root: ss -xap | grep heraldvip.io/herald)"

// tryHostLock takes the lock, held while the result is open; mine is false if another process has it.
func tryHostLock(name string, log *slog.Logger) (lock net.Listener, mine bool) {
	lock, err := net.Listen("unix", name)
	if err != nil && !errors.Is(err, syscall.EADDRINUSE) {
		log.Warn("no lock can be made that keeps a second Herald from working on this host", "err", err)
	}
	return lock, !errors.Is(err, syscall.EADDRINUSE)
}

// awaitHostLock takes the lock once free, or returns ctx's error; it logs and calls tell at once, then each hour.
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

// hostID identifies this host until a restart: the kernel's boot ID (random(4)), and the inode of the network
// namespace, since hosts can be containers; or "".
func hostID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var ns syscall.Stat_t
	if err != nil || syscall.Stat("/proc/self/ns/net", &ns) != nil {
		return ""
	}
	return fmt.Sprintf("%s/%d", strings.TrimSpace(string(boot)), ns.Ino)
}
