package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// reservedAddresses are those that no Service may have as a VIP.
type reservedAddresses struct {
	nodes  map[netip.Addr]string // those of nodes, which the control plane may not have either
	ranges []vip.ReservedRange   // longest prefix first
}

// newReservedAddresses returns what no Service may have: the addresses of all nodes (of their
// links, and as Kubernetes has them, but for the control plane's VIP), and the ranges of
// w.Reserved, of pods, and of the control plane's VIP if cp is not nil.
func newReservedAddresses(w *vip.World, cp *ControlPlane) *reservedAddresses {
	r := &reservedAddresses{nodes: make(map[netip.Addr]string), ranges: slices.Clone(w.Reserved)}
	var controlPlane []netip.Addr
	if cp != nil {
		controlPlane = cp.Addresses
	}
	for _, a := range controlPlane {
		r.ranges = append(r.ranges, vip.ReservedRange{Prefix: netip.PrefixFrom(a, a.BitLen()), Description: "the VIP of the control plane"})
	}
	for _, m := range w.Members {
		for _, l := range m.Info.Links {
			for _, p := range l.Prefixes {
				r.nodes[p.Addr()] = fmt.Sprintf("the address of node %s on %s", m.Name, l.Name)
			}
		}
	}
	for _, n := range w.Nodes {
		for _, a := range n.Addresses {
			if !slices.Contains(controlPlane, a) { // which kubelet may have taken for the node's
				r.nodes[a] = "the address of node " + n.Name
			}
		}
		for _, p := range n.PodCIDRs {
			r.ranges = append(r.ranges, vip.ReservedRange{Prefix: p, Description: "the pod range of node " + n.Name})
		}
	}
	slices.SortStableFunc(r.ranges, func(a, b vip.ReservedRange) int { return cmp.Compare(b.Prefix.Bits(), a.Prefix.Bits()) })
	return r
}

// whatIs describes what a is if it is a node's address, or the longest reserved range that it
// is in; "" if neither. With nodesOnly ranges do not count.
func (r *reservedAddresses) whatIs(a netip.Addr, nodesOnly bool) string {
	if what, ok := r.nodes[a]; ok || nodesOnly {
		return what
	}
	for _, x := range r.ranges {
		switch {
		case !x.Prefix.Contains(a):
		case x.Prefix.IsSingleIP():
			return x.Description
		default:
			return fmt.Sprintf("in %s (%s)", x.Description, x.Prefix)
		}
	}
	return ""
}

// broadcast is 255.255.255.255, to all hosts of a link.
var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// whyRefused returns why s may not have a as a VIP, or "": it is loopback, multicast,
// broadcast or link-local, not of the Service's families, or reserved (for the control plane:
// a node's).
func (r *reservedAddresses) whyRefused(s *service, a netip.Addr) string {
	switch {
	case a.IsLoopback():
		return fmt.Sprintf("%s is a loopback address", a)
	case a.IsMulticast(), a == broadcast:
		return fmt.Sprintf("%s is a multicast or broadcast address", a)
	case a.IsLinkLocalUnicast():
		return fmt.Sprintf("%s is a link-local address", a)
	case !s.hasFamily(vip.FamilyOf(a)):
		return fmt.Sprintf("%s is an %s address, but spec.ipFamilies has no %s", a, vip.FamilyOf(a), vip.FamilyOf(a))
	}
	if what := r.whatIs(a, s.reserved); what != "" {
		return fmt.Sprintf("%s is %s", a, what)
	}
	return ""
}

// hasFamily reports whether s may have VIPs of family f: spec.ipFamilies has it, or is empty.
func (s *service) hasFamily(f vip.Family) bool {
	return len(s.Families) == 0 || slices.Contains(s.Families, f)
}
