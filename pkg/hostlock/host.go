package hostlock

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// HostID identifies this host until it is restarted: the boot ID of its kernel (random(4)), and
// the inode of this process's network namespace, since hosts can be containers of one machine. "" if either
// can't be read.
func HostID() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var ns syscall.Stat_t
	if err != nil || syscall.Stat("/proc/self/ns/net", &ns) != nil {
		return ""
	}
	return fmt.Sprintf("%s/%d", strings.TrimSpace(string(boot)), ns.Ino)
}
