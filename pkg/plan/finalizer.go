package plan

import (
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// releaseWithin is how long a finalizer waits for DHCP servers and gateways, whose leases end.
const releaseWithin = 10 * time.Second

// finalizerOf returns the change of the finalizer of s (docs/why.md, "Finalizer and uninstall").
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

// keepStatusWithoutFinalizer takes off the finalizer of s alone, while this node stops.
func (p *draft) keepStatusWithoutFinalizer(s *service) {
	// nobody may be there to do it when the Service is deleted
	if s.Finalizer && p.Stopping && s.statusOurs && p.responsible(s) {
		p.writeStatus(s, "", s.Ingress, nil)
		s.status.Finalizer = p.finalizerOf(s, false)
	}
}

// clearWithdrawn clears statuses and finalizers of withdrawn Services once nothing is left.
func (m *actions) clearWithdrawn() {
	for _, s := range m.withdrawn {
		switch {
		case !m.responsible(s):
		case s.Finalizer && m.somethingLeft(s):
			m.replanAfter(time.Second)
		default:
			m.reportRejected(s)
			m.clearStatus(s)
			// a manifest copied from a Service of Herald's brings the annotations: the status is another controller's
			if s.Announcer != "" && len(s.Ingress) > 0 && !s.Record.Covers(nil) {
				s.status.Ingress, s.status.Finalizer = s.Ingress, vip.LeaveFinalizer
			}
		}
	}
}

// somethingLeft reports whether this node has an address, or shortly lease or mapping, of s.
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
