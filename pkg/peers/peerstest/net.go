// Package peerstest has a wire on which nodes can be cut off from one another, to
// test what depends on package peers with faults at the worst moment.
package peerstest

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

// A Net is a link on which each node has one address. All faults are off at first.
// It keeps time by the package time, so that it works under testing/synctest.
type Net struct {
	mu      sync.Mutex
	random  *rand.Rand
	delay   time.Duration
	loss    float64
	sockets map[netip.AddrPort]*socket
	down    map[netip.Addr]bool    // gone from the link, as if its cable were pulled
	blocked map[netip.Addr]bool    // its kernel answers, but its port drops what comes in
	refuses map[netip.Addr]bool    // its TCP port is closed, whatever listens on UDP
	broken  map[[2]netip.Addr]bool // from the first to the second nothing passes
}

// NewNet makes a Net that delays packets by up to 0.5 ms. seed makes its chances the same each time.
func NewNet(seed uint64) *Net {
	return &Net{
		random: rand.New(rand.NewPCG(seed, 0)), delay: 500 * time.Microsecond,
		sockets: make(map[netip.AddrPort]*socket), down: make(map[netip.Addr]bool),
		blocked: make(map[netip.Addr]bool), refuses: make(map[netip.Addr]bool), broken: make(map[[2]netip.Addr]bool),
	}
}

// Lose has that share of packets lost, from 0 to 1.
func (n *Net) Lose(share float64) { n.with(func() { n.loss = share }) }

// Cut takes a node off the link, or puts it back.
func (n *Net) Cut(node netip.Addr, cut bool) { n.with(func() { n.down[node] = cut }) }

// Block has a node drop what comes in for its port, or not.
func (n *Net) Block(node netip.Addr, block bool) { n.with(func() { n.blocked[node] = block }) }

// Refuse has a node refuse TCP connections, or not.
func (n *Net) Refuse(node netip.Addr, refuse bool) { n.with(func() { n.refuses[node] = refuse }) }

// Break stops what goes from one node to another, or lets it pass.
func (n *Net) Break(from, to netip.Addr, broken bool) {
	n.with(func() { n.broken[[2]netip.Addr{from, to}] = broken })
}

// Heal ends all faults.
func (n *Net) Heal() {
	n.with(func() { n.loss = 0; clear(n.down); clear(n.blocked); clear(n.refuses); clear(n.broken) })
}

func (n *Net) with(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

// passes reports whether a frame gets from one node to another. n.mu is held.
func (n *Net) passes(from, to netip.Addr) bool {
	return !n.down[from] && !n.down[to] && !n.broken[[2]netip.Addr{from, to}]
}

// Answers is peers.Options.Answers for a node: whether the kernel at to answers.
func (n *Net) Answers(from netip.Addr) func(context.Context, netip.Addr) bool {
	return func(ctx context.Context, to netip.Addr) bool {
		n.mu.Lock()
		ok := n.passes(from, to) && n.passes(to, from)
		n.mu.Unlock()
		if ok {
			time.Sleep(2 * n.delay)
			return true
		}
		<-ctx.Done()
		return false
	}
}

// Listen implements peers.Wire.
func (n *Net) Listen(at netip.AddrPort) (peers.Socket, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sockets[at] != nil {
		return nil, syscall.EADDRINUSE
	}
	s := &socket{net: n, at: at, in: make(chan packet, 1024), closed: make(chan struct{})}
	n.sockets[at] = s
	return s, nil
}

// Dial implements peers.Wire.
func (n *Net) Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) error {
	n.mu.Lock()
	open := n.sockets[to] != nil
	passes := n.passes(from, to.Addr()) && n.passes(to.Addr(), from) && !n.blocked[to.Addr()] && !n.blocked[from]
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

func (n *Net) refusing(a netip.Addr) (refuses bool) {
	n.with(func() { refuses = n.refuses[a] })
	return refuses
}

// Nodes is peers.Options.Nodes for a node among all.
func Nodes(self string, all map[string]netip.AddrPort) func() map[string]netip.AddrPort {
	return func() map[string]netip.AddrPort {
		others := maps.Clone(all)
		delete(others, self)
		return others
	}
}

type packet struct {
	bytes []byte
	from  netip.AddrPort
}

type socket struct {
	net    *Net
	at     netip.AddrPort
	in     chan packet
	once   sync.Once
	closed chan struct{}
}

// WriteTo implements peers.Socket.
func (s *socket) WriteTo(b []byte, to netip.AddrPort) error {
	n := s.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.passes(s.at.Addr(), to.Addr()) || n.blocked[to.Addr()] || n.random.Float64() < n.loss {
		return nil
	}
	p := packet{append([]byte(nil), b...), s.at}
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
func (s *socket) ReadFrom(b []byte) (int, netip.AddrPort, error) {
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
func (s *socket) Close() error {
	s.once.Do(func() {
		s.net.with(func() { delete(s.net.sockets, s.at) })
		close(s.closed)
	})
	return nil
}

// KeyText is keys as peers.ParseKeys reads them.
func KeyText(keys ...[]byte) []byte {
	var text []byte
	for _, k := range keys {
		text = append(base64.StdEncoding.AppendEncode(text, k), '\n')
	}
	return text
}
