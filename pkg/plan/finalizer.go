package plan

import (
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// releaseWithin is how long after a Service was deleted its finalizer waits for DHCP servers and gateways. What
// these still have then ends with its lease.
const releaseWithin = 10 * time.Second

// finalizerOf returns whether the finalizer of s (docs/why.md, "Finalizer and uninstall") is to be added, removed or
// left as it is, when Herald writes its status (serves) or clears it. It is added while there are pools, or s asks for
// ports on gateways. While kube-vip's cloud provider runs, it is that one's to add and to remove.
func (p *facts) finalizerOf(s *service, serves bool) vip.FinalizerChange {
	switch {
	case p.Allocation != nil && p.providerHolder() != "":
		return vip.LeaveFinalizer
	case !serves:
		return vip.RemoveFinalizer
	case p.Allocation != nil && p.Pools != nil, p.Forwarding != nil && s.Forward != nil:
		return vip.AddFinalizer
	}
	return vip.LeaveFinalizer
}

// keepStatusWithoutFinalizer has the status of s stay, without its finalizer: while this node stops, and no other
// announces s, nobody would take the finalizer off when the Service is deleted.
func (r *reporter) keepStatusWithoutFinalizer(s *service) {
	if s.Finalizer && r.Stopping && s.statusOurs && r.responsible(s) {
		r.writeStatus(s, "", s.Ingress, nil)
		s.status.Finalizer = r.finalizerOf(s, false)
	}
}

// clearWithdrawn clears the status, and takes off the finalizer, of the Services that were withdrawn and for which
// this node is responsible; of those with the finalizer once nothing is left. It comes after all that adds addresses
// to the Plan.
func (m *actions) clearWithdrawn(withdrawn []*service) {
	for _, s := range withdrawn {
		switch {
		case !m.responsible(s):
		case s.Finalizer && m.somethingLeft(s):
			m.replanAfter(time.Second)
		default:
			m.reportRejected(s)
			m.clearStatus(s)
		}
	}
}

// somethingLeft reports whether this node still has an address of s, or, for releaseWithin after its deletion, a
// lease or a mapping.
func (m *actions) somethingLeft(s *service) bool {
	addrs := slices.Concat(s.Addresses, s.StatusVIPs())
	for _, l := range s.DHCP.Leases {
		addrs = append(addrs, l.Addr)
	}
	if slices.ContainsFunc(m.Bound, func(b vip.Address) bool {
		return slices.Contains(addrs, b.Addr) && !m.wanted[b.Addr]
	}) {
		return true
	}
	if s.Deleted.IsZero() {
		return false
	}
	leased := slices.ContainsFunc(m.DHCPStates, func(x vip.DHCPState) bool {
		return x.Request.ID == clientID(s.Service) && x.Lease.Addr.IsValid()
	})
	age := m.Now.Sub(s.Deleted)
	open := m.mappings.closePorts(s)
	return open || leased && 0 <= age && age <= releaseWithin // age < 0: the clocks differ
}
