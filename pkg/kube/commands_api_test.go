package kube

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

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

// secretPermissions are all that it needs for the key of the peers, in the announcer's namespace.
const secretPermissions = `[
	{"apiGroups":[""],"resources":["secrets"],"resourceNames":["herald-peers"],"verbs":["get","update"]}]`

// mayCreate is what a kubeconfig of an administrator has besides.
const mayCreate = `[{"apiGroups":[""],"resources":["secrets"],"verbs":["create"]}]`

// permittedKeys is PeersKeys as soon as the API server's authorizer, which reads Roles by a watch, knows the Role.
func permittedKeys(t *testing.T, r *clusterTest, mine string) string {
	var keys []byte
	check.Until(t, 10*time.Second, "the key", func() (err error) {
		keys, err = r.PeersKeys(t.Context(), func() []byte { return []byte(mine) })
		return err
	})
	return string(keys)
}

// sameKeys has several nodes ask for the key at once, and returns the one that all of them get.
func sameKeys(t *testing.T, r *clusterTest) string {
	t.Helper()
	var group sync.WaitGroup
	got := make([]string, 8)
	for i := range got {
		group.Go(func() { got[i] = permittedKeys(t, r, strings.Repeat("x", i+1)) })
	}
	group.Wait()
	for _, g := range got {
		if g == "" || g != got[0] {
			t.Fatalf("not all have the same key: %q", got)
		}
	}
	return got[0]
}

// TestPeersKeys: of several nodes that find an empty Secret one writes the key, and all have it; where there is no
// Secret they say what to do about it, and nothing is created unless that is permitted.
func TestPeersKeys(t *testing.T) {
	api := startAPI(t)
	home := api.namespace(t)
	secrets := "/api/v1/namespaces/" + home + "/secrets"
	r := newClusterTest(t, "narrow", Options{NodeLeaseNamespace: home})

	_, err := r.PeersKeys(t.Context(), func() []byte { return []byte("none") })
	if err == nil || !strings.Contains(err.Error(), "herald manifest rbac") || !strings.Contains(err.Error(), home) {
		t.Fatalf("without permission: got %v", err)
	}
	api.allow(t, "narrow", home, secretPermissions)
	check.Until(t, 10*time.Second, "without a Secret it says so", func() error {
		_, err := r.PeersKeys(t.Context(), func() []byte { return []byte("none") })
		if want := "there is no Secret herald-peers in the namespace " + home; err == nil ||
			!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "herald manifest rbac") {
			return fmt.Errorf("got %v, want %q", err, want)
		}
		return nil
	})

	api.must(t, "POST", secrets, `{"metadata":{"name":"herald-peers","labels":{"a":"b"}},"type":"Opaque"}`)
	key := sameKeys(t, r)
	if again := permittedKeys(t, r, "another"); again != key {
		t.Errorf("the key was %q, and is %q", key, again)
	}
	if text := api.must(t, "GET", secrets+"/herald-peers", ""); !strings.Contains(text, `"a":"b"`) {
		t.Errorf("labels are lost: %s", text)
	}
	// Somebody rotates it.
	api.must(t, "PATCH", secrets+"/herald-peers", `{"stringData":{"keys":"new"}}`)
	if keys, err := r.PeersKeys(t.Context(), nil); err != nil || string(keys) != "new" {
		t.Errorf("after a rotation: got %q, %v", keys, err)
	}
	api.must(t, "PATCH", secrets+"/herald-peers", `{"data":{"keys":null,"key":"eHg="}}`)
	if _, err := r.PeersKeys(t.Context(), nil); err == nil || !strings.Contains(err.Error(), `no entry "keys"`) {
		t.Errorf("without the entry: got %v", err)
	}

	// A static Pod may have the kubeconfig of an administrator, and no manifest of permissions.
	api.must(t, "DELETE", secrets+"/herald-peers", "")
	api.allow(t, "narrow", home, mayCreate)
	sameKeys(t, r)
}
