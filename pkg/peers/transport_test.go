package peers_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/vip"
)

// TestKernelTransport: on loopback, both families: packets, an open port, a closed one,
// and nothing left behind.
func TestKernelTransport(t *testing.T) {
	before := runtime.NumGoroutine()
	for _, addr := range []string{"127.0.0.9", "::1"} {
		here := netip.AddrPortFrom(netip.MustParseAddr(addr), port)
		w := peers.KernelTransport()
		s, err := w.Listen(here)
		must(t, err)
		if _, err := w.Listen(here); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: a second time: %v", addr, err)
		}
		must(t, s.WriteTo([]byte("hello"), here))
		b := make([]byte, 100)
		n, from, err := s.ReadFrom(b)
		if err != nil || string(b[:n]) != "hello" || from != here {
			t.Errorf("%s: got %q from %v, %v", addr, b[:n], from, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := w.Dial(ctx, here.Addr(), here); err != nil {
			t.Errorf("%s: an open port: %v", addr, err)
		}
		must(t, s.Close())
		if _, _, err := s.ReadFrom(b); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: after Close: %v", addr, err)
		}
		if err := w.Dial(ctx, here.Addr(), here); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: a closed port: %v", addr, err)
		}
	}
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// TestRunLeavesNothing: real sockets, and a Run that ends.
func TestRunLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("loop", func(t *testing.T) {
		l := newLoop(t, 3, 3)
		for i := range l.nodes {
			l.await(t, i, vip.Alive)
		}
	})
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
	s, err := peers.KernelTransport().Listen(netip.MustParseAddrPort("127.77.0.0:7947"))
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
}
