package pool

import (
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// isOutside reports whether x was given to s of a pool, by no DHCP server, and no pool has it any more. A pool that can't be read may have it.
func (a *Allocator) isOutside(s *service, x netip.Addr) bool {
	if s.Allocated == "" || s.isOwn(x) || s.Foreign || slices.ContainsFunc(s.Addresses, netip.Addr.IsUnspecified) {
		return false
	}
	return !a.pools.InPool(x, s.Allocated)
}

// setOutside records whether s has an address that isOutside.
func (a *Allocator) setOutside(s *service) {
	if slices.ContainsFunc(s.Addresses, func(x netip.Addr) bool { return a.isOutside(s, x) }) {
		a.outside[s] = true
	} else {
		delete(a.outside, s)
	}
}

// Outside returns the addresses that Services were given and that no pool has any more, sorted by Service.
func (a *Allocator) Outside() (out []vip.OutsidePool) {
	for s := range a.outside {
		for _, x := range s.Addresses {
			if a.isOutside(s, x) {
				out = append(out, vip.OutsidePool{Service: s.Service, UID: s.UID, Addr: x, Pool: s.Allocated})
			}
		}
	}
	slices.SortStableFunc(out, func(x, y vip.OutsidePool) int { return x.Service.Compare(y.Service) })
	return out
}
