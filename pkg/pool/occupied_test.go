package pool

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// inUse says that other hosts have addresses, and returns what Service a has after that and why it waits.
func (w *world) inUse(others ...string) (has, waits string) {
	w.others = addrs(others...)
	waits = w.decide()["a"]
	return vip.JoinAddrs(w.services[keyOf("a")].Addresses, " "), waits
}

func TestWhatStaysThoughInUse(t *testing.T) {
	for name, change := range map[string]func(r *vip.AddressRequest){
		"shown":           func(r *vip.AddressRequest) { shows(r, r.Addresses...) },
		"set by a person": func(r *vip.AddressRequest) { r.Allocated = "" },
		"of others":       func(r *vip.AddressRequest) { r.Foreign = true },
	} {
		w := newWorld(t, 0, "cidr-global=10.0.0.1-10.0.0.9")
		w.set("a", nil)
		w.decide()
		w.set("a", change)
		has, _ := w.inUse("10.0.0.1")
		check.Equal(t, has, "10.0.0.1", "%s: it has", name)
	}
}

// A host that answers for every address does not use up a pool; nor does a Service get one back and lose it again.
func TestHostThatHasEveryAddress(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.1-10.0.0.9")
	w.set("a", nil)
	w.decide()
	has := ""
	for range 20 {
		has, _ = w.inUse("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6")
	}
	check.Equal(t, has, "10.0.0.4", "it has")
	check.Equal(t, len(w.m.occupied), mostMoves, "addresses that are kept back")
	w.set("a", func(r *vip.AddressRequest) { shows(r, r.Addresses...) })
	w.pass()
	w.set("a", func(r *vip.AddressRequest) { shows(r) })
	if has, _ = w.inUse("10.0.0.4"); has != "10.0.0.5" {
		t.Errorf("once one was shown it has %s", has)
	}
}

func TestNoOtherForOneInUse(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.1/32")
	w.set("a", nil)
	w.decide()
	const why = "10.0.0.1 is in use by another host; the pool that is offered to it has no free IPv4 address (cidr-global)"
	if has, waits := w.inUse("10.0.0.1"); has != "10.0.0.1" || !strings.HasPrefix(waits, why) {
		t.Errorf("it has %s and waits: %s", has, waits)
	}
	w.edit("cidr-global=10.0.0.1-10.0.0.2")
	if has, waits := w.inUse(); has != "10.0.0.2" || waits != "" {
		t.Errorf("with another address it has %s and waits: %s", has, waits)
	}
	w.now = w.now.Add(time.Hour)
	if has, _ := w.inUse(); has != "10.0.0.2" {
		t.Errorf("later it has %s", has)
	}
}

// A Service that waits because other hosts had all addresses of its pool is given one when that was ten minutes ago, though nothing else
// has the agent make a pass.
func TestOccupiedAddressIsGivenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poked := make(chan time.Time, 100)
		a := NewAssigner(time.Minute, func() { poked <- time.Now() })
		pass := func(name string, addresses []netip.Addr, inUse ...netip.Addr) string {
			q := request(name, func(s *vip.Service) {
				if s.Addresses = addresses; addresses != nil {
					s.Allocated = "cidr-global"
				}
			})
			w := assign(t, a, vip.PoolInput{Now: time.Now(), Source: only, Allocate: true, Requests: []vip.AddressRequest{q}, InUse: inUse})
			for len(poked) > 0 {
				<-poked
			}
			return given(w)
		}
		x := addrs("10.0.0.1")
		if got := pass("a", nil); got != "a[10.0.0.1]" {
			t.Fatalf("given %q", got)
		}
		pass("a", x)
		pass("a", x, x[0])
		if got := pass("b", nil); got != "b[]" { // a was deleted
			t.Fatalf("given %q, want b to wait", got)
		}
		select {
		case <-poked:
		case <-time.After(occupiedLasts + time.Second):
			t.Fatal("no pass follows")
		}
		check.Equal(t, pass("b", nil), "b[10.0.0.1]", "b is given")
	})
}

// only is a pool of one address.
var only = source("cidr-global=10.0.0.1/32")
