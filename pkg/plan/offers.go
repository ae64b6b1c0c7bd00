package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/pkg/vip"
)

// offers are what pools say of addresses (docs/why.md, "Who has an address").
type offers struct {
	policy    vip.PoolPolicy
	limited   bool                         // not every address may be asked for
	poolsOnly bool                         // only those of pools
	unknown   bool                         // the ConfigMap may not be read: no address may be asked for
	labels    map[string]map[string]string // of namespaces
}

// newOffers returns what the pools allow; nil if Herald reads none.
func newOffers(r *Rules, w *vip.World) *offers {
	if r.Allocation == nil {
		return nil
	}
	// what a removed ConfigMap said stays: else who asks meanwhile has an address for good
	o := &offers{policy: w.PoolPolicy}
	var data map[string]string
	if w.Pools != nil {
		data, o.labels = w.Pools.Data, w.Pools.Namespaces
	}
	if w.Pools == nil || o.policy == nil {
		o.policy, _ = pool.Parse(nil, data)
	}
	o.poolsOnly, o.unknown = r.PoolsOnly, w.PoolsRefused && w.Pools == nil
	o.limited = o.poolsOnly || o.policy.KeepsOut() || o.unknown
	return o
}

// whyNot returns why a namespace may not ask for a, or "".
func (o *offers) whyNot(namespace string, a netip.Addr) string {
	if o.unknown {
		return a.String() + ": which addresses Services may have is not known, since Herald may not read the " +
			"ConfigMap of pools; ask the operator (herald manifest rbac prints what is needed, svc_pools= turns pools off)"
	}
	if why := o.policy.WhyNotOffered(namespace, o.labels[namespace], a, o.poolsOnly); why != "" {
		return why + "; name no address, so that the Service is given one of a pool, or ask the operator (svc_addresses)"
	}
	return ""
}

// mayHave reports whether a is of a pool that is offered to s, or may be.
func (o *offers) mayHave(s *vip.Service, a netip.Addr) bool {
	return o.policy.InPool(s.Key.Namespace, o.labels[s.Key.Namespace], a, s.Allocated)
}

// ofPools returns the addresses of s for which pools count; 0.0.0.0 and :: stand for DHCP.
func (s *service) ofPools() []netip.Addr {
	out := make([]netip.Addr, 0, len(s.addrs)+len(s.dhcpFamilies))
	for _, a := range s.addrs {
		if a.client == nil {
			out = append(out, a.Addr)
		}
	}
	for _, f := range s.dhcpFamilies {
		out = append(out, f.Unspecified())
	}
	return out
}

// setInterface gives s without a link that of its first pool.
func (f *admission) setInterface(s *service) {
	named := s.Interface
	if s.ownLink = named != ""; f.offers == nil || s.reserved {
		return
	}
	s.ownLink = s.ownLink && slices.ContainsFunc(s.ofPools(), func(a netip.Addr) bool {
		return f.offers.policy.Interface(s.Key.Namespace, a) != named
	})
	// its user could run the server on that link
	if f.offers.limited && len(s.dhcpFamilies) > 0 {
		s.Interface = ""
	}
	for _, a := range s.ofPools() {
		if s.Interface == "" {
			s.Interface = f.offers.policy.Interface(s.Key.Namespace, a)
		}
	}
	if named != s.Interface && named != "" && f.self != nil &&
		f.self.Info.LinkFor(named) != f.self.Info.LinkFor(s.Interface) {
		f.addEventIfResponsible(s, vip.InvalidField,
			fmt.Sprintf("kube-vip.io/serviceInterface is %q, and has no effect: since pools limit which addresses "+
				"Services may ask for (svc_addresses), a DHCP server is asked on the link that its pool names "+
				"(pool-<name>.interface), or else on that of the node; ask the operator", named))
	}
}

// setMethods gives s without methods those of a pool, which it returns.
func (f *admission) setMethods(s *service) (pool string) {
	if s.Announce != nil && len(s.Announce) == 0 && f.ARP != f.hasRoutes() && slices.ContainsFunc(s.Addresses,
		s.statusHas) {
		s.Announce = nil
		return ""
	}
	if f.offers == nil || s.Announce != nil {
		return ""
	}
	for _, a := range s.Addresses {
		if s.Announce, pool = f.offers.policy.Methods(a); pool != "" {
			return pool
		}
	}
	return ""
}

// addPoolsOf adds to need the addresses whose pools may choose nodes.
func (p *facts) addPoolsOf(need *requirements, s *service) {
	if p.offers != nil && !need.reserved {
		need.policy, need.ofPools = p.offers.policy, append(need.ofPools, s.ofPools()...)
	}
}

// judgeOffer returns why s may not ask for a, or "".
func (f *admission) judgeOffer(s *service, a netip.Addr) string {
	if f.offers == nil || !f.offers.limited || s.reserved {
		return ""
	}
	why := f.offers.whyNot(s.Key.Namespace, a)
	switch {
	case why == "":
	// what was leased is not its own once s names it
	case a.IsUnspecified() && f.hasLeased(s, vip.FamilyOf(a)), !a.IsUnspecified() && !slices.Contains(s.Record.Leased,
		a) && f.has(s, a):
		s.unoffered = true
	default:
		return why
	}
	return ""
}

// unofferedOf returns what s names, no pool offers, and its status lacks.
func (p *facts) unofferedOf(s *vip.Service) (out []netip.Addr) {
	if p.offers == nil || !p.offers.limited {
		return nil
	}
	shown := service{Service: s}
	for _, a := range s.Addresses {
		if !a.IsUnspecified() && (!shown.statusHas(a) || slices.Contains(s.Record.Leased, a) &&
			s.Source != vip.SourceStatus) && p.offers.whyNot(s.Key.Namespace, a) != "" {
			out = append(out, a)
		}
	}
	return out
}

// released returns given addresses of s that no pool offers any more.
func (p *facts) released(s *vip.Service) []netip.Addr {
	all := p.unofferedOf(s)
	// no pool has the zero Addr, but an unreadable one may
	if s.Allocated == "" || p.offers == nil || p.offers.mayHave(s, netip.Addr{}) {
		return nil
	}
	if slices.ContainsFunc(all, func(a netip.Addr) bool { return !slices.Contains(s.Record.Given, a) }) {
		return nil
	}
	return all
}

// keepsStatus reports whether only its status keeps the address (docs/why.md, "Who has an address"), or routers do.
func (s *service) keepsStatus() bool { return s.contended || s.unoffered || s.routeKept }
