package nft

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// What another program removes of a table is there again at the next Set that looks: all of nftables, the table of a family, its rules alone, or one rule.
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
	if got := strings.Count(out.String(), "another program has removed rules"); got != 4*removals {
		t.Errorf("%d warnings, want one for each of %d removals:\n%s", got, 4*removals, &out)
	}
	reconciles(t, tables.Egress, allLimits(vip4, netip.Addr{}), allLimits(vip6, n2[1])) // written each five seconds, whatever is there
}

// removals is how often reconciles has another program remove something.
const removals = 6

func reconciles[E any](t *testing.T, table *Table[E], want ...E) {
	t.Run(table.table, func(t *testing.T) {
		set := func() {
			inside(t, "n1", func() {
				if have := check.Value(table.Set(context.Background(), want))(t); len(have) != len(want) {
					t.Errorf("the kernel has %v, want %v", have, want)
				}
			})
		}
		set()
		full := ruleset(t, "n1")
		rule := sh(t, "ip netns exec n1 nft -a list table ip6 "+table.table+` | awk '/ { # handle/ {chain = $2; next} / # handle / {rule = chain " handle " $NF} END {printf "%s", rule}'`)
		for _, do := range []string{
			"flush ruleset", "delete table ip " + table.table, "delete table ip6 " + table.table, "flush table ip " + table.table, "flush table ip6 " + table.table,
			"delete rule ip6 " + table.table + " " + rule,
		} {
			if sh(t, "ip netns exec n1 nft "+do); full == ruleset(t, "n1") {
				t.Fatal(do + " removes nothing")
			}
			table.looked, table.at = table.looked.Add(-lookAfter), table.at.Add(-lookAfter)
			set()
			if diff := cmp.Diff(full, ruleset(t, "n1")); diff != "" {
				t.Errorf("after %s (-want +got):\n%s", do, diff)
			}
		}
		inside(t, "n1", func() { check.Value(table.Set(context.Background(), nil))(t) })
	})
}
