package l2

import (
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TestMain runs all tests in a user and network namespace of their own, which takes no root and can't harm the machine.
func TestMain(m *testing.M) {
	if namespace.Inside() {
		os.Exit(m.Run())
	}
	namespace.Enter()
}

// A neighbour is another host, at the other end of a cable.
type neighbour struct {
	ns     netns.NsHandle
	handle *netlink.Handle
	link   netlink.Link
}

// connectNeighbour makes the link eth0 here and a neighbour at its other end, which has
// 10.0.0.1 and 2001:db8::1. The end here has no address at all, not even a link-local one.
func connectNeighbour(t testing.TB) *neighbour {
	t.Helper()
	n := &neighbour{}
	n.inNamespace(t, func() {}) // makes the namespace
	t.Cleanup(func() { n.handle.Close(); _ = n.ns.Close() })
	n.link = n.addCable(t, "0", mac)
	for _, a := range []string{"10.0.0.1/24", "2001:db8::1/64"} {
		addr := check.Value(netlink.ParseAddr(a))(t)
		addr.Flags = unix.IFA_F_NODAD
		check.OK(t, n.handle.AddrAdd(n.link, addr))
	}
	return n
}

// addCable puts a cable between eth and peer of that number. It returns the neighbour's end.
func (n *neighbour) addCable(t testing.TB, number string, at net.HardwareAddr) netlink.Link {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = "eth"+number, at
	check.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer" + number, PeerHardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0xee}}))
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(attrs.Name); err == nil {
			_ = netlink.LinkDel(l)
		}
	})
	check.OK(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+attrs.Name+"/addr_gen_mode", []byte("1"), 0o644))
	peer := check.Value(netlink.LinkByName("peer" + number))(t)
	check.OK(t, netlink.LinkSetNsFd(peer, int(n.ns)))
	peer = check.Value(n.handle.LinkByName("peer" + number))(t)
	check.OK(t, n.handle.LinkSetUp(peer))
	here := check.Value(netlink.LinkByName(attrs.Name))(t)
	check.OK(t, netlink.LinkSetUp(here))
	check.True(t, 10*time.Second, "both ends are up", func() bool {
		l, err := netlink.LinkByName(attrs.Name)
		p, err2 := n.handle.LinkByName("peer" + number)
		return err == nil && err2 == nil && l.Attrs().OperState == netlink.OperUp && p.Attrs().OperState == netlink.OperUp
	})
	return peer
}

// addVLAN puts VLAN 100 on both ends of the cable: eth0.100 and peer0.100. It returns once both are up.
// It skips the test if the kernel has no VLANs.
func (n *neighbour) addVLAN(t testing.TB) {
	t.Helper()
	here := check.Value(netlink.NewHandle(unix.NETLINK_ROUTE))(t)
	t.Cleanup(here.Close)
	for on, end := range map[string]*netlink.Handle{"eth0": here, "peer0": n.handle} {
		parent := check.Value(end.LinkByName(on))(t)
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex = on+".100", parent.Attrs().Index
		vlan := &netlink.Vlan{LinkAttrs: attrs, VlanId: 100}
		err := end.LinkAdd(vlan)
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("the kernel has no VLANs (CONFIG_VLAN_8021Q)")
		}
		check.OK(t, err)
		check.OK(t, end.LinkSetUp(vlan))
		check.True(t, 10*time.Second, attrs.Name+" is up", func() bool {
			l, err := end.LinkByName(attrs.Name)
			return err == nil && l.Attrs().OperState == netlink.OperUp
		})
	}
}

// inNamespace runs f in the neighbour's namespace.
func (n *neighbour) inNamespace(t testing.TB, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if n.handle != nil {
			if err := netns.Set(n.ns); err != nil {
				done <- err
				return
			}
			f()
			done <- nil
			return
		}
		var err error
		if n.ns, err = netns.New(); err == nil {
			n.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		}
		done <- err
	}()
	check.OK(t, <-done)
}

// tap opens the neighbour's end of a cable for whole frames of a protocol.
func (n *neighbour) tap(t testing.TB, name string, protocol int) *packet.Conn {
	t.Helper()
	var c *packet.Conn
	n.inNamespace(t, func() {
		ifi, err := net.InterfaceByName(name)
		if err == nil {
			c, err = packet.Listen(ifi, packet.Raw, protocol, nil)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if c == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// setEntry puts an entry into the neighbour's table.
func (n *neighbour) setEntry(t testing.TB, addr string, at net.HardwareAddr) {
	t.Helper()
	check.OK(t, n.handle.NeighSet(&netlink.Neigh{LinkIndex: n.link.Attrs().Index, IP: net.ParseIP(addr), HardwareAddr: at, State: netlink.NUD_STALE}))
}

// entry is where the neighbour thinks an address is, or "".
func (n *neighbour) entry(t testing.TB, addr string) string {
	t.Helper()
	list := check.Value(n.handle.NeighList(n.link.Attrs().Index, netlink.FAMILY_ALL))(t)
	i := slices.IndexFunc(list, func(e netlink.Neigh) bool {
		return e.IP.Equal(net.ParseIP(addr)) && e.State&(netlink.NUD_NOARP|netlink.NUD_FAILED) == 0
	})
	if i < 0 {
		return ""
	}
	return list[i].HardwareAddr.String()
}
