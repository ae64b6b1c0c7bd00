package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/pkg/vip"
)

// worldOf returns the World as an observer sees it that is no node, and the rules by which the nodes plan: what
// the first node that is alive, with svc_enable if any has it, has published of its options, or the defaults with svc_election (decision 0107). The VIP of
// the control plane is by those of the first that has cp_enable, but announced as Services are. pools may be nil.
func worldOf(s kube.Snapshot, pools *vip.PoolSource, now time.Time) (plan.Rules, vip.World) {
	v := newStatusView(s, now)
	w := vip.World{Now: now, Synced: true, Services: s.Services, Nodes: s.Nodes, Claims: make(map[vip.Key]vip.Claim)}
	var options, controlPlane *vip.NodeOptions
	alive := make(map[string]int64)
	w.Members = v.members()
	for _, m := range w.Members {
		if !m.Alive {
			continue
		}
		alive[m.Name] = m.Epoch
		o := m.Info.Options
		if options == nil || o != nil && o.Services && !options.Services {
			options = o
		}
		if controlPlane == nil && o != nil && len(o.ControlPlane) > 0 {
			controlPlane = o
		}
	}
	for k, l := range v.leases {
		if _, isNode := lease.ParseNodeLease(l); !isNode {
			w.Claims[k] = lease.ParseClaim(l, func(name string) (int64, bool) { epoch, ok := alive[name]; return epoch, ok }, now)
		}
	}
	if options == nil {
		options = &vip.NodeOptions{Services: true, ARP: true, Election: true}
	}
	r := rulesOf(options, v.announcers)
	if controlPlane != nil {
		r.ControlPlane = &plan.ControlPlane{Addresses: controlPlane.ControlPlane, Lease: keyOf(controlPlane.ControlPlaneLease), Interface: config.Auto}
	}
	if pools != nil && options.Pools != "" {
		parsed, _ := pool.Parse(nil, pools.Data)
		w.Pools, w.PoolPolicy = pools, parsed
		r.Allocation = &plan.Allocation{Lease: vip.Key{Namespace: v.announcers, Name: poolsLeaseName}, Provider: providerLease}
	}
	return r, w
}

// rulesOf returns the rules of nodes with these options, whose node leases are in a namespace.
func rulesOf(o *vip.NodeOptions, announcers string) plan.Rules {
	r := plan.Rules{
		Enabled: o.Services, ARP: o.ARP, RoutingTable: o.RoutingTable, Election: o.Election, Class: o.Class, ClassOnly: o.ClassOnly, ClassStrict: o.ClassStrict,
		Announcer: announcers, IPMode: vip.ModeVIP, Lease: keyOf(o.Lease),
	}
	if o.BGP {
		r.BGP = &plan.BGP{}
	}
	return r
}

// rulesOn returns r with the class options of that node, which may differ from those of others; r itself if it is not alive, has published none, or
// has no svc_enable.
func rulesOn(r plan.Rules, w vip.World, node string) plan.Rules {
	i := slices.IndexFunc(w.Members, func(m vip.Member) bool { return m.Name == node && m.Alive })
	if i < 0 {
		return r
	}
	if o := w.Members[i].Info.Options; o != nil && o.Services {
		r.Class, r.ClassOnly, r.ClassStrict = o.Class, o.ClassOnly, o.ClassStrict
	}
	return r
}

// explainService is plan.Explain by the class options of a node that serves the Service's class; by r if none does.
func explainService(r plan.Rules, w vip.World, service vip.Key) plan.Explanation {
	type classes struct {
		class        string
		only, strict bool
	}
	of := func(r plan.Rules) classes { return classes{r.Class, r.ClassOnly, r.ClassStrict} }
	tried := map[classes]bool{of(r): true}
	first, _ := plan.Explain(r, w, service)
	e := first
	for _, m := range w.Members {
		if e.Reason != vip.OtherClass {
			return e
		}
		if other := rulesOn(r, w, m.Name); !tried[of(other)] {
			tried[of(other)] = true
			e, _ = plan.Explain(other, w, service)
		}
	}
	if e.Reason == vip.OtherClass {
		return first
	}
	return e
}

// keyOf parses namespace/name; zero if text is not that.
func keyOf(text string) vip.Key {
	namespace, name, ok := strings.Cut(text, "/")
	if !ok {
		return vip.Key{}
	}
	return vip.Key{Namespace: namespace, Name: name}
}

// publishedPools is the ConfigMap of pools that the nodes use, by the first node lease that names one; zero if none does.
func publishedPools(s kube.Snapshot) vip.Key {
	for _, n := range nodeLeases(s) {
		if n.Info.Options != nil && n.Info.Options.Pools != "" && !n.Fenced {
			return keyOf(n.Info.Options.Pools)
		}
	}
	return vip.Key{}
}

// onlyOn returns the Services that the node carries and no other node may, and the control plane's VIP if that is so of it, and why, each as a text.
func onlyOn(s kube.Snapshot, node string, now time.Time) (all []string) {
	r, w := worldOf(s, nil, now)
	r = rulesOn(r, w, node)
	e, _ := plan.ExplainNode(r, w, node)
	for _, x := range e.Services {
		if !x.Carries || x.Others > 0 {
			continue
		}
		name := x.Service.String()
		if x.Service == plan.ControlPlaneKey {
			name = "the control plane's VIP"
		}
		all = append(all, name+whyNoOther(r, w, x.Service, node))
	}
	return all
}

// whyNoOther returns in brackets why the other nodes may not carry a Service, the same reasons together; "" if there
// are no other nodes.
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
