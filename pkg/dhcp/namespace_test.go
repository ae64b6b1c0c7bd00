package dhcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/namespace"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestMain runs all tests in a user and network namespace of their own, which
// takes no root and can't harm the machine.
func TestMain(m *testing.M) {
	if namespace.Inside() {
		os.Exit(m.Run())
	}
	for _, arg := range os.Args[1:] {
		if strings.HasPrefix(arg, "-test.fuzz=") { // no link is needed, and workers talk by files that a child does not inherit
			namespace.Stay()
			os.Exit(m.Run())
		}
	}
	namespace.Enter("-test.parallel=8") // they wait for servers more than they work
}

// A network is a LAN with a host for servers, in a namespace of its own, and
// this node on it.
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
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: peer}))
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
	p, err := netlink.LinkByName(peer)
	must(t, err)
	must(t, netlink.LinkSetNsFd(p, <-fd))
	l.up(l.link, 2)
	l.inside(func() {
		l.up(peer, 1)
		lo, err := netlink.LinkByName("lo")
		must(t, err)
		must(t, netlink.LinkSetUp(lo))
	})
	own, err := netlink.LinkByName(l.link)
	must(t, err)
	t.Cleanup(func() { _ = netlink.LinkDel(own) })
	await(t, 20*time.Second, "the link to be up", func() bool {
		up := 0
		look := func(name string) {
			if k, err := netlink.LinkByName(name); err == nil && k.Attrs().OperState == netlink.OperUp {
				up++
			}
		}
		look(l.link)
		l.inside(func() { look(peer) })
		return up == 2
	})
	return l
}

func (l *network) up(name string, host int) {
	link, err := netlink.LinkByName(name)
	must(l.t, err)
	must(l.t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_dad", []byte("0"), 0o644))
	must(l.t, netlink.LinkSetUp(link))
	for _, text := range []string{fmt.Sprintf("10.9.%d.%d/24", l.n, host), fmt.Sprintf("fd09:%d::%d/64", l.n, host)} {
		a, err := netlink.ParseAddr(text)
		must(l.t, err)
		a.Flags = unix.IFA_F_NODAD
		must(l.t, netlink.AddrAdd(link, a))
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

// addr4 and addr6 are addresses of the network.
func (l *network) addr4(host int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 9, byte(l.n), byte(host)})
}
func (l *network) addr6(host int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd09:%d::%x", l.n, host))
}

// A process is a server.
type process struct {
	cmd *exec.Cmd
	out *buffer
}

// run starts a program in the servers' namespace, and waits until it says so.
func (l *network) run(ready string, argv ...string) *process {
	l.t.Helper()
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), out: &buffer{}}
	p.cmd.Env = append(os.Environ(), "KEA_LOCKFILE_DIR="+l.dir, "KEA_PIDFILE_DIR="+l.dir)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	l.inside(func() { must(l.t, p.cmd.Start()) })
	l.t.Cleanup(func() {
		p.kill()
		if l.t.Failed() {
			l.t.Logf("--- %s\n%s", strings.Join(argv, " "), p.out)
		}
	})
	await(l.t, 30*time.Second, argv[0]+" to run", func() bool { return strings.Contains(p.out.String(), ready) })
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
		fmt.Sprintf("--dhcp-range=10.9.%d.100,10.9.%d.110,255.255.255.0,120s", l.n, l.n),
		fmt.Sprintf("--dhcp-range=fd09:%d::100,fd09:%d::110,64,120s", l.n, l.n), "--enable-ra"}, more...)...)
}

// file is what a server has written.
func (l *network) file(name string) string {
	b, _ := os.ReadFile(filepath.Join(l.dir, name))
	return string(b)
}

// Times of a lease, in seconds.
type terms struct{ lease, t1, t2 int }

// kea4 runs Kea for IPv4 with a pool.
func (l *network) kea4(t terms, pool string) *process {
	return l.kea("kea-dhcp4", fmt.Sprintf(`{"Dhcp4": {
		"interfaces-config": {"interfaces": ["srv%[1]d"], "dhcp-socket-type": "raw"},
		"lease-database": {"type": "memfile", "persist": true, "name": %[2]q, "lfc-interval": 0},
		"valid-lifetime": %[3]d, "renew-timer": %[4]d, "rebind-timer": %[5]d, "authoritative": true,
		"subnet4": [{"id": 1, "subnet": "10.9.%[1]d.0/24", "pools": [{"pool": %[6]q}],
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
		"subnet6": [{"id": 1, "interface": "srv%[1]d", "subnet": "fd09:%[1]d::/64", "pools": [{"pool": %[6]q}]}],
		"loggers": [{"name": "kea-dhcp6", "severity": "DEBUG", "debuglevel": 40, "output_options": [{"output": "stdout"}]}]}}`,
		l.n, filepath.Join(l.dir, "kea6.csv"), t.lease, t.t1, t.t2, pool))
}

func (l *network) kea(name, config string) *process {
	l.t.Helper()
	file := filepath.Join(l.dir, name+".conf")
	must(l.t, os.WriteFile(file, []byte(config), 0o644))
	return l.run("STARTED", name, "-c", file)
}

// hire makes a macvlan on the network and says what to lease on it.
func (l *network) hire(family vip.Family) vip.DHCPRequest {
	l.t.Helper()
	l.client++
	name := fmt.Sprintf("mv%d-%d", l.n, l.client)
	parent, err := netlink.LinkByName(l.link)
	must(l.t, err)
	mac := net.HardwareAddr{2, 0, 0, 9, byte(l.n), byte(l.client)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.HardwareAddr = name, parent.Attrs().Index, mac
	link := &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}
	must(l.t, netlink.LinkAdd(link))
	for _, setting := range []string{"accept_ra=0", "addr_gen_mode=1"} {
		key, value, _ := strings.Cut(setting, "=")
		must(l.t, os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/"+key, []byte(value), 0o644))
	}
	must(l.t, netlink.LinkSetUp(link))
	own, err := netlink.ParseAddr(fmt.Sprintf("fe80::ff:fe09:%x/64", l.n<<8|l.client))
	must(l.t, err)
	own.Flags = unix.IFA_F_NODAD // it can be used at once
	must(l.t, netlink.AddrAdd(link, own))
	return vip.DHCPRequest{ID: name, Family: family, Link: name, MAC: mac.String(), IAID: uint32(l.client), Hostname: "host-" + name,
		DUID: fmt.Sprintf("0004%032x", l.n<<8|l.client)}
}

// A desk is Clients at work.
type desk struct {
	t      *testing.T
	all    *Clients
	poked  chan struct{}
	stop   func()
	tenure atomic.Bool
}

func start(t *testing.T, change func(*Options)) *desk {
	d := &desk{t: t, poked: make(chan struct{}, 1)}
	d.tenure.Store(true)
	o := Options{
		Log: slog.New(slog.DiscardHandler),
		Tenure: func() vip.Tenure {
			return vip.Tenure{Epoch: 1, Confirmed: d.tenure.Load(), Until: time.Now().Add(time.Hour)}
		},
		Poke: func() {
			select {
			case d.poked <- struct{}{}:
			default:
			}
		},
		Attempts: 0, Open: Open, InUse: InUse,
	}
	if change != nil {
		change(&o)
	}
	d.all = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := d.all.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	d.stop = func() { cancel(); <-over }
	t.Cleanup(d.stop)
	return d
}

func (d *desk) set(want ...vip.DHCPRequest) {
	d.t.Helper()
	_, err := d.all.Set(context.Background(), want)
	must(d.t, err)
}

func (d *desk) hired() []vip.DHCPState {
	var w vip.World
	d.all.Observe(&w)
	return w.DHCPStates
}

// await waits until the only Hire is as it should be, and returns it.
func (d *desk) await(within time.Duration, what string, ok func(vip.DHCPState) bool) vip.DHCPState {
	d.t.Helper()
	deadline := time.After(within)
	for {
		all := d.hired()
		if len(all) == 1 && ok(all[0]) {
			return all[0]
		}
		select {
		case <-d.poked:
		case <-deadline:
			d.t.Fatalf("waited %v in vain for %s: %+v", within, what, all)
		}
	}
}

func leased(h vip.DHCPState) bool { return h.State == bound && h.Lease.Addr.IsValid() }

func await(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for %s", within, what)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// buffer is a bytes.Buffer for several users.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func removeAll(dir, pattern string) error {
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	for _, f := range files {
		err = errors.Join(err, os.Remove(f))
	}
	return err
}
