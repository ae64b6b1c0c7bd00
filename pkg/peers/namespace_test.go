package peers_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/l2"
	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/namespace"
)

// The test binary is also: itself in namespaces of its own, a node in one of
// them, and a program that keeps a core busy.
const (
	nodeEnv = "HERALD_TEST_NODE"
	busyEnv = "HERALD_TEST_BUSY"
)

// TestMain runs all tests in a user and network namespace of their own, which
// takes no root and can't harm the machine.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(busyEnv) != "":
		go orphan()
		for i := 0; ; i++ {
			_ = i * i
		}
	case os.Getenv(nodeEnv) != "":
		go orphan()
		if err := runNode(os.Getenv(nodeEnv)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case namespace.Inside():
		if lo, err := netlink.LinkByName("lo"); err == nil {
			_ = netlink.LinkSetUp(lo)
		}
		os.Exit(m.Run())
	}
	namespace.Enter()
}

// orphan ends the process when the test that started it is gone.
func orphan() {
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(1)
}

// A place is what a node's process is told.
type place struct {
	Name  string
	Nodes map[string]netip.AddrPort
	Key   string // a file
}

// A line is what a node's process says: how it sees another from now on.
type line struct {
	At    time.Time
	Node  string
	State string
	Why   string
}

// runNode is the process of a node: Peers, with the real ARP and NDP of package l2.
func runNode(text string) error {
	var p place
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	addr := p.Nodes[p.Name].Addr()
	here := addr
	if addr.Is6() && addr.IsLinkLocalUnicast() {
		here = addr.WithZone("eth0")
	}
	poke := make(chan struct{}, 1)
	announcer := l2.New(l2.Options{
		Log: slog.New(slog.DiscardHandler), Poke: func() {}, Tenure: func() vip.Tenure { return vip.Tenure{} }, Rate: time.Second,
		Links: func() []vip.Link {
			return []vip.Link{{Name: "eth0", Up: true, Prefixes: []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen()*3/4)}}}
		},
	})
	n := peers.New(peers.Options{
		Node: p.Name, Port: port, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Poke: func() {
			select {
			case poke <- struct{}{}:
			default:
			}
		},
		Keys: func() [][]byte {
			text, _ := os.ReadFile(p.Key)
			keys, _ := peers.ParseKeys(text)
			return keys
		},
		Address: func() netip.Addr { return here },
		Nodes:   otherNodes(p.Name, p.Nodes),
		Answers: func(ctx context.Context, a netip.Addr) bool { _, ok := announcer.Answers(ctx, "eth0", a); return ok },
	})
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = announcer.Run(ctx) })
	tasks.Go(func() { _ = n.Run(ctx) })
	defer tasks.Wait()
	said := map[string]vip.Liveness{}
	out := json.NewEncoder(os.Stdout)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-poke:
		}
		now := time.Now()
		for name, s := range n.Statuses() {
			if said[name] != s.Liveness {
				said[name] = s.Liveness
				if err := out.Encode(line{now, name, s.Liveness.String(), n.Why(name)}); err != nil {
					return err
				}
			}
		}
	}
}

// A lan is nodes n0, n1... with a process each, on one bridge.
type lan struct {
	t     testing.TB
	base  netip.Addr
	nodes []*box
	all   map[string]netip.AddrPort
}

// A box is a node: a network namespace, and a process in it.
type box struct {
	name  string
	ns    netns.NsHandle
	port  string // its end at the bridge
	key   string // the file with its keys
	cmd   *exec.Cmd
	ended chan struct{}
	log   *safe

	mu   sync.Mutex
	sees map[string]line
	told []line
}

// newLAN makes n nodes with addresses behind base, and waits until they see each other.
func newLAN(t testing.TB, n int, base string) *lan {
	t.Helper()
	l := &lan{t: t, base: netip.MustParseAddr(base), all: make(map[string]netip.AddrPort)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	must(t, netlink.LinkAdd(bridge))
	t.Cleanup(func() { _ = netlink.LinkDel(bridge) })
	must(t, netlink.LinkSetUp(bridge))
	addr := l.base
	for i := range n {
		addr = addr.Next()
		l.nodes = append(l.nodes, l.box(fmt.Sprintf("n%d", i), addr, bridge))
		l.all[l.nodes[i].name] = netip.AddrPortFrom(addr, port)
	}
	for _, b := range l.nodes {
		l.start(b)
	}
	l.settle()
	return l
}

// box makes a node's namespace and its link.
func (l *lan) box(name string, addr netip.Addr, bridge netlink.Link) *box {
	t := l.t
	t.Helper()
	b := &box{name: name, port: "to-" + name, key: filepath.Join(t.TempDir(), "key")}
	l.keys(b, keyA)
	b.in(t, func() error { return nil })
	t.Cleanup(func() { _ = b.ns.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = b.port
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "of-" + name}))
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(b.port); err == nil {
			_ = netlink.LinkDel(link)
		}
	})
	here, err := netlink.LinkByName(b.port)
	must(t, err)
	must(t, netlink.LinkSetMaster(here, bridge))
	must(t, netlink.LinkSetUp(here))
	there, err := netlink.LinkByName("of-" + name)
	must(t, err)
	must(t, netlink.LinkSetNsFd(there, int(b.ns)))
	b.in(t, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName("of-" + name)
		if err != nil {
			return err
		}
		a, err := netlink.ParseAddr(netip.PrefixFrom(addr, addr.BitLen()*3/4).String())
		if err != nil {
			return err
		}
		if addr.Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetName(link, "eth0"), netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
	})
	return b
}

// in runs f in the node's namespace, which it makes if there is none yet.
func (b *box) in(t testing.TB, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if b.ns == 0 {
			var err error
			b.ns, err = netns.New()
			done <- err
			return
		}
		if err := netns.Set(b.ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	must(t, <-done)
}

// keys writes what a node's process takes for the keys of the cluster.
func (l *lan) keys(b *box, keys ...[]byte) {
	l.t.Helper()
	must(l.t, os.WriteFile(b.key+".new", keyText(keys...), 0o600))
	must(l.t, os.Rename(b.key+".new", b.key))
}

// start starts the process of a node.
func (l *lan) start(b *box) {
	t := l.t
	t.Helper()
	text, err := json.Marshal(place{Name: b.name, Nodes: l.all, Key: b.key})
	must(t, err)
	b.cmd = exec.Command("/proc/self/exe")
	b.cmd.Env = append(os.Environ(), nodeEnv+"="+string(text))
	b.log = &safe{}
	b.cmd.Stderr = b.log
	_, err = b.cmd.StdinPipe() // see orphan
	must(t, err)
	out, err := b.cmd.StdoutPipe()
	must(t, err)
	b.mu.Lock()
	b.sees = make(map[string]line)
	b.mu.Unlock()
	b.in(t, b.cmd.Start)
	cmd, ended := b.cmd, make(chan struct{})
	b.ended = ended
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var said line
			if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
				t.Errorf("%s says %q", b.name, lines.Text())
				continue
			}
			b.mu.Lock()
			b.sees[said.Node] = said
			b.told = append(b.told, said)
			b.mu.Unlock()
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("%s:\n%s", b.name, b.log.text())
		}
	})
}

func (s *safe) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// sight is how a node sees another, and since when.
func (b *box) sight(of string) line {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sees[of]
}

// forget forgets what the node has told, but not how it sees the others.
func (b *box) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = nil
}

// telling is what the node has told since forget.
func (b *box) telling() []line {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.told)
}

// await waits until all nodes but some see that one so. It returns when the last did.
func (l *lan) await(of int, state string, but ...int) (last time.Time) {
	l.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		missing := ""
		last = time.Time{}
		for i, b := range l.nodes {
			if i == of || slices.Contains(but, i) {
				continue
			}
			s := b.sight(l.nodes[of].name)
			if s.State != state {
				missing = b.name + " sees it " + s.State
			}
			if s.At.After(last) {
				last = s.At
			}
		}
		if missing == "" {
			return last
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("waited in vain for %s to be %s: %s", l.nodes[of].name, state, missing)
		}
	}
}

// settle waits until all see all, and have asked for each other's addresses once.
func (l *lan) settle() {
	l.t.Helper()
	for i := range l.nodes {
		l.await(i, "alive")
	}
	time.Sleep(time.Second)
	for _, b := range l.nodes {
		b.forget()
	}
}

// calm fails if any node has changed its mind about another since settle.
func (l *lan) calm(about string) {
	l.t.Helper()
	for _, b := range l.nodes {
		for _, said := range b.telling() {
			l.t.Errorf("%s: %s saw %s %s (%s)", about, b.name, said.Node, said.State, said.Why)
		}
	}
}

// cut takes a node off the bridge, without its link going down, or puts it back.
func (l *lan) cut(b *box, cut bool) {
	l.t.Helper()
	link, err := netlink.LinkByName(b.port)
	must(l.t, err)
	if cut {
		must(l.t, netlink.LinkSetNoMaster(link))
		return
	}
	bridge, err := netlink.LinkByName("br0")
	must(l.t, err)
	must(l.t, netlink.LinkSetMaster(link, bridge))
}

// nft runs a script of nft in a node.
func (l *lan) nft(b *box, script string) {
	l.t.Helper()
	b.in(l.t, func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}

// busy keeps every core busy until the test ends.
func (l *lan) busy() {
	l.t.Helper()
	for range runtime.NumCPU() {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), busyEnv+"=1")
		_, err := cmd.StdinPipe() // see orphan
		must(l.t, err)
		must(l.t, cmd.Start())
		l.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
