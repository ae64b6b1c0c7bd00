package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

const (
	// occupiedLasts is how long an address that another host turned out to have is given to no Service.
	occupiedLasts = 10 * time.Minute
	// mostMoves is how often a Service is given another address because hosts have those that it was
	// given, until one of them was shown: a host that answers for every address does not use up the pools.
	mostMoves = 3
)

// SetInUse tells of addresses that other hosts turned out to have at now. A Service to which one was
// allocated, and whose status does not show it, loses it, mostMoves times.
func (a *Allocator) SetInUse(addrs []netip.Addr, now time.Time) {
	for _, x := range addrs {
		for _, s := range slices.SortedFunc(slices.Values(a.holders[x]), byAge) {
			if s.Allocated == "" || s.isOwn(x) || s.Foreign || slices.Contains(s.Shown, x) || !slices.Contains(s.Addresses, x) || s.moved == mostMoves {
				continue
			}
			a.occupied[x] = now
			s.moved++
			a.lose(s, x, fmt.Sprintf("%s is in use by another host", x))
		}
	}
}

// isOccupied reports whether another host turned out to have x.
func (a *Allocator) isOccupied(x netip.Addr) bool {
	_, ok := a.occupied[x]
	return ok
}

// endOccupied lets addresses be given again that another host turned out to have a while ago.
func (a *Allocator) endOccupied(now time.Time) {
	for x, since := range a.occupied {
		if now.Sub(since) < occupiedLasts {
			continue
		}
		delete(a.occupied, x)
		if len(a.holders[x]) == 0 {
			a.free(x)
		}
	}
}

// nextFree returns when the next address may be given again that another host turned out to have, if a Service waits; else zero.
func (a *Allocator) nextFree() (first time.Time) {
	if len(a.open) == 0 {
		return first
	}
	for _, since := range a.occupied {
		if at := since.Add(occupiedLasts); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}
