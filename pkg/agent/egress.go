package agent

import (
	"context"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// applyEgress hands over what the plan wants of what pods send. A packet that nftables marks while no rule routes it would leave with the pod's own
// address, so rules come before marks and go after them. Nothing changes while the pods are being listed for the first time.
func (a *Agent) applyEgress(ctx context.Context, p vip.Plan, failed func(string, error)) {
	if a.o.Egress == nil || p.EgressPending {
		return
	}
	_, err := a.o.EgressRoutes.Set(ctx, slices.Concat(a.egress, p.Egress)) // a pod of both is routed by the last
	failed("routes of egress", err)
	a.egress, err = a.o.Egress.Set(ctx, p.Egress)
	failed("egress", err)
	_, err = a.o.EgressRoutes.Set(ctx, a.egress)
	failed("routes of egress", err)
}

// finalPlan is what this process leaves in the kernel when it ends: what pods of this node send goes on to other nodes that own the VIPs, until the next process
// takes it over, or the kernel forgets it (pkg/nft). Nothing if no other node may carry VIPs.
func (a *Agent) finalPlan() vip.Plan {
	w := a.observe()
	if a.o.Egress == nil || !w.Synced || lastNode(w) {
		return vip.Plan{}
	}
	p := a.o.Plan(w)
	here := func(e vip.Egress) bool { return !e.Via.IsValid() }
	return vip.Plan{Egress: slices.DeleteFunc(slices.Clone(p.Egress), here), EgressPending: p.EgressPending}
}
