package agent

import (
	"net/netip"
	"slices"

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

// keepOwners is the plan's Owners, where a unit stays of which the kernel still has an address though nobody is to have
// it, or no Service: it could not be removed, so the unit must not be given back yet.
func keepOwners(p vip.Plan, have []vip.Address) []vip.Owner {
	left := make(map[vip.Key]bool)
	for _, x := range have {
		left[x.Lease] = true
	}
	delete(left, vip.Key{})
	owners := slices.Clone(p.Owners)
	for i, o := range owners {
		owners[i].Stays = o.Stays || o.Node == "" && left[o.Unit]
		delete(left, o.Unit)
	}
	for k := range left {
		owners = append(owners, vip.Owner{Unit: k, Stays: true})
	}
	return owners
}
