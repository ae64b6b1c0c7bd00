package lab

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Service returns a LoadBalancer, port 80, for pods labelled app=<name>, not created yet.
func Service(ns, name string, opts ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: corev1.ServiceSpec{
			Type:     corev1.ServiceTypeLoadBalancer,
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(80)}},
		},
	}
	for _, o := range opts {
		o(s)
	}
	return s
}

// WithVIPs asks for the addresses, by annotation, and their families.
func WithVIPs(addrs ...netip.Addr) func(*corev1.Service) {
	return func(s *corev1.Service) {
		var ips []string
		s.Spec.IPFamilies = nil
		seen := map[corev1.IPFamily]bool{}
		for _, a := range addrs {
			f := corev1.IPv6Protocol
			if a.Is4() {
				f = corev1.IPv4Protocol
			}
			if ips = append(ips, a.String()); !seen[f] {
				seen[f], s.Spec.IPFamilies = true, append(s.Spec.IPFamilies, f)
			}
		}
		if len(seen) == 2 {
			p := corev1.IPFamilyPolicyRequireDualStack
			s.Spec.IPFamilyPolicy = &p
		}
		Annotated("kube-vip.io/loadbalancerIPs", strings.Join(ips, ","))(s)
	}
}

// Annotated sets an annotation.
func Annotated(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, key, value) }
}

// Selecting sends the traffic to pods labelled app=<app>.
func Selecting(app string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": app} }
}

// Local sets externalTrafficPolicy: Local.
func Local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}
