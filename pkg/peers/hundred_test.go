package peers_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/peers/peerstest"
	"github.com/heraldvip/herald/pkg/vip"
)

// A loop is nodes on addresses of the loopback link, which can be cut off.
type loop struct {
	cut   sync.Map // by address
	nodes []*peers.Peers
	addrs []netip.Addr
}

// newLoop runs n nodes in this process, of a cluster of so many.
func newLoop(t *testing.T, n, of int) *loop {
	t.Helper()
	l := &loop{}
	all := make(map[string]netip.AddrPort)
	for i := range n {
		l.addrs = append(l.addrs, netip.AddrFrom4([4]byte{127, 77, byte(i >> 8), byte(i)}))
		all[fmt.Sprintf("n%d", i)] = netip.AddrPortFrom(l.addrs[i], port)
	}
	for i := n; i < of; i++ {
		all[fmt.Sprintf("n%d", i)] = netip.AddrPort{} // where it is nobody knows yet
	}
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	t.Cleanup(func() { cancel(); tasks.Wait() })
	for i, addr := range l.addrs {
		name := fmt.Sprintf("n%d", i)
		p := peers.New(peers.Options{
			Node: name, Port: port, Log: slog.New(slog.DiscardHandler),
			Key:     func() [][]byte { return [][]byte{keyA} },
			Address: func() netip.Addr { return addr },
			Nodes:   peerstest.Nodes(name, all),
			Answers: func(ctx context.Context, to netip.Addr) bool {
				if l.passes(addr, to) {
					return true
				}
				time.Sleep(120 * time.Millisecond) // as package l2 takes
				return false
			},
			Wire: cutWire{peers.KernelWire(), l},
		})
		l.nodes = append(l.nodes, p)
		tasks.Go(func() { _ = p.Run(ctx) })
	}
	return l
}

func (l *loop) passes(a, b netip.Addr) bool {
	_, from := l.cut.Load(a)
	_, to := l.cut.Load(b)
	return !from && !to
}

// await waits until all but one see that one so.
func (l *loop) await(t *testing.T, of int, state vip.Seen) {
	t.Helper()
	name := fmt.Sprintf("n%d", of)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		ok := true
		for i, p := range l.nodes {
			if i != of && p.Sights()[name].State != state {
				ok = false
				break
			}
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s to be %s", name, state)
		}
	}
}

// A cutWire drops what passes a cut.
type cutWire struct {
	peers.Wire
	loop *loop
}

func (w cutWire) Listen(at netip.AddrPort) (peers.Socket, error) {
	s, err := w.Wire.Listen(at)
	return cutSocket{s, w.loop, at.Addr()}, err
}

func (w cutWire) Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) error {
	if !w.loop.passes(from, to.Addr()) {
		<-ctx.Done()
		return ctx.Err()
	}
	return w.Wire.Dial(ctx, from, to)
}

type cutSocket struct {
	peers.Socket
	loop *loop
	addr netip.Addr
}

func (s cutSocket) WriteTo(b []byte, to netip.AddrPort) error {
	if !s.loop.passes(s.addr, to.Addr()) {
		return net.ErrWriteToConnected
	}
	return s.Socket.WriteTo(b, to)
}

// TestMeasureHundred measures how long it takes until all see a node dead in a cluster of
// 100: HERALD_MEASURE=1. HERALD_NODES of them run, on the cores of this machine; the
// others are only known of, and the periods are those of 100 nodes.
func TestMeasureHundred(t *testing.T) {
	if os.Getenv("HERALD_MEASURE") == "" {
		t.Skip("HERALD_MEASURE is not set")
	}
	n := 10
	if text := os.Getenv("HERALD_NODES"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		must(t, err)
	}
	const times = 25
	l := newLoop(t, n, 100)
	for i := range n {
		l.await(t, i, vip.Alive)
	}
	time.Sleep(5 * time.Second)
	var took []time.Duration
	for i := range times {
		i := i % n
		began := time.Now()
		l.cut.Store(l.addrs[i], true)
		l.await(t, i, vip.Dead)
		took = append(took, time.Since(began))
		l.cut.Delete(l.addrs[i])
		for j := range n {
			l.await(t, j, vip.Alive)
		}
		time.Sleep(3*time.Second + time.Duration(i)*13*time.Millisecond)
	}
	report(t, "cut", took)
}
