package kube

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tenantService is what somebody with the role edit in the namespace "tenant" can make of a Service: annotations has
// lines of the form key=value, ports its ports, and each bit of flags something about the rest.
func tenantService(annotations, loadBalancerIP string, ports []byte, flags uint16) *corev1.Service {
	flag := func(n int) bool { return flags>>n&1 == 1 }
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "tenant", Name: "app", UID: "uid-app", CreationTimestamp: metav1.NewTime(othersCreated.Add(time.Hour)),
		Annotations: make(map[string]string),
	}}
	if flag(0) { // older than all others
		o.CreationTimestamp = metav1.NewTime(othersCreated.Add(-time.Hour))
	}
	for line := range strings.Lines(annotations) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		o.Annotations[key] = value
	}
	o.Spec.LoadBalancerIP = loadBalancerIP
	o.Spec.Type = corev1.ServiceTypeLoadBalancer
	if flag(1) {
		o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		o.Spec.HealthCheckNodePort = 30000
	}
	if flag(2) {
		o.Spec.IPFamilies = append(o.Spec.IPFamilies, corev1.IPv6Protocol)
	}
	if flag(3) {
		o.Spec.IPFamilies = append(o.Spec.IPFamilies, corev1.IPv4Protocol)
	}
	if flag(4) { // what Herald wrote while it was served
		o.Annotations[vipHostKey] = "n1"
		o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.77.0.60"}}
	}
	for i, p := range ports {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Protocol: []corev1.Protocol{"TCP", "UDP"}[i&1], Port: int32(p) + 1})
	}
	return o
}

// othersCreated is when the Services of others were created.
var othersCreated = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// text is an object as JSON.
func text(o any) string {
	b, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// FuzzService: of any Service readService makes one of a bounded size, whatever the sizes of its annotations are,
// whose sentences about them can be shown, and which is the same each time.
func FuzzService(f *testing.F) {
	for _, a := range Annotations {
		for _, value := range []string{"true", "02:00:00:00:00:01", "65000:1,65000:1:2,no-export", "80=8080", "1h",
			"x\x1b[2J\n", "\xff" + strings.Repeat("x", 30000),
			strings.Repeat("65000:1,", 5000) + "no-export", strings.Repeat("a,", 20000) + "a", strings.Repeat("80=80,", 7000)} {
			f.Add(a.Key+"="+value+"\n"+addressesKey+"=10.0.0.1,fd00::1", "", []byte{79}, uint16(0), "10.0.0.1")
		}
	}
	f.Add("kube-vip.io/loadbalanc\xe5rIP=", "", []byte{}, uint16(0), "10.0.0.1")
	f.Add("heraldvip.io/a", "n", []byte("O"), uint16(0), "10.0.0.1")
	f.Add("", "::ffff:10.0.0.1%eth0", []byte{}, uint16(1), "example.com")
	f.Fuzz(func(t *testing.T, annotations, loadBalancerIP string, ports []byte, flags uint16, ingress string) {
		o := tenantService(annotations, loadBalancerIP, ports, flags)
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ingress, Hostname: ingress})
		s := readService(o)
		all := text(s.Service)
		if again := text(readService(o).Service); all != again {
			t.Errorf("twice read, two results:\n%s\n%s", all, again)
		}
		if limit := 16<<10 + 100*len(ports) + 6*len(ingress); len(all) > limit {
			t.Errorf("%d bytes are kept of annotations of %d, at most %d should be:\n%.1000s", len(all), len(annotations), limit, all)
		}
		// and one about spec.loadBalancerIP, and what holds as long as addresses can't be read
		if len(s.Invalid) > len(o.Annotations)+2 {
			t.Errorf("%d sentences about %d annotations: %q", len(s.Invalid), len(o.Annotations), s.Invalid)
		}
		for _, sentence := range s.Invalid {
			if len(sentence) > 1000 || strings.ContainsFunc(sentence,
				func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
				t.Errorf("a sentence of %d bytes: %.300q", len(sentence), sentence)
			}
		}
		seen := make(map[netip.Addr]bool)
		for _, a := range s.Addresses {
			if a.Zone() != "" || a.Is4In6() || seen[a] {
				t.Errorf("address %s", a)
			}
			seen[a] = true
		}
	})
}
