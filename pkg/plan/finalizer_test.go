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
		for _, s := range Make(r, w).Statuses {
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
		written("n1")(s)
		s.Announcer, s.Finalizer = "herald", true
	}
	deleted := func(s *vip.Service) { s.Deleted = epoch.Add(time.Hour - time.Second) }
	clusterIP := func(s *vip.Service) { s.LoadBalancer = false }
	pools := func(w vip.World) vip.World {
		w.Pools = &vip.PoolSource{Data: map[string]string{"range-global": "10.77.0.50-10.77.0.60"}}
		return w
	}
	bound := func(w vip.World) vip.World {
		w.Bound = []vip.Address{{Addr: addr("10.77.0.50"), Bits: 32, Link: "eth0"}}
		return w
	}
	provider := func(w vip.World) vip.World {
		w.Claims[r.Allocation.Provider] = vip.Claim{Holder: "provider-1", Foreign: true, Valid: true}
		return w
	}
	leased := func(w vip.World) vip.World {
		w.DHCPStates = []vip.DHCPState{{Request: vip.DHCPRequest{ID: "uid-a"}, Lease: vip.DHCPLease{Addr: addr("10.77.0.50")}}}
		return w
	}
	mapped := func(w vip.World) vip.World {
		w.MappingStates = []vip.MappingState{{Mapping: vip.Mapping{Service: key("a"), Addr: addr("10.77.0.50")}, Requested: true, Confirmed: true}}
		return w
	}
	stopping := func(w vip.World) vip.World {
		w.Stopping = true
		w.Members = slices.Clone(w.Members[:1])
		w.Members[0].Info.Excluded = "its Herald is stopping"
		return w
	}
	notOffered := func(s *vip.Service) { // one that keeps its status
		ours(s)
		s.Addresses, s.Ingress[0].Addr = []netip.Addr{addr("10.77.0.99")}, addr("10.77.0.99")
	}
	poolsOnly := true
	strict := r
	strict.PoolsOnly = &poolsOnly
	without := func(s *vip.Service) { s.Endpoints = vip.Endpoints{} }
	for _, tt := range []struct {
		name  string
		rules Rules
		world vip.World
		want  string
	}{
		{"announced", r, pools(bound(held(world(svc("a", "10.77.0.50")), "a", "n1"))), "n1: a: 1 addresses, add"},
		{"announced, without pools", r, bound(held(world(svc("a", "10.77.0.50")), "a", "n1")), "n1: a: 1 addresses, "},
		{"announced, while the provider runs", r, provider(pools(bound(held(world(svc("a", "10.77.0.50")), "a", "n1")))), "n1: a: 1 addresses, "},
		{"no endpoints", r, pools(world(svc("a", "10.77.0.50", ours, without))), "n1: a: 1 addresses, add"},
		{"deleted, and still bound", r, pools(bound(held(world(svc("a", "10.77.0.50", ours, deleted)), "a", "n1"))), ""},
		{"deleted, bound for another Service", r, pools(bound(held(world(svc("a", "10.77.0.50", ours, deleted), svc("b", "10.77.0.50", port(81))), "b", "n1"))), "n1: b: 1 addresses, add\nn1: a: 0 addresses, remove"},
		{"deleted, and gone", r, pools(held(world(svc("a", "10.77.0.50", ours, deleted)), "a", "n1")), "n1: a: 0 addresses, remove"},
		{"deleted, never served, from the provider", r, pools(world(svc("a", "10.77.0.50", deleted, func(s *vip.Service) { s.Finalizer = true }))), "n2: a: 0 addresses, remove"},
		{"deleted, its status is another installation's", r, pools(world(svc("a", "10.77.0.50", ours, deleted, func(s *vip.Service) { s.Announcer = "other" }))), ""},
		{"deleted, of another class", r, pools(world(svc("a", "10.77.0.50", deleted, func(s *vip.Service) { s.Finalizer, s.HasClass, s.Class = true, true, "other" }))), ""},
		{"deleted, while the provider runs", r, provider(pools(world(svc("a", "10.77.0.50", ours, deleted)))), "n1: a: 0 addresses, "},
		{"deleted, pools are gone", r, world(svc("a", "10.77.0.50", ours, deleted)), "n1: a: 0 addresses, remove"},
		{"deleted, leased by DHCP", r, leased(pools(world(svc("a", "10.77.0.50", ours, deleted)))), ""},
		{"deleted, a gateway has its port", r, mapped(pools(world(svc("a", "10.77.0.50", ours, deleted)))), ""},
		{"deleted for long, a gateway has its port", r, mapped(pools(world(svc("a", "10.77.0.50", ours, func(s *vip.Service) { s.Deleted = epoch.Add(time.Minute) })))), "n1: a: 0 addresses, remove"},
		{"a ClusterIP now, and still bound", r, pools(bound(world(svc("a", "10.77.0.50", ours, clusterIP)))), ""},
		{"a ClusterIP now, and gone", r, pools(world(svc("a", "10.77.0.50", ours, clusterIP))), "n1: a: 0 addresses, remove"},
		{"a ClusterIP of others", r, pools(world(svc("a", "10.77.0.50", clusterIP, func(s *vip.Service) { s.Finalizer = true }))), ""},
		{"the last Herald stops", r, stopping(pools(world(svc("a", "10.77.0.50", ours)))), "n1: a: 0 addresses, remove"},
		{"the last Herald stops, the status stays", strict, stopping(pools(world(svc("a", "10.77.0.99", notOffered)))), "n1: a: 1 addresses, remove"},
		{"the last Herald stops, the status stays, no endpoints", strict, stopping(pools(world(svc("a", "10.77.0.99", notOffered, without)))), "n1: a: 1 addresses, remove"},
		{"the address is refused", r, pools(world(svc("a", "10.77.0.11", ours))), "n1: a: 0 addresses, remove"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			diff(t, finalizers(tt.rules, tt.world), tt.want)
		})
	}
}

// A deleted Service has its finalizer taken off by one node that is not isolated, also where an isolated one wrote its status
// last, or would be responsible by hash.
func TestFinalizerWithIsolatedNode(t *testing.T) {
	r := rules()
	r.Announcer = "herald"
	for _, writer := range []string{"", "n2"} {
		for name := range strings.SplitSeq("a b c d e f g h", " ") {
			w := world(svc(name, "10.77.0.50", written(writer), func(s *vip.Service) {
				s.Announcer, s.Finalizer, s.Deleted = "herald", true, epoch.Add(time.Hour-time.Second)
			}))
			w.Members[1].Info.Isolated = true
			got := finalizers(r, w)
			if strings.Count(got, "remove") != 1 || strings.Contains(got, "\n") || strings.HasPrefix(got, "n2") {
				t.Errorf("%s, whose status %q wrote: %q, want one node other than n2 that removes it", name, writer, got)
			}
		}
	}
}

// While all nodes are isolated from each other none is responsible for a Service. If one was deleted 10 s ago, each takes its finalizer off: it would
// stay, and its namespace with it, for as long as the nodes do not reach each other. So does one that takes others for dead.
func TestFinalizerWhileAllAreIsolated(t *testing.T) {
	r := rules()
	r.Announcer = "herald"
	for _, tt := range []struct {
		name string
		ago  time.Duration
		late bool
		want string
	}{
		{name: "deleted just now", ago: time.Second, want: ""},
		{name: "deleted for long", ago: releaseWithin, want: "n1: a: 0 addresses, remove"},
		{name: "without the API server", ago: releaseWithin, late: true, want: ""},
	} {
		w := world(svc("a", "10.77.0.50", written("n2"), func(s *vip.Service) {
			s.Announcer, s.Finalizer, s.Deleted = "herald", true, epoch.Add(time.Hour-tt.ago)
		}))
		w.Members[0].Info.Isolated, w.Members[1].Alive, w.Members[2].Alive = true, false, false
		if tt.late {
			w.Tenure.RenewalLateSince = epoch
		}
		got := Make(r, w)
		text := ""
		for _, s := range got.Statuses {
			text += fmt.Sprintf("n1: %s: %d addresses, %s", s.Service.Name, len(s.Ingress), s.Finalizer)
		}
		diff(t, text, tt.want)
		if replan := got.ReplanAfter; tt.ago < releaseWithin && replan != releaseWithin-tt.ago {
			t.Errorf("%s: planned again after %v", tt.name, replan)
		}
	}
}

// A Herald that writes nothing to Services can't take off a finalizer that it wrote before that was so: one node says so,
// once nothing else has removed it for 10 s.
func TestFinalizerThatIsNotRemoved(t *testing.T) {
	deleted := func(ago time.Duration) func(*vip.Service) {
		return func(s *vip.Service) {
			written("n1")(s)
			s.Announcer, s.Finalizer, s.Deleted = "herald", true, epoch.Add(time.Hour-ago)
		}
	}
	for _, tt := range []struct {
		name     string
		noStatus bool
		service  vip.Service
		want     int // Events
	}{
		{"deleted, and there for long", true, svc("a", "10.77.0.50", deleted(11*time.Second)), 1},
		{"a ClusterIP now, deleted, and there for long", true, svc("a", "10.77.0.50", deleted(time.Hour), func(s *vip.Service) { s.LoadBalancer = false }), 1},
		{"deleted just now", true, svc("a", "10.77.0.50", deleted(time.Second)), 0},
		{"statuses are written", false, svc("a", "10.77.0.50", deleted(time.Hour)), 0},
		{"not deleted", true, svc("a", "10.77.0.50", deleted(time.Hour), func(s *vip.Service) { s.Deleted = time.Time{} }), 0},
		{"no finalizer", true, svc("a", "10.77.0.50", deleted(time.Hour), func(s *vip.Service) { s.Finalizer = false }), 0},
		{"another program's", true, svc("a", "10.77.0.50", deleted(time.Hour), func(s *vip.Service) { s.Announcer, s.VIPHost = "", "" }), 0},
		{"another installation's", true, svc("a", "10.77.0.50", deleted(time.Hour), func(s *vip.Service) { s.Announcer = "other" }), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := rules()
			r.Announcer, r.NoStatus = "herald", tt.noStatus
			w := world(tt.service)
			events := 0
			replan := time.Duration(0)
			for _, m := range w.Members {
				w.Self = m.Name
				p := Make(r, w)
				replan = max(replan, p.ReplanAfter)
				for _, e := range p.Events {
					if e.Reason != vip.FinalizerNotRemoved {
						continue
					}
					if events++; !e.Warning || !strings.Contains(e.Message, "disable_service_updates") || !strings.Contains(e.Message, "kubectl -n default patch service a ") {
						t.Errorf("%+v", e)
					}
				}
			}
			if events != tt.want {
				t.Errorf("%d Events, want %d", events, tt.want)
			}
			if tt.name == "deleted just now" && replan != releaseWithin-time.Second {
				t.Errorf("the next Plan comes after %v", replan)
			}
		})
	}
}
