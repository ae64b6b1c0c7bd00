package plan

import (
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// releaseWithin is how long after a Service was deleted its finalizer waits for DHCP servers and gateways. What
// a gateway still has then is removed by a later sweep, and a DHCP lease ends by itself.
const releaseWithin = 10 * time.Second

// finalizerOf returns what is to become of a Service's finalizer when Herald writes its status (serves) or clears it
// (docs/why.md, "Finalizer and uninstall"). kube-vip's cloud provider has it while it runs.
func (p *pass) finalizerOf(serves bool) vip.FinalizerChange {
	switch {
	case p.Allocation != nil && p.providerHolder() != "":
		return vip.LeaveFinalizer
	case !serves:
		return vip.RemoveFinalizer
	case p.Allocation != nil && p.Pools != nil:
		return vip.AddFinalizer
	}
	return vip.LeaveFinalizer
}

// keepStatusWithoutFinalizer has the status of s stay, without its finalizer: while this node stops, and no other
// announces s, nobody would take the finalizer off when the Service is deleted.
func (p *pass) keepStatusWithoutFinalizer(s *service) {
	if s.Finalizer && p.Stopping && s.statusOurs && p.responsible(s) {
		p.writeStatus(s, "", s.Ingress, nil)
		s.status.Finalizer = p.finalizerOf(false)
	}
}

// clearWithdrawn clears the status, and takes off the finalizer, of the Services that were withdrawn and for which
// this node is responsible; of those with the finalizer once nothing is left. It comes after all that adds addresses
// to the Plan.
func (p *pass) clearWithdrawn() {
	for _, s := range p.withdrawn {
		switch {
		case !p.responsible(s):
		case s.Finalizer && p.somethingLeft(s):
			p.replanAfter(time.Second)
		default:
			p.reportRejected(s)
			p.clearStatus(s)
		}
	}
}

// somethingLeft reports whether this node still has an address of s, or, for releaseWithin after its deletion, a
// lease or a mapping.
func (p *pass) somethingLeft(s *service) bool {
	addrs := slices.Concat(s.Addresses, s.StatusVIPs())
	for _, l := range s.DHCP.Leases {
		addrs = append(addrs, l.Addr)
	}
	if slices.ContainsFunc(p.Bound, func(b vip.Address) bool {
		return slices.Contains(addrs, b.Addr) && !p.wanted[b.Addr]
	}) {
		return true
	}
	if age := p.Now.Sub(s.Deleted); s.Deleted.IsZero() || age < 0 || age > releaseWithin { // age < 0: the clocks differ
		return false
	}
	return slices.ContainsFunc(p.DHCPStates, func(x vip.DHCPState) bool {
		return x.Request.ID == clientID(s.Service) && x.Lease.Addr.IsValid()
	}) ||
		slices.ContainsFunc(p.MappingStates, func(x vip.MappingState) bool { return x.Service == s.Key && x.Requested })
}
