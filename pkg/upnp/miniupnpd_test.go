package upnp

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func here(m vip.Mapping, is bool) vip.Mapping { m.Here = is; return m }

// One node makes a mapping, the next takes it over, and only the last removes it.
func TestMappingOutlivesItsNode(t *testing.T) {
	r := newRouter(t)
	r.miniupnpd(t)
	n1, n2 := newNode(t), newNode(t)
	tcp, udp := want("TCP", 80), want("UDP", 53)
	n1.put(tcp, udp)
	n2.put(here(tcp, false), here(udp, false))
	for _, p := range []string{"TCP", "UDP"} {
		x := n1.mapped(p, func(x vip.MappingState) bool { return x.Protocol == p && made(x) })
		if got, want := x.External.Addr().String(), publicAddr; got != want || x.External.Port() != x.Port {
			t.Errorf("external %s, want %s and the same port", x.External, want)
		}
		if left := time.Until(x.Until); left < 59*time.Minute || left > time.Hour {
			t.Errorf("ends in %v, want an hour", left)
		}
		if want := routerAddr + " (test router)"; x.Gateway != want {
			t.Errorf("the gateway is called %q, want %q", x.Gateway, want)
		}
	}
	if !r.has(t, "TCP 80", vip4+":80") || !r.has(t, "UDP 53", vip4+":53") {
		t.Fatalf("the router does not forward:\n%s", r.run(t, "nft", "list", "ruleset"))
	}
	for _, g := range n1.gateways() {
		have, err := g.control.getPortMapping(t.Context(), g.service, tcp)
		if err != nil || have == nil || have.description != "herald default/web (0a1b2c3d)" {
			t.Errorf("the gateway calls it %+v, %v", have, err)
		}
	}

	// The VIP moves. The one before goes, and takes nothing with it.
	n2.put(tcp, udp)
	n1.put(here(tcp, false), here(udp, false))
	n2.mapped("taken over", func(x vip.MappingState) bool { return x.Protocol == "UDP" && made(x) })
	n2.mapped("taken over", func(x vip.MappingState) bool { return x.Protocol == "TCP" && made(x) })
	n1.put()
	n1.stop()
	if !r.has(t, "TCP 80", vip4+":80") || !r.has(t, "UDP 53", vip4+":53") {
		t.Fatal("what was given away was removed")
	}

	// One port goes, then all.
	n2.put(tcp)
	check.True(t, 10*time.Second, "the port to be closed", func() bool { return !r.has(t, "UDP 53", vip4+":53") })
	if !r.has(t, "TCP 80", vip4+":80") {
		t.Error("the other port went as well")
	}
	n2.put()
	n2.stop() // at once: stopping waits for it
	if r.forwards(t) {
		t.Errorf("left behind:\n%s", r.run(t, "nft", "list", "ruleset"))
	}
}

// A gateway that forgot everything is given it again; one that comes late is found.
func TestRestart(t *testing.T) {
	r := newRouter(t)
	n := newNode(t)
	n.put(want("TCP", 80))
	x := n.mapped("without a gateway", func(x vip.MappingState) bool { return x.Problem != "" })
	if !strings.Contains(x.Problem, "no UPnP gateway answers on eth0") {
		t.Errorf("problem: %s", x.Problem)
	}
	d := r.miniupnpd(t)
	n.mapped("made", made)
	d.stop(syscall.SIGTERM)
	d = r.miniupnpd(t)
	check.True(t, 10*time.Second, "the mapping to be made again", func() bool { return r.has(t, "TCP 80", vip4+":80") })
	n.mapped("made", made)
	// Killed, it says no good-bye.
	d.stop(syscall.SIGKILL)
	r.miniupnpd(t)
	check.True(t, 10*time.Second, "the mapping to be made again", func() bool { return r.has(t, "TCP 80", vip4+":80") })
	n.mapped("made", made)
	// Somebody else deletes it.
	for _, g := range n.gateways() {
		check.OK(t, g.control.deletePortMapping(t.Context(), g.service, netip.Addr{}, want("TCP", 80)))
	}
	check.True(t, 10*time.Second, "the mapping to be made again", func() bool { return r.has(t, "TCP 80", vip4+":80") })
	// Its provider gives it another address.
	wan := check.Value(r.nl.LinkByName("wan"))(t)
	check.OK(t, r.nl.AddrDel(wan, addr(t, publicAddr+"/24")))
	n.mapped("without an external address", func(x vip.MappingState) bool {
		return x.Confirmed && strings.Contains(x.Problem, "no external address")
	})
	check.OK(t, r.nl.AddrAdd(wan, addr(t, "11.22.33.9/24")))
	n.mapped("at the new address", func(x vip.MappingState) bool { return made(x) && x.External.String() == "11.22.33.9:80" })
}

// A port that another host has is left to it.
func TestPortTaken(t *testing.T) {
	r := newRouter(t)
	d := r.miniupnpd(t)
	_ = d
	other := want("TCP", 80)
	other.Addr, other.Service.Name, other.UID = netip.MustParseAddr("10.0.0.10"), "other", "ffffffff"
	n1, n2 := newNode(t), newNode(t)
	n1.put(other)
	n1.mapped("made", made)
	mine := want("TCP", 80)
	n2.put(mine)
	x := n2.mapped("refused", func(x vip.MappingState) bool { return x.Problem != "" })
	for _, contains := range []string{"80/TCP", "10.0.0.10 port 80", `"herald default/other (ffffffff)"`, "heraldvip.io/upnp-external-port"} {
		if !strings.Contains(x.Problem, contains) {
			t.Errorf("%q is not in the problem: %s", contains, x.Problem)
		}
	}
	if x.Confirmed || !r.has(t, "TCP 80", "10.0.0.10:80") {
		t.Error("it was overwritten")
	}
	mine.External = 8080
	n2.put(mine)
	n2.mapped("at the other port", func(x vip.MappingState) bool { return made(x) && x.External.Port() == 8080 })
	// What was refused is taken once it is free.
	mine.External = 80
	n2.put(mine)
	n2.mapped("refused", func(x vip.MappingState) bool { return x.Problem != "" && x.Mapping.External == 80 })
	check.True(t, 10*time.Second, "the port before to be closed", func() bool { return !r.has(t, "TCP 8080", vip4+":80") })
	n1.put()
	n2.mapped("made", func(x vip.MappingState) bool { return made(x) && x.External.Port() == 80 })
	n2.put()
}

// A gateway in secure mode maps ports of a host only to that host: Herald asks from the VIP.
func TestSecureMode(t *testing.T) {
	r := newRouter(t)
	r.miniupnpd(t, "secure_mode=yes")
	n := newNode(t)
	n.put(want("TCP", 80))
	n.mapped("made", made)
	n.put()
	check.True(t, 10*time.Second, "the port to be closed", func() bool { return !r.forwards(t) })

	// Without the VIP on this node the gateway refuses.
	eth0 := check.Value(netlink.LinkByName("eth0"))(t)
	check.OK(t, netlink.AddrDel(eth0, addr(t, vip4+"/32")))
	n.put(want("TCP", 80))
	x := n.mapped("refused", func(x vip.MappingState) bool { return x.Problem != "" })
	if !strings.Contains(x.Problem, "secure mode") || x.Confirmed {
		t.Errorf("problem: %s", x.Problem)
	}
	check.OK(t, netlink.AddrAdd(eth0, addr(t, vip4+"/32")))
	n.mapped("made", made)
}

// IPv6 has no mappings, but holes in the firewall.
func TestPinhole(t *testing.T) {
	r := newRouter(t)
	d := r.miniupnpd(t)
	n1, n2 := newNode(t), newNode(t)
	six := want("TCP", 8080)
	six.Addr = netip.MustParseAddr(vip6)
	holes := func() int { // nft shows the address as a number
		return strings.Count(r.run(t, "nft", "list", "chain", "inet", "filter", "miniupnpd"), "th dport 8080 @nh,192,128 0xfd000000000000000000000000000050 ")
	}
	hole := func() bool { return holes() == 1 }
	n1.put(six)
	if x := n1.mapped("made", made); x.External.String() != "["+vip6+"]:8080" {
		t.Errorf("open is %s", x.External)
	}
	if !hole() {
		t.Fatalf("no hole:\n%s", r.run(t, "nft", "list", "ruleset"))
	}
	n1.put(here(six, false))
	n2.put(six)
	n2.mapped("taken over", made)
	if got := holes(); got != 1 {
		t.Errorf("%d holes, want 1", got)
	}
	d.stop(syscall.SIGKILL)
	r.miniupnpd(t)
	check.True(t, 10*time.Second, "the hole to be made again", hole)
	n2.mapped("made", made)
	n2.put()
	check.True(t, 10*time.Second, "the hole to be closed", func() bool { return holes() == 0 })
	// Low ports are refused.
	six.Port, six.External = 80, 80
	n2.put(six)
	x := n2.mapped("refused", func(x vip.MappingState) bool { return x.Problem != "" })
	if !strings.Contains(x.Problem, "606") || !strings.Contains(x.Problem, "1024") {
		t.Errorf("problem: %s", x.Problem)
	}
}

// What another process has had opened for a Service that is being deleted is closed. What leads elsewhere stays.
func TestGone(t *testing.T) {
	r := newRouter(t)
	r.miniupnpd(t)
	n1, n2 := newNode(t), newNode(t)
	mine, other := want("TCP", 80), want("TCP", 81)
	other.Addr = netip.MustParseAddr(nodeAddr)
	n1.put(mine, other)
	for _, p := range []uint16{80, 81} {
		n1.mapped("made", func(x vip.MappingState) bool { return x.Port == p && made(x) })
	}
	n1.put(here(mine, false), here(other, false))
	n1.stop()
	gone, elsewhere := mine, want("TCP", 81)
	gone.Gone, elsewhere.Gone = true, true
	n2.put(gone, elsewhere)
	for _, p := range []uint16{80, 81} {
		n2.mapped("removed", func(x vip.MappingState) bool { return x.Port == p && x.Gateway != "" && !x.Requested && !x.Confirmed })
	}
	if r.has(t, "TCP 80", vip4+":80") || !r.has(t, "TCP 81", nodeAddr+":81") {
		t.Errorf("the router has\n%s", r.run(t, "nft", "list", "ruleset"))
	}
}
