package l2

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/mdlayher/ndp"
	"github.com/mdlayher/packet"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

type sockets struct{}

// sendTimeout is how long a frame may wait for the link's queue.
const sendTimeout = 200 * time.Millisecond

// maxMessage is how much of an advertisement is read; one for a VIP has 32 bytes.
const maxMessage = 1500

// openSender opens a packet socket for Ethernet frames, which, unlike ARP's and ICMPv6's, needs no address on the link.
// Protocol 0 receives nothing. The runtime's poller does not watch it: it would wake the process after each frame
// (docs/why.md, "Wake-ups").
func (sockets) openSender(link vip.Link) (frameSender, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("can't open a packet socket: %w%s", err, vip.RawHint(err))
	}
	f := os.NewFile(uintptr(fd), "packet socket on "+link.Name) // it blocks, so the poller leaves it alone
	limit := unix.NsecToTimeval(int64(sendTimeout))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return nil, errors.Join(fmt.Errorf("can't set up a packet socket: %w", err), f.Close())
	}
	conn, _ := f.SyscallConn() // fails only without a file
	return packetSender{f, conn, link.Index}, nil
}

type packetSender struct {
	*os.File
	conn syscall.RawConn
	link int
}

// send implements frameSender; EAGAIN is a full buffer, ENOBUFS a full queue.
func (s packetSender) send(frame []byte, wait bool) error {
	flags := unix.MSG_DONTWAIT
	if wait {
		flags = 0
	}
	var sent error
	err := s.conn.Control(func(fd uintptr) {
		for sent = unix.EINTR; errors.Is(sent, unix.EINTR); {
			sent = unix.Sendto(int(fd), frame, flags, &unix.SockaddrLinklayer{Ifindex: s.link})
		}
	})
	return errors.Join(err, sent)
}

// openReceiver opens a packet socket for a link's ARP frames, or a raw ICMPv6 socket for neighbor advertisements. The
// link needs no address.
func (sockets) openReceiver(link vip.Link, family vip.Family) (messageReceiver, error) {
	ifi := net.Interface{Index: link.Index, Name: link.Name, MTU: maxMessage}
	if family == vip.IPv4 {
		// ARP frames only, so that other traffic costs nothing.
		c, err := packet.Listen(&ifi, packet.Raw, unix.ETH_P_ARP, nil)
		if err != nil {
			return nil, fmt.Errorf("can't open a packet socket for ARP: %w%s", err, vip.RawHint(err))
		}
		conn, err := c.SyscallConn()
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return &arpReceiver{c, conn, link.Index, make([]byte, 128)}, nil
	}
	// Bound to no address, so the link needs none. All are members of ff02::1.
	c, _, err := ndp.Listen(&ifi, ndp.Unspecified)
	if err != nil {
		return nil, fmt.Errorf("can't open an ICMPv6 socket: %w%s", err, vip.RawHint(err))
	}
	var only ipv6.ICMPFilter
	only.SetAll(true)
	only.Accept(ipv6.ICMPTypeNeighborAdvertisement)
	if err := errors.Join(c.SetICMPFilter(&only),
		c.SetControlMessage(ipv6.FlagInterface|ipv6.FlagHopLimit, true)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &ndpReceiver{c, link.Index, make([]byte, maxMessage)}, nil
}

// arpReceiver receives one link's ARP packets by a packet socket, which also gets those of its VLANs and macvlans
// (orig_dev in __netif_receive_skb_core), ignored here. Untagged ones of VLANs that this node lacks are
// PACKET_OTHERHOST, which arp_rcv ignores, too.
type arpReceiver struct {
	*packet.Conn
	conn  syscall.RawConn
	index int
	buf   []byte
}

// receive implements messageReceiver; ok is false for what is of others, or unreadable.
func (r *arpReceiver) receive() (m neighborMessage, ok bool, err error) {
	var n int
	var from unix.Sockaddr
	var read error
	err = r.conn.Read(func(fd uintptr) bool {
		n, from, read = unix.Recvfrom(int(fd), r.buf, unix.MSG_DONTWAIT)
		return !errors.Is(read, unix.EAGAIN) && !errors.Is(read, unix.EINTR)
	})
	if err = cmp.Or(err, read); err != nil {
		return m, false, err
	}
	if at, known := from.(*unix.SockaddrLinklayer); !known || at.Ifindex != r.index ||
		at.Pkttype == unix.PACKET_OTHERHOST {
		return m, false, nil
	}
	m, ok = parseARP(r.buf[:n])
	return m, ok, nil
}

// ndpReceiver receives advertisements, and ignores other links'.
type ndpReceiver struct {
	*ndp.Conn
	index int
	buf   []byte
}

// receive implements messageReceiver; ok is false for what may have passed a router, too.
func (r *ndpReceiver) receive() (m neighborMessage, ok bool, err error) {
	n, cm, _, err := r.ReadRaw(r.buf)
	if err != nil || cm == nil || cm.IfIndex != r.index || cm.HopLimit != ndp.HopLimit {
		return m, false, err
	}
	message, err := ndp.ParseMessage(r.buf[:n])
	if err != nil {
		return m, false, nil // anybody on the link may send that
	}
	m, ok = parseNA(message)
	return m, ok, nil
}
