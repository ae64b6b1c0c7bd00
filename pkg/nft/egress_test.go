package nft

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// The pods of these tests, and what a table of egress leaves alone.
var (
	pod4, pod6 = netip.MustParseAddr("10.1.1.2"), netip.MustParseAddr("fd01::2")
	internal   = prefixes("10.1.0.0/16 10.1.1.0/24 10.2.0.0/16 10.0.0.3/32 fd01::/16 fd00::3/128 224.0.0.0/4 240.0.0.0/4")
)

func prefixes(text string) (all []netip.Prefix) {
	for _, x := range strings.Fields(text) {
		all = append(all, netip.MustParsePrefix(x))
	}
	return all
}

// allLimits is an entry with limits of each kind.
func allLimits(a, via netip.Addr) vip.Egress {
	return vip.Egress{VIP: a, Via: via, Link: "eth0", Pods: []netip.Addr{a}, Internal: internal, EgressLimits: vip.EgressLimits{
		AllowedNetworks: prefixes("10.0.0.0/8 fd00::/8"), DeniedNetworks: prefixes("10.0.1.0/24 fd00:1::/64"),
		DestinationPorts: []vip.Port{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 53}}, SourcePorts: []vip.Port{{Protocol: "TCP", Port: 3000}},
	}}
}

// addPod adds a host behind n1, which n2 reaches by n1, and nobody else, and servers on the client and on n3 that answer with the source address that they see.
// n1 masquerades what the pod sends, as network plugins do.
func (r *rig) addPod() {
	r.t.Helper()
	sh(r.t, `ip netns add pod
ip netns exec pod sysctl -qw net.ipv6.conf.default.accept_dad=0
ip link add pod0 type veth peer name eth0 netns pod
ip link set pod0 netns n1 up
ip -n n1 addr add 10.1.1.1/24 dev pod0
ip -n n1 addr add fd01::1/64 dev pod0 nodad
ip -n pod link set eth0 up
ip -n pod link set lo up
ip -n pod addr add 10.1.1.2/24 dev eth0
ip -n pod addr add fd01::2/64 dev eth0 nodad
ip -n pod route add default via 10.1.1.1
ip -n pod route add default via fd01::1
ip -n n2 route add 10.1.1.0/24 via 10.0.0.1
ip -n n2 route add fd01::/64 via fd00::1
ip netns exec n1 nft add table inet plugin
ip netns exec n1 nft 'add chain inet plugin post { type nat hook postrouting priority srcnat; }'
ip netns exec n1 nft add rule inet plugin post iifname pod0 masquerade
ip netns exec n2 nft add table inet plugin
ip netns exec n2 nft 'add chain inet plugin post { type nat hook postrouting priority srcnat; }'`)
	for _, n := range []string{"n1", "n2"} {
		sh(r.t, "ip netns exec "+n+" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0")
	}
	r.t.Cleanup(func() { sh(r.t, "ip netns del pod") })
	for _, where := range []string{"client", "n3"} {
		for _, port := range []string{":9000", ":9001"} {
			inside(r.t, where, func() {
				l := check.Value(net.Listen("tcp", port))(r.t)
				r.t.Cleanup(func() { l.Close() })
				go tellSource(l)
			})
		}
	}
}

// tellSource answers each line with the address of the client.
func tellSource(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for in := bufio.NewReader(c); ; {
				if _, err := in.ReadString('\n'); err != nil {
					return
				}
				_, _ = io.WriteString(c, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String()+" \n")
			}
		}()
	}
}

// connect connects the pod to a server, from a port of its own or any (0).
func (r *rig) connect(from uint16, to string) (c connection) {
	r.t.Helper()
	inside(r.t, "pod", func() {
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{Port: int(from)}}
		conn := check.Value(d.Dial("tcp", to))(r.t)
		c = connection{conn, bufio.NewReader(conn)}
	})
	r.t.Cleanup(func() { c.Close() })
	return c
}

// source is the address of the pod that a server sees.
func (r *rig) source(from uint16, to string) string {
	r.t.Helper()
	c := r.connect(from, to)
	defer c.Close()
	return check.Value(c.ask(5 * time.Second))(r.t)
}

// egress has a node make entries of both families of what change makes of one without limits.
func (r *rig) egress(tables *Tables, node string, change func(*vip.Egress)) {
	r.t.Helper()
	want := []vip.Egress{{VIP: vip4, Pods: []netip.Addr{pod4}}, {VIP: vip6, Pods: []netip.Addr{pod6}}}
	for i := range want {
		want[i].Internal = internal
		change(&want[i])
	}
	hold(r.t, node, tables.Egress, want)
}

// What a pod sends has the VIP as its source, within the limits, and not to destinations in the cluster.
func TestEgressOfOwnPods(t *testing.T) {
	r := newRig(t)
	r.addPod()
	r.move("n1")
	sh(t, "ip -n n1 addr change "+vip6.String()+"/128 dev eth0 preferred_lft 0") // as Herald does, so that nobody masquerades with it
	empty := ruleset(t, "n1")
	check.Equal(t, r.source(0, "10.0.0.4:9000"), "10.0.0.1", "the source without egress")
	tables := New(check.Log(t))
	for _, x := range []struct {
		name   string
		limits vip.EgressLimits
		from   uint16
		to     string
		want   string
	}{
		{"no limits", vip.EgressLimits{}, 0, "10.0.0.4:9000", vip4.String()},
		{"IPv6", vip.EgressLimits{}, 0, "[fd00::4]:9000", vip6.String()},
		{"a destination in the cluster", vip.EgressLimits{}, 0, "10.0.0.3:9000", "10.0.0.1"},
		{"the same, IPv6", vip.EgressLimits{}, 0, "[fd00::3]:9000", "fd00::1"},
		{"allowed", vip.EgressLimits{AllowedNetworks: prefixes("192.168.0.0/16 10.0.0.4/32")}, 0, "10.0.0.4:9000", vip4.String()},
		{"not allowed", vip.EgressLimits{AllowedNetworks: prefixes("192.168.0.0/16 10.0.0.5/32")}, 0, "10.0.0.4:9000", "10.0.0.1"},
		{"not of an allowed family", vip.EgressLimits{AllowedNetworks: prefixes("10.0.0.0/8")}, 0, "[fd00::4]:9000", "fd00::1"},
		{"denied", vip.EgressLimits{AllowedNetworks: prefixes("10.0.0.0/8"), DeniedNetworks: prefixes("10.0.0.4/31")}, 0, "10.0.0.4:9000", "10.0.0.1"},
		{"not denied", vip.EgressLimits{DeniedNetworks: prefixes("10.0.0.2/31 10.0.0.5/32")}, 0, "10.0.0.4:9000", vip4.String()},
		{"a port", vip.EgressLimits{DestinationPorts: []vip.Port{{Protocol: "UDP", Port: 53}, {Protocol: "TCP", Port: 9000}}}, 0, "10.0.0.4:9000", vip4.String()},
		{"another port", vip.EgressLimits{DestinationPorts: []vip.Port{{Protocol: "TCP", Port: 9000}}}, 0, "10.0.0.4:9001", "10.0.0.1"},
		{"another protocol", vip.EgressLimits{DestinationPorts: []vip.Port{{Protocol: "UDP", Port: 9000}}}, 0, "10.0.0.4:9000", "10.0.0.1"},
		{"a source port", vip.EgressLimits{SourcePorts: []vip.Port{{Protocol: "TCP", Port: 3000}}}, 3000, "[fd00::4]:9000", vip6.String()},
		{"another source port", vip.EgressLimits{SourcePorts: []vip.Port{{Protocol: "TCP", Port: 3000}}}, 3001, "[fd00::4]:9000", "fd00::1"},
	} {
		r.egress(tables, "n1", func(e *vip.Egress) { e.EgressLimits = x.limits })
		check.Equal(t, r.source(x.from, x.to), x.want, "%s: the source that %s sees", x.name, x.to)
	}
	hold(t, "n1", tables.Egress, nil)
	wantRuleset(t, "at last", empty)
}

// What a pod sends from another node than the VIP's owner comes to the owner by a rule for the mark, although its own node masquerades, and has
// the VIP as its source. Connections go on when the VIP moves to the pod's own node, by way of the former owner; one that began before goes on as it was.
func TestEgressByOwner(t *testing.T) {
	r := newRig(t)
	r.addPod()
	sh(t, fmt.Sprintf(`ip -n n1 rule add fwmark %[1]d/%[1]d lookup 100
ip -n n1 -6 rule add fwmark %[1]d/%[1]d lookup 100
ip -n n1 route add default via 10.0.0.2 table 100
ip -n n1 route add default via fd00::2 table 100`, vip.EgressMark))
	r.move("n2")
	before := r.connect(0, "10.0.0.4:9000")
	before.wants(t, "10.0.0.1")
	n1, n2 := New(check.Log(t)), New(check.Log(t))
	r.egress(n2, "n2", func(*vip.Egress) {})
	r.egress(n1, "n1", func(e *vip.Egress) { e.Via = own("n2")[0] })
	for to, want := range map[string]string{"10.0.0.4:9000": vip4.String(), "[fd00::4]:9000": vip6.String(), "10.0.0.3:9000": "10.0.0.1"} {
		check.Equal(t, r.source(0, to), want, "the source that %s sees", to)
	}
	before.wants(t, "10.0.0.1")

	// The VIP moves to n1. The former owner knows those that began there; what begins now leaves from n1.
	by := map[string]connection{vip4.String(): r.connect(0, "10.0.0.4:9000"), vip6.String(): r.connect(0, "[fd00::4]:9000")}
	for want, c := range by {
		c.wants(t, want)
	}
	r.set(n1, "n1", "n2")
	hold(t, "n1", n1.Egress, []vip.Egress{
		{VIP: vip4, Pods: []netip.Addr{pod4}, Internal: internal}, {VIP: vip4, Pods: []netip.Addr{pod4}, Internal: internal, Via: own("n2")[0], Former: true},
		{VIP: vip6, Pods: []netip.Addr{pod6}, Internal: internal}, {VIP: vip6, Pods: []netip.Addr{pod6}, Internal: internal, Via: own("n2")[1], Former: true},
	})
	hold(t, "n2", n2.Egress, nil)
	r.move("n1")
	for want, c := range by {
		c.wants(t, want)
	}
	before.wants(t, "10.0.0.1")
	sh(t, fmt.Sprintf("ip -n n1 rule del fwmark %[1]d/%[1]d\nip -n n1 -6 rule del fwmark %[1]d/%[1]d", vip.EgressMark)) // new ones don't go by n2
	for to, want := range map[string]string{"10.0.0.4:9000": vip4.String(), "[fd00::4]:9000": vip6.String()} {
		check.Equal(t, r.source(0, to), want, "the source that %s sees after the move", to)
	}
}

// Networks that overlap or touch each other are one interval, and the last of all has no end.
func TestIntervals(t *testing.T) {
	for networks, want := range map[string]string{
		"10.1.0.0/16":                          "10.1.0.0 -10.2.0.0",
		"10.2.0.0/16 10.1.0.0/16 10.1.1.0/24":  "10.1.0.0 -10.3.0.0",
		"10.1.0.0/24 10.3.0.0/32":              "10.1.0.0 -10.1.1.0 10.3.0.0 -10.3.0.1",
		"224.0.0.0/4 240.0.0.0/4 240.1.0.0/16": "224.0.0.0",
		"0.0.0.0/0 10.0.0.0/8 fd00::/8":        "0.0.0.0",
		"10.0.0.7/8 10.0.0.0/9":                "10.0.0.0 -11.0.0.0",
		"":                                     "",
	} {
		var got []string
		for _, e := range families[0].intervals(prefixes(networks)) {
			a, _ := netip.AddrFromSlice(e.Key)
			text := a.String()
			if e.IntervalEnd {
				text = "-" + text
			}
			got = append(got, text)
		}
		check.Equal(t, strings.Join(got, " "), want, "%s", networks)
	}
}

// The kernel takes what egress may have at most: 64 Services with 500 pods each, 64 networks and ports of each kind, and all nodes of a large cluster. What one
// tenant asks for takes egress from nobody.
func TestLargestEgress(t *testing.T) {
	newRig(t)
	tables := New(check.Log(t))
	nth := func(a string, n int) netip.Addr {
		b := netip.MustParseAddr(a).As4()
		return netip.AddrFrom4([4]byte{b[0], b[1], b[2] + byte(n/250), b[3] + byte(n%250)})
	}
	inCluster := prefixes("10.0.0.0/8")
	for i := range 5000 {
		inCluster = append(inCluster, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16 + byte(i/15000), byte(i / 100), byte(i%100) * 2}), 32))
	}
	var want []vip.Egress
	for i := range 64 {
		e := vip.Egress{VIP: nth("192.0.2.0", i), Internal: inCluster}
		for pod := range 500 {
			e.Pods = append(e.Pods, netip.AddrFrom4([4]byte{10, byte(i), byte(pod / 250), byte(pod % 250)}))
		}
		for n := range 64 {
			e.AllowedNetworks = append(e.AllowedNetworks, netip.PrefixFrom(nth("198.51.100.0", 2*n), 32))
			e.DeniedNetworks = append(e.DeniedNetworks, netip.PrefixFrom(nth("203.0.113.0", 2*n), 32))
			e.DestinationPorts = append(e.DestinationPorts, vip.Port{Protocol: "TCP", Port: uint16(n + 1)})
			e.SourcePorts = append(e.SourcePorts, vip.Port{Protocol: "UDP", Port: uint16(n + 1)})
		}
		want = append(want, e)
	}
	began := time.Now()
	hold(t, "n1", tables.Egress, want)
	t.Log(len(want), "VIPs take", time.Since(began))
}
