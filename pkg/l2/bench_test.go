package l2

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"golang.org/x/sys/unix"
)

// manyAnnouncements is n announcements, IPv4 and IPv6 by turns.
func manyAnnouncements(n int, link string) []vip.Announcement {
	list := make([]vip.Announcement, n)
	for i := range list {
		list[i] = announce(link, fmt.Sprintf("10.1.%d.%d", i>>8, i&255))
		if i%2 == 1 {
			list[i].Addr = netip.MustParseAddr(fmt.Sprintf("2001:db8::1:%x", i))
		}
	}
	return list
}

// BenchmarkSecond is the processor time that announcing 333 VIPs costs in a second, once they are known, on a real link.
func BenchmarkSecond(b *testing.B) {
	connectNeighbour(b)
	a, _, _ := newKernelAnnouncer(b)
	if _, err := a.Set(b.Context(), manyAnnouncements(333, "eth0")); err != nil {
		b.Fatal(err)
	}
	time.Sleep(4 * time.Second)
	used := func() int64 {
		var u unix.Rusage
		check.OK(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(float64(used()-before)/1e6/float64(b.N), "cpu-ms/s")
}
