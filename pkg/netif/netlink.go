package netif

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// ifaProto is IFA_PROTO of linux/if_addr.h: who added an address. Kernels since
	// 5.18 keep it.
	ifaProto = 11
	// mark is our value of it. The kernel uses 1 to 3 itself, nobody assigns the others.
	mark = 'v'
	// labelSuffix marks an IPv4 address where the kernel doesn't keep IFA_PROTO.
	labelSuffix = ":herald"
	// answerTime is how long the kernel may take over a request.
	answerTime = 5 * time.Second
)

// rtnetlink is the kernel as rtnetlink(7) offers it.
type rtnetlink struct {
	socket   map[int]*nl.SocketHandle // one for all requests; it locks itself
	renewals *nl.SocketHandle         // one for those that feeds don't tell of
	proto    bool                     // the kernel keeps IFA_PROTO
}

func openNetlink() (*rtnetlink, error) {
	requests, err := openSocket()
	if err != nil {
		return nil, err
	}
	renewals, err := openSocket()
	if err != nil {
		requests.Socket.Close()
		return nil, err
	}
	return &rtnetlink{
		socket:   map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: requests},
		renewals: renewals,
		proto:    keepsProto(),
	}, nil
}

// openSocket opens a socket for requests.
func openSocket() (*nl.SocketHandle, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE) // to no group
	if err != nil {
		return nil, fmt.Errorf("can't talk to the kernel about network interfaces: %w", err)
	}
	limit := unix.NsecToTimeval(int64(answerTime))
	if err := errors.Join(s.SetSendTimeout(&limit), s.SetReceiveTimeout(&limit)); err != nil {
		s.Close()
		return nil, err
	}
	return &nl.SocketHandle{Socket: s}, nil
}

// keepsProto reports whether the kernel is 5.18 or later.
func keepsProto() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 5 || major == 5 && minor >= 18
}

func (k *rtnetlink) marks() bool { return k.proto }

func (k *rtnetlink) request(kind, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Sockets = k.socket
	return r
}

func (k *rtnetlink) bind(list []binding) []error {
	return k.ask(k.socket[unix.NETLINK_ROUTE], list)
}

func (k *rtnetlink) renew(list []binding) []error { return k.ask(k.renewals, list) }

// ask asks for many in one write, and for one answer: the kernel answers what it
// refuses, and the last (netlink(7), NLM_F_ACK). For hundreds that costs a third
// of what as many requests do (BenchmarkRenewal).
func (k *rtnetlink) ask(handle *nl.SocketHandle, list []binding) []error {
	errs := make([]error, len(list))
	if len(list) == 0 {
		return errs
	}
	handle.Socket.Lock()
	defer handle.Socket.Unlock()
	first := atomic.AddUint32(&handle.Seq, uint32(len(list))) - uint32(len(list)) + 1
	var requests []byte
	for i, b := range list {
		r := k.newAddress(b)
		r.Seq = first + uint32(i)
		if i == len(list)-1 {
			r.Flags |= unix.NLM_F_ACK
		}
		requests = append(requests, r.Serialize()...) // attributes end at a multiple of 4, and so do messages
	}
	err := unix.Sendto(handle.Socket.GetFd(), requests, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for end := false; err == nil && !end; {
		var answers []syscall.NetlinkMessage
		if answers, _, err = handle.Socket.Receive(); err != nil {
			break
		}
		for _, m := range answers {
			i := int(int32(m.Header.Seq - first))
			if m.Header.Type != unix.NLMSG_ERROR || i < 0 || i >= len(list) || len(m.Data) < 4 { // to an earlier request
				continue
			}
			if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
				errs[i] = unix.Errno(-code)
			}
			end = end || i == len(list)-1
		}
	}
	if err != nil { // nobody knows which worked; to do it again does no harm
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}

func (k *rtnetlink) newAddress(b binding) *nl.NetlinkRequest {
	r := k.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	flags := uint32(unix.IFA_F_NOPREFIXROUTE)
	if b.prefix.Addr().Is6() { // whether it is free was asked before, if it had to be
		flags |= unix.IFA_F_NODAD
	}
	addAddress(r, b.place)
	r.AddData(nl.NewRtAttr(unix.IFA_FLAGS, binary.NativeEndian.AppendUint32(nil, flags)))
	r.AddData(nl.NewRtAttr(ifaProto, []byte{mark}))
	life := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Valid: b.seconds}}
	r.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, life.Serialize()))
	if label := b.link + labelSuffix; !k.proto && b.prefix.Addr().Is4() && len(label) < unix.IFNAMSIZ {
		r.AddData(nl.NewRtAttr(unix.IFA_LABEL, nl.ZeroTerminated(label)))
	}
	return r
}

func (k *rtnetlink) unbind(p place) error {
	r := k.request(unix.RTM_DELADDR, unix.NLM_F_ACK)
	addAddress(r, p)
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// addAddress adds the head of a message on an address, and the address.
func addAddress(r *nl.NetlinkRequest, p place) {
	family, ip := unix.AF_INET, p.prefix.Addr().AsSlice()
	if p.prefix.Addr().Is6() {
		family = unix.AF_INET6
	}
	head := nl.NewIfAddrmsg(family)
	head.Prefixlen = uint8(p.prefix.Bits())
	head.Index = uint32(p.link)
	r.AddData(head)
	r.AddData(nl.NewRtAttr(unix.IFA_LOCAL, ip))
	r.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, ip))
}

func (k *rtnetlink) read() (*picture, error) {
	p := newPicture()
	links, err := k.dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_UNSPEC))
	if err != nil {
		return nil, fmt.Errorf("can't read the network interfaces: %w", err)
	}
	for _, m := range links {
		if l, ok := parseLink(m); ok {
			p.add(l)
		}
	}
	addresses, err := k.dump(unix.RTM_GETADDR, unix.RTM_NEWADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC))
	if err != nil {
		return nil, fmt.Errorf("can't read the addresses of the network interfaces: %w", err)
	}
	for _, m := range addresses {
		if e, ok := parseEntry(m); ok {
			p.entries[e.place] = e
		}
	}
	p.routes, err = k.routes()
	return p, err
}

func (k *rtnetlink) routes() ([]route, error) {
	head := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_UNSPEC}}
	messages, err := k.dump(unix.RTM_GETROUTE, unix.RTM_NEWROUTE, head)
	if err != nil {
		return nil, fmt.Errorf("can't read the routes: %w", err)
	}
	var routes []route
	for _, m := range messages {
		if r, ok := parseRoute(m); ok {
			routes = append(routes, r)
		}
	}
	return routes, nil
}

// dump asks for all there is. The kernel says when something changed meanwhile,
// which may leave parts out: then it is asked again.
func (k *rtnetlink) dump(kind, answer int, head nl.NetlinkRequestData) ([][]byte, error) {
	for range 10 {
		r := k.request(kind, unix.NLM_F_DUMP)
		r.AddData(head)
		messages, err := r.Execute(unix.NETLINK_ROUTE, uint16(answer))
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			return messages, err
		}
	}
	return nil, errors.New("it changed faster than it could be read, ten times in a row")
}

// netlinkFeed is a subscription to rtnetlink's multicast groups.
type netlinkFeed struct{ socket *nl.NetlinkSocket }

func (k *rtnetlink) subscribe() (feed, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("can't subscribe to the kernel's changes of network interfaces: %w", err)
	}
	// Room for a burst; forcing it takes a capability that may be missing.
	if s.SetReceiveBufferSize(1<<20, true) != nil {
		_ = s.SetReceiveBufferSize(1<<20, false)
	}
	if err := k.spare(s); err != nil {
		s.Close()
		return nil, fmt.Errorf("can't subscribe to the kernel's changes of network interfaces but our own: %w", err)
	}
	return &netlinkFeed{s}, nil
}

// spare has the kernel keep from s what this process did by renew: hundreds of
// messages a second that say nothing new. The kernel names in each message the port of
// the socket that asked (netlink(7), nlmsg_pid), but with IPv6 addresses, of which it
// tells in its own name (inet6_ifa_notify); those still come.
func (k *rtnetlink) spare(s *nl.NetlinkSocket) error {
	port, err := k.renewals.Socket.GetPid()
	if err != nil {
		return err
	}
	// A filter reads in network byte order, and the header is in the machine's.
	kind := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.RTM_NEWADDR))
	from := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
	program, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 2}, // nlmsg_type
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(kind), SkipTrue: 3},
		bpf.LoadAbsolute{Off: 12, Size: 4}, // nlmsg_pid
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: from, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.RetConstant{Val: math.MaxUint32},
	})
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(program))
	for i, p := range program {
		filter[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	return unix.SetsockoptSockFprog(s.GetFd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

func (f *netlinkFeed) close() { f.socket.Close() }

func (f *netlinkFeed) next() ([]change, error) {
	for {
		messages, from, err := f.socket.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			return nil, errMissed
		}
		if err != nil {
			return nil, err
		}
		if from.Pid != nl.PidKernel { // any process may write to the socket
			continue
		}
		var changes []change
		for _, m := range messages {
			if c, ok := parseChange(m); ok {
				changes = append(changes, c)
			}
		}
		if len(changes) > 0 {
			return changes, nil
		}
	}
}

// parseChange reads a message of the feed. It and the parsers below trust the
// kernel, which is the only one that can have sent it.
func parseChange(m syscall.NetlinkMessage) (change, bool) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		l, ok := parseLink(m.Data)
		return change{link: &l, gone: m.Header.Type == unix.RTM_DELLINK}, ok
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		e, ok := parseEntry(m.Data)
		return change{entry: &e, gone: m.Header.Type == unix.RTM_DELADDR}, ok
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		_, ok := parseRoute(m.Data)
		return change{routes: true}, ok
	}
	return change{}, false
}

// parseLink reads an RTM_NEWLINK. A bridge tells of its ports in such messages
// too, under its own family; those are no links coming and going.
func parseLink(m []byte) (link, bool) {
	if len(m) < unix.SizeofIfInfomsg {
		return link{}, false
	}
	head := nl.DeserializeIfInfomsg(m)
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfInfomsg:])
	if err != nil || head.Family != unix.AF_UNSPEC {
		return link{}, false
	}
	const operUnknown, operUp = 0, 6 // RFC 2863 states, IF_OPER_ of linux/if.h
	l := link{index: int(head.Index), loopback: head.Flags&unix.IFF_LOOPBACK != 0}
	state := byte(operUnknown)
	alias, parent := "", 0
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFLA_IFNAME:
			l.name = unix.ByteSliceToString(a.Value)
		case unix.IFLA_OPERSTATE:
			state = a.Value[0]
		case unix.IFLA_IFALIAS:
			alias = unix.ByteSliceToString(a.Value)
		case unix.IFLA_LINK:
			parent = int(binary.NativeEndian.Uint32(a.Value))
		case unix.IFLA_ADDRESS:
			if len(a.Value) == 6 && head.Flags&(unix.IFF_LOOPBACK|unix.IFF_POINTOPOINT) == 0 {
				l.mac = net.HardwareAddr(a.Value).String()
			}
		case unix.IFLA_MASTER:
			l.master = int(binary.NativeEndian.Uint32(a.Value))
		case unix.IFLA_LINKINFO:
			info, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return link{}, false
			}
			for _, i := range info {
				if i.Attr.Type == unix.IFLA_INFO_KIND {
					l.kind = unix.ByteSliceToString(i.Value)
				}
			}
		}
	}
	l.up = state == operUp || state == operUnknown // it is neither without IFF_UP
	if l.kind == "macvlan" {
		l.parent, l.alias, l.admin = parent, alias, head.Flags&unix.IFF_UP != 0
	}
	return l, l.name != ""
}

// parseEntry reads an RTM_NEWADDR or RTM_DELADDR.
func parseEntry(m []byte) (entry, bool) {
	if len(m) < unix.SizeofIfAddrmsg {
		return entry{}, false
	}
	head := nl.DeserializeIfAddrmsg(m)
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofIfAddrmsg:])
	if err != nil || head.Family != unix.AF_INET && head.Family != unix.AF_INET6 {
		return entry{}, false
	}
	flags := uint32(head.Flags)
	var local, peer netip.Addr
	e := entry{global: head.Scope == unix.RT_SCOPE_UNIVERSE}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_ADDRESS:
			peer, _ = netip.AddrFromSlice(a.Value)
		case unix.IFA_FLAGS:
			flags = binary.NativeEndian.Uint32(a.Value)
		case ifaProto:
			e.ours = e.ours || a.Value[0] == mark
		case unix.IFA_LABEL:
			label := unix.ByteSliceToString(a.Value)
			e.ours = e.ours || strings.HasSuffix(label, labelSuffix)
		}
	}
	if !local.IsValid() { // IPv6 has IFA_LOCAL only beside a peer's address
		local = peer
	}
	e.place = place{int(head.Index), netip.PrefixFrom(local, int(head.Prefixlen))}
	e.tentative = flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0
	// The two families use one flag for two things.
	e.secondary = head.Family == unix.AF_INET && flags&unix.IFA_F_SECONDARY != 0
	e.temporary = head.Family == unix.AF_INET6 && flags&unix.IFA_F_TEMPORARY != 0
	return e, e.prefix.IsValid()
}

// parseRoute reads an RTM_NEWROUTE, and takes an interest in the default routes
// of the main table only.
func parseRoute(m []byte) (route, bool) {
	if len(m) < unix.SizeofRtMsg {
		return route{}, false
	}
	head := nl.DeserializeRtMsg(m)
	if head.Dst_len != 0 || head.Table != unix.RT_TABLE_MAIN || head.Type != unix.RTN_UNICAST || head.Flags&unix.RTM_F_CLONED != 0 {
		return route{}, false
	}
	attrs, err := nl.ParseRouteAttr(m[unix.SizeofRtMsg:])
	if err != nil {
		return route{}, false
	}
	r := route{family: vip.IPv4}
	if head.Family == unix.AF_INET6 {
		r.family = vip.IPv6
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_OIF:
			r.link = int(binary.NativeEndian.Uint32(a.Value))
		case unix.RTA_PRIORITY:
			r.metric = binary.NativeEndian.Uint32(a.Value)
		case unix.RTA_GATEWAY:
			r.via, _ = netip.AddrFromSlice(a.Value)
		case unix.RTA_MULTIPATH: // struct rtnexthop: the first one's interface
			if r.link == 0 && len(a.Value) >= unix.SizeofRtNexthop {
				r.link = int(binary.NativeEndian.Uint32(a.Value[4:]))
			}
		}
	}
	return r, r.link != 0
}
