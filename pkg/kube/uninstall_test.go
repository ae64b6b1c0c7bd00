package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
