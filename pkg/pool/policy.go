package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/heraldvip/herald/pkg/vip"
)

var _ vip.PoolPolicy = (*Pools)(nil)

// KeepsOut reports whether a pool-<name> is for some namespaces only, or unreadable.
func (p *Pools) KeepsOut() bool {
	return slices.ContainsFunc(p.own, func(x *Pool) bool { return !x.Namespaces.All() || x.Broken })
}

// WhyNotOffered returns why a namespace may not ask for a, or ""; with poolsOnly also outside of pools.
func (p *Pools) WhyNotOffered(namespace string, namespaceLabels map[string]string, a netip.Addr,
	poolsOnly bool) string {
	ofOthers := false
	for _, x := range p.all {
		switch {
		case !x.Contains(a):
		case !x.Broken && x.Namespaces.Contains(namespace, namespaceLabels):
			return ""
		default:
			ofOthers = ofOthers || !x.provider || poolsOnly
		}
	}
	switch {
	case ofOthers:
		return fmt.Sprintf("%s is of a pool that is not offered to the namespace %s", a, namespace)
	case poolsOnly:
		return fmt.Sprintf("%s is of no pool that is offered to the namespace %s", a, namespace)
	}
	return ""
}

// Interface returns the link of a VIP: by its pool-<name>, or by interface-<namespace> or -global.
func (p *Pools) Interface(namespace string, a netip.Addr) string {
	for _, x := range p.own {
		if x.Interface != "" && x.Contains(a) {
			return x.Interface
		}
	}
	if !slices.ContainsFunc(p.all, func(x *Pool) bool { return x.provider && x.Contains(a) }) {
		return ""
	}
	return ofNamespace(p.interfaces, namespace)
}

// InterfaceOf returns the link of VIPs of x whose Services name none, or "".
func (p *Pools) InterfaceOf(x *Pool) string {
	if !x.provider {
		return x.Interface
	}
	return ofNamespace(p.interfaces, strings.Join(x.Namespaces.Names, "")) // one, or none
}

func firstWith(pools []*Pool, a netip.Addr) *Pool {
	for _, x := range pools {
		if x.Contains(a) {
			return x
		}
	}
	return nil
}

// WhyNotOn returns why a node with these labels may not carry a, or "".
func (p *Pools) WhyNotOn(a netip.Addr, nodeLabels map[string]string) string {
	x := firstWith(p.limiting, a)
	if x == nil || x.Nodes.Matches(labels.Set(nodeLabels)) {
		return ""
	}
	return fmt.Sprintf("pool %s, of which %s is, is for nodes with %s", x.Name, a, x.Nodes)
}

// InPool reports whether a is of a pool that is offered to a namespace. Unreadable ones of those given (names with
// commas) may have it, and without labels (nil) every selector may match.
func (p *Pools) InPool(namespace string, l map[string]string, a netip.Addr, given string) bool {
	for name := range strings.SplitSeq(given, ",") {
		if x := p.byName[name]; x != nil && x.Broken {
			return true
		}
	}
	return slices.ContainsFunc(p.all, func(x *Pool) bool {
		return x.Contains(a) && (l == nil && x.Namespaces.Selector != nil || x.Namespaces.Contains(namespace, l))
	})
}

// Weight returns how much the first pool that has a and prefers nodes prefers these labels.
func (p *Pools) Weight(a netip.Addr, nodeLabels map[string]string) (sum int) {
	if x := firstWith(p.preferring, a); x != nil {
		for _, w := range x.Prefer {
			if w.Nodes.Matches(labels.Set(nodeLabels)) {
				sum += w.Weight
			}
		}
	}
	return sum
}

// Methods returns how VIPs of the first pool-<name> that says so are announced, and its name.
func (p *Pools) Methods(a netip.Addr) (methods []vip.Method, pool string) {
	if x := firstWith(p.announcing, a); x != nil {
		return x.Announce, x.Name
	}
	return nil, ""
}
