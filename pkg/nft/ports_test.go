package nft

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// limit has n1 open these ports of both VIPs, with tables.
func (r *rig) limit(tables *Tables, ports ...vip.OpenPort) {
	r.t.Helper()
	var want []vip.OpenPort
	for _, p := range ports {
		for _, v := range []netip.Addr{vip4, vip6} {
			p.Addr = v
			want = append(want, p)
		}
	}
	hold(r.t, "n1", tables.OpenPorts, want)
}

// answerUDP answers every packet to a UDP port of an address of n1.
func (r *rig) answerUDP(address string) { answerIn(r.t, "n1", address) }

// askUDP reports whether a VIP answers at a UDP port a packet from a port of the client; 0 is any.
func (r *rig) askUDP(to netip.Addr, port, from uint16) (answered bool) {
	inside(r.t, "client", func() {
		d := net.Dialer{LocalAddr: &net.UDPAddr{Port: int(from)}}
		c := check.Value(d.Dial("udp", netip.AddrPortFrom(to, port).String()))(r.t)
		defer c.Close()
		check.OK(r.t, c.SetDeadline(time.Now().Add(300*time.Millisecond)))
		_ = check.Value(c.Write([]byte("hello")))(r.t)
		_, err := c.Read(make([]byte, 100))
		answered = err == nil
	})
	return answered
}

// ping fails unless n1 answers an ICMP echo request of the client.
func (r *rig) ping(to netip.Addr) {
	r.t.Helper()
	if err := r.echo(to); err != nil {
		r.t.Errorf("%s does not answer an echo request: %v", to, err)
	}
}

// echo sends an ICMP echo request from the client, and returns why there is no answer, or nil.
func (r *rig) echo(to netip.Addr) (err error) {
	network, kind := "ip4:icmp", icmp.Type(ipv4.ICMPTypeEcho)
	if to.Is6() {
		network, kind = "ip6:ipv6-icmp", ipv6.ICMPTypeEchoRequest
	}
	inside(r.t, "client", func() {
		c := check.Value(net.Dial(network, to.String()))(r.t)
		defer c.Close()
		check.OK(r.t, c.SetDeadline(time.Now().Add(5*time.Second)))
		_ = check.Value(c.Write(check.Value((&icmp.Message{Type: kind, Body: &icmp.Echo{ID: 1, Seq: 1}}).Marshal(nil))(r.t)))(r.t)
		_, err = c.Read(make([]byte, 100))
	})
	return err
}

// What a node listens on answers at a VIP, but not once its ports are limited to those of Services. The node's own
// addresses, ICMP, what kube-proxy translates, and replies to what the node sends from the VIP are left alone.
func TestOpenPorts(t *testing.T) {
	r := newRig(t)
	r.move("n1")
	for _, port := range []string{":22", ":443"} {
		r.listenOn("n1", port)
	}
	r.listenOn("client", ":9000")
	for _, v := range []netip.Addr{vip4, vip6} {
		r.answerUDP(netip.AddrPortFrom(v, 53).String())
		r.answerUDP(netip.AddrPortFrom(v, 5000).String())
	}
	empty := ruleset(t, "n1")
	both := []netip.Addr{vip4, vip6}
	for _, v := range both {
		check.Value(r.dialPort("client", v, 22))(t).wants(t, "n1")
		if !r.askUDP(v, 53, 0) || !r.askUDP(v, 5000, 0) {
			t.Errorf("%s does not answer by UDP", v)
		}
	}
	ssh := check.Value(r.dialPort("client", vip4, 22))(t)
	tables := New(check.Log(t))
	// 443 is as in kube-proxy's ipvs mode, whose packets come by the hook input.
	r.limit(tables, vip.OpenPort{Protocol: "TCP", Port: 80}, vip.OpenPort{Protocol: "TCP", Port: 443}, vip.OpenPort{Protocol: "UDP", Port: 53})
	for _, v := range both {
		if _, err := r.dialPort("client", v, 22); err == nil {
			t.Errorf("%s answers at port 22", v)
		}
		r.dial(v).wants(t, "n1")
		check.Value(r.dialPort("client", v, 443))(t).wants(t, "n1")
		if !r.askUDP(v, 53, 0) || r.askUDP(v, 5000, 0) || r.askUDP(v, 443, 0) || r.askUDP(v, 5000, 1900) {
			t.Errorf("%s by UDP: 53 %v, 5000 %v, 5000 from 1900 %v; want the first alone", v, r.askUDP(v, 53, 0), r.askUDP(v, 5000, 0), r.askUDP(v, 5000, 1900))
		}
		r.ping(v)
	}
	if got, err := ssh.ask(300 * time.Millisecond); err == nil {
		t.Errorf("a connection from before is answered by %s", got)
	}
	for i, own := range own("n1") {
		check.Value(r.dialPort("client", own, 22))(t).wants(t, "n1")
		inside(t, "n1", func() { // from the VIP, as to gateways
			d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(both[i], 0)), Timeout: 5 * time.Second}
			check.Value(d.Dial("tcp", []string{"10.0.0.4:9000", "[fd00::4]:9000"}[i]))(t).Close()
		})
	}
	r.limit(tables, vip.OpenPort{}) // none
	for _, v := range both {
		if _, err := r.dialPort("client", v, 443); err == nil {
			t.Errorf("%s answers at port 443, though none is open", v)
		}
		r.ping(v)
	}
	r.limit(tables)
	check.Value(r.dialPort("client", vip4, 22))(t).wants(t, "n1")
	wantRuleset(t, "at last", empty)
}

// The table has these rules, also after a restart of the process.
func TestOpenPortsTable(t *testing.T) {
	r := newRig(t)
	web := vip.OpenPort{Protocol: "TCP", Port: 80}
	r.limit(New(check.Log(t)), web)
	full := ruleset(t, "n1")
	check.Contains(t, full, "type filter hook input priority filter; policy accept;", "ip daddr != @limited accept", "ip daddr . meta l4proto . th dport @open accept", "drop")
	again := New(check.Log(t))
	r.limit(again, web)
	wantRuleset(t, "after a restart", full)
	r.limit(again)
}

// Where nftables can't be used nothing is limited, which the World and the log say.
func TestOpenPortsRefused(t *testing.T) {
	newRig(t)
	tables := New(check.Log(t))
	withoutRights(t, func() {
		have, err := tables.OpenPorts.Set(context.Background(), []vip.OpenPort{{Addr: vip4, Protocol: "TCP", Port: 80}})
		if len(have) > 0 || err != nil {
			t.Errorf("%v, %v", have, err)
		}
	})
	var w vip.World
	tables.Observe(&w)
	check.Equal(t, len(w.PortsNotLimited) > 0, true, "the World says why")
}

// The kernel takes a hundred thousand ports: its answers, one for each message of 250, find room. They had not at 65536.
func TestManyOpenPorts(t *testing.T) {
	newRig(t)
	tables := New(check.Log(t))
	var want []vip.OpenPort
	for i := range 25 {
		for p := range 4000 {
			want = append(want, vip.OpenPort{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Protocol: "TCP", Port: uint16(p + 1)})
		}
	}
	began := time.Now()
	hold(t, "n1", tables.OpenPorts, want)
	t.Log(len(want), "ports take", time.Since(began))
}
