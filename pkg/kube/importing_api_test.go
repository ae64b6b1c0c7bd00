package kube

import (
	"fmt"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// What is to be imported is read page by page; a kind that the cluster does not know has no objects.
func TestReadObjects(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	admin := api.as("admin")
	const n = 501 // more than a page
	for i := range n {
		api.must(t, "POST", "/api/v1/namespaces/"+ns+"/configmaps", fmt.Sprintf(`{"metadata":{"name":"m%d"},"data":{"a":"b"}}`, i))
	}
	for _, tt := range []struct {
		path string
		want int
	}{
		{"/api/v1/namespaces/" + ns + "/configmaps", n},
		{"/api/v1/namespaces/" + ns + "/configmaps/m7", 1},
		{"/api/v1/namespaces/" + ns + "/configmaps/none", 0},
		{"/api/v1/namespaces/" + ns + "/services", 0},
		{"/apis/metallb.io/v1beta1/ipaddresspools", 0},
	} {
		all := check.Value(ReadObjects(t.Context(), admin, "ConfigMap", tt.path))(t)
		if len(all) != tt.want || tt.want > 0 && (!strings.Contains(string(all[0]), `"kind":"ConfigMap"`) ||
			!strings.Contains(string(all[0]), `"data":{"a":"b"}`)) {
			t.Errorf("%s: %d objects, want %d: %.300s", tt.path, len(all), tt.want, all)
		}
	}
	if _, err := ReadObjects(t.Context(), api.as("nobody"), "Service", "/api/v1/services"); err == nil ||
		!strings.Contains(err.Error(), "can't read /api/v1/services") {
		t.Errorf("without permission: %v", err)
	}
}

// The ConfigMap of pools is added to, and never overwritten; a Service keeps its other annotations.
func TestApplyPools(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	admin, k := api.as("admin"), vip.Key{Namespace: ns, Name: "kubevip"}
	apply := func(data map[string]string) error { return ApplyPools(t.Context(), admin, k, data) }
	check.OK(t, apply(map[string]string{"pool-a": "10.0.0.0/28"}))
	check.OK(t, apply(map[string]string{"pool-a": "10.0.0.0/28", "pool-b": "10.0.1.0/28"}))
	err := apply(map[string]string{"pool-a": "10.0.9.0/28", "pool-c": "10.0.2.0/28"})
	if err == nil || !strings.Contains(err.Error(), `has the key pool-a with another value: "10.0.0.0/28" instead of "10.0.9.0/28"`) {
		t.Errorf("overwritten: %v", err)
	}
	if got := check.Value(TakePools(t.Context(), admin, k))(t).Data; fmt.Sprint(got) != "map[pool-a:10.0.0.0/28 pool-b:10.0.1.0/28]" {
		t.Errorf("%v", got)
	}
	api.must(t, "POST", "/api/v1/namespaces/"+ns+"/services",
		`{"metadata":{"name":"web","annotations":{"example.com/x":"y"}},"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`)
	check.OK(t, AnnotateService(t.Context(), admin, vip.Key{Namespace: ns, Name: "web"}, map[string]string{addressesKey: "10.0.0.1"}))
	if web := api.must(t, "GET", "/api/v1/namespaces/"+ns+"/services/web", ""); !strings.Contains(web,
		`"annotations":{"example.com/x":"y","kube-vip.io/loadbalancerIPs":"10.0.0.1"}`) {
		t.Error(web)
	}
	if err := AnnotateService(t.Context(), admin, vip.Key{Namespace: ns, Name: "none"},
		map[string]string{addressesKey: "10.0.0.1"}); err == nil {
		t.Error("a Service that is not there is no error")
	}
}
