package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// pending is how many of these Statuses the cache does not show.
func (r *clusterTest) pending(want ...vip.Status) int {
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
	if n := r.pending(want...); n != 0 {
		t.Errorf("%d pending; nobody should wait for what is not to be done", n)
	}
	// What comes later in the same cache shows that nothing came before it.
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web", `{"metadata":{"annotations":{"heraldvip.io/ip-mode":"Proxy"}}}`)
	r.poked.until(t, "the change", func() bool { return r.service(key).IPMode == vip.ModeProxy })
	if s := r.service(key); s.VIPHost != "" || len(s.Ingress) != 0 {
		t.Errorf("host %q, ingress %v were written", s.VIPHost, s.Ingress)
	}
	if got := sum(t, r.Collectors(), "herald_api_requests_total", "services/status"); got != 0 {
		t.Errorf("%v requests were sent", got)
	}
}

// TestStatusPreconditions: the API server takes a write only for the version that it was made for.
func TestStatusPreconditions(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newClusterTest(t, "admin", Options{})
	check.Run(t, r)
	key := r.web(t, ns, "192.168.7.110")
	want := vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.110"),
		IPMode: vip.ModeVIP}}}
	now := r.Cluster.service(key)
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
		return sum(t, r.Collectors(), "herald_status_writes_total", "written") >= 2
	})
	if got := sum(t, r.Collectors(), "herald_api_requests_total", "services/status"); got != 2 {
		t.Errorf("%v requests for 2 changes", got)
	}
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
	if again := pools(); again != p {
		t.Error("an unchanged ConfigMap is read again")
	}
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns, `{"metadata":{"labels":{"team":"blue"}}}`)
	r.poked.until(t, "the label", func() bool { return pools().Namespaces[ns]["team"] == "blue" })
	api.must(t, "POST", "/api/v1/nodes", `{"metadata":{"name":"`+ns+`","labels":{"zone":"a"}}}`)
	t.Cleanup(func() { api.must(t, "DELETE", "/api/v1/nodes/"+ns, "") })
	r.poked.until(t, "the Node with its labels", func() bool {
		return slices.ContainsFunc(observe(r.Cluster).Nodes, func(n vip.Node) bool { return n.Name == ns && n.Labels["zone"] == "a" })
	})
	api.must(t, "DELETE", "/api/v1/namespaces/"+ns+"/configmaps/kubevip", "")
	r.poked.until(t, "its end", func() bool { return pools().Gone })
	if p := pools(); p.Data["cidr-global"] != "10.0.0.0/24" || p.Namespaces[ns]["team"] != "blue" {
		t.Errorf("what it was last: %+v", p)
	}
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
	if s := r.service(want[7].Service); s.Allocated != "" || len(s.Addresses) > 0 {
		t.Errorf("another Service got its address: %+v", s)
	}
	check.True(t, 5*time.Second, "all requests have ended",
		func() bool { return sum(t, r.Collectors(), "herald_api_requests_total", "services/status") >= n-1 })
	if got := sum(t, r.Collectors(), "herald_api_requests_total", "services/status"); got != n-1 {
		t.Errorf("%v requests for %d addresses", got, n-1)
	}
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web-3",
		`{"metadata":{"annotations":{"kube-vip.io/loadbalancerIPs":null,"heraldvip.io/allocated":null}}}`)
	r.poked.until(t, "the address is gone", func() bool { return r.Cluster.service(want[3].Service).lacks(&want[3]) })
	r.Assignments.Put(want)
	r.poked.until(t, "the address is back", func() bool { return !r.Cluster.service(want[3].Service).lacks(&want[3]) })
}
