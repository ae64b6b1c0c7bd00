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

// applyEgress hands over what the plan wants of what pods send. A packet that nftables marks while no rule routes it
// would leave with the pod's own address, so rules come before marks and go after them. Nothing is routed of a family
// that nftables refused the last time, but for what it may still mark. Nothing changes while the pods are being
// listed for the first time.
func (a *Agent) applyEgress(ctx context.Context, p vip.Plan, failed func(string, error)) {
	if a.o.Egress == nil || p.EgressPending {
		return
	}
	e := &a.egress
	routes := slices.Concat(e.left, e.marked) // a pod of several is routed by the last
	for _, x := range p.Egress {
		if !e.refused[x.VIP.Is4()] {
			routes = append(routes, x)
		}
	}
	_, err := a.o.EgressRoutes.Set(ctx, routes)
	failed("routes of egress", err)
	e.marked, err = a.o.Egress.Set(ctx, p.Egress)
	failed("egress", err)
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
	_, err = a.o.EgressRoutes.Set(ctx, slices.Concat(e.left, e.marked))
	failed("routes of egress", err)
}

// finalPlan is what this process leaves in the kernel when it ends: what pods of this node send goes on to other
// nodes that own the VIPs, until the next process takes it over, or the kernel forgets it (pkg/nft). Nothing if no
// other node may carry VIPs.
func (a *Agent) finalPlan() vip.Plan {
	w := a.observe()
	if a.o.Egress == nil || !w.Synced || lastNode(w) {
		return vip.Plan{}
	}
	p := a.o.Plan(w)
	here := func(e vip.Egress) bool { return !e.Via.IsValid() }
	return vip.Plan{Egress: slices.DeleteFunc(slices.Clone(p.Egress), here), EgressPending: p.EgressPending}
}
