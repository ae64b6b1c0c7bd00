package netif

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestKernelSurvivesFlood: of an address with LocalDelivery conntrack knows 20,000 connections that nobody has answered, as a host makes them that sends first
// packets to it by way of this node. When the address comes, the one that is there already is renewed as ever, and half of these connections are forgotten.
func TestKernelSurvivesFlood(t *testing.T) {
	const flood = 20000
	l := newVeth(t, "eth0", "10.0.0.1/24")
	r, stop := kernelRig(t)
	defer stop()
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
		return strings.Contains(r.log.String(), "may not be served")
	})
	<-done
	if t.Logf("the least lifetime was %d s", least); least < lifetime-2 {
		t.Errorf("an address had %d s to live", least)
	}
	left := len(check.Value(netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET))(t))
	if least, most := max(0, flood-len(forgetTimes)*maxForgotten), flood-maxForgotten+100; left < least || left > most { // a dump may have one twice
		t.Errorf("conntrack still has %d connections, want %d to %d", left, least, most)
	}
}
