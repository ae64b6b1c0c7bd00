package netif

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// connect is a connection from another address of the node to a listener at addr; the listener's end is open, too.
func connect(t *testing.T, listen, from, addr string) net.Conn {
	t.Helper()
	l := check.Value(net.Listen("tcp", listen))(t)
	t.Cleanup(func() { l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	check.OK(t, err)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Second}
	c, err := d.Dial("tcp", net.JoinHostPort(addr, port))
	for range 5 { // IPv6 on a link that is new takes a moment
		if err == nil {
			break
		}
		c, err = d.Dial("tcp", net.JoinHostPort(addr, port))
	}
	check.OK(t, err)
	t.Cleanup(func() { c.Close() })
	served := check.Value(l.Accept())(t)
	t.Cleanup(func() { served.Close() })
	return c
}

// readError is the error that the client's end of a connection reads within a moment.
func readError(c net.Conn) error {
	c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return err
}

// TestKernelResets: a connection to an address that is served here is reset when that is removed. No other connection is.
func TestKernelResets(t *testing.T) {
	lo := check.Value(netlink.LinkByName("lo"))(t)
	check.OK(t, netlink.LinkSetUp(lo)) // a node talks to its own addresses by way of it
	t.Cleanup(func() { _ = netlink.LinkSetDown(lo) })
	newVeth(t, "eth0", "10.0.0.1/24", "fd00::1/64")
	n, stop := kernelRig(t)
	defer stop()
	served := []vip.Address{{Addr: netip.MustParseAddr("10.0.0.50"), Bits: 32, Link: "eth0", LocalDelivery: true}, {Addr: netip.MustParseAddr("fd00::50"), Bits: 128, Link: "eth0", LocalDelivery: true}}
	other := vip.Address{Addr: netip.MustParseAddr("10.0.0.60"), Bits: 32, Link: "eth0"}
	check.Value(n.Set(t.Context(), append(served[:2:2], other)))(t)
	gone := map[string]net.Conn{
		"IPv4":                       connect(t, "10.0.0.50:0", "10.0.0.1", "10.0.0.50"),
		"IPv4, by a socket for both": connect(t, "[::]:0", "10.0.0.1", "10.0.0.50"),
		"IPv6":                       connect(t, "[fd00::50]:0", "fd00::1", "fd00::50"),
	}
	stay := map[string]net.Conn{
		"the node's own address":      connect(t, "[::]:0", "10.0.0.1", "10.0.0.1"),
		"a VIP that stays":            connect(t, "10.0.0.60:0", "10.0.0.1", "10.0.0.60"),
		"the node's own IPv6 address": connect(t, "[::]:0", "fd00::1", "fd00::1"),
	}
	check.Value(n.Set(t.Context(), []vip.Address{other}))(t)
	for name, c := range gone {
		if err := readError(c); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want a reset", name, err)
		}
	}
	for name, c := range stay {
		if err := readError(c); !errors.Is(err, syscall.ETIMEDOUT) && !isTimeout(err) {
			t.Errorf("%s: %v, want nothing", name, err)
		}
	}
	// A VIP of a Service ends in its Pods: its connections here stay.
	check.Value(n.Set(t.Context(), nil))(t)
	if err := readError(stay["a VIP that stays"]); !isTimeout(err) {
		t.Errorf("a VIP that is not served here: %v, want nothing", err)
	}
}

// Which connections are reset when a VIP of the control plane comes and goes: those that are translated stay, unless it is said that they
// are not to, or the node lease is lost.
func TestResets(t *testing.T) {
	for _, tt := range []struct {
		name  string
		reset bool // ResetTranslated
		lost  bool // the node lease
		want  connectionKinds
	}{
		{"handed over", false, false, served},
		{"its API server is not ready", true, false, served | translated},
		{"the node lease is lost", false, true, served | translated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := newFake("link 2 eth0 up\neth0 10.0.0.5/24")
			r := newRig(t, k)
			a := vip.Address{Addr: netip.MustParseAddr("10.0.0.50"), Bits: 32, Link: "eth0", LocalDelivery: true}
			check.Value(r.Set(t.Context(), []vip.Address{a}))(t)
			a.ResetTranslated = tt.reset
			check.Value(r.Set(t.Context(), []vip.Address{a}))(t)
			if tt.lost {
				r.with(func(t *vip.Tenure) { t.Until = time.Now().Add(-time.Second) })
			}
			check.Value(r.Set(t.Context(), nil))(t)
			if want := []connectionKinds{ownClients, tt.want}; !slices.Equal(k.resets, want) {
				t.Errorf("reset %b, want %b", k.resets, want)
			}
		})
	}
}

// Connections that the kernel translates from a VIP to the node's own address stay when the VIP is removed, unless they are to be reset,
// too; connections of the node itself to where the VIP was before are reset when it comes.
func TestKernelKeepsTranslated(t *testing.T) {
	check.Program(t, "nft")
	lo := check.Value(netlink.LinkByName("lo"))(t)
	check.OK(t, netlink.LinkSetUp(lo))
	t.Cleanup(func() { _ = netlink.LinkSetDown(lo) })
	newVeth(t, "eth0", "10.0.0.1/24", "fd00::1/64")
	nft := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("nft", args...).CombinedOutput(); err != nil {
			t.Fatalf("nft %v: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() { nft("flush", "ruleset") })
	for family, rule := range map[string]string{"ip": "ip daddr 10.0.0.50 dnat to 10.0.0.1", "ip6": "ip6 daddr fd00::50 dnat to fd00::1"} {
		nft("add table " + family + " t")
		nft("add chain " + family + " t c { type nat hook output priority -100; }")
		nft("add rule " + family + " t c tcp dport != 1 " + rule)
	}
	n, stop := kernelRig(t)
	defer stop()
	for _, reset := range []bool{false, true} {
		all := []vip.Address{
			{Addr: netip.MustParseAddr("10.0.0.50"), Bits: 32, Link: "eth0", LocalDelivery: true, ResetTranslated: reset},
			{Addr: netip.MustParseAddr("fd00::50"), Bits: 128, Link: "eth0", LocalDelivery: true, ResetTranslated: reset},
		}
		check.Value(n.Set(t.Context(), all))(t)
		kept := map[string]net.Conn{
			"IPv4": connect(t, "[::]:0", "10.0.0.1", "10.0.0.50"),
			"IPv6": connect(t, "[::]:0", "fd00::1", "fd00::50"),
		}
		other := connect(t, "[::]:0", "10.0.0.1", "10.0.0.1")
		check.Value(n.Set(t.Context(), nil))(t)
		for name, c := range kept {
			if err := readError(c); reset != errors.Is(err, syscall.ECONNRESET) || !reset && !isTimeout(err) {
				t.Errorf("%s: %v, to be reset: %v", name, err, reset)
			}
		}
		check.Value(n.Set(t.Context(), all))(t)
		for name, c := range kept { // they are this node's, to an address that comes back
			if err := readError(c); !reset && !errors.Is(err, syscall.ECONNABORTED) {
				t.Errorf("%s, when the address is back: %v, want that it is aborted", name, err)
			}
		}
		check.Value(n.Set(t.Context(), nil))(t)
		if err := readError(other); !isTimeout(err) {
			t.Errorf("to the node's own address: %v, want nothing", err)
		}
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}
