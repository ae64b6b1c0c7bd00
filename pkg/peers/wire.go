package peers

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/rawio"
	"golang.org/x/sys/unix"
)

// A Wire is how packets travel.
type Wire interface {
	// Listen takes the address, and no other of the node, for packets and for Dial.
	Listen(at netip.AddrPort) (Socket, error)
	// Dial asks from an address of this node whether anybody listens at to. nil:
	// somebody does. syscall.ECONNREFUSED: nobody does, says the node itself. Any
	// other error: there is no telling.
	Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) error
}

// A Socket sends and receives packets. Its methods may be called at once, but for
// ReadFrom: there is one reader.
type Socket interface {
	WriteTo(b []byte, to netip.AddrPort) error
	// ReadFrom waits for a packet. After Close it returns net.ErrClosed.
	ReadFrom(b []byte) (n int, from netip.AddrPort, err error)
	Close() error
}

// kernelWire is UDP, and TCP for Dial.
type kernelWire struct{}

const (
	// receiveBuffer holds what arrives while the process does not run.
	receiveBuffer = 1 << 20
	// networkControl is the DSCP CS6 (RFC 4594, section 3.1): a full link does not
	// make nodes look dead.
	networkControl = 0xc0
)

// Listen implements Wire.
func (kernelWire) Listen(at netip.AddrPort) (Socket, error) {
	config := net.ListenConfig{Control: func(network, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			if at.Addr().Is4() {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, networkControl)
			} else {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, networkControl)
			}
			if network[:3] == "udp" && unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
			}
		})
	}}
	tcp, err := config.Listen(context.Background(), "tcp", at.String())
	if err != nil {
		return nil, err
	}
	udp, err := config.ListenPacket(context.Background(), "udp", at.String())
	if err != nil {
		_ = tcp.Close()
		return nil, err
	}
	s := &kernelSocket{udp: udp.(*net.UDPConn), tcp: tcp, zone: at.Addr().Zone(), ended: make(chan struct{})}
	if s.reader, err = rawio.NewReader(s.udp); err != nil {
		return nil, errors.Join(err, udp.Close(), tcp.Close())
	}
	go s.accept()
	return s, nil
}

// Dial implements Wire.
func (kernelWire) Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) error {
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), KeepAlive: -1}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if errors.Is(err, syscall.ECONNRESET) {
		return nil // it was there, and is gone already
	}
	if err != nil {
		return err
	}
	_ = conn.(*net.TCPConn).SetLinger(0) // nothing was said: no need for the port to linger
	return conn.Close()
}

// A kernelSocket is a UDP socket, and a TCP socket that says no more than that it is there.
type kernelSocket struct {
	udp    *net.UDPConn
	reader *rawio.Reader
	tcp    net.Listener
	zone   string        // of this node's address, if it is link-local
	ended  chan struct{} // accept has returned
}

func (s *kernelSocket) accept() {
	defer close(s.ended)
	for {
		conn, err := s.tcp.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(minPeriod) // out of files: whoever asks finds the port open nevertheless
			continue
		}
		_ = conn.Close()
	}
}

func (s *kernelSocket) WriteTo(b []byte, to netip.AddrPort) error {
	_, err := s.udp.WriteToUDPAddrPort(b, to)
	return err
}

func (s *kernelSocket) ReadFrom(b []byte) (int, netip.AddrPort, error) {
	n, err := s.reader.Read(b)
	if err != nil {
		return 0, netip.AddrPort{}, err
	}
	from := s.reader.Sender()
	if a := from.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
		from = netip.AddrPortFrom(a.WithZone(s.zone), from.Port())
	}
	return n, from, nil
}

// Close gives the port back. When it returns, no goroutine is left.
func (s *kernelSocket) Close() error {
	err := errors.Join(s.tcp.Close(), s.udp.Close())
	<-s.ended
	return err
}
