package upnp

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
)

func here(m vip.Mapping, is bool) vip.Mapping { m.Here = is; return m }

// One node makes a mapping, the next takes it over, and only the last removes it.
func TestMappingOutlivesItsNode(t *testing.T) {
	r := newRouter(t)
	r.miniupnpd(t)
	n1, n2 := newNode(t), newNode(t)
	tcp, udp := want("TCP", 80), want("UDP", 53)
	n1.put(tcp, udp)
	n2.put(here(tcp, false), here(udp, false))
	for _, p := range []string{"TCP", "UDP"} {
		x := n1.mapped(p, func(x vip.MappingState) bool { return x.Protocol == p && made(x) })
		if got, want := x.External.Addr().String(), publicAddr; got != want || x.External.Port() != x.Port {
			t.Errorf("external %s, want %s and the same port", x.External, want)
		}
		check.Between(t, time.Until(x.Until), 59*time.Minute, time.Hour, "ends in")
		check.Equal(t, x.Gateway, routerAddr+" (test router)", "the gateway's name")
	}
	if !r.has(t, "TCP 80", vip4+":80") || !r.has(t, "UDP 53", vip4+":53") {
		t.Fatalf("the router does not forward:\n%s", r.run(t, "nft", "list", "ruleset"))
	}
	for _, g := range n1.gateways() {
		have, err := g.control.getPortMapping(t.Context(), g.service, tcp)
		if err != nil || have == nil || have.description != "herald default/web (0a1b2c3d)" {
			t.Errorf("the gateway calls it %+v, %v", have, err)
		}
	}

	// The VIP moves. The one before goes, and takes nothing with it.
	n2.put(tcp, udp)
	n1.put(here(tcp, false), here(udp, false))
	n2.mapped("taken over", func(x vip.MappingState) bool { return x.Protocol == "UDP" && made(x) })
	n2.mapped("taken over", func(x vip.MappingState) bool { return x.Protocol == "TCP" && made(x) })
	n1.put()
	n1.stop()
	if !r.has(t, "TCP 80", vip4+":80") || !r.has(t, "UDP 53", vip4+":53") {
		t.Fatal("what was given away was removed")
	}

	// One port goes, then all.
	n2.put(tcp)
	check.True(t, 10*time.Second, "the port to be closed", func() bool { return !r.has(t, "UDP 53", vip4+":53") })
	check.Equal(t, r.has(t, "TCP 80", vip4+":80"), true, "the other port stays")
	n2.put()
	n2.stop() // at once: stopping waits for it
	if r.forwards(t) {
		t.Errorf("left behind:\n%s", r.run(t, "nft", "list", "ruleset"))
	}
}

// A gateway that forgot everything is given it again; one that comes late is found.
func TestRestart(t *testing.T) {
	r := newRouter(t)
	n := newNode(t)
	n.put(want("TCP", 80))
	x := n.mapped("without a gateway", func(x vip.MappingState) bool { return x.Problem != "" })
	check.Contains(t, x.Problem, "no UPnP gateway answers on eth0")
	d := r.miniupnpd(t)
	n.mapped("made", made)
	d.stop(syscall.SIGTERM)
	d = r.miniupnpd(t)
	check.True(t, 10*time.Second, "the mapping to be made again", func() bool { return r.has(t, "TCP 80", vip4+":80") })
	n.mapped("made", made)
	// Killed, it says no good-bye.
	d.stop(syscall.SIGKILL)
	r.miniupnpd(t)
	check.True(t, 10*time.Second, "the mapping to be made again", func() bool { return r.has(t, "TCP 80", vip4+":80") })
	n.mapped("made", made)
	// Somebody else deletes it.
	for _, g := range n.gateways() {
		check.OK(t, g.control.deletePortMapping(t.Context(), g.service, netip.Addr{}, want("TCP", 80)))
	}
	check.True(t, 10*time.Second, "the mapping to be made again", func() bool { return r.has(t, "TCP 80", vip4+":80") })
	// Its provider gives it another address.
	wan := check.Value(r.nl.LinkByName("wan"))(t)
	check.OK(t, r.nl.AddrDel(wan, addr(t, publicAddr+"/24")))
	n.mapped("without an external address", func(x vip.MappingState) bool {
		return x.Confirmed && strings.Contains(x.Problem, "no external address")
	})
	check.OK(t, r.nl.AddrAdd(wan, addr(t, "11.22.33.9/24")))
	n.mapped("at the new address", func(x vip.MappingState) bool { return made(x) && x.External.String() == "11.22.33.9:80" })
}

// A port that another host has is left to it.
func TestPortTaken(t *testing.T) {
	r := newRouter(t)
	r.miniupnpd(t)
	other := want("TCP", 80)
	other.Addr, other.Service.Name, other.UID = netip.MustParseAddr("10.0.0.10"), "other", "ffffffff"
	n1, n2 := newNode(t), newNode(t)
	n1.put(other)
	n1.mapped("made", made)
	mine := want("TCP", 80)
	n2.put(mine)
	x := n2.mapped("refused", func(x vip.MappingState) bool { return x.Problem != "" })
	check.Contains(t, x.Problem, "80/TCP", "10.0.0.10 port 80", `"herald default/other (ffffffff)"`, "heraldvip.io/upnp-external-port")
	if x.Confirmed || !r.has(t, "TCP 80", "10.0.0.10:80") {
		t.Error("it was overwritten")
	}
	mine.External = 8080
	n2.put(mine)
	n2.mapped("at the other port", func(x vip.MappingState) bool { return made(x) && x.External.Port() == 8080 })
	// What was refused is taken once it is free.
	mine.External = 80
	n2.put(mine)
	n2.mapped("refused", func(x vip.MappingState) bool { return x.Problem != "" && x.Mapping.External == 80 })
	check.True(t, 10*time.Second, "the port before to be closed", func() bool { return !r.has(t, "TCP 8080", vip4+":80") })
	n1.put()
	n2.mapped("made", func(x vip.MappingState) bool { return made(x) && x.External.Port() == 80 })
	n2.put()
}

// A gateway in secure mode maps ports of a host only to that host: Herald asks from the VIP.
func TestSecureMode(t *testing.T) {
	r := newRouter(t)
	r.miniupnpd(t, "secure_mode=yes")
	n := newNode(t)
	n.put(want("TCP", 80))
	n.mapped("made", made)
	n.put()
	check.True(t, 10*time.Second, "the port to be closed", func() bool { return !r.forwards(t) })

	// Without the VIP on this node the gateway refuses.
	eth0 := check.Value(netlink.LinkByName("eth0"))(t)
	check.OK(t, netlink.AddrDel(eth0, addr(t, vip4+"/32")))
	n.put(want("TCP", 80))
	x := n.mapped("refused", func(x vip.MappingState) bool { return x.Problem != "" })
	if !strings.Contains(x.Problem, "secure mode") || x.Confirmed {
		t.Errorf("problem: %s", x.Problem)
	}
	check.OK(t, netlink.AddrAdd(eth0, addr(t, vip4+"/32")))
	n.mapped("made", made)

	// One leased by DHCP is on a macvlan, and what the gateway sends arrives there.
	n.put()
	check.True(t, 10*time.Second, "the port to be closed", func() bool { return !r.forwards(t) })
	check.OK(t, netlink.AddrDel(eth0, addr(t, vip4+"/32")))
	check.OK(t, os.WriteFile("/proc/sys/net/ipv4/conf/eth0/arp_ignore", []byte("1"), 0o644))
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex = "herald-x", eth0.Attrs().Index
	macvlan := &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}
	check.OK(t, netlink.LinkAdd(macvlan))
	check.OK(t, netlink.LinkSetUp(macvlan))
	check.OK(t, netlink.AddrAdd(macvlan, addr(t, vip4+"/32")))
	r.run(t, "ip", "neigh", "flush", "to", vip4)
	n.put(want("TCP", 80))
	if x := n.mapped("tried", func(x vip.MappingState) bool { return x.Confirmed || x.Problem != "" }); x.Problem != "" {
		t.Errorf("from a macvlan: %s", x.Problem)
	}
}

// IPv6 has no mappings, but holes in the firewall.
func TestPinhole(t *testing.T) {
	r := newRouter(t)
	d := r.miniupnpd(t)
	n1, n2 := newNode(t), newNode(t)
	six := want("TCP", 8080)
	six.Addr = netip.MustParseAddr(vip6)
	holes := func() int { // nft shows the address as a number
		return strings.Count(r.run(t, "nft", "list", "chain", "inet", "filter", "miniupnpd"), "th dport 8080 @nh,192,128 0xfd000000000000000000000000000050 ")
	}
	hole := func() bool { return holes() == 1 }
	n1.put(six)
	check.Equal(t, n1.mapped("made", made).External.String(), "["+vip6+"]:8080", "open")
	if !hole() {
		t.Fatalf("no hole:\n%s", r.run(t, "nft", "list", "ruleset"))
	}
	n1.put(here(six, false))
	n2.put(six)
	n2.mapped("taken over", made)
	check.Equal(t, holes(), 1, "holes")
	d.stop(syscall.SIGKILL)
	r.miniupnpd(t)
	check.True(t, 10*time.Second, "the hole to be made again", hole)
	n2.mapped("made", made)
	n2.put()
	check.True(t, 10*time.Second, "the hole to be closed", func() bool { return holes() == 0 })
	// Low ports are refused.
	six.Port, six.External = 80, 80
	n2.put(six)
	x := n2.mapped("refused", func(x vip.MappingState) bool { return x.Problem != "" })
	if !strings.Contains(x.Problem, "606") || !strings.Contains(x.Problem, "1024") {
		t.Errorf("problem: %s", x.Problem)
	}
}

// What another process has had opened for a Service that is being deleted is closed. What leads elsewhere stays.
func TestGone(t *testing.T) {
	r := newRouter(t)
	r.miniupnpd(t)
	n1, n2 := newNode(t), newNode(t)
	mine, other := want("TCP", 80), want("TCP", 81)
	other.Addr = netip.MustParseAddr(nodeAddr)
	n1.put(mine, other)
	for _, p := range []uint16{80, 81} {
		n1.mapped("made", func(x vip.MappingState) bool { return x.Port == p && made(x) })
	}
	n1.put(here(mine, false), here(other, false))
	n1.stop()
	gone, elsewhere := mine, want("TCP", 81)
	gone.Gone, elsewhere.Gone = true, true
	n2.put(gone, elsewhere)
	for _, p := range []uint16{80, 81} {
		n2.mapped("removed", func(x vip.MappingState) bool { return x.Port == p && x.Gateway != "" && !x.Requested && !x.Confirmed })
	}
	if r.has(t, "TCP 80", vip4+":80") || !r.has(t, "TCP 81", nodeAddr+":81") {
		t.Errorf("the router has\n%s", r.run(t, "nft", "list", "ruleset"))
	}
	n2.put() // nobody waits for that any more: it is forgotten, or what a person maps there later would be removed
	check.Until(t, 10*time.Second, "it to be forgotten", func() error {
		var w vip.World
		if n2.Observe(&w); len(w.MappingStates) > 0 {
			return fmt.Errorf("there are %+v", w.MappingStates)
		}
		return nil
	})
}

// TestMain runs all tests in a user and network namespace of their own, which takes no root and can't harm the machine.
func TestMain(m *testing.M) {
	if namespace.Inside() {
		if err := noDAD(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(m.Run())
	}
	namespace.Enter()
}

// noDAD gives links of this namespace their IPv6 addresses at once.
func noDAD() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644)
}

// Addresses of the tests. The far side's must be public ones, or gateways take themselves to be behind another.
const (
	routerAddr = "10.0.0.1"
	router6    = "fd00::1"
	nodeAddr   = "10.0.0.10"
	node6      = "fd00::10"
	vip4       = "10.0.0.50"
	vip6       = "fd00::50"
	publicAddr = "11.22.33.1"
)

// A router is a host at the other end of the cable eth0, with a far side of its own.
type router struct {
	work chan func()
	ns   netns.NsHandle
	nl   *netlink.Handle
}

// newRouter makes eth0 here, with the node's addresses and the VIPs, and a router at its other end.
func newRouter(t testing.TB) *router {
	t.Helper()
	r := &router{work: make(chan func())}
	made := make(chan error)
	go func() { // a thread of its own: a child with Pdeathsig dies with the thread that made it
		runtime.LockOSThread()
		var err error
		if r.ns, err = netns.New(); err == nil {
			r.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		}
		err = errors.Join(err, noDAD())
		made <- err
		for f := range r.work {
			f()
		}
	}()
	check.OK(t, <-made)
	t.Cleanup(func() { close(r.work); r.nl.Close(); _ = r.ns.Close() })

	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	check.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "lan", PeerNamespace: netlink.NsFd(int(r.ns))}))
	eth0 := check.Value(netlink.LinkByName("eth0"))(t)
	t.Cleanup(func() { _ = netlink.LinkDel(eth0) })
	for _, a := range []string{nodeAddr + "/24", node6 + "/64", vip4 + "/32", vip6 + "/128"} {
		check.OK(t, netlink.AddrAdd(eth0, addr(t, a)))
	}
	check.OK(t, netlink.LinkSetUp(eth0))
	lan := check.Value(r.nl.LinkByName("lan"))(t)
	for _, a := range []string{routerAddr + "/24", router6 + "/64"} {
		check.OK(t, r.nl.AddrAdd(lan, addr(t, a)))
	}
	check.OK(t, r.nl.LinkSetUp(lan))
	attrs.Name = "wan"
	check.OK(t, r.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "far"}))
	for name, a := range map[string]string{"wan": publicAddr + "/24", "far": "11.22.33.2/24"} {
		l := check.Value(r.nl.LinkByName(name))(t)
		if name == "wan" {
			check.OK(t, r.nl.AddrAdd(l, addr(t, a)))
		}
		check.OK(t, r.nl.LinkSetUp(l))
	}
	lo := check.Value(r.nl.LinkByName("lo"))(t)
	check.OK(t, r.nl.LinkSetUp(lo))
	check.True(t, 10*time.Second, "the cable to be up", func() bool {
		l, err := netlink.LinkByName("eth0")
		list, _ := netlink.AddrList(eth0, netlink.FAMILY_V6)
		for _, a := range list {
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				return false
			}
		}
		return err == nil && l.Attrs().OperState == netlink.OperUp && len(list) == 3
	})
	return r
}

func addr(t testing.TB, text string) *netlink.Addr {
	t.Helper()
	a := check.Value(netlink.ParseAddr(text))(t)
	if a.IP.To4() == nil {
		a.Flags = unix.IFA_F_NODAD
	}
	return a
}

// do runs f in the router's namespace. Sockets that f opens stay there.
func (r *router) do(f func()) {
	done := make(chan struct{})
	r.work <- func() { defer close(done); f() }
	<-done
}

// run runs a program in the router's namespace.
func (r *router) run(t testing.TB, argv ...string) string {
	t.Helper()
	var out []byte
	var err error
	r.do(func() { out, err = exec.Command(argv[0], argv[1:]...).CombinedOutput() })
	if err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
	return string(out)
}

// chains are what miniupnpd wants of nftables.
const chains = `flush ruleset
table inet filter {
	chain forward { type filter hook forward priority 0; policy drop; jump miniupnpd; }
	chain miniupnpd { }
	chain prerouting_miniupnpd { type nat hook prerouting priority -100; }
	chain postrouting_miniupnpd { type nat hook postrouting priority 100; }
}`

// A daemon is a real gateway: miniupnpd.
type daemon struct {
	t   testing.TB
	r   *router
	cmd *exec.Cmd
	log string
}

// miniupnpd starts a gateway on the router that has forgotten everything.
func (r *router) miniupnpd(t testing.TB, more ...string) *daemon {
	t.Helper()
	check.Program(t, "/usr/sbin/miniupnpd")
	dir := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(dir, "nft"), []byte(chains), 0o600))
	r.run(t, "nft", "-f", filepath.Join(dir, "nft"))
	conf := append([]string{
		"ext_ifname=wan", "ext_ifname6=wan", "listening_ip=lan", "http_port=0", "uuid=00000000-0000-0000-0000-000000000001", "serial=1",
		"system_uptime=no", "notify_interval=60", "friendly_name=test router", "allow 0-65535 10.0.0.0/24 0-65535", "deny 0-65535 0.0.0.0/0 0-65535",
	}, more...)
	check.OK(t, os.WriteFile(filepath.Join(dir, "conf"), []byte(strings.Join(conf, "\n")+"\n"), 0o600))
	d := &daemon{t: t, r: r, log: filepath.Join(dir, "log")}
	out := check.Value(os.Create(d.log))(t)
	d.cmd = exec.Command("/usr/sbin/miniupnpd", "-d", "-f", filepath.Join(dir, "conf"), "-P", filepath.Join(dir, "pid"))
	d.cmd.Stdout, d.cmd.Stderr = out, out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	r.do(func() { err = d.cmd.Start() })
	check.OK(t, err)
	check.OK(t, out.Close())
	t.Cleanup(func() { d.stop(syscall.SIGKILL) })
	return d
}

func (d *daemon) stop(sig syscall.Signal) {
	_ = d.cmd.Process.Signal(sig)
	_ = d.cmd.Wait() // a second one returns at once
	if d.t.Failed() {
		text, _ := os.ReadFile(d.log)
		d.t.Logf("miniupnpd: %s", text[max(0, len(text)-3000):])
	}
}

// has reports whether the router forwards a port, as "TCP 80", to a place.
func (r *router) has(t testing.TB, port, to string) bool {
	t.Helper()
	protocol, number, _ := strings.Cut(port, " ")
	rule := fmt.Sprintf("0x%x th dport %s dnat ip to %s\n", map[string]int{"TCP": 6, "UDP": 17}[protocol], number, to)
	return strings.Contains(r.run(t, "nft", "list", "chain", "inet", "filter", "prerouting_miniupnpd"), rule)
}

// forwards reports whether the router forwards anything at all.
func (r *router) forwards(t testing.TB) bool {
	t.Helper()
	return strings.Contains(r.run(t, "nft", "list", "ruleset"), "dnat")
}

// A node is a Mapper with what its agent would do.
type node struct {
	*Mapper
	t     testing.TB
	pokes mailbox.Signal
	stop  func()
}

// testTiming is a pace for tests.
var testTiming = timing{responses: 1500 * time.Millisecond, period: 300 * time.Millisecond, stopTimeout: 3 * time.Second}

// newNode runs a Mapper until the test ends.
func newNode(t testing.TB, change ...func(*Mapper)) *node {
	t.Helper()
	n := &node{t: t, pokes: mailbox.NewSignal()}
	n.Mapper = New(Options{
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})), Poke: n.pokes.Send,
		Links: func() []vip.Link {
			return []vip.Link{{Name: "eth0", Up: true, Prefixes: []netip.Prefix{netip.MustParsePrefix(nodeAddr + "/24"), netip.MustParsePrefix(node6 + "/64")}}}
		},
	})
	n.timing = testTiming
	for _, f := range change {
		f(n.Mapper)
	}
	n.stop = check.Run(t, n.Mapper)
	return n
}

// gateways is those that were found. Their requests may be under way.
func (n *node) gateways() (all []*gateway) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.segments {
		all = slices.AppendSeq(all, maps.Values(s.gateways))
	}
	return all
}

// mapped waits until the World has a mapping of which ok is true.
func (n *node) mapped(what string, ok func(vip.MappingState) bool) vip.MappingState {
	n.t.Helper()
	var w vip.World
	for deadline := time.After(10 * time.Second); ; {
		w = vip.World{}
		n.Observe(&w)
		for _, x := range w.MappingStates {
			if ok(x) {
				return x
			}
		}
		select {
		case <-n.pokes:
		case <-deadline:
			n.t.Fatalf("waited in vain for a mapping %s; there are %+v", what, w.MappingStates)
		}
	}
}

func made(x vip.MappingState) bool {
	return x.Confirmed && x.Problem == "" && x.External.Addr().IsValid()
}

// want is the mapping of a Service's port.
func want(protocol string, port uint16) vip.Mapping {
	return vip.Mapping{
		Service: vip.Key{Namespace: "default", Name: "web"}, UID: "0a1b2c3d-1111", Addr: netip.MustParseAddr(vip4), Link: "eth0",
		Protocol: protocol, Port: port, External: port, Lease: time.Hour, Here: true,
	}
}

func (n *node) put(want ...vip.Mapping) { n.Put(want) }
