package dhcp

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/l2"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
)

// TestMain runs all tests in a user and network namespace of their own, which takes no root and can't harm the machine.
func TestMain(m *testing.M) {
	if namespace.Inside() {
		os.Exit(m.Run())
	}
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-test.fuzz=") { // no link is needed, and workers talk by files that a child does not inherit
			namespace.AssumeInside()
			os.Exit(m.Run())
		}
	}
	namespace.Enter("-test.parallel=8") // they wait for servers more than they work
}

// A network is a LAN with a host for servers, in a namespace of its own, and this node on it.
type network struct {
	t      *testing.T
	dir    string
	n      int    // 10.9.n.0/24, fd09:n::/64
	link   string // this node's link on it
	enter  chan func()
	client int // how many clients there were
}

var networks atomic.Int32

// lan makes a network. The servers' host is .1 and ::1, this node is .2 and ::2.
func lan(t *testing.T) *network {
	t.Helper()
	l := &network{t: t, dir: t.TempDir(), n: int(networks.Add(1)), enter: make(chan func())}
	l.link = fmt.Sprint("lan", l.n)
	peer := fmt.Sprint("srv", l.n)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = l.link
	check.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer}))
	// A thread that stays in the servers' namespace, and forks for it.
	fd := make(chan int)
	go func() {
		runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
		f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		if err != nil {
			panic(err)
		}
		fd <- int(f.Fd())
		for fn := range l.enter {
			fn()
		}
		f.Close()
	}()
	t.Cleanup(func() { close(l.enter) })
	p := check.Value(netlink.LinkByName(peer))(t)
	check.OK(t, netlink.LinkSetNsFd(p, <-fd))
	l.up(l.link, 2)
	l.inside(func() {
		l.up(peer, 1)
		lo := check.Value(netlink.LinkByName("lo"))(t)
		check.OK(t, netlink.LinkSetUp(lo))
	})
	own := check.Value(netlink.LinkByName(l.link))(t)
	t.Cleanup(func() { _ = netlink.LinkDel(own) })
	check.True(t, 20*time.Second, "the links to be up, and their addresses usable", func() bool {
		usable := linkUsable(l.link)
		l.inside(func() { usable = linkUsable(peer) && usable })
		return usable
	})
	return l
}

// linkUsable reports whether a link is up and has a link-local address that servers can bind to.
func linkUsable(name string) bool {
	link, err := netlink.LinkByName(name)
	if err != nil || link.Attrs().OperState != netlink.OperUp {
		return false
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
	return err == nil && slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
		return a.IP.IsLinkLocalUnicast() && a.Flags&unix.IFA_F_TENTATIVE == 0
	})
}

func (l *network) up(name string, host int) {
	link := check.Value(netlink.LinkByName(name))(l.t)
	check.OK(l.t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0o644))
	check.OK(l.t, netlink.LinkSetUp(link))
	for _, text := range []string{fmt.Sprintf("10.9.%d.%d/24", l.n, host), fmt.Sprintf("fd09:%d::%d/64", l.n, host)} {
		a := check.Value(netlink.ParseAddr(text))(l.t)
		a.Flags = unix.IFA_F_NODAD
		check.OK(l.t, netlink.AddrAdd(link, a))
	}
}

// inside runs fn in the servers' namespace.
func (l *network) inside(fn func()) {
	done := make(chan struct{})
	l.enter <- func() {
		defer close(done)
		fn()
	}
	<-done
}

// addr is an address of the network.
func (l *network) addr(family vip.Family, host int) netip.Addr {
	if family == vip.IPv4 {
		return netip.AddrFrom4([4]byte{10, 9, byte(l.n), byte(host)})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd09:%d::%x", l.n, host))
}

// pool is the addresses of hosts, as Kea names them.
func (l *network) pool(family vip.Family, first, last int) string {
	return fmt.Sprint(l.addr(family, first), " - ", l.addr(family, last))
}

// A process is a server.
type process struct {
	cmd *exec.Cmd
	out *check.Buffer
}

// run starts a program in the servers' namespace, and waits until its output contains ready.
func (l *network) run(ready string, argv ...string) *process {
	l.t.Helper()
	p := &process{cmd: exec.Command(check.Program(l.t, argv[0]), argv[1:]...), out: &check.Buffer{}}
	p.cmd.Env = append(os.Environ(), "KEA_LOCKFILE_DIR="+l.dir, "KEA_PIDFILE_DIR="+l.dir)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	l.inside(func() { check.OK(l.t, p.cmd.Start()) })
	l.t.Cleanup(func() {
		p.kill()
		if l.t.Failed() {
			l.t.Logf("--- %s\n%s", strings.Join(argv, " "), p.out)
		}
	})
	check.True(l.t, 30*time.Second, argv[0]+" to run", func() bool { return strings.Contains(p.out.String(), ready) })
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// dnsmasq runs dnsmasq for both families. Its shortest lease is two minutes.
func (l *network) dnsmasq(more ...string) *process {
	return l.run("DHCP, IP range", append([]string{"dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--port=0", "--no-ping", "--log-dhcp",
		"--pid-file=", "--dhcp-authoritative", "--dhcp-leasefile=" + filepath.Join(l.dir, "dnsmasq.leases"), fmt.Sprint("--interface=srv", l.n), "--bind-interfaces",
		fmt.Sprintf("--dhcp-range=%s,%s,255.255.255.0,120s", l.addr(vip.IPv4, 100), l.addr(vip.IPv4, 110)),
		fmt.Sprintf("--dhcp-range=%s,%s,64,120s", l.addr(vip.IPv6, 100), l.addr(vip.IPv6, 110)), "--enable-ra"}, more...)...)
}

// file is what a server has written.
func (l *network) file(name string) string {
	b, _ := os.ReadFile(filepath.Join(l.dir, name))
	return string(b)
}

// Times of a lease, in seconds.
type terms struct{ lease, t1, t2 int }

// keaOf runs Kea for a family with the addresses of hosts.
func (l *network) keaOf(family vip.Family, t terms, first, last int) *process {
	if family == vip.IPv4 {
		return l.kea4(t, l.pool(family, first, last))
	}
	return l.kea6(t, l.pool(family, first, last))
}

// kea4 runs Kea for IPv4 with a pool.
func (l *network) kea4(t terms, pool string) *process {
	return l.kea("kea-dhcp4", fmt.Sprintf(`{"Dhcp4": {
		"interfaces-config": {"interfaces": ["srv%[1]d"], "dhcp-socket-type": "raw"},
		"lease-database": {"type": "memfile", "persist": true, "name": %[2]q, "lfc-interval": 0},
		"valid-lifetime": %[3]d, "renew-timer": %[4]d, "rebind-timer": %[5]d, "authoritative": true,
		"subnet4": [{"id": 1, "subnet": "10.9.%[1]d.0/24", "pools": [{"pool": "%[6]s"}],
			"option-data": [{"name": "routers", "data": "10.9.%[1]d.1"}]}],
		"loggers": [{"name": "kea-dhcp4", "severity": "DEBUG", "debuglevel": 40, "output_options": [{"output": "stdout"}]}]}}`,
		l.n, filepath.Join(l.dir, "kea4.csv"), t.lease, t.t1, t.t2, pool))
}

// kea6 runs Kea for IPv6 with a pool.
func (l *network) kea6(t terms, pool string) *process {
	return l.kea("kea-dhcp6", fmt.Sprintf(`{"Dhcp6": {
		"interfaces-config": {"interfaces": ["srv%[1]d"]},
		"server-id": {"type": "EN", "enterprise-id": 2495, "identifier": "0102030405", "persist": false},
		"lease-database": {"type": "memfile", "persist": true, "name": %[2]q, "lfc-interval": 0},
		"preferred-lifetime": %[3]d, "valid-lifetime": %[3]d, "renew-timer": %[4]d, "rebind-timer": %[5]d,
		"subnet6": [{"id": 1, "interface": "srv%[1]d", "subnet": "fd09:%[1]d::/64", "pools": [{"pool": "%[6]s"}]}],
		"loggers": [{"name": "kea-dhcp6", "severity": "DEBUG", "debuglevel": 40, "output_options": [{"output": "stdout"}]}]}}`,
		l.n, filepath.Join(l.dir, "kea6.csv"), t.lease, t.t1, t.t2, pool))
}

func (l *network) kea(name, config string) *process {
	l.t.Helper()
	file := filepath.Join(l.dir, name+".conf")
	check.OK(l.t, os.WriteFile(file, []byte(config), 0o644))
	return l.run("STARTED", name, "-c", file)
}

// request makes a macvlan on the network and a request for an address on it.
func (l *network) request(family vip.Family) vip.DHCPRequest {
	l.t.Helper()
	l.client++
	name := fmt.Sprintf("mv%d-%d", l.n, l.client)
	parent := check.Value(netlink.LinkByName(l.link))(l.t)
	mac := net.HardwareAddr{2, 0, 0, 9, byte(l.n), byte(l.client)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.HardwareAddr = name, parent.Attrs().Index, mac
	link := &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}
	check.OK(l.t, netlink.LinkAdd(link))
	for _, setting := range []string{"accept_ra=0", "addr_gen_mode=1"} {
		key, value, _ := strings.Cut(setting, "=")
		check.OK(l.t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/"+key, []byte(value), 0o644))
	}
	check.OK(l.t, netlink.LinkSetUp(link))
	own := check.Value(netlink.ParseAddr(fmt.Sprintf("fe80::ff:fe09:%x/64", l.n<<8|l.client)))(l.t)
	own.Flags = unix.IFA_F_NODAD // it can be used at once
	check.OK(l.t, netlink.AddrAdd(link, own))
	return vip.DHCPRequest{ID: name, Family: family, Link: name, MAC: mac.String(), IAID: uint32(l.client), Hostname: "host-" + name,
		DUID: fmt.Sprintf("0004%032x", l.n<<8|l.client)}
}

// A node is Clients that run, and what they need of l2.
type node struct {
	t       *testing.T
	clients *Clients
	poked   mailbox.Signal
	stop    func()
	tenure  atomic.Bool
}

func newNode(t *testing.T) *node {
	n := &node{t: t, poked: mailbox.NewSignal()}
	n.tenure.Store(true)
	tenure := func() vip.Tenure {
		return vip.Tenure{Epoch: 1, Confirmed: n.tenure.Load(), Until: time.Now().Add(time.Hour)}
	}
	log := slog.New(slog.DiscardHandler)
	announcer := l2.New(l2.Options{Log: log, Poke: func() {}, Tenure: tenure, Links: namespace.Links,
		Sysctl4: func(_, _ string) int { return 0 }})
	check.Run(t, announcer)
	n.clients = New(Options{Log: log, Tenure: tenure, Poke: n.poked.Send, Open: Open, InUse: announcer.Resolve})
	n.stop = check.Run(t, n.clients)
	return n
}

func (n *node) put(want ...vip.DHCPRequest) { n.clients.Put(want) }

func (n *node) states() []vip.DHCPState {
	var w vip.World
	n.clients.Observe(&w)
	return w.DHCPStates
}

// await waits until the state of the only request is as it should be, and returns it.
func (n *node) await(within time.Duration, what string, ok func(vip.DHCPState) bool) vip.DHCPState {
	n.t.Helper()
	deadline := time.After(within)
	for {
		all := n.states()
		if len(all) == 1 && ok(all[0]) {
			return all[0]
		}
		select {
		case <-n.poked:
		case <-deadline:
			n.t.Fatalf("waited %v in vain for %s: %+v", within, what, all)
		}
	}
}

func leased(h vip.DHCPState) bool { return h.State == stateBound && h.Lease.Addr.IsValid() }

func removeAll(dir, pattern string) error {
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}

// The two capabilities that Herald has in a container (pkg/manifest) are enough to open a link.
func TestOpenNeedsTwoCapabilities(t *testing.T) {
	l := lan(t)
	for _, family := range []vip.Family{vip.IPv4, vip.IPv6} {
		opened := make(chan error)
		go func() {
			runtime.LockOSThread() // and never unlocks: the thread ends with the goroutine
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			both := uint32(1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW)
			sets := [2]unix.CapUserData{{Effective: both, Permitted: both}} // of capabilities 0 to 31, and 32 to 63
			err := unix.Capset(&header, &sets[0])
			if err == nil {
				c, failed := Open(vip.DHCPRequest{Link: l.link, Family: family})
				if err = failed; err == nil {
					c.Close()
				}
			}
			opened <- err
		}()
		if err := <-opened; err != nil {
			t.Errorf("%v: %v", family, err)
		}
	}
}
