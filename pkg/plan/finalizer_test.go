package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// finalizers is what the nodes, all together, write on Services: status and finalizer.
func finalizers(r Rules, w vip.World) string {
	var out []string
	for _, m := range w.Members {
		w.Self = m.Name
		if m.Name != "n1" {
			w.Bound = nil
		}
		for _, s := range addressStatuses(Make(r, w)) {
			out = append(out, fmt.Sprintf("%s: %s: %d addresses, %s", m.Name, s.Service.Name, len(s.Ingress), s.Finalizer))
		}
	}
	return strings.Join(out, "\n")
}

// The finalizer of load balancers is on Services that Herald serves while there are pools, and goes when nothing of
// them is left (docs/why.md, "Finalizer and uninstall").
func TestFinalizer(t *testing.T) {
	r := rules()
	r.Announcer = "herald"
	r.Allocation = &Allocation{Lease: key("herald-pools"), Provider: vip.Key{Namespace: "kube-system", Name: "kube-vip-cloud-controller"}}
	ours := func(s *vip.Service) {
		writtenBy("herald", "n1")(s)
		s.Finalizer = true
	}
	deleted := func(s *vip.Service) { s.Deleted = epoch.Add(time.Hour - time.Second) }
	clusterIP := func(s *vip.Service) { s.LoadBalancer = false }
	pools := func(w *vip.World) {
		w.Pools = &vip.PoolSource{Data: map[string]string{"range-global": "10.77.0.50-10.77.0.60"}}
	}
	bound := func(w *vip.World) { w.Bound = []vip.Address{{Addr: addr("10.77.0.50"), Bits: 32, Link: "eth0"}} }
	provider := func(w *vip.World) {
		w.Claims[r.Allocation.Provider] = vip.Claim{Holder: "provider-1", Foreign: true, Valid: true}
	}
	leased := func(w *vip.World) {
		w.DHCPStates = []vip.DHCPState{{Request: vip.DHCPRequest{ID: "uid-a"}, Lease: vip.DHCPLease{Addr: addr("10.77.0.50")}}}
	}
	forwards, opens := forwarded(), r
	opens.Forwarding = &Forwarding{}
	goneState := func(x vip.MappingState) func(*vip.World) {
		x.Mapping = vip.Mapping{Service: key("a"), Addr: addr("10.77.0.50"), Gone: true}
		return func(w *vip.World) { w.MappingStates = []vip.MappingState{x} }
	}
	mapped := func(w *vip.World) {
		w.MappingStates = []vip.MappingState{{Mapping: vip.Mapping{Service: key("a"), Addr: addr("10.77.0.50")}, Requested: true, Confirmed: true}}
	}
	stopping := func(w *vip.World) {
		w.Stopping, w.Members = true, slices.Clone(w.Members[:1])
		w.Members[0].Info.Excluded = "its Herald is stopping"
	}
	notOffered := func(s *vip.Service) { // one that keeps its status
		ours(s)
		s.Addresses, s.Ingress[0].Addr = []netip.Addr{addr("10.77.0.99")}, addr("10.77.0.99")
	}
	strict := r
	strict.PoolsOnly = true
	disabled := r
	disabled.Enabled = false
	unannotated := func(s *vip.Service) {
		s.Finalizer = true
		had := vip.Record{Named: []netip.Addr{addr("10.77.0.50")}}
		s.SetConditions([]vip.Condition{{Type: vip.Announced, Status: vip.ConditionTrue}, had.Condition()})
	}
	ignored := func(s *vip.Service) { s.Ignore = true }
	replaced := func(s *vip.Service) { // kubectl replace: metadata is the manifest's, the status stays
		unannotated(s)
		s.Finalizer, s.Ingress = false, []vip.Ingress{{Addr: addr("10.77.0.50"), IPMode: vip.ModeVIP}}
	}
	rejected := func(s *vip.Service) { // another controller's, on which Herald has written why it does nothing
		s.Finalizer, s.Ingress = true, []vip.Ingress{{Addr: addr("198.51.100.7")}}
		s.SetConditions([]vip.Condition{{Type: vip.Announced, Status: vip.ConditionFalse, Reason: vip.NoAddress}})
	}
	opened := func(s *vip.Service) {
		s.Ingress = []vip.Ingress{{Addr: addr("10.77.0.50"), IPMode: vip.ModeVIP}, {Addr: addr("198.51.100.7"), IPMode: vip.ModeProxy}}
	}
	taken := func(s *vip.Service) { s.Ingress = []vip.Ingress{{Addr: addr("198.51.100.7")}} }
	copied := func(s *vip.Service) { // with the annotations of another Service; the status is another controller's
		taken(s)
		s.Record, s.Class, s.HasClass = vip.Record{}, "other", true
	}
	without := func(s *vip.Service) { s.Endpoints = vip.Endpoints{} }
	runPlans(t, finalizers, []planTest{
		{"copied, and another controller's", r, with(world(svc("a", "10.77.0.50", ours, copied)), pools), "n1: a: 1 addresses, "},
		{"copied, of another type", r, with(world(svc("a", "10.77.0.50", ours, copied, clusterIP)), pools), "n1: a: 1 addresses, "},
		{"it went on a gateway, and the API server keeps no ipMode", r, with(world(svc("a", "10.77.0.50", ours, opened, ignored, func(s *vip.Service) { s.Ingress[1].IPMode = "" })), pools), "n1: a: 0 addresses, remove"},
		{"announced", r, with(held(world(svc("a", "10.77.0.50")), "a", "n1"), bound, pools), "n1: a: 1 addresses, add"},
		{"announced, without pools", r, with(held(world(svc("a", "10.77.0.50")), "a", "n1"), bound), "n1: a: 1 addresses, "},
		{"announced, while the provider runs", r, with(held(world(svc("a", "10.77.0.50")), "a", "n1"), bound, pools, provider), "n1: a: 1 addresses, "},
		{"no endpoints", r, with(world(svc("a", "10.77.0.50", ours, without)), pools), "n1: a: 1 addresses, add"},
		{"deleted, and still bound", r, with(held(world(svc("a", "10.77.0.50", ours, deleted)), "a", "n1"), bound, pools), ""},
		{"deleted, bound for another Service", r, with(held(world(svc("a", "10.77.0.50", ours, deleted), svc("b", "10.77.0.50", port(81))), "b", "n1"), bound, pools), "n1: a: 0 addresses, remove\nn1: b: 1 addresses, add"},
		{"deleted, and gone", r, with(held(world(svc("a", "10.77.0.50", ours, deleted)), "a", "n1"), pools), "n1: a: 0 addresses, remove"},
		{"deleted, never served, from the provider", r, with(world(svc("a", "10.77.0.50", deleted, func(s *vip.Service) { s.Finalizer = true })), pools), "n2: a: 0 addresses, remove"},
		{"deleted, its status is another installation's", r, with(world(svc("a", "10.77.0.50", ours, deleted, func(s *vip.Service) { s.Announcer = "other" })), pools), ""},
		{"deleted, of another class", r, with(world(svc("a", "10.77.0.50", deleted, func(s *vip.Service) { s.Finalizer, s.HasClass, s.Class = true, true, "other" })), pools), ""},
		{"deleted, while the provider runs", r, with(world(svc("a", "10.77.0.50", ours, deleted)), pools, provider), "n1: a: 0 addresses, "},
		{"deleted, pools are gone", r, world(svc("a", "10.77.0.50", ours, deleted)), "n1: a: 0 addresses, remove"},
		{"deleted, leased by DHCP", r, with(world(svc("a", "10.77.0.50", ours, deleted)), pools, leased), ""},
		{"deleted, a gateway has its port", r, with(world(svc("a", "10.77.0.50", ours, deleted)), pools, mapped), ""},
		{"deleted for long, a gateway has its port", opens, with(world(svc("a", "10.77.0.50", ours, deleted, forwards)), goneState(vip.MappingState{Gateway: "10.77.0.1", Requested: true, RemovalSince: epoch.Add(time.Minute)})), "n1: a: 0 addresses, remove"},
		{"announced, without pools, asks for ports", opens, with(held(world(svc("a", "10.77.0.50", forwards)), "a", "n1"), bound), "n1: a: 1 addresses, add"},
		{"deleted, gateways were not asked yet", opens, world(svc("a", "10.77.0.50", ours, deleted, forwards)), ""},
		{"deleted, no gateway was found yet", opens, with(world(svc("a", "10.77.0.50", ours, deleted, forwards)), goneState(vip.MappingState{})), ""},
		{"deleted, there is no gateway", opens, with(world(svc("a", "10.77.0.50", ours, deleted, forwards)), goneState(vip.MappingState{Problem: "no gateway"})), "n1: a: 0 addresses, remove"},
		{"deleted, a gateway has closed its port", opens, with(world(svc("a", "10.77.0.50", ours, deleted, forwards)), goneState(vip.MappingState{Gateway: "10.77.0.1"})), "n1: a: 0 addresses, remove"},
		{"a ClusterIP now, and still bound", r, with(world(svc("a", "10.77.0.50", ours, clusterIP)), bound, pools), ""},
		{"a ClusterIP now, and gone", r, with(world(svc("a", "10.77.0.50", ours, clusterIP)), pools), "n1: a: 0 addresses, remove"},
		{"a ClusterIP of others", r, with(world(svc("a", "10.77.0.50", clusterIP, func(s *vip.Service) { s.Finalizer = true })), pools), ""},
		{"a ClusterIP now, whose annotations are gone", r, with(world(svc("a", "10.77.0.50", unannotated, clusterIP)), pools), "n2: a: 0 addresses, remove"},
		{"ignored now, and its annotations are gone", r, with(world(svc("a", "10.77.0.50", unannotated, ignored)), pools), "n2: a: 0 addresses, remove"},
		{"ignored now, with a gateway's address in the status", r, with(world(svc("a", "10.77.0.50", unannotated, opened, ignored)), pools), "n2: a: 0 addresses, remove"},
		{"ignored now, and another controller has it by now", r, with(world(svc("a", "10.77.0.50", unannotated, taken, ignored)), pools), ""},
		{"replaced, and ignored now", r, world(svc("a", "10.77.0.50", replaced, ignored)), "n2: a: 0 addresses, remove"},
		{"replaced, and refused now", r, world(svc("a", "10.77.0.255", replaced)), "n2: a: 0 addresses, remove"},
		{"ignored now, and it never was Herald's", r, with(world(svc("a", "", rejected, ignored)), pools), ""},
		{"without annotations, of another class", r, with(world(svc("a", "10.77.0.50", unannotated, func(s *vip.Service) { s.HasClass, s.Class = true, "other" })), pools), ""},
		{"without annotations, svc_enable is false", disabled, with(world(svc("a", "10.77.0.50", unannotated)), pools), ""},
		{"the last Herald stops", r, with(world(svc("a", "10.77.0.50", ours)), pools, stopping), "n1: a: 0 addresses, remove"},
		{"the last Herald stops, the status stays", strict, with(world(svc("a", "10.77.0.99", notOffered)), pools, stopping), "n1: a: 1 addresses, remove"},
		{"the last Herald stops, the status stays, no endpoints", strict, with(world(svc("a", "10.77.0.99", notOffered, without)), pools, stopping), "n1: a: 1 addresses, remove"},
		{"the address is refused", r, with(world(svc("a", "10.77.0.255", ours)), pools), "n1: a: 0 addresses, remove"},
	})
}

// A deleted Service has its finalizer taken off by one node that is not isolated, also where an isolated one wrote
// its status last, or would be responsible by hash.
func TestFinalizerWithIsolatedNode(t *testing.T) {
	r := rules()
	r.Announcer = "herald"
	for _, writer := range []string{"", "n2"} {
		for name := range strings.SplitSeq("a b c d e f g h", " ") {
			w := world(svc(name, "10.77.0.50", writtenBy("herald", writer), func(s *vip.Service) {
				s.Finalizer, s.Deleted = true, epoch.Add(time.Hour-time.Second)
			}))
			w.Members[1].Info.Isolated = true
			got := finalizers(r, w)
			if strings.Count(got, "remove") != 1 || strings.Contains(got, "\n") || strings.HasPrefix(got, "n2") {
				t.Errorf("%s, whose status %q wrote: %q, want one node other than n2 that removes it", name, writer, got)
			}
		}
	}
}
