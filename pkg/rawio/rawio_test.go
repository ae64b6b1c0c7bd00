package rawio

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// open opens a UDP socket and a Reader of it.
func open(t *testing.T, network, at string) (*net.UDPConn, *Reader) {
	t.Helper()
	c, err := net.ListenPacket(network, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	r, err := NewReader(c.(*net.UDPConn))
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.UDPConn), r
}

func addrPort(c net.PacketConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }

func TestRead(t *testing.T) {
	for _, tt := range []struct{ network, at string }{{"udp4", "127.0.0.1:0"}, {"udp6", "[::1]:0"}, {"udp", "[::]:0"}} {
		t.Run(tt.network+" "+tt.at, func(t *testing.T) {
			c, r := open(t, tt.network, tt.at)
			to := addrPort(c)
			if to.Addr().IsUnspecified() { // one socket for both families: an IPv4 sender is told as such
				to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), to.Port())
			}
			sender, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
			if err != nil {
				t.Fatal(err)
			}
			defer sender.Close()
			for _, text := range []string{"one", "two, which is cut"} {
				if _, err := sender.Write([]byte(text)); err != nil {
					t.Fatal(err)
				}
				b := make([]byte, 8)
				n, err := r.Read(b)
				if want := text[:min(8, len(text))]; err != nil || string(b[:n]) != want {
					t.Errorf("read %q, %v; want %q", b[:n], err, want)
				}
				if got, want := r.Sender(), sender.LocalAddr().(*net.UDPAddr).AddrPort(); got != want {
					t.Errorf("from %v, want %v", got, want)
				}
				if r.Link() != 0 || r.ToOtherHost() { // those of packet sockets are tested in pkg/l2
					t.Errorf("by the link %d, to another host %v, which no such socket tells", r.Link(), r.ToOtherHost())
				}
			}
		})
	}
}

// Read waits for a packet, for the deadline, or for the end.
func TestReadWaits(t *testing.T) {
	c, r := open(t, "udp4", "127.0.0.1:0")
	read := make(chan error, 1)
	go func() {
		_, err := r.Read(make([]byte, 8))
		read <- err
	}()
	select {
	case err := <-read:
		t.Fatalf("there was nothing to be read: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := c.WriteToUDPAddrPort([]byte("x"), addrPort(c)); err != nil {
		t.Fatal(err)
	}
	if err := <-read; err != nil {
		t.Error(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the deadline: %v", err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, func() { c.Close() })
	if _, err := r.Read(make([]byte, 8)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed meanwhile: %v", err)
	}
	if _, err := r.Read(make([]byte, 8)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed before: %v", err)
	}
}

// What the kernel refuses is told.
func TestReadError(t *testing.T) {
	_, r := open(t, "udp4", "127.0.0.1:0")
	if _, err := r.Read(nil); !errors.Is(err, unix.EINVAL) {
		t.Errorf("no room: %v", err)
	}
	// Nobody listens there, which the kernel tells whoever reads next (ICMP).
	gone, _ := open(t, "udp4", "127.0.0.1:0")
	at := addrPort(gone)
	gone.Close()
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if r, err = NewReader(c); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 8)); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("nobody there: %v", err)
	}
}

// A Reader makes no garbage.
func TestReadAllocs(t *testing.T) {
	c, r := open(t, "udp4", "127.0.0.1:0")
	at, b := addrPort(c), make([]byte, 8)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := c.WriteToUDPAddrPort(b, at); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(b); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for each packet", n)
	}
}

// Frames on a real link are tested in pkg/l2.
func TestSendError(t *testing.T) {
	c, _ := open(t, "udp4", "127.0.0.1:0")
	conn, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for what, f := range map[string][]byte{"no frame": nil, "no packet socket": {1, 2, 3}} {
		if err := Send(conn, f, 1); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EAFNOSUPPORT) {
			t.Errorf("%s: %v", what, err)
		}
	}
	c.Close()
	if err := Send(conn, []byte{1}, 1); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
