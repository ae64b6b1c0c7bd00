// Package rawio reads and sends packets by raw system calls, which the Go scheduler does not see.
//
// A process that was asleep and makes a system call in the usual way wakes up the
// runtime's monitor, since the call might block: one more thread, which from then on checks
// every 20 µs whether the process is idle again (sysmon in runtime/proc.go). That doubles the
// cost of reading one packet. A call that can't block need not be watched, and no call here
// can: each has MSG_DONTWAIT (docs/why.md, "Wake-ups").
package rawio

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Reader reads packets from a socket that Go's net poller knows. One goroutine at a
// time may use it.
type Reader struct {
	conn   syscall.RawConn
	try    func(fd uintptr) bool // receive, made once, or each Read would make garbage
	buf    []byte
	n      int
	err    error
	from   unix.RawSockaddrAny
	length uint32
}

// NewReader makes a Reader of c. It fails if c can't give its descriptor.
func NewReader(c syscall.Conn) (*Reader, error) {
	conn, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	r := &Reader{conn: conn}
	r.try = r.receive
	return r, nil
}

// Read waits for a packet, and returns its length. One that is longer than b is cut.
// Errors are those of recvfrom(2), and the socket's own once it is closed.
func (r *Reader) Read(b []byte) (int, error) {
	r.buf, r.n, r.err = b, 0, unix.EINVAL
	if len(b) == 0 {
		return 0, r.err
	}
	if err := r.conn.Read(r.try); err != nil {
		return 0, err
	}
	return r.n, r.err
}

// receive reports whether there was a packet, or an error.
func (r *Reader) receive(fd uintptr) bool {
	for {
		r.length = unix.SizeofSockaddrAny
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&r.buf[0])), uintptr(len(r.buf)), unix.MSG_DONTWAIT,
			uintptr(unsafe.Pointer(&r.from)), uintptr(unsafe.Pointer(&r.length)))
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		case 0:
			r.n, r.err = int(n), nil
		default:
			r.err = errno
		}
		return true
	}
}

// Sender is who sent the packet that was read last: the zero AddrPort if that was not
// by IP. It has no zone.
func (r *Reader) Sender() netip.AddrPort {
	switch r.from.Addr.Family {
	case unix.AF_INET:
		a := (*unix.RawSockaddrInet4)(unsafe.Pointer(&r.from))
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), ntohs(a.Port))
	case unix.AF_INET6:
		a := (*unix.RawSockaddrInet6)(unsafe.Pointer(&r.from))
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), ntohs(a.Port))
	}
	return netip.AddrPort{}
}

// Link is the index of the link by which the packet came that was read last from a packet socket: it may be a link on
// top of that of the socket (sll_ifindex in packet(7) is of skb->dev). 0 for any other socket.
func (r *Reader) Link() int {
	if r.from.Addr.Family != unix.AF_PACKET {
		return 0
	}
	return int((*unix.RawSockaddrLinklayer)(unsafe.Pointer(&r.from)).Ifindex)
}

// ToOtherHost reports whether the packet that was read last, from a packet socket, is not for this host (PACKET_OTHERHOST): its MAC
// address is another's, or its VLAN one that this host does not have. The kernel's protocols ignore such packets.
func (r *Reader) ToOtherHost() bool {
	return r.from.Addr.Family == unix.AF_PACKET && (*unix.RawSockaddrLinklayer)(unsafe.Pointer(&r.from)).Pkttype == unix.PACKET_OTHERHOST
}

// ntohs is ntohs(3), and htons is htons(3).
func ntohs(n uint16) uint16 { return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)) }
func htons(n uint16) uint16 { return ntohs(n) }

// Send sends a frame on a link by a packet socket (packet(7)). It never waits: where
// there is no room it returns EAGAIN or ENOBUFS. Other errors are those of sendto(2),
// and c's own once it is closed.
func Send(c syscall.RawConn, frame []byte, link int) error {
	to := unix.RawSockaddrLinklayer{Family: unix.AF_PACKET, Ifindex: int32(link)}
	return send(c, frame, unsafe.Pointer(&to), unix.SizeofSockaddrLinklayer)
}

// SendTo sends a datagram by a UDP socket, whose address is of the same family; a link-local address
// is on the link with that index. Like Send it never waits: packets to neighbors whose MAC address the
// kernel does not find stay in the socket's send buffer for seconds.
func SendTo(c syscall.RawConn, datagram []byte, to netip.AddrPort, link int) error {
	if to.Addr().Is4() {
		at := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: htons(to.Port()), Addr: to.Addr().As4()}
		return send(c, datagram, unsafe.Pointer(&at), unix.SizeofSockaddrInet4)
	}
	at := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: htons(to.Port()), Addr: to.Addr().As16(), Scope_id: uint32(link)}
	return send(c, datagram, unsafe.Pointer(&at), unix.SizeofSockaddrInet6)
}

// send is sendto(2) with MSG_DONTWAIT.
func send(c syscall.RawConn, b []byte, to unsafe.Pointer, length uintptr) error {
	if len(b) == 0 {
		return unix.EINVAL
	}
	var errno syscall.Errno
	err := c.Control(func(fd uintptr) {
		errno = unix.EINTR
		for errno == unix.EINTR {
			_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, uintptr(to), length)
		}
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}
