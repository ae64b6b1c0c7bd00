package netif

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// What is counted is published when it has changed, and for a while after what is to be counted has.
func TestConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
		var changes, lists atomic.Int32
		var known atomic.Pointer[[]netip.Addr]
		var fault atomic.Pointer[error]
		logger, logged := log()
		c := NewConnections(logger, func() { changes.Add(1) })
		other := netip.MustParseAddr("192.0.2.9")
		c.list = func(found func(to, from netip.Addr)) error {
			lists.Add(1)
			for i, x := range *known.Load() {
				if i == 0 {
					found(other, x) // egress
				} else {
					found(x, other)
				}
			}
			return *fault.Load()
		}
		know := func(err error, all ...netip.Addr) { known.Store(&all); fault.Store(&err) }
		stop := check.Run(t, c)
		defer stop()
		time.Sleep(time.Minute)
		if lists.Load() > 0 || c.Count() != nil {
			t.Errorf("%d counts of nothing, result %v", lists.Load(), c.Count())
		}
		know(nil, a, a, b, other)
		began := time.Now()
		c.Put([]netip.Addr{a, b})
		time.Sleep(time.Second)
		if got := c.Count(); got == nil || !maps.Equal(got.VIPs, map[netip.Addr]int{a: 2, b: 1}) || got.At != began.UnixMilli() {
			t.Errorf("counted %+v", got)
		}
		time.Sleep(time.Minute)
		if changes.Load() != 4 || !c.Count().None(netip.MustParseAddr("192.0.2.7"), began.Add(-5*time.Second)) {
			t.Errorf("%d changes, want those of the first 20 s; last %+v", changes.Load(), c.Count())
		}
		know(nil)
		time.Sleep(5 * time.Second)
		if got := c.Count(); changes.Load() != 5 || len(got.VIPs) > 0 {
			t.Errorf("%d changes, last %+v", changes.Load(), got)
		}
		know(errors.New("not permitted"))
		time.Sleep(time.Minute)
		if got, text := c.Count(), logged.String(); got != nil || strings.Count(text, "not permitted") != 1 {
			t.Errorf("%+v after a fault, log\n%s", got, text)
		}
		know(nil)
		time.Sleep(5 * time.Second)
		if c.Count() == nil {
			t.Error("not counted after the fault")
		}
		many := make([]netip.Addr, maxCounted+1)
		for i, x := 0, b; i < len(many); i, x = i+1, x.Next() {
			many[i] = x
		}
		c.Put(many)
		know(nil, many[:maxCounted]...)
		time.Sleep(time.Minute)
		if got := c.Count(); got == nil || len(got.VIPs) != maxCounted {
			t.Error("not counted, of as many VIPs as a lease has room for")
		}
		know(nil, many...)
		time.Sleep(time.Minute)
		if got, text := c.Count(), logged.String(); got != nil || strings.Count(text, "at most 2000") != 1 {
			t.Errorf("%d counts of more VIPs than a lease has room for, log\n%s", len(got.VIPs), text)
		}
		c.Put(nil)
		time.Sleep(10 * time.Second)
		if c.Count() != nil {
			t.Errorf("%+v though nothing is to be counted", c.Count())
		}
	})
}

// Also where a count takes so long that the next one is more than 20 s later, two are published of what is to be counted: who reads the first can't
// tell whether it began before the last VIP moved.
func TestConnectionsAreCountedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changes atomic.Int32
		logger, _ := log()
		c := NewConnections(logger, func() { changes.Add(1) })
		c.list = func(func(to, from netip.Addr)) error {
			time.Sleep(time.Second)
			return nil
		}
		stop := check.Run(t, c)
		defer stop()
		synctest.Wait()
		c.Put([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
		time.Sleep(10 * time.Minute)
		if changes.Load() != 2 {
			t.Errorf("%d counts are published, want 2", changes.Load())
		}
	})
}

// Of the connections that conntrack knows and that have not ended the ends are listed by which a VIP is found: where they go, and where answers go, which
// is the VIP for those that pods have from it.
func TestKernelListsConnections(t *testing.T) {
	newVeth(t, "eth0", "10.0.0.1/24", "fd00::1/64")
	ip := func(text string) net.IP { return netip.MustParseAddr(text).AsSlice() }
	for _, x := range []struct {
		family            netlink.InetFamily
		pod, server, from string // from is the source after translation
		state             uint8
	}{
		{unix.AF_INET, "10.1.0.2", "192.0.2.1", "10.0.0.50", nl.TCP_CONNTRACK_ESTABLISHED},
		{unix.AF_INET6, "fd01::2", "2001:db8::1", "fd00::50", nl.TCP_CONNTRACK_ESTABLISHED},
		{unix.AF_INET, "10.1.0.3", "192.0.2.2", "10.0.0.51", nl.TCP_CONNTRACK_TIME_WAIT},
	} {
		check.OK(t, netlink.ConntrackCreate(netlink.ConntrackTable, x.family, &netlink.ConntrackFlow{
			FamilyType: uint8(x.family), TimeOut: 60, ProtoInfo: &netlink.ProtoInfoTCP{State: x.state},
			Forward: netlink.IPTuple{SrcIP: ip(x.pod), DstIP: ip(x.server), SrcPort: 1001, DstPort: 443, Protocol: unix.IPPROTO_TCP},
			Reverse: netlink.IPTuple{SrcIP: ip(x.server), DstIP: ip(x.from), SrcPort: 443, DstPort: 1001, Protocol: unix.IPPROTO_TCP},
		}))
	}
	t.Cleanup(func() { check.OK(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) })
	var got []string
	check.OK(t, listConnections(func(to, from netip.Addr) { got = append(got, fmt.Sprint(to, " ", from)) }))
	slices.Sort(got)
	if want := []string{"192.0.2.1 10.0.0.50", "2001:db8::1 fd00::50"}; !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
}

// When an address comes, conntrack forgets the flows to it that were not translated, but for TCP connections that were answered, and
// TCP connections that have ended. What has been translated, and what is for other addresses, stays.
func TestKernelForgetsStale(t *testing.T) {
	newVeth(t, "eth0", "10.0.0.1/24", "fd00::1/64")
	families := []netlink.InetFamily{unix.AF_INET, unix.AF_INET6}
	pod := map[bool]string{true: "10.1.0.2", false: "fd01::2"} // by whether it is IPv4's
	known := func(of netip.Addr, port uint16, protocol uint8, state uint8, translated bool) {
		t.Helper()
		family, from := families[0], "10.0.0.9"
		if of.Is6() {
			family, from = families[1], "fd00::9"
		}
		client, server := net.ParseIP(from), net.IP(of.AsSlice())
		if translated {
			server = net.ParseIP(pod[of.Is4()])
		}
		flow := &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 60,
			Forward: netlink.IPTuple{SrcIP: client, DstIP: of.AsSlice(), SrcPort: port, DstPort: 6443, Protocol: protocol},
			Reverse: netlink.IPTuple{SrcIP: server, DstIP: client, SrcPort: 6443, DstPort: port, Protocol: protocol},
		}
		if protocol == unix.IPPROTO_TCP {
			flow.ProtoInfo = &netlink.ProtoInfoTCP{State: state}
		}
		check.OK(t, netlink.ConntrackCreate(netlink.ConntrackTable, family, flow))
	}
	vips := []netip.Addr{netip.MustParseAddr("10.0.0.50"), netip.MustParseAddr("fd00::50")}
	var want []vip.Address
	for _, a := range vips {
		const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
		known(a, 1001, tcp, nl.TCP_CONNTRACK_SYN_SENT, false)
		known(a, 1002, tcp, nl.TCP_CONNTRACK_ESTABLISHED, true)
		known(a.Next(), 1003, tcp, nl.TCP_CONNTRACK_SYN_SENT, false)
		known(a, 1004, tcp, nl.TCP_CONNTRACK_SYN_SENT, true)
		known(a, 1005, tcp, nl.TCP_CONNTRACK_TIME_WAIT, true)
		known(a, 1006, tcp, nl.TCP_CONNTRACK_CLOSE, true)
		known(a, 1007, tcp, nl.TCP_CONNTRACK_LAST_ACK, true)
		known(a, 1008, udp, 0, false)
		known(a, 1009, udp, 0, true)
		known(a.Next(), 1010, udp, 0, false)
		want = append(want, vip.Address{Addr: a, Bits: a.BitLen(), Link: "eth0", LocalDelivery: a.Is6()})
	}
	n, stop := kernelRig(t)
	defer stop()
	check.Value(n.Set(t.Context(), want))(t)
	check.Until(t, 10*time.Second, "conntrack to forget the stale ones", func() error {
		var left []string
		for _, family := range families {
			all, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, c := range all {
				left = append(left, fmt.Sprint(c.Forward.DstIP, " ", c.Forward.SrcPort))
			}
		}
		slices.Sort(left)
		if want := []string{
			"10.0.0.50 1002", "10.0.0.50 1004", "10.0.0.50 1007", "10.0.0.50 1009", "10.0.0.51 1003", "10.0.0.51 1010",
			"fd00::50 1002", "fd00::50 1004", "fd00::50 1007", "fd00::50 1009", "fd00::51 1003", "fd00::51 1010",
		}; !slices.Equal(left, want) {
			return fmt.Errorf("conntrack has %q, want %q", left, want)
		}
		return nil
	})
}
