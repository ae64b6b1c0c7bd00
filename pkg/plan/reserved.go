package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// reservedAddresses are those that no Service may have as a VIP.
type reservedAddresses struct {
	nodes  map[netip.Addr]string // those of nodes, which the control plane may not have either
	single map[netip.Addr]string
	ranges []vip.ReservedRange
}

func newReservedAddresses(w *vip.World, cp *ControlPlane) reservedAddresses {
	r := reservedAddresses{nodes: make(map[netip.Addr]string), single: make(map[netip.Addr]string)}
	for _, m := range w.Members {
		for _, l := range m.Info.Links {
			for _, p := range l.Prefixes {
				r.nodes[p.Addr()] = fmt.Sprintf("the address of node %s on %s", m.Name, l.Name)
			}
		}
	}
	for _, n := range w.Nodes {
		for _, a := range n.Addresses {
			if cp == nil || !slices.Contains(cp.Addresses, a) { // which kubelet may have taken for the node's
				r.nodes[a] = "the address of node " + n.Name
			}
		}
		for _, p := range n.PodCIDRs {
			r.ranges = append(r.ranges, vip.ReservedRange{Prefix: p, Description: "the pod range of node " + n.Name})
		}
	}
	if cp != nil {
		for _, a := range cp.Addresses {
			r.single[a] = "the VIP of the control plane"
		}
	}
	for _, x := range w.Reserved {
		if x.Prefix.IsSingleIP() {
			r.single[x.Prefix.Addr()] = x.Description
		} else {
			r.ranges = append(r.ranges, x)
		}
	}
	return r
}

// whatIs describes what a is, or is in, if it is reserved; else it is "". Only addresses of nodes
// are reserved if nodesOnly.
func (r *reservedAddresses) whatIs(a netip.Addr, nodesOnly bool) string {
	if what, ok := r.nodes[a]; ok || nodesOnly {
		return what
	}
	if what, ok := r.single[a]; ok {
		return what
	}
	for _, x := range r.ranges {
		if x.Prefix.Contains(a) {
			return fmt.Sprintf("in %s (%s)", x.Description, x.Prefix)
		}
	}
	return ""
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// refuse is why s may not have a as a VIP, or "".
func (r *reservedAddresses) refuse(s *service, a netip.Addr) string {
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

// hasFamily reports whether the Service may have VIPs of a family: one that spec.ipFamilies has,
// any if that is empty.
func (s *service) hasFamily(f vip.Family) bool {
	return len(s.Families) == 0 || slices.Contains(s.Families, f)
}
