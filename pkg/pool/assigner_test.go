package pool

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// assign has an Assigner take a PoolInput, and returns what it observes.
func assign(t *testing.T, a *Assigner, in vip.PoolInput) vip.World {
	t.Helper()
	a.Put([]vip.PoolInput{in})
	var w vip.World
	a.Observe(&w)
	return w
}

func source(lines ...string) *vip.PoolSource { return &vip.PoolSource{Data: data(lines...)} }

func request(name string, change func(*vip.Service)) vip.AddressRequest {
	s := &vip.Service{Key: vip.Key{Namespace: "ns", Name: name}, UID: "uid-" + name, Created: start, LoadBalancer: true, Families: []vip.Family{vip.IPv4}, Ports: []vip.Port{{Protocol: "TCP", Port: 80}}}
	if change != nil {
		change(s)
	}
	return vip.AddressRequest{Service: s}
}

// given is what the World says is to be written.
func given(w vip.World) string {
	var out []string
	for _, a := range w.Assignments {
		out = append(out, fmt.Sprint(a.Service.Name, a.Addresses))
	}
	return strings.Join(out, " ")
}

func TestAssigner(t *testing.T) {
	pokes := 0
	a := NewAssigner(time.Minute, func() { pokes++ })
	poked := func(want bool) {
		t.Helper()
		check.Equal(t, pokes > 0, want, "poked")
		pokes = 0
	}
	in := vip.PoolInput{Now: start, Source: source("cidr-global=10.0.0.0/24", "cidr-web=nonsense"), Allocate: true, Requests: []vip.AddressRequest{request("a", nil)}}

	w := assign(t, a, in)
	poked(true)
	if given(w) != "a[10.0.0.1]" || len(w.PoolProblems) != 1 || w.PoolProblems[0].Key != "cidr-web" {
		t.Fatalf("%v, problems %v", given(w), w.PoolProblems)
	}
	assign(t, a, in)
	poked(false)

	// The Service has its address; others come, one of another implementation.
	in.Requests = []vip.AddressRequest{
		request("a", func(s *vip.Service) { s.Addresses, s.Allocated = addrs("10.0.0.1"), "cidr-global" }),
		request("b", nil), request("c", func(s *vip.Service) { s.Ingress = []vip.Ingress{{Addr: addrs("10.0.0.2")[0]}} }),
	}
	in.Requests[2].Foreign = true
	check.Equal(t, given(assign(t, a, in)), "b[10.0.0.3]", "given beside others")
	poked(true)

	// A mistake in the ConfigMap: what was good stays in force, also after another node had its turn.
	in.Source = source("cidr-global=10.0.0.0/")
	in.Allocate = false
	if w = assign(t, a, in); given(w) != "" || len(w.PoolProblems) != 1 {
		t.Errorf("%v, problems %v", given(w), w.PoolProblems)
	}
	in.Allocate = true
	in.Requests = in.Requests[:2]
	check.Equal(t, given(assign(t, a, in)), "b[10.0.0.3]", "given, though c is gone: what b was to be given")
	check.Equal(t, check.Metric(t, "herald_pool_addresses_used", a.Collectors()...), 2, "how many are used")

	// b goes before its address was written, a is deleted: its address rests.
	in.Requests = []vip.AddressRequest{request("d", nil)}
	in.Now = in.Now.Add(time.Second)
	check.Equal(t, given(assign(t, a, in)), "d[10.0.0.4]", "given: .3 rests, too, as if it had been written")

	// Nothing is planned any more: the process stops.
	a.Put(nil)
	if a.Observe(&w); len(w.Assignments) > 0 {
		t.Errorf("%v", w.Assignments)
	}
}

// Labels of namespaces that change have pools offered to others.
func TestAssignerFollowsLabels(t *testing.T) {
	a := NewAssigner(0, func() {})
	d := data("pool-blue=10.0.0.0/24", "pool-blue.namespaces=team=blue")
	in := vip.PoolInput{Now: start, Source: &vip.PoolSource{Data: d}, Allocate: true, Requests: []vip.AddressRequest{request("a", nil)}}
	w := assign(t, a, in)
	if len(w.Assignments) != 1 || !strings.Contains(w.Assignments[0].Reason, "no pool is offered to namespace ns") || check.Metric(t, "herald_pool_services_waiting", a.Collectors()...) != 1 {
		t.Fatal(w.Assignments)
	}
	in.Source = &vip.PoolSource{Data: d, Namespaces: map[string]map[string]string{"ns": {"team": "blue"}}}
	check.Equal(t, given(assign(t, a, in)), "a[10.0.0.1]", "given")
}

// An address that a DHCP server has leased for a Service is in use.
func TestLeasedAddressIsInUse(t *testing.T) {
	a := NewAssigner(0, func() {})
	leased := request("leased", func(s *vip.Service) {
		s.Addresses, s.Allocated = addrs("0.0.0.0"), "dhcp"
		s.Ingress = []vip.Ingress{{Addr: netip.MustParseAddr("10.0.0.1")}, {Addr: netip.MustParseAddr("10.9.0.1")}}
	})
	in := vip.PoolInput{Now: start, Source: source("cidr-global=10.0.0.0/24", "pool-dhcp=0.0.0.0/32"), Allocate: true, Requests: []vip.AddressRequest{leased, request("b", nil)}}
	w := assign(t, a, in)
	if n := check.Metric(t, "herald_pool_addresses_outside", a.Collectors()...); given(w) != "b[10.0.0.2]" || n > 0 {
		t.Errorf("%s, outside %v", given(w), n)
	}
}

// What was released rests also where another node has given the addresses until then.
func TestRestsAtTheNextGiver(t *testing.T) {
	a := NewAssigner(time.Hour, func() {})
	has := request("a", func(s *vip.Service) { s.Addresses, s.Allocated = addrs("10.0.0.1"), "cidr-global" })
	in := vip.PoolInput{Now: start, Source: source("cidr-global=10.0.0.0/24"), Requests: []vip.AddressRequest{has}}
	assign(t, a, in)
	in.Requests = []vip.AddressRequest{}
	assign(t, a, in)
	in.Requests = []vip.AddressRequest{request("b", nil)}
	check.Equal(t, given(assign(t, a, in)), "", "while another node gives addresses")
	in.Allocate = true
	check.Equal(t, given(assign(t, a, in)), "b[10.0.0.2]", "")
	in.Now = in.Now.Add(time.Hour)
	in.Requests = append(in.Requests, request("c", nil))
	check.Equal(t, given(assign(t, a, in)), "b[10.0.0.2] c[10.0.0.1]", "an hour later")
}

// A node that may not give addresses for a while (its lease is renewed late, say) remembers afterwards which rest, and which other hosts have; and it
// sees what another node has written meanwhile.
func TestAllocatesAgain(t *testing.T) {
	a := NewAssigner(time.Hour, func() {})
	in := vip.PoolInput{Now: start, Source: source("cidr-global=10.0.0.0/24"), Allocate: true}
	has := func(name, addr string) vip.AddressRequest {
		return request(name, func(s *vip.Service) {
			s.Addresses, s.Allocated = addrs(addr), "cidr-global"
			s.Ingress = []vip.Ingress{{Addr: netip.MustParseAddr(addr)}}
		})
	}
	in.Requests = []vip.AddressRequest{has("a", "10.0.0.1"), has("b", "10.0.0.2")}
	assign(t, a, in)
	in.Requests = in.Requests[1:] // a was deleted
	assign(t, a, in)
	in.Requests = []vip.AddressRequest{in.Requests[0], request("d", nil)}
	if w := assign(t, a, in); given(w) != "d[10.0.0.3]" { // .1 rests
		t.Fatal(given(w))
	}
	in.Allocate = false
	if w := assign(t, a, in); len(w.Assignments) > 0 || check.Metric(t, "herald_pool_addresses", a.Collectors()...) > 0 {
		t.Errorf("it goes on: %v", w.Assignments)
	}
	in.Allocate = true
	in.Source = source("cidr-global=10.0.0.0/24", "pool-x=10.1.0.0/24", "pool-x.auto=false")
	in.Requests = []vip.AddressRequest{in.Requests[0], has("c", "10.0.0.3"), in.Requests[1], request("e", func(s *vip.Service) { s.Pools = []string{"x"} })}
	if w := assign(t, a, in); given(w) != "d[10.0.0.4] e[10.1.0.1]" || check.Metric(t, "herald_pool_addresses", a.Collectors()...) != 2*254 {
		t.Errorf("gives %s", given(w))
	}
}

// What a Service names when an address is decided for it goes with the address, without what a DHCP server has leased to it.
func TestAssignmentSaysWhatTheServiceHad(t *testing.T) {
	in := vip.PoolInput{Now: start, Source: source("cidr-global=10.0.0.0/24", "pool-web=10.1.0.0/24", "pool-dhcp=0.0.0.0/32"), Allocate: true, Requests: []vip.AddressRequest{
		request("a", nil),
		request("b", func(s *vip.Service) {
			s.Addresses, s.Allocated, s.Pools = addrs("10.0.0.7"), "cidr-global", []string{"web"}
		}),
		request("c", func(s *vip.Service) {
			s.Addresses, s.Allocated, s.Pools, s.Ingress = addrs("0.0.0.0"), "dhcp", []string{"web"}, []vip.Ingress{{Addr: addrs("10.9.0.9")[0]}}
		}),
	}}
	a := NewAssigner(time.Minute, func() {})
	for _, step := range []string{"[] of ; [10.0.0.7] of cidr-global; [0.0.0.0] of dhcp; ", "[] of ; [10.0.0.7] of cidr-global; [0.0.0.0 10.9.0.9] of dhcp; "} {
		got := ""
		for _, x := range assign(t, a, in).Assignments {
			got += fmt.Sprint(x.Had, " of ", x.HadPool, "; ")
		}
		check.Equal(t, got, step, "what they had")
		in.Requests = append(in.Requests[:2:2], request("c", func(s *vip.Service) { // to the allocator it is the same
			s.Addresses, s.Allocated, s.Pools = addrs("0.0.0.0", "10.9.0.9"), "dhcp", []string{"web"}
		}))
	}
}
