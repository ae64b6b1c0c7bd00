package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// A countedAddress is one that counts for the quota of a namespace: an address, or what a DHCP client asks for in a family.
type countedAddress struct {
	addr     string // also 0.0.0.0 and ::
	clientID string // "" for an address that is named
}

// countAddress returns a, an address of s or what stands for one that a DHCP server is asked for, as it counts.
func countAddress(s *vip.Service, a netip.Addr) countedAddress {
	if a.IsUnspecified() {
		return countedAddress{a.String(), clientID(s)}
	}
	return countedAddress{addr: a.String()}
}

// A quotaCount is what counts for the quotas of namespaces, by namespace.
type quotaCount map[string]map[countedAddress]bool

// of returns what counts for a namespace, to be added to.
func (q quotaCount) of(namespace string) map[countedAddress]bool {
	if q[namespace] == nil {
		q[namespace] = make(map[countedAddress]bool)
	}
	return q[namespace]
}

// applyQuota takes from accepted Services those addresses, and those families that they ask a DHCP server for,
// by which their namespace would have more than svc_quota: never what the Service has (see has, hasLeased), of the rest what the
// youngest ask for. What Services of the namespace share counts once. What the statuses of others show, which are ignored, say, counts as well (shownForQuota); so does
// what the status of an accepted Service shows, if its annotations do not say that a Herald of this installation wrote it: it may stay. A Service that is left with nothing
// is rejected; else it is an Event only, if this node is responsible.
func (f *filter) applyQuota() {
	if f.Quota == 0 {
		return
	}
	counted := make(quotaCount)
	visit := func(has bool) {
		for _, s := range f.accepted {
			if !s.localDelivery { // the control plane
				f.countService(s, counted.of(s.Key.Namespace), has)
			}
		}
	}
	for _, s := range f.all { // those that hold what they were given, or had
		if !s.LoadBalancer || !s.hasVerdict() && (s.statusOurs || len(s.dhcpFamilies) > 0) {
			continue
		}
		for _, a := range f.shownForQuota(s.Service) {
			counted.of(s.Key.Namespace)[countAddress(s.Service, a)] = true
		}
	}
	visit(true)
	visit(false)
}

// countService counts the addresses that s has (has is true), or takes from s those that it does
// not have yet and that are beyond the quota of its namespace, and counts the others.
func (f *filter) countService(s *service, counted map[countedAddress]bool, has bool) {
	var over refusals
	exceeds := func(c countedAddress, hasIt bool) bool {
		switch {
		case hasIt != has || counted[c]:
		case has || len(counted) < f.Quota:
			counted[c] = true
		default:
			over.add(c.addr, fmt.Sprintf("the Services of the namespace %s have, or ask for, %d addresses, and may have no more (svc_quota); release one, or ask the operator for more", s.Key.Namespace, f.Quota))
			return true
		}
		return false
	}
	s.addrs = slices.DeleteFunc(s.addrs, func(a address) bool { return exceeds(countAddress(s.Service, a.Addr), f.has(s, a.Addr)) })
	s.dhcpFamilies = slices.DeleteFunc(s.dhcpFamilies, func(x vip.Family) bool {
		return exceeds(countAddress(s.Service, x.Unspecified()), f.hasLeased(s, x))
	})
	f.reportDropped(s, vip.AddressRefused, over, len(s.dhcpFamilies) > 0)
}

// hasLeased reports whether s has an address of family x already that a DHCP server has leased to
// its client: its status names an address of that family, and its condition Allocated says so of it (leasedTo) with the macvlan that s has now, and neither its spec nor its annotations name it; or,
// where no status is written, its lease is held.
func (p *pass) hasLeased(s *service, x vip.Family) bool {
	return slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool {
		suffix, ok := s.leasedTo(i.Addr)
		return ok && vip.FamilyOf(i.Addr) == x && (suffix == "" || strings.HasSuffix(suffix, " on "+clientLink(s.Service))) &&
			(s.Source == vip.SourceStatus || !slices.Contains(s.Addresses, i.Addr))
	}) || !s.statusTellsUse && p.leaseHeld(s)
}
