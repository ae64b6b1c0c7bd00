package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// outside is what is reported of addresses that no pool has any more.
func (w *world) outside() (out []string) {
	w.pass()
	for _, r := range w.services {
		for s, i := newService(r), 0; i < len(s.names); i++ {
			if w.last.isOutside(s, s.names[i]) {
				out = append(out, fmt.Sprintf("%s: %s of %s", s.Key.Name, s.names[i], s.Allocated))
			}
		}
	}
	if slices.Sort(out); len(out) != w.last.outside {
		w.t.Errorf("%d are outside, but %q", w.last.outside, out)
	}
	return out
}

func (w *world) expectOutside(want ...string) {
	w.t.Helper()
	check.Same(w.t, want, w.outside(), "outside")
}

// An address that no pool has any more is reported, and stays; not one that a person set, one of another implementation, or
// one of a pool that can't be read.
func TestOutsidePools(t *testing.T) {
	w := newWorld(t, 0, "pool-x=10.0.0.0/24", "pool-y=10.1.0.0/24", "pool-y.auto=false")
	w.set("a", nil)
	w.set("b", asks("y"))
	w.set("person", pinned("10.9.0.1"))
	w.set("other", func(r *vip.AddressRequest) { r.Foreign, r.Addresses, r.Allocated = true, addrs("10.9.0.2"), "theirs" })
	w.decide()
	w.expectOutside()
	w.edit("pool-x=10.2.0.0/24", "pool-y=10.1.0.0/24")
	w.decide()
	w.expect("a: 10.0.0.1 of x", "b: 10.1.0.1 of y")
	w.expectOutside("a: 10.0.0.1 of x")
	w.restart()
	w.expectOutside("a: 10.0.0.1 of x")
	w.edit("pool-z=10.0.0.0/16")
	w.expectOutside("b: 10.1.0.1 of y")
	w.remove("b")
	w.expectOutside()
	w.pools = nil // Herald starts with a pool that can't be read
	w.edit("pool-x=nonsense")
	w.expectOutside()
}

// With heraldvip.io/renumber, and only with it, such an address is replaced, as soon as there is another.
func TestRenumber(t *testing.T) {
	renumber := func(r *vip.AddressRequest) { r.Renumber = true }
	w := newWorld(t, 0, "pool-x=10.0.0.0/24")
	for _, name := range []string{"a", "b", "c"} {
		w.set(name, nil)
	}
	w.set("before", renumber)
	w.decide()
	w.show()
	w.edit("pool-x=10.2.0.1-10.2.0.1")
	w.set("a", renumber)
	w.set("b", renumber)
	waits := w.decide()
	w.expect("a: 10.2.0.1 of x", "b: 10.0.0.2 of x", "c: 10.0.0.3 of x", "before: 10.0.0.4 of x")
	if len(waits) != 2 || waits["b"] == "" {
		t.Errorf("%v", waits)
	}
	w.edit("pool-x=10.2.0.0/24")
	w.decide()
	w.expect("a: 10.2.0.1 of x", "b: 10.2.0.2 of x", "c: 10.0.0.3 of x", "before: 10.2.0.3 of x")
	w.expectOutside("c: 10.0.0.3 of x")
	// A mistake renumbers nothing.
	w.pools = nil
	w.edit("pool-x=nonsense", "pool-y=10.3.0.0/24")
	w.decide()
	w.expect("a: 10.2.0.1 of x", "b: 10.2.0.2 of x")
}

// What a pool has leased from a DHCP server no longer is, once it has addresses of its own.
func TestRenumberFromDHCP(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=0.0.0.0/32")
	w.set("a", nil)
	w.decide()
	w.set("a", func(r *vip.AddressRequest) { shows(r, addrs("192.0.2.7")...) })
	w.edit("cidr-global=10.0.0.0/24")
	w.decide()
	w.expect("a: 0.0.0.0 of cidr-global")
	w.expectOutside("a: 0.0.0.0 of cidr-global")
	w.set("a", func(r *vip.AddressRequest) { r.Renumber = true })
	w.decide()
	w.expect("a: 10.0.0.1 of cidr-global")
	w.expectOutside()
}

// A pool that is offered to other namespaces only is none to a Service: what it was given of one is outside, and replaced
// with heraldvip.io/renumber. Where the labels of its namespace are not known, it may be offered.
func TestRangeGoesToAnotherNamespace(t *testing.T) {
	w := newWorld(t, 0, "cidr-a=10.0.0.0/24", "cidr-b=10.1.0.0/24", "pool-z=10.2.0.0/24", "pool-z.namespaces=team=blue")
	w.labels = map[string]map[string]string{"a": {}, "b": {}, "z": {"team": "blue"}}
	for _, name := range []string{"a/stays", "a/moves", "b/b", "z/z"} {
		w.set(name, func(r *vip.AddressRequest) { r.Renumber = name != "a/stays" })
	}
	w.decide()
	w.expect("a/stays: 10.0.0.1 of cidr-a", "a/moves: 10.0.0.2 of cidr-a", "b/b: 10.1.0.1 of cidr-b", "z/z: 10.2.0.1 of z")
	w.expectOutside()
	w.labels = nil // Namespaces can't be read at present
	w.edit("cidr-a=10.1.0.0/24", "cidr-b=10.0.0.0/24", "cidr-global=10.3.0.0/24", "pool-z=10.2.0.0/24", "pool-z.namespaces=team=blue")
	w.decide()
	w.expect("a/stays: 10.0.0.1 of cidr-a", "a/moves: 10.1.0.2 of cidr-a", "b/b: 10.0.0.3 of cidr-b", "z/z: 10.2.0.1 of z")
	w.expectOutside("stays: 10.0.0.1 of cidr-a")
	w.labels = map[string]map[string]string{"z": {"team": "red"}}
	w.decide()
	w.expect("z/z: 10.3.0.1 of cidr-global")
}

func TestOutsideIsObserved(t *testing.T) {
	a := NewAssigner(0, func() {})
	given := request("a", func(s *vip.Service) { s.Addresses, s.Allocated = addrs("10.0.0.1"), "cidr-global" })
	in := vip.PoolInput{Now: start, Source: source("cidr-global=10.1.0.0/24"), Allocate: true, Requests: []vip.AddressRequest{given}}
	for i, gives := range []bool{true, false, true} { // also once it gives addresses again, and nothing else has changed
		in.Allocate = gives
		assign(t, a, in)
		if n := check.Metric(t, "herald_pool_addresses_outside", a.Collectors()...); n > 0 != gives || n > 1 {
			t.Errorf("time %d, on a node that gives addresses: %v: metric %v", i+1, gives, n)
		}
	}
}

// Metrics of each pool: how many addresses it has, how many are used and can be given, and who waits.
func TestMetricsOfPools(t *testing.T) {
	a := NewAssigner(0, func() {})
	in := vip.PoolInput{Now: start, Source: source("cidr-global=10.0.0.0/29", "pool-x=10.1.0.1", "pool-x.auto=false"), Allocate: true}
	in.Reserved = []vip.ReservedRange{{Prefix: netip.MustParsePrefix("10.0.0.4/30")}}
	for i := range 3 {
		in.Requests = append(in.Requests, request(fmt.Sprint("x", i), func(s *vip.Service) { s.Pools = []string{"x"} }))
	}
	in.Requests = append(in.Requests, request("a", nil),
		request("b", func(s *vip.Service) { s.Addresses = addrs("10.0.0.0", "10.0.0.5", "10.0.0.2", "10.9.0.1") }))
	assign(t, a, in)
	for name, want := range map[string]float64{
		"herald_pool_addresses cidr-global":        7, // .1 to .7
		"herald_pool_addresses_used cidr-global":   4, // .0, .1, .2 and .5
		"herald_pool_addresses_free cidr-global":   1, // .3: .4 to .7 are reserved
		"herald_pool_services_waiting cidr-global": 0,
		"herald_pool_addresses_free x":             0,
		"herald_pool_services_waiting x":           2,
	} {
		check.Equal(t, check.Metric(t, name, a.Collectors()...), want, "%s", name)
	}
	// What is scraped meanwhile is the same: an alert that waits begins again where a scrape has no series, or 0.
	stop, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				a.metrics.observe(a)
			}
		}
	}()
	for range 300 {
		if got := check.Metric(t, "herald_pool_services_waiting x", a.Collectors()...); got != 2 {
			t.Errorf("it is %v, want 2", got)
			break
		}
	}
	close(stop)
	<-stopped
	in.Source = source("cidr-global=10.0.0.0/29")
	assign(t, a, in)
	if n := check.Metric(t, "herald_pool_addresses_free", a.Collectors()...); n != 1 { // of the pool that is left
		t.Errorf("%v addresses are free", n)
	}
}

// The condition Allocated says the same of an address of a pool that can't be read as the Event: it may be in that pool.
func TestPoolThatCantBeRead(t *testing.T) {
	p, _ := Parse(nil, data("pool-web=nonsense", "pool-other=10.1.0.0/24"))
	x := netip.MustParseAddr("10.0.0.1")
	for given, want := range map[string]bool{"web": true, "other,web": true, "other": false, "gone": false, "": false} {
		check.Equal(t, p.InPool("ns", nil, x, given), want, "an address given of pool %q is in a pool", given)
	}
}

// A Service that has its address by DHCP, as its pool says, and asks for another pool then is given one of that; until there is one it keeps what it has.
func TestAnotherPoolThanDHCP(t *testing.T) {
	for _, d := range []vip.DualStack{vip.SingleStack, vip.PreferDualStack} {
		w := newWorld(t, 0, "pool-dyn=0.0.0.0/32", "pool-dyn2=0.0.0.0/32", "pool-web=10.0.0.1")
		w.set("first", asks("web"))
		w.set("x", func(r *vip.AddressRequest) {
			asks("dyn")(r)
			if r.DualStack = d; d != vip.SingleStack {
				r.Families = []vip.Family{vip.IPv4, vip.IPv6}
			}
		})
		w.decide()
		w.set("x", func(r *vip.AddressRequest) {
			r.Addresses = addrs("0.0.0.0", "192.0.2.7")
			shows(r, addrs("192.0.2.7")...)
		})
		w.set("x", asks("dyn2"))
		w.decide()
		w.expect("x: 0.0.0.0 192.0.2.7 of dyn")
		w.set("x", asks("web"))
		if waits := w.decide(); waits["x"] == "" {
			t.Error("x does not wait")
		}
		w.expect("x: 0.0.0.0 192.0.2.7 of dyn")
		w.remove("first")
		w.decide()
		w.expect("x: 10.0.0.1 of web")
		w.restart()
		w.decide()
		w.expect("x: 10.0.0.1 of web")
	}
}
