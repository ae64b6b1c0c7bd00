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

// keepClaims is the plan's LeaseIntents, and a Follow for each lease that is not among
// them although the kernel still has one of its addresses: that could not be removed,
// so the lease must not be released yet.
func keepClaims(p vip.Plan, have []vip.Address) []vip.LeaseIntent {
	listed := make(map[vip.Key]bool, len(p.LeaseIntents))
	for _, s := range p.LeaseIntents {
		listed[s.Lease] = true
	}
	intents := p.LeaseIntents
	for _, x := range have {
		if !x.Lease.IsZero() && !listed[x.Lease] {
			listed[x.Lease] = true
			intents = append(intents, vip.LeaseIntent{Lease: x.Lease, Action: vip.Follow})
		}
	}
	return intents
}
