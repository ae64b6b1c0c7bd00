package agent

import (
	"net/netip"

	"github.com/heraldvip/herald/pkg/vip"
)

// A binding is an address on a link.
type binding struct {
	addr netip.Addr
	link string
}

// same reports whether the kernel has now what it had when the World was read.
func same(before []vip.Address, now map[binding]bool) bool {
	n := 0
	seen := make(map[binding]bool, len(before))
	for _, x := range before {
		p := binding{x.Addr, x.Link}
		if seen[p] {
			continue
		}
		seen[p] = true
		if !now[p] {
			return false
		}
		n++
	}
	return n == len(now)
}

// keepOwners is the plan's Owners, and one for each unit that is not among them although the kernel still has one of its
// addresses: that could not be removed, so the unit must not be given back yet.
func keepOwners(p vip.Plan, have []vip.Address) []vip.Owner {
	listed := make(map[vip.Key]bool, len(p.Owners))
	for _, o := range p.Owners {
		listed[o.Unit] = true
	}
	owners := p.Owners
	for _, x := range have {
		if !x.Lease.IsZero() && !listed[x.Lease] {
			listed[x.Lease] = true
			owners = append(owners, vip.Owner{Unit: x.Lease, Stays: true})
		}
	}
	return owners
}
