package kube

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// pending is how many of these Statuses, of the Services in the cache, that does not show.
func (r *clusterTest) pending(want ...vip.Status) int {
	for i, w := range want {
		if o := r.service(w.Service); o != nil {
			want[i].UID = o.UID
		}
	}
	r.Statuses.Put(want)
	var w vip.World
	r.Statuses.Observe(&w)
	return w.StatusesPending
}

// haveStatus has a status written and waits until the cache shows it.
func (r *clusterTest) haveStatus(t testing.TB, want vip.Status) {
	t.Helper()
	r.poked.until(t, fmt.Sprintf("status %+v", want), func() bool { return r.pending(want) == 0 })
}

func TestStatusNoUpdates(t *testing.T) {
	r, ns := runCluster(t, Options{NoUpdates: true})
	api := r.api
	key := r.web(t, ns, "192.168.7.107")
	want := []vip.Status{{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.107"),
		IPMode: vip.ModeVIP}}}}
	check.Equal(t, r.pending(want...), 0, "pending, for which nobody should wait")
	// What comes later in the same cache shows that nothing came before it.
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web", `{"metadata":{"annotations":{"heraldvip.io/ip-mode":"Proxy"}}}`)
	r.poked.until(t, "the change", func() bool { return r.service(key).IPMode == vip.ModeProxy })
	check.Equal(t, r.service(key).VIPHost, "", "the host")
	check.Equal(t, len(r.service(key).Ingress), 0, "addresses")
	if got := check.Metric(t, "herald_api_requests_total services/status", r.Collectors()...); got > 0 {
		t.Errorf("%v requests were sent", got)
	}

	path := "/api/v1/namespaces/" + ns + "/services/web"
	api.must(t, "PATCH", path, `{"metadata":{"finalizers":["service.kubernetes.io/load-balancer-cleanup"]}}`)
	clear := vip.Status{Service: key, Finalizer: vip.RemoveFinalizer}
	r.poked.until(t, "the finalizer", func() bool { return r.service(key).Finalizer })
	check.Equal(t, r.pending(clear), 0, "pending for a Service that stays")
	api.must(t, "DELETE", path, "")
	r.poked.until(t, "the end of the Service", func() bool { r.pending(clear); return r.service(key) == nil })
}

// TestStatusPreconditions: the API server takes a write only for the version that it was made for.
func TestStatusPreconditions(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newClusterTest(t, "admin", Options{})
	check.Run(t, r)
	key := r.web(t, ns, "192.168.7.110")
	now := r.Cluster.service(key)
	want := vip.Status{Service: key, UID: now.UID, VIPHost: "n1", Ingress: []vip.Ingress{{
		Addr: netip.MustParseAddr("192.168.7.110"), IPMode: vip.ModeVIP}}}
	old := *now
	old.version = "1"
	if got, _, err := r.Statuses.write(t.Context(), &old, wish{status: &want}); got != conflict {
		t.Errorf("an old version: result %s, %v; want a conflict", got, err)
	}
	if got, _, err := r.Statuses.write(t.Context(), now, wish{status: &want}); got != written || err != nil {
		t.Errorf("result %s, %v; want written", got, err)
	}
	x := *now
	x.Key.Name = "nothing"
	other := want
	other.Service.Name = "nothing"
	if got, _, _ := r.Statuses.write(t.Context(), &x, wish{status: &other}); got != notFound {
		t.Errorf("no such Service: result %s", got)
	}
	bad := want
	bad.Ingress = []vip.Ingress{{Addr: want.Ingress[0].Addr, IPMode: "Nonsense"}}
	r.poked.until(t, "the status", func() bool { return r.service(key).VIPHost == "n1" })
	if got, _, err := r.Statuses.write(t.Context(), r.Cluster.service(key), wish{status: &bad}); got != rejected || err == nil {
		t.Errorf("an ipMode that does not exist: result %s, %v; want rejected", got, err)
	}
}

// TestConditionsAreWritten: with the status or alone, in one request; those of others stay; lastTransitionTime
// changes with the status only; what is to be absent is removed.
func TestConditionsAreWritten(t *testing.T) {
	r, ns := runCluster(t, Options{})
	api := r.api
	r.create(t, ns, "web", "192.168.7.106")
	key := vip.Key{Namespace: ns, Name: "web"}
	const others = `{"type":"example.com/Ready","status":"True","reason":"Ready","message":"of another program","lastTransitionTime":"2020-01-01T00:00:00Z"}`
	const early = "2020-01-02T00:00:00Z"
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web/status", `{"status":{"conditions":[`+others+`,
		{"type":"heraldvip.io/Announced","status":"True","reason":"VIPAnnounced","message":"node n1 announces it","lastTransitionTime":"`+early+`"}]}}`)
	r.poked.until(t, "the Service", func() bool { return r.service(key) != nil && len(r.service(key).Conditions) == 1 })
	since := func(c vip.ConditionType) string {
		return r.Cluster.service(key).conditionsSince[c].UTC().Format(time.RFC3339)
	}
	announced := vip.Condition{Type: vip.Announced, Status: vip.ConditionTrue, Reason: vip.VIPAnnounced, Message: "node n2 announces it"}
	allocated := vip.Condition{Type: vip.Allocated, Status: vip.ConditionTrue, Reason: vip.AddressSet, Message: "named"}
	want := vip.Status{Service: key, VIPHost: "n2", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.106")}},
		Conditions: []vip.Condition{allocated, announced}}
	r.haveStatus(t, want)
	if since(vip.Announced) != early || since(vip.Allocated) == early {
		t.Errorf("Announced since %s, Allocated since %s", since(vip.Announced), since(vip.Allocated))
	}
	announced.Status, announced.Reason, announced.Message = vip.ConditionFalse, vip.NoEndpoints, "none is ready"
	alone := vip.Status{Service: key, ConditionsOnly: true, Conditions: []vip.Condition{announced}}
	r.haveStatus(t, alone)
	if s := r.Cluster.service(key); since(vip.Announced) == early || s.VIPHost != "n2" || len(s.Ingress) != 1 ||
		!slices.Contains(s.Conditions, allocated) {
		t.Errorf("Announced since %s; %+v", since(vip.Announced), s)
	}
	check.True(t, 5*time.Second, "all writes have ended", func() bool {
		return check.Metric(t, "herald_status_writes_total written", r.Collectors()...) >= 2
	})
	check.Equal(t, check.Metric(t, "herald_api_requests_total services/status", r.Collectors()...), 2, "requests for 2 changes")
	r.haveStatus(t, vip.Status{Service: key, Conditions: []vip.Condition{{Type: vip.Announced}, {Type: vip.Allocated}}})
	if s := r.Cluster.service(key); len(s.Conditions) > 0 || s.VIPHost != "" || len(s.Ingress) > 0 {
		t.Errorf("%+v", s)
	}
	if text := api.must(t, "GET", "/api/v1/namespaces/"+ns+"/services/web", ""); strings.Contains(text, "heraldvip.io/") ||
		!strings.Contains(text, "of another program") {
		t.Error(text)
	}
}

// TestPoolsAreObserved: the ConfigMap of pools and the labels of namespaces as the World has them, also what it was,
// once it is deleted, until it is back; another ConfigMap does not matter.
func TestPoolsAreObserved(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newClusterTest(t, "admin", Options{Pools: vip.Key{Namespace: ns, Name: "kubevip"}})
	check.Run(t, r)
	pools := func() *vip.PoolSource { return observe(r.Cluster).Pools }
	r.poked.until(t, "Synced", r.Synced)
	api.must(t, "POST", "/api/v1/namespaces/"+ns+"/configmaps", `{"metadata":{"name":"other"},"data":{"cidr-global":"10.9.0.0/24"}}`)
	api.must(t, "POST", "/api/v1/namespaces/"+ns+"/configmaps", `{"metadata":{"name":"kubevip"},"data":{"cidr-global":"10.0.0.0/24"}}`)
	r.poked.until(t, "the ConfigMap", func() bool { return pools() != nil })
	p := pools()
	if p.Data["cidr-global"] != "10.0.0.0/24" || p.UID == "" || p.ConfigMap != (vip.Key{Namespace: ns, Name: "kubevip"}) {
		t.Errorf("%+v", p)
	}
	check.Equal(t, pools(), p, "the ConfigMap, which has not changed")
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns, `{"metadata":{"labels":{"team":"blue"}}}`)
	r.poked.until(t, "the label", func() bool { return pools().Namespaces[ns]["team"] == "blue" })
	api.must(t, "POST", "/api/v1/nodes", `{"metadata":{"name":"`+ns+`","labels":{"zone":"a"}}}`)
	t.Cleanup(func() { api.must(t, "DELETE", "/api/v1/nodes/"+ns, "") })
	r.poked.until(t, "the Node with its labels", func() bool {
		return slices.ContainsFunc(observe(r.Cluster).Nodes, func(n vip.Node) bool { return n.Name == ns && n.Labels["zone"] == "a" })
	})
	api.must(t, "DELETE", "/api/v1/namespaces/"+ns+"/configmaps/kubevip", "")
	r.poked.until(t, "its end", func() bool { return pools().Gone })
	check.Equal(t, pools().Data["cidr-global"], "10.0.0.0/24", "what the ConfigMap was last")
	check.Equal(t, pools().Namespaces[ns]["team"], "blue", "the labels then")
	api.must(t, "POST", "/api/v1/namespaces/"+ns+"/configmaps", `{"metadata":{"name":"kubevip"},"data":{"cidr-global":"10.1.0.0/24"}}`)
	r.poked.until(t, "another one", func() bool { p := pools(); return !p.Gone && p.Data["cidr-global"] == "10.1.0.0/24" })
}

// TestAssignmentsAreWritten: the two annotations, once; not on a Service of another UID; again where somebody else has written meanwhile.
func TestAssignmentsAreWritten(t *testing.T) {
	r, ns := runCluster(t, Options{})
	api := r.api
	const n = 30
	var want []vip.Assignment
	for i := range n {
		name := fmt.Sprintf("web-%d", i)
		api.must(t, "POST", "/api/v1/namespaces/"+ns+"/services",
			`{"metadata":{"name":"`+name+`"},"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`)
		want = append(want, vip.Assignment{Service: vip.Key{Namespace: ns, Name: name},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.MustParseAddr("2001:db8::1")}, Pool: "a,b"})
	}
	for i := range want {
		r.poked.until(t, "the Service", func() bool { return r.service(want[i].Service) != nil })
		want[i].UID = r.service(want[i].Service).UID
	}
	want[7].UID = "of one that was deleted"
	r.Assignments.Put(want)
	for i, w := range want {
		if i == 7 {
			continue
		}
		r.poked.until(t, "the address", func() bool { return !r.Cluster.service(w.Service).lacks(&w) })
		if c := r.service(w.Service).Conditions; len(c) != 2 || !slices.Equal(r.service(w.Service).Record.Given,
			w.Addresses) || c[0].Type != vip.Allocated || c[0].Status != vip.ConditionTrue ||
			!strings.HasSuffix(c[0].Message, ", 2001:db8::1: of pool a,b") {
			t.Errorf("conditions %+v", c)
		}
	}
	check.Equal(t, r.service(want[7].Service).Allocated, "", "the pool of another Service")
	check.Equal(t, len(r.service(want[7].Service).Addresses), 0, "its addresses")
	check.True(t, 5*time.Second, "all requests have ended",
		func() bool {
			return check.Metric(t, "herald_api_requests_total services/status", r.Collectors()...) >= n-1
		})
	check.Equal(t, check.Metric(t, "herald_api_requests_total services/status", r.Collectors()...), n-1, "requests")
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web-3",
		`{"metadata":{"annotations":{"kube-vip.io/loadbalancerIPs":null,"heraldvip.io/allocated":null}}}`)
	r.poked.until(t, "the address is gone", func() bool { return r.Cluster.service(want[3].Service).lacks(&want[3]) })
	r.Assignments.Put(want)
	r.poked.until(t, "the address is back", func() bool { return !r.Cluster.service(want[3].Service).lacks(&want[3]) })
}

// putEvents puts Events and waits until they are written.
func (r *clusterTest) putEvents(t testing.TB, want ...vip.Event) {
	t.Helper()
	check.True(t, 20*time.Second, "Events are written", func() bool { return len(putWritten(r.Events, want...)) == len(want) })
}

func TestEvents(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	first := newClusterTest(t, "admin", Options{})
	check.Run(t, first)
	check.Run(t, first.Events)
	key := first.web(t, ns, "192.168.7.108")
	id := first.service(key).UID
	announced := vip.Event{Service: key, UID: id, Reason: vip.VIPAnnounced,
		Message: "node n1 announces 192.168.7.108 on eth0", Occurrence: 1}
	refused := vip.Event{Service: key, UID: id, Warning: true, Reason: vip.AddressRefused, Message: strings.Repeat("ä", 2000)}
	first.putEvents(t, announced, refused)
	first.putEvents(t, announced, refused)

	// After a restart, or on another node: the same is not written again.
	second := newClusterTest(t, "admin", Options{Node: "n2"})
	check.Run(t, second.Events)
	second.putEvents(t, announced)
	check.Equal(t, check.Metric(t, "herald_events_total already_exists", second.Collectors()...), 1, "herald_events_total{already_exists}")

	var list corev1.EventList
	check.OK(t, json.Unmarshal([]byte(api.must(t, "GET", "/api/v1/namespaces/"+ns+"/events", "")), &list))
	if len(list.Items) != 2 {
		t.Fatalf("%d Events, want 2", len(list.Items))
	}

	// It ceases to hold, and holds again.
	first.putEvents(t)
	first.putEvents(t, announced)
	s := check.Value(TakeSnapshot(t.Context(), api.as("admin"), ns))(t)
	var got []vip.Event
	for _, e := range s.Events {
		if e.Node != "n1" || time.Since(e.At) > time.Minute {
			t.Errorf("Event by %q at %v", e.Node, e.At)
		}
		e.Occurrence = 0 // is not kept
		got = append(got, e.Event)
	}
	announced.Occurrence = 0
	refused.Message = strings.Repeat("ä", 510) + "..."
	if diff := cmp.Diff([]vip.Event{announced, announced, refused}, got,
		cmpopts.SortSlices(func(a, b vip.Event) bool { return a.Reason > b.Reason })); diff != "" {
		t.Errorf("Events (-want +got):\n%s", diff)
	}
	if len(s.Services) != 1 || s.Services[0].Key != key {
		t.Errorf("Services: %v", s.Services)
	}
	describeByKubectl(t, api, ns)
}

func describeByKubectl(t testing.TB, api *apiServer, ns string) {
	t.Helper()
	kubectl := filepath.Join(api.bin, "kubectl")
	out, err := exec.Command(kubectl, "--server", api.as("").Host, "--token", "admin", "--insecure-skip-tls-verify", "-n",
		ns, "describe", "service", "web").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	check.Contains(t, string(out), "VIPAnnounced", "AddressRefused", "herald", "node n1 announces 192.168.7.108 on eth0")
}

func TestSnapshotOfWhatMayBeRead(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	api.allow(t, "nobody", ns,
		`[{"apiGroups":[""],"resources":["services"],"verbs":["list"]},{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["list"]}]`)
	r := newClusterTest(t, "admin", Options{})
	r.create(t, ns, "web", "192.168.7.109")
	s, err := TakeSnapshot(t.Context(), api.as("nobody"), ns)
	if err != nil || len(s.Missing) != 3 || !strings.Contains(fmt.Sprint(s.Missing), "Leases of other namespaces") ||
		!strings.Contains(fmt.Sprint(s.Missing), "Events") {
		t.Errorf("%v, missing %q, want Leases of other namespaces, Nodes and Events", err, s.Missing)
	}
	_, err = TakeSnapshot(t.Context(), api.as("nobody"), "default")
	check.Contains(t, fmt.Sprint(err), "leases")
	check.Equal(t, len(s.Services), 1, "Services")
}

// TestSnapshotOfTheRoleView: who may read Services but no Leases, as with Kubernetes' role view, is shown what may be read, and told which right is missing; what can't do without is refused.
func TestSnapshotOfTheRoleView(t *testing.T) {
	api := startAPI(t)
	ns, role := api.namespace(t), "/apis/rbac.authorization.k8s.io/v1"
	newClusterTest(t, "admin", Options{}).create(t, ns, "web", "192.168.7.113")
	binding := `{"metadata":{"name":"view"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"system:aggregate-to-view"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"nobody"}]}`
	for _, tt := range []struct{ in, namespace string }{{"/namespaces/" + ns + "/rolebindings", ns}, {"/clusterrolebindings", ""}, {"/clusterrolebindings", ns}} {
		api.must(t, "POST", role+tt.in, binding)
		check.Until(t, 10*time.Second, "only Nodes and Leases are missing", func() error {
			s, err := TakeAllowedSnapshot(t.Context(), api.as("nobody"), tt.namespace)
			if err == nil && (len(s.Missing) != 2 || !s.FewerLeases || len(s.Leases) > 0 ||
				!slices.ContainsFunc(s.Services, func(s vip.Service) bool { return s.Key.Namespace == ns })) {
				err = fmt.Errorf("%+v", s)
			}
			if err == nil {
				err = s.TakeEndpoints(t.Context(), api.as("nobody"), tt.namespace)
			}
			if err == nil && !strings.Contains(fmt.Sprint(s.Missing), `Leases, so owners and nodes are not shown: can't list leases: leases.coordination.k8s.io is forbidden: User "nobody" cannot list resource "leases" in API group "coordination.k8s.io"`) {
				err = fmt.Errorf("missing %q", s.Missing)
			}
			return err
		})
		_, err := TakeSnapshot(t.Context(), api.as("nobody"), tt.namespace)
		check.Contains(t, fmt.Sprint(err), `User "nobody" cannot list resource "leases"`)
		api.must(t, "DELETE", role+tt.in+"/view", "")
		check.Until(t, 10*time.Second, "the role is gone", func() error {
			if _, err := TakeAllowedSnapshot(t.Context(), api.as("nobody"), tt.namespace); err == nil {
				return fmt.Errorf("it is there")
			}
			return nil
		})
	}
}

// TestSnapshotOfOneNamespace: who may read all namespaces gets the Services and leases of all, others those of the one that they may read.
func TestSnapshotOfOneNamespace(t *testing.T) {
	api := startAPI(t)
	ns, other := api.namespace(t), api.namespace(t)
	api.allow(t, "nobody", ns, `[{"apiGroups":["","coordination.k8s.io"],"resources":["services","leases","events"],"verbs":["list"]}]`)
	r := newClusterTest(t, "admin", Options{})
	r.create(t, ns, "web", "192.168.7.110")
	r.create(t, other, "web", "192.168.7.111")
	for user, sees := range map[string]bool{"admin": true, "nobody": false} {
		var s Snapshot
		check.Until(t, 10*time.Second, "the API server's authorizer has read the Role", func() (err error) {
			s, err = TakeAllowedSnapshot(t.Context(), api.as(user), ns)
			return err
		})
		has := func(ns string) bool {
			return slices.ContainsFunc(s.Services, func(s vip.Service) bool { return s.Key.Namespace == ns })
		}
		check.Equal(t, s.FewerLeases, !sees, "%s gets not all Leases", user)
		if !has(ns) || has(other) != sees {
			t.Errorf("%s gets the Services %v, want those of its own namespace, and of the other one: %v", user, s.Services, sees)
		}
	}
}

// TestSnapshotOfForgedEvent: an Event that a user of another namespace has written about the UID of a Service is not the Service's.
func TestSnapshotOfForgedEvent(t *testing.T) {
	api := startAPI(t)
	ns, evil := api.namespace(t), api.namespace(t)
	r := newClusterTest(t, "admin", Options{})
	r.create(t, ns, "web", "192.168.7.112")
	s := check.Value(TakeSnapshot(t.Context(), api.as("admin"), ns))(t)
	uid := s.Services[0].UID
	for _, in := range []string{ns, evil} {
		api.must(t, "POST", "/api/v1/namespaces/"+in+"/events", `{"metadata":{"name":"e"},"type":"Warning","reason":"VIPForeignMAC","message":"written in `+in+`","source":{"component":"herald"},
			"involvedObject":{"kind":"Service","namespace":"`+in+`","name":"web","uid":"`+uid+`"}}`)
	}
	s = check.Value(TakeSnapshot(t.Context(), api.as("admin"), ""))(t)
	var got []string
	for _, e := range s.Events {
		if e.UID == uid {
			got = append(got, e.Message)
		}
	}
	check.Same(t, []string{"written in " + ns}, got, "the Events of the Service")
}
