package l2

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/rawio"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/mdlayher/ndp"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// sockets is the node's links by packet(7) and raw ICMPv6 sockets.
type sockets struct{}

func (sockets) links() ([]net.Interface, error) { return net.Interfaces() }

// patience is how long a frame may wait for room in the link's queue.
const patience = 200 * time.Millisecond

// speak opens a packet socket for whole frames of both families. It works
// without an address on the link, which a client of ARP or a raw ICMPv6 socket
// would need. Protocol 0 receives nothing.
//
// It is no socket of the net poller's, which would wake the process up after each
// frame to tell that there is room for another.
func (sockets) speak(ifi net.Interface) (mouth, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("can't open a packet socket: %w%s", err, hint(err))
	}
	f := os.NewFile(uintptr(fd), "packet socket on "+ifi.Name) // it blocks, so the poller leaves it alone
	limit := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return nil, errors.Join(fmt.Errorf("can't set up a packet socket: %w", err), f.Close())
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return packetMouth{f, conn, ifi.Index}, nil
}

// packetMouth is a packet socket, and the index of its link.
type packetMouth struct {
	file *os.File
	conn syscall.RawConn
	link int
}

func (m packetMouth) close() error { return m.file.Close() }

func (m packetMouth) send(frame []byte) error {
	if err := rawio.Send(m.conn, frame, m.link); !errors.Is(err, unix.EAGAIN) {
		return err
	}
	var sent error // there is no room: this waits for it
	err := m.conn.Control(func(fd uintptr) {
		for {
			sent = unix.Sendto(int(fd), frame, 0, &unix.SockaddrLinklayer{Ifindex: m.link})
			if !errors.Is(sent, unix.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, sent)
}

func (sockets) listen(ifi net.Interface, family vip.Family) (ear, error) {
	if family == vip.IPv4 {
		// The kernel hands over ARP frames only, so that other traffic costs nothing.
		c, err := packet.Listen(&ifi, packet.Raw, unix.ETH_P_ARP, nil)
		if err != nil {
			return nil, fmt.Errorf("can't open a packet socket for ARP: %w%s", err, hint(err))
		}
		r, err := rawio.NewReader(c)
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return &arpEar{conn: c, reader: r, buf: make([]byte, 128)}, nil
	}
	// Bound to no address, so that the link needs none. All are members of ff02::1.
	c, _, err := ndp.Listen(&ifi, ndp.Unspecified)
	if err != nil {
		return nil, fmt.Errorf("can't open an ICMPv6 socket: %w%s", err, hint(err))
	}
	var only ipv6.ICMPFilter
	only.SetAll(true)
	only.Accept(ipv6.ICMPTypeNeighborAdvertisement)
	if err := errors.Join(c.SetICMPFilter(&only), c.SetControlMessage(ipv6.FlagInterface|ipv6.FlagHopLimit, true)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &ndpEar{conn: c, index: ifi.Index}, nil
}

type arpEar struct {
	conn   *packet.Conn
	reader *rawio.Reader
	buf    []byte
}

func (e *arpEar) close() error { return e.conn.Close() }

func (e *arpEar) next() (word, error) {
	for {
		n, err := e.reader.Read(e.buf)
		if err != nil {
			return word{}, err
		}
		if w, ok := parseARP(e.buf[:n]); ok {
			return w, nil
		}
	}
}

func (e *arpEar) sift(narrow bool, only []netip.Addr) error {
	filter := everything
	if narrow {
		filter = sieve(only)
	}
	program, err := bpf.Assemble(filter)
	if err != nil {
		return err
	}
	return e.conn.SetBPF(program)
}

// ndpEar hears the advertisements on all links, and heeds those on its own.
type ndpEar struct {
	conn  *ndp.Conn
	index int
}

func (e *ndpEar) close() error { return e.conn.Close() }

// sift changes nothing: the questions of others don't come this far, and who announces
// how many VIPs by IPv6 is not known to be a burden.
func (e *ndpEar) sift(bool, []netip.Addr) error { return nil }

func (e *ndpEar) next() (word, error) {
	for {
		m, cm, _, err := e.conn.ReadFrom()
		if err != nil {
			return word{}, err
		}
		if cm == nil || cm.IfIndex != e.index || cm.HopLimit != ndp.HopLimit {
			continue
		}
		if w, ok := parseNA(m); ok {
			return w, nil
		}
	}
}

// hint says what to do about a kernel's errno.
func hint(err error) string {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return " (the process needs the capability NET_RAW)"
	}
	return ""
}
