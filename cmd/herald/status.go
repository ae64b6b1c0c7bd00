package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/vip"
)

// defaultControlPlaneLease is the default of vip_leasename, where no node says it.
const defaultControlPlaneLease = "plndr-cp-lock"

// controlPlaneName stands for the control plane's VIP in tables of Services.
const controlPlaneName = "(control plane)"

// controlPlane returns what nodes say of the API servers' VIP; not ok if none has cp_enable.
func (v statusView) controlPlane() (s serviceStatus, ok bool) {
	ready, owned := 0, false
	for _, n := range v.nodes {
		if n.Fenced || n.namespace != v.announcers {
			continue
		}
		if n.Info.APIServerReady {
			ready++
		}
		if o := n.Info.Options; o != nil {
			owned = owned || o.ARP && len(o.ControlPlane) > 0
			for _, a := range o.ControlPlane {
				s.VIPs = append(s.VIPs, a.String())
			}
		}
	}
	slices.Sort(s.VIPs)
	s.Service, s.VIPs, s.Note = controlPlaneName, slices.Compact(s.VIPs), fmt.Sprintf("API servers ready: %d", ready)
	switch c := v.claims[v.controlPlaneLease()]; {
	case c.Valid && !c.Foreign && c.Holder != "":
		s.Owner, s.Since = c.Holder, c.AcquiredAt
	// without vip_arp every node with a ready API server advertises it
	case !c.Foreign && (owned || ready == 0 && len(s.VIPs) > 0):
		s.Reason, s.Problem = vip.NoEligibleNode, "no node carries it; "+s.Note
		s.Advice = plan.Advice(vip.Key{}, s.Reason)
	case ready == 0 && len(s.VIPs) > 0:
		s.Problem = "no Herald could take it: no node's own API server is ready at its port (port, " +
			"control_plane_health_check_address)"
	}
	return s, ready > 0 || len(s.VIPs) > 0
}

// controlPlaneLease is the lease of the control plane's VIP, as the first node publishes it, or the default.
func (v statusView) controlPlaneLease() vip.Key {
	for _, n := range v.nodes {
		if o := n.Info.Options; o != nil && !o.ControlPlaneLease.IsZero() && !n.Fenced && n.namespace == v.announcers {
			return o.ControlPlaneLease
		}
	}
	return vip.Key{Namespace: v.announcers, Name: defaultControlPlaneLease}
}

type statusView struct {
	now    time.Time
	claims map[vip.Key]vip.Claim // by unit
	// sorted by name; of foreign namespaces only some that are renewed
	nodes         []nodeStatus
	otherNodes    int                    // how many of nodes are of other namespaces
	withoutHerald []string               // the Nodes that have no node lease
	names         plan.NamesOfNodes      // of Nodes that Herald calls otherwise
	announcers    string                 // the namespace of node leases, see announcersNamespace
	unread        bool                   // the node leases may not be read
	vips          map[string]int         // by node: Services whose lease it holds
	events        []kube.StoredEvent     // oldest first
	has           map[netip.Addr]vip.Key // the first Service whose status names the address
}

func newStatusView(s kube.Snapshot, now time.Time) statusView {
	v := statusView{now: now, events: s.Events, vips: map[string]int{}, has: map[netip.Addr]vip.Key{}}
	v.announcers = announcersNamespace(s.Leases)
	v.unread = v.announcers == "" && s.FewerLeases
	v.claims = lease.Claims(s.Leases, v.announcers, now)
	for _, l := range s.Leases {
		if n, ok := lease.ParseNodeLease(l); ok {
			v.addNode(n, l.Namespace)
		}
	}
	v.names = plan.NodeNames(&vip.World{Nodes: s.Nodes, Members: v.members()})
	for _, n := range s.Nodes {
		if i := slices.IndexFunc(v.nodes, func(l nodeStatus) bool { return l.Name == v.names.Of(n.Name) }); i >= 0 {
			v.nodes[i].node = n
		} else if !v.unread {
			v.withoutHerald = append(v.withoutHerald, n.Name)
		}
	}
	exclusions := plan.Exclusions(&vip.World{Nodes: s.Nodes, Members: v.members()})
	for i := range v.nodes {
		v.nodes[i].exclusion = exclusions[v.nodes[i].Name]
	}
	slices.SortFunc(v.nodes, func(a, b nodeStatus) int { return strings.Compare(a.Name, b.Name) })
	shareForeign(v.claims, v.options().SharedLease)
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

// nodeNamed returns a node by Herald's name, or its Node's; an error lists all names, and the node has only its own.
func (v *statusView) nodeNamed(name string) (nodeStatus, error) {
	unknown := nodeStatus{NodeLease: lease.NodeLease{Name: v.names.Of(name)}}
	var all []string
	for _, n := range v.nodes {
		if n.Name == unknown.Name {
			return n, nil
		}
		all = append(all, n.Name)
	}
	if v.unread {
		return unknown, errors.New("the Leases, which say on which nodes Herald runs, may not be read")
	}
	return unknown, fmt.Errorf("no Herald runs on a node %q; it runs on %s", unknown.Name, cmp.Or(abbreviate(all), "none"))
}

func (v *statusView) members() (all []vip.Member) {
	for _, n := range v.nodes {
		if n.namespace == v.announcers {
			all = append(all, vip.Member{Name: n.Name, Epoch: n.Epoch, Info: n.Info, Alive: n.runs(v.now)})
		}
	}
	return all
}

// maxOtherNodes is how many nodes of other installations are shown: any user can write such Leases.
const maxOtherNodes = 10

// addNode adds a node lease; of foreign namespaces only renewed ones, up to maxOtherNodes.
func (v *statusView) addNode(n lease.NodeLease, namespace string) {
	if namespace != v.announcers {
		silent := v.now.Sub(n.RenewedAt)
		if v.otherNodes == maxOtherNodes || n.Fenced || silent > n.Duration || silent < -n.Duration {
			return
		}
		v.otherNodes++
		n.Name = namespace + "/" + n.Name
	}
	v.nodes = append(v.nodes, nodeStatus{NodeLease: n, namespace: namespace})
}

// announcersNamespace returns the namespace of node leases: kube-system, else the oldest's.
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

// nodeLeases returns the node leases of the announcers' namespace: elsewhere any user can write them.
func nodeLeases(s kube.Snapshot) (all []lease.NodeLease) {
	announcers := announcersNamespace(s.Leases)
	for _, l := range s.Leases {
		if n, ok := lease.ParseNodeLease(l); ok && l.Namespace == announcers {
			all = append(all, n)
		}
	}
	return all
}

// options returns the first live node's, with svc_enable if any, or defaults with svc_election.
func (v statusView) options() (o *vip.NodeOptions) {
	for _, m := range v.members() {
		if x := m.Info.Options; m.Alive && x != nil && (o == nil || x.Services && !o.Services) {
			o = x
		}
	}
	return cmp.Or(o, &vip.NodeOptions{Services: true, ARP: true, CommonOptions: vip.CommonOptions{Election: true}})
}

// ownsWithoutLease reports whether a live node may announce Services that have no lease of their own, and since when it
// has the lease of all.
func (v statusView) ownsWithoutLease(node string) (may bool, since time.Time) {
	for _, n := range v.nodes {
		if n.Name != node || !n.runs(v.now) {
			continue
		}
		o := n.Info.Options
		if o == nil {
			return true, since
		}
		if c := v.claims[o.SharedLease]; c.Valid && !c.Foreign && c.Holder == node {
			since = c.AcquiredAt
		}
		return o.Services && !o.Election, since
	}
	return v.unread, since
}

// owner returns who has a Service, and since when; without a unit of its own, its annotation says.
func (v statusView) owner(s *vip.Service) (string, time.Time) {
	known := false
	for _, k := range s.LeaseKeys() { // its own, if somebody has that: then the one that it names has no effect
		c, ok := v.claims[k]
		if known = known || ok; c.Valid {
			return c.Holder[:min(len(c.Holder), 253)], c.AcquiredAt
		}
	}
	if may, since := v.ownsWithoutLease(s.VIPHost); !known && s.VIPHost != "" && may {
		return s.VIPHost, since
	}
	return "", time.Time{}
}

// service returns what is known of a Service, and its faults.
func (v statusView) service(s *vip.Service) serviceStatus {
	x := serviceStatus{Service: s.Key.String()}
	x.Owner, x.Since = v.owner(s)
	for _, i := range s.Ingress {
		if !i.Addr.IsValid() {
			continue // it names a host
		}
		if s.Forward != nil && i.IPMode == vip.ModeProxy && slices.Contains(x.IPModes, string(vip.ModeVIP)) {
			for _, p := range i.Ports { // open on a gateway
				x.VIPs = vip.AppendUnique(x.VIPs, netip.AddrPortFrom(i.Addr, p.Port).String())
			}
			continue
		}
		x.VIPs = append(x.VIPs, i.Addr.String())
		x.IPModes = vip.AppendUnique(x.IPModes, string(i.IPMode))
	}
	for _, a := range s.Addresses {
		x.Asked = append(x.Asked, a.String())
	}
	x.Pool, x.Source = s.Allocated, s.Source
	_, x.Note = v.notOurs(s)
	x.Problem, x.Reason, x.Advice = v.problem(s, x.Owner, x.Since)
	_, x.OffLink = v.newest(s, vip.AddressOffLink) // a VIP is in no network of its link
	return x
}

func (v statusView) newest(s *vip.Service, reasons ...vip.Reason) (found kube.StoredEvent, ok bool) {
	for _, e := range slices.Backward(v.events) {
		if e.UID == s.UID && slices.Contains(reasons, e.Reason) {
			return e, true
		}
	}
	return found, false
}

// notOurs returns why s is none of Herald's, as reason and note, or "".
func (v statusView) notOurs(s *vip.Service) (reason vip.Reason, note string) {
	if s.Ignore {
		return vip.Ignored, "ignored (kube-vip.io/ignore)"
	}
	for _, n := range v.nodes {
		switch o := n.Info.Options; {
		case !n.runs(v.now):
		case o == nil || o.Services && o.Serve(s):
			return "", ""
		default:
			reason, note = vip.OtherClass, "no node announces its class"
		}
	}
	return reason, note
}

// problem returns what keeps a Service from its VIP, its reason, and advice.
func (v statusView) problem(s *vip.Service, owner string, since time.Time) (problem string, reason vip.Reason,
	advice string) {
	if reason, note := v.notOurs(s); note != "" {
		return "", reason, ""
	}
	if i := slices.IndexFunc(v.nodes, func(n nodeStatus) bool { return n.Name == owner }); i >= 0 {
		if why := v.nodes[i].barred(v.now); why != "" {
			return "its owner " + owner + ": " + why, "", ""
		}
	}
	if owner == "" && !v.unread && !slices.ContainsFunc(v.nodes, func(n nodeStatus) bool { return n.runs(v.now) }) {
		look := "look at its Pods and their log: kubectl -n %[1]s get pods -o wide -l app.kubernetes.io/name=herald; " +
			"kubectl -n %[1]s logs -l app.kubernetes.io/name=herald"
		return "no Herald runs on any node, or none reaches the API server", "",
			fmt.Sprintf(look, cmp.Or(v.announcers, "kube-system"))
	}
	a := v.answer(s, owner, since)
	if a.Level == plan.Fine && len(s.Invalid) > 0 {
		a = plan.NewAnswer(s.Key, vip.InvalidField, strings.Join(s.Invalid, " "))
	}
	if missing := unannounced(s); a.Level == plan.Fine && len(s.Ingress) > 0 && len(missing) > 0 {
		a = v.refusal(s, "not announced: "+strings.Join(missing, ", "))
	}
	if a.Level == plan.Fine && owner == "" && !v.unread && len(s.Ingress) > 0 {
		return "its status names a VIP, but no node owns it", vip.VIPClaiming, ""
	}
	if a.Level == plan.Fine {
		return "", "", ""
	}
	return a.String() + v.whoHas(s), a.Reason, a.Advice
}

// unannounced returns requested addresses that the status does not name.
func unannounced(s *vip.Service) []string {
	var all []string
	for _, a := range s.Addresses {
		announced := func(i vip.Ingress) bool {
			leased := slices.ContainsFunc(s.DHCP.Leases, func(l vip.DHCPLease) bool { return l.Addr == i.Addr })
			return i.Addr == a || a.IsUnspecified() && leased &&
				// alone, 0.0.0.0 may stand for another family (dhcp_mode)
				(len(s.Addresses) == 1 || vip.FamilyOf(i.Addr) == vip.FamilyOf(a))
		}
		if !slices.ContainsFunc(s.Ingress, announced) {
			all = append(all, a.String())
		}
	}
	return all
}

// refusal returns the newest Event about addresses that are not announced.
func (v statusView) refusal(s *vip.Service, missing string) plan.Answer {
	if e, ok := v.newest(s, vip.AddressRefused, vip.AddressConflict, vip.AddressInUse, vip.DHCPFailed); ok {
		return plan.NewAnswer(s.Key, e.Reason, missing+" ("+e.Message+")")
	}
	return plan.NewAnswer(s.Key, vip.AddressRefused, missing)
}

// answer returns what plan.AnswerAbout says, or what was seen on the wire since: only Events tell that.
func (v statusView) answer(s *vip.Service, owner string, since time.Time) plan.Answer {
	reason, message := v.verdict(s, owner)
	a := plan.AnswerAbout(s, reason, message)
	if a.Level != plan.Fine {
		return a
	}
	e, _ := v.newest(s, noticed...)
	if e.Reason == vip.StatusRefused && s.Written.After(since) {
		since = s.Written
	}
	// the times of Events are in whole seconds
	if e.Warning && (e.At.IsZero() || !e.At.Before(since.Truncate(time.Second))) {
		return plan.NewAnswer(s.Key, e.Reason, e.Message)
	}
	return a
}

// noticed is the reasons of Events about announced VIPs; the newest counts.
var noticed = []vip.Reason{vip.VIPUnanswered, vip.VIPForeignMAC, vip.VIPAnswered, vip.PortNotMapped, vip.PortMapped,
	vip.UnmanagedAddress, vip.EgressUnavailable, vip.StatusRefused}

// verdict returns what becomes of a Service without conditions, such as another announcer's: by the newest Event.
func (v statusView) verdict(s *vip.Service, owner string) (vip.Reason, string) {
	if len(s.Ingress) > 0 {
		return vip.VIPElsewhere, "its status names the VIP"
	}
	for _, e := range slices.Backward(v.events) {
		if e.UID == s.UID && (e.Reason == vip.VIPAnnounced || e.Reason == vip.VIPMoved) {
			break
		}
		if e.UID == s.UID && plan.LevelOf(e.Reason) != plan.Fine {
			return e.Reason, e.Message
		}
	}
	unwritten := slices.ContainsFunc(v.nodes, func(n nodeStatus) bool { // announced, and no status is written
		o := n.Info.Options
		return n.runs(v.now) && o != nil && o.NoStatus && (owner != "" || !o.Election)
	})
	switch {
	case len(s.Addresses) == 0:
		return vip.NoAddress, "it names no address"
	case unwritten:
		return vip.VIPElsewhere, ""
	case owner == "":
		return vip.VIPClaiming, "no node announces it yet"
	}
	return vip.VIPClaiming, "its status does not name the VIP yet; if it stays so, Herald may not write it: look at the " +
		"log of its owner"
}

// whoHas names who has addresses that s lacks, or ""; Events don't name Services of other namespaces.
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

// age returns the time from t in words; "-" for zero.
func age(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return inWords(now.Sub(t))
}

func inWords(d time.Duration) string { return duration.HumanDuration(d) }

func dash(s string) string { return cmp.Or(s, "-") }
