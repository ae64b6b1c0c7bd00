package netif

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"golang.org/x/sys/unix"
)

// BenchmarkRenewal is one renewal of 333 addresses of both families, which a node that carries so many does twice a second.
func BenchmarkRenewal(b *testing.B) {
	newVeth(b, "eth0", "10.0.0.5/24")
	logger, _ := log()
	n, err := New(Options{Log: logger, Poke: func() {}, Tenure: always, Interface: "eth0"})
	check.OK(b, err)
	_, err = n.Set(b.Context(), many(333, "eth0"))
	check.OK(b, err)
	for b.Loop() {
		n.renew()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/333, "µs/address")
}

// many is n addresses, IPv4 and IPv6 by turns.
func many(n int, link string) []vip.Address {
	list := make([]vip.Address, n)
	for i := range list {
		list[i] = addr(fmt.Sprintf("10.1.%d.%d/32", i>>8, i&255), link)
		if i%2 == 1 {
			list[i] = addr(netip.MustParsePrefix(fmt.Sprintf("2001:db8::1:%x/128", i)).String(), link)
		}
	}
	return list
}

// BenchmarkTakeOver binds 333 addresses at once, and removes them.
func BenchmarkTakeOver(b *testing.B) {
	newVeth(b, "eth0", "10.0.0.5/24")
	r, stop := kernelRig(b)
	defer stop()
	want := many(333, "eth0")
	for b.Loop() {
		_, err := r.Set(b.Context(), want)
		check.OK(b, err)
		_, err = r.Set(b.Context(), nil)
		check.OK(b, err)
	}
}

// BenchmarkSecondOfRenewals is the processor time that 333 addresses cost in a second, of
// this process, which also receives its own renewals.
func BenchmarkSecondOfRenewals(b *testing.B) {
	newVeth(b, "eth0", "10.0.0.5/24")
	r, stop := kernelRig(b)
	defer stop()
	_, err := r.Set(b.Context(), many(333, "eth0"))
	check.OK(b, err)
	time.Sleep(time.Second)
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
