package peers_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestKernelTransport: on loopback, both families: packets, an open port, a closed one, and nothing left behind.
func TestKernelTransport(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, addr := range []string{"127.0.0.9", "::1"} {
		here := netip.AddrPortFrom(netip.MustParseAddr(addr), port)
		w := peers.KernelTransport()
		s := check.Value(w.Listen(here))(t)
		_, err := w.Listen(here)
		check.Is(t, err, syscall.EADDRINUSE, "%s: a second time", addr)
		check.OK(t, s.WriteTo([]byte("hello"), here))
		b := make([]byte, 100)
		n, from, err := s.ReadFrom(b)
		if err != nil || string(b[:n]) != "hello" || from != here {
			t.Errorf("%s: got %q from %v, %v", addr, b[:n], from, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		check.OK(t, w.Dial(ctx, here.Addr(), here))
		check.OK(t, s.Close())
		_, _, err = s.ReadFrom(b)
		check.Is(t, err, net.ErrClosed, "%s: after Close", addr)
		check.Is(t, w.Dial(ctx, here.Addr(), here), syscall.ECONNREFUSED, "%s: a closed port", addr)
	}
	awaitGoroutines(t, before)
}

// TestSilentNeighbors: packets for neighbors whose MAC address the kernel asks for in vain fill the send buffer; nothing waits for that.
func TestSilentNeighbors(t *testing.T) {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "silent0"}, PeerName: "silent1"}
	check.OK(t, netlink.LinkAdd(link))
	t.Cleanup(func() { check.OK(t, netlink.LinkDel(link)) })
	check.OK(t, netlink.LinkSetUp(link))
	check.OK(t, netlink.LinkSetUp(check.Value(netlink.LinkByName("silent1"))(t)))
	check.OK(t, netlink.AddrAdd(link, check.Value(netlink.ParseAddr("10.12.0.5/24"))(t)))
	s := check.Value(peers.KernelTransport().Listen(netip.MustParseAddrPort("10.12.0.5:7947")))(t)
	t.Cleanup(func() { check.OK(t, s.Close()) })
	began, full := time.Now(), false
	for i := 0; i < 20000 && !full && time.Since(began) < 10*time.Second; i++ {
		full = errors.Is(s.WriteTo(make([]byte, 500), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 12, 0, byte(100 + i%100)}), port)), syscall.EAGAIN)
	}
	if took := time.Since(began); !full || took > time.Second {
		t.Errorf("the send buffer is full: %v, after %v", full, took)
	}
}

// awaitGoroutines waits until no more goroutines run than before.
func awaitGoroutines(t *testing.T, before int) {
	t.Helper()
	check.Until(t, 5*time.Second, "all goroutines end", func() error {
		if n := runtime.NumGoroutine(); n > before {
			return fmt.Errorf("%d run, %d before", n, before)
		}
		return nil
	})
}

// TestRunLeavesNothing: real sockets, and a Run that ends.
func TestRunLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("loop", func(t *testing.T) {
		l := newLoopbackCluster(t, 3, 3)
		for i := range l.nodes {
			l.await(t, i, vip.Alive)
		}
	})
	awaitGoroutines(t, before)
	s := check.Value(peers.KernelTransport().Listen(netip.MustParseAddrPort("127.77.0.0:7947")))(t)
	_ = s.Close()
}
