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
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// statusCommand is "herald status": who announces what, and what is wrong.
func statusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show which node announces which VIP, and what is wrong",
		Long: "Show every Service of type LoadBalancer with its VIPs, the node that owns them, since when, the\n" +
			"ipMode its status says, and what is wrong. It reads Services, Leases, Events and Nodes, and works\n" +
			"from any machine with a kubeconfig.",
		Args: cobra.NoArgs,
	}
	file := c.Flags().String("kubeconfig", "", "Kubeconfig to use; without it the usual places, KUBECONFIG among them")
	namespace := c.Flags().StringP("namespace", "n", "", "Only Services of this namespace")
	c.RunE = func(c *cobra.Command, _ []string) error {
		access, err := kube.ConnectUser(*file, currentVersion())
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), 30*time.Second)
		defer cancel()
		s, err := kube.TakeSnapshot(ctx, access, *namespace)
		if err != nil {
			return err
		}
		return table(c.OutOrStdout(), s, time.Now())
	}
	return c
}

// table writes a Snapshot as a person reads it: the Services, then the nodes.
func table(w io.Writer, s kube.Snapshot, now time.Time) error {
	view := newView(s, now)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tVIP\tOWNER\tSINCE\tMODE\tWHAT IS WRONG")
	for i := range s.Services {
		fmt.Fprintln(t, view.line(&s.Services[i]))
	}
	if line := view.controlPlane(); line != "" {
		fmt.Fprintln(t, line)
	}
	if len(s.Services) == 0 {
		fmt.Fprintln(t, "(no Service of type LoadBalancer)")
	}
	if err := errors.Join(t.Flush(), view.leased(w, s.Services)); err != nil {
		return err
	}
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nNODE\tVIPS\tRENEWED\tSTATE")
	if len(view.nodes) == 0 {
		fmt.Fprintln(t, "(no node lease in sight: no Herald runs, or in another namespace)")
	}
	for _, n := range view.nodes {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", n.Name, view.held[n.Name], ago(n.RenewedAt, now), n.state(now))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return view.peers(w)
}

// peers writes the BGP sessions of all nodes, if there are any.
func (v view) peers(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "\nNODE\tPEER\tAS\tSTATE\tSINCE\tPREFIXES\tWHY\n"
	for _, n := range v.nodes {
		for _, s := range n.Info.BGPSessions {
			fmt.Fprintf(t, "%s%s\t%s\t%d\t%s\t%s\t%d\t%s\n", head, n.Name, s.Peer, s.AS, s.State, ago(s.Since, v.now), s.Prefixes, s.Reason)
			head = ""
		}
	}
	return t.Flush()
}

// controlPlane is the line of the API servers' VIP, or "". Its address is not on the
// lease: who asks by way of it knows it.
func (v view) controlPlane() string {
	ready := 0
	for _, n := range v.nodes {
		if n.Info.APIServerReady && !n.Fenced {
			ready++
		}
	}
	if ready == 0 {
		return ""
	}
	owner, since := "-", "-"
	for k, l := range v.leases {
		if k.Name == controlPlaneLease && l.Spec.HolderIdentity != nil && l.Annotations[lease.ClaimAnnotation] != "" {
			owner = *l.Spec.HolderIdentity
			if l.Spec.AcquireTime != nil {
				since = ago(l.Spec.AcquireTime.Time, v.now)
			}
		}
	}
	return strings.Join([]string{"(control plane)", "-", owner, since, "-", fmt.Sprintf("API servers ready: %d", ready)}, "\t")
}

// controlPlaneLease is what vip_leasename is unless somebody said otherwise.
const controlPlaneLease = "plndr-cp-lock"

// A view is a Snapshot, sorted for questions.
type view struct {
	now    time.Time
	leases map[vip.Key]*coordinationv1.Lease
	since  map[string]time.Time // since when a node holds a lease that is no single Service's
	nodes  []nodeLine
	held   map[string]int
	last   map[string]kube.StoredEvent // by the Service's UID
	events []kube.StoredEvent          // oldest first
}

// A nodeLine is what a node lease says.
type nodeLine struct {
	lease.NodeLease
	node vip.Node // as Kubernetes has it; zero if that is not known
}

func (n nodeLine) state(now time.Time) string {
	if bad := n.trouble(now); bad != "" {
		return bad
	}
	switch {
	case n.Info.LivenessOff != "":
		return "ok, but should another node die, its VIPs stay with it for the lease duration: this node watches nobody, since " + n.Info.LivenessOff
	case len(n.Info.Suspects) > 0:
		return "ok, but it hears no Herald on " + strings.Join(n.Info.Suspects, ", ") + ": is herald_peers_port open between them, UDP and TCP?"
	}
	return "ok"
}

// trouble is what keeps a node from carrying VIPs, or "".
func (n nodeLine) trouble(now time.Time) string {
	switch silent := now.Sub(n.RenewedAt); {
	case n.Fenced:
		return "fenced: the others have taken its VIPs"
	case silent > n.Duration:
		return "silent for " + duration.HumanDuration(silent)
	case n.Info.Excluded != "":
		return "carries no VIP: " + n.Info.Excluded
	case n.node.Drained:
		return "carries no VIP: it is drained; herald undrain " + n.Name + " ends that"
	case n.node.ShuttingDown:
		return "carries no VIP: it is being shut down"
	case n.node.Excluded != "":
		return "carries no VIP of a Service: " + n.node.Excluded
	case n.Info.Isolated:
		return "carries no VIP: it reaches too few other nodes on the VIPs' link, though its own link is up; look at the switch"
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
	}
	return ""
}

func newView(s kube.Snapshot, now time.Time) view {
	v := view{now: now, events: s.Events, leases: map[vip.Key]*coordinationv1.Lease{}, held: map[string]int{}, since: map[string]time.Time{}, last: map[string]kube.StoredEvent{}}
	for _, l := range s.Leases {
		v.leases[vip.Key{Namespace: l.Namespace, Name: l.Name}] = l
		if n, ok := lease.ParseNodeLease(l); ok {
			v.nodes = append(v.nodes, nodeLine{NodeLease: n})
		}
		if who := l.Spec.HolderIdentity; who != nil && l.Spec.AcquireTime != nil && l.Annotations[lease.ClaimAnnotation] != "" && !strings.HasPrefix(l.Name, "kubevip-") {
			v.since[*who] = l.Spec.AcquireTime.Time
		}
	}
	for _, n := range s.Nodes {
		if i := slices.IndexFunc(v.nodes, func(l nodeLine) bool { return l.Name == n.Name }); i >= 0 {
			v.nodes[i].node = n
		}
	}
	slices.SortFunc(v.nodes, func(a, b nodeLine) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range s.Events {
		v.last[e.UID] = e // oldest first: the newest stays
	}
	for i := range s.Services {
		if owner, _ := v.owner(&s.Services[i]); owner != "" {
			v.held[owner]++
		}
	}
	return v
}

// owner is who holds the lease of a Service, and since when.
func (v view) owner(s *vip.Service) (string, time.Time) {
	name := s.Lease
	if name == "" {
		name = "kubevip-" + s.Key.Name
	}
	l := v.leases[vip.Key{Namespace: s.Key.Namespace, Name: name}]
	if l == nil && s.VIPHost != "" {
		return s.VIPHost, v.since[s.VIPHost] // there is one lease for all
	}
	if l == nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "", time.Time{}
	}
	var since time.Time
	if l.Spec.AcquireTime != nil {
		since = l.Spec.AcquireTime.Time
	}
	return *l.Spec.HolderIdentity, since
}

func (v view) line(s *vip.Service) string {
	owner, since := v.owner(s)
	var vips, modes []string
	for _, i := range s.Ingress {
		if s.Forward != nil && i.IPMode == vip.ModeProxy && slices.Contains(modes, string(vip.ModeVIP)) {
			vips = append(vips, outside(i)...)
			continue
		}
		vips = append(vips, i.Addr.String())
		if !slices.Contains(modes, string(i.IPMode)) {
			modes = append(modes, string(i.IPMode))
		}
	}
	if len(vips) == 0 {
		for _, a := range s.Addresses {
			vips = append(vips, "("+a.String()+")") // asked for, not announced
		}
	}
	age := "-"
	if owner != "" {
		age = ago(since, v.now)
	}
	return strings.Join([]string{s.Key.String(), dash(strings.Join(vips, ",")), dash(owner), age, dash(strings.Join(modes, ",")), v.wrong(s, owner)}, "\t")
}

// outside is what is open on a gateway: external address and port.
func outside(i vip.Ingress) (open []string) {
	for _, p := range i.Ports {
		if text := netip.AddrPortFrom(i.Addr, p.Port).String(); !slices.Contains(open, text) {
			open = append(open, text)
		}
	}
	return open
}

// wrong says in words what keeps a Service from its VIP, or "".
func (v view) wrong(s *vip.Service, owner string) string {
	if i := slices.IndexFunc(v.nodes, func(n nodeLine) bool { return n.Name == owner }); i >= 0 {
		if state := v.nodes[i].trouble(v.now); state != "" {
			return "its owner " + owner + ": " + state
		}
	}
	e, said := v.last[s.UID]
	switch {
	case s.Ignore:
		return "ignored (kube-vip.io/ignore)"
	case len(s.Invalid) > 0:
		return strings.Join(s.Invalid, " ")
	case len(s.Ingress) > 0 && len(missing(s)) > 0:
		return "not announced: " + strings.Join(missing(s), ", ") + v.refusal(s)
	case said && e.Reason != vip.VIPAnnounced && e.Reason != vip.VIPMoved && (e.Warning || len(s.Ingress) == 0):
		return string(e.Reason) + ": " + e.Message
	case len(s.Ingress) == 0 && len(s.Addresses) == 0:
		return "it names no address"
	case len(s.Ingress) == 0:
		return "not announced, and no Event says why: another class, or Herald does not run"
	case owner == "":
		return "its status names a VIP, but no node holds its lease"
	}
	return ""
}

// missing is the addresses that a Service asks for and its status does not name.
func missing(s *vip.Service) []string {
	var all []string
	for _, a := range s.Addresses {
		if a.IsUnspecified() && leasedFor(s, a) {
			continue
		}
		if !slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool { return i.Addr == a }) {
			all = append(all, a.String())
		}
	}
	return all
}

// leasedFor reports whether the status names an address that was leased because the
// Service asks for any. Alone, 0.0.0.0 may stand for another family (dhcp_mode).
func leasedFor(s *vip.Service, any netip.Addr) bool {
	return slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool {
		return (len(s.Addresses) == 1 || vip.FamilyOf(i.Addr) == vip.FamilyOf(any)) &&
			slices.ContainsFunc(s.DHCP.Leases, func(k vip.DHCPLease) bool { return k.Addr == i.Addr })
	})
}

// leased writes what DHCP servers have leased, if anything is.
func (v view) leased(w io.Writer, services []vip.Service) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := "\nDHCP LEASE\tADDRESS\tMAC\tSERVER\tEXPIRES IN\n"
	for i := range services {
		for _, k := range services[i].DHCP.Leases {
			left := "never"
			switch d := k.Expires.Sub(v.now); {
			case k.Expires.IsZero():
			case d > 0:
				left = duration.HumanDuration(d)
			default: // that a short one goes on is not written each time
				left = "a minute"
			}
			fmt.Fprintf(t, "%s%s\t%s/%d\t%s\t%s\t%s\n", head, services[i].Key, k.Addr, k.Bits, dash(k.MAC), dash(k.Server), left)
			head = ""
		}
	}
	return t.Flush()
}

// refusal is why, if an Event says it.
func (v view) refusal(s *vip.Service) string {
	for _, e := range slices.Backward(v.events) {
		if e.UID == s.UID && (e.Reason == vip.AddressRefused || e.Reason == vip.AddressConflict || e.Reason == vip.AddressInUse) {
			return " (" + e.Message + ")"
		}
	}
	return ""
}

func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(t))
}

func dash(s string) string { return cmp.Or(s, "-") }
