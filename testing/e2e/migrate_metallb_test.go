package e2e

import (
	"context"
	"encoding/json"
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

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// metalLBObjects is the configuration of the MetalLB that is replaced.
const metalLBObjects = `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: lan, namespace: metallb-system}
spec: {addresses: [10.77.0.60-10.77.0.64, "fd77::1060-fd77::106f"]}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: edge.net, namespace: metallb-system}
spec: {addresses: [10.77.0.70/31], autoAssign: false}
---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: routed, namespace: metallb-system}
spec: {addresses: [10.79.0.70/31], autoAssign: false}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: link, namespace: metallb-system}
spec: {ipAddressPools: [lan, edge.net]}
---
apiVersion: metallb.io/v1beta1
kind: BGPAdvertisement
metadata: {name: routers, namespace: metallb-system}
spec: {ipAddressPools: [routed]}
`

// metalLBService is a Service as MetalLB leaves it: given an address of a pool, which only its status says, or asking for one.
func metalLBService(t *testing.T, name, address, pool string, opts ...func(*corev1.Service)) {
	t.Helper()
	opts = append(opts, lab.Annotated("metallb.io/ip-allocated-from-pool", pool))
	createService(t, webService(name, "", opts...))
	patchStatus(t, name, fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q,"ipMode":"VIP"}]}}}`, address))
}

// overIPv6 makes a Service one of IPv6 alone.
func overIPv6(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }

// TestMigrationFromMetalLB rehearses docs/migrate-from-metallb.md: each Service has the address that it had, and no VIP is
// without an answer for longer than a request takes; the router never lacks a route to the one that is announced by BGP.
func TestMigrationFromMetalLB(t *testing.T) {
	check.Program(t, "/usr/lib/frr/bgpd")
	maps := cluster.Client().CoreV1().ConfigMaps("kube-system")
	t.Cleanup(func() { maps.Delete(context.Background(), "kubevip", metav1.DeleteOptions{}) })
	metalLBService(t, "given", "10.77.0.61", "lan")
	metalLBService(t, "six", "fd77::1061", "lan", overIPv6)
	metalLBService(t, "asks", "10.77.0.62", "lan", lab.Annotated("metallb.universe.tf/loadBalancerIPs", "10.77.0.62"))
	metalLBService(t, "edge", "10.77.0.71", "edge.net", lab.Annotated("metallb.io/address-pool", "edge.net"))
	metalLBService(t, "routed", "10.79.0.70", "routed", lab.Annotated("metallb.io/address-pool", "routed"))
	want := map[string]string{"given": "10.77.0.61(VIP)", "six": "fd77::1061(VIP)", "asks": "10.77.0.62(VIP)", "edge": "10.77.0.71(VIP)", "routed": "10.79.0.70(VIP)"}
	addrs := []netip.Addr{netip.MustParseAddr("10.77.0.61"), netip.MustParseAddr("fd77::1061"), netip.MustParseAddr("10.77.0.62"), netip.MustParseAddr("10.77.0.71")}

	self := check.Value(os.Executable())(t)
	node := cluster.Nodes()[1]
	old := check.Value(cluster.Start(node, "speaker", []string{self}, speakerVIPs+"=10.77.0.61,fd77::1061,10.77.0.62,10.77.0.71"))(t)
	t.Cleanup(func() { old.Kill() })
	frr := check.Value(cluster.FRR(t.Context(), "rt", frrConf))(t)
	t.Cleanup(func() { check.OK(t, frr.Close()) })
	oldBGP := startBGPSpeakers(t, "10.79.0.70")
	awaitHops(t, frr, "10.79.0.70", 3, 20*time.Second)
	w := check.Value(cluster.WhoHas(t.Context(), 10*time.Millisecond, addrs...))(t)
	for _, a := range addrs {
		check.Value(w.AwaitAnswer(withTimeout(t, 20*time.Second), a, node))(t)
	}
	w.Stop() // what was before is not of interest

	importFromMetalLB(t)
	// Without svc_election every node advertises what is announced by BGP, as every speaker does.
	start(t, bgpEnv("vip_arp", "true", "bgp_peers", "10.77.0.1:65001", "herald_bgp_ready", "false", "svc_addresses", "pools"))
	for _, name := range []string{"given", "six", "asks", "edge"} {
		awaitOwner(t, name)
	}
	w = check.Value(cluster.WhoHas(t.Context(), 10*time.Millisecond, addrs...))(t) // kernels answer by now
	check.OK(t, old.Signal(syscall.SIGTERM))
	check.OK(t, old.Wait(withTimeout(t, 10*time.Second)))
	handOverBGP(t, frr, oldBGP, "10.79.0.70")
	createService(t, webService("new", ""))
	awaitStatus(t, "new", "10.77.0.60(VIP)", 5*time.Second)
	for name, status := range want {
		awaitStatus(t, name, status, 5*time.Second)
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

// importFromMetalLB has "herald import" read the objects that MetalLB leaves, print what it would write, and write it.
func importFromMetalLB(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	services := check.Value(cluster.Kubectl(t.Context(), "get", "services", "-A", "-o", "yaml"))(t)
	crs, list := filepath.Join(dir, "metallb.yaml"), filepath.Join(dir, "services.yaml")
	check.OK(t, os.WriteFile(crs, []byte(metalLBObjects), 0o644))
	check.OK(t, os.WriteFile(list, []byte(services), 0o644))
	printed := check.Value(cluster.Run(t.Context(), "cp", herald, "import", "metallb", crs, list))(t)
	expectWords(t, printed, "pool-lan: 10.77.0.60-10.77.0.64,fd77::1060-fd77::106f", "pool-metallb-edge-net.auto: \"false\"", "pool-routed.announce: bgp",
		"kube-vip.io/loadbalancerIPs: 10.77.0.61", "kube-vip.io/loadbalancerIPs: fd77::1061", "heraldvip.io/pool: metallb-edge-net")
	if strings.Contains(printed, "kube-vip.io/loadbalancerIPs: 10.77.0.62") {
		t.Errorf("what asks for its address is pinned:\n%s", printed)
	}
	expectWords(t, check.Value(cluster.Run(t.Context(), "cp", herald, "import", "metallb", crs, list, "--apply"))(t), "ConfigMap kube-system/kubevip written, 4 Services annotated")
}

// handOverBGP ends the old speakers, one node after the other: each node's router session is free for Herald then, and meanwhile the
// routes of the others carry the VIP.
func handOverBGP(t *testing.T, frr *lab.Router, old map[string]*lab.Router, vip string) {
	t.Helper()
	for i, n := range cluster.Nodes() {
		peer := fmt.Sprintf("10.77.0.%d", 11+i)
		before := check.Value(sessionWith(t.Context(), frr, peer))(t)
		check.OK(t, old[n].Kill())
		until(t, 20*time.Second, "the router has a session with the Herald of "+n, func(ctx context.Context) error {
			now, err := sessionWith(ctx, frr, peer)
			if err == nil && now == before {
				err = fmt.Errorf("that from %s is still up", before)
			}
			return err
		})
		awaitHops(t, frr, vip, 3, 20*time.Second)
	}
}

// sessionWith is where the TCP connection of an established BGP session of FRR's comes from, which tells it from an earlier one with
// the same peer.
func sessionWith(ctx context.Context, frr *lab.Router, peer string) (string, error) {
	out, err := frr.Vtysh(ctx, "show bgp neighbors "+peer+" json")
	if err != nil {
		return "", err
	}
	var sessions map[string]struct {
		BGPState    string `json:"bgpState"`
		PortForeign int    `json:"portForeign"`
	}
	if err := json.Unmarshal([]byte(out), &sessions); err != nil {
		return "", fmt.Errorf("the session with %s: %w", peer, err)
	}
	if s := sessions[peer]; s.BGPState != "Established" {
		return "", fmt.Errorf("the session with %s is %q", peer, s.BGPState)
	}
	return netip.AddrPortFrom(netip.MustParseAddr(peer), uint16(sessions[peer].PortForeign)).String(), nil
}
