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
	fillOverview(&v, pass, serviceMoves(n.leases.Moves(), pass.World.Services, commonOptions(n.cfg),
		n.cfg.ControlPlane.Lease))
	return v
}

// fillOverview fills v with a pass, and the moves, the oldest first.
func fillOverview(v *serve.View, pass *agent.Pass, moves []vip.Move) {
	w := &pass.World
	services := make(map[vip.Key]*vip.Service, len(w.Services))
	for i := range w.Services {
		services[w.Services[i].Key] = &w.Services[i]
	}
	v.Nodes = nodeRows(w)
	v.Problems = nodeProblems(w, v.Nodes)
	ofServices := eventProblems(pass, services)
	all := len(v.Problems) + len(ofServices)
	v.Problems = append(v.Problems,
		vip.Share(ofServices, max(0, maxPageProblems-len(v.Problems)),
			func(x serve.Problem) string { return namespaceOf(x.Subject) })...)
	v.Problems = v.Problems[:min(len(v.Problems), maxPageProblems)]
	v.MoreProblems = all - len(v.Problems)
	owned, ways := make(map[string]int), make(map[netip.Addr][]string)
	for _, a := range pass.Plan.Announcements {
		if !a.ListenOnly {
			ways[a.Addr] = []string{"ARP/NDP here"}
		}
	}
	for _, r := range pass.Plan.Routes {
		if r.Prefix.IsSingleIP() {
			ways[r.Prefix.Addr()] = append(ways[r.Prefix.Addr()], "routes here")
		}
	}
	for i := range pass.Plan.Verdicts {
		verdict := &pass.Plan.Verdicts[i]
		v.Services = append(v.Services, overviewService(verdict, services[verdict.Service], w.Claims[verdict.Lease], ways))
		if verdict.Owner != "" {
			owned[verdict.Owner]++
		}
	}
	v.ServiceCount = len(v.Services)
	v.Services = worstServices(v.Services)
	v.MoreServices = v.ServiceCount - len(v.Services)
	for i := range v.Nodes {
		v.Nodes[i].Services = owned[v.Nodes[i].Node]
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

func namespaceOf(subject string) string {
	namespace, _, _ := strings.Cut(subject, "/")
	return namespace
}

// overviewService makes a Service's row; s is nil for the control plane.
func overviewService(v *vip.Verdict, s *vip.Service, claim vip.Claim, ways map[netip.Addr][]string) serve.ServiceRow {
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
	for _, a := range v.Addresses {
		how = vip.AppendUnique(how, ways[a]...)
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

func nodeProblems(w *vip.World, rows []serve.NodeRow) (all []serve.Problem) {
	if !w.Tenure.RenewalLateSince.IsZero() {
		all = append(all, serve.Problem{Subject: "Node " + w.Self, Message: "it has not been able to renew its node " +
			"lease since " + w.Tenure.RenewalLateSince.UTC().Format(time.TimeOnly) + " UTC: what is shown may be old",
			Advice: "look whether the API server answers, and whether this node reaches it"})
	}
	for _, n := range rows {
		if n.Class != string(plan.Fine) {
			all = append(all, serve.Problem{Subject: "Node " + n.Node, Message: n.State, Advice: "herald explain --node " +
				n.Node})
		}
	}
	return all
}

// nodeRows returns the nodes' rows, without their Services.
func nodeRows(w *vip.World) (rows []serve.NodeRow) {
	exclusions := plan.Exclusions(w)
	for i := range w.Members {
		state, level := memberState(w, &w.Members[i], exclusions)
		rows = append(rows, serve.NodeRow{Node: w.Members[i].Name, State: state, Class: string(level)})
	}
	return rows
}

// memberState returns a node's state in words, and how urgent it is; exclusions are plan.Exclusions.
func memberState(w *vip.World, m *vip.Member, exclusions map[string]plan.Exclusion) (state string, level plan.Level) {
	switch {
	case !m.Alive && m.Name == w.Self:
		return "its node lease is not held: it may carry no VIP", plan.Bad
	case !m.Alive || m.Gone:
		return m.WhyNotAlive(), plan.Bad
	}
	n := nodeStatus{exclusion: exclusions[m.Name]}
	n.Name, n.Info, n.Duration = m.Name, m.Info, time.Hour
	n.RenewedAt = w.Now
	names := plan.NodeNames(w)
	for _, o := range w.Nodes {
		if names.Of(o.Name) == m.Name {
			n.node = o
		}
	}
	return n.state(w.Now)
}

func overviewPools(w *vip.World) (rows []serve.PoolRow) {
	if w.Pools == nil || w.Pools.Gone {
		return nil
	}
	pools, _ := pool.Parse(nil, w.Pools.Data)
	usage := usageOf(plan.Rules{}, w)
	for _, p := range pools.All() {
		for _, f := range familiesOf(p) {
			n, free := usage(p, f)
			row := serve.PoolRow{Pool: p.Name, Family: f.String(), Used: fmt.Sprint(n), Size: sizeOf(p, f)}
			switch size := p.Size(f); {
			case size > 0 && free <= 0:
				row.Class = "bad"
			case size > 0 && free <= size/10:
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
