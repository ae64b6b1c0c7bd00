package netif

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// When an address comes, or is advertised, conntrack forgets the flows to it that were not translated, but for TCP connections that were
// answered, and TCP connections that have ended. What has been translated, and what is for other addresses, stays.
func TestKernelForgetsStale(t *testing.T) {
	t.Run("bound", func(t *testing.T) {
		forgetsStale(t, func(n *Interfaces, vips []vip.Address) { check.Value(n.Set(t.Context(), vips))(t) })
	})
	t.Run("advertised", func(t *testing.T) {
		forgetsStale(t, func(n *Interfaces, vips []vip.Address) {
			routes := []vip.Route{{Prefix: netip.MustParsePrefix("10.0.0.51/24")}, {Prefix: netip.MustParsePrefix("10.0.0.51/32"), Untranslated: true}}
			for _, a := range vips {
				routes = append(routes, vip.Route{Prefix: a.Prefix()})
			}
			n.Put(routes)
		})
	})
}

func forgetsStale(t *testing.T, come func(*Interfaces, []vip.Address)) {
	t.Cleanup(func() { check.OK(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) })
	newVeth(t, "eth0", "10.0.0.1/24", "fd00::1/64")
	families := []netlink.InetFamily{unix.AF_INET, unix.AF_INET6}
	pod := map[bool]string{true: "10.1.0.2", false: "fd01::2"} // by whether it is IPv4's
	known := func(of netip.Addr, port uint16, protocol uint8, state uint8, translated bool) {
		t.Helper()
		family, from := families[0], "10.0.0.9"
		if of.Is6() {
			family, from = families[1], "fd00::9"
		}
		client, server := net.ParseIP(from), net.IP(of.AsSlice())
		if translated {
			server = net.ParseIP(pod[of.Is4()])
		}
		flow := &netlink.ConntrackFlow{
			FamilyType: uint8(family), TimeOut: 60,
			Forward: netlink.IPTuple{SrcIP: client, DstIP: of.AsSlice(), SrcPort: port, DstPort: 6443, Protocol: protocol},
			Reverse: netlink.IPTuple{SrcIP: server, DstIP: client, SrcPort: 6443, DstPort: port, Protocol: protocol},
		}
		if protocol == unix.IPPROTO_TCP {
			flow.ProtoInfo = &netlink.ProtoInfoTCP{State: state}
		}
		check.OK(t, netlink.ConntrackCreate(netlink.ConntrackTable, family, flow))
	}
	vips := []netip.Addr{netip.MustParseAddr("10.0.0.50"), netip.MustParseAddr("fd00::50")}
	var want []vip.Address
	for _, a := range vips {
		const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
		known(a, 1001, tcp, nl.TCP_CONNTRACK_SYN_SENT, false)
		known(a, 1002, tcp, nl.TCP_CONNTRACK_ESTABLISHED, true)
		known(a.Next(), 1003, tcp, nl.TCP_CONNTRACK_SYN_SENT, false)
		known(a, 1004, tcp, nl.TCP_CONNTRACK_SYN_SENT, true)
		known(a, 1005, tcp, nl.TCP_CONNTRACK_TIME_WAIT, true)
		known(a, 1006, tcp, nl.TCP_CONNTRACK_CLOSE, true)
		known(a, 1007, tcp, nl.TCP_CONNTRACK_LAST_ACK, true)
		known(a, 1008, udp, 0, false)
		known(a, 1009, udp, 0, true)
		known(a.Next(), 1010, udp, 0, false)
		want = append(want, vip.Address{Addr: a, Bits: a.BitLen(), Link: "eth0", LocalDelivery: a.Is6()})
	}
	before := forgetFor
	t.Cleanup(func() { forgetFor = before }) // after n has ended
	forgetFor = 0
	n, _ := kernelRig(t)
	come(n.Interfaces, want)
	left := func() error {
		var left []string
		for _, family := range families {
			all, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
			if err != nil {
				return err
			}
			for _, c := range all {
				left = append(left, fmt.Sprint(c.Forward.DstIP, " ", c.Forward.SrcPort))
			}
		}
		slices.Sort(left)
		if want := []string{
			"10.0.0.50 1002", "10.0.0.50 1004", "10.0.0.50 1007", "10.0.0.50 1009", "10.0.0.51 1003", "10.0.0.51 1010",
			"fd00::50 1002", "fd00::50 1004", "fd00::50 1007", "fd00::50 1009", "fd00::51 1003", "fd00::51 1010",
		}; !slices.Equal(left, want) {
			return fmt.Errorf("conntrack has %q, want %q", left, want)
		}
		return nil
	}
	check.Until(t, 10*time.Second, "conntrack to forget the stale ones", left)
}

// When the owner of an egress VIP changes, or it goes, conntrack forgets what its pods send otherwise, but for TCP and
// what has limits; what other pods send stays.
func TestKernelForgetsSenders(t *testing.T) {
	newVeth(t, "eth0", "10.0.0.1/24", "fd00::1/64")
	n, _ := kernelRig(t)
	t.Cleanup(func() { check.OK(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) })
	before := forgetFor
	t.Cleanup(func() { forgetFor = before }) // after n has ended
	forgetFor = 0
	families := []struct {
		id                                       netlink.InetFamily
		pod, other, server, inside, node, egress netip.Addr
	}{{id: unix.AF_INET}, {id: unix.AF_INET6}}
	for i, all := range []string{"10.1.0.2 10.1.0.3 192.0.2.1 10.1.0.9 10.0.0.1 10.0.0.50", "fd01::2 fd01::3 2001:db8::1 fd01::9 fd00::1 fd00::50"} {
		x := &families[i]
		for i, text := range strings.Fields(all) {
			*[]*netip.Addr{&x.pod, &x.other, &x.server, &x.inside, &x.node, &x.egress}[i] = netip.MustParseAddr(text)
		}
	}
	create := func() {
		for _, x := range families {
			for name, f := range map[string]struct{ from, to, as netip.Addr }{
				"1 led": {x.pod, x.server, x.pod}, "2 direct": {x.pod, x.server, x.pod}, "3 masqueraded": {x.pod, x.server, x.node},
				"4 by the VIP": {x.pod, x.server, x.egress}, "5 inside": {x.pod, x.inside, x.pod}, "6 led TCP": {x.pod, x.server, x.pod},
				"7 led, another pod's": {x.other, x.server, x.other},
			} {
				port, protocol := uint16(name[0]-'0'), uint8(unix.IPPROTO_UDP)
				flow := netlink.ConntrackFlow{FamilyType: uint8(x.id), TimeOut: 60}
				if strings.Contains(name, " led") {
					flow.Mark = vip.EgressMark
				}
				if strings.Contains(name, "TCP") {
					protocol, flow.ProtoInfo = unix.IPPROTO_TCP, &netlink.ProtoInfoTCP{State: nl.TCP_CONNTRACK_ESTABLISHED}
				}
				flow.Forward = netlink.IPTuple{SrcIP: f.from.AsSlice(), DstIP: f.to.AsSlice(), SrcPort: port, DstPort: 514, Protocol: protocol}
				flow.Reverse = netlink.IPTuple{SrcIP: f.to.AsSlice(), DstIP: f.as.AsSlice(), SrcPort: 514, DstPort: port, Protocol: protocol}
				check.OK(t, netlink.ConntrackCreate(netlink.ConntrackTable, x.id, &flow))
			}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*vip.Egress) // nil: it is gone
		left   string
	}{
		{"it comes here", func(*vip.Egress) {}, "4 5 6 7"},
		{"another node has it", func(e *vip.Egress) { e.Via = e.VIP.Next() }, "1 2 3 5 6 7"},
		{"another one", func(e *vip.Egress) { e.Via = e.VIP.Next().Next() }, "1 2 3 5 6 7"},
		{"it comes here, with limits", func(e *vip.Egress) { e.DeniedNetworks = e.Internal }, "2 3 4 5 6 7"},
		{"it is gone", nil, "1 2 3 5 6 7"},
	} {
		check.OK(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
		create()
		var want []vip.Egress
		for _, x := range families {
			e := vip.Egress{VIP: x.egress, Pods: []netip.Addr{x.pod}, Internal: []netip.Prefix{netip.PrefixFrom(x.inside, 24).Masked()}}
			if tt.change != nil {
				tt.change(&e)
				want = append(want, e, vip.Egress{VIP: x.egress, Via: x.node, Pods: []netip.Addr{x.other}, Former: true})
			}
		}
		(*Senders)(n.Interfaces).Put(want)
		for _, x := range families {
			check.Until(t, 10*time.Second, tt.name, func() error {
				var left []string
				for _, c := range check.Value(netlink.ConntrackTableList(netlink.ConntrackTable, x.id))(t) {
					left = append(left, fmt.Sprint(c.Forward.SrcPort))
				}
				slices.Sort(left)
				if all := strings.Join(left, " "); all != tt.left {
					return fmt.Errorf("conntrack has %s, want %s", all, tt.left)
				}
				return nil
			})
		}
	}
}

// connect is a connection from another address of the node to a listener at addr; the listener's end is open, too.
func connect(t *testing.T, listen, from, addr string) net.Conn {
	t.Helper()
	l := check.Value(net.Listen("tcp", listen))(t)
	t.Cleanup(func() { l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	check.OK(t, err)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Second}
	c, err := d.Dial("tcp", net.JoinHostPort(addr, port))
	for range 5 { // IPv6 on a link that is new takes a moment
		if err == nil {
			break
		}
		c, err = d.Dial("tcp", net.JoinHostPort(addr, port))
	}
	check.OK(t, err)
	t.Cleanup(func() { c.Close() })
	served := check.Value(l.Accept())(t)
	t.Cleanup(func() { served.Close() })
	return c
}

// readError is the error that the client's end of a connection reads within a moment.
func readError(c net.Conn) error {
	c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return err
}

// setUpLoopback sets the link up by way of which a node talks to its own addresses.
func setUpLoopback(t *testing.T) {
	lo := check.Value(netlink.LinkByName("lo"))(t)
	check.OK(t, netlink.LinkSetUp(lo))
	t.Cleanup(func() { _ = netlink.LinkSetDown(lo) })
}

// TestKernelResets: a connection to an address that is served here is reset when that is removed. No other connection is.
func TestKernelResets(t *testing.T) {
	setUpLoopback(t)
	newVeth(t, "eth0", "10.0.0.1/24", "fd00::1/64")
	n, _ := kernelRig(t)
	served := []vip.Address{{Addr: netip.MustParseAddr("10.0.0.50"), Bits: 32, Link: "eth0", LocalDelivery: true}, {Addr: netip.MustParseAddr("fd00::50"), Bits: 128, Link: "eth0", LocalDelivery: true}}
	other := vip.Address{Addr: netip.MustParseAddr("10.0.0.60"), Bits: 32, Link: "eth0"}
	check.Value(n.Set(t.Context(), append(served[:2:2], other)))(t)
	gone := map[string]net.Conn{
		"IPv4":                       connect(t, "10.0.0.50:0", "10.0.0.1", "10.0.0.50"),
		"IPv4, by a socket for both": connect(t, "[::]:0", "10.0.0.1", "10.0.0.50"),
		"IPv6":                       connect(t, "[fd00::50]:0", "fd00::1", "fd00::50"),
	}
	stay := map[string]net.Conn{
		"the node's own address":      connect(t, "[::]:0", "10.0.0.1", "10.0.0.1"),
		"a VIP that stays":            connect(t, "10.0.0.60:0", "10.0.0.1", "10.0.0.60"),
		"the node's own IPv6 address": connect(t, "[::]:0", "fd00::1", "fd00::1"),
	}
	check.Value(n.Set(t.Context(), []vip.Address{other}))(t)
	for name, c := range gone {
		check.Is(t, readError(c), syscall.ECONNRESET, "%s", name)
	}
	for name, c := range stay {
		if err := readError(c); !errors.Is(err, syscall.ETIMEDOUT) && !isTimeout(err) {
			t.Errorf("%s: %v, want nothing", name, err)
		}
	}
	// A VIP of a Service ends in its Pods: its connections here stay.
	check.Value(n.Set(t.Context(), nil))(t)
	check.Equal(t, isTimeout(readError(stay["a VIP that stays"])), true, "nothing is read from a VIP that is not served here")
}

// Which connections are reset when a VIP of the control plane comes and goes: those that are translated stay, unless it is said that they
// are not to, or the node lease is lost.
func TestResets(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reset bool // ResetTranslated
		lost  bool // the node lease
		want  connectionKinds
	}{
		{"handed over", false, false, served},
		{"its API server is not ready", true, false, served | translated},
		{"the node lease is lost", false, true, served | translated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newFake("link 2 eth0 up\neth0 10.0.0.5/24")
			r := newRig(t, k)
			a := vip.Address{Addr: netip.MustParseAddr("10.0.0.50"), Bits: 32, Link: "eth0", LocalDelivery: true}
			check.Value(r.Set(t.Context(), []vip.Address{a}))(t)
			a.ResetTranslated = tt.reset
			check.Value(r.Set(t.Context(), []vip.Address{a}))(t)
			if tt.lost {
				r.with(func(t *vip.Tenure) { t.Until = time.Now().Add(-time.Second) })
			}
			check.Value(r.Set(t.Context(), nil))(t)
			check.Same(t, []connectionKinds{ownClients, tt.want}, k.resets, "reset")
		})
	}
}

// Connections that the kernel translates from a VIP to the node's own address stay when the VIP is removed, unless they are to be reset,
// too; connections of the node itself to where the VIP was before are reset when it comes.
func TestKernelKeepsTranslated(t *testing.T) {
	check.Program(t, "nft")
	setUpLoopback(t)
	newVeth(t, "eth0", "10.0.0.1/24", "fd00::1/64")
	nft := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("nft", args...).CombinedOutput(); err != nil {
			t.Fatalf("nft %v: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() { nft("flush", "ruleset") })
	for family, rule := range map[string]string{"ip": "ip daddr 10.0.0.50 dnat to 10.0.0.1", "ip6": "ip6 daddr fd00::50 dnat to fd00::1"} {
		nft("add table " + family + " t")
		nft("add chain " + family + " t c { type nat hook output priority -100; }")
		nft("add rule " + family + " t c tcp dport != 1 " + rule)
	}
	n, _ := kernelRig(t)
	for _, reset := range []bool{false, true} {
		all := []vip.Address{
			{Addr: netip.MustParseAddr("10.0.0.50"), Bits: 32, Link: "eth0", LocalDelivery: true, ResetTranslated: reset},
			{Addr: netip.MustParseAddr("fd00::50"), Bits: 128, Link: "eth0", LocalDelivery: true, ResetTranslated: reset},
		}
		check.Value(n.Set(t.Context(), all))(t)
		kept := map[string]net.Conn{
			"IPv4": connect(t, "[::]:0", "10.0.0.1", "10.0.0.50"),
			"IPv6": connect(t, "[::]:0", "fd00::1", "fd00::50"),
		}
		other := connect(t, "[::]:0", "10.0.0.1", "10.0.0.1")
		check.Value(n.Set(t.Context(), nil))(t)
		for name, c := range kept {
			if err := readError(c); reset != errors.Is(err, syscall.ECONNRESET) || !reset && !isTimeout(err) {
				t.Errorf("%s: %v, to be reset: %v", name, err, reset)
			}
		}
		check.Value(n.Set(t.Context(), all))(t)
		for name, c := range kept { // they are this node's, to an address that comes back
			if err := readError(c); !reset && !errors.Is(err, syscall.ECONNABORTED) {
				t.Errorf("%s, when the address is back: %v, want that it is aborted", name, err)
			}
		}
		check.Value(n.Set(t.Context(), nil))(t)
		check.Equal(t, isTimeout(readError(other)), true, "nothing is read from the node's own address")
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// linkMessage is an RTM_NEWLINK about link 2 with these attributes.
func linkMessage(attributes ...*nl.RtAttr) syscall.NetlinkMessage {
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index, head.Flags = 2, unix.IFF_UP|unix.IFF_RUNNING
	data := head.Serialize()
	for _, a := range attributes {
		data = append(data, a.Serialize()...)
	}
	return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWLINK}, Data: data}
}

// An event of a wireless link has its name only: what is known of the link stays, such as its MAC address.
func TestWirelessEvents(t *testing.T) {
	name := nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated("wlan0"))
	mac := nl.NewRtAttr(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 10})
	scanned := nl.NewRtAttr(unix.IFLA_WIRELESS, slices.Repeat([]byte{0x19, 0x8b, 0, 0}, 3)) // SIOCGIWSCAN
	if c, ok := parseChange(linkMessage(name, mac)); !ok || c.link.mac != "02:00:00:00:00:0a" {
		t.Errorf("a link: %v, %+v", ok, c.link)
	}
	_, ok := parseChange(linkMessage(name, scanned))
	check.Equal(t, ok, false, "the end of a scan is taken for a change of the link")
}

// An address is tentative during duplicate address detection, if optimistic (RFC 4429) too, and if another host has it.
func TestTentativeAddresses(t *testing.T) {
	for flags, want := range map[uint32]bool{
		0: false, unix.IFA_F_PERMANENT: false, unix.IFA_F_DEPRECATED: false, unix.IFA_F_NODAD: false, unix.IFA_F_TENTATIVE: true, unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC: true,
		unix.IFA_F_PERMANENT | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED: true, // addrconf_dad_stop
	} {
		head := nl.NewIfAddrmsg(unix.AF_INET6)
		head.Index, head.Prefixlen = 2, 64
		data := append(head.Serialize(), nl.NewRtAttr(unix.IFA_ADDRESS, net.ParseIP("2001:db8::5")).Serialize()...)
		data = append(data, nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags)).Serialize()...)
		c, ok := parseChange(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWADDR}, Data: data})
		if !ok || c.address.tentative != want || c.address.permanent != (flags&unix.IFA_F_PERMANENT != 0) {
			t.Errorf("flags %#x: %v, %+v, want tentative %v", flags, ok, c.address, want)
		}
	}
}
