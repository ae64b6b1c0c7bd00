package nft

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// What another program removes of a table is there again once it is written again: all of nftables, the table of a family, its rules alone, or one rule.
func TestReconciled(t *testing.T) {
	newRig(t)
	sh(t, "ip netns exec n1 nft flush ruleset") // what is there is Herald's
	var out strings.Builder
	tables := New(slog.New(slog.NewTextHandler(&out, nil)))
	n2 := own("n2")
	reconciles(t, tables.FormerOwners, vip.FormerOwner{Addr: vip4, Link: "eth0", NextHop: n2[0]}, vip.FormerOwner{Addr: vip6, Link: "eth0", NextHop: n2[1]})
	reconciles(t, tables.Translations, vip.Translation{Addr: vip4, Port: apiPort, To: own("n1")[0]}, vip.Translation{Addr: vip6, Port: apiPort, To: own("n1")[1]})
	reconciles(t, tables.Balanced,
		vip.BalancedServer{Addr: vip4, Port: apiPort, To: netip.AddrPortFrom(n2[0], apiPort)}, vip.BalancedServer{Addr: vip6, Port: apiPort, To: netip.AddrPortFrom(n2[1], apiPort)})
	reconciles(t, tables.OpenPorts, vip.OpenPort{Addr: vip4, Protocol: "TCP", Port: 80}, vip.OpenPort{Addr: vip6, Protocol: "TCP", Port: 80})
	reconciles(t, tables.Invalid, vip4, vip6)
	reconciles(t, tables.Egress, allLimits(vip4, netip.Addr{}), allLimits(vip6, n2[1]))
	check.Equal(t, out.String(), "", "log")
}

func reconciles[E any](t *testing.T, table *Table[E], want ...E) {
	t.Run(table.table, func(t *testing.T) {
		hold(t, "n1", table, want)
		full := ruleset(t, "n1")
		rule := sh(t, "ip netns exec n1 nft -a list table ip6 "+table.table+` | awk '/ { # handle/ {chain = $2; next} / # handle / {rule = chain " handle " $NF} END {printf "%s", rule}'`)
		for _, do := range []string{
			"flush ruleset", "delete table ip " + table.table, "delete table ip6 " + table.table, "flush table ip " + table.table, "flush table ip6 " + table.table,
			"delete rule ip6 " + table.table + " " + rule,
		} {
			if sh(t, "ip netns exec n1 nft "+do); full == ruleset(t, "n1") {
				t.Fatal(do + " removes nothing")
			}
			for i := range table.state {
				table.state[i].at = table.state[i].at.Add(-renewAfter)
			}
			hold(t, "n1", table, want)
			wantRuleset(t, "after "+do, full)
		}
		hold(t, "n1", table, nil)
	})
}

// A link that is made again under its name has another index, and one that comes later has one: entries are on it from the next Set on. Other links that come and go cost nothing.
func TestLinksChanged(t *testing.T) {
	newRig(t)
	var out strings.Builder
	tables := New(slog.New(slog.NewTextHandler(&out, nil)))
	want := []vip.FormerOwner{{Addr: vip4, Link: "eth0", NextHop: own("n2")[0]}, {Addr: vip4, Link: "bond0", NextHop: own("n2")[0]}}
	set := func() string {
		tables.LinksChanged()
		inside(t, "n1", func() { check.Value(tables.FormerOwners.Set(context.Background(), want))(t) })
		return ruleset(t, "n1")
	}
	check.Equal(t, strings.Count(set(), " : 10.0.0.2"), 1, "entries, one for the link that is there")
	for _, change := range []string{"link add bond0 type bridge", "link del bond0\nip -n n1 link add bond0 type bridge"} {
		sh(t, "ip -n n1 "+change)
		if got := set(); !strings.Contains(got, `"bond0" : 10.0.0.2`) || strings.Count(got, " : 10.0.0.2") != 2 {
			t.Errorf("after ip %s:\n%s", change, got)
		}
	}
	before := tables.FormerOwners.state[0].at
	sh(t, "ip -n n1 link add pod1 type bridge")
	set()
	check.Equal(t, tables.FormerOwners.state[0].at, before, "when the table was written, as another link is nothing to it")
	check.Equal(t, out.String(), "", "log")
}

// TestNothingIsLeft: each table that Tables can make can be listed by nft(8), and another process that wants nothing
// removes it; another's stays.
func TestNothingIsLeft(t *testing.T) {
	newRig(t)
	inside(t, "n1", func() {
		tables, ctx := New(check.Log(t)), context.Background()
		for _, a := range []netip.Addr{vip4, vip6} {
			check.Value(tables.FormerOwners.Set(ctx, []vip.FormerOwner{{Addr: a, Link: "eth0", NextHop: a}}))(t)
			check.Value(tables.Translations.Set(ctx, []vip.Translation{{Addr: a, Port: 6443, To: a}}))(t)
			check.Value(tables.Balanced.Set(ctx, []vip.BalancedServer{{Addr: a, Port: 6443, To: netip.AddrPortFrom(a, 6443)}}))(t)
			check.Value(tables.OpenPorts.Set(ctx, []vip.OpenPort{{Addr: a, Protocol: "TCP", Port: 80}}))(t)
			check.Value(tables.Invalid.Set(ctx, []netip.Addr{a}))(t)
			for _, via := range []netip.Addr{{}, own("n2")[0]} {
				check.Value(tables.Egress.Set(ctx, []vip.Egress{allLimits(a, via)}))(t)
			}
		}
	})
	if n := strings.Count(sh(t, "ip netns exec n1 nft list tables"), "herald"); n != 6 { // those of IPv6, which replaced those of IPv4
		t.Errorf("there are %d tables", n)
	}
	sh(t, "ip netns exec n1 nft list ruleset") // as kube-proxy has nft(8) do, which reads all tables
	inside(t, "n1", func() {
		tables, ctx := New(check.Log(t)), context.Background()
		check.Value(tables.FormerOwners.Set(ctx, nil))(t)
		check.Value(tables.Translations.Set(ctx, nil))(t)
		check.Value(tables.Balanced.Set(ctx, nil))(t)
		check.Value(tables.OpenPorts.Set(ctx, nil))(t)
		check.Value(tables.Invalid.Set(ctx, nil))(t)
		check.Value(tables.Egress.Set(ctx, nil))(t)
	})
	if left := sh(t, "ip netns exec n1 nft list tables"); strings.Contains(left, "herald") || !strings.Contains(left, "table inet proxy") {
		t.Errorf("n1 has\n%s", left)
	}
}
