package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// newServiceAge is the age from which on the user of a Service is told that it has no endpoints: the first
	// EndpointSlice comes a moment after the Service.
	newServiceAge = 3 * time.Second
	// oldServiceAge is the age from which on a Service without endpoints is not expected to get any soon.
	oldServiceAge = 30 * time.Second
)

// A filter sorts out the Services that are this Herald's and may have an address, and rejects
// all others.
type filter struct {
	*pass
	dhcp *dhcp

	all                []*service // every Service of type LoadBalancer, and those whose status Herald wrote
	accepted           []*service // with an address and an endpoint: oldest first
	expectingEndpoints []*service // rejected for the lack of endpoints only, new, and never announced: oldest first
}

// findServices sets statusBy of every Service, and all, accepted and expectingEndpoints. It
// gives every Service that is not accepted a verdict: by admit, for want of a DHCP client of
// its own (assignClients), or for address conflicts (dropConflicts). A Service that is not of
// type LoadBalancer and whose status Herald did not write is in none.
func (f *filter) findServices() {
	f.all = make([]*service, 0, len(f.Services))
	f.accepted = make([]*service, 0, len(f.Services))
	backing := make([]service, len(f.Services))
	for i := range f.Services {
		s := &backing[i]
		s.Service = &f.Services[i]
		if s.Announcer == f.Announcer {
			s.statusBy = s.VIPHost
		}
		if !s.LoadBalancer && s.statusBy == "" {
			continue
		}
		s.verdict.Service = s.Key
		f.all = append(f.all, s)
		f.admit(s, i == 0 && f.ControlPlane != nil)
		if !s.hasVerdict() {
			f.accepted = append(f.accepted, s)
		}
	}
	slices.SortFunc(f.accepted, byAge)
	slices.SortFunc(f.expectingEndpoints, byAge)
	f.dhcp.assignClients(f.accepted)
	f.dropRejected()
	f.dropConflicts()
	f.dropRejected()
}

// dropRejected takes the Services that have a verdict, so are rejected, out of accepted.
func (f *filter) dropRejected() {
	f.accepted = slices.DeleteFunc(f.accepted, func(s *service) bool { return s.hasVerdict() })
}

// byAge orders by creationTimestamp, oldest first, and those of the same second by Key.
func byAge(a, b *service) int {
	return cmp.Or(a.Created.Compare(b.Created), a.Key.Compare(b.Key))
}

// admit sets the capabilities, the addresses and the lease of s, or rejects it, for the first
// that applies: it is not ours (not asked of the control plane); names no address; all it
// names is invalid; no method that it wants is enabled; all its addresses are refused; it has
// no endpoint, and externalTrafficPolicy is Local or it does not allow that. If this node is
// responsible it also adds Events about invalid fields and about refused addresses of a
// Service that has others.
func (f *filter) admit(s *service, controlPlane bool) {
	if reason, message := f.whyNotOurs(s.Service); reason != "" && !controlPlane {
		f.reject(s, reason, message)
		return
	}
	for _, text := range s.Invalid {
		f.addEventIfResponsible(s, vip.InvalidField, text)
	}
	if len(s.Addresses) == 0 && len(s.Invalid) == 0 {
		f.reject(s, vip.NoAddress, "it names no address; set the annotation kube-vip.io/loadbalancerIPs or spec.loadBalancerIP, by hand or by an address allocator")
		return
	}
	s.capabilities = f.capabilitiesOf(s.Service, controlPlane)
	switch {
	case len(s.Addresses) == 0, !s.hasMethod() && s.Announce != nil && len(s.Announce) == 0: // the Events about invalid fields are enough
		f.rejectSilently(s, vip.InvalidField, strings.Join(s.Invalid, " "))
		return
	case !s.hasMethod():
		f.reject(s, vip.InvalidField, fmt.Sprintf("heraldvip.io/announce asks for %v, which is not enabled (vip_arp, bgp_enable)", s.Announce))
		return
	}
	s.verdict.Lease = s.lease
	if refused := f.admitAddresses(s); len(s.addrs)+len(s.dhcpFamilies) == 0 {
		f.reject(s, vip.AddressRefused, strings.Join(refused, "; "))
		return
	} else if len(refused) > 0 {
		f.addEventIfResponsible(s, vip.AddressRefused, strings.Join(refused, "; "))
	}
	if !s.Endpoints.Any() && (s.Local || !s.AllowWithoutEndpoints) { // decision 0007
		f.rejectWithoutEndpoints(s)
	}
}

// whyNotOurs returns why s is not this Herald's to announce, as the reason and message of a
// verdict: svc_enable, type, kube-vip.io/ignore or class. Both are "" if it is.
func (f *filter) whyNotOurs(s *vip.Service) (reason vip.Reason, message string) {
	switch {
	case !f.Enabled:
		return vip.Ignored, "svc_enable is false"
	case !s.LoadBalancer:
		return vip.NotLoadBalancer, "spec.type is not LoadBalancer"
	case s.Ignore:
		return vip.Ignored, `the annotation kube-vip.io/ignore is "true"`
	case s.HasClass && s.Class != f.Class:
		return vip.OtherClass, fmt.Sprintf("spec.loadBalancerClass is %q, this Herald serves %q", s.Class, f.Class)
	case !s.HasClass && f.ClassStrict && f.Class != "":
		return vip.OtherClass, fmt.Sprintf("spec.loadBalancerClass is not set, this Herald serves only %q (lb_class_legacy_handling is false)", f.Class)
	case !s.HasClass && !f.ClassStrict && f.ClassOnly:
		return vip.OtherClass, fmt.Sprintf("spec.loadBalancerClass is not set, this Herald serves only %q (lb_class_only is true)", f.Class)
	}
	return "", ""
}

// admitAddresses sets s.addrs and s.dhcpFamilies to what s asks for and may have, adds the
// former to its verdict's Addresses, and returns one sentence for each that is refused:
// reserved, not of its IP families, or DHCP that it can't have. nil if none is.
func (f *filter) admitAddresses(s *service) (refused []string) {
	s.addrs = make([]address, 0, len(s.Addresses))
	for _, a := range requestedAddresses(s, f.DHCPMode) {
		family, why := vip.FamilyOf(a), ""
		switch {
		case !a.IsUnspecified():
			why = f.reserved.whyRefused(s, a)
		case s.noDHCP != "":
			why = fmt.Sprintf("%s asks for an address by DHCP, which %s", a, s.noDHCP)
		case !s.hasFamily(family):
			why = fmt.Sprintf("%s asks for an %s address, but spec.ipFamilies has no %s", a, family, family)
		}
		switch {
		case why != "":
			refused = append(refused, why)
		case a.IsUnspecified():
			s.dhcpFamilies = append(s.dhcpFamilies, family)
		default:
			s.addrs = append(s.addrs, address{Address: vip.Address{Addr: a}})
			s.verdict.Addresses = append(s.verdict.Addresses, a)
		}
	}
	return refused
}

// rejectWithoutEndpoints rejects s as NoEndpoints; without an Event, but with another plan
// later, until it is 3 s old (newServiceAge). Until it is 30 s old (oldServiceAge) it goes to
// expectingEndpoints, unless its status names an address. One whose status Herald wrote, or
// that was created in the future, counts as old.
func (f *filter) rejectWithoutEndpoints(s *service) {
	age := f.Now.Sub(s.Created)
	if age < 0 || s.statusBy != "" {
		age = oldServiceAge
	}
	if age < oldServiceAge && len(s.Ingress) == 0 {
		f.expectingEndpoints = append(f.expectingEndpoints, s)
	}
	if age < newServiceAge {
		f.rejectSilently(s, vip.NoEndpoints, s.noEndpoints)
		f.replanAfter(newServiceAge - age)
		return
	}
	f.reject(s, vip.NoEndpoints, s.noEndpoints)
}

// dropConflicts takes an address from every accepted Service that may not share it with one
// that comes before it (see conflict), in the order of incumbentsFirst: who has addresses by
// its status keeps them, then the older does. A Service that is left with nothing is rejected,
// unless its DHCP client declines an address and so gets another; otherwise the conflict is an
// Event only, if this node is responsible.
func (f *filter) dropConflicts() {
	h := addressHolders{make(map[netip.Addr]addressHolder, len(f.accepted)), make(map[addressPort]*service)}
	for _, s := range incumbentsFirst(f.accepted) {
		var conflicts []string
		s.addrs = slices.DeleteFunc(s.addrs, func(a address) bool {
			text := h.conflict(s, a)
			if text != "" {
				conflicts = append(conflicts, text)
			}
			return text != ""
		})
		h.addService(s)
		switch {
		case len(conflicts) == 0:
		case len(s.addrs) == 0 && !slices.ContainsFunc(s.dhcpFamilies, func(x vip.Family) bool { return s.client.declined[x] != "" }):
			f.reject(s, vip.AddressConflict, strings.Join(conflicts, "; "))
		default:
			f.addEventIfResponsible(s, vip.AddressConflict, strings.Join(conflicts, "; "))
		}
	}
}

// addressHolders are the Services that have addresses, while dropConflicts goes through them.
type addressHolders struct {
	first  map[netip.Addr]addressHolder
	byPort map[addressPort]*service // of addresses that are shared only
}

// An addressHolder is the first Service that has an address, and how it has it.
type addressHolder struct {
	*service
	client *dhcpClient // to which the address is leased, or nil
}

// An addressPort is a port of an address.
type addressPort struct {
	addr netip.Addr
	port vip.Port
}

// conflict returns why s may not have a besides the Services that were added with it: one has
// the same port and protocol, or one of the two is leased a by DHCP, and not to a client that
// both have. "" if it may, or if nobody has a. If it is the client of s that a is leased to,
// the second reason is also stored there as declined, so that the server is asked for another.
// The ports of the first holder go to byPort, as a is shared now.
func (h *addressHolders) conflict(s *service, a address) string {
	by, shared := h.first[a.Addr]
	switch {
	case !shared:
		return ""
	case by.client != a.client && a.client != nil:
		text := fmt.Sprintf("%s, which a DHCP server has leased, belongs to Service %s, which had it first", a.Addr, by.Key)
		a.client.declined[vip.FamilyOf(a.Addr)] = text
		return text
	case by.client != a.client:
		return fmt.Sprintf("%s belongs to Service %s, which had it first, and is leased by DHCP", a.Addr, by.Key)
	}
	for _, p := range by.Ports {
		h.byPort[addressPort{a.Addr, p}] = by.service
	}
	for _, p := range s.Ports {
		if by := h.byPort[addressPort{a.Addr, p}]; by != nil {
			return fmt.Sprintf("%s port %d/%s belongs to Service %s, which had it first", a.Addr, p.Port, p.Protocol, by.Key)
		}
	}
	return ""
}

// addService adds s as the first holder of each of its s.addrs, or, of an address that has one
// already, as the holder of its ports.
func (h *addressHolders) addService(s *service) {
	for _, a := range s.addrs {
		if _, shared := h.first[a.Addr]; !shared {
			h.first[a.Addr] = addressHolder{s, a.client}
			continue
		}
		for _, p := range s.Ports {
			h.byPort[addressPort{a.Addr, p}] = s
		}
	}
}

// incumbentsFirst returns all Services, first those that have one of their addresses in a
// status that Herald wrote, then the others, each in the order given.
func incumbentsFirst(all []*service) []*service {
	order := make([]*service, 0, len(all))
	others := make([]*service, 0, len(all))
	for _, s := range all {
		if s.statusBy != "" && slices.ContainsFunc(s.addrs, func(a address) bool { return s.inStatus(a.Addr) }) {
			order = append(order, s)
		} else {
			others = append(others, s)
		}
	}
	return append(order, others...)
}

// inStatus reports whether status.loadBalancer.ingress of s names a, whoever wrote it.
func (s *service) inStatus(a netip.Addr) bool {
	return slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool { return i.Addr == a })
}

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
