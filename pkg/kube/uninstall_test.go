package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// Of a Service goes what Herald has written, and nothing else.
func TestCleanService(t *testing.T) {
	service := func(annotations map[string]string, finalizer bool) *corev1.Service {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Annotations: annotations}}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.77.0.60"}}
		if finalizer {
			s.Finalizers = []string{cleanupFinalizer, "example.com/other"}
		}
		return s
	}
	shown := service(nil, true)
	had := vip.Record{Named: []netip.Addr{netip.MustParseAddr("10.77.0.60")}}
	shown.Status.Conditions = []metav1.Condition{{Type: string(vip.Recorded), Status: "True", Message: had.String()}}
	rejected := service(nil, true)
	rejected.Status.Conditions = []metav1.Condition{{Type: string(vip.Announced), Status: "False"}}
	const own = "a user may have set it"
	for _, tt := range []struct {
		name       string
		service    *corev1.Service
		keep       bool
		what, left string
	}{
		{"of nobody", service(map[string]string{addressesKey: "10.77.0.60", ignoreKey: "true"}, true), false, "", ""},
		{"announced", service(map[string]string{addressesKey: "10.77.0.60", vipHostKey: "n1", announcerKey: "kube-system"}, false), false,
			"the status; annotations heraldvip.io/announcer, kube-vip.io/vipHost", ""},
		{"given an address", service(map[string]string{addressesKey: "10.77.0.60", allocatedKey: "range-global",
			vipHostKey: "n1", announcerKey: "kube-system"}, true), false,
			"the status; the finalizer; annotations heraldvip.io/announcer, kube-vip.io/vipHost, heraldvip.io/allocated, " +
				"kube-vip.io/loadbalancerIPs", ""},
		{"given an address that stays", service(map[string]string{addressesKey: "10.77.0.60", allocatedKey: "range-global",
			vipHostKey: "n1", announcerKey: "kube-system"}, true), true,
			"the finalizer; annotations heraldvip.io/announcer, kube-vip.io/vipHost, heraldvip.io/allocated", ""},
		{"given an address, not shown", service(map[string]string{addressesKey: "10.77.0.60", allocatedKey: "range-global"}, false), false,
			"annotations heraldvip.io/allocated, kube-vip.io/loadbalancerIPs", ""},
		{"given an address beside an own one", service(map[string]string{addressesKey: "10.77.0.80", allocatedKey: "range-global",
			allocatedAddressesKey: "fd77::60"}, false), false, "annotations heraldvip.io/allocated, heraldvip.io/allocated-addresses", ""},
		{"... of the spec", service(map[string]string{allocatedKey: "range-global", allocatedAddressesKey: "fd77::60"}, false), false,
			"annotations heraldvip.io/allocated, heraldvip.io/allocated-addresses", ""},
		{"given an address, and so written", service(map[string]string{addressesKey: "10.77.0.60", allocatedKey: "range-global",
			allocatedAddressesKey: "10.77.0.60"}, false), false,
			"annotations heraldvip.io/allocated, heraldvip.io/allocated-addresses, kube-vip.io/loadbalancerIPs", ""},
		{"given an address, then another in its place", service(map[string]string{addressesKey: "10.77.0.80", allocatedKey: "range-global",
			allocatedAddressesKey: "10.77.0.60"}, false), false, "annotations heraldvip.io/allocated, heraldvip.io/allocated-addresses", ""},
		{"of another installation", service(map[string]string{allocatedKey: "range-global", announcerKey: "edge"}, true), false, "", ""},
		{"announced by kube-vip", service(map[string]string{addressesKey: "10.77.0.60", vipHostKey: "n1"}, true), false, "", ""},
		{"leased", service(map[string]string{requestedKey: "10.77.0.9", dhcpLeaseKey: "[]", announcerKey: "kube-system"}, false), false,
			"the status; annotations heraldvip.io/announcer, heraldvip.io/dhcp-lease, kube-vip.io/requestedIP", ""},
		{"given an address, and its annotations are gone", shown, false, "the finalizer; conditions heraldvip.io/Record", ""},
		{"rejected", rejected, false, "conditions heraldvip.io/Announced", ""},
		{"leased before", service(map[string]string{requestedKey: "10.77.0.9"}, false), false, "",
			"annotation kube-vip.io/requestedIP: " + own},
	} {
		u := uninstaller{namespace: "kube-system", keepAddresses: tt.keep}
		if _, what, left := u.cleanService(tt.service); what != tt.what || left != tt.left {
			t.Errorf("%s: %q, left %q\nwant %q, left %q", tt.name, what, left, tt.what, tt.left)
		}
	}
}

// With --keep-addresses what a Service was given beside what its user named is named, too.
func TestKeptAddresses(t *testing.T) {
	for _, tt := range []struct{ named, given, spec, want string }{
		{"10.77.0.60", "", "", ""},
		{"10.77.0.60", "10.77.0.60", "", ""},
		{"10.77.0.80", "10.77.0.60", "", ""}, // a person's
		{"10.77.0.80", "fd77::60", "", "10.77.0.80,fd77::60"},
		{"", "fd77::60", "10.77.0.80", "10.77.0.80,fd77::60"},
		{"", "10.77.0.60", "", "10.77.0.60"},
	} {
		policy := corev1.IPFamilyPolicyRequireDualStack
		s := &corev1.Service{Spec: corev1.ServiceSpec{LoadBalancerIP: tt.spec, IPFamilyPolicy: &policy}, ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			addressesKey: tt.named, allocatedKey: "range-global", allocatedAddressesKey: tt.given}}}
		patch, _, _ := (&uninstaller{keepAddresses: true}).cleanService(s)
		got := patch["metadata"].(map[string]any)["annotations"].(map[string]any)
		if v, _ := got[addressesKey].(string); v != tt.want || got[allocatedAddressesKey] != nil {
			t.Errorf("%+v: annotations %v", tt, got)
		}
	}
}

// Traces are what Herald has written; their removal leaves what others have.
func TestTraces(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	services, leases := "/api/v1/namespaces/"+ns+"/services", "/apis/coordination.k8s.io/v1/namespaces/"+ns+"/leases"
	api.must(t, "POST", services, `{"metadata":{"name":"web","finalizers":["example.com/other","service.kubernetes.io/load-balancer-cleanup"],
		"annotations":{"heraldvip.io/announcer":"`+ns+`","kube-vip.io/vipHost":"n1","heraldvip.io/allocated":"range-global","kube-vip.io/loadbalancerIPs":"10.77.0.60","example.com/x":"y"}},
		"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`)
	api.must(t, "PATCH", services+"/web/status", `{"status":{"loadBalancer":{"ingress":[{"ip":"10.77.0.60"}]},"conditions":[
		{"type":"heraldvip.io/Announced","status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"},
		{"type":"example.com/Other","status":"True","reason":"R","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
	t.Cleanup(func() { api.do("PATCH", services+"/web", `{"metadata":{"finalizers":null}}`) })
	lease := func(name, labels, claim string) {
		api.must(t, "POST", leases,
			`{"metadata":{"name":"`+name+`","labels":{`+labels+`},"annotations":{"heraldvip.io/claim":"`+claim+`"}},"spec":{}}`)
	}
	const label = `"app.kubernetes.io/managed-by":"herald"`
	lease("kubevip-web", label, "n1@7")
	lease("mine", "", "n1@7")
	edge := "/apis/coordination.k8s.io/v1/namespaces/" + api.namespace(t) + "/leases"
	api.must(t, "POST", edge, `{"metadata":{"name":"kubevip-web","labels":{`+label+`}},"spec":{}}`)
	api.must(t, "POST", edge, `{"metadata":{"name":"herald-table","labels":{`+label+`}},"spec":{}}`) // another installation's
	api.must(t, "POST", "/api/v1/namespaces/"+ns+"/secrets", `{"metadata":{"name":"herald-peers"}}`)
	api.must(t, "POST", "/api/v1/nodes",
		`{"metadata":{"name":"`+ns+`","annotations":{"heraldvip.io/drain":"2026-01-01T00:00:00Z","example.com/x":"y"}}}`)
	t.Cleanup(func() { api.do("DELETE", "/api/v1/nodes/"+ns, "") })

	traces := func() []Trace { return check.Value(Traces(t.Context(), api.as("admin"), ns, false))(t) }
	list := func() (lines []string) {
		for _, x := range traces() {
			if x.Object.Namespace == ns || x.Object.Name == ns {
				lines = append(lines, fmt.Sprintf("%s %s: %s", x.Kind, x.Object.Name, x.What))
			}
		}
		return lines
	}
	const want = `Service web: the status; the finalizer; annotations heraldvip.io/announcer, kube-vip.io/vipHost, heraldvip.io/allocated, kube-vip.io/loadbalancerIPs; conditions heraldvip.io/Announced
Lease kubevip-web: all
Node %s: annotations heraldvip.io/drain
Secret herald-peers: all`
	check.Equal(t, strings.Join(list(), "\n"), fmt.Sprintf(want, ns), "what is listed")
	all := traces()
	api.must(t, "PATCH", services+"/web", `{"metadata":{"labels":{"a":"b"}}}`) // somebody writes it meanwhile
	for _, x := range all {
		if x.Object.Namespace == ns || x.Object.Name == ns {
			check.OK(t, x.Remove(t.Context()))
			check.OK(t, x.Remove(t.Context())) // gone by now
		}
	}
	check.Equal(t, len(list()), 0, "how many are left")
	web := api.must(t, "GET", services+"/web", "")
	check.Contains(t, web, `"finalizers":["example.com/other"]`, `"annotations":{"example.com/x":"y"}`,
		`"type":"example.com/Other"`, `"loadBalancer":{}`)
	for _, path := range []string{leases + "/mine", "/api/v1/nodes/" + ns} {
		api.must(t, "GET", path, "")
	}
}

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
	_, err := ReadObjects(t.Context(), api.as("nobody"), "Service", "/api/v1/services")
	check.Contains(t, fmt.Sprint(err), "can't read /api/v1/services")
}

// The ConfigMap of pools is added to, and never overwritten; a Service keeps its other annotations.
func TestAddPools(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	admin, k := api.as("admin"), vip.Key{Namespace: ns, Name: "kubevip"}
	apply := func(data map[string]string) error {
		write, err := AddPools(t.Context(), admin, k, data)
		if err != nil {
			return err
		}
		return write()
	}
	check.OK(t, apply(map[string]string{"pool-a": "10.0.0.0/28"}))
	check.OK(t, apply(map[string]string{"pool-a": "10.0.0.0/28", "pool-b": "10.0.1.0/28"}))
	err := apply(map[string]string{"pool-a": "10.0.9.0/28", "pool-c": "10.0.2.0/28"})
	check.Contains(t, fmt.Sprint(err), `has the key pool-a with another value: "10.0.0.0/28" instead of "10.0.9.0/28"`)
	got := check.Value(TakePools(t.Context(), admin, k))(t)
	if fmt.Sprint(got.Data) != "map[pool-a:10.0.0.0/28 pool-b:10.0.1.0/28]" || got.Namespaces[ns]["kubernetes.io/metadata.name"] != ns {
		t.Errorf("%v, labels %v", got.Data, got.Namespaces)
	}
	api.must(t, "POST", "/api/v1/namespaces/"+ns+"/services",
		`{"metadata":{"name":"web","annotations":{"example.com/x":"y"}},"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`)
	check.OK(t, AnnotateService(t.Context(), admin, vip.Key{Namespace: ns, Name: "web"}, map[string]string{addressesKey: "10.0.0.1"}))
	check.Contains(t, api.must(t, "GET", "/api/v1/namespaces/"+ns+"/services/web", ""),
		`"annotations":{"example.com/x":"y","kube-vip.io/loadbalancerIPs":"10.0.0.1"}`)
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
	check.Contains(t, fmt.Sprint(err), "herald manifest rbac", home)
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
	check.Equal(t, permittedKeys(t, r, "another"), key, "the key, again")
	check.Contains(t, api.must(t, "GET", secrets+"/herald-peers", ""), `"a":"b"`) // its labels
	// Somebody rotates it.
	api.must(t, "PATCH", secrets+"/herald-peers", `{"stringData":{"keys":"new"}}`)
	if keys, err := r.PeersKeys(t.Context(), nil); err != nil || string(keys) != "new" {
		t.Errorf("after a rotation: got %q, %v", keys, err)
	}
	api.must(t, "PATCH", secrets+"/herald-peers", `{"data":{"keys":null,"key":"eHg="}}`)
	_, err = r.PeersKeys(t.Context(), nil)
	check.Contains(t, fmt.Sprint(err), `no entry "keys"`)

	// A static Pod may have the kubeconfig of an administrator, and no manifest of permissions.
	api.must(t, "DELETE", secrets+"/herald-peers", "")
	api.allow(t, "narrow", home, mayCreate)
	sameKeys(t, r)
}
