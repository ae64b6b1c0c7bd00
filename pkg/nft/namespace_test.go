package nft

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
)

// TestMain runs all tests in network and mount namespaces of their own: this process has the
// bridge, and each node, and the client, has a namespace at it.
func TestMain(m *testing.M) {
	namespace.EnterAsRoot()
	os.Exit(m.Run())
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

// withoutRights runs do in n1, without any capability.
func withoutRights(t testing.TB, do func()) {
	t.Helper()
	inside(t, "n1", func() {
		none := [2]unix.CapUserData{}
		check.OK(t, unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]))
		do()
	})
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
	check.Program(t, "nft")
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
	check.Same(t, want, ruleset(t, "n1"), "%s", when)
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
		conn := check.Value(net.DialTimeout("tcp", netip.AddrPortFrom(to, 80).String(), 5*time.Second))(r.t)
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

// set has Tables of a node hold entries for both VIPs, with the next hops of that node.
func (r *rig) set(tables *Tables, node string, former ...string) {
	r.t.Helper()
	var want []vip.FormerOwner
	for _, f := range former {
		want = append(want, vip.FormerOwner{Addr: vip4, Link: "eth0", NextHop: own(f)[0]}, vip.FormerOwner{Addr: vip6, Link: "eth0", NextHop: own(f)[1]})
	}
	hold(r.t, node, tables.FormerOwners, want)
}

// Without an entry a connection is reset once its VIP has moved. This is what Herald is to
// spare clients, and what shows that the other tests can fail.
func TestResetWithoutEntry(t *testing.T) {
	r := newRig(t)
	r.move("n1")
	for _, to := range []netip.Addr{vip4, vip6} {
		c := r.dial(to)
		c.wants(t, "n1")
		r.move("n2")
		_, err := c.ask(5 * time.Second)
		check.Is(t, err, syscall.ECONNRESET, "%s: the answer", to)
		r.move("n1")
	}
}

// A VIP goes from n1 to n2, to n3 and back to n1: all connections live, new ones are served by the owner.
func TestConnectionsSurviveMoves(t *testing.T) {
	r := newRig(t)
	n1, n2, n3 := New(check.Log(t)), New(check.Log(t)), New(check.Log(t))
	owners := make(map[string][]connection)
	both := func(node string) {
		t.Helper()
		for _, to := range []netip.Addr{vip4, vip6} {
			owners[node] = append(owners[node], r.dial(to))
		}
		for name, all := range owners {
			for _, c := range all {
				c.wants(t, name)
			}
		}
	}
	r.move("n1")
	both("n1")
	r.set(n2, "n2", "n1")
	r.move("n2")
	both("n2")
	r.set(n3, "n3", "n2")
	r.move("n3")
	both("n3")
	r.set(n1, "n1", "n3")
	r.move("n1")
	both("n1")
	r.set(n2, "n2") // the ring ends
	both("n1")
}

// A VIP goes from n1 to n2 and n3, whose process is killed, and back to n2: n3 goes on sending to n2
// what it does not know. What comes back to n2 from there goes to n1, and all connections live.
func TestRing(t *testing.T) {
	r := newRig(t)
	n2, n3 := New(check.Log(t)), New(check.Log(t))
	r.move("n1")
	of1, of1too := r.dial(vip4), r.dial(vip6)
	r.set(n2, "n2", "n1")
	r.move("n2")
	of2 := r.dial(vip4)
	r.set(n3, "n3", "n2")
	r.move("n3")
	of3 := r.dial(vip6)
	hold(t, "n2", n2.FormerOwners, []vip.FormerOwner{
		{Addr: vip4, Link: "eth0", NextHop: own("n3")[0], Again: own("n1")[0]}, {Addr: vip6, Link: "eth0", NextHop: own("n3")[1], Again: own("n1")[1]},
	})
	r.move("n2")
	of1.wants(t, "n1")
	of1too.wants(t, "n1")
	of2.wants(t, "n2")
	of3.wants(t, "n3")
	r.dial(vip4).wants(t, "n2")
}

// Nodes that name each other send a packet to and fro until its TTL has ended, which becomes 16 at most.
func TestLoopEnds(t *testing.T) {
	for ttl, most := range map[int]int{9: 9, 255: 16} {
		t.Run(fmt.Sprint(ttl), func(t *testing.T) {
			r := newRig(t)
			r.move("n3")
			sh(t, fmt.Sprintf("ip netns exec client sysctl -qw net.ipv4.ip_default_ttl=%d", ttl))
			c := r.dial(vip4)
			c.wants(t, "n3")
			log := check.Log(t)
			r.set(New(log), "n1", "n2")
			r.set(New(log), "n2", "n1")
			r.move("n1")
			sent := func() int {
				out := sh(t, "ip netns exec client nstat -asz TcpOutSegs | awk '/TcpOutSegs/ {print $2}'")
				return check.Value(strconv.Atoi(strings.TrimSpace(out)))(t)
			}
			before := sent()
			if got, err := c.ask(500 * time.Millisecond); err == nil {
				t.Fatalf("answered by %q: no node that is asked knows the connection", got)
			}
			hops := packets(t, "n1") + packets(t, "n2")
			if segments := sent() - before; hops < most-1 || hops > most*segments {
				t.Errorf("%d packets were sent on for %d segments with a TTL of %d", hops, segments, ttl)
			}
		})
	}
}

// packets is how many packets the rule of a node has sent on.
func packets(t testing.TB, node string) int {
	t.Helper()
	out := sh(t, "ip netns exec "+node+" nft list chain ip herald established")
	found := regexp.MustCompile(`counter packets (\d+)`).FindAllStringSubmatch(out, -1)
	if found == nil {
		t.Fatalf("no counter in\n%s", out)
	}
	sum := 0
	for _, x := range found {
		sum += check.Value(strconv.Atoi(x[1]))(t)
	}
	return sum
}

// ruleset is all that nftables has on a node, without what changes by itself, and the tables in the order of their names.
func ruleset(t testing.TB, node string) string {
	out := sh(t, "ip netns exec "+node+" nft list ruleset")
	out = regexp.MustCompile(`counter packets \d+ bytes \d+`).ReplaceAllString(out, "counter")
	tables := strings.SplitAfter(regexp.MustCompile(` expires \w+`).ReplaceAllString(out, ""), "\n}\n")
	slices.Sort(tables)
	return strings.Join(tables, "")
}

// What the kernel has is what was set last, also by another process, and nothing at last; tables of others stay.
func TestTable(t *testing.T) {
	r := newRig(t)
	empty := ruleset(t, "n1")
	tables := New(check.Log(t))
	r.set(tables, "n1")
	wantRuleset(t, "without an entry", empty)
	r.set(tables, "n1", "n2")
	full := ruleset(t, "n1")
	check.Contains(t, full,
		"type ipv4_addr . iface_index : ipv4_addr", "type ipv6_addr . iface_index : ipv6_addr", "timeout 5m",
		"10.0.0.200 . \"eth0\" : 10.0.0.2", "fd00::200 . \"eth0\" : fd00::2",
		"type filter hook prerouting priority mangle; policy accept;",
		"ct state ! established,related tcp flags != syn / syn,rst,ack ip ttl > 1 counter dup to ip daddr . iif map @former_owners device iif drop",
		"ip6 hoplimit > 1 counter dup to ip6 daddr . iif map @former_owners device iif drop")
	again := New(check.Log(t)) // the process was restarted
	r.set(again, "n1", "n3")
	if got := ruleset(t, "n1"); strings.Contains(got, "10.0.0.2\n") || !strings.Contains(got, "10.0.0.3") {
		t.Errorf("after a restart:\n%s", got)
	}
	sh(t, "ip netns exec n1 nft delete table ip herald") // by another program
	r.set(again, "n1", "n2")
	wantRuleset(t, "after another program had deleted a table", full)
	r.set(again, "n1")
	wantRuleset(t, "at last", empty)
}

// A thousand entries go through one transaction.
func TestManyEntries(t *testing.T) {
	newRig(t)
	tables := New(check.Log(t))
	var want []vip.FormerOwner
	for a := netip.MustParseAddr("10.1.0.0"); len(want) < 5000; a = a.Next() {
		want = append(want, vip.FormerOwner{Addr: a, Link: "eth0", NextHop: netip.MustParseAddr("10.0.0.2")})
	}
	inside(t, "n1", func() {
		for range 2 {
			began := time.Now()
			have := check.Value(tables.FormerOwners.Set(context.Background(), want))(t)
			t.Logf("%d entries in %v", len(have), time.Since(began))
			want = want[1:]
		}
	})
	check.Equal(t, strings.Count(sh(t, "ip netns exec n1 nft list map ip herald former_owners"), "expires"), 4999, "entries that the kernel has")
}

// A check of what the kernel can do changes nothing, and fails without the right to change nftables.
func TestCheck(t *testing.T) {
	r := newRig(t)
	r.set(New(check.Log(t)), "n1", "n2")
	before := ruleset(t, "n1")
	inside(t, "n1", func() { check.OK(t, Check()) })
	wantRuleset(t, "afterwards", before)
	withoutRights(t, func() {
		check.Is(t, Check(), unix.EPERM, "without CAP_NET_ADMIN")
	})
}

// A table with an expression that the kernel does not know fails its check.
func TestCheckFindsFault(t *testing.T) {
	newRig(t)
	faulty := translations
	faulty.build = func(c *nftables.Conn, f family, table *nftables.Table, maps []*nftables.Set, entries []vip.Translation) {
		translations.build(c, f, table, maps, entries)
		chain := c.AddChain(&nftables.Chain{Table: table, Name: "faulty"})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Socket{Key: 99, Register: first}}})
	}
	inside(t, "n1", func() {
		if err := faulty.check(); err == nil || !strings.Contains(err.Error(), "control plane's VIP (ip6)") {
			t.Errorf("%v, want an error that names table and family", err)
		}
	})
}

// Without the right to change nftables there are no entries, which is logged once, and no error.
func TestRefused(t *testing.T) {
	newRig(t)
	var out strings.Builder
	tables := New(slog.New(slog.NewTextHandler(&out, nil)))
	withoutRights(t, func() {
		for range 3 {
			have, err := tables.FormerOwners.Set(context.Background(), []vip.FormerOwner{{Addr: vip4, Link: "eth0", NextHop: netip.MustParseAddr("10.0.0.2")}})
			if have != nil || err != nil {
				t.Errorf("%v, %v; want no entries and no error", have, err)
			}
			expireRefusals(tables.FormerOwners)
		}
	})
	check.Equal(t, strings.Count(out.String(), "established connections of VIPs that have moved to this node are reset"), 1, "how often that is said:\n%s", &out)
}

// A family that nftables refuses takes nothing from the other: its entries follow what is wanted. It is logged once, and its entries are there once nftables takes them.
func TestOneFamilyRefused(t *testing.T) {
	newRig(t)
	var out strings.Builder
	tables := New(slog.New(slog.NewTextHandler(&out, nil)))
	refuses, build := true, translations.build
	tables.Translations.build = func(c *nftables.Conn, f family, table *nftables.Table, maps []*nftables.Set, entries []vip.Translation) {
		build(c, f, table, maps, entries)
		if refuses && !f.is4 {
			c.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Name: "nope", Table: table}}) // there is no such chain
		}
	}
	four := func(port uint16) vip.Translation { return vip.Translation{Addr: vip4, Port: port, To: own("n1")[0]} }
	six := vip.Translation{Addr: vip6, Port: 1, To: own("n1")[1]}
	for _, tt := range []struct {
		name    string
		refuses bool
		retry   bool
		want    []vip.Translation
		have    []vip.Translation
	}{
		{"both families", true, false, []vip.Translation{four(1), six}, []vip.Translation{four(1)}},
		{"another entry of IPv4", true, false, []vip.Translation{four(2), six}, []vip.Translation{four(2)}},
		{"refused again", true, true, []vip.Translation{four(2), six}, []vip.Translation{four(2)}},
		{"taken, but not tried yet", false, false, []vip.Translation{four(2), six}, []vip.Translation{four(2)}},
		{"taken", false, true, []vip.Translation{four(2), six}, []vip.Translation{four(2), six}},
	} {
		refuses = tt.refuses
		if tt.retry {
			expireRefusals(tables.Translations)
		}
		inside(t, "n1", func() {
			have := check.Value(tables.Translations.Set(t.Context(), tt.want))(t)
			check.Same(t, tt.have, have, "%s", tt.name)
		})
		for _, x := range tt.have {
			check.Contains(t, ruleset(t, "n1"), fmt.Sprintf("%s . %d", x.Addr, x.Port))
		}
	}
	check.Equal(t, strings.Count(out.String(), "nftables refuses"), 1, "how often that is said:\n%s", &out)
}

// expireRefusals has a Table try at once what the kernel has refused.
func expireRefusals[E any](table *Table[E]) {
	for i := range table.state {
		table.state[i].failed = table.state[i].failed.Add(-retryAfter)
	}
}

// Rules of portmap beside kube-proxy's nftables mode are told of; either alone is none of them.
func TestHostPorts(t *testing.T) {
	check.Program(t, "nft")
	sh(t, "ip netns add n1")
	t.Cleanup(func() { sh(t, "ip netns del n1") })
	do := func(lines string) { sh(t, strings.ReplaceAll(lines, "NFT", "ip netns exec n1 nft")) }
	found := func() (text string) {
		inside(t, "n1", func() { text = check.Value(HostPorts())(t) })
		return text
	}
	do("NFT add table ip kube-proxy\nNFT add chain ip kube-proxy services")
	check.Equal(t, found(), "", "without hostPorts")
	for _, of := range []string{"nat CNI-HOSTPORT-DNAT", "cni_hostport hostports"} {
		table, _, _ := strings.Cut(of, " ")
		do("NFT add table ip " + table + "\nNFT add chain ip " + of)
		check.Contains(t, found(), "hostPort")
		do("NFT delete table ip " + table)
	}
}
