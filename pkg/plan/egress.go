package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// never is networks to which no packet leaves the cluster.
var never = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("255.255.255.255/32"),
	netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
}

// An Egress in plan.Rules is the options of egress (kube-vip.io/egress).
type Egress struct {
	Internal []netip.Prefix // egress_podcidr and egress_servicecidr: what is in the cluster beside what Herald knows
}

// An egress plans what this node does with packets of pods of Services with egress.
type egress struct {
	*draft
	inside   []netip.Prefix            // the networks in the cluster
	podCIDRs map[string][]netip.Prefix // by node
	taken    map[netip.Addr]bool       // the pods' addresses that have an Egress already
}

// plan adds the egress of services; pods count for the oldest.
func (p *egress) plan(services []*service) {
	all := slices.DeleteFunc(slices.Clone(services), func(s *service) bool { return s.Service.Egress == nil })
	if len(all) == 0 {
		return
	}
	if p.Egress == nil {
		for _, s := range all {
			p.addEventIfResponsible(s, vip.EgressUnavailable, keepsSource+"egress_enable is false, by the operator")
		}
		return
	}
	p.replanAfter(lookAtTables)
	p.out.EgressPending = p.EgressPodsPending
	p.inside, p.podCIDRs, p.taken = p.internal(), make(map[string][]netip.Prefix, len(p.Nodes)), make(map[netip.Addr]bool)
	for _, n := range p.Nodes {
		p.podCIDRs[n.Name] = n.PodCIDRs
	}
	for _, s := range all {
		if problem := p.whyNoEgress(s); problem != "" {
			p.addEventIfResponsible(s, vip.EgressUnavailable, problem)
			continue
		} else if s.unit == nil { // no node may have it
			continue
		}
		p.reportPodsElsewhere(s)
		done, someInUse := make(map[vip.Family]bool), slices.ContainsFunc(s.Conditions, isInUse)
		for _, a := range s.addrs {
			// other hosts may have those that the owner does not name
			if f := vip.FamilyOf(a.Addr); !done[f] && (!someInUse || s.statusHas(a.Addr)) {
				done[f] = true
				if why := p.EgressRefused[f]; why != "" && p.Claims[s.unit.lease].Holder == p.Self {
					p.addEvent(s, vip.EgressUnavailable,
						keepsSource+"nftables on node "+p.Self+", which owns its VIP, refuses it: "+why, 0)
				}
				p.addEgress(s, a)
			}
		}
	}
}

// addEgress adds the Egress of one VIP, without pods of others.
func (p *egress) addEgress(s *service, a address) {
	e := vip.Egress{VIP: a.Addr, Internal: p.inside, EgressLimits: s.Service.Egress.EgressLimits}
	claim := p.Claims[s.unit.lease]
	here := claim.Holder == p.Self || p.HandingOver[s.unit.lease].InDoubt && p.isBound(a.Address)
	switch {
	case claim.Holder == "" || p.self == nil || here && !(claim.Valid && p.Tenure.Holds(p.Now)):
		return
	case !here:
		if e.Via, e.Link = p.wayTo(p.self, p.members[claim.Holder], a.Addr); !e.Via.IsValid() {
			return
		}
	}
	var own []netip.Addr // of pods of this node
	for _, pod := range s.Pods {
		for _, x := range pod.Addresses {
			if x.Is4() != a.Addr.Is4() || p.taken[x] || !here && pod.Node != p.Self {
				continue
			}
			p.taken[x] = true
			if e.Pods = append(e.Pods, x); pod.Node == p.Self {
				own = append(own, x)
			}
		}
	}
	if len(e.Pods) > 0 {
		slices.SortFunc(e.Pods, netip.Addr.Compare)
		p.out.Egress = append(p.out.Egress, e)
	}
	if here && len(own) > 0 {
		p.addFormerEgress(vip.Egress{VIP: a.Addr, Pods: own, Internal: p.inside, Former: true})
	}
}

// addFormerEgress adds e by the former owner, where answers go, too.
func (p *egress) addFormerEgress(e vip.Egress) {
	i := slices.IndexFunc(p.out.FormerOwners, func(x vip.FormerOwner) bool { return x.Addr == e.VIP })
	if i < 0 {
		return
	}
	e.Via, e.Link = p.out.FormerOwners[i].NextHop, p.out.FormerOwners[i].Link
	slices.SortFunc(e.Pods, netip.Addr.Compare)
	p.out.Egress = append(p.out.Egress, e)
}

// wayTo returns the owner's address in node's network, and the link, which is up.
func (p *egress) wayTo(node, owner *member, a netip.Addr) (via netip.Addr, link string) {
	if owner == nil {
		return netip.Addr{}, ""
	}
	for _, l := range node.Info.Links {
		for _, own := range l.Networks() {
			for _, theirs := range owner.Info.Links {
				for _, prefix := range theirs.Prefixes {
					if x := prefix.Addr(); l.Up && theirs.Up && x.Is4() == a.Is4() && !x.IsLinkLocalUnicast() &&
						own.Contains(x) && x != own.Addr() && (!via.IsValid() || own.Contains(a)) {
						via, link = x, l.Name
					}
				}
			}
		}
	}
	return via, link
}

// keepsSource begins messages about what is without egress.
const keepsSource = "kube-vip.io/egress: what the Service's pods send keeps the source that the network plugin gives " +
	"it: "

// isInUse reports whether by c other hosts have addresses of a Service.
func isInUse(c vip.Condition) bool { return c.Type == vip.Announced && c.Reason == vip.AddressInUse }

// whyNoEgress returns why pods of s keep their source, or "".
func (p *egress) whyNoEgress(s *service) string {
	switch {
	case s.everyNodeAdvertises || s.unit != nil && s.unit.lease.IsZero():
		return keepsSource + "no single node has its VIP, to which answers would come; set svc_election=true, or " +
			"vip_arp=true"
	case s.PodsUnknown == vip.PodsBeingListed:
		return ""
	case s.PodsUnknown != "":
		return keepsSource + s.PodsUnknown
	}
	for _, c := range s.Conditions { // all nodes see the owner's, which alone knows
		if c.Status == vip.ConditionFalse && (isInUse(c) || c.Type == vip.Announced && c.Reason == vip.NoEligibleNode) {
			return keepsSource + "no node has bound its VIP: " + c.Message
		}
	}
	for _, a := range s.addrs {
		if !p.knowsPodRanges(a.Addr.Is4()) {
			return keepsSource + fmt.Sprintf("no %s range of pods is known from Nodes (spec.podCIDRs), so that what "+
				"stays in the cluster can't be told from what leaves it; set egress_podcidr", vip.FamilyOf(a.Addr))
		}
		if pod, x := p.podOutsideRanges(s, a.Addr.Is4()); x.IsValid() {
			return keepsSource + fmt.Sprintf("pod %s has the address %s, which is neither in spec.podCIDRs of its "+
				"Node nor in egress_podcidr, so that what stays in the cluster can't be told from what leaves it; set "+
				"egress_podcidr to the ranges of the network plugin", pod, x)
		}
	}
	return ""
}

// podOutsideRanges returns the first pod in no known range, or zero.
func (p *egress) podOutsideRanges(s *service, is4 bool) (name string, outside netip.Addr) {
	for _, pod := range s.Pods {
		ranges, known := p.podCIDRs[pod.Node]
		for _, x := range pod.Addresses {
			contains := func(r netip.Prefix) bool { return r.Contains(x) }
			if known && x.Is4() == is4 && !slices.ContainsFunc(ranges, contains) &&
				!slices.ContainsFunc(p.Egress.Internal, contains) {
				return pod.Name, x
			}
		}
	}
	return "", netip.Addr{}
}

// reportPodsElsewhere names nodes with pods of s and no way to its owner.
func (p *egress) reportPodsElsewhere(s *service) {
	owner := p.members[p.Claims[s.unit.lease].Holder]
	if owner == nil || owner.Name != p.Self {
		return
	}
	nodes, seen := make(map[string]string), make(map[string]bool)
	for _, pod := range s.Pods {
		n := p.members[pod.Node]
		before := seen[pod.Node]
		seen[pod.Node] = true
		switch {
		case before, pod.Node == p.Self, pod.Node == "":
		case n == nil || !n.Alive:
			nodes[pod.Node] = pod.Node + " (no Herald runs there)"
		case !n.Info.AnnouncesServices():
			nodes[pod.Node] = pod.Node + " (svc_enable is false there)"
		default:
			for _, a := range s.addrs {
				if via, _ := p.wayTo(n, owner, a.Addr); !via.IsValid() {
					nodes[pod.Node] = fmt.Sprintf("%s (no link that is up has an %s network in common with %s)", pod.Node,
						vip.FamilyOf(a.Addr), owner.Name)
				}
			}
		}
	}
	if len(nodes) == 0 {
		return
	}
	names, more := slices.Sorted(maps.Values(nodes)), ""
	if len(names) > 5 {
		names, more = names[:5], " and others"
	}
	p.addEvent(s, vip.EgressUnavailable,
		"kube-vip.io/egress: what its pods send keeps its source on "+strings.Join(names, ", ")+more, 0)
}

func (p *egress) knowsPodRanges(is4 bool) bool {
	of := func(x netip.Prefix) bool { return x.Addr().Is4() == is4 }
	return slices.ContainsFunc(p.Egress.Internal, of) || slices.ContainsFunc(p.Nodes,
		func(n vip.Node) bool { return slices.ContainsFunc(n.PodCIDRs, of) })
}

// internal returns the networks in the cluster that no tenant can write.
func (p *egress) internal() []netip.Prefix {
	all := slices.Concat(never, p.Egress.Internal)
	for _, r := range p.World.Reserved {
		if !r.FromSlice {
			all = append(all, r.Prefix)
		}
	}
	var single []netip.Addr
	for _, n := range p.Nodes {
		all, single = append(all, n.PodCIDRs...), append(single, n.Addresses...)
	}
	for _, m := range p.Members {
		single = append(single, m.Info.OwnAddresses()...)
	}
	for _, a := range single {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return slices.Compact(all)
}
