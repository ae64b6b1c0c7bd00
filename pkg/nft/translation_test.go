package nft

import (
	"bufio"
	"errors"
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
			if got, err := other.ask(5 * time.Second); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("another port: answered by %q (%v), want a reset", got, err)
			}
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
	if _, err := r.dialPort("client", vip6, apiPort); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("where nobody listens: %v, want that it is refused", err)
	}
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
	for _, want := range []string{
		"table ip herald_control_plane", "type ipv4_addr . inet_service : ipv4_addr", "10.0.0.200 . 6443 : 10.0.0.1", "fd00::200 . 6443 : fd00::1",
		"type nat hook prerouting priority dstnat - 10; policy accept;", "fib daddr type local socket wildcard 1 dnat",
		"10.0.0.200 . 6443 . \"eth0\" : 10.0.0.2", "fd00::200 . 6443 . \"eth0\" : fd00::2",
	} {
		if !strings.Contains(full, want) {
			t.Errorf("there is no %q", want)
		}
	}
	if t.Failed() {
		t.Log(full)
	}
	again := New(check.Log(t)) // the process was restarted
	r.translate(again, "n1", "n2")
	wantRuleset(t, "after a restart", full)
	hold(t, "n1", again.Translations, nil)
	hold(t, "n1", again.FormerOwners, nil)
	wantRuleset(t, "at last", empty)
}
