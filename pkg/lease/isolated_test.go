package lease

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// A process whose predecessor was isolated, and has ended in whatever way, says so of itself from its first write on, until it has reached the others for 3 s.
func TestRestartedWhileIsolated(t *testing.T) {
	for name, end := range map[string]func(n *node){"killed": (*node).kill, "stopped": func(n *node) { n.stop(); <-n.done }} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, s := newNetwork(), leasetest.NewServer()
				n1, _, _ := three(t, a, s)
				a.setBetween(vip.Dead, "n1")
				time.Sleep(5 * time.Second)
				end(n1)
				time.Sleep(time.Second)
				if x := s.Lease(nodeKey("n1")); x == nil || !infoOf(x).Isolated {
					t.Fatalf("its node lease is gone, or does not say that it is isolated: %v", x)
				}
				a.join(t, s, "n1")
				for began := time.Now(); time.Since(began) < quorum.RejoinTime; time.Sleep(50 * time.Millisecond) {
					if !infoOf(s.Lease(nodeKey("n1"))).Isolated {
						t.Fatalf("it does not say that it is isolated, %v after it began", time.Since(began))
					}
				}
				time.Sleep(2*stepPeriod + time.Second)
				if infoOf(s.Lease(nodeKey("n1"))).Isolated {
					t.Error("it still says that it is isolated")
				}
			})
		})
	}
}

// A node reaches another by heartbeats in a network that it has on its link of heartbeats.
func TestHasNetworkOf(t *testing.T) {
	info := vip.NodeInfo{Interface: "eth0", Links: []vip.Link{
		{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}},
		{Name: "eth1", Prefixes: []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24")}},
	}}
	for a, want := range map[string]bool{"192.0.2.7": true, "2001:db8::7": true, "198.51.100.7": false, "203.0.113.1": false} {
		if got := hasNetworkOf(&info, netip.MustParseAddr(a)); got != want {
			t.Errorf("%s: %v, want %v", a, got, want)
		}
	}
	if hasNetworkOf(&info, netip.Addr{}) {
		t.Error("a node without an address is in its network")
	}
}
