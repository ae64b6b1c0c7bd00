package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// TestNodeWithoutServices: n1 has the VIP of the control plane only, as a static Pod may, n2 and n3 have those of Services, as a DaemonSet on the workers
// may. No Service waits for n1, and none loses its status when the node dies that wrote it.
func TestNodeWithoutServices(t *testing.T) {
	t.Run("ARP", func(t *testing.T) {
		testNodeWithoutServices(t, "10.77.0.", map[string]string{"vip_arp": "true"}, env())
	})
	t.Run("BGP", func(t *testing.T) {
		startRouters(t)
		cp := bgpEnv()
		delete(cp, "svc_enable")
		testNodeWithoutServices(t, "10.79.0.", cp, bgpEnv())
	})
}

// testNodeWithoutServices has a control plane's VIP and Services with addresses that begin with subnet, on nodes with these options.
func testNodeWithoutServices(t *testing.T, subnet string, controlPlane, services map[string]string) {
	startReadyServer(t, "n1")
	controlPlane["cp_enable"], controlPlane["address"], controlPlane["control_plane_health_check_address"] = "true", subnet+"90", "http://127.0.0.1:6444/readyz"
	f := &heralds{t: t, env: controlPlane, node: make(map[string]*lab.Process), killed: true}
	t.Cleanup(f.end)
	f.startOn("n1")
	f.env = services
	f.startOn("n2")
	f.startOn("n3")
	for _, n := range cluster.Nodes() {
		f.awaitReady(n)
	}
	awaitReachable(t, "http://"+subnet+"90:6444/")
	awaitDetectable(t)

	names := strings.Fields("a b c d e f g h")
	for i, name := range names {
		createService(t, webService(name, fmt.Sprint(subnet, 50+i)))
	}
	for i, name := range names {
		awaitStatus(t, name, fmt.Sprint(subnet, 50+i, "(VIP)"), 5*time.Second)
	}
	for _, n := range cluster.Nodes() {
		if strings.Contains(f.node[n].Log(), "others go ahead of it") {
			t.Errorf("the Services were n1's to acquire, by the Herald on %s", n)
		}
	}

	watch := check.Value(cluster.Client().CoreV1().Services("default").Watch(t.Context(), metav1.ListOptions{}))(t)
	watched := make(chan []string, 1)
	go func() {
		var cleared []string
		for e := range watch.ResultChan() {
			if s, ok := e.Object.(*corev1.Service); ok && s.Name != "kubernetes" && len(s.Status.LoadBalancer.Ingress) == 0 {
				cleared = append(cleared, s.Name)
			}
		}
		watched <- cleared
	}()
	f.node["n2"].Kill()
	until(t, 20*time.Second, "all Services are n3's", func(ctx context.Context) error {
		for _, name := range names {
			if by := getService(t, name).Annotations["kube-vip.io/vipHost"]; by != "n3" {
				return fmt.Errorf("%s is on %q", name, by)
			}
		}
		return nil
	})
	time.Sleep(time.Second) // for what n1 may write late
	watch.Stop()
	if cleared := <-watched; len(cleared) > 0 {
		t.Errorf("the status was cleared of %v", cleared)
	}
	list := check.Value(cluster.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{}))(t)
	for _, e := range list.Items {
		if e.Reason == "VIPWithdrawn" {
			t.Errorf("Event on %s: %s", e.InvolvedObject.Name, e.Message)
		}
	}
}
