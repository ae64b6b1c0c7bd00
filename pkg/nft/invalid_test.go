package nft

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/testing/check"
)

// sequence returns the sequence numbers of the next octet that a connection sends, and of the next that it expects (tcp(7), TCP_REPAIR).
func sequence(t *testing.T, c net.Conn) (sends, expects uint32) {
	t.Helper()
	raw := check.Value(c.(*net.TCPConn).SyscallConn())(t)
	check.OK(t, raw.Control(func(fd uintptr) {
		get := func(queue int) uint32 {
			check.OK(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, queue))
			return uint32(check.Value(unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ))(t))
		}
		check.OK(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1))
		expects, sends = get(1), get(2)                                                 // TCP_RECV_QUEUE, TCP_SEND_QUEUE
		check.OK(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, -1)) // without a probe of the window
	}))
	return sends, expects
}

// sendBeyondWindow has the client send a segment of c that is 50 MiB past what the other side has room for, which conntrack calls invalid.
func (r *rig) sendBeyondWindow(c net.Conn) {
	r.t.Helper()
	sends, expects := sequence(r.t.(*testing.T), c)
	from, to := c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
	b := segment(from, to, sends+50<<20, expects)
	inside(r.t, "client", func() {
		family, address := unix.AF_INET, unix.Sockaddr(nil)
		if to.Addr().Is6() {
			family, address = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16()}
		} else {
			address = &unix.SockaddrInet4{Addr: to.Addr().As4()}
		}
		fd := check.Value(unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_TCP))(r.t)
		defer unix.Close(fd)
		check.OK(r.t, unix.Sendto(fd, b, 0, address))
	})
}

// segment is a TCP segment with ACK, PSH and eight octets (RFC 9293, section 3.1).
func segment(from, to netip.AddrPort, sequence, acknowledgment uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint32(b, sequence)
	b = binary.BigEndian.AppendUint32(b, acknowledgment)
	b = append(b, 5<<4, 0x18, 500>>8, 500&0xff, 0, 0, 0, 0)
	b = append(b, "abcdefgh"...)
	sum := uint32(0)
	pseudo := []byte{0, unix.IPPROTO_TCP, 0, byte(len(b))}
	for x := range slices.Chunk(slices.Concat(from.Addr().AsSlice(), to.Addr().AsSlice(), pseudo, b), 2) {
		sum += uint32(binary.BigEndian.Uint16(x))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum>>16+sum))
	return b
}

// What conntrack calls invalid of a connection to a Service is dropped, and the connection goes on. Without that the kernel of the node, where nobody listens at
// the VIP, answers it with a reset.
func TestInvalidIsDropped(t *testing.T) {
	r := newRig(t)
	r.move("n2")
	tables := New(check.Log(t))
	inside(t, "n2", func() { check.Value(tables.Invalid.Set(t.Context(), []netip.Addr{vip4, vip4, vip6}))(t) })
	for _, to := range []netip.Addr{vip4, vip6} {
		c := r.dial(to)
		c.wants(t, "n2")
		r.sendBeyondWindow(c.Conn)
		family := "ip"
		if to.Is6() {
			family = "ip6"
		}
		check.Until(t, 5*time.Second, "the packet to be dropped", func() error {
			if out := sh(t, "ip netns exec n2 nft list chain "+family+" herald_invalid input"); !strings.Contains(out, "counter packets 1 ") {
				return errors.New(out)
			}
			return nil
		})
		c.wants(t, "n2")
	}
	hold(t, "n2", tables.Invalid, nil)
	check.Lacks(t, sh(t, "ip netns exec n2 nft list tables"), "tables that are left", "herald")
	c := r.dial(vip4)
	c.wants(t, "n2")
	r.sendBeyondWindow(c.Conn)
	check.True(t, 5*time.Second, "the connection to be reset, without the table", func() bool {
		_, err := c.ask(time.Second)
		return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	})
}

// Where nf_conntrack_tcp_loose is 0, packets of connections that the node does not know are invalid: they are answered with a reset, as without Herald, by which
// clients see that these have ended.
func TestUnknownIsResetWithoutLoose(t *testing.T) {
	r := newRig(t)
	sh(t, "ip netns exec n2 sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0")
	r.move("n1")
	c := r.dial(vip4)
	c.wants(t, "n1")
	hold(t, "n2", New(check.Log(t)).Invalid, []netip.Addr{vip4})
	r.move("n2")
	_, err := c.ask(5 * time.Second)
	check.Is(t, err, syscall.ECONNRESET, "the answer")
}
