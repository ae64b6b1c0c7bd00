package pool

import (
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

// tcp returns ports of TCP.
func tcp(numbers ...uint16) (ports []vip.Port) {
	for _, n := range numbers {
		ports = append(ports, vip.Port{Protocol: "TCP", Port: n})
	}
	return ports
}

// Nobody is given an address together with a Service that names it, if it is reserved: the plan refuses it to both.
func TestReservedIsNotShared(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.0/24", "allow-share-global=true")
	w.reserve("10.0.0.1/32")
	w.set("tenant/x", func(r *vip.AddressRequest) { r.Addresses, r.Ports, r.SharingKey = addrs("10.0.0.1"), tcp(9999), "k" })
	w.set("other/a", nil)
	w.set("tenant/b", func(r *vip.AddressRequest) { r.SharingKey = "k" })
	w.decide()
	w.expect("other/a: 10.0.0.2 of cidr-global", "tenant/b: 10.0.0.3 of cidr-global")
}

// A Service that waits, since it lacks one family, keeps nobody from sharing an address of the other.
func TestWaitingKeepsNobodyFromSharing(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.1-10.0.0.2", "allow-share-global=true", "allow-share-own=false")
	w.set("own/full", nil)
	w.set("a/one", func(r *vip.AddressRequest) { r.Ports = tcp(80) })
	w.set("a/two", func(r *vip.AddressRequest) { r.Ports = tcp(81) })
	w.decide()
	w.set("b/waits", func(r *vip.AddressRequest) {
		r.Ports, r.Families, r.DualStack = tcp(82), []vip.Family{vip.IPv4, vip.IPv6}, vip.RequireDualStack
	})
	w.set("c/shares", func(r *vip.AddressRequest) { r.Ports = tcp(83) })
	w.decide()
	w.expect("a/two: 10.0.0.2 of cidr-global", "b/waits: ", "c/shares: 10.0.0.2 of cidr-global")
}
