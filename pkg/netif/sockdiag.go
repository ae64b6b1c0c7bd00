package netif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Sizes and places in the messages of sock_diag(7), struct inet_diag_req_v2 and struct
// inet_diag_msg in linux/inet_diag.h.
const (
	diagHead    = 8  // family, protocol, extensions, padding, states
	diagID      = 48 // ports, addresses, link, cookie
	answerID    = 4  // where the ID begins in an answer
	idSource    = 4  // where the local address begins in an ID
	connections = 0xfff &^ (1<<7 | 1<<10)
	// All states but TCP_CLOSE (7) and TCP_LISTEN (10).
)

// diagRequest is a request about one TCP socket, or about all connections of a family if id is nil.
func diagRequest(kind, flags int, family uint8, id []byte) *nl.NetlinkRequest {
	b := make([]byte, diagHead+diagID)
	b[0], b[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], connections)
	copy(b[diagHead:], id)
	r := nl.NewNetlinkRequest(kind, flags)
	r.AddRawData(b)
	return r
}

// resetConnections ends the TCP connections to a that end on this node, and returns how many. Their
// clients get a reset and can connect again, to wherever a is then; they would not notice
// for long otherwise, since what the node sends from an address that it has no more goes nowhere.
//
// The kernel sends the reset from a, so it must still be bound (decision 0053).
func (k *rtnetlink) resetConnections(a netip.Addr) (int, error) {
	n := 0
	var errs []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} { // a socket for both has IPv4 mapped into IPv6
		sockets, err := diagRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, family, nil).Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) {
			errs = append(errs, fmt.Errorf("connections to %s can't be listed: %w", a, err))
			continue
		}
		for _, s := range sockets {
			if len(s) < answerID+diagID || socketAddress(s[0], s[answerID+idSource:]) != a {
				continue
			}
			switch _, err := diagRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK, s[0], s[answerID:answerID+diagID]).Execute(unix.NETLINK_INET_DIAG, 0); {
			case err == nil:
				n++
			case !errors.Is(err, unix.ENOENT): // it has ended meanwhile
				errs = append(errs, fmt.Errorf("a connection to %s can't be reset: %w", a, err))
			}
		}
	}
	return n, errors.Join(errs...)
}

// socketAddress is an address in an ID: 16 bytes, of which IPv4 uses the first 4.
func socketAddress(family uint8, b []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16([16]byte(b[:16])).Unmap()
}
