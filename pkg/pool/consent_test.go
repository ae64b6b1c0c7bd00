package pool

import (
	"net/netip"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// tcp returns ports of TCP.
func tcp(numbers ...uint16) (ports []vip.Port) {
	for _, n := range numbers {
		ports = append(ports, vip.Port{Protocol: "TCP", Port: n})
	}
	return ports
}

// Who adds a port that another Service has on an address that both have takes the address from nobody, however old it is: it is the one that is
// given another, as the plan refuses it the address.
func TestPortAddedLater(t *testing.T) {
	for _, tt := range []struct{ younger, key string }{{"b/younger", ""}, {"a/younger", "k"}} { // by allow-share, and by a key
		w := newWorld(t, 0, "cidr-global=10.0.0.0/24", "allow-share-global=true")
		w.set("a/older", key(tt.key, 80))
		w.set(tt.younger, key(tt.key, 443))
		w.decide()
		w.expect("a/older: 10.0.0.1 of cidr-global", tt.younger+": 10.0.0.1 of cidr-global")
		w.show()
		w.set("a/older", func(r *Request) { r.Ports = tcp(80, 443) })
		w.decide()
		w.expect("a/older: 10.0.0.2 of cidr-global", tt.younger+": 10.0.0.1 of cidr-global")
		w.show()
		w.restart()
		w.decide()
		w.expect("a/older: 10.0.0.2 of cidr-global", tt.younger+": 10.0.0.1 of cidr-global")
	}
}

// The ports that a status shows are read from the Service.
func TestPortAddedLaterToAService(t *testing.T) {
	shares := func(name string, age int, has []vip.Port, shows ...uint16) vip.AddressRequest {
		return request(name, func(s *vip.Service) {
			s.Created, s.Ports, s.Addresses, s.Allocated = start.Add(time.Duration(age)*time.Second), has, addrs("10.0.0.1"), "cidr-global"
			s.Ingress = []vip.Ingress{{Hostname: "x", Ports: tcp(1)}, {Addr: s.Addresses[0], Ports: tcp(shows...)}}
		})
	}
	a := NewAssigner(time.Minute, func() {})
	in := vip.PoolInput{Now: start, Source: source("cidr-global=10.0.0.0/24"), Allocate: true, Requests: []vip.AddressRequest{shares("older", 1, tcp(80), 80), shares("younger", 2, tcp(443), 443)}}
	if got := given(assign(t, a, in)); got != "" {
		t.Errorf("given %s", got)
	}
	in.Requests = []vip.AddressRequest{shares("older", 1, tcp(80, 443), 80), in.Requests[1]}
	if got := given(assign(t, a, in)); got != "older[10.0.0.2]" {
		t.Errorf("given %s", got)
	}
}

// Nobody is given an address together with a Service that names it, if it is reserved: the plan refuses it to both.
func TestReservedIsNotShared(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.0/24", "allow-share-global=true")
	w.reserved = []vip.ReservedRange{{Prefix: netip.MustParsePrefix("10.0.0.1/32")}}
	w.a.SetReserved(w.reserved)
	w.set("tenant/x", func(r *Request) { r.Addresses, r.Ports, r.SharingKey = addrs("10.0.0.1"), tcp(9999), "k" })
	w.set("other/a", nil)
	w.set("tenant/b", func(r *Request) { r.SharingKey = "k" })
	w.decide()
	w.expect("other/a: 10.0.0.2 of cidr-global", "tenant/b: 10.0.0.3 of cidr-global")
}

// A Service that waits, since it lacks one family, keeps nobody from sharing an address of the other.
func TestWaitingKeepsNobodyFromSharing(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.1-10.0.0.2", "allow-share-global=true", "allow-share-own=false")
	w.set("own/full", nil)
	w.set("a/one", func(r *Request) { r.Ports = tcp(80) })
	w.set("a/two", func(r *Request) { r.Ports = tcp(81) })
	w.decide()
	w.set("b/waits", func(r *Request) {
		r.Ports, r.Families, r.DualStack = tcp(82), []vip.Family{vip.IPv4, vip.IPv6}, vip.RequireDualStack
	})
	w.set("c/shares", func(r *Request) { r.Ports = tcp(83) })
	w.decide()
	w.expect("a/two: 10.0.0.2 of cidr-global", "b/waits: ", "c/shares: 10.0.0.2 of cidr-global")
}
