package nft

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

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
			check.Equal(t, counts(by), step.want, "%s with %v", v, step.nodes)
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
		check.Equal(t, counts(r.spread("n1", v, port, 10)), "n1 0, n2 5, n3 5", "from n1 itself to %s", v)
		check.Value(r.dialPort("client", v, apiPort))(t).wants(t, "n1") // another port
	}
	for i := range own("n1") {
		check.Value(r.dialPort("client", own("n1")[i], port))(t).wants(t, "n1") // another address
	}
	first := make(map[string]bool)
	for range 30 { // the table is written again between two connections, as it is each 10 s
		r.balance(tables, port)
		r.balance(tables, port, "n2", "n3")
		for node := range r.spread("client", vip4, port, 1) {
			first[node] = true
		}
	}
	check.Equal(t, len(first), 2, "how many API servers have the connections of a client that makes one now and then")
	r.balance(tables, port)
	hold(t, "n1", tables.Translations, nil)
	check.Value(r.dialPort("client", vip4, port))(t).wants(t, "n1")
	wantRuleset(t, "at last", empty)
}

// apiPort is the port of the API servers in the tests.
const apiPort = 6443

// listenOn serves each line with the node's name at a port of an address of the node.
func (r *rig) listenOn(node, address string) (l net.Listener) {
	r.t.Helper()
	inside(r.t, node, func() {
		l = check.Value(net.Listen("tcp", address))(r.t)
		r.t.Cleanup(func() { l.Close() })
		go serve(l, node)
	})
	return l
}

// own is the addresses of a node.
func own(node string) [2]netip.Addr {
	return [2]netip.Addr{netip.MustParseAddr("10.0.0." + node[1:]), netip.MustParseAddr("fd00::" + node[1:])}
}

// translate has a node translate connections to the API server's port of both VIPs, and send on those of a former owner, if there is one.
func (r *rig) translate(tables *Tables, node, former string) {
	r.t.Helper()
	mine, theirs := own(node), [2]netip.Addr{}
	if former != "" {
		theirs = own(former)
	}
	var sendOn []vip.FormerOwner
	var translated []vip.Translation
	for i, v := range []netip.Addr{vip4, vip6} {
		translated = append(translated, vip.Translation{Addr: v, Port: apiPort, To: mine[i]})
		if former != "" {
			sendOn = append(sendOn, vip.FormerOwner{Addr: v, Link: "eth0", Port: apiPort, NextHop: theirs[i]})
		}
	}
	hold(r.t, node, tables.Translations, translated)
	hold(r.t, node, tables.FormerOwners, sendOn)
}

// dialPort connects a host to a port of an address.
func (r *rig) dialPort(from string, to netip.Addr, port uint16) (c connection, err error) {
	inside(r.t, from, func() {
		var conn net.Conn
		if conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), 2*time.Second); err == nil {
			c = connection{conn, bufio.NewReader(conn)}
			r.t.Cleanup(func() { conn.Close() })
		}
	})
	return c, err
}

// Connections to a server on the node itself outlive the moves of the VIP: it goes from n1 to n2, n3 and back to n1. Those
// to another port do not, and are reset at once, not sent to and fro.
func TestLocalConnectionsSurviveMoves(t *testing.T) {
	r := newRig(t)
	log := check.Log(t)
	tables := make(map[string]*Tables)
	for _, n := range []string{"n1", "n2", "n3"} {
		r.listenOn(n, fmt.Sprintf(":%d", apiPort))
		r.listenOn(n, ":9345")
		tables[n] = New(log)
	}
	owners := make(map[string][]connection)
	dial := func(node string) {
		t.Helper()
		for _, to := range []netip.Addr{vip4, vip6} {
			owners[node] = append(owners[node], check.Value(r.dialPort("client", to, apiPort))(t))
		}
		for name, all := range owners {
			for _, c := range all {
				c.wants(t, name)
			}
		}
	}
	r.translate(tables["n1"], "n1", "")
	r.move("n1")
	dial("n1")
	other := check.Value(r.dialPort("client", vip4, 9345))(t)
	other.wants(t, "n1")
	for _, move := range []struct{ to, former string }{{"n2", "n1"}, {"n3", "n2"}, {"n1", "n3"}} {
		r.translate(tables[move.to], move.to, move.former)
		r.move(move.to)
		dial(move.to)
		if move.to == "n2" {
			_, err := other.ask(5 * time.Second)
			check.Is(t, err, syscall.ECONNRESET, "another port")
		}
	}
}

// What is not for an API server is not translated: a server on the VIP alone, and, once the VIP has gone, connections of
// this node to wherever it is.
func TestNotTranslated(t *testing.T) {
	r := newRig(t)
	tables := New(check.Log(t))
	r.move("n1")
	proxy := r.listenOn("n1", net.JoinHostPort(vip4.String(), "6443"))
	r.translate(tables, "n1", "")
	check.Value(r.dialPort("client", vip4, apiPort))(t).wants(t, "n1")
	_, err := r.dialPort("client", vip6, apiPort)
	check.Is(t, err, syscall.ECONNREFUSED, "where nobody listens")
	proxy.Close()
	r.listenOn("n1", ":6443")
	r.listenOn("n2", ":6443")
	r.move("n2")
	// A client behind n1, as a Pod would be, gets to the node that has the VIP now.
	sh(t, `ip netns add pod
ip link add pod netns n1 type veth peer name eth0 netns pod
ip -n n1 addr add 10.1.0.1/24 dev pod
ip -n n1 link set pod up
ip -n pod addr add 10.1.0.2/24 dev eth0
ip -n pod link set eth0 up
ip -n pod route add default via 10.1.0.1
ip netns exec n1 sysctl -qw net.ipv4.ip_forward=1
ip -n n2 route add 10.1.0.0/24 via 10.0.0.1`)
	t.Cleanup(func() { sh(t, "ip netns del pod") })
	check.Value(r.dialPort("pod", vip4, apiPort))(t).wants(t, "n2")
}

// The table is there while it is wanted only, and is not touched by what else changes.
func TestTranslationTable(t *testing.T) {
	r := newRig(t)
	empty := ruleset(t, "n1")
	tables := New(check.Log(t))
	r.translate(tables, "n1", "n2")
	full := ruleset(t, "n1")
	check.Contains(t, full,
		"table ip herald_control_plane", "type ipv4_addr . inet_service : ipv4_addr", "10.0.0.200 . 6443 : 10.0.0.1", "fd00::200 . 6443 : fd00::1",
		"type nat hook prerouting priority dstnat - 10; policy accept;", "fib daddr type local socket wildcard 1 dnat",
		"10.0.0.200 . 6443 . \"eth0\" : 10.0.0.2", "fd00::200 . 6443 . \"eth0\" : fd00::2")
	again := New(check.Log(t)) // the process was restarted
	r.translate(again, "n1", "n2")
	wantRuleset(t, "after a restart", full)
	hold(t, "n1", again.Translations, nil)
	hold(t, "n1", again.FormerOwners, nil)
	wantRuleset(t, "at last", empty)
}
