package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// soon is far more than what is waited for takes, a quarter to half of a second: a busy machine may stand still for that long, and more.
const soon = 3 * time.Second

// A Service gets its VIP soon, and loses it soon by whatever takes it out of Herald's hands.
func TestCreatedAndTakenAway(t *testing.T) {
	start(t, env())
	w := whoHas(t, 20*time.Millisecond, "10.77.0.50")
	const other = `{"spec":{"loadBalancerClass":"example.com/other","type":"LoadBalancer"}}`
	tests := []struct {
		name string
		away func(t *testing.T)
	}{
		{"deleted", func(t *testing.T) {
			check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), "a", metav1.DeleteOptions{}))
		}},
		{"ignored", func(t *testing.T) { patchService(t, "a", `{"metadata":{"annotations":{"kube-vip.io/ignore":"true"}}}`) }},
		{"type changed", func(t *testing.T) { patchService(t, "a", `{"spec":{"type":"ClusterIP"}}`) }},
		{"re-classed", func(t *testing.T) {
			// Kubernetes lets the class be set only together with the type.
			patchService(t, "a", `{"spec":{"type":"ClusterIP"}}`)
			patchService(t, "a", other)
		}},
		{"without endpoints", func(t *testing.T) { patchService(t, "a", `{"spec":{"selector":{"app":"nobody"}}}`) }},
		{"address removed", func(t *testing.T) {
			patchService(t, "a", `{"metadata":{"annotations":{"kube-vip.io/loadbalancerIPs":"10.77.0.51"}}}`)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			awaitSilence(t, w, "10.77.0.50", soon)
			began := time.Now()
			createService(t, webService("a", "10.77.0.50"))
			awaitAnswer(t, w, "10.77.0.50", soon)
			awaitStatus(t, "a", "10.77.0.50(VIP)", soon)
			t.Logf("announced and shown after %v", time.Since(began).Round(time.Millisecond))
			out, err := cluster.Kubectl(t.Context(), "get", "service", "a")
			if err != nil || !strings.Contains(out, "10.77.0.50") {
				t.Errorf("kubectl get service: %v\n%s", err, out)
			}
			awaitReachable(t, "http://10.77.0.50/")
			t.Logf("reached after %v", time.Since(began).Round(time.Millisecond))
			tt.away(t)
			gone := time.Now()
			awaitSilence(t, w, "10.77.0.50", soon)
			t.Logf("gone after %v", time.Since(gone).Round(time.Millisecond))
			if tt.name == "deleted" {
				return
			}
			want := ""
			switch tt.name {
			case "address removed":
				want = "10.77.0.51(VIP)"
			case "without endpoints": // the address is its own all the same
				want = "10.77.0.50(VIP)"
			}
			awaitStatus(t, "a", want, soon)
			if tt.name != "address removed" { // the API server clears the status itself when the type changes
				check.Until(t, soon, "kube-vip.io/vipHost is removed", func() error {
					if host, ok := getService(t, "a").Annotations["kube-vip.io/vipHost"]; ok {
						return fmt.Errorf("it is still %q", host)
					}
					return nil
				})
			}
			cluster.Client().CoreV1().Services("default").Delete(t.Context(), "a", metav1.DeleteOptions{})
		})
	}
}

// Ignored and back: un-ignoring brings the VIP back at once, on whatever node.
func TestIgnoreAndBack(t *testing.T) {
	start(t, env())
	w := whoHas(t, 20*time.Millisecond, "10.77.0.50")
	createService(t, webService("a", "10.77.0.50"))
	for range 3 {
		awaitAnswer(t, w, "10.77.0.50", soon)
		awaitStatus(t, "a", "10.77.0.50(VIP)", soon)
		patchService(t, "a", `{"metadata":{"annotations":{"kube-vip.io/ignore":"true"}}}`)
		awaitSilence(t, w, "10.77.0.50", soon)
		awaitEvent(t, "a", "VIPWithdrawn", "kube-vip.io/ignore")
		patchService(t, "a", `{"metadata":{"annotations":{"kube-vip.io/ignore":null}}}`)
	}
	awaitAnswer(t, w, "10.77.0.50", soon)
	awaitStatus(t, "a", "10.77.0.50(VIP)", soon)
}

// A status that someone else changes is put right.
func TestStatusCorrected(t *testing.T) {
	start(t, env())
	createService(t, webService("a", "10.77.0.50"))
	awaitStatus(t, "a", "10.77.0.50(VIP)", soon)
	patchStatus(t, "a", `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`)
	awaitStatus(t, "a", "10.77.0.50(VIP)", soon)
	if got := getService(t, "a").Status.LoadBalancer.Ingress[0].Ports; len(got) != 1 || got[0].Port != 80 || got[0].Protocol != corev1.ProtocolTCP {
		t.Errorf("ports %v, want 80/TCP", got)
	}
}

// A Service without an address waits, says so once, and goes on when it gets one:
// by annotation, by spec.loadBalancerIP, or by the status it already has.
func TestAddressSources(t *testing.T) {
	start(t, env())
	w := whoHas(t, 20*time.Millisecond, "10.77.0.50", "10.77.0.51", "10.77.0.52")
	createService(t, webService("a", ""))
	awaitEvent(t, "a", "NoAddress", "kube-vip.io/loadbalancerIPs")
	patchStatus(t, "a", `{"status":{"loadBalancer":{"ingress":[{"ip":"10.77.0.50"}]}}}`)
	awaitAnswer(t, w, "10.77.0.50", soon)
	patchService(t, "a", `{"spec":{"loadBalancerIP":"10.77.0.51"}}`)
	awaitAnswer(t, w, "10.77.0.51", soon)
	awaitSilence(t, w, "10.77.0.50", soon)
	patchService(t, "a", `{"metadata":{"annotations":{"kube-vip.io/loadbalancerIPs":"10.77.0.52"}}}`)
	awaitAnswer(t, w, "10.77.0.52", soon)
	awaitSilence(t, w, "10.77.0.51", soon)
	awaitStatus(t, "a", "10.77.0.52(VIP)", soon)
	patchService(t, "a", `{"metadata":{"annotations":{"kube-vip.io/loadbalancerIPs":""}}}`) // as if it were absent
	awaitAnswer(t, w, "10.77.0.51", soon)
}

// The examples of the page on Services, as they are written there.
func TestKubectlExpose(t *testing.T) {
	start(t, env())
	w := whoHas(t, 20*time.Millisecond, "10.77.0.220")
	check.OK(t, cluster.AddDeployment(t.Context(), "default", "test-deploy", map[string]string{"app": "web"}))
	t.Cleanup(func() {
		cluster.Client().AppsV1().Deployments("default").Delete(t.Context(), "test-deploy", metav1.DeleteOptions{})
	})
	expose := func(name, port string) {
		t.Helper()
		if out, err := cluster.Kubectl(t.Context(), "expose", "deployment", "test-deploy", "--port="+port, "--target-port=80", "--type=LoadBalancer", "--name", name, "--load-balancer-ip=10.77.0.220"); err != nil {
			t.Fatal(err, out)
		}
	}
	expose("http1", "80")
	first := awaitAnswer(t, w, "10.77.0.220", soon)
	expose("http2", "81")
	awaitStatus(t, "http1", "10.77.0.220(VIP)", soon)
	awaitStatus(t, "http2", "10.77.0.220(VIP)", soon)
	for _, url := range []string{"http://10.77.0.220:80/", "http://10.77.0.220:81/"} {
		awaitReachable(t, url)
	}
	for _, name := range []string{"http1", "http2"} {
		if host := getService(t, name).Annotations["kube-vip.io/vipHost"]; host != first {
			t.Errorf("%s is on %s, want both on %s", name, host, first)
		}
	}
	// Taken down only with the last; until then not a moment without an answer.
	cluster.Client().CoreV1().Services("default").Delete(t.Context(), "http1", metav1.DeleteOptions{})
	time.Sleep(500 * time.Millisecond) // the time in which a mistake would show
	if got := w.Owner(w.Stop().Addrs[0].Addr); got != first {
		t.Errorf("after the first Service went %q answers, want %s", got, first)
	}
	w = whoHas(t, 20*time.Millisecond, "10.77.0.220")
	cluster.Client().CoreV1().Services("default").Delete(t.Context(), "http2", metav1.DeleteOptions{})
	awaitSilence(t, w, "10.77.0.220", soon)
}

// One address, one port, two Services: the older keeps it.
func TestSamePort(t *testing.T) {
	start(t, env())
	createService(t, webService("old", "10.77.0.50"))
	node := awaitOwner(t, "old")
	createService(t, webService("new", "10.77.0.50"))
	awaitEvent(t, "new", "AddressConflict", "default/old")
	awaitStatus(t, "new", "", soon)
	if got := awaitOwner(t, "old"); got != node {
		t.Errorf("the older moved from %s to %s", node, got)
	}
	cluster.Client().CoreV1().Services("default").Delete(t.Context(), "old", metav1.DeleteOptions{})
	awaitStatus(t, "new", "10.77.0.50(VIP)", soon)
}

func TestClasses(t *testing.T) {
	const own = "kube-vip.io/kube-vip-class"
	services := map[string]string{"10.77.0.50": "", "10.77.0.51": own, "10.77.0.52": "example.com/mine"}
	tests := []struct {
		name string
		env  []string
		want string // those that are announced
	}{
		{"default", nil, "10.77.0.50 10.77.0.51"},
		{"only the class", []string{"lb_class_only", "true"}, "10.77.0.51"},
		{"strict", []string{"lb_class_legacy_handling", "false"}, "10.77.0.51"},
		{"strict by the documented name", []string{"LoadBalancerClassLegacyHandling", "false"}, "10.77.0.51"},
		{"own class", []string{"lb_class_name", "example.com/mine"}, "10.77.0.50 10.77.0.52"},
		{"own class, strict", []string{"lb_class_name", "example.com/mine", "lb_class_legacy_handling", "false"}, "10.77.0.52"},
		{"no class, strict", []string{"lb_class_name", "", "lb_class_legacy_handling", "false"}, "10.77.0.50"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			start(t, env(tt.env...))
			for vip, class := range services {
				createService(t, webService("s"+vip[len(vip)-2:], vip, func(s *corev1.Service) {
					if class != "" {
						s.Spec.LoadBalancerClass = &class
					}
				}))
			}
			for vip := range services {
				name := "s" + vip[len(vip)-2:]
				if strings.Contains(tt.want, vip) {
					awaitStatus(t, name, vip+"(VIP)", soon)
				}
			}
			for vip := range services { // after those that are ours are there
				if !strings.Contains(tt.want, vip) {
					awaitStatus(t, "s"+vip[len(vip)-2:], "", soon)
				}
			}
			if tt.env == nil { // what explain advises
				seen(t, "explain s52", "OtherClass(?s:.*)make it again .* without one")
				deleteServices(t, "s52")
				createService(t, webService("s52", "10.77.0.52"))
				awaitStatus(t, "s52", "10.77.0.52(VIP)", soon)
			}
		})
	}
}

// Both families, announced and answered, the status with both.
func TestDualStack(t *testing.T) {
	start(t, env())
	w := whoHas(t, 20*time.Millisecond, "10.77.0.50", "fd77::1050")
	createService(t, webService("a", "10.77.0.50,fd77::1050"))
	n4 := awaitAnswer(t, w, "10.77.0.50", soon)
	n6 := awaitAnswer(t, w, "fd77::1050", 4*time.Second) // duplicate address detection takes 1 to 2 s (RFC 4862)
	if n4 != n6 {
		t.Errorf("IPv4 on %s, IPv6 on %s, want one node", n4, n6)
	}
	awaitStatus(t, "a", "10.77.0.50(VIP),fd77::1050(VIP)", soon)
	awaitReachable(t, "http://[fd77::1050]/")
	awaitEvent(t, "a", "VIPAnnounced", "fd77::1050")
	// A Service of one family does not take an address of the other.
	createService(t, webService("b", "10.77.0.51", lab.Annotated("kube-vip.io/loadbalancerIPs", "10.77.0.51,fd77::1051")))
	awaitEvent(t, "b", "AddressRefused", "fd77::1051")
	awaitStatus(t, "b", "10.77.0.51(VIP)", soon)
}
