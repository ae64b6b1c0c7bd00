package nft

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

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
