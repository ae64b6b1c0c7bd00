package netif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Sizes and places in messages of sock_diag(7): struct inet_diag_req_v2 and inet_diag_msg in linux/inet_diag.h.
const (
	diagHead    = 8  // family, protocol, extensions, padding, states
	diagID      = 48 // ports, addresses, link, cookie
	answerID    = 4  // where the ID begins in an answer
	idSource    = 4  // where the local address begins in an ID, which itself begins with the local and the remote port
	idRemote    = 20 // where the remote address begins
	connections = 0xfff &^ (1<<7 | 1<<10)
	// All states but TCP_CLOSE (7) and TCP_LISTEN (10).
)

// diagRequest returns a request about one TCP socket, or all of a family if id is nil.
func diagRequest(kind, flags int, family uint8, id []byte) *nl.NetlinkRequest {
	b := make([]byte, diagHead+diagID)
	b[0], b[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(b[4:], connections)
	copy(b[diagHead:], id)
	r := nl.NewNetlinkRequest(kind, flags)
	r.AddRawData(b)
	return r
}

// connectionKinds says which connections to an address are reset.
type connectionKinds int

const (
	served     connectionKinds = 1 << iota // those that end in a socket of this node with the address
	translated                             // those that the kernel translates to another address of this node
	ownClients                             // those of this node that ended elsewhere while the address was there
)

// resetConnections ends TCP connections to a, and returns how many (docs/why.md, "The control plane's VIP").
func (k *rtnetlink) resetConnections(a netip.Addr, kinds connectionKinds) (int, error) {
	var errs []error
	ends := make(map[connectionEnds]bool)
	if kinds&translated != 0 {
		if err := listTranslated(a, func(c connectionEnds) { ends[c] = true }); err != nil {
			errs = append(errs, fmt.Errorf("translated connections to %s can't be listed: %w", a, err))
		}
	}
	n := 0
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} { // a socket for both has IPv4 mapped into IPv6
		// the kernel sends the reset from a, which must still be bound
		sockets, err := diagRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, family, nil).Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) {
			errs = append(errs, fmt.Errorf("connections to %s can't be listed: %w", a, err))
			continue
		}
		for _, s := range sockets {
			if len(s) < answerID+diagID {
				continue
			}
			c := socketEnds(s[0], s[answerID:])
			local, remote := c.local.Addr() == a, c.remote.Addr() == a
			if !(kinds&served != 0 && local || kinds&ownClients != 0 && remote && !local || ends[c]) {
				continue
			}
			switch _, err := diagRequest(nl.SOCK_DESTROY, unix.NLM_F_ACK, s[0], s[answerID:answerID+diagID]).Execute(
				unix.NETLINK_INET_DIAG, 0); {
			case err == nil:
				n++
			case !errors.Is(err, unix.ENOENT): // it has ended meanwhile
				errs = append(errs, fmt.Errorf("a connection to %s can't be reset: %w", a, err))
			}
		}
	}
	return n, errors.Join(errs...)
}

// connectionEnds are as a socket of this node has them.
type connectionEnds struct{ local, remote netip.AddrPort }

func socketEnds(family uint8, id []byte) connectionEnds {
	return connectionEnds{
		netip.AddrPortFrom(socketAddress(family, id[idSource:]), binary.BigEndian.Uint16(id)),
		netip.AddrPortFrom(socketAddress(family, id[idRemote:]), binary.BigEndian.Uint16(id[2:])),
	}
}

// socketAddress returns an address in an ID: 16 bytes, of which IPv4 uses the first 4.
func socketAddress(family uint8, b []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(b[:4]))
	}
	return netip.AddrFrom16([16]byte(b[:16])).Unmap()
}
