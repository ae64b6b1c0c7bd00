package peers

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"golang.org/x/sys/unix"
)

// A Transport sends and receives packets, and probes ports by TCP.
type Transport interface {
	// Listen opens a port of this node's for UDP packets and TCP connections.
	Listen(at netip.AddrPort) (Socket, error)
	// Dial opens and closes a TCP connection from an address of this node: nil if to took it, syscall.ECONNREFUSED if its
	// kernel refused, else another error.
	Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) error
}

// A Socket sends and receives packets, for several goroutines, but only one ReadFrom.
type Socket interface {
	// WriteTo sends a packet without blocking.
	WriteTo(b []byte, to netip.AddrPort) error
	// ReadFrom waits for a packet. After Close it returns net.ErrClosed.
	ReadFrom(b []byte) (n int, from netip.AddrPort, err error)
	Close() error
}

// kernelTransport is the Transport of the kernel's UDP and TCP.
type kernelTransport struct{}

const (
	// receiveBuffer, in bytes, is for pauses of the process, and sendBuffer for nodes whose MAC the kernel seeks in vain:
	// three seconds of heartbeats to each.
	receiveBuffer, sendBuffer = 1 << 20, 2 << 20
	// networkControl is the DSCP CS6 (RFC 4594 section 3.1), for heartbeats to pass a full link.
	networkControl = 0xc0
)

// Listen opens both sockets, with DSCP CS6 and those buffers if the kernel lets it, and accepts and closes TCP
// connections; or an error, with nothing open.
func (kernelTransport) Listen(at netip.AddrPort) (Socket, error) {
	config := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if at.Addr().Is4() {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, networkControl)
			} else {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, networkControl)
			}
			if network[:3] != "udp" {
				return
			}
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
			}
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
			}
		})
	}}
	tcp, err := config.Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return nil, err
	}
	udp, err := config.ListenPacket(context.Background(), "udp", at.String())
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	s := &kernelSocket{udp: udp.(*net.UDPConn), tcp: tcp, ended: make(chan struct{})}
	s.conn, _ = s.udp.SyscallConn() // fails only without a socket
	if zone := at.Addr().Zone(); zone != "" {
		link, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, errors.Join(err, udp.Close(), tcp.Close())
		}
		s.link = link.Index
	}
	go s.accept()
	return s, nil
}

// Dial implements Transport. A connection reset at once counts as taken. It blocks until ctx ends at most.
func (kernelTransport) Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) error {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), KeepAlive: -1}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if errors.Is(err, syscall.ECONNRESET) {
		return nil // it was accepted, and closed already
	}
	if err != nil {
		return err
	}
	_ = conn.(*net.TCPConn).SetLinger(0) // no TIME_WAIT
	return conn.Close()
}

// A kernelSocket is a UDP socket, and a TCP listener that closes connections at once.
type kernelSocket struct {
	udp   *net.UDPConn
	conn  syscall.RawConn // of udp
	tcp   net.Listener
	link  int           // the index of that of this node's address, if it is link-local
	ended chan struct{} // accept has returned
}

// accept accepts and closes TCP connections, a thousand a second at most, until the listener is closed.
func (s *kernelSocket) accept() {
	defer close(s.ended)
	for limit := (mailbox.Limit{PerSecond: 1000}); ; limit.Read() {
		switch conn, err := s.tcp.Accept(); {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(minInterval) // no file descriptor is left; the kernel accepts connections all the same
		default:
			_ = conn.Close()
		}
	}
}

// WriteTo sends b as one UDP packet, or returns EAGAIN at once if the buffer is full.
func (s *kernelSocket) WriteTo(b []byte, to netip.AddrPort) error {
	var at unix.Sockaddr = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16(), ZoneId: uint32(s.link)}
	if to.Addr().Is4() {
		at = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	var sent error
	err := s.conn.Control(func(fd uintptr) {
		// Packets to neighbors without a known MAC stay in the buffer for seconds.
		sent = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT, at)
	})
	return cmp.Or(err, sent)
}

// ReadFrom implements Socket. A packet longer than b is cut.
func (s *kernelSocket) ReadFrom(b []byte) (int, netip.AddrPort, error) {
	return s.udp.ReadFromUDPAddrPort(b)
}

// setFilter implements packetFilter. Packets of a keyID used since the call are dropped until the next.
func (s *kernelSocket) setFilter(ids []keyID) error {
	program, err := keyFilter(ids)
	if err != nil {
		return err
	}
	var set error
	err = s.conn.Control(func(fd uintptr) {
		filters := make([]unix.SockFilter, len(program))
		for i, x := range program {
			filters[i] = unix.SockFilter{Code: x.Op, Jt: x.Jt, Jf: x.Jf, K: x.K}
		}
		set = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]})
	})
	return errors.Join(err, set)
}

// Close closes both sockets, and blocks until accept has ended.
func (s *kernelSocket) Close() error {
	err := errors.Join(s.tcp.Close(), s.udp.Close())
	<-s.ended
	return err
}
