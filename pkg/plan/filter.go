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

// filter finds the Services that are ours and may have an address, oldest first.
func (m *maker) filter() {
	m.all = make([]*service, 0, len(m.Services))
	m.serving = make([]*service, 0, len(m.Services))
	backing := make([]service, len(m.Services))
	for i := range m.Services {
		s := &m.Services[i]
		x := &backing[i]
		x.Service = s
		x.control = i == 0 && m.ControlPlane != nil
		if s.Announcer == m.Mark {
			x.host = s.VIPHost
		}
		if !s.LoadBalancer && x.host == "" {
			continue
		}
		x.verdict.Service = s.Key
		m.all = append(m.all, x)
		m.admit(x)
		if !x.settled {
			m.serving = append(m.serving, x)
		}
	}
	slices.SortFunc(m.serving, older)
	m.lodge()
	m.dropConflicts()
}

// older orders by creation, then name: creationTimestamp has whole seconds only.
func older(a, b *service) int {
	return cmp.Or(a.Created.Compare(b.Created), a.Key.Compare(b.Key))
}

// admit settles s unless it is ours and has an address it may take.
func (m *maker) admit(s *service) {
	if reason, message := m.foreign(s.Service); reason != "" && !s.control {
		m.settle(s, reason, message)
		return
	}
	for _, text := range s.Invalid {
		m.note(s, vip.InvalidField, text)
	}
	if len(s.Addresses) == 0 {
		if len(s.Invalid) > 0 {
			// The Event about the unreadable field says it all.
			s.settled = true
			s.verdict.Reason, s.verdict.Message = vip.InvalidField, strings.Join(s.Invalid, " ")
			return
		}
		m.settle(s, vip.NoAddress, "it names no address; set the annotation kube-vip.io/loadbalancerIPs or spec.loadBalancerIP, by hand or by an address allocator")
		return
	}
	if !m.methods(s) {
		return
	}
	s.lease = m.leaseOf(s)
	s.verdict.Lease = s.lease
	s.addrs = make([]vip.Address, 0, len(s.Addresses))
	var refused []string
	for _, a := range m.asks(s.Service) {
		if a.IsUnspecified() && !s.arp {
			refused = append(refused, a.String()+" asks for an address by DHCP, which needs vip_arp: the lease is its link's")
			continue
		}
		if a.IsUnspecified() {
			if why := m.admitHire(s, a); why != "" {
				refused = append(refused, why)
			}
			continue
		}
		if why := m.refuse(s, a); why != "" {
			refused = append(refused, why)
			continue
		}
		s.addrs = append(s.addrs, vip.Address{Addr: a})
		s.verdict.Addresses = append(s.verdict.Addresses, a)
	}
	switch {
	case len(s.addrs)+len(s.hires) == 0:
		m.settle(s, vip.AddressRefused, strings.Join(refused, "; "))
	case len(refused) > 0:
		m.note(s, vip.AddressRefused, strings.Join(refused, "; "))
	}
	switch {
	case s.settled || s.Endpoints.Any() || s.AllowWithoutEndpoints && !s.Local:
	case s.control:
		m.settle(s, vip.NoEndpoints, "no node's own API server is ready")
	default:
		m.idle(s)
	}
}

// idle settles a Service without endpoints. A new one gets its first EndpointSlice
// a moment after it was created: that is no news.
func (m *maker) idle(s *service) {
	const reason, message = vip.NoEndpoints, "none of its endpoints is ready, so its VIP is not announced"
	m.waiting = append(m.waiting, s)
	if age := m.Now.Sub(s.Created); s.host == "" && age >= 0 && age < fresh {
		s.settled = true
		s.verdict.Reason, s.verdict.Message = reason, message
		m.again(fresh - age)
		return
	}
	m.settle(s, reason, message)
}

// fresh is how long a Service is new.
const fresh = 3 * time.Second

// again asks for another plan after d, should nothing change before.
func (m *maker) again(d time.Duration) {
	if m.plan.ReplanAfter == 0 || d < m.plan.ReplanAfter {
		m.plan.ReplanAfter = d
	}
}

// foreign says why s is not ours, or "".
func (m *maker) foreign(s *vip.Service) (vip.Reason, string) {
	switch {
	case !m.Enabled:
		return vip.Ignored, "svc_enable is false"
	case !s.LoadBalancer:
		return vip.NotLoadBalancer, "spec.type is not LoadBalancer"
	case s.Ignore:
		return vip.Ignored, `the annotation kube-vip.io/ignore is "true"`
	case s.HasClass && s.Class != m.Class:
		return vip.OtherClass, fmt.Sprintf("spec.loadBalancerClass is %q, this Herald serves %q", s.Class, m.Class)
	case !s.HasClass && m.ClassStrict && m.Class != "":
		return vip.OtherClass, fmt.Sprintf("spec.loadBalancerClass is not set, this Herald serves only %q (lb_class_legacy_handling is false)", m.Class)
	case !s.HasClass && !m.ClassStrict && m.ClassOnly:
		return vip.OtherClass, fmt.Sprintf("spec.loadBalancerClass is not set, this Herald serves only %q (lb_class_only is true)", m.Class)
	}
	return "", ""
}

// leaseOf is the lease of one Service.
func (m *maker) leaseOf(s *service) vip.Key {
	if s.control {
		return m.ControlPlane.Lease
	}
	if !m.Election {
		return m.Lease
	}
	if s.Lease != "" {
		return vip.Key{Namespace: s.Key.Namespace, Name: s.Lease}
	}
	return vip.Key{Namespace: s.Key.Namespace, Name: "kubevip-" + s.Key.Name}
}

// A guard knows the addresses that no Service may take.
type guard struct {
	nodes  map[netip.Addr]string // those of nodes, which the control plane may not take either
	single map[netip.Addr]string
	ranges []vip.ReservedRange
}

func newGuard(w vip.World, cp *ControlPlane) guard {
	g := guard{nodes: make(map[netip.Addr]string), single: make(map[netip.Addr]string)}
	for _, m := range w.Members {
		for _, l := range m.Info.Links {
			for _, p := range l.Prefixes {
				g.nodes[p.Addr()] = fmt.Sprintf("the address of node %s on %s", m.Name, l.Name)
			}
		}
	}
	for _, n := range w.Nodes {
		for _, a := range n.Addresses {
			if cp == nil || !slices.Contains(cp.Addresses, a) { // which kubelet may have taken for the node's
				g.nodes[a] = "the address of node " + n.Name
			}
		}
		for _, p := range n.PodCIDRs {
			g.ranges = append(g.ranges, vip.ReservedRange{Prefix: p, Description: "the pod range of node " + n.Name})
		}
	}
	if cp != nil {
		for _, a := range cp.Addresses {
			g.single[a] = "the VIP of the control plane"
		}
	}
	for _, r := range w.Reserved {
		if r.Prefix.IsSingleIP() {
			g.single[r.Prefix.Addr()] = r.Description
		} else {
			g.ranges = append(g.ranges, r)
		}
	}
	return g
}

// of says what a is, or is in, if it is reserved, or "". What is reserved because
// it is the API servers' is not for the control plane.
func (g *guard) of(a netip.Addr, control bool) string {
	if what, ok := g.nodes[a]; ok || control {
		return what
	}
	if what, ok := g.single[a]; ok {
		return what
	}
	for _, r := range g.ranges {
		if r.Prefix.Contains(a) {
			return fmt.Sprintf("in %s (%s)", r.Description, r.Prefix)
		}
	}
	return ""
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// refuse says why s may not have a, or "".
func (m *maker) refuse(s *service, a netip.Addr) string {
	switch {
	case a.IsLoopback():
		return fmt.Sprintf("%s is a loopback address", a)
	case a.IsMulticast(), a == broadcast:
		return fmt.Sprintf("%s is a multicast or broadcast address", a)
	case a.IsLinkLocalUnicast():
		return fmt.Sprintf("%s is a link-local address", a)
	case len(s.Families) > 0 && !slices.Contains(s.Families, vip.FamilyOf(a)):
		return fmt.Sprintf("%s is an %s address, but spec.ipFamilies has no %s", a, vip.FamilyOf(a), vip.FamilyOf(a))
	}
	if what := m.reserved.of(a, s.control); what != "" {
		return fmt.Sprintf("%s is %s", a, what)
	}
	return ""
}

// dropConflicts takes an address from every Service that shares it, with the
// same port and protocol, with one that has the better right to it: the one that
// has it already, else the older. One that is leased by DHCP is not shared at all,
// but among those whose lease it is.
func (m *maker) dropConflicts() {
	type slot struct {
		addr netip.Addr
		port vip.Port
	}
	taken := make(map[slot]*service, len(m.serving))
	first := make(map[netip.Addr]*service, len(m.serving))
	for _, s := range incumbentsFirst(m.serving) {
		var why []string
		s.addrs = slices.DeleteFunc(s.addrs, func(a vip.Address) bool {
			if by := first[a.Addr]; by != nil && by.lets(a.Addr) != s.lets(a.Addr) {
				text := fmt.Sprintf("%s belongs to Service %s, which had it first, and is leased by DHCP", a.Addr, by.Key)
				if s.leased(a.Addr) {
					text = fmt.Sprintf("%s, which a DHCP server has leased, belongs to Service %s, which had it first", a.Addr, by.Key)
					s.tenant.declined[vip.FamilyOf(a.Addr)] = text
				}
				why = append(why, text)
				return true
			}
			for _, p := range s.Ports {
				if by := taken[slot{a.Addr, p}]; by != nil {
					why = append(why, fmt.Sprintf("%s port %d/%s belongs to Service %s, which had it first", a.Addr, p.Port, p.Protocol, by.Key))
					return true
				}
			}
			return false
		})
		for _, a := range s.addrs {
			if first[a.Addr] == nil {
				first[a.Addr] = s
			}
			for _, p := range s.Ports {
				taken[slot{a.Addr, p}] = s
			}
		}
		switch {
		case len(s.addrs) == 0 && len(why) > 0 && !slices.ContainsFunc(s.hires, func(f vip.Family) bool { return s.tenant.declined[f] != "" }):
			m.settle(s, vip.AddressConflict, strings.Join(why, "; "))
		case len(why) > 0:
			m.note(s, vip.AddressConflict, strings.Join(why, "; "))
		}
	}
	m.serving = slices.DeleteFunc(m.serving, func(s *service) bool { return s.settled })
}

// incumbentsFirst is all in the same order, but those before the others that have
// one of their addresses in a status that we wrote.
func incumbentsFirst(all []*service) []*service {
	order := make([]*service, 0, len(all))
	var others []*service
	for _, s := range all {
		if incumbent(s) {
			order = append(order, s)
		} else {
			others = append(others, s)
		}
	}
	return append(order, others...)
}

// incumbent reports whether s has one of its addresses in a status that we wrote.
func incumbent(s *service) bool {
	return s.host != "" && slices.ContainsFunc(s.addrs, func(a vip.Address) bool {
		return slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool { return i.Addr == a.Addr })
	})
}
