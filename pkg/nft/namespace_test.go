package nft

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
)

// TestMain runs all tests in network and mount namespaces of their own: this process has the
// bridge, and each node, and the client, has a namespace at it.
func TestMain(m *testing.M) {
	if namespace.Inside() {
		for _, c := range []string{"mount --make-rprivate /", "mkdir -p /run/netns", "mount -t tmpfs tmpfs /run/netns"} {
			if out, err := exec.Command("sh", "-c", c).CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n%s", c, err, out)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	if os.Getuid() != 0 {
		fmt.Println("skipped: nodes in namespaces need root")
		os.Exit(0)
	}
	namespace.EnterAs(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS})
}

// sh runs shell commands, each of which must work, and returns their output.
func sh(t testing.TB, lines string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", lines).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", lines, err, out)
	}
	return string(out)
}

// inside runs do in a network namespace, on a thread of its own, and waits for it.
func inside(t testing.TB, name string, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		f, err := os.Open("/run/netns/" + name)
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		if err == nil {
			do()
		}
		done <- err
	}()
	check.OK(t, <-done)
}

// VIPs of the tests.
var (
	vip4 = netip.MustParseAddr("10.0.0.200")
	vip6 = netip.MustParseAddr("fd00::200")
)

// A rig is a bridge with a client and the nodes n1 to n3. What comes to port 80 of a VIP each
// node translates to a server of its own, as kube-proxy would.
type rig struct {
	t     testing.TB
	owner string
}

func newRig(t testing.TB) *rig {
	r := &rig{t: t}
	sh(t, "ip link add br0 type bridge mcast_snooping 0\nip link set br0 up")
	t.Cleanup(func() { sh(t, "ip link del br0") })
	for i, name := range []string{"n1", "n2", "n3", "client"} {
		sh(t, fmt.Sprintf(`ip netns add %[1]s
ip link add %[1]s type veth peer name eth0 netns %[1]s
ip link set %[1]s master br0 up
ip netns exec %[1]s sh -e <<-end
	sysctl -qw net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.eth0.accept_dad=0
	ip -batch - <<-end2
		link set lo up
		link set eth0 address 02:00:00:00:00:0%[2]d up
		addr add 10.0.0.%[2]d/24 dev eth0
		addr add fd00::%[2]d/64 dev eth0
	end2
end`, name, i+1))
		t.Cleanup(func() { sh(t, "ip link del "+name+"\nip netns del "+name) }) // the namespace goes later, its link at once
		if name == "client" {
			continue
		}
		sh(t, fmt.Sprintf(`ip netns exec %[1]s nft -f - <<-end
	add table inet proxy
	add chain inet proxy pre { type nat hook prerouting priority dstnat; }
	add rule inet proxy pre ip daddr %[3]s tcp dport 80 dnat ip to 10.0.0.%[2]d:8080
	add rule inet proxy pre ip6 daddr %[4]s tcp dport 80 dnat ip6 to [fd00::%[2]d]:8080
end`, name, i+1, vip4, vip6))
		inside(t, name, func() {
			l := check.Value(net.Listen("tcp", ":8080"))(t)
			t.Cleanup(func() { l.Close() })
			go serve(l, name)
		})
	}
	return r
}

// hold has a node's table hold entries, all of which the kernel must take.
func hold[E any](t testing.TB, node string, table *Table[E], want []E) {
	t.Helper()
	inside(t, node, func() {
		if have := check.Value(table.Set(context.Background(), want))(t); len(have) != len(want) {
			t.Errorf("%s has %d of %d: %.500s (%v)", node, len(have), len(want), fmt.Sprint(have), table.refusals())
		}
	})
}

// wantRuleset compares what nftables has on n1.
func wantRuleset(t *testing.T, when, want string) {
	t.Helper()
	if diff := cmp.Diff(want, ruleset(t, "n1")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// serve answers each line with the name of the node and the line.
func serve(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for in := bufio.NewReader(c); ; {
				line, err := in.ReadString('\n')
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, name+" "+line)
			}
		}()
	}
}

// move moves the VIPs to a node: the node before drops them, and the client learns of it.
func (r *rig) move(to string) {
	r.t.Helper()
	mac := "02:00:00:00:00:0" + to[1:]
	if r.owner != "" {
		sh(r.t, fmt.Sprintf("ip -n %[1]s addr del %[2]s/32 dev eth0\nip -n %[1]s addr del %[3]s/128 dev eth0", r.owner, vip4, vip6))
	}
	r.owner = to
	sh(r.t, fmt.Sprintf(`ip -n %[1]s addr add %[3]s/32 dev eth0
ip -n %[1]s addr add %[4]s/128 dev eth0 nodad
ip -n client neigh replace %[3]s lladdr %[2]s dev eth0 nud permanent
ip -n client neigh replace %[4]s lladdr %[2]s dev eth0 nud permanent`, to, mac, vip4, vip6))
}

// A client's connection to a VIP.
type connection struct {
	net.Conn
	in *bufio.Reader
}

// dial connects the client to a VIP.
func (r *rig) dial(to netip.Addr) (c connection) {
	r.t.Helper()
	inside(r.t, "client", func() {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 80).String(), 5*time.Second)
		check.OK(r.t, err)
		c = connection{conn, bufio.NewReader(conn)}
	})
	r.t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a line and returns the name of the node whose server answers.
func (c connection) ask(within time.Duration) (string, error) {
	_ = c.SetDeadline(time.Now().Add(within))
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	line, err := c.in.ReadString('\n')
	name, _, _ := strings.Cut(line, " ")
	return name, err
}

// wants fails unless the server of that node answers.
func (c connection) wants(t testing.TB, node string) {
	t.Helper()
	if got, err := c.ask(5 * time.Second); got != node {
		t.Errorf("answered by %q (%v), want %s", got, err, node)
	}
}
