package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/agent"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/pkg/serve"
	"github.com/heraldvip/herald/pkg/vip"
)

// How much the page shows at most.
const (
	maxPageProblems = 50
	maxPageServices = 300
	maxPageMoves    = 200
)

func (n *node) overview() serve.View {
	v := serve.View{Node: n.cfg.Node.Name, Version: currentVersion(), Now: time.Now().Truncate(time.Second)}
	pass := n.agent.Last()
	if pass == nil {
		v.Problems = []serve.Problem{{Subject: "This Herald", Message: "nothing is known yet: the caches of the API " +
			"server are not filled, or the node lease is not held"}}
		return v
	}
	fillOverview(&v, pass, serviceMoves(n.leases.Moves(), pass.World.Services))
	return v
}

// fillOverview fills v with a pass, and the moves, the oldest first.
func fillOverview(v *serve.View, pass *agent.Pass, moves []vip.Move) {
	w := &pass.World
	services := make(map[vip.Key]*vip.Service, len(w.Services))
	for i := range w.Services {
		services[w.Services[i].Key] = &w.Services[i]
	}
	v.Problems = nodeProblems(w)
	ofServices := eventProblems(pass, services)
	all := len(v.Problems) + len(ofServices)
	v.Problems = append(v.Problems,
		vip.Share(ofServices, max(0, maxPageProblems-len(v.Problems)),
			func(x serve.Problem) string { return namespaceOf(x.Subject) })...)
	v.Problems = v.Problems[:min(len(v.Problems), maxPageProblems)]
	v.MoreProblems = all - len(v.Problems)
	owned, routed := make(map[string]int), make(map[netip.Prefix]bool, len(pass.Plan.Routes))
	for _, r := range pass.Plan.Routes {
		routed[r.Prefix] = true
	}
	for i := range pass.Plan.Verdicts {
		verdict := &pass.Plan.Verdicts[i]
		v.Services = append(v.Services, overviewService(verdict, services[verdict.Service], w.Claims[verdict.Lease],
			routed))
		if verdict.Owner != "" {
			owned[verdict.Owner]++
		}
	}
	v.ServiceCount = len(v.Services)
	v.Services = worstServices(v.Services)
	v.MoreServices = v.ServiceCount - len(v.Services)
	labelCounts := plan.ExclusionLabelCounts(w)
	for i := range w.Members {
		state, class := memberState(w, &w.Members[i], labelCounts)
		v.Nodes = append(v.Nodes, serve.NodeRow{Node: w.Members[i].Name, Services: owned[w.Members[i].Name], State: state,
			Class: class})
	}
	v.Pools = overviewPools(w)
	moves = slices.Clone(moves)
	slices.Reverse(moves)
	for _, m := range vip.Share(moves, maxPageMoves, func(m vip.Move) string { return m.Service.Namespace }) {
		v.Moves = append(v.Moves, overviewMove(m))
	}
}

// worstServices returns up to maxPageServices rows, bad ones first, then warnings, equally many of each namespace.
func worstServices(all []serve.ServiceRow) (rows []serve.ServiceRow) {
	for _, class := range []string{"bad", "warn", ""} {
		ofClass := slices.DeleteFunc(slices.Clone(all), func(x serve.ServiceRow) bool { return x.Class != class })
		rows = append(rows,
			vip.Share(ofClass, maxPageServices-len(rows), func(x serve.ServiceRow) string { return namespaceOf(x.Service) })...)
	}
	return rows
}

// namespaceOf returns the namespace of namespace/name.
func namespaceOf(subject string) string {
	namespace, _, _ := strings.Cut(subject, "/")
	return namespace
}

// overviewService makes a Service's row; s is nil for the control plane.
func overviewService(v *vip.Verdict, s *vip.Service, claim vip.Claim,
	routed map[netip.Prefix]bool) serve.ServiceRow {
	a := answerAbout(s, v)
	x := serve.ServiceRow{Service: v.Service.String(), VIPs: joinAddresses(v.Addresses), Owner: dash(v.Owner),
		Reason: string(a.Reason), Message: a.Message, Class: string(a.Level)}
	if s != nil && len(v.Addresses) == 0 {
		x.VIPs = joinAddresses(s.StatusVIPs())
	}
	if claim.Valid && claim.Holder == v.Owner {
		x.Since = claim.AcquiredAt
	}
	var how []string
	if v.AnnouncedHere {
		how = append(how, "ARP/NDP here")
	}
	if slices.ContainsFunc(v.Addresses, func(a netip.Addr) bool { return routed[netip.PrefixFrom(a, a.BitLen())] }) {
		how = append(how, "routes here")
	}
	x.How = dash(strings.Join(how, ", "))
	return x
}

// answerAbout returns what becomes of a Service, nil for the control plane.
func answerAbout(s *vip.Service, v *vip.Verdict) plan.Answer {
	if s == nil {
		return plan.NewAnswer(v.Service, v.Reason, v.Message)
	}
	return plan.AnswerAbout(s, v.Reason, v.Message)
}

// eventProblems returns faults of Services: the Plan's Warnings, else verdicts.
func eventProblems(pass *agent.Pass, services map[vip.Key]*vip.Service) (all []serve.Problem) {
	told := make(map[vip.Key]bool)
	for _, e := range pass.Plan.Events {
		if e.Warning {
			told[e.Service] = true
			all = append(all, serve.Problem{Subject: e.Service.String(), Message: string(e.Reason) + ": " + e.Message,
				Advice: plan.Advice(e.Service, e.Reason)})
		}
	}
	for i := range pass.Plan.Verdicts {
		v := &pass.Plan.Verdicts[i]
		if a := answerAbout(services[v.Service], v); a.Level != plan.Fine && a.Reason != vip.VIPClaiming &&
			a.Reason != vip.DHCPPending && !told[v.Service] {
			all = append(all, serve.Problem{Subject: v.Service.String(), Message: a.String(), Advice: a.Advice})
		}
	}
	for _, p := range pass.World.PoolProblems {
		all = append(all, serve.Problem{Subject: "The ConfigMap of pools", Message: p.String(), Advice: "correct the " +
			"key, and try it by herald pools check FILE"})
	}
	return all
}

func nodeProblems(w *vip.World) (all []serve.Problem) {
	if !w.Tenure.RenewalLateSince.IsZero() {
		all = append(all, serve.Problem{Subject: "Node " + w.Self, Message: "it has not been able to renew its node " +
			"lease since " + w.Tenure.RenewalLateSince.UTC().Format(time.TimeOnly) + " UTC: what is shown may be old",
			Advice: "look whether the API server answers, and whether this node reaches it"})
	}
	labelCounts := plan.ExclusionLabelCounts(w)
	for i := range w.Members {
		if state, class := memberState(w, &w.Members[i], labelCounts); class != "" {
			all = append(all, serve.Problem{Subject: "Node " + w.Members[i].Name, Message: state, Advice: "herald explain " +
				"--node " + w.Members[i].Name})
		}
	}
	return all
}

// memberState returns a node's state in words, and its row's class; labelCounts is plan.ExclusionLabelCounts.
func memberState(w *vip.World, m *vip.Member, labelCounts bool) (state, class string) {
	n := nodeStatus{labelCounts: labelCounts}
	n.Name, n.Info, n.Duration = m.Name, m.Info, time.Hour
	n.RenewedAt = w.Now
	names := plan.NodeNames(w)
	for _, o := range w.Nodes {
		if names.Of(o.Name) == m.Name {
			n.node = o
		}
	}
	switch state = n.state(w.Now); {
	case !m.Alive && m.Name == w.Self:
		return "its node lease is not held: it may carry no VIP", "bad"
	case !m.Alive || m.Gone:
		return m.WhyNotAlive(), "bad"
	case n.barred(w.Now) != "":
		return state, "bad"
	case !strings.HasPrefix(state, "ok") || strings.HasPrefix(state, "ok, but"):
		return state, "warn"
	}
	return state, ""
}

func overviewPools(w *vip.World) (rows []serve.PoolRow) {
	if w.Pools == nil || w.Pools.Gone {
		return nil
	}
	pools, _ := pool.Parse(nil, w.Pools.Data)
	used := usedAddresses(w.Services)
	for _, p := range pools.All() {
		for _, f := range familiesOf(p) {
			n := usedOf(p, f, used)
			row := serve.PoolRow{Pool: p.Name, Family: f.String(), Used: fmt.Sprint(n), Size: sizeOf(p, f)}
			switch size := p.Size(f); {
			case size > 0 && float64(n) >= size:
				row.Class = "bad"
			case size > 0 && float64(n) >= 0.9*size:
				row.Class = "warn"
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func overviewMove(m vip.Move) serve.MoveRow {
	x := serve.MoveRow{At: m.At, Service: m.Service.String(), VIPs: joinAddresses(m.Addresses),
		From: cmp.Or(m.From, "nobody"), To: cmp.Or(m.To, "nobody"), Cause: m.Cause}
	if m.Outage != nil {
		x.Outage = "unanswered for " + m.Outage.Round(10*time.Millisecond).String()
		if *m.Outage == 0 {
			x.Outage = "without a gap"
		}
	}
	switch {
	case m.To == "":
		x.Class = "bad"
	case m.Outage != nil && *m.Outage > time.Second:
		x.Class = "warn"
	}
	return x
}
