package l2

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// resolve is Resolve as text.
func (r *fixture) resolve(t *testing.T, link, addr string) string {
	t.Helper()
	began := time.Now()
	mac, ok := r.Resolve(t.Context(), link, netip.MustParseAddr(addr))
	return fmt.Sprintf("%s %t %dms", mac, ok, time.Since(began).Milliseconds())
}

func TestResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := newLAN("eth0", "eth1")
		r := newFixture(t, lan)
		check.Equal(t, r.resolve(t, "eth0", "10.0.0.7"), " false 70ms", "without Run")
		stop := r.run(t)
		defer func() { stop() }()
		lan.setHosts("eth0", "10.0.0.7", 0x17, 0x18)
		lan.setHosts("eth0", "2001:db8::7", 0x17)
		lan.setHosts("eth0", "10.9.0.7", 0x19)
		lan.setHosts("eth1", "2001:db8::8", 0x1a)
		lan.setHosts("eth0", "10.0.0.6", 0x0b) // our own other link
		for _, tt := range []struct{ link, addr, want, frames string }{
			{"eth0", "10.0.0.7", "02:00:00:00:00:17 true 0ms", "0.1s eth0 arp who has 10.0.0.7 tell 10.0.0.2"},
			{"eth0", "::ffff:10.0.0.7", "02:00:00:00:00:17 true 0ms", "0.1s eth0 arp who has 10.0.0.7 tell 10.0.0.2"},
			{"eth0", "2001:db8::7", "02:00:00:00:00:17 true 0ms", "0.1s eth0 ns who has 2001:db8::7 tell 2001:db8::2"},
			{"eth0", "10.9.0.7", "02:00:00:00:00:19 true 0ms", "0.1s eth0 arp who has 10.9.0.7 tell 0.0.0.0"},
			{"eth1", "2001:db8::8", "02:00:00:00:00:1a true 0ms", "0.1s eth1 ns who has 2001:db8::8 tell ::"},
			{"eth0", "10.0.0.2", " false 70ms", strings.Repeat("0.1s eth0 arp who has 10.0.0.2 tell 0.0.0.0\n ", 7)},
			{"eth0", "10.0.0.6", " false 70ms", strings.Repeat("0.1s eth0 arp who has 10.0.0.6 tell 10.0.0.2\n ", 2) + strings.Repeat("0.2s eth0 arp who has 10.0.0.6 tell 10.0.0.2\n ", 5)},
			{"eth7", "10.0.0.7", " false 70ms", ""},
		} {
			check.Equal(t, r.resolve(t, tt.link, tt.addr), tt.want, "%s on %s", tt.addr, tt.link)
			r.checkFrames(t, tt.addr+" on "+tt.link, tt.frames)
			synctest.Wait() // what other hosts have replied, too, has been read: it is no reply to the next request
		}
		// What a host sends without having been asked is no answer. The context bounds the time.
		lan.setAnswer("eth0 10.0.0.5", func(m neighborMessage) {
			lan.deliver("eth0", messageProbe.by(m.addr.String(), 0x15))
			lan.deliver("eth0", messageRequest.by(m.addr.String(), 0x15).asking("10.0.0.2"))
			lan.deliver("eth0", messageAnnouncement.by(m.addr.String(), 0x15))
		})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		if mac, ok := r.Resolve(ctx, "eth0", netip.MustParseAddr("10.0.0.5")); ok || time.Since(began) != 50*time.Millisecond {
			t.Errorf("a probe: %s %t after %v", mac, ok, time.Since(began))
		}
		check.Equal(t, r.poked(), 0, "pokes")
		// Nobody asks any more: nothing stays open.
		time.Sleep(requestsRemembered + 5*time.Second)
		synctest.Wait()
		check.Equal(t, r.lan.openSockets(), 0, "open sockets")
		check.Equal(t, r.resolve(t, "eth0", "10.0.0.7"), "02:00:00:00:00:17 true 0ms", "later")
		check.Lacks(t, r.log.Take(), "WARN")
	})
}

// Late answers, a host that answers only sometimes, and announcements beside.
func TestResolveLateReply(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		lan := r.lan
		r.set(t, "eth0 10.0.0.9", "", announce("eth0", "10.0.0.9"))
		synctest.Wait()
		asked := 0
		lan.setAnswer("eth0 10.0.0.7", func(m neighborMessage) {
			if asked++; asked == 3 {
				lan.deliver("eth0", messageReply.by("10.0.0.7", 0x17))
			}
		})
		check.Equal(t, r.resolve(t, "eth0", "10.0.0.7"), "02:00:00:00:00:17 true 20ms", "got")
		lan.setFault("send eth0", unix.ENOBUFS)
		check.Equal(t, r.resolve(t, "eth0", "10.0.0.7"), " false 70ms", "a full queue")
	})
}

// A host in another namespace answers, with and without an address of our own.
func TestKernelResolve(t *testing.T) {
	n := connectNeighbour(t)
	a, log, _ := newKernelAnnouncer(t)
	peer := n.link.Attrs().HardwareAddr.String()
	ask := func(addr string) (string, time.Duration) {
		began := time.Now()
		mac, _ := a.Resolve(t.Context(), "eth0", netip.MustParseAddr(addr))
		return mac, time.Since(began)
	}
	checkBoth := func(what string) {
		t.Helper()
		for _, addr := range []string{"10.0.0.1", "2001:db8::1"} {
			var got string
			check.True(t, 10*time.Second, "an answer", func() bool { got, _ = ask(addr); return got != "" }) // a busy machine may need two tries
			check.Equal(t, got, peer, "%s: who answers for %s; log:\n%s", what, addr, log)
		}
		for _, addr := range []string{"10.0.0.3", "2001:db8::3"} {
			if got, took := ask(addr); got != "" || took < 65*time.Millisecond || took > time.Second {
				t.Errorf("%s: %q answers for %s after %v", what, got, addr, took)
			}
		}
	}
	checkBoth("by probes")
	list := check.Value(n.handle.NeighList(n.link.Attrs().Index, netlink.FAMILY_ALL))(t)
	for _, e := range list {
		if e.HardwareAddr.String() == mac.String() {
			t.Errorf("a probe taught the neighbour %v", e)
		}
	}
	// From addresses of our own, and many at once.
	eth0 := check.Value(netlink.LinkByName("eth0"))(t)
	own := []string{"10.0.0.2/24", "2001:db8::2/64"}
	link := kernelLink(t, "eth0")
	link.Prefixes = []netip.Prefix{netip.MustParsePrefix(own[0]), netip.MustParsePrefix(own[1])}
	for _, x := range own {
		addr := check.Value(netlink.ParseAddr(x))(t)
		addr.Flags = unix.IFA_F_NODAD
		check.OK(t, netlink.AddrAdd(eth0, addr))
	}
	a.opts.Links = func() []vip.Link { return []vip.Link{link} }
	checkBoth("from an own address")
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			mac, ok := a.Resolve(t.Context(), "eth0", netip.MustParseAddr("10.0.0.1"))
			if _, err := net.ParseMAC(mac); !ok || err != nil {
				t.Errorf("one of many: %q %t", mac, ok)
			}
		})
	}
	all.Wait()
	// Who has the address no more is asked in vain, though our kernel still knows it.
	addr := check.Value(netlink.ParseAddr("10.0.0.1/24"))(t)
	check.OK(t, n.handle.AddrDel(n.link, addr))
	check.True(t, 10*time.Second, "silence, once the last answers to those many are heard", func() bool { got, _ := ask("10.0.0.1"); return got == "" })
}
