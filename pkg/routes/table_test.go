package routes

import (
	"context"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
)

// TestMain runs all tests in a user and network namespace of their own.
func TestMain(m *testing.M) {
	if !namespace.Inside() {
		namespace.Enter()
	}
	m.Run()
}

// ip runs ip(8), which must work, and returns its output.
func ip(t testing.TB, args string) string {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip %s: %v\n%s", args, err, out)
	}
	return string(out)
}

// newTable makes links, and a Table of the process's namespace whose routes have the link that *link names.
func newTable(t *testing.T, change func(*Options)) (*Table, *string) {
	t.Helper()
	for _, name := range []string{"eth0", "eth1"} {
		ip(t, "link add "+name+" type bridge") // some kernels have no dummy links
		ip(t, "link set "+name+" up")
		t.Cleanup(func() { ip(t, "link del "+name) })
	}
	link := "eth0"
	return restarted(t, &link, change), &link
}

// restarted returns the Table of the next process.
func restarted(t *testing.T, link *string, change func(*Options)) *Table {
	o := Options{Log: check.Log(t), Poke: func() {}, Link: func() string { return *link }, ID: 198, Type: unix.RTN_UNICAST, Protocol: 248}
	if change != nil {
		change(&o)
	}
	return NewTable(o)
}

// routesTo are routes of a Service to prefixes.
func routesTo(prefixes ...string) (all []vip.Route) {
	for _, p := range prefixes {
		all = append(all, vip.Route{Prefix: netip.MustParsePrefix(p), Service: vip.Key{Namespace: "default", Name: "a"}})
	}
	return all
}

// set has the Table hold routes, which must work.
func set(t *testing.T, table *Table, want []vip.Route) {
	t.Helper()
	if have, err := table.Set(context.Background(), want); err != nil || len(have) != len(want) {
		t.Errorf("routes %v (%v), want %v", have, err, want)
	}
}

// inTable is the routes of the table of both families, without what the kernel adds to IPv6.
func inTable(t *testing.T) string {
	t.Helper()
	all := strings.Fields(ip(t, "-4 route show table 198") + ip(t, "-6 route show table 198"))
	return strings.ReplaceAll(strings.ReplaceAll(strings.Join(all, " "), " metric 1024", ""), " pref medium", "")
}

func wantTable(t *testing.T, want string) {
	t.Helper()
	if got := inTable(t); got != want {
		t.Errorf("table has %q\nwant      %q", got, want)
	}
}

const both = "10.79.0.1 dev eth0 proto 248 scope link fd79::1 dev eth0 proto 248"

func TestTable(t *testing.T) {
	table, _ := newTable(t, nil)
	main := ip(t, "-4 route")
	set(t, table, routesTo("10.79.0.1/32", "fd79::1/128"))
	wantTable(t, both)
	set(t, table, routesTo("10.79.0.2/32", "fd79::1/128"))
	wantTable(t, "10.79.0.2 dev eth0 proto 248 scope link fd79::1 dev eth0 proto 248")
	aggregate := vip.Route{Prefix: netip.MustParsePrefix("10.79.0.0/24")}
	if have, err := table.Set(context.Background(), []vip.Route{aggregate}); err != nil || len(have) > 0 {
		t.Errorf("an aggregate: %v, %v", have, err)
	}
	wantTable(t, "")
	if got := ip(t, "-4 route"); got != main {
		t.Errorf("the main table was %q, and is %q", main, got)
	}
}

// What a killed process left is the next one's: what is wanted stays, the rest goes. What others have in the table stays.
func TestAfterCrash(t *testing.T) {
	table, link := newTable(t, nil)
	set(t, table, routesTo("10.79.0.1/32", "10.79.0.2/32", "fd79::1/128", "fd79::2/128"))
	ip(t, "route add 10.79.0.9 dev eth1 proto static table 198")
	set(t, restarted(t, link, nil), routesTo("10.79.0.1/32", "fd79::1/128"))
	wantTable(t, "10.79.0.1 dev eth0 proto 248 scope link 10.79.0.9 dev eth1 proto static scope link fd79::1 dev eth0 proto 248")
	set(t, restarted(t, link, nil), nil)
	wantTable(t, "10.79.0.9 dev eth1 proto static scope link")
	ip(t, "route flush table 198")
}

// A route of another program to a VIP is left alone, and is an error that says what to do.
func TestForeignRoute(t *testing.T) {
	table, _ := newTable(t, nil)
	ip(t, "route add 10.79.0.1 dev eth1 proto static table 198")
	defer ip(t, "route flush table 198")
	have, err := table.Set(context.Background(), routesTo("10.79.0.1/32", "10.79.0.2/32"))
	want := "route to 10.79.0.1/32 in table 198: another program has one there, not of protocol 248: remove that, or set vip_routingtableid to a table of Herald's own"
	if err == nil || err.Error() != want || len(have) != 1 {
		t.Errorf("%v, %v\nwant %s", have, err, want)
	}
	wantTable(t, "10.79.0.1 dev eth1 proto static scope link 10.79.0.2 dev eth0 proto 248 scope link")
	ip(t, "route del 10.79.0.1 table 198")
	set(t, table, routesTo("10.79.0.1/32", "10.79.0.2/32")) // tried again, although nothing else is wanted
	set(t, table, nil)
}

// Without the link that routes have, what is no longer wanted is removed all the same, and what is wanted stays as it is.
func TestWithoutLink(t *testing.T) {
	table, link := newTable(t, nil)
	set(t, table, routesTo("10.79.0.2/32", "10.79.0.3/32", "fd79::3/128"))
	*link = "nope"
	want := routesTo("10.79.0.3/32", "10.79.0.4/32")
	have, err := table.Set(context.Background(), want)
	if err == nil || !strings.Contains(err.Error(), `routes to VIPs need a link: this node has no interface "nope"`) || len(have) != 1 {
		t.Errorf("%v, %v", have, err)
	}
	wantTable(t, "10.79.0.3 dev eth0 proto 248 scope link")
	*link = "eth0"
	set(t, table, want)
	wantTable(t, "10.79.0.3 dev eth0 proto 248 scope link 10.79.0.4 dev eth0 proto 248 scope link")
	set(t, table, nil)
}

// A kernel without rules has one table, which is the one that it routes by (fib_new_table without
// CONFIG_IP_MULTIPLE_TABLES): a route for any other table would go there, and stay.
func TestKernelWithoutTables(t *testing.T) {
	defer func() { ruleList = netlink.RuleList }()
	ruleList = func(family int) ([]netlink.Rule, error) {
		if family == unix.AF_INET6 {
			return nil, unix.EAFNOSUPPORT
		}
		return netlink.RuleList(family)
	}
	table, _ := newTable(t, nil)
	have, err := table.Set(context.Background(), routesTo("10.79.0.2/32", "fd79::2/128"))
	if err == nil || !strings.Contains(err.Error(), "route to fd79::2/128 in table 198: this kernel has no such table (CONFIG_IP") || len(have) != 1 {
		t.Errorf("%v, %v", have, err)
	}
	wantTable(t, "10.79.0.2 dev eth0 proto 248 scope link")
	set(t, table, nil)
}

// Routes come back when another program removes them, with the link, and when that of VIPs changes.
func TestReconciled(t *testing.T) {
	poked := make(chan struct{}, 100)
	table, link := newTable(t, func(o *Options) { o.Poke = func() { poked <- struct{}{} } })
	ctx, stop := context.WithCancel(context.Background())
	running := make(chan error)
	go func() { running <- table.Run(ctx) }()
	defer func() { stop(); check.OK(t, <-running) }()
	want := routesTo("10.79.0.1/32", "fd79::1/128")
	set(t, table, want)
	await := func() {
		t.Helper()
		select {
		case <-poked:
		case <-time.After(10 * time.Second):
			t.Fatal("no poke")
		}
	}
	// The subscription may begin a moment later than Run.
	check.Until(t, 10*time.Second, "the first poke", func() error {
		ip(t, "route flush table 198")
		table.stale.Store(true)
		set(t, table, want)
		select {
		case <-poked:
			return nil
		default:
			return context.DeadlineExceeded
		}
	})
	for len(poked) > 0 {
		<-poked
	}
	for _, family := range []string{"-4", "-6"} {
		ip(t, family+" route flush table 198")
		await()
		set(t, table, want)
		wantTable(t, both)
	}
	*link = "eth1"
	set(t, table, want)
	wantTable(t, strings.ReplaceAll(both, "eth0", "eth1"))
	*link = "eth0"
	set(t, table, want)
	ip(t, "link set eth0 down") // the kernel removes them, and tells of those of IPv6 only
	ip(t, "link set eth0 up")
	table.LinksChanged()
	set(t, table, want)
	wantTable(t, both)
	for len(poked) > 0 {
		<-poked
	}
	set(t, table, nil) // what Herald removes itself is no reason for another pass
	time.Sleep(100 * time.Millisecond)
	if len(poked) > 0 {
		t.Error("poked by its own change")
	}
}

// A route that drains stays for a second, and the process waits for another before it ends.
func TestDrain(t *testing.T) {
	table, _ := newTable(t, nil)
	want := routesTo("10.79.0.1/32")
	set(t, table, want)
	want[0].Drain = true
	began := time.Now()
	set(t, table, want)
	draining := func() bool {
		w := vip.World{Now: time.Now()}
		table.Observe(&w)
		return w.RoutesDraining
	}
	if wantTable(t, "10.79.0.1 dev eth0 proto 248 scope link"); !draining() {
		t.Error("it does not drain")
	}
	check.Until(t, 10*time.Second, "the route goes", func() error {
		_, err := table.Set(context.Background(), want)
		if err == nil && inTable(t) != "" {
			err = context.DeadlineExceeded
		}
		return err
	})
	if took := time.Since(began); took < drainStay {
		t.Errorf("it went after %v", took)
	} else if took < drainTime-100*time.Millisecond && !draining() {
		t.Error("the process does not wait for routers")
	}
	check.Until(t, 10*time.Second, "it has drained", func() error {
		if draining() {
			return context.DeadlineExceeded
		}
		return nil
	})
	set(t, table, nil)
}

func TestTypes(t *testing.T) {
	for kind, want := range map[int]string{
		unix.RTN_LOCAL:       "local 10.79.0.1 dev eth0 proto 248 scope host local fd79::1 dev eth0 proto 248",
		unix.RTN_BLACKHOLE:   "blackhole 10.79.0.1 proto 248 blackhole fd79::1 dev lo proto 248",
		unix.RTN_UNREACHABLE: "unreachable 10.79.0.1 proto 248 unreachable fd79::1 dev lo proto 248",
		unix.RTN_PROHIBIT:    "prohibit 10.79.0.1 proto 248 prohibit fd79::1 dev lo proto 248",
	} {
		t.Run(want, func(t *testing.T) {
			table, link := newTable(t, func(o *Options) { o.Type = kind })
			set(t, table, routesTo("10.79.0.1/32", "fd79::1/128"))
			got := strings.ReplaceAll(inTable(t), " error 4294967274", "")
			for _, e := range []string{" error -22", " error -113", " error -13", " error -101"} {
				got = strings.ReplaceAll(got, e, "")
			}
			if got != want {
				t.Errorf("table has %q\nwant      %q", got, want)
			}
			// The next process has another type, which replaces them.
			next := restarted(t, link, nil)
			set(t, next, routesTo("10.79.0.1/32", "fd79::1/128"))
			wantTable(t, both)
			set(t, next, nil)
			wantTable(t, "")
		})
	}
}

func TestLinks(t *testing.T) {
	table, link := newTable(t, nil)
	for name, want := range map[string]string{
		"":     "routes to VIPs need a link: this node has no default route to choose one by: set vip_interface",
		"eth9": `routes to VIPs need a link: this node has no interface "eth9"`,
		"lo":   "route to fd79::1/128 in table 198: an IPv6 route can't have lo as its link: set vip_interface to the link that packets to VIPs come by",
	} {
		ip(t, "link set lo up")
		*link = name
		if _, err := table.Set(context.Background(), routesTo("10.79.0.1/32", "fd79::1/128")); err == nil || err.Error() != want {
			t.Errorf("link %q: %v\nwant %s", name, err, want)
		}
	}
	*link = ""
	set(t, table, nil)
}

// Thousands of VIPs take moments.
func TestMany(t *testing.T) {
	table, _ := newTable(t, nil)
	var want []vip.Route
	for a := netip.MustParseAddr("10.80.0.0"); len(want) < 5000; a = a.Next() {
		want = append(want, routesTo(netip.PrefixFrom(a, 32).String())...)
	}
	for _, what := range []string{"added", "again"} {
		began := time.Now()
		set(t, table, want)
		t.Logf("%d routes %s in %v", len(want), what, time.Since(began))
	}
	set(t, table, nil)
	wantTable(t, "")
}
