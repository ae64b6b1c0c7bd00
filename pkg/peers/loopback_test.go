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
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A loopbackCluster is nodes of this process on addresses of the loopback link, which can be cut off.
type loopbackCluster struct {
	cut   sync.Map // by address
	nodes []*peers.Peers
	addrs []netip.Addr
}

// newLoopbackCluster runs n nodes in this process, which know of as many more as make of.
func newLoopbackCluster(t testing.TB, n, of int) *loopbackCluster {
	t.Helper()
	l := &loopbackCluster{}
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
			Node: name, Port: port, Log: slog.New(slog.DiscardHandler), Poke: func() {},
			Keys:    func() [][]byte { return [][]byte{keyA} },
			Address: func() netip.Addr { return addr },
			Nodes:   otherNodes(name, all),
			Answers: func(ctx context.Context, to netip.Addr) bool {
				if l.passes(addr, to) {
					return true
				}
				time.Sleep(120 * time.Millisecond) // as package l2 takes
				return false
			},
			Transport: cutTransport{peers.KernelTransport(), l},
		})
		l.nodes = append(l.nodes, p)
		tasks.Go(func() { _ = p.Run(ctx) })
	}
	return l
}

func (l *loopbackCluster) passes(a, b netip.Addr) bool {
	_, from := l.cut.Load(a)
	_, to := l.cut.Load(b)
	return !from && !to
}

// await waits until a node is in a state for all others.
func (l *loopbackCluster) await(t testing.TB, of int, state vip.Liveness) {
	t.Helper()
	name := fmt.Sprintf("n%d", of)
	check.Until(t, 30*time.Second, fmt.Sprintf("%s is %s", name, state), func() error {
		for i, p := range l.nodes {
			if s := p.Statuses()[name]; i != of && s.Liveness != state {
				return fmt.Errorf("for n%d it is %s", i, s.Liveness)
			}
		}
		return nil
	})
}

// A cutTransport drops what goes to or from a node that is cut off.
type cutTransport struct {
	peers.Transport
	loop *loopbackCluster
}

func (w cutTransport) Listen(at netip.AddrPort) (peers.Socket, error) {
	s, err := w.Transport.Listen(at)
	return cutSocket{s, w.loop, at.Addr()}, err
}

func (w cutTransport) Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) error {
	if !w.loop.passes(from, to.Addr()) {
		<-ctx.Done()
		return ctx.Err()
	}
	return w.Transport.Dial(ctx, from, to)
}

type cutSocket struct {
	peers.Socket
	loop *loopbackCluster
	addr netip.Addr
}

func (s cutSocket) WriteTo(b []byte, to netip.AddrPort) error {
	if !s.loop.passes(s.addr, to.Addr()) {
		return net.ErrWriteToConnected
	}
	return s.Socket.WriteTo(b, to)
}

// BenchmarkHundred is how long it takes until all see a node dead in a cluster of 100. HERALD_NODES of them run, on the cores of this
// machine; the others are only known of, and the periods are those of 100 nodes.
func BenchmarkHundred(b *testing.B) {
	n := 10
	if text := os.Getenv("HERALD_NODES"); text != "" {
		n = check.Value(strconv.Atoi(text))(b)
	}
	l := newLoopbackCluster(b, n, 100)
	all := func() {
		for i := range n {
			l.await(b, i, vip.Alive)
			name := fmt.Sprintf("n%d", i)
			check.True(b, 30*time.Second, "all nodes have probed "+name, func() bool {
				for j, p := range l.nodes {
					if j != i && !p.Detectable(name) {
						return false
					}
				}
				return true
			})
		}
	}
	all()
	var took []time.Duration
	for b.Loop() {
		i := len(took) % n
		began := time.Now()
		l.cut.Store(l.addrs[i], true)
		l.await(b, i, vip.Dead)
		took = append(took, time.Since(began))
		l.cut.Delete(l.addrs[i])
		all()
		time.Sleep(time.Duration(len(took)) * 13 * time.Millisecond) // at another moment of the transmit interval
	}
	reportTimes(b, took)
}
