package pool

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

var _ vip.PoolPolicy = (*Pools)(nil)

// NamesNamespaces reports whether a pool-<name> is for some namespaces only, so that its operator expects others
// to be kept out, or can't be read, so that it may be. The provider's keys never did that.
func (p *Pools) NamesNamespaces() bool {
	return slices.ContainsFunc(p.own, func(x *Pool) bool { return !x.Namespaces.All() || x.Broken })
}

// Enforces reports whether any pool-<name> has Enforce, or can't be read, so that it may have.
func (p *Pools) Enforces() bool {
	return slices.ContainsFunc(p.own, func(x *Pool) bool { return x.Enforce || x.Broken })
}

// WhyNotOffered returns why Services of a namespace, with these labels, may not ask for a by name, or "". With
// poolsOnly a must be of a pool that is offered to the namespace; without, it must only not be of one with
// Enforce, or that can't be read, unless another pool that has it is offered to the namespace. 0.0.0.0 and :: are of the pools that say so.
func (p *Pools) WhyNotOffered(namespace string, labels map[string]string, a netip.Addr, poolsOnly bool) string {
	of, enforced := false, false // pools for other namespaces
	for _, x := range p.all {
		switch {
		case !x.Contains(a) && !(a.IsUnspecified() && slices.Contains(x.DHCP, vip.FamilyOf(a))):
		case !x.Broken && x.Namespaces.Contains(namespace, labels):
			return ""
		default:
			of, enforced = true, enforced || x.Enforce || x.Broken
		}
	}
	switch {
	case enforced, of && poolsOnly:
		return fmt.Sprintf("%s is of a pool that is not offered to the namespace %s", a, namespace)
	case poolsOnly:
		return fmt.Sprintf("%s is of no pool that is offered to the namespace %s", a, namespace)
	}
	return ""
}
