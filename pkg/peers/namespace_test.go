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
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/peers"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
)

// The test binary is also: itself in namespaces of its own, a node in one of them, and a program that keeps a core busy.
const (
	nodeEnv = "HERALD_TEST_NODE"
	busyEnv = "HERALD_TEST_BUSY"
)

// TestMain runs all tests in a user and network namespace of their own, which takes no root and can't harm the machine.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(busyEnv) != "":
		go exitWithParent()
		for i := 0; ; i++ {
			_ = i * i
		}
	case os.Getenv(nodeEnv) != "":
		go exitWithParent()
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

// exitWithParent ends the process when the test that started it has ended.
func exitWithParent() {
	_, _ = os.Stdin.Read(make([]byte, 1))
	os.Exit(1)
}

// A nodeConfig is the configuration of a node's process, in JSON in its environment.
type nodeConfig struct {
	Name  string
	Nodes map[string]netip.AddrPort
	Key   string // a file
}

// A stateChange is a line that a node's process prints when the state of another node, or whether its death would be detected, has changed.
type stateChange struct {
	At         time.Time
	Node       string
	State      string
	Why        string
	Detectable bool
}

// runNode is the process of a node: Peers, with the real ARP and NDP of package l2.
func runNode(text string) error {
	var p nodeConfig
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
	poke := mailbox.NewSignal()
	announcer := l2.New(l2.Options{
		Log: slog.New(slog.DiscardHandler), Poke: func() {}, Tenure: func() vip.Tenure { return vip.Tenure{} }, Rate: time.Second,
		Sysctl4: func(string, string) int { return 0 },
		Links: func() []vip.Link {
			links := namespace.Links()
			for i := range links {
				if links[i].Name == "eth0" {
					links[i].Prefixes = []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen()*3/4)}
				}
			}
			return links
		},
	})
	n := peers.New(peers.Options{
		Node: p.Name, Port: port, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Poke: poke.Send,
		Keys: func() [][]byte {
			text, _ := os.ReadFile(p.Key)
			keys, _ := peers.ParseKeys(text)
			return keys
		},
		Address: func() netip.Addr { return here },
		Nodes:   otherNodes(p.Name, p.Nodes),
		Answers: func(ctx context.Context, a netip.Addr) bool { _, ok := announcer.Resolve(ctx, "eth0", a); return ok },
	})
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = announcer.Run(ctx) })
	tasks.Go(func() { _ = n.Run(ctx) })
	defer tasks.Wait()
	type printed struct {
		state      vip.Liveness
		detectable bool
	}
	last := map[string]printed{}
	out := json.NewEncoder(os.Stdout)
	probes := time.NewTicker(20 * time.Millisecond) // an answered probe does not poke
	defer probes.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-poke:
		case <-probes.C:
		}
		now := time.Now()
		for name, s := range n.Statuses() {
			is := printed{s.Liveness, n.Detectable(name)}
			if last[name] != is {
				last[name] = is
				if err := out.Encode(stateChange{now, name, s.Liveness.String(), n.Why(name), is.detectable}); err != nil {
					return err
				}
			}
		}
	}
}

// A lan is nodes n0, n1... on one bridge.
type lan struct {
	t     testing.TB
	base  netip.Addr
	nodes []*nodeProcess
	all   map[string]netip.AddrPort
}

// A nodeProcess is a node: a network namespace, and a process in it.
type nodeProcess struct {
	name       string
	ns         netns.NsHandle
	bridgePort string // its end at the bridge
	keyFile    string // the file with its keys
	cmd        *exec.Cmd
	ended      chan struct{}
	log        *check.Buffer

	mu      sync.Mutex
	states  map[string]stateChange
	changes []stateChange
}

// newLAN makes n nodes with the addresses that follow base, and waits until all are alive for all.
func newLAN(t testing.TB, n int, base string) *lan {
	t.Helper()
	l := &lan{t: t, base: netip.MustParseAddr(base), all: make(map[string]netip.AddrPort)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	check.OK(t, netlink.LinkAdd(bridge))
	t.Cleanup(func() { _ = netlink.LinkDel(bridge) })
	check.OK(t, netlink.LinkSetUp(bridge))
	addr := l.base
	for i := range n {
		addr = addr.Next()
		l.nodes = append(l.nodes, l.addNode(fmt.Sprintf("n%d", i), addr, bridge))
		l.all[l.nodes[i].name] = netip.AddrPortFrom(addr, port)
	}
	for _, b := range l.nodes {
		l.start(b)
	}
	l.awaitAllAlive()
	return l
}

// addNode makes a node's namespace and its link.
func (l *lan) addNode(name string, addr netip.Addr, bridge netlink.Link) *nodeProcess {
	t := l.t
	t.Helper()
	b := &nodeProcess{name: name, bridgePort: "to-" + name, keyFile: filepath.Join(t.TempDir(), "key")}
	l.writeKeys(b, keyA)
	b.in(t, func() error { return nil })
	t.Cleanup(func() { _ = b.ns.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = b.bridgePort
	check.OK(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "of-" + name}))
	t.Cleanup(func() {
		if link, err := netlink.LinkByName(b.bridgePort); err == nil {
			_ = netlink.LinkDel(link)
		}
	})
	here := check.Value(netlink.LinkByName(b.bridgePort))(t)
	check.OK(t, netlink.LinkSetMaster(here, bridge))
	check.OK(t, netlink.LinkSetUp(here))
	there := check.Value(netlink.LinkByName("of-" + name))(t)
	check.OK(t, netlink.LinkSetNsFd(there, int(b.ns)))
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
func (b *nodeProcess) in(t testing.TB, f func() error) {
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
	check.OK(t, <-done)
}

// writeKeys writes the file from which a node's process reads the keys of the cluster.
func (l *lan) writeKeys(b *nodeProcess, writeKeys ...[]byte) {
	l.t.Helper()
	check.OK(l.t, os.WriteFile(b.keyFile+".new", keyText(writeKeys...), 0o600))
	check.OK(l.t, os.Rename(b.keyFile+".new", b.keyFile))
}

// start starts the process of a node.
func (l *lan) start(b *nodeProcess) {
	t := l.t
	t.Helper()
	text := check.Value(json.Marshal(nodeConfig{Name: b.name, Nodes: l.all, Key: b.keyFile}))(t)
	b.cmd = exec.Command("/proc/self/exe")
	b.cmd.Env = append(os.Environ(), nodeEnv+"="+string(text))
	b.log = &check.Buffer{}
	b.cmd.Stderr = b.log
	check.Value(b.cmd.StdinPipe())(t) // see orphan
	out := check.Value(b.cmd.StdoutPipe())(t)
	b.mu.Lock()
	b.states = make(map[string]stateChange)
	b.mu.Unlock()
	b.in(t, b.cmd.Start)
	cmd, ended := b.cmd, make(chan struct{})
	b.ended = ended
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var seen stateChange
			if err := json.Unmarshal(lines.Bytes(), &seen); err != nil {
				t.Errorf("%s prints %q", b.name, lines.Text())
				continue
			}
			b.mu.Lock()
			if before := b.states[seen.Node]; before.State == seen.State {
				seen.At = before.At
			} else {
				b.changes = append(b.changes, seen)
			}
			b.states[seen.Node] = seen
			b.mu.Unlock()
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("%s:\n%s", b.name, b.log.String())
		}
	})
}

// state returns the last change of another node's state.
func (b *nodeProcess) state(of string) stateChange {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.states[of]
}

// clearChanges forgets the changes that the node has printed, but not the states.
func (b *nodeProcess) clearChanges() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changes = nil
}

// recentChanges returns the changes that the node has printed since clearChanges.
func (b *nodeProcess) recentChanges() []stateChange {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.changes)
}

// await waits until a node is in a state for all other nodes, but those in but. It returns when it was for the last of them.
func (l *lan) await(of int, state string, but ...int) (last time.Time) {
	l.t.Helper()
	check.Until(l.t, 20*time.Second, l.nodes[of].name+" is "+state, func() error {
		last = time.Time{}
		for i, b := range l.nodes {
			if i == of || slices.Contains(but, i) {
				continue
			}
			s := b.state(l.nodes[of].name)
			if s.State != state {
				return fmt.Errorf("for %s it is %s", b.name, s.State)
			}
			if s.At.After(last) {
				last = s.At
			}
		}
		return nil
	})
	return last
}

// awaitAllAlive waits until all nodes are alive for all, and have answered a probe; it then clears the changes.
func (l *lan) awaitAllAlive() {
	l.t.Helper()
	for i, of := range l.nodes {
		l.await(i, "alive")
		check.True(l.t, 20*time.Second, "all nodes have probed "+of.name, func() bool {
			return !slices.ContainsFunc(l.nodes, func(b *nodeProcess) bool { return b != of && !b.state(of.name).Detectable })
		})
	}
	for _, b := range l.nodes {
		b.clearChanges()
	}
}

// cut takes a node off the bridge, without its link going down, or puts it back.
func (l *lan) cut(b *nodeProcess, cut bool) {
	l.t.Helper()
	link := check.Value(netlink.LinkByName(b.bridgePort))(l.t)
	if cut {
		check.OK(l.t, netlink.LinkSetNoMaster(link))
		return
	}
	bridge := check.Value(netlink.LinkByName("br0"))(l.t)
	check.OK(l.t, netlink.LinkSetMaster(link, bridge))
}

// nft runs a script of nft in a node.
func (l *lan) nft(b *nodeProcess, script string) {
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

// keepCoresBusy runs a busy loop for each core until the test ends.
func (l *lan) keepCoresBusy() {
	l.t.Helper()
	for range runtime.NumCPU() {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), busyEnv+"=1")
		check.Value(cmd.StdinPipe())(l.t) // see orphan
		check.OK(l.t, cmd.Start())
		l.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
}
