package main

import (
	"cmp"
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

// controlPlane returns what is known of the API servers' VIP, which is on no lease; not ok if none is ready.
func (v statusView) controlPlane() (s serviceStatus, ok bool) {
	ready := 0
	for _, n := range v.nodes {
		if n.Info.APIServerReady && !n.Fenced && n.namespace == v.announcers {
			ready++
		}
	}
	s = serviceStatus{Service: controlPlaneName, Note: fmt.Sprintf("API servers ready: %d", ready)}
	if c := v.claims[v.controlPlaneLease()]; c.Valid && !c.Foreign {
		s.Owner, s.Since = c.Holder, c.AcquiredAt
	}
	return s, ready > 0
}

// controlPlaneLease is the lease of the control plane's VIP, as the first node publishes it, or the default.
func (v statusView) controlPlaneLease() vip.Key {
	for _, n := range v.nodes {
		if o := n.Info.Options; o != nil && o.ControlPlaneLease != "" && !n.Fenced && n.namespace == v.announcers {
			return keyOf(o.ControlPlaneLease)
		}
	}
	return vip.Key{Namespace: v.announcers, Name: defaultControlPlaneLease}
}

type statusView struct {
	now       time.Time
	claims    map[vip.Key]vip.Claim // by unit
	sharedFor map[string]time.Time  // by node: since when it has a unit that is no single Service's
	// sorted by name; of foreign namespaces only some that are renewed
	nodes         []nodeStatus
	otherNodes    int                    // how many of nodes are of other namespaces
	withoutHerald []string               // the Nodes that have no node lease
	names         plan.NamesOfNodes      // of Nodes that Herald calls otherwise
	announcers    string                 // the namespace of node leases, see announcersNamespace
	vips          map[string]int         // by node: Services whose lease it holds
	events        []kube.StoredEvent     // oldest first
	has           map[netip.Addr]vip.Key // the first Service whose status names the address
}

func newStatusView(s kube.Snapshot, now time.Time) statusView {
	v := statusView{now: now, events: s.Events, vips: map[string]int{}, sharedFor: map[string]time.Time{},
		has: map[netip.Addr]vip.Key{}}
	v.announcers = announcersNamespace(s.Leases)
	v.claims = lease.Claims(s.Leases, v.announcers, now)
	for _, l := range s.Leases {
		if n, ok := lease.ParseNodeLease(l); ok {
			v.addNode(n, l.Namespace)
		}
	}
	for k, c := range v.claims {
		if c.Valid && !c.Foreign && !strings.HasPrefix(k.Name, "kubevip-") {
			v.sharedFor[c.Holder] = c.AcquiredAt
		}
	}
	v.names = plan.NodeNames(&vip.World{Nodes: s.Nodes, Members: v.members()})
	for _, n := range s.Nodes {
		if i := slices.IndexFunc(v.nodes, func(l nodeStatus) bool { return l.Name == v.names.Of(n.Name) }); i >= 0 {
			v.nodes[i].node = n
		} else {
			v.withoutHerald = append(v.withoutHerald, n.Name)
		}
	}
	labelCounts := plan.ExclusionLabelCounts(&vip.World{Nodes: s.Nodes, Members: v.members()})
	for i := range v.nodes {
		v.nodes[i].labelCounts = labelCounts
	}
	slices.SortFunc(v.nodes, func(a, b nodeStatus) int { return strings.Compare(a.Name, b.Name) })
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
	unknown := nodeStatus{}
	unknown.Name = v.names.Of(name)
	var all []string
	for _, n := range v.nodes {
		if n.Name == unknown.Name {
			return n, nil
		}
		all = append(all, n.Name)
	}
	return unknown, fmt.Errorf("no Herald runs on a node %q; it runs on %s", unknown.Name,
		cmp.Or(abbreviate(all), "none"))
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

// mayOwnWithoutLease reports whether a live node may announce Services that have no lease of their own.
func (v statusView) mayOwnWithoutLease(node string) bool {
	i := slices.IndexFunc(v.nodes, func(n nodeStatus) bool { return n.Name == node })
	if i < 0 || !v.nodes[i].runs(v.now) {
		return false
	}
	_, shared := v.sharedFor[node]
	options := v.nodes[i].Info.Options
	return shared || options == nil || options.Services && !options.Election
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
	if !known && s.VIPHost != "" && v.mayOwnWithoutLease(s.VIPHost) {
		return s.VIPHost, v.sharedFor[s.VIPHost]
	}
	return "", time.Time{}
}

// service returns what is known of a Service, and its faults.
func (v statusView) service(s *vip.Service) serviceStatus {
	x := serviceStatus{Service: s.Key.String()}
	x.Owner, x.Since = v.owner(s)
	for _, i := range s.Ingress {
		if s.Forward != nil && i.IPMode == vip.ModeProxy && slices.Contains(x.IPModes, string(vip.ModeVIP)) {
			x.VIPs = append(x.VIPs, externalAddresses(i)...)
			continue
		}
		x.VIPs = append(x.VIPs, i.Addr.String())
		if !slices.Contains(x.IPModes, string(i.IPMode)) {
			x.IPModes = append(x.IPModes, string(i.IPMode))
		}
	}
	for _, a := range s.Addresses {
		x.Asked = append(x.Asked, a.String())
	}
	x.Pool, x.Source = s.Allocated, s.Source
	x.Problem, x.Reason, x.Advice = v.problem(s, x.Owner, x.Since)
	_, x.OffLink = v.newest(s, vip.AddressOffLink) // a VIP is in no network of its link
	return x
}

// newest returns the newest Event of s that has one of the reasons.
func (v statusView) newest(s *vip.Service, reasons ...vip.Reason) (found kube.StoredEvent, ok bool) {
	for _, e := range slices.Backward(v.events) {
		if e.UID == s.UID && slices.Contains(reasons, e.Reason) {
			return e, true
		}
	}
	return found, false
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

// problem returns what keeps a Service from its VIP, its reason, and advice.
func (v statusView) problem(s *vip.Service, owner string, since time.Time) (problem string, reason vip.Reason,
	advice string) {
	if i := slices.IndexFunc(v.nodes, func(n nodeStatus) bool { return n.Name == owner }); i >= 0 {
		if why := v.nodes[i].barred(v.now); why != "" {
			return "its owner " + owner + ": " + why, "", ""
		}
	}
	if owner == "" && !s.Ignore && !slices.ContainsFunc(v.nodes, func(n nodeStatus) bool { return n.runs(v.now) }) {
		look := "look at its Pods and their log: kubectl -n %[1]s get pods -o wide -l app.kubernetes.io/name=herald; " +
			"kubectl -n %[1]s logs -l app.kubernetes.io/name=herald"
		return "no Herald runs on any node, or none reaches the API server", "",
			fmt.Sprintf(look, cmp.Or(v.announcers, "kube-system"))
	}
	a := v.answer(s, since)
	if s.Ignore {
		return "ignored (kube-vip.io/ignore)", a.Reason, ""
	}
	if a.Level == plan.Fine && len(s.Invalid) > 0 {
		a = plan.NewAnswer(s.Key, vip.InvalidField, strings.Join(s.Invalid, " "))
	}
	if missing := unannounced(s); a.Level == plan.Fine && len(s.Ingress) > 0 && len(missing) > 0 {
		a = v.refusal(s, "not announced: "+strings.Join(missing, ", "))
	}
	if a.Level == plan.Fine && owner == "" && len(s.Ingress) > 0 {
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
func (v statusView) answer(s *vip.Service, since time.Time) plan.Answer {
	reason, message := v.verdict(s)
	a := plan.AnswerAbout(s, reason, message)
	if a.Level != plan.Fine || s.Ignore {
		return a
	}
	// the times of Events are in whole seconds
	if e, _ := v.newest(s, noticed...); e.Warning && (e.At.IsZero() || !e.At.Before(since.Truncate(time.Second))) {
		return plan.NewAnswer(s.Key, e.Reason, e.Message)
	}
	return a
}

// noticed is the reasons of Events about announced VIPs; the newest counts.
var noticed = []vip.Reason{vip.VIPUnanswered, vip.VIPForeignMAC, vip.VIPAnswered, vip.PortNotMapped, vip.PortMapped,
	vip.UnmanagedAddress, vip.EgressUnavailable, vip.StatusRefused}

// verdict returns what becomes of a Service without conditions, such as another announcer's: by the newest Event.
func (v statusView) verdict(s *vip.Service) (vip.Reason, string) {
	switch {
	case s.Ignore:
		return vip.Ignored, ""
	case len(s.Ingress) > 0:
		return vip.VIPElsewhere, ""
	}
	for _, e := range slices.Backward(v.events) {
		if e.UID == s.UID && plan.LevelOf(e.Reason) != plan.Fine {
			return e.Reason, e.Message
		}
	}
	if len(s.Addresses) == 0 {
		return vip.NoAddress, "it names no address"
	}
	return vip.VIPClaiming, "not announced yet; if it stays so, it has another class"
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
