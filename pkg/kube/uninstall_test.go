package kube

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
		{"of another installation", service(map[string]string{allocatedKey: "range-global", announcerKey: "edge"}, true), false, "", ""},
		{"announced by kube-vip", service(map[string]string{addressesKey: "10.77.0.60", vipHostKey: "n1"}, true), false, "", ""},
		{"leased", service(map[string]string{requestedKey: "10.77.0.9", dhcpLeaseKey: "[]", announcerKey: "kube-system"}, false), false,
			"the status; annotations heraldvip.io/announcer, heraldvip.io/dhcp-lease, kube-vip.io/requestedIP", ""},
		{"leased before", service(map[string]string{requestedKey: "10.77.0.9"}, false), false, "",
			"annotation kube-vip.io/requestedIP: " + own},
	} {
		u := Uninstaller{namespace: "kube-system", keepAddresses: tt.keep}
		if _, what, left := u.cleanService(tt.service); what != tt.what || left != tt.left {
			t.Errorf("%s: %q, left %q\nwant %q, left %q", tt.name, what, left, tt.what, tt.left)
		}
	}
}

// An Uninstaller lists what Herald has written, removes it, and leaves what others have.
func TestUninstaller(t *testing.T) {
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

	u := check.Value(NewUninstaller(api.as("admin"), ns, false))(t)
	list := func() (lines []string) {
		for _, x := range check.Value(u.Traces(t.Context()))(t) {
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
	if got := strings.Join(list(), "\n"); got != fmt.Sprintf(want, ns) {
		t.Errorf("listed\n%s", got)
	}
	all := check.Value(u.Traces(t.Context()))(t)
	api.must(t, "PATCH", services+"/web", `{"metadata":{"labels":{"a":"b"}}}`) // somebody writes it meanwhile
	for _, x := range all {
		if x.Object.Namespace == ns || x.Object.Name == ns {
			check.OK(t, x.Remove(t.Context()))
			check.OK(t, x.Remove(t.Context())) // gone by now
		}
	}
	if left := list(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	web := api.must(t, "GET", services+"/web", "")
	for _, part := range []string{`"finalizers":["example.com/other"]`, `"annotations":{"example.com/x":"y"}`,
		`"type":"example.com/Other"`, `"loadBalancer":{}`} {
		if !strings.Contains(web, part) {
			t.Errorf("%s is not in %s", part, web)
		}
	}
	for _, path := range []string{leases + "/mine", "/api/v1/nodes/" + ns} {
		api.must(t, "GET", path, "")
	}
}
