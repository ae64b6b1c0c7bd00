package bfd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/mailbox"
)

const (
	port       = 3784  // UDP, RFC 5881 section 4
	firstPort  = 49152 // of the source ports, RFC 5881 section 4
	hopLimit   = 255   // sent, and required of what is received: no host beyond the link can send so (RFC 5881 section 5)
	dscp       = 0xc0  // CS6 as the octet of the IP header: as routing protocols
	dialTries  = 20    // other source ports, when one is in use
	maxFilters = 200   // neighbors of one family: classic BPF jumps over 255 instructions at most
	// readsPerSecond is how many packets are read of a family, for a flood in a neighbor's name to cost little.
	readsPerSecond = 4000
)

// kernel is this node's network: a receiving socket for each family, a sending one for each neighbor.
type kernel struct{ conns [2]*net.UDPConn }

func (k *kernel) listen(ip6 bool, neighbors []netip.Addr, take func(received)) error {
	i := familyIndex(ip6)
	if len(neighbors) == 0 {
		if k.conns[i] != nil {
			k.conns[i].Close()
			k.conns[i] = nil
		}
		return nil
	}
	if len(neighbors) > maxFilters {
		return fmt.Errorf("there are more than %d BFD sessions", maxFilters)
	}
	setFilter, err := filterSetter(filterFor(ip6, neighbors))
	if err != nil {
		return err
	}
	if k.conns[i] != nil {
		raw, err := k.conns[i].SyscallConn()
		if err != nil {
			return err
		}
		return setFilter("", "", raw)
	}
	l := net.ListenConfig{Control: setFilter} // before the socket has a port, so that nothing gets past it
	c, err := l.ListenPacket(context.Background(), [...]string{"udp4", "udp6"}[i], ":"+strconv.Itoa(port))
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return errors.New("another program on this node does BFD already (UDP port 3784 is in use)")
	case err != nil:
		return err
	}
	k.conns[i] = c.(*net.UDPConn)
	go read(k.conns[i], take)
	return nil
}

// filterSetter is a net.ListenConfig.Control that gives a socket the filter, in place of its own.
func filterSetter(program []bpf.Instruction) (func(network, address string, c syscall.RawConn) error, error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, err
	}
	var filter []unix.SockFilter
	for _, r := range raw {
		filter = append(filter, unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K})
	}
	return func(_, _ string, c syscall.RawConn) (err error) {
		prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog)
		}), err)
	}, nil
}

// read gives packets to take until c is closed, readsPerSecond at most.
func read(c *net.UDPConn, take func(received)) {
	b := make([]byte, 256) // the length of a packet is one byte
	for limit := (mailbox.Limit{PerSecond: readsPerSecond}); ; limit.Read() {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if p, err := parsePacket(b[:n]); err == nil {
			take(received{from.Addr().Unmap(), p})
		}
	}
}

// networkHeader is where a socket's filter finds the IP header (SKF_NET_OFF of linux/filter.h).
const networkHeader = 1<<32 - 0x100000

// filterFor is a filter for packets that the neighbors sent over one hop, by source address and TTL or hop limit.
// Others never get into the receive buffer, and cost nothing.
func filterFor(ip6 bool, neighbors []netip.Addr) []bpf.Instruction {
	hops, source := uint32(8), uint32(12)
	if ip6 {
		hops, source = 7, 8
	}
	pass, drop := bpf.RetConstant{Val: 65535}, bpf.RetConstant{}
	all := []bpf.Instruction{
		bpf.LoadAbsolute{Off: networkHeader + hops, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: hopLimit, SkipTrue: 1},
		drop,
	}
	for _, n := range neighbors {
		words := n.AsSlice()
		for i := 0; i < len(words); i += 4 {
			word := binary.BigEndian.Uint32(words[i:])
			left := (len(words)-i)/4 - 1 // words that follow, each of two instructions
			all = append(all,
				bpf.LoadAbsolute{Off: networkHeader + source + uint32(i), Size: 4},
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: word, SkipTrue: uint8(2*left + 1)})
		}
		all = append(all, pass)
	}
	return append(all, drop)
}

type udpSender struct{ conn net.Conn }

func (k *kernel) dial(c Config) (sender, error) {
	var err error
	for range dialTries {
		local := &net.UDPAddr{IP: c.Source.AsSlice(), Port: firstPort + rand.IntN(1<<16-firstPort), Zone: c.Neighbor.Zone()}
		d := net.Dialer{Control: control(c), LocalAddr: local}
		var conn net.Conn
		if conn, err = d.Dial("udp", netip.AddrPortFrom(c.Neighbor, port).String()); err == nil {
			return udpSender{conn}, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, err
}

func control(c Config) func(network, address string, raw syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) (err error) {
		level, hops, class := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_TOS
		if c.Neighbor.Is6() {
			level, hops, class = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS
		}
		failed := raw.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), level, hops, hopLimit),
				unix.SetsockoptInt(int(fd), level, class, dscp))
			if c.Link != "" {
				err = errors.Join(err, unix.BindToDevice(int(fd), c.Link))
			}
		})
		return errors.Join(failed, err)
	}
}

// send sends a packet. That the neighbor refused one before (nothing listens) is no error.
func (s udpSender) send(b []byte) error {
	_, err := s.conn.Write(b)
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil
	}
	return err
}

func (s udpSender) close() { s.conn.Close() }
