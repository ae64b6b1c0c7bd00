package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/vip"
)

func explainCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "explain [NAMESPACE/]SERVICE", Short: "Explain where a Service's VIP is, and why, or why it has none",
		Long: "Show where the addresses of a Service come from, which nodes may carry them and why others may not, which\n" +
			"node does, since when and why, its endpoints, Events, and what to do. With --node: the same for a node.",
		Args: cobra.MaximumNArgs(1),
	}
	flags := addAccessFlags(c, "json", "yaml")
	node := c.Flags().String("node", "", "Explain a node in place of a Service")
	_ = c.RegisterFlagCompletionFunc("node", completeNodes(flags)) // fails only for a flag that does not exist
	c.RunE = func(c *cobra.Command, args []string) error {
		k, err := flags.service(args)
		switch {
		case err != nil:
			return err
		case (k.Name == "") == (*node == ""):
			return config.NewError(errors.New("name a Service as [NAMESPACE/]NAME, or a node by --node"))
		}
		cfg, err := flags.connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), snapshotTimeout)
		defer cancel()
		x, err := takeClusterView(ctx, cfg, k.Namespace)
		if err != nil {
			return err
		}
		if *node != "" {
			return x.writeNode(c.OutOrStdout(), strings.ToLower(*node), flags.format)
		}
		e, err := x.service(k)
		if err != nil {
			return err
		}
		return e.write(c.OutOrStdout(), flags.format, x.view.now)
	}
	return c
}

// takeClusterView reads all namespaces, since Services elsewhere may have an address asked for, or only namespace for
// those who may read no more. snapshot.Missing names what may not be read.
func takeClusterView(ctx context.Context, cfg *rest.Config, namespace string) (*clusterView, error) {
	s, err := kube.TakeAllowedSnapshot(ctx, cfg, namespace)
	if err != nil {
		return nil, err
	}
	if err := s.TakeEndpoints(ctx, cfg, namespace); err != nil {
		return nil, err
	}
	pools, err := kube.TakePools(ctx, cfg, publishedPools(s))
	if err != nil {
		s.Missing = append(s.Missing, "the ConfigMap of pools: "+err.Error())
	}
	return observe(s, pools, s.At), nil
}

// A serviceExplanation is what herald explain shows of a Service.
type serviceExplanation struct {
	plan.Explanation
	Problem string        `json:"problem,omitempty"` // what is wrong, as herald status has it
	Events  []eventStatus `json:"events,omitempty"`  // the latest, oldest first
	Missing []string      `json:"missing,omitempty"`

	service vip.Service
}

type eventStatus struct {
	At      time.Time  `json:"at"`
	Node    string     `json:"node,omitempty"` // that wrote it
	Reason  vip.Reason `json:"reason"`
	Warning bool       `json:"warning,omitempty"`
	Message string     `json:"message"`
}

const maxEvents = 8

func (x *clusterView) service(k vip.Key) (e serviceExplanation, err error) {
	i := slices.IndexFunc(x.snapshot.Services, func(s vip.Service) bool { return s.Key == k })
	if i < 0 {
		return e, checkExists(x.snapshot.Services, k)
	}
	s := &x.snapshot.Services[i]
	e.service, e.Missing = *s, x.snapshot.Missing
	e.Explanation, _ = plan.Explain(x.rules, x.world, k)
	if owner, since := x.view.owner(s); e.Owner == "" {
		e.Owner, e.Since = owner, since
	}
	if x.view.unread { // then the plan knows no node
		a := x.view.answer(s, e.Owner, e.Since)
		e.Reason, e.Message, e.Advice = a.Reason, a.Message, a.Advice
	}
	// of which the plan says more
	if problem, reason, advice := x.view.problem(s, e.Owner, e.Since); reason != vip.VIPClaiming {
		e.Problem = problem
		if problem != "" {
			e.Reason, e.Advice = cmp.Or(reason, e.Reason), advice
		}
	}
	for _, v := range x.snapshot.Events {
		if v.UID == s.UID {
			e.Events = append(e.Events, eventStatus{v.At, v.Node, v.Reason, v.Warning, v.Message})
		}
	}
	e.Events = e.Events[max(0, len(e.Events)-maxEvents):]
	return e, nil
}

func (x *clusterView) writeNode(w io.Writer, node, format string) error {
	n, unknown := x.view.nodeNamed(node)
	state := noHerald
	switch {
	case unknown == nil:
		state, _ = n.state(x.view.now)
	case !slices.Contains(x.view.withoutHerald, n.Name):
		return unknown
	}
	e := x.explainNode(n.Name)
	e.Node = n.Name
	if format != "" {
		return encode(w, format, struct {
			plan.NodeExplanation
			State string `json:"state"`
		}{e, state})
	}
	var rows []string
	owned, could := 0, 0
	for _, s := range e.Services {
		able, why := "no", s.Why
		switch {
		case s.Carries:
			able = "carries it"
			owned++
			if s.Others == 0 {
				why = strings.TrimPrefix(why+"; NO OTHER NODE MAY CARRY IT: a stop or a drain of the node takes it down", "; ")
			}
		case s.Able:
			able = "yes"
			could++
		}
		name := s.Service.String()
		if s.Service == plan.ControlPlaneKey {
			name = controlPlaneName
		}
		rows = append(rows, row(name, joinAddresses(s.Addresses), dash(s.Owner), able, why))
	}
	fmt.Fprintln(w, row("Node "+n.Name+": "+state))
	if !strings.Contains(state, e.Why) {
		fmt.Fprintln(w, row("VIPs of Services: "+e.Why))
	}
	fmt.Fprintf(w, "Services: it carries %d, and could carry %d more.\n\n", owned, could)
	return writeTable(w, "SERVICE\tVIP\tOWNER\tMAY IT\tWHY", rows)
}

func (e *serviceExplanation) write(w io.Writer, format string, now time.Time) error {
	if format != "" {
		return encode(w, format, e)
	}
	lines := e.lines(now)
	for i, l := range lines {
		lines[i] = row(l)
	}
	var events []string
	for _, v := range e.Events {
		kind := "Normal"
		if v.Warning {
			kind = "Warning"
		}
		events = append(events, row(age(v.At, now), dash(v.Node), kind, string(v.Reason), v.Message))
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n")+"\n")
	return errors.Join(err,
		writeTable(w, "\nADDRESS\tFROM\tIN ITS STATUS", e.addressRows()),
		writeTable(w, "\nNODE\tMAY CARRY IT\tWHY", e.nodeRows()),
		writeTable(w, "\nAGE\tBY\tTYPE\tREASON\tMESSAGE", events),
		writeTable(w, "\nMAY NOT BE READ", e.Missing))
}

func (e *serviceExplanation) lines(now time.Time) []string {
	lines := []string{e.Service.String() + ": " + e.headline()}
	if e.Advice != "" {
		lines = append(lines, "What to do: "+e.Advice)
	}
	if e.Owner != "" {
		owner := "Owner: " + e.Owner
		if !e.Since.IsZero() {
			owner += fmt.Sprintf(", for %s (since %s)", age(e.Since, now), e.Since.UTC().Format(time.RFC3339))
		}
		if e.MovedFrom != "" && e.MovedFrom != e.Owner {
			owner += "; before that " + e.MovedFrom
		}
		lines = append(lines, owner)
		if e.MoveCause != "" {
			lines = append(lines, "It moved since "+e.MoveCause)
		}
	}
	if e.Lease != "" {
		lines = append(lines, "In the table herald-table: "+e.Lease)
	}
	if len(e.SharesWith) > 0 {
		var names []string
		for _, k := range e.SharesWith {
			names = append(names, k.String())
		}
		lines = append(lines, "Shares its address or lease with: "+abbreviate(names))
	}
	return append(lines, e.endpointsLine(), "ipMode: "+e.ipMode())
}

// headline says in one sentence how things are.
func (e *serviceExplanation) headline() string {
	switch {
	case e.Problem != "":
		return e.Problem
	case e.Reason == vip.VIPElsewhere && e.Owner != "":
		return "announced by node " + e.Owner
	}
	return fmt.Sprintf("%s: %s", e.Reason, e.Message)
}

func (e *serviceExplanation) endpointsLine() string {
	var parts []string
	if len(e.Endpoints.Ready) > 0 {
		parts = append(parts, "ready on "+abbreviate(append([]string{}, e.Endpoints.Ready...)))
	}
	if len(e.Endpoints.Terminating) > 0 {
		parts = append(parts, "terminating on "+abbreviate(append([]string{}, e.Endpoints.Terminating...)))
	}
	if e.Endpoints.WithoutNode {
		parts = append(parts, "one or more that name no node")
	}
	text := "Endpoints: " + cmp.Or(strings.Join(parts, "; "), "none that is ready")
	if e.Local {
		text += " (externalTrafficPolicy Local: only a node with one may carry it)"
	}
	return text
}

// ipMode says what kube-proxy makes of the address.
func (e *serviceExplanation) ipMode() string {
	var texts []string
	for _, m := range e.IPModes {
		switch m {
		case vip.ModeVIP:
			texts = append(texts, "VIP (kube-proxy serves the address on every node: what Pods and nodes send to it leaves "+
				"no node)")
		case vip.ModeProxy:
			texts = append(texts, "Proxy (kube-proxy leaves the address alone: what Pods and nodes send to it goes by way "+
				"of its owner)")
		default:
			texts = append(texts, "not said (the API server is older than 1.29: kube-proxy serves the address on every node)")
		}
	}
	if len(texts) == 0 {
		return "none yet: its status has no address"
	}
	return strings.Join(texts, "; ")
}

func (e *serviceExplanation) addressRows() (rows []string) {
	for _, a := range e.Addresses {
		shown := "no"
		switch {
		case a.InStatus:
			shown = "yes"
		case a.Refused:
			shown = "no: it may not have it"
		}
		rows = append(rows, row(a.Address.String(), a.Origin, shown))
	}
	return rows
}

func (e *serviceExplanation) nodeRows() (rows []string) {
	for _, n := range e.Nodes {
		able := "no"
		switch {
		case n.Owner && n.Able:
			able = "owner"
		case n.Owner:
			able = "owner, but it may not"
		case n.Able:
			able = "yes"
		}
		rows = append(rows, row(n.Node, able, n.Why))
	}
	return rows
}

func joinAddresses(all []netip.Addr) string { return dash(vip.JoinAddrs(all, ", ")) }
