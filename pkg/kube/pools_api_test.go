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
