package pool

import (
	"net/netip"
	"slices"
)

// withdrawIf takes back what Services were given, and is not seen on them yet, if unfit
// reports true of an address of it.
func (a *Allocator) withdrawIf(unfit func(netip.Addr) bool) {
	for s := range a.pending {
		if slices.ContainsFunc(s.has, func(x netip.Addr) bool { return !slices.Contains(s.Addresses, x) && unfit(x) }) {
			a.withdraw(s)
		}
	}
}

// withdrawUnoffered takes back what Services were given, and is not seen on them yet, if it is of no pool that is offered to them any more.
func (a *Allocator) withdrawUnoffered() {
	for s := range a.pending {
		pools, _ := a.candidates(s)
		if slices.ContainsFunc(s.given, func(x netip.Addr) bool { return !slices.Contains(s.Addresses, x) && firstWith(pools, x) == nil }) {
			a.withdraw(s)
		}
	}
}

// withdraw takes back what s was given and is not seen on it yet.
func (a *Allocator) withdraw(s *service) {
	unwritten := func(x netip.Addr) bool { return !slices.Contains(s.Addresses, x) }
	for _, x := range s.has {
		if unwritten(x) {
			a.putBack(s, x)
		}
	}
	s.has = slices.DeleteFunc(slices.Clone(s.has), unwritten)
	delete(a.pending, s)
	a.changed[s] = true
}

// putBack is unhold for an address that nobody ever used for s: it does not rest.
func (a *Allocator) putBack(s *service, x netip.Addr) {
	a.unhold(s, x)
	if len(a.holders[x]) == 0 {
		a.free(x)
	}
}
