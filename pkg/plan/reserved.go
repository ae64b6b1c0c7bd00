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
	// those of nodes' links, which the control plane may not have either, and those of Nodes: what only one of the two has
	// may be a VIP, bound by somebody or taken by kubelet for the node's
	nodes, kubelets map[netip.Addr]description
	programs        map[netip.Addr]description // those that other programs have given to nodes
	routers         map[netip.Addr]description // gateways and BGP peers
	subnets         map[netip.Addr]description // network and broadcast addresses of links
	ranges          []vip.ReservedRange        // longest prefix first
	// inRanges are the ranges of one address: as many as Services ask for.
	inRanges map[netip.Addr][]vip.ReservedRange
	wider    []vip.ReservedRange // the others
}

// A description says what an address is: "what node" or "what node on link".
type description struct{ what, node, link string }

func (d description) String() string {
	if d.link == "" {
		return d.what + " " + d.node
	}
	return d.what + " " + d.node + " on " + d.link
}

// newReservedAddresses returns what no Service may have, by nodes and options.
func newReservedAddresses(rules *Rules, w *vip.World) *reservedAddresses {
	r := &reservedAddresses{
		nodes: make(map[netip.Addr]description), kubelets: make(map[netip.Addr]description),
		programs: make(map[netip.Addr]description), routers: make(map[netip.Addr]description),
		subnets: make(map[netip.Addr]description), ranges: slices.Clone(w.Reserved),
	}
	var vips []netip.Addr
	if rules.ControlPlane != nil {
		vips = slices.Clone(rules.ControlPlane.Addresses)
	}
	for i := range w.Members {
		if o := w.Members[i].Info.Options; o != nil {
			vips = append(vips, o.ControlPlane...)
		}
	}
	slices.SortFunc(vips, netip.Addr.Compare)
	for _, a := range slices.Compact(vips) {
		r.ranges = append(r.ranges, vip.ReservedRange{Prefix: netip.PrefixFrom(a, a.BitLen()),
			Description: "the VIP of the control plane"})
	}
	for _, p := range rules.Reserved {
		r.ranges = append(r.ranges, vip.ReservedRange{Prefix: p, Description: "a range that the operator has reserved"})
	}
	for i := range w.Members {
		r.addMember(&w.Members[i])
	}
	for _, n := range w.Nodes {
		for _, a := range n.Addresses {
			r.kubelets[a] = description{what: "the address of node", node: n.Name}
		}
		for _, p := range n.PodCIDRs {
			r.ranges = append(r.ranges, vip.ReservedRange{Prefix: p, Description: "the pod range of node " + n.Name})
		}
	}
	slices.SortStableFunc(r.ranges, func(a, b vip.ReservedRange) int {
		return cmp.Compare(b.Prefix.Bits(), a.Prefix.Bits())
	})
	r.inRanges = make(map[netip.Addr][]vip.ReservedRange)
	for _, x := range r.ranges {
		if x.Prefix.IsSingleIP() {
			r.inRanges[x.Prefix.Addr()] = append(r.inRanges[x.Prefix.Addr()], x)
		} else {
			r.wider = append(r.wider, x)
		}
	}
	return r
}

func (r *reservedAddresses) addMember(m *vip.Member) {
	for _, l := range m.Info.Links {
		for _, p := range l.Prefixes {
			r.nodes[p.Addr()] = description{"the address of node", m.Name, l.Name}
		}
		for _, p := range l.Networks() {
			r.addSubnet(p, m.Name, l.Name)
		}
	}
	for _, a := range m.Info.OtherAddresses {
		r.programs[a] = description{what: "an address that another program has given to node", node: m.Name}
	}
	for _, a := range m.Info.Gateways {
		r.routers[a] = description{what: "the gateway of node", node: m.Name}
	}
	for _, b := range m.Info.BGPSessions {
		if a, err := netip.ParseAddr(b.Peer); err == nil { // others are interfaces
			r.routers[a.Unmap().WithZone("")] = description{what: "the BGP peer of node", node: m.Name}
		}
	}
}

// addSubnet adds the first and last address of an IPv4 network (RFC 1122 section 3.2.1.3), and the first of an IPv6 one
// (Subnet-Router anycast, RFC 4291 section 2.6.1). Networks of two addresses have neither (RFC 3021, RFC 6164).
func (r *reservedAddresses) addSubnet(p netip.Prefix, node, link string) {
	first := p.Masked().Addr()
	switch {
	case p.Addr().BitLen()-p.Bits() < 2:
	case first.Is6():
		r.subnets[first] = description{"the Subnet-Router anycast address of node", node, link}
	default:
		r.subnets[first] = description{"the network address of node", node, link}
		r.subnets[vip.LastAddr(p)] = description{"the broadcast address of node", node, link}
	}
}

// mayIgnoreSlices reports whether s may have a despite EndpointSlices, which tenants write.
func (p *facts) mayIgnoreSlices(s *service, a netip.Addr) bool {
	return p.has(s, a) || p.offers != nil && p.offers.policy.WhyNotOffered(s.Key.Namespace,
		p.offers.labels[s.Key.Namespace], a, true) == ""
}

// whatIs describes a, which s may not have; "" if it may.
func (p *facts) whatIs(s *service, a netip.Addr) string {
	r, ours := p.reserved, s.statusOurs && s.statusHas(a)
	onLink, isNodes := r.nodes[a]
	ofNode, isKubelets := r.kubelets[a]
	switch {
	case isNodes && (isKubelets || !ours):
		return onLink.String()
	case s.reserved:
		return ""
	case isKubelets && !ours:
		return ofNode.String()
	}
	// the program may be an announcer that ran here before Herald
	if d, ok := r.programs[a]; ok && s.statusTellsUse && !s.statusHas(a) {
		return d.String()
	}
	for _, m := range []map[netip.Addr]description{r.routers, r.subnets} {
		if d, ok := m[a]; ok {
			return d.String()
		}
	}
	for _, x := range r.inRanges[a] {
		if !x.FromSlice || !p.mayIgnoreSlices(s, a) {
			return describeTo(s, x)
		}
	}
	for _, x := range r.wider {
		if x.Prefix.Contains(a) {
			return fmt.Sprintf("in %s (%s)", x.Description, x.Prefix)
		}
	}
	return ""
}

// describeTo describes x to users of s, without names elsewhere.
func describeTo(s *service, x vip.ReservedRange) string {
	switch x.Service.Namespace {
	case "":
		return x.Description
	case s.Key.Namespace:
		return x.Description + " of Service " + x.Service.String()
	}
	return x.Description + " of a Service of another namespace"
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// whyRefused returns why s may not have a as a VIP, or "".
func (p *facts) whyRefused(s *service, a netip.Addr) string {
	switch {
	case a.IsLoopback():
		return fmt.Sprintf("%s is a loopback address", a)
	case a.IsMulticast(), a == broadcast:
		return fmt.Sprintf("%s is a multicast or broadcast address", a)
	case a.IsLinkLocalUnicast():
		return fmt.Sprintf("%s is a link-local address", a)
	case a.Is4() && a.As4()[0] == 0:
		return fmt.Sprintf("%s is in 0.0.0.0/8, which no host may have (RFC 1122 section 3.2.1.3)", a)
	case !s.hasFamily(vip.FamilyOf(a)):
		return fmt.Sprintf("%s is an %s address, but spec.ipFamilies has no %s", a, vip.FamilyOf(a), vip.FamilyOf(a))
	}
	if what := p.whatIs(s, a); what != "" {
		return fmt.Sprintf("%s is %s", a, what)
	}
	return ""
}

func (s *service) hasFamily(f vip.Family) bool {
	return len(s.Families) == 0 || slices.Contains(s.Families, f)
}
