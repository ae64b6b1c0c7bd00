package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// statusCommand is "herald status": which node announces which VIP, and what is wrong.
func statusCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show which node announces which VIP, and what is wrong",
		Long: "Show every Service of type LoadBalancer with its VIPs, the node that owns them, since when, the\n" +
			"ipMode in its status, and what is wrong. It reads Services, Leases, Events and Nodes, and works\n" +
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
		return writeStatus(c.OutOrStdout(), s, time.Now())
	}
	return c
}

// writeStatus writes a table of the Services, one of DHCP leases, one of nodes and one of BGP sessions. Of the
// second and the last, those without rows are left out.
func writeStatus(w io.Writer, s kube.Snapshot, now time.Time) error {
	v := newStatusView(s, now)
	var services, dhcp, nodes, sessions []string
	for i := range s.Services {
		services = append(services, v.serviceRow(&s.Services[i]))
		dhcp = append(dhcp, v.dhcpRows(&s.Services[i])...)
	}
	if row := v.controlPlaneRow(); row != "" {
		services = append(services, row)
	}
	if len(s.Services) == 0 {
		services = append(services, "(no Service of type LoadBalancer)")
	}
	for _, n := range v.nodes {
		nodes = append(nodes, row(n.Name, strconv.Itoa(v.vips[n.Name]), age(n.RenewedAt, now), n.state(now)))
		for _, b := range n.Info.BGPSessions {
			sessions = append(sessions, row(n.Name, b.Peer, fmt.Sprint(b.AS), fmt.Sprint(b.State), age(b.Since, now), fmt.Sprint(b.Prefixes), b.Reason))
		}
	}
	if len(nodes) == 0 {
		nodes = append(nodes, "(no node lease found: no Herald runs, or in another namespace)")
	}
	return errors.Join(
		writeTable(w, "SERVICE\tVIP\tOWNER\tSINCE\tMODE\tWHAT IS WRONG", services),
		writeTable(w, "\nDHCP LEASE\tADDRESS\tMAC\tSERVER\tEXPIRES IN", dhcp),
		writeTable(w, "\nNODE\tVIPS\tRENEWED\tSTATE", nodes),
		writeTable(w, "\nNODE\tPEER\tAS\tSTATE\tSINCE\tPREFIXES\tWHY", sessions),
	)
}

// controlPlaneLease is the default of vip_leasename, which this command does not know.
const controlPlaneLease = "plndr-cp-lock"

// controlPlaneRow is the row of the API servers' VIP, or "" if no node reports that its API server is ready.
// The VIP itself is on no lease.
func (v statusView) controlPlaneRow() string {
	ready := 0
	for _, n := range v.nodes {
		if n.Info.APIServerReady && !n.Fenced && n.namespace == v.announcers {
			ready++
		}
	}
	if ready == 0 {
		return ""
	}
	owner, acquired := "", time.Time{}
	for k, l := range v.leases {
		if k.Name == controlPlaneLease && k.Namespace == v.announcers && l.Annotations[lease.ClaimAnnotation] != "" {
			owner, acquired = holder(l)
		}
	}
	return row("(control plane)", "-", dash(owner), age(acquired, v.now), "-", fmt.Sprintf("API servers ready: %d", ready))
}

// holder returns the node that a lease names, and since when that has it; both are zero if it names none. What is longer than
// the name of a node can be is cut.
func holder(l *coordinationv1.Lease) (node string, acquired time.Time) {
	if l == nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity == "" {
		return "", acquired
	}
	if l.Spec.AcquireTime != nil {
		acquired = l.Spec.AcquireTime.Time
	}
	node = *l.Spec.HolderIdentity
	return node[:min(len(node), 253)], acquired
}

// A statusView is a Snapshot, indexed.
type statusView struct {
	now        time.Time
	leases     map[vip.Key]*coordinationv1.Lease
	sharedFor  map[string]time.Time        // by node: since when it holds a lease that is no single Service's
	nodes      []nodeStatus                // sorted by name
	announcers string                      // the namespace of node leases, see announcersNamespace
	vips       map[string]int              // by node: Services whose lease it holds
	last       map[string]kube.StoredEvent // by the Service's UID
	events     []kube.StoredEvent          // oldest first
	has        map[netip.Addr]vip.Key      // the first Service whose status names the address
}

// A nodeStatus is a node lease and the Node.
type nodeStatus struct {
	lease.NodeLease          // whose Name is namespace/name if it is not in the namespace of the announcers: any user can write such a Lease
	namespace       string   // of the lease
	node            vip.Node // zero if it is not known
}

// state describes what is wrong with a node, or is "ok"; and how many connections to VIPs of
// others still go by it.
func (n nodeStatus) state(now time.Time) string {
	what := n.fault(now)
	if c := n.Info.Connections; c != nil && len(c.VIPs) > 0 && !n.Fenced {
		what += fmt.Sprintf("; %d connections to %s that it had still go by it", c.Sum(), abbreviate(addressTexts(c.VIPs)))
	}
	return what
}

// addressTexts returns the addresses as texts.
func addressTexts(all map[netip.Addr]int) (texts []string) {
	for a := range all {
		texts = append(texts, a.String())
	}
	return texts
}

// fault describes what is wrong with a node, or is "ok".
func (n nodeStatus) fault(now time.Time) string {
	if why := n.barred(now); why != "" {
		return why
	}
	switch {
	case n.Waiting != "" || len(n.Info.Waiting) > 0:
		other := strings.Join(append(slices.Clone(n.Info.Waiting), n.Waiting), "; ")
		return "ok, but another Herald waits until this one ends, since both have the name of the node or run on one host: " + strings.TrimSuffix(other, "; ")
	case n.Info.DataPlaneFault != "":
		return "takes a VIP only if no other node can: " + n.Info.DataPlaneFault
	case len(n.Info.Restarts) > 1:
		return fmt.Sprintf("ok, but takes a VIP only if no other node can: its Herald was killed or crashed %d times in the last minutes", len(n.Info.Restarts))
	case n.node.NotReady:
		return "ok, but takes a new VIP only if no other node can: Kubernetes does not have it as Ready"
	case n.Info.LivenessOff != "":
		return "ok, but should another node die, its VIPs stay with it for the lease duration: this node exchanges no heartbeats, since " + n.Info.LivenessOff
	case len(n.Info.Unanswered) > 0:
		return fmt.Sprintf("ok, but nobody answers it for %s, an address of another node on a link with VIPs: is the VLAN on all ports of the switch?", n.Info.Unanswered[0])
	case len(n.Info.Suspects) > 0:
		return "ok, but it gets no heartbeats from " + strings.Join(n.Info.Suspects, ", ") + ": is herald_peers_port open between them, UDP and TCP?"
	}
	return "ok"
}

// barred returns what keeps a node from carrying VIPs, or "".
func (n nodeStatus) barred(now time.Time) string {
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

func newStatusView(s kube.Snapshot, now time.Time) statusView {
	v := statusView{now: now, events: s.Events, leases: map[vip.Key]*coordinationv1.Lease{}, vips: map[string]int{}, sharedFor: map[string]time.Time{}, last: map[string]kube.StoredEvent{}, has: map[netip.Addr]vip.Key{}}
	v.announcers = announcersNamespace(s.Leases)
	for _, l := range s.Leases {
		v.leases[vip.Key{Namespace: l.Namespace, Name: l.Name}] = l
		if n, ok := lease.ParseNodeLease(l); ok {
			if l.Namespace != v.announcers {
				n.Name = l.Namespace + "/" + n.Name
			}
			v.nodes = append(v.nodes, nodeStatus{NodeLease: n, namespace: l.Namespace})
		}
		if node, acquired := holder(l); !acquired.IsZero() && l.Annotations[lease.ClaimAnnotation] != "" && !strings.HasPrefix(l.Name, "kubevip-") {
			v.sharedFor[node] = acquired
		}
	}
	for _, n := range s.Nodes {
		if i := slices.IndexFunc(v.nodes, func(l nodeStatus) bool { return l.Name == n.Name }); i >= 0 {
			v.nodes[i].node = n
		}
	}
	slices.SortFunc(v.nodes, func(a, b nodeStatus) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range s.Events {
		v.last[e.UID] = e // oldest first: the newest stays
	}
	for i := range s.Services {
		x := &s.Services[i]
		if owner, _ := v.owner(x); owner != "" {
			v.vips[owner]++
		}
		for _, y := range x.Ingress {
			if _, known := v.has[y.Addr]; !known {
				v.has[y.Addr] = x.Key
			}
		}
	}
	return v
}

// announcersNamespace returns the namespace of Herald's node leases: kube-system, or, if none is there, that of the oldest.
func announcersNamespace(leases []*coordinationv1.Lease) (namespace string) {
	var oldest time.Time
	for _, l := range leases {
		if _, ok := lease.ParseNodeLease(l); !ok {
			continue
		}
		if l.Namespace == "kube-system" {
			return l.Namespace
		}
		if namespace == "" || l.CreationTimestamp.Time.Before(oldest) {
			namespace, oldest = l.Namespace, l.CreationTimestamp.Time
		}
	}
	return namespace
}

// owner returns who holds the lease of a Service, and since when. If the Service has no lease of its own, that
// is the node its annotation names, which holds the one lease for all.
func (v statusView) owner(s *vip.Service) (string, time.Time) {
	l := v.leases[vip.Key{Namespace: s.Key.Namespace, Name: cmp.Or(s.Lease, "kubevip-"+s.Key.Name)}]
	if l == nil && s.VIPHost != "" {
		return s.VIPHost, v.sharedFor[s.VIPHost]
	}
	return holder(l)
}

func (v statusView) serviceRow(s *vip.Service) string {
	owner, acquired := v.owner(s)
	var vips, modes []string
	for _, i := range s.Ingress {
		if s.Forward != nil && i.IPMode == vip.ModeProxy && slices.Contains(modes, string(vip.ModeVIP)) {
			vips = append(vips, externalAddresses(i)...)
			continue
		}
		vips = append(vips, i.Addr.String())
		if !slices.Contains(modes, string(i.IPMode)) {
			modes = append(modes, string(i.IPMode))
		}
	}
	if len(vips) == 0 {
		for _, a := range s.Addresses {
			vips = append(vips, "("+a.String()+")") // requested, not announced
		}
	}
	return row(s.Key.String(), dash(strings.Join(vips, ",")), dash(owner), age(acquired, v.now), dash(strings.Join(modes, ",")), v.problem(s, owner))
}

// externalAddresses returns what is open on a gateway: external address and port.
func externalAddresses(i vip.Ingress) (open []string) {
	for _, p := range i.Ports {
		if text := netip.AddrPortFrom(i.Addr, p.Port).String(); !slices.Contains(open, text) {
			open = append(open, text)
		}
	}
	return open
}

// problem returns in words what keeps a Service from its VIP, or "".
func (v statusView) problem(s *vip.Service, owner string) string {
	if i := slices.IndexFunc(v.nodes, func(n nodeStatus) bool { return n.Name == owner }); i >= 0 {
		if why := v.nodes[i].barred(v.now); why != "" {
			return "its owner " + owner + ": " + why
		}
	}
	e, found := v.last[s.UID]
	missing := unannounced(s)
	switch {
	case s.Ignore:
		return "ignored (kube-vip.io/ignore)"
	case len(s.Invalid) > 0:
		return strings.Join(s.Invalid, " ")
	case len(s.Ingress) > 0 && len(missing) > 0:
		return "not announced: " + strings.Join(missing, ", ") + v.refusal(s) + v.whoHas(s)
	case found && e.Reason != vip.VIPAnnounced && e.Reason != vip.VIPMoved && (e.Warning || len(s.Ingress) == 0):
		return string(e.Reason) + ": " + e.Message + v.whoHas(s)
	case found && s.VIPHost == "" && (e.Reason == vip.NoEndpoints || e.Reason == vip.NoEligibleNode):
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

// unannounced returns the addresses that a Service requests and its status does not name.
func unannounced(s *vip.Service) []string {
	var all []string
	for _, a := range s.Addresses {
		announced := func(i vip.Ingress) bool {
			return i.Addr == a || a.IsUnspecified() && leasedByDHCP(s, i.Addr) &&
				(len(s.Addresses) == 1 || vip.FamilyOf(i.Addr) == vip.FamilyOf(a)) // alone, 0.0.0.0 may stand for another family (dhcp_mode)
		}
		if !slices.ContainsFunc(s.Ingress, announced) {
			all = append(all, a.String())
		}
	}
	return all
}

func leasedByDHCP(s *vip.Service, a netip.Addr) bool {
	return slices.ContainsFunc(s.DHCP.Leases, func(l vip.DHCPLease) bool { return l.Addr == a })
}

// dhcpRows are the rows of the addresses that DHCP servers have leased to a Service.
func (v statusView) dhcpRows(s *vip.Service) (rows []string) {
	for _, l := range s.DHCP.Leases {
		left := "never"
		switch d := l.Expires.Sub(v.now); {
		case l.Expires.IsZero():
		case d > 0:
			left = duration.HumanDuration(d)
		default: // Herald does not write every renewal of a short lease
			left = "a minute"
		}
		rows = append(rows, row(s.Key.String(), fmt.Sprintf("%s/%d", l.Addr, l.Bits), dash(l.MAC), dash(l.Server), left))
	}
	return rows
}

// refusal returns the message of the newest Event that says why an address is not announced, in brackets, or "".
func (v statusView) refusal(s *vip.Service) string {
	for _, e := range slices.Backward(v.events) {
		if e.UID == s.UID && (e.Reason == vip.AddressRefused || e.Reason == vip.AddressConflict || e.Reason == vip.AddressInUse) {
			return " (" + e.Message + ")"
		}
	}
	return ""
}

// whoHas names, for each address that s requests and its status does not name, the Service whose status does; "" if
// there is none. The Event tells the user of s no more than that a Service of another namespace has it.
func (v statusView) whoHas(s *vip.Service) string {
	var all []string
	for _, a := range s.Addresses {
		if k, ok := v.has[a]; ok && !slices.ContainsFunc(s.Ingress, func(i vip.Ingress) bool { return i.Addr == a }) {
			all = append(all, fmt.Sprintf("%s has %s", k, a))
		}
	}
	if len(all) == 0 {
		return ""
	}
	return " [" + strings.Join(all, ", ") + "]"
}

// age returns the time from t to now in words, or "-" if t is zero.
func age(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(t))
}

func dash(s string) string { return cmp.Or(s, "-") }
