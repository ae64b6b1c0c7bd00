package netif

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestMain runs all tests in a user and network namespace of their own, which takes no root and can't harm the machine.
func TestMain(m *testing.M) {
	if namespace.Inside() {
		// Links get their own link-local addresses at once.
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(m.Run())
	}
	namespace.Enter()
}

// newVeth makes a veth pair of which both ends are up, in the test's namespace, and takes it away when the test ends.
func newVeth(t testing.TB, name string, addrs ...string) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	check.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"}))
	for _, n := range []string{name + "p", name} {
		l := check.Value(netlink.LinkByName(n))(t)
		check.OK(t, netlink.LinkSetUp(l))
	}
	l := check.Value(netlink.LinkByName(name))(t)
	t.Cleanup(func() { _ = netlink.LinkDel(l) })
	for _, a := range addrs {
		addOther(t, l, a)
	}
	waitUp(t, name)
	return l
}

// waitUp waits until the link has a carrier and a link-local address that is no
// longer tentative, so that nothing changes by itself afterwards.
func waitUp(t testing.TB, name string) {
	t.Helper()
	check.True(t, 10*time.Second, name+" to be up", func() bool {
		for _, n := range []string{name, name + "p"} {
			l, err := netlink.LinkByName(n)
			if err != nil || l.Attrs().OperState != netlink.OperUp {
				return false
			}
			addrs, err := netlink.AddrList(l, netlink.FAMILY_V6)
			if err != nil || !slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
				return a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0
			}) {
				return false
			}
		}
		return true
	})
}

// addBridge makes a bridge, and takes it away when the test ends.
func addBridge(t testing.TB, name string) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	l := &netlink.Bridge{LinkAttrs: attrs}
	check.OK(t, netlink.LinkAdd(l))
	t.Cleanup(func() { _ = netlink.LinkDel(l) })
	return l
}

// addMacvlan makes a macvlan that is not Herald's; with mac "" the kernel chooses one.
func addMacvlan(t testing.TB, parent netlink.Link, name, mac string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.Flags = name, parent.Attrs().Index, net.FlagUp
	if mac != "" {
		attrs.HardwareAddr = check.Value(net.ParseMAC(mac))(t)
	}
	check.OK(t, netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}))
}

// exists reports whether there is a link of that name.
func exists(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}

// addOther adds an address as another program would: for ever and without a mark.
func addOther(t testing.TB, l netlink.Link, addr string) {
	t.Helper()
	a := check.Value(netlink.ParseAddr(addr))(t)
	a.Flags = unix.IFA_F_NODAD
	check.OK(t, netlink.AddrAdd(l, a))
}

func sysctl(t testing.TB, name, value string) {
	t.Helper()
	check.OK(t, os.WriteFile("/proc/sys/"+name, []byte(value), 0o644))
}

func removeOther(t testing.TB, l netlink.Link, addr string) {
	t.Helper()
	a := check.Value(netlink.ParseAddr(addr))(t)
	check.OK(t, netlink.AddrDel(l, a))
}

// addresses is what the kernel has on the links but link-local ones, as text.
// It is read by another parser than the package's, apart from the mark.
func addresses(t testing.TB, links ...string) string {
	t.Helper()
	marks := marks(t)
	var lines []string
	for _, name := range links {
		l, err := netlink.LinkByName(name)
		if err != nil {
			continue
		}
		list := check.Value(netlink.AddrList(l, netlink.FAMILY_ALL))(t)
		for _, a := range list {
			if a.IP.IsLinkLocalUnicast() {
				continue
			}
			lines = append(lines, fmt.Sprintf("%s %s%s", name, a.IPNet, describe(a, marks[addressKey{l.Attrs().Index, prefixOf(a.IPNet)}])))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func prefixOf(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}

func describe(a netlink.Addr, mark byte) string {
	var b strings.Builder
	for _, f := range []struct {
		bit  int
		name string
	}{
		{unix.IFA_F_DEPRECATED, "deprecated"}, {unix.IFA_F_NOPREFIXROUTE, "noprefixroute"},
		{unix.IFA_F_TENTATIVE, "tentative"}, {unix.IFA_F_DADFAILED, "dadfailed"}, {unix.IFA_F_PERMANENT, "permanent"},
	} {
		if a.Flags&f.bit != 0 {
			b.WriteString(" " + f.name)
		}
	}
	if a.Label != "" && strings.Contains(a.Label, ":") {
		b.WriteString(" label=" + a.Label)
	}
	if mark != 0 {
		fmt.Fprintf(&b, " proto=%c", mark)
	}
	if a.Flags&unix.IFA_F_PERMANENT == 0 {
		fmt.Fprintf(&b, " valid=%d preferred=%d", a.ValidLft, a.PreferedLft)
	}
	return b.String()
}

// marks is the IFA_PROTO of all addresses that have one.
func marks(t testing.TB) map[addressKey]byte {
	t.Helper()
	r := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	r.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	messages := check.Value(r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR))(t)
	found := map[addressKey]byte{}
	for _, m := range messages {
		head := nl.DeserializeIfAddrmsg(m)
		attrs := check.Value(nl.ParseRouteAttrAsMap(m[unix.SizeofIfAddrmsg:]))(t)
		ip, ok := attrs[unix.IFA_LOCAL]
		if !ok {
			ip = attrs[unix.IFA_ADDRESS]
		}
		a, _ := netip.AddrFromSlice(ip.Value)
		if p, ok := attrs[11]; ok && p.Value[0] > 3 { // 1 to 3 are the kernel's
			found[addressKey{int(head.Index), netip.PrefixFrom(a, int(head.Prefixlen))}] = p.Value[0]
		}
	}
	return found
}

// log is a logger and what it wrote.
func log() (*slog.Logger, *check.Buffer) {
	b := &check.Buffer{}
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})), b
}

// always is a tenure that never ends.
func always() vip.Tenure {
	return vip.Tenure{Confirmed: true, Until: time.Now().Add(time.Hour)}
}

func addr(s, link string) vip.Address {
	p := netip.MustParsePrefix(s)
	return vip.Address{Addr: p.Addr(), Bits: p.Bits(), Link: link, Lease: vip.Key{Namespace: "default", Name: "kubevip-" + p.Addr().String()}}
}

// text is addresses as lines.
func text(list []vip.Address) string {
	lines := make([]string, len(list))
	for i, a := range list {
		lines[i] = cmp.Or(a.Link, "?") + " " + a.Prefix().String()
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
