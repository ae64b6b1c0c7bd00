package pool

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A Service that gives up a family, and whose pool has the address of the other no more, is still one that was given it of a pool.
func TestFamilyGoesOfAddressOutsidePools(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.0/24,2001:db8::/64")
	w.set("a", families(vip.PreferDualStack, vip.IPv4, vip.IPv6))
	w.decide()
	w.edit("cidr-global=10.1.0.0/24")
	w.set("a", families(vip.SingleStack, vip.IPv4))
	w.decide()
	w.expect("a: 10.0.0.1 of cidr-global")
	check.Equal(t, len(w.outside()), 1, "how many are in no pool")
	w.set("a", func(r *vip.AddressRequest) { r.Renumber = true })
	w.decide()
	w.expect("a: 10.1.0.1 of cidr-global")
}

// What a Service was given of the pool that it asks for now stays, until it is written, whatever else is released meanwhile.
func TestDecidedOfAnotherPoolAndNotWritten(t *testing.T) {
	w := newWorld(t, 0, "pool-a=10.0.0.0/24", "pool-b=10.1.0.0/24")
	w.set("x", func(r *vip.AddressRequest) {
		asks("a")(r)
		families(vip.PreferDualStack, vip.IPv4, vip.IPv6)(r)
	})
	w.set("other", nil)
	w.decide()
	w.set("x", asks("b"))
	w.pass()
	w.remove("other") // what waits for a second family is looked at again
	for _, d := range w.pass() {
		check.Equal(t, d.Addresses[0].String(), "10.1.0.1", "it is given")
	}
	if n, _ := w.last.usage(w.pools.byName["b"], vip.IPv4); n != 1 {
		t.Errorf("%d addresses of its pool are used", n)
	}
}

// A Service is not given a DHCP server to ask that leases no address of its families, but another pool, or told that there is none.
func TestDHCPOfAnotherFamily(t *testing.T) {
	only4, only6, both := []vip.Family{vip.IPv4}, []vip.Family{vip.IPv6}, []vip.Family{vip.IPv4, vip.IPv6}
	for _, tt := range []struct {
		pool, mode string
		families   []vip.Family
		want       string // of the pools dyn and, which has a lower priority, other
	}{
		{"0.0.0.0/32", "ipv4", only4, "0.0.0.0"},
		{"0.0.0.0/32", "", only6, "2001:db8::1"},
		{"0.0.0.0/32", "ipv4", only6, "2001:db8::1"},
		{"0.0.0.0/32", "ipv4", both, "0.0.0.0"},
		{"0.0.0.0/32", "ipv6", only4, "10.0.0.1"},
		{"0.0.0.0/32", "ipv6", only6, "0.0.0.0"}, // which asks for ::
		{"0.0.0.0/32", "dual", only6, "0.0.0.0"},
		{"0.0.0.0/32", "dual", both, "0.0.0.0"},
		{"::/128", "dual", only4, "10.0.0.1"},
		{"::/128", "ipv4", only6, "::"},
		{"0.0.0.0/32,::/128", "ipv4", only6, "::"},
	} {
		for _, alone := range []bool{false, true} {
			a, want := NewAssigner(0, func() {}), tt.want
			in := vip.PoolInput{Now: start, Source: source("pool-dyn="+tt.pool, "pool-dyn.priority=1", "pool-other=10.0.0.0/24,2001:db8::/64"), Allocate: true, DHCPMode: tt.mode}
			if alone {
				in.Source = source("pool-dyn=" + tt.pool)
				if strings.HasSuffix(want, "1") {
					want = ""
				}
			}
			in.Requests = []vip.AddressRequest{request("a", func(s *vip.Service) {
				if s.Families = tt.families; len(tt.families) == 2 {
					s.DualStack = vip.PreferDualStack
				}
			})}
			all := assign(t, a, in).Assignments
			if len(all) != 1 || strings.Trim(fmt.Sprint(all[0].Addresses), "[]") != want || want == "" && !strings.Contains(all[0].Reason, "no free") {
				t.Errorf("%s, %q, %v: %+v, want %q", tt.pool, tt.mode, tt.families, all, want)
			}
		}
	}
}

// A Service that requires both families and names one address is given one of the other family beside it, which goes when
// it names that family, too; its own address is never taken from it. Without one it waits, and is told which family lacks.
func TestBesideOwnAddress(t *testing.T) {
	own := func(r *vip.AddressRequest) {
		families(vip.RequireDualStack, vip.IPv4, vip.IPv6)(r)
		r.Addresses, r.Own = addrs("10.9.0.1"), addrs("10.9.0.1")
	}
	w := newWorld(t, 0, "cidr-global=10.0.0.0/24")
	w.set("a", own)
	check.Contains(t, w.pass()[0].Reason, "no free IPv6 address")
	w.edit("cidr-ns=10.0.0.0/24,2001:db8::/64")
	d := w.pass()
	check.Equal(t, fmt.Sprint(d[0].Addresses, d[0].Own, d[0].Pool), "[10.9.0.1 2001:db8::1] [10.9.0.1]cidr-ns", "given")
	w.set("a", func(r *vip.AddressRequest) { r.Addresses, r.Allocated = addrs("10.9.0.1", "2001:db8::1"), "cidr-ns" })
	w.edit("cidr-global=10.0.0.0/24") // own addresses are of no pool
	check.Equal(t, len(w.pass()), 0, "decided again")
	w.expectOutside("a: 2001:db8::1 of cidr-ns")
}

// What was given beside an own address, and goes without another in its place, is taken off as what is superseded is.
func TestNothingGivenIsLeft(t *testing.T) {
	w := newWorld(t, 0, "pool-a=2001:db8::/64", "pool-b=10.0.0.0/24")
	w.set("a", func(r *vip.AddressRequest) {
		families(vip.PreferDualStack, vip.IPv4, vip.IPv6)(r)
		r.Addresses, r.Own, r.Allocated = addrs("10.9.0.1", "2001:db8::1"), addrs("10.9.0.1"), "a"
	})
	check.Equal(t, len(w.pass()), 0, "decided")
	w.set("a", asks("b"))
	d := w.pass()
	check.Equal(t, fmt.Sprintf("%v %q %v", d[0].Addresses, d[0].Pool, d[0].Remove), `[10.9.0.1] "" true`, "given")
}
