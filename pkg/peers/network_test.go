package peers_test

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/peers"
)

// A network is a simulated link on which each node has one address. All faults are off at first. It works under testing/synctest.
type network struct {
	mu      sync.Mutex // guards what follows
	random  *rand.Rand
	delay   time.Duration
	loss    float64
	sockets map[netip.AddrPort]*simulatedSocket
	down    map[netip.Addr]bool    // off the link, as if its cable were pulled
	blocked map[netip.Addr]bool    // its kernel answers, but its port drops what comes in
	refuses map[netip.Addr]bool    // its TCP port is closed, whatever listens on UDP
	broken  map[[2]netip.Addr]bool // from the first to the second nothing passes
	sent    map[[2]netip.Addr]int  // how many packets the first has sent to the second
}

// newNetwork makes a network that delays packets by up to 0.5 ms. With the same seed the same packets are lost.
func newNetwork(seed uint64) *network {
	return &network{
		random: rand.New(rand.NewPCG(seed, 0)), delay: 500 * time.Microsecond,
		sockets: make(map[netip.AddrPort]*simulatedSocket), down: make(map[netip.Addr]bool),
		blocked: make(map[netip.Addr]bool), refuses: make(map[netip.Addr]bool), broken: make(map[[2]netip.Addr]bool), sent: make(map[[2]netip.Addr]int),
	}
}

// lose has that share of packets lost, from 0 to 1.
func (n *network) lose(share float64) { n.with(func() { n.loss = share }) }

// cut takes a node off the link, or puts it back.
func (n *network) cut(node netip.Addr, cut bool) { n.with(func() { n.down[node] = cut }) }

// block has a node drop what comes in for its port, or not.
func (n *network) block(node netip.Addr, block bool) { n.with(func() { n.blocked[node] = block }) }

// refuse has a node refuse TCP connections, or not.
func (n *network) refuse(node netip.Addr, refuse bool) { n.with(func() { n.refuses[node] = refuse }) }

// breakPath stops what goes from one node to another, or lets it pass.
func (n *network) breakPath(from, to netip.Addr, broken bool) {
	n.with(func() { n.broken[[2]netip.Addr{from, to}] = broken })
}

// endFaults ends all faults.
func (n *network) endFaults() {
	n.with(func() { n.loss = 0; clear(n.down); clear(n.blocked); clear(n.refuses); clear(n.broken) })
}

func (n *network) with(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// passes reports whether a frame gets from one node to another. n.mu is held.
func (n *network) passes(from, to netip.Addr) bool {
	return !n.down[from] && !n.down[to] && !n.broken[[2]netip.Addr{from, to}]
}

// answered reports whether one of so many requests, and its answer, is not lost. n.mu is held.
func (n *network) answered(requests int) bool {
	for range requests {
		arrives, returns := n.random.Float64() >= n.loss, n.random.Float64() >= n.loss
		if arrives && returns {
			return true
		}
	}
	return false
}

// answers is peers.Options.Answers for a node: whether the kernel at to answers.
func (n *network) answers(from netip.Addr) func(context.Context, netip.Addr) bool {
	return func(ctx context.Context, to netip.Addr) bool {
		n.mu.Lock()
		ok := n.passes(from, to) && n.passes(to, from) && n.answered(3)
		n.mu.Unlock()
		if ok {
			time.Sleep(2 * n.delay)
			return true
		}
		<-ctx.Done()
		return false
	}
}

// Listen implements peers.Transport.
func (n *network) Listen(at netip.AddrPort) (peers.Socket, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sockets[at] != nil {
		return nil, syscall.EADDRINUSE
	}
	s := &simulatedSocket{net: n, at: at, in: make(chan sentPacket, 1024), closed: make(chan struct{})}
	n.sockets[at] = s
	return s, nil
}

// Dial implements peers.Transport.
func (n *network) Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) error {
	n.mu.Lock()
	open := n.sockets[to] != nil
	passes := n.passes(from, to.Addr()) && n.passes(to.Addr(), from) && n.answered(1) && !n.blocked[to.Addr()] && !n.blocked[from]
	n.mu.Unlock()
	switch {
	case !passes:
		<-ctx.Done()
		return ctx.Err()
	case !open, n.refusing(to.Addr()):
		return syscall.ECONNREFUSED
	}
	return nil
}

func (n *network) refusing(a netip.Addr) (refuses bool) {
	n.with(func() { refuses = n.refuses[a] })
	return refuses
}

// otherNodes is peers.Options.Nodes for a node among all.
func otherNodes(self string, all map[string]netip.AddrPort) func() map[string]netip.AddrPort {
	return func() map[string]netip.AddrPort {
		others := maps.Clone(all)
		delete(others, self)
		return others
	}
}

type sentPacket struct {
	bytes []byte
	from  netip.AddrPort
}

type simulatedSocket struct {
	net    *network
	at     netip.AddrPort
	in     chan sentPacket
	once   sync.Once
	closed chan struct{}
}

// WriteTo implements peers.Socket.
func (s *simulatedSocket) WriteTo(b []byte, to netip.AddrPort) error {
	n := s.net
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent[[2]netip.Addr{s.at.Addr(), to.Addr()}]++
	if !n.passes(s.at.Addr(), to.Addr()) || n.blocked[to.Addr()] || n.random.Float64() < n.loss {
		return nil
	}
	p := sentPacket{append([]byte(nil), b...), s.at}
	time.AfterFunc(time.Duration(n.random.Int64N(int64(n.delay)+1)), func() {
		n.mu.Lock()
		there := n.sockets[to]
		n.mu.Unlock()
		if there == nil {
			return
		}
		select {
		case there.in <- p:
		default: // its buffer is full
		}
	})
	return nil
}

// ReadFrom implements peers.Socket.
func (s *simulatedSocket) ReadFrom(b []byte) (int, netip.AddrPort, error) {
	select {
	case p := <-s.in:
		if len(p.bytes) > len(b) {
			return 0, p.from, errors.New("packet too long")
		}
		return copy(b, p.bytes), p.from, nil
	case <-s.closed:
		return 0, netip.AddrPort{}, net.ErrClosed
	}
}

// Close implements peers.Socket.
func (s *simulatedSocket) Close() error {
	s.once.Do(func() {
		s.net.with(func() { delete(s.net.sockets, s.at) })
		close(s.closed)
	})
	return nil
}

// keyText is keys as peers.ParseKeys reads them.
func keyText(keys ...[]byte) []byte {
	var text []byte
	for _, k := range keys {
		text = append(base64.StdEncoding.AppendEncode(text, k), '\n')
	}
	return text
}
