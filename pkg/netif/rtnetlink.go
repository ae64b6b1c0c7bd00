package netif

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// ifaProto is IFA_PROTO of linux/if_addr.h: who added an address. Kernels since 5.18 keep it.
	ifaProto = 11
	// mark is Herald's: the kernel uses 1 to 3, nobody assigns the others.
	mark = 'v'
	// labelSuffix marks IPv4 addresses where the kernel keeps no IFA_PROTO.
	labelSuffix = ":herald"
	// answerTime is how long the kernel may take over a request.
	answerTime = 5 * time.Second
)

// rtnetlink is the kernel by rtnetlink(7).
type rtnetlink struct {
	handle   *netlink.Handle          // for requests that the library has
	socket   map[int]*nl.SocketHandle // one for all other requests; it locks itself
	renewals *nl.SocketHandle         // one for those that subscriptions are not told of
	proto    bool                     // the kernel keeps IFA_PROTO
}

// openNetlink opens the sockets; an error leaves others to the process' end.
func openNetlink() (*rtnetlink, error) {
	requests, err := openSocket(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	renewals, err := openSocket(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &rtnetlink{
		handle:   handle,
		socket:   map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: requests},
		renewals: renewals,
		proto:    keepsProto(),
	}, handle.SetSocketTimeout(answerTime)
}

// openSocket opens a socket for requests by a protocol of netlink(7).
func openSocket(protocol int) (*nl.SocketHandle, error) {
	s, err := nl.Subscribe(protocol) // to no group
	if err != nil {
		return nil, fmt.Errorf("can't talk to the kernel by netlink: %w", err)
	}
	limit := unix.NsecToTimeval(int64(answerTime))
	if err := errors.Join(s.SetSendTimeout(&limit), s.SetReceiveTimeout(&limit)); err != nil {
		s.Close()
		return nil, err
	}
	return &nl.SocketHandle{Socket: s}, nil
}

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

func (k *rtnetlink) keepsMark() bool { return k.proto }

func (k *rtnetlink) request(kind, flags int) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(kind, flags)
	r.Sockets = k.socket
	return r
}

func (k *rtnetlink) bind(list []bindRequest) []error {
	return k.send(k.socket[unix.NETLINK_ROUTE], list)
}

func (k *rtnetlink) renew(list []bindRequest) []error { return k.send(k.renewals, list) }

// send sends all requests in one write, and waits for one answer (netlink(7), NLM_F_ACK): a third of the cost.
func (k *rtnetlink) send(handle *nl.SocketHandle, list []bindRequest) []error {
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
	if err != nil { // which worked is not known; to do it again does no harm
		for i := range errs {
			errs[i] = err
		}
	}
	return errs
}

// newAddress is the request to bind or renew an address, without NLM_F_ACK.
func (k *rtnetlink) newAddress(b bindRequest) *nl.NetlinkRequest {
	r := k.request(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
	flags := uint32(unix.IFA_F_NOPREFIXROUTE)
	if b.prefix.Addr().Is6() { // whether it is free was asked before, if it had to be
		flags |= unix.IFA_F_NODAD
	}
	addAddress(r, b.addressKey)
	r.AddData(nl.NewRtAttr(unix.IFA_FLAGS, binary.NativeEndian.AppendUint32(nil, flags)))
	r.AddData(nl.NewRtAttr(ifaProto, []byte{mark}))
	life := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Valid: b.seconds}}
	r.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, life.Serialize()))
	if label := b.linkName + labelSuffix; !k.proto && b.prefix.Addr().Is4() && len(label) < unix.IFNAMSIZ {
		r.AddData(nl.NewRtAttr(unix.IFA_LABEL, nl.ZeroTerminated(label)))
	}
	return r
}

func (k *rtnetlink) unbind(key addressKey) error {
	r := k.request(unix.RTM_DELADDR, unix.NLM_F_ACK)
	addAddress(r, key)
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func addAddress(r *nl.NetlinkRequest, key addressKey) {
	family, ip := unix.AF_INET, key.prefix.Addr().AsSlice()
	if key.prefix.Addr().Is6() {
		family = unix.AF_INET6
	}
	head := nl.NewIfAddrmsg(family)
	head.Prefixlen = uint8(key.prefix.Bits())
	head.Index = uint32(key.link)
	r.AddData(head)
	r.AddData(nl.NewRtAttr(unix.IFA_LOCAL, ip))
	r.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, ip))
}

func (k *rtnetlink) read() (*snapshot, error) {
	s := newSnapshot()
	links, err := k.dump(unix.RTM_GETLINK, unix.RTM_NEWLINK, nl.NewIfInfomsg(unix.AF_UNSPEC))
	if err != nil {
		return nil, fmt.Errorf("can't read the network interfaces: %w", err)
	}
	for _, m := range links {
		if l, ok := parseLink(m); ok {
			s.setLink(l)
		}
	}
	addresses, err := k.dump(unix.RTM_GETADDR, unix.RTM_NEWADDR, nl.NewIfAddrmsg(unix.AF_UNSPEC))
	if err != nil {
		return nil, fmt.Errorf("can't read the addresses of the network interfaces: %w", err)
	}
	for _, m := range addresses {
		if a, ok := parseAddress(m); ok {
			s.addresses[a.addressKey] = a
		}
	}
	s.routes, err = k.routes()
	return s, err
}

func (k *rtnetlink) routes() (routes []route, err error) {
	err = retryDump(func() error {
		routes = nil
		// of the main table
		return k.handle.RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{}, 0, func(r netlink.Route) bool {
			if r.Dst == nil || r.Type != unix.RTN_UNICAST {
				return true
			}
			bits, _ := r.Dst.Mask.Size()
			network := onLink(int(r.Protocol), bits, r.Dst.IP, r.Gw)
			if bits > 0 && !network.IsValid() {
				return true
			}
			found := route{family: vip.IPv4, link: r.LinkIndex, metric: uint32(r.Priority), network: network}
			if r.Family == netlink.FAMILY_V6 {
				found.family = vip.IPv6
			}
			found.via, _ = netip.AddrFromSlice(r.Gw)
			if found.link == 0 && len(r.MultiPath) > 0 && bits == 0 {
				found.link = r.MultiPath[0].LinkIndex
			}
			if found.link != 0 {
				routes = append(routes, found)
			}
			return true
		})
	})
	if err != nil {
		return nil, fmt.Errorf("can't read the routes: %w", err)
	}
	return routes, nil
}

func (k *rtnetlink) link(index int) (link, bool, error) {
	r := k.request(unix.RTM_GETLINK, unix.NLM_F_ACK)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(index)
	r.AddData(head)
	messages, err := r.Execute(unix.NETLINK_ROUTE, 0)
	switch {
	case errors.Is(err, unix.ENODEV):
		return link{}, false, nil
	case err != nil || len(messages) == 0:
		return link{}, false,
			fmt.Errorf("can't read the network interface %d: %w", index, cmp.Or(err, errors.New("the kernel did not answer "+
				"with it")))
	}
	l, ok := parseLink(messages[0])
	return l, ok, nil
}

func (k *rtnetlink) dump(kind, answer int, head nl.NetlinkRequestData) (messages [][]byte, err error) {
	err = retryDump(func() error {
		r := k.request(kind, unix.NLM_F_DUMP)
		r.AddData(head)
		messages, err = r.Execute(unix.NETLINK_ROUTE, uint16(answer))
		return err
	})
	return messages, err
}

// retryDump repeats dump when something changed meanwhile, which may leave parts out.
func retryDump(dump func() error) error {
	for range 10 {
		if err := dump(); !errors.Is(err, nl.ErrDumpInterrupted) {
			return err
		}
	}
	return errors.New("it changed faster than it could be read, ten times in a row")
}

type netlinkSubscription struct {
	socket *nl.NetlinkSocket
	link   func(index int) (link, bool, error) // reads a link
}

func (k *rtnetlink) subscribe() (subscription, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE,
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("can't subscribe to the kernel's changes of network interfaces: %w", err)
	}
	// room for a burst; forcing it takes a capability that may be missing
	if s.SetReceiveBufferSize(1<<20, true) != nil {
		_ = s.SetReceiveBufferSize(1<<20, false)
	}
	if err := k.omitRenewals(s); err != nil {
		s.Close()
		return nil, fmt.Errorf("can't subscribe to the kernel's changes of network interfaces but our own: %w", err)
	}
	return &netlinkSubscription{s, k.link}, nil
}

// omitRenewals has the kernel not tell s of renew's own requests, of IPv4 at least (netlink(7), nlmsg_pid).
func (k *rtnetlink) omitRenewals(s *nl.NetlinkSocket) error {
	port, err := k.renewals.Socket.GetPid()
	if err != nil {
		return err
	}
	// filters read network byte order, and the header is in the machine's
	kind := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.RTM_NEWADDR))
	from := binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, port))
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4}, // nlmsg_type
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(kind), Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12}, // nlmsg_pid
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: from, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32},
	}
	return unix.SetsockoptSockFprog(s.GetFd(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

func (s *netlinkSubscription) close() { s.socket.Close() }

func (s *netlinkSubscription) receive() ([]change, error) {
	for {
		messages, from, err := s.socket.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			return nil, errOverrun
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
			if index := switchedIPv6(m); index != 0 {
				l, ok, err := s.link(index)
				if err != nil {
					return nil, err
				}
				if ok {
					changes = append(changes, change{link: &l})
				}
			}
		}
		if len(changes) > 0 {
			return changes, nil
		}
	}
}

// gatewayMACs returns links' resolved gateways by MAC, and sends nothing.
func (k *rtnetlink) gatewayMACs(s *snapshot, gateways map[string]netip.Addr) map[string]netip.Addr {
	byMAC := make(map[string]netip.Addr)
	for name, gateway := range gateways {
		l, _ := s.linkNamed(name)
		neighbors, _ := k.handle.NeighList(l.index, netlink.FAMILY_ALL) // none if the link is gone
		for _, x := range neighbors {
			if a, ok := netip.AddrFromSlice(x.IP); ok && a.Unmap() == gateway && len(x.HardwareAddr) == 6 {
				byMAC[x.HardwareAddr.String()] = gateway
			}
		}
	}
	return byMAC
}

// Numbers of settings (IPV4_DEVCONF_ of linux/ip.h).
const (
	confRPFilter           = 8
	confARPAnnounce        = 18
	confARPIgnore          = 19
	confPromoteSecondaries = 20
)

// configureLink changes net.ipv4.conf by one request: a container may only read /proc/sys.
func (k *rtnetlink) configureLink(index int, conf map[int]int, noLinkLocal bool) error {
	r := k.request(unix.RTM_SETLINK, unix.NLM_F_ACK)
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(index)
	r.AddData(head)
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	values := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(unix.IFLA_INET_CONF, nil)
	for number, v := range conf {
		values.AddRtAttr(number, nl.Uint32Attr(uint32(v)))
	}
	if _, err := os.Stat("/proc/sys/net/ipv6"); err == nil && noLinkLocal {
		const none = 1 // IN6_ADDR_GEN_MODE_NONE
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, []byte{none})
	}
	r.AddData(spec)
	_, err := r.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (k *rtnetlink) promoteSecondaries(index int, name string) (bool, error) {
	if Sysctl4("all", "promote_secondaries") > 0 || Sysctl4(name, "promote_secondaries") > 0 {
		return false, nil
	}
	return true, k.configureLink(index, map[int]int{confPromoteSecondaries: 1}, false)
}

type ipv4Conf struct{ arpIgnore, arpAnnounce, rpFilter int }

// readIPv4Conf reads the settings of a link; 0 for unreadable ones.
func readIPv4Conf(link string) ipv4Conf {
	return ipv4Conf{Sysctl4(link, "arp_ignore"), Sysctl4(link, "arp_announce"), Sysctl4(link, "rp_filter")}
}

// Sysctl4 reads net.ipv4.conf.<link>.<name>; 0 if it can't.
func Sysctl4(link, name string) int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link + "/" + name)
	if err != nil {
		return 0
	}
	v, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return v
}
