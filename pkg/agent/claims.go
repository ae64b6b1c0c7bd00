package agent

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

type binding struct {
	addr netip.Addr
	link string
}

func same(before []vip.Address, now map[binding]bool) bool {
	all := make(map[binding]bool, len(before))
	for _, x := range before {
		all[binding{x.Addr, x.Link}] = true
	}
	return maps.Equal(all, now)
}

// keepOwners returns the plan's Owners; units whose addresses could not be removed stay.
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
