package agent

import (
	"context"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// An egressState is what was done last about what pods send.
type egressState struct {
	marked    []vip.Egress  // what Egress.Set returned
	refused   map[bool]bool // families of VIPs of which it returned nothing that was wanted, by netip.Addr.Is4
	refusedAt time.Time     // since when there is one more
	left      []vip.Egress  // what was routed then: the kernel may go on marking it for vip.EgressTimeout
}

// applyEgress hands over what pods send: rules come before marks, and go after them.
func (a *Agent) applyEgress(ctx context.Context, p vip.Plan, failed func(string, error)) {
	if a.o.Egress == nil || p.EgressPending {
		return
	}
	e := &a.egress
	// what is marked and not routed would leave with the pod's own address
	routes := slices.Concat(e.left, e.marked) // a pod of several is routed by the last
	for _, x := range p.Egress {
		if !e.refused[x.VIP.Is4()] {
			routes = append(routes, x)
		}
	}
	set(ctx, a.o.EgressRoutes, routes, "routes of egress", failed)
	e.marked = set(ctx, a.o.Egress, p.Egress, "egress", failed)
	put(a.o.Senders, p.Egress)
	refused := make(map[bool]bool)
	for _, x := range p.Egress {
		if is4 := x.VIP.Is4(); !slices.ContainsFunc(e.marked, func(o vip.Egress) bool { return o.VIP.Is4() == is4 }) {
			refused[is4] = true
		}
	}
	switch now := time.Now(); {
	case len(refused) > len(e.refused):
		e.refusedAt, e.left = now, routes
	case len(refused) == 0 || now.Sub(e.refusedAt) >= vip.EgressTimeout:
		e.left = nil
	}
	e.refused = refused
	set(ctx, a.o.EgressRoutes, slices.Concat(e.left, e.marked), "routes of egress", failed)
}

// finalPlan returns what stays: in the kernel pods' packets to other owners, and on gateways what other nodes have now.
func (a *Agent) finalPlan() (p vip.Plan) {
	p.Mappings = slices.DeleteFunc(slices.Clone(a.last.Load().Plan.Mappings), func(x vip.Mapping) bool { return x.Here })
	if w := a.observe(); a.o.Egress != nil && w.Synced && !lastNode(w) {
		next := a.o.Plan(w)
		here := func(e vip.Egress) bool { return !e.Via.IsValid() }
		p.Egress, p.EgressPending = slices.DeleteFunc(slices.Clone(next.Egress), here), next.EgressPending
	}
	return p
}
