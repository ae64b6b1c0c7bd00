package routes

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// own is Herald's rules and routes, as ip(8) shows them, without what is the same in all.
func own(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(ip(t, family+" rule list priority 1980")) {
			if f := strings.Fields(line); len(f) > 6 {
				fmt.Fprintln(&b, f[2], f[4], f[6])
			}
		}
		for table := firstTable; table < firstTable+3; table++ {
			out, _ := exec.Command("ip", family, "route", "list", "table", fmt.Sprint(table)).Output()
			if f := strings.Fields(string(out)); len(f) > 4 {
				fmt.Fprintln(&b, table, f[2], f[4])
			}
		}
	}
	return b.String()
}

func addrs(text string) (all []netip.Addr) {
	for _, x := range strings.Fields(text) {
		all = append(all, netip.MustParseAddr(x))
	}
	return all
}

// entry is what pods send is routed to an owner.
func entry(via, link, pods string) vip.Egress {
	e := vip.Egress{VIP: netip.MustParseAddr("10.0.0.200"), Link: link, Pods: addrs(pods)}
	if via != "" {
		e.Via = netip.MustParseAddr(via)
	}
	return e
}

// The kernel has what was set last, an owner keeps its table, a later process replaces what it finds, what others
// have stays, and nothing is left.
func TestEgress(t *testing.T) {
	ip(t, "link add d0 type veth peer name d1")
	ip(t, "link set d1 up")
	ip(t, "link set d0 up")
	ip(t, "addr add 10.0.0.1/24 dev d0")
	ip(t, "addr add fd00::1/64 dev d0 nodad")
	ip(t, "rule add from 10.9.9.9 lookup 19800 priority 1980") // another program's, by its protocol
	ip(t, "rule add from 10.9.9.8 lookup main priority 50")
	others := ip(t, "rule list")
	r := NewEgress(0x1000)
	set := func(r *Egress, want ...vip.Egress) {
		t.Helper()
		if have := check.Value(r.Set(t.Context(), want))(t); len(have) != len(want) {
			t.Errorf("%d of %d entries", len(have), len(want))
		}
	}
	wants := func(what, want string) {
		t.Helper()
		var got []string
		for line := range strings.Lines(own(t)) {
			if !strings.HasPrefix(line, "10.9.9.9") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		if got := strings.Join(got, "; "); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", what, got, want)
		}
	}
	set(r, entry("", "", "10.1.0.2"))
	wants("this node is the owner", "")
	set(r, entry("10.0.0.2", "d0", "10.1.0.2"), entry("fd00::2", "d0", "fd01::2"))
	wants("one owner", "10.1.0.2 0x1000/0x1000 19800; 19800 10.0.0.2 d0; fd01::2 0x1000/0x1000 19800; 19800 fd00::2 d0")
	set(r, entry("10.0.0.2", "d0", "10.1.0.2"), entry("10.0.0.3", "d0", "10.1.0.3"))
	wants("another comes", "10.1.0.2 0x1000/0x1000 19800; 10.1.0.3 0x1000/0x1000 19801; 19800 10.0.0.2 d0; 19801 10.0.0.3 d0")
	set(r, entry("10.0.0.3", "d0", "10.1.0.2 10.1.0.3"))
	wants("the VIP of the first moves to it", "10.1.0.3 0x1000/0x1000 19801; 10.1.0.2 0x1000/0x1000 19801; 19801 10.0.0.3 d0")
	ip(t, "rule del from 10.1.0.3 priority 1980")
	ip(t, "route flush table 19801")
	r.at = time.Now().Add(-relistEgress)
	set(r, entry("10.0.0.3", "d0", "10.1.0.2 10.1.0.3"))
	if got := own(t); !strings.Contains(got, "10.1.0.2 0x1000/0x1000 19800\n") || !strings.Contains(got, "10.1.0.3 0x1000/0x1000 19800\n") || !strings.Contains(got, "19800 10.0.0.3 d0\n") || strings.Count(got, "\n") != 3 {
		t.Errorf("after another program had removed some:\n%s", got)
	}
	later := NewEgress(0x1000) // the process was restarted
	set(later, entry("10.0.0.2", "d0", "10.1.0.3"))
	wants("a later process", "10.1.0.3 0x1000/0x1000 19800; 19800 10.0.0.2 d0")
	set(later)
	wants("at last", "")
	if got := ip(t, "rule list"); got != others {
		t.Errorf("others' rules were\n%sand are\n%s", others, got)
	}
	set(later, entry("10.0.0.2", "d0", "10.1.0.3"))
	removeAll(t)
	wants("uninstalled", "")
	if _, err := NewEgress(0x1000).Set(t.Context(), []vip.Egress{entry("10.0.0.2", "d9", "10.1.0.2")}); err == nil || !strings.Contains(err.Error(), `this node has no interface "d9"`) {
		t.Errorf("a link that is not there: %v", err)
	}
	removeAll(t)
}

// A kernel without rules has one table, to which a route for any other would go: its own default route would be
// replaced (fib_new_table without CONFIG_IP_MULTIPLE_TABLES). So no route is added, and nothing that is not wanted
// is an error.
func TestEgressWithoutRules(t *testing.T) {
	defer removeAll(t)
	ip(t, "link add e0 type veth peer name e1")
	defer ip(t, "link del e0")
	ip(t, "link set e1 up")
	ip(t, "link set e0 up")
	ip(t, "addr add 10.0.9.1/24 dev e0")
	ip(t, "addr add fd09::1/64 dev e0 nodad")
	defer func() { ruleList = netlink.RuleList }()
	for _, refusal := range []error{unix.EAFNOSUPPORT, unix.EOPNOTSUPP} {
		ruleList = func(family int) ([]netlink.Rule, error) {
			if family == unix.AF_INET6 {
				return nil, refusal
			}
			return netlink.RuleList(family)
		}
		r := NewEgress(0x1000)
		check.Value(r.Set(t.Context(), []vip.Egress{entry("10.0.9.2", "e0", "10.1.0.2")}))(t)
		_, err := r.Set(t.Context(), []vip.Egress{entry("10.0.9.2", "e0", "10.1.0.2"), entry("fd09::2", "e0", "fd01::2")})
		if err == nil || !strings.Contains(err.Error(), "CONFIG_IPV6_MULTIPLE_TABLES") {
			t.Errorf("%v: %v", refusal, err)
		}
		if got, want := own(t), "10.1.0.2 0x1000/0x1000 19800\n19800 10.0.9.2 e0\n"; got != want {
			t.Errorf("%v:\n%swant\n%s", refusal, got, want)
		}
		removeAll(t)
	}
}

// What goes wrong reads the same each time, so that the agent logs it once, and names some of many owners.
func TestEgressErrorReadsTheSame(t *testing.T) {
	defer removeAll(t)
	r, last := NewEgress(0x1000), ""
	var all []vip.Egress
	for i := range 40 {
		all = append(all, entry(fmt.Sprintf("10.0.0.%d", 2+i), "d9", fmt.Sprintf("10.1.0.%d", 2+i)))
	}
	for i := range 10 {
		_, err := r.Set(t.Context(), all)
		if err == nil {
			t.Fatal("a link that is not there is no error")
		}
		if last != "" && err.Error() != last {
			t.Fatalf("at first:\n%s\nlater, the %d. time:\n%v", last, i+1, err)
		}
		last = err.Error()
	}
	if n := strings.Count(last, "\n"); n > 10 {
		t.Errorf("%d lines:\n%s", n+1, last)
	}
}

// A list of the kernel that changes while it is read is read again.
func TestListInterrupted(t *testing.T) {
	for _, tt := range []struct{ interrupted, reads int }{{0, 1}, {3, 4}, {99, 10}} {
		reads := 0
		all, err := complete(func() ([]int, error) {
			if reads++; reads <= tt.interrupted {
				return nil, fmt.Errorf("rules: %w", netlink.ErrDumpInterrupted)
			}
			return []int{1, 2}, nil
		})
		if failed := tt.reads <= tt.interrupted; reads != tt.reads || (err != nil) != failed || !failed && len(all) != 2 {
			t.Errorf("%d interrupted: %d reads, %v (%v)", tt.interrupted, reads, all, err)
		}
	}
}

// removeAll removes what the Egress of another process has left.
func removeAll(t *testing.T) {
	t.Helper()
	check.Value(NewEgress(0).Set(t.Context(), nil))(t)
}
