package serve

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// How many connections an endpoint has at once. Beyond that a new one closes the oldest, so that nobody keeps others
// from asking.
const (
	maxLocal     = 64  // from this node itself, which no other host can use up
	maxRemote    = 128 // from all other hosts
	maxPerSource = 16  // of these, from one host (of IPv6: one /64)
)

const warnEvery = 10 * time.Minute

// A listener accepts an endpoint's connections, as many as the constants say. It closes connections to a VIP, and for
// an endpoint of this node other hosts', unanswered.
type listener struct {
	net.Listener
	localOnly bool
	isLocal   func(netip.Addr) bool
	isVIP     func(netip.Addr) bool
	refused   func(reason string) // counts
	log       *slog.Logger        // of this endpoint

	open   []*connection // in the order in which they were accepted
	warned time.Time     // when the log last said that there were too many
}

type connection struct {
	net.Conn
	source netip.Prefix // of the other end; the zero Prefix is this node
	active atomic.Bool  // a request was read whose answer is not written yet
	closed atomic.Bool
}

func (c *connection) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

func (c *connection) from() string {
	if !c.source.IsValid() {
		return "this node"
	}
	return c.source.String()
}

// trackState, as ConnState, notes whether a connection has a request under way.
func trackState(c net.Conn, s http.ConnState) {
	if c, ok := c.(*connection); ok {
		c.active.Store(s == http.StateActive)
	}
}

// Accept returns the next connection that is not refused; for one goroutine.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		local, remote := address(c.LocalAddr()), address(c.RemoteAddr())
		own := remote.IsLoopback() || remote == local || l.isLocal(remote)
		switch {
		case l.isVIP(local):
			l.refuse(c, "vip")
		case l.localOnly && !own:
			l.refuse(c, "not_local")
		default:
			accepted := &connection{Conn: c}
			if !own {
				accepted.source = sourceOf(remote)
			}
			l.makeRoom(accepted.source)
			l.open = append(l.open, accepted)
			return accepted, nil
		}
	}
}

// refuse closes c with a reset, so that the kernel keeps no TIME_WAIT.
func (l *listener) refuse(c net.Conn, reason string) {
	l.refused(reason)
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // fails only if it is closed already
	}
	_ = c.Close()
}

// makeRoom closes a connection, if there are too many, for one from source.
func (l *listener) makeRoom(source netip.Prefix) {
	l.open = slices.DeleteFunc(l.open, func(c *connection) bool { return c.closed.Load() })
	same := func(c *connection) bool { return c.source == source }
	if !source.IsValid() {
		l.closeOldest(maxLocal, same)
		return
	}
	l.closeOldest(maxPerSource, same)
	l.closeOldest(maxRemote, func(c *connection) bool { return c.source.IsValid() })
}

// closeOldest closes one of the connections that count if most or more are open: the oldest without a request under
// way, else the oldest.
func (l *listener) closeOldest(most int, counts func(*connection) bool) {
	var oldest, idle *connection
	n := 0
	for _, c := range l.open {
		if !counts(c) || c.closed.Load() {
			continue
		}
		n++
		if oldest == nil {
			oldest = c
		}
		if idle == nil && !c.active.Load() {
			idle = c
		}
	}
	if n < most {
		return
	}
	if time.Since(l.warned) > warnEvery {
		l.warned = time.Now()
		l.log.Warn("too many connections are open: the oldest are closed for new ones", "open", n, "from", oldest.from())
	}
	if idle != nil {
		oldest = idle
	}
	oldest.closed.Store(true)
	l.refuse(oldest.Conn, "limit")
}

// address is the address of a connection's end; zero if not TCP.
func address(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// sourceOf is what counts as one host: an IPv4 address, or a /64, all of which a host may have.
func sourceOf(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits) // fails only for the zero Addr
	return p
}
