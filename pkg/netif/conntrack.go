package netif

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// Places in a message about a connection (enum ctattr_type, linux/netfilter/nfnetlink_conntrack.h).
const (
	attrTypeMask = 0x3fff // without NLA_F_NESTED and NLA_F_NET_BYTEORDER
	// The states in which either side may send.
	firstState, lastState = nl.TCP_CONNTRACK_SYN_RECV, nl.TCP_CONNTRACK_LAST_ACK
)

// listTranslated calls found with the ends of each translated TCP connection to a.
func listTranslated(a netip.Addr, found func(connectionEnds)) error {
	return listConntrack(func(state uint8, about []byte) {
		if state < firstState || state > lastState ||
			tupleAddress(about, nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST) != a {
			return
		}
		port := func(kind int) uint16 {
			if p := attribute(about, nl.CTA_TUPLE_REPLY, nl.CTA_TUPLE_PROTO, kind); len(p) == 2 {
				return binary.BigEndian.Uint16(p)
			}
			return 0
		}
		c := connectionEnds{ // an answer goes from the local end to the remote one
			netip.AddrPortFrom(tupleAddress(about, nl.CTA_TUPLE_REPLY, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC),
				port(nl.CTA_PROTO_SRC_PORT)),
			netip.AddrPortFrom(tupleAddress(about, nl.CTA_TUPLE_REPLY, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST),
				port(nl.CTA_PROTO_DST_PORT)),
		}
		if c.local.Addr() != a {
			found(c)
		}
	})
}

// forgetFor is how long forgetStale looks each second after a move: kube-proxy's rules may be a second late, and until
// then a process listening at the port takes packets.
var forgetFor = 4 * time.Second

// Put has conntrack forget stale flows to VIPs that are advertised from now on, bound or not.
func (n *Interfaces) Put(routes []vip.Route) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := n.advertised
	n.advertised = make(map[netip.Prefix]bool, len(routes))
	for _, r := range routes {
		if n.advertised[r.Prefix] = true; !before[r.Prefix] && r.Prefix.IsSingleIP() && !r.Untranslated {
			n.forget(r.Prefix.Addr())
		}
	}
}

// forget has forgetStale look for flows to a, which came.
func (n *Interfaces) forget(a netip.Addr) {
	n.came[a] = time.Now()
	n.looks.Send()
}

// Senders is a mailbox for all Egress of a Plan: where a VIP's owner changes, conntrack forgets what pods sent before.
type Senders Interfaces

// A sender is a pod whose VIP changed its node, or went.
type sender struct {
	vip.Egress
	gone bool // it has no VIP any more
	at   time.Time
}

// Put takes what egress there is from now on.
func (s *Senders) Put(all []vip.Egress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.egress
	s.egress = make(map[netip.Addr]vip.Egress, len(all))
	for _, e := range all {
		if !e.Former {
			s.egress[e.VIP] = e
		}
	}
	for a, e := range before {
		if _, known := s.egress[a]; !known {
			s.follow(e, true)
		}
	}
	for a, e := range s.egress {
		if b, known := before[a]; !known || b.Via != e.Via {
			s.follow(e, false)
		}
	}
}

func (s *Senders) follow(e vip.Egress, gone bool) {
	for _, pod := range e.Pods {
		s.senders[pod] = sender{e, gone, time.Now()}
	}
	s.looks.Send()
}

// isStale reports whether a flow that x sends, with the ends that its server sees, does not have the way of x.
func (x sender) isStale(server, client netip.Addr, about []byte) bool {
	mark := attribute(about, nl.CTA_MARK)
	led := len(mark) == 4 && binary.BigEndian.Uint32(mark)&vip.EgressMark != 0 // to another node
	switch {
	case x.gone && time.Since(x.at) < forgetFor/2: // maybe nobody has it for a moment
		return false
	case x.gone, x.Via.IsValid():
		return client == x.VIP
	}
	limits := len(x.AllowedNetworks) + len(x.DeniedNetworks) + len(x.DestinationPorts) + len(x.SourcePorts)
	return client != x.VIP && (led || limits == 0 &&
		!slices.ContainsFunc(x.Internal, func(p netip.Prefix) bool { return p.Contains(server) }))
}

// forgetStale has conntrack forget stale flows of what moved, until ctx ends.
func (n *Interfaces) forgetStale(ctx context.Context) {
	for timer, warned := time.NewTimer(0), ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-n.looks:
		case <-timer.C:
		}
		n.mu.Lock()
		began := time.Now()
		all, senders := slices.Collect(maps.Keys(n.came)), maps.Clone(n.senders)
		maps.DeleteFunc(n.came, func(_ netip.Addr, at time.Time) bool { return began.Sub(at) >= forgetFor })
		maps.DeleteFunc(n.senders, func(_ netip.Addr, x sender) bool { return began.Sub(x.at) >= forgetFor })
		n.mu.Unlock()
		if len(all)+len(senders) == 0 {
			continue
		}
		// a kernel that can't do it says the same each time
		if err := n.kernel.forgetStale(all, senders); err != nil && err.Error() != warned {
			warned = err.Error()
			n.log.Warn("what was sent to VIPs, or by them, before they moved may be lost", "err", err)
		}
		// it reads all that conntrack knows: a fifth of a core is enough
		if !mailbox.Sleep(ctx, 4*time.Since(began)) {
			return
		}
		timer.Reset(time.Second)
	}
}

// maxForgotten is how many flows to a VIP, and of its pods, are forgotten at most: others can fill conntrack's 262,144.
const maxForgotten = 10000

// forgetStale has conntrack forget flows to some addresses and from some pods, maxForgotten of each VIP:
//   - Those that are not translated, but for TCP connections that somebody has answered: this node forwarded their
//     first packets before it had the address, or a process of its own took them before kube-proxy had its rules.
//     nftables translates only the first packet of a flow that conntrack knows (nf_nat_inet_fn).
//   - TCP connections that have ended, which conntrack knows for two minutes more. The client may have another one by
//     the same port, begun while another node had the address: its packets are not of what conntrack has, and would
//     be dropped (nft.Table) where a node that knows nothing sends them on.
//   - What pods send by an earlier owner of their VIP, but for TCP: it would keep its source (vip.Egress).
func (k *rtnetlink) forgetStale(addrs []netip.Addr, senders map[netip.Addr]sender) error {
	found, sent := make(map[netip.Addr]int, len(addrs)), make(map[netip.Addr]int)
	for _, a := range addrs {
		found[a] = 0
	}
	var stale []conntrackEntry
	err := listConntrack(func(state uint8, about []byte) {
		a := tupleAddress(about, nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST)
		_, wanted := found[a]
		if !wanted && (state != notTCP || len(senders) == 0) {
			return
		}
		count, server := found, tupleAddress(about, nl.CTA_TUPLE_REPLY, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC)
		client := tupleAddress(about, nl.CTA_TUPLE_REPLY, nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST)
		x, sends := senders[tupleAddress(about, nl.CTA_TUPLE_ORIG, nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC)]
		switch {
		case state == nl.TCP_CONNTRACK_TIME_WAIT || state == nl.TCP_CONNTRACK_CLOSE:
		case state == notTCP && sends && x.isStale(server, client, about):
			count, a = sent, x.VIP
		case !wanted, state != notTCP && state != nl.TCP_CONNTRACK_SYN_SENT, server != a:
			return
		}
		if count[a]++; count[a] <= maxForgotten {
			stale = append(stale,
				conntrackEntry{server.Is6(), slices.Clone(attribute(about, nl.CTA_TUPLE_ORIG)),
					slices.Clone(attribute(about, nl.CTA_ID))})
		}
	})
	errs := []error{err, deleteConntrack(stale)}
	for _, count := range []map[netip.Addr]int{found, sent} {
		for a, n := range count {
			if n > maxForgotten {
				errs = append(errs, fmt.Errorf("there are %d of %s, of which %d are", n, a, maxForgotten))
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("not all of them are taken from conntrack: %w", err)
	}
	return nil
}

type conntrackEntry struct {
	is6   bool
	tuple []byte // CTA_TUPLE_ORIG
	id    []byte // CTA_ID: a later connection with the same tuple has another
}

// deleteConntrack has conntrack forget connections, by one socket.
func deleteConntrack(entries []conntrackEntry) error {
	if len(entries) == 0 {
		return nil
	}
	s, err := openSocket(unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer s.Close()
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: s}
	for _, x := range entries {
		family := uint8(unix.AF_INET)
		if x.is6 {
			family = unix.AF_INET6
		}
		r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
		r.Sockets = sockets
		r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
		r.AddData(nl.NewRtAttr(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, x.tuple))
		if len(x.id) > 0 {
			r.AddData(nl.NewRtAttr(nl.CTA_ID, x.id))
		}
		// it has ended meanwhile
		if _, err := r.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return err // what keeps one from being forgotten keeps all
		}
	}
	return nil
}

// notTCP is the state that listConntrack gives other flows.
const notTCP = 0xff

// listConntrack calls found with TCP state (or notTCP) and attributes of each known flow.
func listConntrack(found func(state uint8, about []byte)) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		r := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_CTNETLINK<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
		r.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
		err := r.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
			if len(message) < nl.SizeofNfgenmsg {
				return true
			}
			about, state := message[nl.SizeofNfgenmsg:], uint8(notTCP)
			if s := attribute(about, nl.CTA_PROTOINFO, nl.CTA_PROTOINFO_TCP, nl.CTA_PROTOINFO_TCP_STATE); len(s) > 0 {
				state = s[0]
			}
			found(state, about)
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// tupleAddress returns an address of one direction of a connection, or zero.
func tupleAddress(about []byte, direction, v4, v6 int) netip.Addr {
	for _, kind := range []int{v4, v6} {
		if a, ok := netip.AddrFromSlice(attribute(about, direction, nl.CTA_TUPLE_IP, kind)); ok && a.Is4() == (kind == v4) {
			return a
		}
	}
	return netip.Addr{}
}

// attribute returns the value of a nested netlink attribute, or nil.
func attribute(b []byte, path ...int) []byte {
next:
	for _, want := range path {
		all, err := nl.ParseRouteAttr(b)
		if err != nil {
			return nil
		}
		for _, a := range all {
			if int(a.Attr.Type&attrTypeMask) == want {
				b = a.Value
				continue next
			}
		}
		return nil
	}
	return b
}

// Sizes and places in messages of sock_diag(7): struct inet_diag_req_v2 and inet_diag_msg in linux/inet_diag.h.
const (
	diagHead    = 8                       // family, protocol, extensions, padding, states
	diagID      = 48                      // ports, addresses, link, cookie
	answerID    = 4                       // where the ID begins in an answer
	idSource    = 4                       // where the local address begins in an ID, after the local and the remote port
	idRemote    = 20                      // where the remote address begins
	connections = 0xfff &^ (1<<7 | 1<<10) // all states but TCP_CLOSE (7) and TCP_LISTEN (10)
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
