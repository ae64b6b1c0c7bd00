package l2

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"golang.org/x/sys/unix"
)

// many is n announcements, IPv4 and IPv6 by turns.
func many(n int, link string) []vip.Announcement {
	list := make([]vip.Announcement, n)
	for i := range list {
		list[i] = say(link, fmt.Sprintf("10.1.%d.%d", i>>8, i&255))
		if i%2 == 1 {
			list[i].Addr = netip.MustParseAddr(fmt.Sprintf("2001:db8::1:%x", i))
		}
	}
	return list
}

// BenchmarkSecond is the processor time that announcing 333 VIPs costs in a
// second, once they are known, on a real link.
func BenchmarkSecond(b *testing.B) {
	cable(b)
	a, _, _ := kernelRig(b)
	if _, err := a.Set(b.Context(), many(333, "eth0")); err != nil {
		b.Fatal(err)
	}
	time.Sleep(4 * time.Second)
	used := func() int64 {
		var u unix.Rusage
		must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(float64(used()-before)/1e6/float64(b.N), "cpu-ms/s")
}
