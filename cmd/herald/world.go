package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/pkg/vip"
)

// A clusterView is an observer's World, which is no node, and the nodes' rules.
type clusterView struct {
	// rules are those for Services: by the first live node's options, with svc_enable if any, or defaults with
	// svc_election. ControlPlane is nil without cp_enable anywhere.
	rules plan.Rules
	// controlPlane are those for the control plane's VIP, by the first live node with cp_enable.
	controlPlane plan.Rules
	world        vip.World
	snapshot     kube.Snapshot // that they are of
	view         statusView    // likewise
}

// observe returns what s shows of the cluster. pools may be nil.
func observe(s kube.Snapshot, pools *vip.PoolSource, now time.Time) *clusterView {
	v := newStatusView(s, now)
	w := vip.World{Now: now, Synced: true, Services: s.Services, Nodes: s.Nodes, Claims: make(map[vip.Key]vip.Claim)}
	options := v.options()
	var controlPlane *vip.NodeOptions
	alive := make(map[string]bool)
	w.Members = v.members()
	for _, m := range w.Members {
		if !m.Alive {
			continue
		}
		alive[m.Name] = true
		if o := m.Info.Options; controlPlane == nil && o != nil && len(o.ControlPlane) > 0 {
			controlPlane = o
		}
	}
	for k, c := range v.claims {
		c.Valid = c.Valid && (c.Foreign || alive[c.Holder])
		w.Claims[k] = c
	}
	r, cp := rulesOf(options, v.announcers), plan.Rules{}
	if controlPlane != nil {
		cp = rulesOf(controlPlane, v.announcers)
		cp.Enabled = false
		cp.ControlPlane = &plan.ControlPlane{
			Addresses: controlPlane.ControlPlane, Interface: config.Auto, Lease: v.controlPlaneLease(),
		}
		r.ControlPlane = cp.ControlPlane
	}
	if pools != nil && !options.Pools.IsZero() {
		parsed, _ := pool.Parse(nil, pools.Data)
		w.Pools, w.PoolPolicy = pools, parsed
		r.Allocation = &plan.Allocation{Lease: vip.Key{Namespace: v.announcers, Name: poolsLeaseName},
			Provider: providerLease}
	}
	return &clusterView{r, cp, w, s, v}
}

// rulesOf returns the rules of nodes with these options and lease namespace.
func rulesOf(o *vip.NodeOptions, announcers string) plan.Rules {
	r := plan.Rules{
		Enabled: o.Services, ARP: o.ARP, RoutingTable: o.RoutingTable, CommonOptions: o.CommonOptions,
		Announcer: announcers, IPMode: vip.ModeVIP,
	}
	if o.BGP {
		r.BGP = &plan.BGP{}
	}
	return r
}

// explainNode is plan.ExplainNode, by controlPlane for that VIP.
func (x *clusterView) explainNode(node string) plan.NodeExplanation {
	e, _ := plan.ExplainNode(x.rules, x.world, node)
	isControlPlane := func(s plan.ServiceSuitability) bool { return s.Service == plan.ControlPlaneKey }
	// with svc_enable=false, so that no other Service is in it
	cp, _ := plan.ExplainNode(x.controlPlane, x.world, node)
	// it has no namespace, so it is the first
	e.Services = append(cp.Services, slices.DeleteFunc(e.Services, isControlPlane)...)
	return e
}

// publishedPools is the ConfigMap of pools on the first node lease, or zero.
func publishedPools(s kube.Snapshot) vip.Key {
	for _, n := range nodeLeases(s) {
		if n.Info.Options != nil && !n.Info.Options.Pools.IsZero() && !n.Fenced {
			return n.Info.Options.Pools
		}
	}
	return vip.Key{}
}

// onlyOn returns texts of what only the node may carry, and why.
func onlyOn(s kube.Snapshot, pools *vip.PoolSource, node string) (all []string) {
	c := observe(s, pools, s.At)
	for _, x := range c.explainNode(node).Services {
		if !x.Carries || x.Others > 0 {
			continue
		}
		name, r := x.Service.String(), c.rules
		if x.Service == plan.ControlPlaneKey {
			name, r = "the control plane's VIP", c.controlPlane
		}
		all = append(all, name+whyNoOther(r, c.world, x.Service, node))
	}
	return all
}

// whyNoOther returns in brackets why other nodes may not carry a Service, equal reasons together, or "".
func whyNoOther(r plan.Rules, w vip.World, service vip.Key, node string) string {
	e, _ := plan.Explain(r, w, service)
	nodes := make(map[string][]string)
	var reasons []string
	for _, n := range e.Nodes {
		if n.Node == node || n.Able {
			continue
		}
		if nodes[n.Why] == nil {
			reasons = append(reasons, n.Why)
		}
		nodes[n.Why] = append(nodes[n.Why], n.Node)
	}
	if len(reasons) == 0 {
		return ""
	}
	slices.SortStableFunc(reasons, func(a, b string) int { return cmp.Compare(len(nodes[b]), len(nodes[a])) })
	for i, why := range reasons {
		reasons[i] = abbreviate(nodes[why]) + ": " + why
	}
	return " (" + strings.Join(reasons, "; ") + ")"
}
