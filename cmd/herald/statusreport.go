package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/vip"
)

// A statusReport is what herald status shows; its JSON is for programs.
type statusReport struct {
	Services    []serviceStatus   `json:"services"`
	DHCPLeases  []dhcpLeaseStatus `json:"dhcpLeases,omitempty"`
	Nodes       []nodeReport      `json:"nodes"`
	BGPSessions []sessionStatus   `json:"bgpSessions,omitempty"`
	Missing     []string          `json:"missing,omitempty"` // what the user may not read

	now    time.Time
	unread bool // as in statusView
	color  bool // tables show in red what is wrong
}

// A serviceStatus is a Service, or the VIP of the control plane.
type serviceStatus struct {
	Service string     `json:"service"`
	VIPs    []string   `json:"vips,omitempty"`  // in its status
	Asked   []string   `json:"asked,omitempty"` // that it names
	Owner   string     `json:"owner,omitempty"`
	Since   time.Time  `json:"since,omitzero"`
	IPModes []string   `json:"ipModes,omitempty"`
	Pool    string     `json:"pool,omitempty"`
	Source  string     `json:"source,omitempty"`  // the field that names its addresses
	Problem string     `json:"problem,omitempty"` // what is wrong
	Reason  vip.Reason `json:"reason,omitempty"`  // of the Event that says so
	Advice  string     `json:"advice,omitempty"`  // what to do about it
	Note    string     `json:"note,omitempty"`    // what is not wrong
	OffLink bool       `json:"offLink,omitempty"` // a VIP is in no network of its link
}

type dhcpLeaseStatus struct {
	Service string    `json:"service"`
	Address string    `json:"address"`
	MAC     string    `json:"mac,omitempty"`
	Server  string    `json:"server,omitempty"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
}

// A nodeReport is a node that runs Herald, or does not.
type nodeReport struct {
	Node    string    `json:"node"`
	VIPs    int       `json:"vips"` // Services whose lease it holds
	Renewed time.Time `json:"renewed,omitzero"`
	State   string    `json:"state"`
	Barred  bool      `json:"barred"` // it carries no VIP
	Herald  bool      `json:"herald"` // it has a node lease
}

type sessionStatus struct {
	Node string `json:"node"`
	vip.BGPSession
}

// newStatusReport makes the report of Services (isOf) at now; others count too: they may have addresses of these.
func newStatusReport(s kube.Snapshot, of vip.Key, now time.Time) statusReport {
	v := newStatusView(s, now)
	r := statusReport{Services: []serviceStatus{}, Nodes: []nodeReport{}, Missing: s.Missing, now: now, unread: v.unread}
	for i := range s.Services {
		if !isOf(s.Services[i].Key, of) {
			continue
		}
		r.Services = append(r.Services, v.service(&s.Services[i]))
		for _, l := range s.Services[i].DHCP.Leases {
			r.DHCPLeases = append(r.DHCPLeases,
				dhcpLeaseStatus{s.Services[i].Key.String(), fmt.Sprintf("%s/%d", l.Addr, l.Bits), l.MAC, l.Server, l.Expires})
		}
	}
	if x, ok := v.controlPlane(); ok && isOf(vip.Key{}, of) {
		r.Services = append(r.Services, x)
	}
	for _, n := range v.nodes {
		state, level := n.state(now)
		r.Nodes = append(r.Nodes, nodeReport{Node: n.Name, VIPs: v.vips[n.Name], Renewed: n.RenewedAt, State: state,
			Barred: level == plan.Bad, Herald: n.namespace == v.announcers})
		if !n.runs(now) {
			continue // nobody knows of its sessions
		}
		for _, b := range n.Info.BGPSessions {
			r.BGPSessions = append(r.BGPSessions, sessionStatus{n.Name, b})
		}
	}
	for _, n := range v.withoutHerald {
		r.Nodes = append(r.Nodes, nodeReport{Node: n, VIPs: v.vips[n], State: noHerald, Barred: true})
	}
	return r
}

// wrong reports whether an operator should mend something: a Service, a node that can't carry VIPs though it runs
// Herald or holds one, no node at all, or a BGP session.
func (r statusReport) wrong() bool {
	return !r.unread && !slices.ContainsFunc(r.Nodes, func(n nodeReport) bool { return n.Herald }) ||
		slices.ContainsFunc(r.Nodes, func(n nodeReport) bool { return n.Barred && (n.Herald || n.VIPs > 0) }) ||
		slices.ContainsFunc(r.Services, func(s serviceStatus) bool { return s.Problem != "" }) ||
		slices.ContainsFunc(r.BGPSessions, func(b sessionStatus) bool { return !b.Up() })
}

// maxWithoutHerald is how many nodes without a Herald a table names.
const maxWithoutHerald = 10

// writeTables writes tables of Services, nodes, and any DHCP leases and BGP sessions.
func (r statusReport) writeTables(w io.Writer, wide bool) error {
	services, nodes := r.serviceRows(wide), r.nodeRows()
	var dhcp, sessions []string
	for _, l := range r.DHCPLeases {
		left := "never"
		switch d := l.Expires.Sub(r.now); {
		case l.Expires.IsZero():
		case d > 0:
			left = inWords(d)
		default: // Herald does not write every renewal of a short lease
			left = "a minute"
		}
		dhcp = append(dhcp, row(l.Service, l.Address, dash(l.MAC), dash(l.Server), left))
	}
	for _, b := range r.BGPSessions {
		sessions = append(sessions, row(b.Node, b.Peer, fmt.Sprint(b.AS), fmt.Sprint(b.State), age(b.Since, r.now),
			fmt.Sprint(b.Prefixes), b.Reason))
	}
	header := "SERVICE\tVIP\tOWNER\tSINCE\tMODE\tWHAT IS WRONG"
	if wide {
		header = "SERVICE\tVIP\tASKED\tFROM\tOWNER\tSINCE\tMODE\tWHAT IS WRONG"
	}
	return errors.Join(
		writeTable(w, header, services),
		r.writeOffLink(w),
		writeTable(w, "\nREASON\tSERVICES\tWHAT TO DO", r.adviceRows()),
		writeTable(w, "\nDHCP LEASE\tADDRESS\tMAC\tSERVER\tEXPIRES IN", dhcp),
		writeTable(w, "\nNODE\tVIPS\tRENEWED\tSTATE", nodes),
		writeTable(w, "\nNODE\tPEER\tAS\tSTATE\tSINCE\tPREFIXES\tWHY", sessions),
		writeTable(w, "\nMAY NOT BE READ", r.Missing))
}

func (r statusReport) serviceRows(wide bool) (rows []string) {
	for _, s := range r.Services {
		vips := strings.Join(s.VIPs, ",")
		if len(s.VIPs) == 0 && len(s.Asked) > 0 {
			vips = "(" + strings.Join(s.Asked, "),(") + ")" // requested, not announced
		}
		cells := []string{s.Service, dash(vips)}
		if wide {
			from := s.Source
			if s.Pool != "" {
				from = "pool " + s.Pool
			}
			cells = append(cells, dash(strings.Join(s.Asked, ",")), dash(from))
		}
		cells = append(cells, dash(s.Owner), age(s.Since, r.now), dash(strings.Join(s.IPModes, ",")))
		rows = append(rows, row(cells...)+"\t"+r.wrongCell(s.Problem, s.Note))
	}
	if !slices.ContainsFunc(r.Services, func(s serviceStatus) bool { return s.Service != controlPlaneName }) {
		rows = append(rows, "(no Service of type LoadBalancer)")
	}
	return rows
}

// adviceRows returns what to do, a row for each reason, sorted.
func (r statusReport) adviceRows() (rows []string) {
	services, first := make(map[vip.Reason][]string), make(map[vip.Reason]string)
	for _, s := range r.Services {
		if s.Advice == "" {
			continue
		}
		first[s.Reason] = cmp.Or(first[s.Reason], s.Advice)
		services[s.Reason] = append(services[s.Reason], s.Service)
	}
	for _, reason := range slices.Sorted(maps.Keys(services)) {
		rows = append(rows, row(dash(string(reason)), abbreviate(services[reason]), first[reason]))
	}
	return rows
}

// wrongCell is a row's last cell: what is wrong, else a note.
func (r statusReport) wrongCell(problem, note string) string {
	if problem != "" && r.color {
		return "\x1b[31m" + row(problem) + "\x1b[0m" // ECMA-48 (SGR)
	}
	return row(cmp.Or(problem, note))
}

func (r statusReport) writeOffLink(w io.Writer) error {
	var all []string
	for _, s := range r.Services {
		if s.OffLink && s.Problem == "" {
			all = append(all, s.Service)
		}
	}
	if len(all) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(w, row("In no network of the link, so clients need a route: "+abbreviate(all)))
	return err
}

func (r statusReport) nodeRows() (rows []string) {
	without := 0
	for _, n := range r.Nodes {
		if !n.Herald {
			if without++; without > maxWithoutHerald && n.VIPs == 0 {
				continue
			}
		}
		problem, note := "", n.State
		if n.Barred {
			problem, note = n.State, ""
		}
		rows = append(rows, row(n.Node, strconv.Itoa(n.VIPs), age(n.Renewed, r.now))+"\t"+r.wrongCell(problem, note))
	}
	switch {
	case len(r.Nodes) == without:
		rows = append(rows, "(no node lease found: no Herald runs, or its namespace may not be read with this kubeconfig)")
	case without > maxWithoutHerald:
		rows = append(rows, fmt.Sprintf("(and %d more nodes without Herald)", without-maxWithoutHerald))
	}
	return rows
}

// A nodeStatus is a node lease and the Node.
type nodeStatus struct {
	// whose Name is namespace/name outside the announcers' namespace: any user can write such a Lease
	lease.NodeLease
	namespace string         // of the lease
	node      vip.Node       // zero if it is not known
	exclusion plan.Exclusion // of plan.Exclusions
}

const noHerald = "no Herald runs there"

// state describes a node in words, with its Node's name if that is another, and how urgent it is.
func (n nodeStatus) state(now time.Time) (text string, level plan.Level) {
	text, level = n.fault(now)
	if n.node.Name != "" && n.node.Name != n.Name {
		text += "; its Node is called " + n.node.Name
	}
	return text, level
}

// fault describes what is wrong with a node, or is "ok", with the label that keeps Services off; Bad is barred.
func (n nodeStatus) fault(now time.Time) (text string, level plan.Level) {
	if why := n.barred(now); why != "" {
		return why, plan.Bad
	}
	switch {
	case n.Info.DataPlaneFault != "":
		return "takes a VIP only if no other node can: " + n.Info.DataPlaneFault, plan.Warn
	case len(n.Info.Restarts) > 1:
		return fmt.Sprintf("ok, but takes a VIP only if no other node can: its Herald was killed or crashed %d times in "+
			"the last minutes", len(n.Info.Restarts)), plan.Warn
	case n.node.NotReady:
		return "ok, but takes a new VIP only if no other node can: Kubernetes does not have it as Ready, or " +
			"has its network as unavailable", plan.Warn
	case n.Info.LivenessOff != "":
		return "ok, but should another node die, its VIPs stay with it for the lease duration: this node exchanges no " +
			"heartbeats, since " + n.Info.LivenessOff, plan.Warn
	case len(n.Info.Unanswered) > 0:
		return fmt.Sprintf("ok, but nobody answers it for %s, an address of another node on a link with VIPs: is the "+
			"VLAN on all ports of the switch?", n.Info.Unanswered[0]), plan.Warn
	case len(n.Info.Suspects) > 0:
		return "ok, but it gets no heartbeats from " + strings.Join(n.Info.Suspects, ", ") +
			": is herald_peers_port open between them, UDP and TCP?", plan.Warn
	case n.exclusion.Labelled:
		return fmt.Sprintf("ok, without VIPs of Services: it has the label %s, and other nodes have not (kubeadm sets it "+
			"on control-plane nodes; kubectl label node %s %[1]s- takes it away)", n.node.ExclusionLabel, n.Name), plan.Fine
	}
	return "ok", plan.Fine
}

// runs reports whether a Herald in the announcers' namespace renews the node lease.
func (n nodeStatus) runs(now time.Time) bool {
	return !n.Fenced && now.Sub(n.RenewedAt) <= n.Duration && !strings.Contains(n.Name, "/")
}

// barred returns what keeps a node from carrying VIPs, or "".
func (n nodeStatus) barred(now time.Time) string {
	switch silent := now.Sub(n.RenewedAt); {
	case n.Fenced:
		return "fenced: its claims are over, and other nodes may take its VIPs"
	case silent > n.Duration:
		return "silent for " + inWords(silent)
	case n.Info.Excluded != "":
		return "carries no VIP: " + n.Info.Excluded
	case n.node.Drained:
		return "carries no VIP: it is drained; herald undrain " + n.Name + " ends that"
	case n.node.ShuttingDown:
		return "hands over its VIPs: it is being shut down"
	case n.exclusion.Why != "" && !n.exclusion.Labelled:
		return "carries no VIP of a Service: " + n.exclusion.Why
	}
	link := n.Info.LinkFor("")
	i := slices.IndexFunc(n.Info.Links, func(l vip.Link) bool { return l.Name == link })
	switch {
	case link == "":
		return "carries no VIP: it has no default route, so no link for VIPs"
	case i < 0:
		return "carries no VIP: it has no link " + link
	case !n.Info.Links[i].Up:
		return "carries no VIP: its link " + link + " is down"
	case n.Info.Isolated:
		return "takes no VIP: it reaches too few other nodes on the VIPs' link, though its own link is up; look at the switch"
	}
	return ""
}

// snapshotTimeout is how long reading all objects may take.
const snapshotTimeout = 30 * time.Second

// errSomethingWrong is what status returns with --exit-status.
var errSomethingWrong = errors.New("something is wrong, see above")

func statusCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "status [SERVICE]", Short: "Show which node announces which VIP, and what is wrong",
		Long: "Show every Service of type LoadBalancer with its VIPs, the node that owns them, since when, the\n" +
			"ipMode in its status (MODE), and what is wrong; or one, named as [NAMESPACE/]NAME. It reads Services,\n" +
			"Leases, Events and Nodes, and works from any machine with a kubeconfig. What the user may not read is\n" +
			"left out, and named.",
		Args: cobra.MaximumNArgs(1),
	}
	flags := addAccessFlags(c, "wide", "json", "yaml")
	exitStatus := c.Flags().Bool("exit-status", false, "End with status 3 if something is wrong")
	c.RunE = func(c *cobra.Command, args []string) error {
		of, err := flags.service(args)
		if err != nil {
			return err
		}
		cfg, err := flags.connect()
		if err != nil {
			return err
		}
		report, err := takeStatus(c.Context(), cfg, of)
		if err != nil {
			return err
		}
		report.color = isTerminal(c.OutOrStdout())
		return report.write(c.OutOrStdout(), flags.format, *exitStatus)
	}
	return c
}

// takeStatus reads the status of a Service, or of all in a namespace, or of all.
func takeStatus(ctx context.Context, cfg *rest.Config, of vip.Key) (r statusReport, err error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotTimeout)
	defer cancel()
	s, err := kube.TakeAllowedSnapshot(ctx, cfg, of.Namespace)
	if err == nil && of.Name != "" {
		err = checkExists(s.Services, of)
	}
	if err != nil {
		return r, err
	}
	return newStatusReport(s, of, s.At), nil
}

// checkExists returns an error, with equal names elsewhere, if k is missing.
func checkExists(all []vip.Service, k vip.Key) error {
	var others []string
	for i := range all {
		switch {
		case all[i].Key == k:
			return nil
		case all[i].Key.Name == k.Name:
			others = append(others, all[i].Key.String())
		}
	}
	if others == nil {
		return fmt.Errorf("there is no Service of type LoadBalancer %s", k)
	}
	return fmt.Errorf("there is no Service of type LoadBalancer %s, but %s", k, abbreviate(others))
}

// isOf reports whether k is the Service of, or, without a name, in that namespace, "" for all.
func isOf(k, of vip.Key) bool {
	return (of.Namespace == "" || k.Namespace == of.Namespace) && (of.Name == "" || k.Name == of.Name)
}

// write writes the report: "", wide, json or yaml; with exitStatus it is an error if something is wrong.
func (r statusReport) write(w io.Writer, format string, exitStatus bool) (err error) {
	if format == "json" || format == "yaml" {
		err = encode(w, format, r)
	} else {
		err = r.writeTables(w, format == "wide")
	}
	if err == nil && exitStatus && r.wrong() {
		err = errSomethingWrong
	}
	return err
}
