package l2

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"

	"github.com/heraldvip/herald/testing/check"
)

func neighborCheck(addr string) vip.AddressCheck {
	return vip.AddressCheck{Addr: netip.MustParseAddr(addr), Link: "eth0", Kind: vip.CheckNeighbor, Owner: "n2"}
}

// A node that stops to answer, while other hosts are heard, is reported within 5 s; one that answers again after half a minute.
func TestNeighbor(t *testing.T) {
	for _, addr := range []string{"10.0.0.9", "2001:db8::9"} {
		onLAN(t, "eth0", func(t *testing.T, r *fixture) {
			defer r.keepLinkAlive(t)()
			unanswered := func(what string, want bool) {
				t.Helper()
				synctest.Wait()
				got := r.AddressChecks().Unanswered()
				if slices.Contains(got, netip.MustParseAddr(addr)) != want || len(got) > 1 {
					t.Errorf("%s: unanswered %v", what, got)
				}
			}
			r.lan.setHosts("eth0", addr, 0x11)
			r.putChecks(t, neighborCheck(addr))
			time.Sleep(time.Minute)
			unanswered("it answers", false)
			r.checkResults(t, "it answers", "")
			r.lan.setHosts("eth0", addr)
			time.Sleep(2 * time.Second)
			unanswered("a request or two are lost", false)
			time.Sleep(3 * time.Second)
			unanswered("it does not answer", true)
			check.Equal(t, r.problems(t), "node_unanswered 1", "problems")
			for range 10 { // a link that comes and goes is one fault
				r.lan.setHosts("eth0", addr, 0x11)
				time.Sleep(10 * time.Second)
				r.lan.setHosts("eth0", addr)
				time.Sleep(3 * time.Second)
				unanswered("it answers at times", true)
			}
			check.Equal(t, r.poked(), 1, "pokes")
			r.lan.setHosts("eth0", addr, 0x11)
			time.Sleep(25 * time.Second)
			unanswered("it answers again, not for long", true)
			time.Sleep(15 * time.Second)
			unanswered("it answers again", false)
		})
	}
}

// Of a link on which nobody is heard any more nothing is said: it is this node that is cut off, or all are.
func TestNeighborOnASilentLink(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		stop := r.keepLinkAlive(t)
		r.lan.setHosts("eth0", "10.0.0.9", 0x11)
		r.lan.setHosts("eth0", "10.0.0.8", 0x12)
		r.putChecks(t, neighborCheck("10.0.0.9"), neighborCheck("10.0.0.8"))
		time.Sleep(time.Minute)
		stop()
		r.lan.setHosts("eth0", "10.0.0.9")
		r.lan.setHosts("eth0", "10.0.0.8")
		for range 60 {
			time.Sleep(time.Second)
			if got := r.AddressChecks().Unanswered(); len(got) > 0 {
				t.Fatalf("unanswered: %v", got)
			}
		}
		// One of them is back: then the other one is not.
		r.lan.setHosts("eth0", "10.0.0.8", 0x12)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := r.AddressChecks().Unanswered(); len(got) != 1 || got[0] != netip.MustParseAddr("10.0.0.9") {
			t.Errorf("unanswered: %v", got)
		}
	})
}

// While messages are dropped in a flood, none that is missing says anything.
func TestNeighborInAFlood(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		defer r.keepLinkAlive(t)()
		r.putChecks(t, neighborCheck("10.0.0.9"))
		for range 60 {
			r.heard.setFlooded("eth0", time.Now())
			time.Sleep(time.Second)
			if got := r.AddressChecks().Unanswered(); len(got) > 0 {
				t.Fatalf("unanswered: %v", got)
			}
		}
	})
}

// A node is asked for in time, however many VIPs are verified.
func TestNeighborBesideManyVIPs(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		defer r.keepLinkAlive(t)()
		checks := []vip.AddressCheck{neighborCheck("10.0.0.9")}
		for i := range 500 {
			a := netip.AddrFrom4([4]byte{10, 0, 1 + byte(i>>8), byte(i)}).String()
			r.lan.setHosts("eth0", a, 0x11)
			checks = append(checks, verifyCheck(a))
		}
		r.lan.setHosts("eth0", "10.0.0.9", 0x11)
		r.putChecks(t, checks...)
		time.Sleep(time.Minute)
		r.lan.setHosts("eth0", "10.0.0.9")
		time.Sleep(6 * time.Second)
		synctest.Wait()
		check.Equal(t, len(r.AddressChecks().Unanswered()), 1, "unanswered")
	})
}
