package netif

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestRenewalsDoNotWaitForManyNewAddresses: 5000 addresses are bound beside six, and removed, and none of the six comes near its end.
func TestRenewalsDoNotWaitForManyNewAddresses(t *testing.T) {
	for _, bits := range []int{32, 16} {
		t.Run(fmt.Sprint(bits), func(t *testing.T) {
			l := newVeth(t, "eth0", "10.0.0.5/24")
			r, _ := kernelRig(t)
			var held, others []vip.Address
			for i := range 5006 {
				a := addr(fmt.Sprintf("10.1.%d.%d/%d", i>>8, i&255, bits), "eth0")
				if i < 5000 {
					others = append(others, a)
				} else {
					held = append(held, a)
				}
			}
			check.Value(r.Set(t.Context(), held))(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for _, want := range [][]vip.Address{slices.Concat(held, others), held} {
					began := time.Now()
					if _, err := r.Set(t.Context(), want); err != nil {
						t.Errorf("Set: %v", err)
					}
					t.Logf("Set of %d took %v", len(want), time.Since(began).Round(time.Millisecond))
				}
			}()
			least := lifetime
			for end := false; !end; {
				least = min(least, leastLifetime(t, l, held))
				select {
				case <-done:
					end = true
				case <-time.After(100 * time.Millisecond):
				}
			}
			// The lifetime counts down by whole seconds, of which the first is over at once.
			t.Logf("the least lifetime was %d s", least)
			check.Between(t, least, lifetime-2, lifetime, "seconds that an address had to live")
		})
	}
}

// leastLifetime is how many seconds the kernel will keep the first of the addresses to go; 0 if it has dropped one.
func leastLifetime(t *testing.T, l netlink.Link, list []vip.Address) int {
	t.Helper()
	left := map[string]int{}
	all, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil { // it changed while it was read
		return lifetime
	}
	for _, a := range all {
		left[a.IP.String()] = a.ValidLft
	}
	least := lifetime
	for _, a := range list {
		least = min(least, left[a.Addr.String()])
	}
	return least
}

// TestKernelSurvivesFlood: of an address with LocalDelivery conntrack knows 20,000 connections that nobody has answered, as a host makes them that sends first
// packets to it by way of this node. When the address comes, the one that is there already is renewed as ever, and half of these connections are forgotten.
func TestKernelSurvivesFlood(t *testing.T) {
	const flood = 20000
	l := newVeth(t, "eth0", "10.0.0.1/24")
	r, _ := kernelRig(t)
	held, of := addr("10.0.0.60/32", "eth0"), addr("10.0.0.50/32", "eth0")
	of.LocalDelivery = true
	h := check.Value(netlink.NewHandle(unix.NETLINK_NETFILTER))(t)
	defer h.Close()
	client, to := net.IPv4(10, 0, 0, 9), net.IP(of.Addr.AsSlice())
	for port := uint16(1024); port < 1024+flood; port++ {
		check.OK(t, h.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET, TimeOut: 600, ProtoInfo: &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_SYN_SENT},
			Forward: netlink.IPTuple{SrcIP: client, DstIP: to, SrcPort: port, DstPort: 6443, Protocol: unix.IPPROTO_TCP},
			Reverse: netlink.IPTuple{SrcIP: to, DstIP: client, SrcPort: 6443, DstPort: port, Protocol: unix.IPPROTO_TCP},
		}))
	}
	t.Cleanup(func() { check.OK(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) })
	check.Value(r.Set(t.Context(), []vip.Address{held}))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		began := time.Now()
		if _, err := r.Set(t.Context(), []vip.Address{held, of}); err != nil {
			t.Errorf("Set: %v", err)
		}
		t.Logf("Set took %v", time.Since(began).Round(time.Millisecond))
	}()
	least := lifetime
	check.True(t, time.Minute, "a warning that not all connections are forgotten", func() bool {
		least = min(least, leastLifetime(t, l, []vip.Address{held}))
		return strings.Contains(r.log.Take(), "may be lost")
	})
	<-done
	t.Logf("the least lifetime was %d s", least)
	check.Between(t, least, lifetime-2, lifetime, "seconds that an address had to live")
	left := len(check.Value(netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET))(t))
	if least, most := max(0, flood-int(1+forgetFor/time.Second)*maxForgotten), flood-maxForgotten+100; left < least || left > most { // a dump may have one twice
		t.Errorf("conntrack still has %d connections, want %d to %d", left, least, most)
	}
}

// BenchmarkRenewal is one renewal of 333 addresses of both families, which a node that carries so many does twice a second.
func BenchmarkRenewal(b *testing.B) {
	newVeth(b, "eth0", "10.0.0.5/24")
	logger, _ := log()
	n := check.Value(New(Options{Log: logger, Poke: func() {}, Tenure: always, Interface: "eth0"}))(b)
	check.Value(n.Set(b.Context(), many(333, "eth0")))(b)
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
	r, _ := kernelRig(b)
	want := many(333, "eth0")
	for b.Loop() {
		check.Value(r.Set(b.Context(), want))(b)
		check.Value(r.Set(b.Context(), nil))(b)
	}
}

// BenchmarkSecondOfRenewals is the processor time that 333 addresses cost in a second, of
// this process, which also receives its own renewals.
func BenchmarkSecondOfRenewals(b *testing.B) {
	newVeth(b, "eth0", "10.0.0.5/24")
	r, _ := kernelRig(b)
	check.Value(r.Set(b.Context(), many(333, "eth0")))(b)
	time.Sleep(time.Second)
	used := check.CPU(b, func() {
		for b.Loop() {
			time.Sleep(time.Second)
		}
	})
	b.ReportMetric(used.Seconds()*1e3/float64(b.N), "cpu-ms/s")
}
