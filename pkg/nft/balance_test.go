package nft

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// balance has n1 spread connections to a port of both VIPs over the API servers of nodes.
func (r *rig) balance(tables *Tables, port uint16, nodes ...string) {
	r.t.Helper()
	var want []vip.BalancedServer
	for _, n := range nodes {
		for i, v := range []netip.Addr{vip4, vip6} {
			want = append(want, vip.BalancedServer{Addr: v, Port: port, To: netip.AddrPortFrom(own(n)[i], apiPort)})
		}
	}
	hold(r.t, "n1", tables.Balanced, want)
}

// spread makes n connections of a host to a VIP, and returns them by the node that answers.
func (r *rig) spread(from string, to netip.Addr, port uint16, n int) map[string][]connection {
	r.t.Helper()
	by := make(map[string][]connection)
	for range n {
		c := check.Value(r.dialPort(from, to, port))(r.t)
		node := check.Value(c.ask(ask))(r.t)
		by[node] = append(by[node], c)
	}
	return by
}

// ask is how long an answer may take.
const ask = 5e9

// counts is how many connections there are of each node.
func counts(by map[string][]connection) string {
	var all []string
	for _, n := range []string{"n1", "n2", "n3"} {
		all = append(all, fmt.Sprintf("%s %d", n, len(by[n])))
	}
	return strings.Join(all, ", ")
}

// Connections to the VIP are spread over the API servers of three nodes, also those of the node itself. When one is not ready any more,
// and when it is again, those that live stay with theirs, and new ones go to those that are ready. At last all are the owner's.
func TestBalance(t *testing.T) {
	const port = 8443 // lb_port; the API servers have another
	r := newRig(t)
	r.move("n1")
	for _, n := range []string{"n1", "n2", "n3"} {
		r.listenOn(n, fmt.Sprintf(":%d", apiPort))
	}
	r.listenOn("n1", fmt.Sprintf(":%d", port))
	sh(t, "ip netns exec n1 sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	empty := ruleset(t, "n1")
	tables := New(check.Log(t))
	r.translate(tables, "n1", "") // as cmd/herald does: what is balanced goes first
	living := make(map[string][]connection)
	for _, step := range []struct {
		nodes []string
		want  string
	}{
		{[]string{"n1", "n2", "n3"}, "n1 10, n2 10, n3 10"},
		{[]string{"n1", "n3"}, "n1 15, n2 0, n3 15"},
		{[]string{"n1", "n2", "n3"}, "n1 10, n2 10, n3 10"},
		{[]string{"n2"}, "n1 0, n2 30, n3 0"},
	} {
		r.balance(tables, port, step.nodes...)
		for _, v := range []netip.Addr{vip4, vip6} {
			by := r.spread("client", v, port, 30)
			if got := counts(by); got != step.want {
				t.Errorf("%s with %v: %s, want %s", v, step.nodes, got, step.want)
			}
			for n, all := range by {
				living[n] = append(living[n], all...)
			}
		}
		for n, all := range living {
			for _, c := range all {
				c.wants(t, n)
			}
		}
	}
	r.balance(tables, port, "n2", "n3")
	for _, v := range []netip.Addr{vip4, vip6} {
		if got := counts(r.spread("n1", v, port, 10)); got != "n1 0, n2 5, n3 5" {
			t.Errorf("from n1 itself to %s: %s", v, got)
		}
		check.Value(r.dialPort("client", v, apiPort))(t).wants(t, "n1") // another port
	}
	for i := range own("n1") {
		check.Value(r.dialPort("client", own("n1")[i], port))(t).wants(t, "n1") // another address
	}
	r.balance(tables, port)
	hold(t, "n1", tables.Translations, nil)
	check.Value(r.dialPort("client", vip4, port))(t).wants(t, "n1")
	wantRuleset(t, "at last", empty)
}
