package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// metalLBObjects is the configuration of the MetalLB that is replaced.
const metalLBObjects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lan, namespace: metallb-system}
spec: {addresses: [10.77.0.60-10.77.0.64]}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: edge.net, namespace: metallb-system}
spec: {addresses: [10.77.0.70/31], autoAssign: false}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: all, namespace: metallb-system}
spec: {}
`

// metalLBService is a Service as MetalLB leaves it: given an address of a pool, which only its status says, or asking for one.
func metalLBService(t *testing.T, name, address, pool string, opts ...func(*corev1.Service)) {
	t.Helper()
	opts = append(opts, lab.Annotated("metallb.io/ip-allocated-from-pool", pool))
	createService(t, webService(name, "", opts...))
	patch := fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q,"ipMode":"VIP"}]}}}`, address)
	check.Value(cluster.Client().CoreV1().Services("default").Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"))(t)
}

// TestMigrationFromMetalLB rehearses docs/migrate-from-metallb.md: each Service has the address that it had, and no VIP is
// without an answer for longer than a request takes.
func TestMigrationFromMetalLB(t *testing.T) {
	maps := cluster.Client().CoreV1().ConfigMaps("kube-system")
	t.Cleanup(func() { maps.Delete(context.Background(), "kubevip", metav1.DeleteOptions{}) })
	metalLBService(t, "given", "10.77.0.61", "lan")
	metalLBService(t, "asks", "10.77.0.62", "lan", lab.Annotated("metallb.universe.tf/loadBalancerIPs", "10.77.0.62"))
	metalLBService(t, "edge", "10.77.0.71", "edge.net", lab.Annotated("metallb.io/address-pool", "edge.net"))
	want := map[string]string{"given": "10.77.0.61(VIP)", "asks": "10.77.0.62(VIP)", "edge": "10.77.0.71(VIP)"}
	addrs := []netip.Addr{netip.MustParseAddr("10.77.0.61"), netip.MustParseAddr("10.77.0.62"), netip.MustParseAddr("10.77.0.71")}

	self := check.Value(os.Executable())(t)
	node := cluster.Nodes()[1]
	old := check.Value(cluster.Start(node, "speaker", []string{self}, speakerVIPs+"=10.77.0.61,10.77.0.62,10.77.0.71"))(t)
	t.Cleanup(func() { old.Kill() })
	w := check.Value(cluster.WhoHas(t.Context(), 10*time.Millisecond, addrs...))(t)
	for _, a := range addrs {
		check.Value(w.AwaitAnswer(withTimeout(t, 20*time.Second), a, node))(t)
	}
	w.Stop() // what was before is not of interest
	w = check.Value(cluster.WhoHas(t.Context(), 10*time.Millisecond, addrs...))(t)

	dir := t.TempDir()
	services := check.Value(cluster.Kubectl(t.Context(), "get", "services", "-A", "-o", "yaml"))(t)
	crs, list := filepath.Join(dir, "metallb.yaml"), filepath.Join(dir, "services.yaml")
	check.OK(t, os.WriteFile(crs, []byte(metalLBObjects), 0o644))
	check.OK(t, os.WriteFile(list, []byte(services), 0o644))
	printed := check.Value(cluster.Run(t.Context(), "cp", herald, "import", "metallb", crs, list))(t)
	expectWords(t, printed, "pool-lan: 10.77.0.60-10.77.0.64", "pool-edge-net.auto: \"false\"", "kube-vip.io/loadbalancerIPs: 10.77.0.61", "heraldvip.io/pool: edge-net")
	if strings.Contains(printed, "kube-vip.io/loadbalancerIPs: 10.77.0.62") {
		t.Errorf("what asks for its address is pinned:\n%s", printed)
	}
	expectWords(t, check.Value(cluster.Run(t.Context(), "cp", herald, "import", "metallb", crs, list, "--apply"))(t), "ConfigMap kube-system/kubevip written, 2 Services annotated")

	start(t, env("svc_addresses", "pools"))
	for _, name := range []string{"given", "asks", "edge"} {
		awaitOwner(t, name)
	}
	check.OK(t, old.Signal(syscall.SIGTERM))
	check.OK(t, old.Wait(withTimeout(t, 10*time.Second)))
	createService(t, webService("new", ""))
	awaitStatus(t, "new", "10.77.0.60(VIP)", 5*time.Second)
	for name, status := range want {
		awaitStatus(t, name, status, time.Second)
	}
	for _, a := range addrs {
		check.Value(w.AwaitAnswer(withTimeout(t, 5*time.Second), a, ""))(t)
	}
	report := w.Stop()
	t.Logf("%s", report)
	for _, r := range report.Addrs {
		if r.LongestSilence > 300*time.Millisecond {
			t.Errorf("nobody answered for %s for %v", r.Addr, r.LongestSilence)
		}
	}
}
