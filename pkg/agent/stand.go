package agent

import (
	"net/netip"

	"github.com/heraldvip/herald/pkg/vip"
)

// A place is where an address is bound.
type place struct {
	addr netip.Addr
	link string
}

// same reports whether the kernel has now what it had when the World was read.
func same(before []vip.Address, now map[place]bool) bool {
	n := 0
	seen := make(map[place]bool, len(before))
	for _, x := range before {
		p := place{x.Addr, x.Link}
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

// keepClaims is the plan's Stakes, and one in each claim that an address still stands
// on although the plan wants it gone: it could not be removed, so the claim must
// not be let go of yet.
func keepClaims(p vip.Plan, have []vip.Address) []vip.LeaseIntent {
	staked := make(map[vip.Key]bool, len(p.LeaseIntents))
	for _, s := range p.LeaseIntents {
		staked[s.Lease] = true
	}
	stakes := p.LeaseIntents
	for _, x := range have {
		if !x.Lease.IsZero() && !staked[x.Lease] {
			staked[x.Lease] = true
			stakes = append(stakes, vip.LeaseIntent{Lease: x.Lease, Action: vip.Follow})
		}
	}
	return stakes
}
