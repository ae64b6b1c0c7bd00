package l2

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/ethernet"
	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
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
		n.addAddress(t, a)
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

// awaitEntries waits until the neighbour thinks that the addresses are here.
func (n *neighbour) awaitEntries(t testing.TB, addrs ...string) {
	t.Helper()
	for _, x := range addrs {
		check.True(t, 10*time.Second, x+" to be known at "+mac.String(), func() bool { return n.entry(t, x) == mac.String() })
	}
}

// addAddress gives the neighbour an address, at once.
func (n *neighbour) addAddress(t testing.TB, text string) {
	t.Helper()
	addr := check.Value(netlink.ParseAddr(text))(t)
	addr.Flags = unix.IFA_F_NODAD
	check.OK(t, n.handle.AddrAdd(n.link, addr))
}

var otherMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0xff}

// newKernelAnnouncer is an Announcer on the real links, running.
func newKernelAnnouncer(t testing.TB) (a *Announcer, log *check.Buffer, poked chan struct{}) {
	t.Helper()
	log = &check.Buffer{}
	poked = make(chan struct{}, 1)
	poke := func() {
		select {
		case poked <- struct{}{}:
		default:
		}
	}
	a = New(Options{
		Log:   slog.New(slog.NewTextHandler(log, nil)),
		Rate:  3 * time.Second,
		Links: namespace.Links, Sysctl4: func(string, string) int { return 0 },
		Tenure: func() vip.Tenure { return vip.Tenure{Confirmed: true, Until: time.Now().Add(time.Hour)} },
		Poke:   poke, PokeNow: poke,
	})
	updates, done := make(chan netlink.LinkUpdate), make(chan struct{})
	check.OK(t, netlink.LinkSubscribe(updates, done))
	var forward sync.WaitGroup
	forward.Go(func() {
		for range updates {
			a.LinksChanged()
		}
	})
	t.Cleanup(func() { close(done); forward.Wait() })
	check.Run(t, a)
	return a, log, poked
}

func kernelLink(t testing.TB, name string) vip.Link {
	t.Helper()
	list := namespace.Links()
	i := slices.IndexFunc(list, func(l vip.Link) bool { return l.Name == name })
	if i < 0 {
		t.Fatalf("there is no link %s", name)
	}
	return list[i]
}

// Linux at the other end believes it, at once.
func TestKernelNeighbourTable(t *testing.T) {
	n := connectNeighbour(t)
	a, _, _ := newKernelAnnouncer(t)
	addrs := []string{"10.0.0.9", "2001:db8::9"}
	var want []vip.Announcement
	for _, x := range addrs {
		n.setEntry(t, x, otherMAC)
		want = append(want, announce("eth0", x))
	}
	want = append(want, announce("eth0", "10.0.0.8"))
	check.Value(a.Set(t.Context(), want))(t)
	n.awaitEntries(t, addrs...)
	// Within a second of its last change (locktime), too.
	for _, x := range addrs {
		n.setEntry(t, x, otherMAC)
	}
	began := time.Now()
	check.Value(a.Set(t.Context(), nil))(t)
	check.Value(a.Set(t.Context(), want))(t)
	n.awaitEntries(t, addrs...)
	check.Between(t, time.Since(began), 0, time.Second, "it took, which is no repetition,")
	check.Equal(t, n.entry(t, "10.0.0.8"), "", "an entry for 10.0.0.8 was made: arp_accept is 0")
}

func TestKernelHeardAnnouncements(t *testing.T) {
	n := connectNeighbour(t)
	n.addCable(t, "1", net.HardwareAddr{2, 0, 0, 0, 0, 0x0b})
	a, log, poked := newKernelAnnouncer(t)
	want := []vip.Announcement{listenOnly("eth0", "10.0.0.9"), listenOnly("eth0", "2001:db8::9"), listenOnly("eth1", "10.0.0.7"), listenOnly("eth1", "2001:db8::7")}
	have := check.Value(a.Set(t.Context(), want))(t)
	check.Equal(t, len(have), len(want), "announcements")
	taps := map[string]*packet.Conn{"eth0": n.tap(t, "peer0", 0), "eth1": n.tap(t, "peer1", 0)}
	say := func(link, addr string, at net.HardwareAddr, change func(frame []byte)) {
		t.Helper()
		frames := check.Value(announcementFrames(netip.MustParseAddr(addr), at))(t)
		change(frames[0])
		check.Value(taps[link].WriteTo(frames[0], &packet.Addr{HardwareAddr: frames[0][:6]}))(t)
	}
	asIs := func([]byte) {}
	heard := func(addr string) string {
		var w vip.World
		a.Observe(&w)
		s := w.Heard[netip.MustParseAddr(addr)]
		return s.Link + " " + s.MAC
	}
	for _, c := range []struct{ link, addr string }{{"eth0", "10.0.0.9"}, {"eth0", "2001:db8::9"}, {"eth1", "10.0.0.7"}, {"eth1", "2001:db8::7"}} {
		deadline := time.Now().Add(5 * time.Second)
		for heard(c.addr) != c.link+" "+otherMAC.String() { // the receivers open soon after Set
			if time.Now().After(deadline) {
				t.Fatalf("%s is not heard; log:\n%s", c.addr, log)
			}
			say(c.link, c.addr, otherMAC, asIs)
			time.Sleep(5 * time.Millisecond)
		}
		select {
		case <-poked:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: no poke", c.addr)
		}
		// What follows is heard in order: of all that comes before the last, nothing counts.
		say(c.link, c.addr, net.HardwareAddr{2, 0, 0, 0, 0, 0xf1}, asIs)
		check.True(t, 10*time.Second, "the first mark", func() bool { return heard(c.addr) == c.link+" 02:00:00:00:00:f1" })
		before := check.Metric(t, "", a.metrics.heard)
		say(c.link, c.addr, mac, asIs)                                                         // ourselves
		say(c.link, "10.0.0.77", otherMAC, asIs)                                               // nobody asked
		say(map[string]string{"eth0": "eth1", "eth1": "eth0"}[c.link], c.addr, otherMAC, asIs) // on another link
		if netip.MustParseAddr(c.addr).Is6() {
			say(c.link, c.addr, otherMAC, func(f []byte) { f[21] = 64 }) // from behind a router, which is not possible
		}
		say(c.link, c.addr, net.HardwareAddr{2, 0, 0, 0, 0, 0xf2}, asIs)
		check.True(t, 10*time.Second, "the second mark", func() bool { return heard(c.addr) == c.link+" 02:00:00:00:00:f2" })
		check.Equal(t, check.Metric(t, "", a.metrics.heard)-before, 1, "%s on %s: messages heard", c.addr, c.link)
	}
}

// The kernel hands ARP packets for a link on top of another to the packet sockets of that, too (orig_dev in
// __netif_receive_skb_core): those of a VLAN's hosts, and what is sent to the MAC of a macvlan. They are no messages of the link below. Nor are those of
// a VLAN that this node has not, of which the kernel removes the tag.
func TestKernelHearsNoOtherLink(t *testing.T) {
	onTop := net.HardwareAddr{2, 0, 0, 0, 0, 0x0c}
	for _, tt := range []struct {
		name  string
		make  func(t *testing.T, n *neighbour)
		sends string // the neighbour's link from which the message comes
		to    net.HardwareAddr
		tag   string // of 802.1Q
	}{
		{"VLAN", func(t *testing.T, n *neighbour) { n.addVLAN(t) }, "peer0.100", ethernet.Broadcast, ""},
		{"VLAN that this node has not", func(*testing.T, *neighbour) {}, "peer0", ethernet.Broadcast, "\x81\x00\x00\x64"},
		{"macvlan", func(t *testing.T, n *neighbour) { addMacvlan(t, onTop) }, "peer0", onTop, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := connectNeighbour(t)
			tt.make(t, n)
			r := check.Value(sockets{}.openReceiver(kernelLink(t, "eth0"), vip.IPv4))(t)
			closer := time.AfterFunc(10*time.Second, func() { _ = r.Close() })
			t.Cleanup(func() { closer.Stop(); _ = r.Close() })
			send := func(link string, from, to net.HardwareAddr, tag string) {
				frames := check.Value(announcementFrames(netip.MustParseAddr("10.0.0.9"), from))(t)
				copy(frames[0], to)
				check.Value(n.tap(t, link, 0).WriteTo(slices.Insert(frames[0], 12, []byte(tag)...), &packet.Addr{HardwareAddr: to}))(t)
			}
			send(tt.sends, net.HardwareAddr{2, 0, 0, 0, 0, 0xf1}, tt.to, tt.tag)
			send("peer0", otherMAC, ethernet.Broadcast, "") // heard after the first, if that is
			for {
				m, ok, err := r.receive()
				check.OK(t, err)
				switch {
				case ok && m.mac == [6]byte(otherMAC):
					return
				case ok && m.mac[5] == 0xf1:
					t.Error("a message of another link is heard")
				}
			}
		})
	}
}

// addMacvlan puts a macvlan on eth0, and sets it up.
func addMacvlan(t testing.TB, at net.HardwareAddr) {
	t.Helper()
	eth0 := check.Value(netlink.LinkByName("eth0"))(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.HardwareAddr = "mac0", eth0.Attrs().Index, at
	l := &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}
	check.OK(t, netlink.LinkAdd(l))
	check.OK(t, netlink.LinkSetUp(l))
}

// Linux at the other end takes the address, and says so in its own way.
func TestKernelHearsLinux(t *testing.T) {
	n := connectNeighbour(t)
	a, log, _ := newKernelAnnouncer(t)
	n.inNamespace(t, func() {
		for name, value := range map[string]string{"ipv4/conf/peer0/arp_notify": "1", "ipv6/conf/peer0/ndisc_notify": "1"} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644); err != nil {
				t.Error(err)
			}
		}
	})
	check.Value(a.Set(t.Context(), []vip.Announcement{listenOnly("eth0", "10.0.0.9"), listenOnly("eth0", "2001:db8::9")}))(t)
	for _, x := range []string{"10.0.0.9/32", "2001:db8::9/128"} {
		n.addAddress(t, x)
	}
	deadline, last := time.Now().Add(10*time.Second), byte(0xec)
	for {
		var w vip.World
		a.Observe(&w)
		if len(w.Heard) == 2 {
			for x, s := range w.Heard {
				if s.MAC != "02:00:00:00:00:ec" && s.MAC != "02:00:00:00:00:ed" {
					t.Errorf("%s heard from %s", x, s.MAC)
				}
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("heard %v; log:\n%s", w.Heard, log)
		}
		// Linux announces its addresses when their hardware address changes.
		last ^= 1
		check.OK(t, n.handle.LinkSetHardwareAddr(n.link, net.HardwareAddr{2, 0, 0, 0, 0, last}))
		time.Sleep(50 * time.Millisecond)
	}
}

func TestKernelLinkChanges(t *testing.T) {
	n := connectNeighbour(t)
	a, log, poked := newKernelAnnouncer(t)
	want := []vip.Announcement{announce("eth0", "10.0.0.9"), announce("eth0", "2001:db8::9")}
	state := func() string {
		have, err := a.Set(t.Context(), want)
		return fmt.Sprintf("%d announced, error %v", len(have), err)
	}
	check.Equal(t, state(), "2 announced, error <nil>", "at first")
	becomes := func(what, want string) {
		t.Helper()
		deadline := time.After(10 * time.Second)
		for got := state(); got != want; got = state() {
			select {
			case <-poked:
			case <-deadline:
				t.Fatalf("%s:\n got %s\nwant %s; log:\n%s", what, got, want, log)
			}
		}
	}
	eth0 := check.Value(netlink.LinkByName("eth0"))(t)
	check.OK(t, netlink.LinkSetDown(eth0))
	becomes("down", "0 announced, error 10.0.0.9 can't be announced on eth0: the link is down\n2001:db8::9 can't be announced on eth0: the link is down")
	check.OK(t, netlink.LinkSetUp(eth0))
	becomes("up", "2 announced, error <nil>")
	check.OK(t, netlink.LinkDel(eth0))
	becomes("gone", "0 announced, error 10.0.0.9 can't be announced on eth0: this node has no such link\n2001:db8::9 can't be announced on eth0: this node has no such link")
	n.link = n.addCable(t, "0", mac)
	n.setEntry(t, "10.0.0.9", otherMAC)
	n.setEntry(t, "2001:db8::9", otherMAC)
	becomes("back", "2 announced, error <nil>")
	n.awaitEntries(t, "10.0.0.9", "2001:db8::9")
}

// awaitResult waits for the result of an AddressCheck.
func awaitResult(t *testing.T, a *Announcer, w vip.AddressCheck) vip.CheckResult {
	t.Helper()
	a.AddressChecks().Put(nil)
	check.True(t, 10*time.Second, "no check is left", func() bool { return len(*a.AddressChecks().checks.Load()) == 0 })
	a.AddressChecks().Put([]vip.AddressCheck{w})
	var f vip.CheckResult
	check.True(t, 10*time.Second, "a finding", func() bool {
		var world vip.World
		a.Observe(&world)
		f = world.CheckResults[w.Addr]
		return !f.At.IsZero()
	})
	return f
}

// Another host has the address, as Linux has it, or takes it at this moment.
func TestKernelProbe(t *testing.T) {
	n := connectNeighbour(t)
	a, log, _ := newKernelAnnouncer(t)
	peer := n.link.Attrs().HardwareAddr.String()
	for _, x := range []struct{ ip, bits string }{{"10.0.0.9", "/32"}, {"2001:db8::9", "/128"}} {
		began := time.Now()
		if f := awaitResult(t, a, probeCheck("eth0", x.ip)); !f.OK() || f.NotSent != "" {
			t.Errorf("%s, which nobody has: %+v; log:\n%s", x.ip, f, log)
		}
		check.Between(t, time.Since(began), 120*time.Millisecond, 10*time.Second, "%s: it took", x.ip)
		n.addAddress(t, x.ip+x.bits)
		if f := awaitResult(t, a, probeCheck("eth0", x.ip)); len(f.UnexpectedMACs) != 1 || f.UnexpectedMACs[0] != peer {
			t.Errorf("%s, which the neighbour has: %+v; log:\n%s", x.ip, f, log)
		}
		right := probeCheck("eth0", x.ip)
		right.AllowedMACs += " " + peer
		check.Equal(t, awaitResult(t, a, right).OK(), true, "%s, which another node has: OK", x.ip)
		check.Equal(t, n.entry(t, x.ip), "", "the neighbour has learnt %s", x.ip)
	}
	// Linux looks for duplicates (RFC 4862) of an address that we ask for meanwhile: it
	// must see that, and neither may take the address for free.
	tentative := check.Value(netlink.ParseAddr("2001:db8::a/128"))(t)
	n.inNamespace(t, func() {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/peer0/accept_dad", []byte("1"), 0o644)
	})
	check.True(t, time.Minute, "Linux to give way", func() (gaveWay bool) { // on a slow machine it may be done before it is asked
		_ = n.handle.AddrDel(n.link, tentative)
		check.OK(t, n.handle.AddrAdd(n.link, tentative))
		awaitResult(t, a, probeCheck("eth0", "2001:db8::a"))
		check.True(t, 10*time.Second, "Linux to have decided", func() bool {
			all := check.Value(n.handle.AddrList(n.link, netlink.FAMILY_V6))(t)
			i := slices.IndexFunc(all, func(x netlink.Addr) bool { return x.IP.Equal(tentative.IP) })
			gaveWay = i < 0 || all[i].Flags&unix.IFA_F_DADFAILED != 0
			return gaveWay || all[i].Flags&unix.IFA_F_TENTATIVE == 0
		})
		return gaveWay
	})
}

// A frame waits for room in the link's queue for a moment, not for ever.
func TestKernelFullQueue(t *testing.T) {
	connectNeighbour(t)
	link := check.Value(netlink.LinkByName("eth0"))(t)
	// A hundred bytes a second: no frame leaves the queue while another waits.
	err := netlink.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       100, Limit: 1 << 30, Buffer: netlink.Xmittime(100, 2000),
	})
	if errors.Is(err, unix.ENOENT) {
		t.Skip("this kernel has no queue that can be slowed down (sch_tbf)")
	}
	check.OK(t, err)
	m := &sender{frameSender: check.Value(sockets{}.openSender(kernelLink(t, "eth0")))(t)}
	frame := make([]byte, 60)
	for sent := 0; ; sent++ {
		began := time.Now()
		err := m.send(frame)
		check.Between(t, time.Since(began), 0, 20*sendTimeout, "frame %d took", sent)
		if err != nil {
			if !errors.Is(err, unix.EAGAIN) || sent < 10 {
				t.Errorf("after %d frames: %v", sent, err)
			}
			break
		}
		if sent == 1e4 {
			t.Fatal("the queue is never full")
		}
	}
	began := time.Now()
	for range 100 {
		if err := m.send(frame); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("the queue is full, and a frame that does not wait for room: %v", err)
		}
	}
	check.Between(t, time.Since(began), 0, 5*sendTimeout, "a hundred frames waited for room again for")
	check.OK(t, m.Close())
	check.Equal(t, m.send(frame) == nil, false, "a frame was sent after close")
}
