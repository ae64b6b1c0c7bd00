package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
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
	check.Lacks(t, sh(t, "ip netns exec n2 nft list tables"), "herald")
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

// What comes for a VIP that is bound nowhere, before kube-proxy translates it, goes neither back to the router nor into conntrack: who goes on sending is served once kube-proxy
// has its rule, a connection is refused at once, and so is what nobody will ever translate. Other addresses, and what is translated, pass.
func TestUntranslatedIsNotForwarded(t *testing.T) {
	r := newRig(t)
	r.addPod()
	both := []netip.Addr{netip.MustParseAddr("203.0.113.50"), netip.MustParseAddr("2001:db8::50")}
	sh(t, `ip -n client route add 203.0.113.0/24 via 10.0.0.1
ip -n client route add 2001:db8::/64 via fd00::1
ip -n n1 route add default via 10.0.0.3
ip -n n1 route add default via fd00::3
ip netns exec n1 sysctl -qw net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.eth0.send_redirects=0
ip netns exec n3 sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0`)
	answerIn(t, "pod", ":5300")
	tables := New(check.Log(t))
	hold(t, "n1", tables.Invalid, both)
	for _, to := range both {
		if _, err := r.dialPort("client", to, 80); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a connection to %s ended with %v, want it refused", to, err)
		}
		if err := r.echo(to); !errors.Is(err, syscall.ECONNREFUSED) { // before UDP, of which all that is refused counts for net.ipv4.icmp_ratelimit
			t.Errorf("an echo request to %s ended with %v, want it refused", to, err)
		}
		if _, err := r.dialPort("client", to.Next(), 80); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a connection to what is no VIP ended with %v, want it sent on to where nobody answers", err)
		}
	}
	senders := make([]*udpSender, len(both))
	for i, to := range both {
		senders[i] = sendUDP(t, to, 5300)
		check.Until(t, 5*time.Second, "three packets to be sent", func() error {
			if n := senders[i].sent.Load(); n < 3 {
				return fmt.Errorf("%d were", n)
			}
			return nil
		})
	}
	sh(t, `ip netns exec n1 nft add rule inet proxy pre ip daddr 203.0.113.50 udp dport 5300 dnat ip to 10.1.1.2
ip netns exec n1 nft add rule inet proxy pre ip6 daddr 2001:db8::50 udp dport 5300 dnat ip6 to fd01::2`)
	for i, to := range both {
		check.True(t, 3*time.Second, fmt.Sprintf("an answer to who has sent to %s all the time", to), func() bool { return senders[i].answered.Load() > 0 })
	}
}

// A data plane that takes packets to VIPs by a link of its own, as Antrea does, gets them.
func TestUntranslatedIsForwardedToAntrea(t *testing.T) {
	r := newRig(t)
	r.addPod()
	sh(t, `ip -n n1 link set pod0 down
ip -n n1 link set pod0 name antrea-gw0
ip -n n1 link set antrea-gw0 up
ip -n n1 addr replace fd01::1/64 dev antrea-gw0 nodad
ip -n client route add 203.0.113.50 via 10.0.0.1
ip -n client route add 2001:db8::50 via fd00::1
ip -n n1 route add 203.0.113.50 via 10.1.1.2
ip -n n1 route add 2001:db8::50 via fd01::2
ip -n pod addr add 203.0.113.50 dev lo
ip -n pod addr add 2001:db8::50 dev lo nodad`)
	inside(t, "pod", func() {
		l := check.Value(net.Listen("tcp", ":80"))(t)
		t.Cleanup(func() { l.Close() })
		go serve(l, "pod")
	})
	both := []netip.Addr{netip.MustParseAddr("203.0.113.50"), netip.MustParseAddr("2001:db8::50")}
	hold(t, "n1", New(check.Log(t)).Invalid, both)
	for _, to := range both {
		if c, err := r.dialPort("client", to, 80); err != nil {
			t.Error(err)
		} else {
			c.wants(t, "pod")
		}
	}
}

// answerIn answers every packet to a UDP port of a namespace.
func answerIn(t testing.TB, namespace, address string) {
	inside(t, namespace, func() {
		c := check.Value(net.ListenPacket("udp", address))(t)
		t.Cleanup(func() { c.Close() })
		go func() {
			for b := make([]byte, 100); ; {
				n, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo(b[:n], from)
			}
		}()
	})
}

// A udpSender sends packets from one port of the client all the time, whatever it is told.
type udpSender struct{ sent, answered atomic.Int32 }

func sendUDP(t *testing.T, to netip.Addr, port uint16) *udpSender {
	s := &udpSender{}
	inside(t, "client", func() {
		c := check.Value(net.ListenPacket("udp", ":0"))(t) // not connected: no ICMP error ends it
		t.Cleanup(func() { c.Close() })
		go func() {
			for {
				if _, err := c.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, port))); errors.Is(err, net.ErrClosed) {
					return
				}
				s.sent.Add(1)
				time.Sleep(20 * time.Millisecond)
			}
		}()
		go func() {
			for b := make([]byte, 100); ; s.answered.Add(1) {
				if _, _, err := c.ReadFrom(b); err != nil {
					return
				}
			}
		}()
	})
	return s
}
