package bgp

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v3/pkg/packet/bgp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	connectTimeout    = 2 * time.Second
	connectRetry      = 3 * time.Second // attempts to connect are as long as this to twice as long apart
	lingerTime        = time.Second     // how long the router may take to read the last message
	messagesPerSecond = 50_000          // of a router; a table of the Internet takes some seconds
)

// A guard stands between GoBGP, which can end the process on a malformed message, and one router (docs/why.md, "The
// guard before GoBGP"). GoBGP connects to it by loopback, and it to the router. It writes what GoBGP needs of the
// router's messages; GoBGP's pass unchanged but for OPEN.
type guard struct {
	config   vip.BGPPeer
	o        Options
	listener *net.TCPListener
	to       atomic.Pointer[endpoints] // of the next connection to the router
	report   func(progress)            // is called in order, and may block
	started  bool                      // a session of this process was up; the session's goroutine has it

	sent, received prometheus.Counter // UPDATE messages
}

type progress struct {
	state          string // as vip.BGPSession has it
	reason         string // why it is not established, or ""
	router         open   // what the router said of itself; zero before
	noIPv4, noIPv6 bool
	noHop6         bool // it takes no IPv6 next hop of IPv4 prefixes
}

// newGuard is a guard that listens for GoBGP; report gets each new state once run runs.
func newGuard(c vip.BGPPeer, o Options, m *metrics, report func(progress)) (*guard, error) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	g := &guard{config: c, o: o, listener: l, report: report}
	g.sent, g.received = m.sent.WithLabelValues(labelsOf(c)...), m.received.WithLabelValues(labelsOf(c)...)
	return g, nil
}

func (g *guard) port() int { return g.listener.Addr().(*net.TCPAddr).Port }

// run serves GoBGP's connections, one at a time, until the listener is closed. It closes other processes'.
func (g *guard) run() {
	var running sync.WaitGroup
	for {
		c, err := g.listener.AcceptTCP()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // too many open files
			time.Sleep(pollInterval)
		case !isOwn(c):
			c.Close()
		default:
			running.Wait() // GoBGP has closed the one before
			running.Go(func() { g.serve(c) })
		}
	}
}

// isOwn reports whether this process has the other end, too.
func isOwn(c *net.TCPConn) bool {
	here, there := c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr)
	is := func(a unix.Sockaddr, err error, want *net.TCPAddr) bool {
		x, ok := a.(*unix.SockaddrInet4)
		return err == nil && ok && x.Port == want.Port && want.IP.Equal(x.Addr[:])
	}
	files, _ := os.ReadDir("/proc/self/fd")
	for _, f := range files {
		if fd, err := strconv.Atoi(f.Name()); err == nil {
			a, err := unix.Getsockname(fd)
			b, err2 := unix.Getpeername(fd)
			if is(a, err, there) && is(b, err2, here) {
				return true
			}
		}
	}
	return false
}

// serve has one session of GoBGP until one of the two ends it.
func (g *guard) serve(gobgp *net.TCPConn) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer gobgp.Close()
	sent := make(chan message, 4) // before the router answers, GoBGP sends an OPEN and at most a NOTIFICATION
	go func() {
		defer close(sent)
		defer cancel()
		for from := bufio.NewReader(gobgp); ; {
			m, err := readMessage(from)
			if err != nil {
				return
			}
			sent <- m
		}
	}()
	router, at := g.dial(ctx)
	if router == nil {
		g.report(progress{state: stateIdle})
		return
	}
	defer router.Close()
	s := &session{guard: g, gobgp: gobgp, router: router, id: at.id.As4(), restarted: !g.started}
	s.in = inbound{as: g.config.AS, localAS: g.config.LocalAS, localID: s.id}
	g.report(progress{state: "opensent"})
	defer context.AfterFunc(ctx, s.hurry)()
	var sending sync.WaitGroup
	sending.Go(func() { s.send(ctx, sent) })
	why := s.receive()
	s.hurry()
	if why.code != 0 {
		_ = s.write(why.message(), lingerTime, why.why)
	}
	s.end(why.why)
	sending.Wait()
	_, _ = io.Copy(io.Discard, router) // else its kernel could forget the last message for what was not read
}

// dial connects to the router, as often as it takes; nil if ctx ended.
func (g *guard) dial(ctx context.Context) (*net.TCPConn, endpoints) {
	g.report(progress{state: "active"})
	for {
		at := *g.to.Load()
		_, zone, _ := strings.Cut(at.remote, "%")
		local := netip.AddrPortFrom(at.local.WithZone(zone), 0)
		d := net.Dialer{
			Timeout: connectTimeout, LocalAddr: net.TCPAddrFromAddrPort(local),
			Control: func(_, _ string, c syscall.RawConn) (err error) {
				return cmp.Or(c.Control(func(fd uintptr) { err = g.setOptions(int(fd), at) }), err)
			},
		}
		c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(at.remote, strconv.Itoa(int(g.config.Port))))
		if err == nil {
			return c.(*net.TCPConn), at
		}
		if ctx.Err() == nil {
			g.report(progress{state: "active", reason: connectError(err)})
		}
		if !mailbox.Sleep(ctx, connectRetry+rand.N(connectRetry)) {
			return nil, at
		}
	}
}

// setOptions sets the configured options of the socket to the router: the link, MD5 (RFC 2385), and the TTL.
func (g *guard) setOptions(fd int, at endpoints) error {
	var errs []error
	remote, _ := netip.ParseAddr(at.remote)
	set := func(four4, six6, value int) {
		level, name := unix.IPPROTO_IP, four4
		if remote.Is6() {
			level, name = unix.IPPROTO_IPV6, six6
		}
		errs = append(errs, os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, name, value)))
	}
	switch external := g.config.AS != 0 && g.config.AS != g.config.LocalAS; {
	case g.config.Multihop && external:
		set(unix.IP_TTL, unix.IPV6_UNICAST_HOPS, multihopTTL)
	case !g.config.Multihop && g.o.TTLSecurity:
		set(unix.IP_TTL, unix.IPV6_UNICAST_HOPS, 255)
		set(unix.IP_MINTTL, unix.IPV6_MINHOPCOUNT, 255)
	case external:
		set(unix.IP_TTL, unix.IPV6_UNICAST_HOPS, 1)
	}
	if at.bind != "" {
		errs = append(errs, os.NewSyscallError("setsockopt", unix.BindToDevice(fd, at.bind)))
	}
	if key := g.config.Password; key != "" {
		sig := &unix.TCPMD5Sig{Keylen: uint16(len(key))}
		copy(sig.Key[:], key)
		sig.Addr.Family = unix.AF_INET
		if address := sig.Addr.Data[2:]; remote.Is4() { // after the port
			copy(address, remote.AsSlice())
		} else {
			sig.Addr.Family = unix.AF_INET6
			copy(address[4:], remote.AsSlice()) // after the flow label
		}
		err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, sig)
		errs = append(errs, os.NewSyscallError("setsockopt", err))
	}
	return errors.Join(errs...)
}

// connectError is what an error of connect(2) may mean for a BGP session.
func connectError(err error) string {
	timeout := net.Error(nil)
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer to the connection attempt: the peer is down, filters, or expects another MD5 password"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the peer refuses connections: no BGP there, or it does not know this node"
	}
	return err.Error()
}

// A session is a connection of GoBGP and that to the router.
type session struct {
	*guard
	gobgp, router *net.TCPConn
	id            [4]byte // this node's BGP identifier
	restarted     bool    // it is the first of this process
	in            inbound // receive has it

	writing sync.Mutex // guards what is written to router, what is reported, and the rest
	ended   bool
	reason  string // why it ended, or ""
}

// receive passes the router's messages to GoBGP until the session ends; it returns why.
func (s *session) receive() *refusal {
	from := bufio.NewReader(s.router)
	for limit := (mailbox.Limit{PerSecond: messagesPerSecond}); ; limit.Read() {
		m, err := readMessage(from)
		refused := (*refusal)(nil)
		switch {
		case errors.As(err, &refused):
			return refused
		case err != nil && s.in.received == 0:
			return &refusal{why: "the peer accepts the connection and closes it: it does not know this node, " +
				"has another AS number for it, is shut down for it, or has ended the session for too many prefixes"}
		case err != nil:
			return &refusal{why: "the connection was closed or broke"}
		case m.kind() == bgp.BGP_MSG_UPDATE:
			s.received.Inc()
		}
		before := s.in.received
		pass, refused := s.in.next(m)
		if refused != nil {
			return refused
		}
		if now := s.in.received; now != before { // before GoBGP, so that it sends only what the router takes
			s.started = s.started || now == 2
			state := []string{"", "openconfirm", vip.Established}[now]
			s.tell(progress{state: state, router: s.in.router, noIPv4: s.in.noIPv4, noIPv6: s.in.noIPv6,
				noHop6: s.in.noHop6})
		}
		if pass != nil {
			if _, err := s.gobgp.Write(pass); err != nil {
				return &refusal{} // GoBGP has ended it
			}
		}
	}
}

// send passes GoBGP's messages to the router until GoBGP closes, which ends ctx, and then ends the session.
func (s *session) send(ctx context.Context, sent <-chan message) {
	for m := range sent {
		var reason string
		switch m.kind() {
		case bgp.BGP_MSG_OPEN:
			if o, refused := parseOpen(m); refused == nil {
				m = o.asSent(s.id, s.restarted)
			}
		case bgp.BGP_MSG_UPDATE:
			s.sent.Inc()
		case bgp.BGP_MSG_NOTIFICATION:
			switch m.body()[0] {
			case bgp.BGP_ERROR_CEASE: // the peer's goroutine asked for it
			case bgp.BGP_ERROR_HOLD_TIMER_EXPIRED:
				reason = "the hold time passed without a message from the peer"
			default:
				reason = "this node sent a NOTIFICATION, " + explain(m)
			}
		}
		within := s.o.HoldTime
		if ctx.Err() != nil {
			within = lingerTime
		}
		if s.write(m, within, reason) != nil {
			s.end("the peer takes no data, or the connection broke")
		}
	}
	s.end("")
}

// write writes a message to the router within a time (RFC 9687); the first reason that ends the session counts.
func (s *session) write(m message, within time.Duration, reason string) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.ended {
		return nil
	}
	s.reason = cmp.Or(s.reason, reason)
	_ = s.router.SetWriteDeadline(time.Now().Add(within))
	_, err := s.router.Write(m)
	return err
}

func (s *session) hurry() { _ = s.router.SetWriteDeadline(time.Now().Add(lingerTime)) }

func (s *session) tell(x progress) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.ended {
		s.report(x)
	}
}

// end ends the session, once: it closes GoBGP's connection, and the router's for sending.
func (s *session) end(reason string) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	_ = s.router.SetReadDeadline(time.Now().Add(lingerTime))
	_ = s.router.CloseWrite()
	s.gobgp.Close()
	s.report(progress{state: stateIdle, reason: cmp.Or(s.reason, reason)})
}
