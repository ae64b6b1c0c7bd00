package nodes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// TestHardened: the overlay runs, with the policies of admission, and its process has no more rights than it says.
func TestHardened(t *testing.T) {
	dir := t.TempDir()
	base := check.Value(filepath.Abs(manifests))(t)
	up := check.Value(filepath.Rel(dir, base))(t)
	patch := "    - {op: replace, path: /spec/template/spec/containers/0/imagePullPolicy, value: Never}\n" // there is no registry
	if text, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err != nil || !strings.HasPrefix(string(text), "Y") {
		t.Log("this kernel has no AppArmor: without it")
		patch += "    - {op: remove, path: /spec/template/spec/securityContext/appArmorProfile}\n"
	}
	check.OK(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(`resources: [`+up+`/overlays/hardened]
components: [`+up+`/components/admission]
configMapGenerator:
- {name: herald, namespace: kube-system, behavior: merge, literals: [vip_interface=eth0, cp_enable=true, address=`+cpVIP.String()+`]}
patches:
- target: {kind: DaemonSet, name: herald}
  patch: |
`+patch), 0o600))
	t.Cleanup(func() {
		for _, kind := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
			check.Value(cluster.Kubectl(context.Background(), "delete", kind, "-l", "app.kubernetes.io/name=herald"))(t)
		}
	})
	asDaemonSet(t, "herald", kustomize(t, dir))
	w := watchAPI(t.Context(), "cl", cpVIP)
	w.awaitGoodAfter(t, time.Now())
	w.end()
	offerPool(t)
	withWeb(t)
	for _, n := range cluster.Nodes() {
		pid := strings.TrimSpace(runOn(t, n, "pgrep", "-x", "herald"))
		status := strings.Join(strings.Fields(runOn(t, n, "cat", "/proc/"+pid+"/status")), " ")
		for _, want := range []string{
			"Uid: 65532 65532 65532 65532", "Gid: 65532 65532 65532 65532", "NoNewPrivs: 1", "Seccomp: 2",
			// 12 and 13: NET_ADMIN and NET_RAW (capabilities(7)). Nothing is inherited by another program.
			"CapInh: 0000000000000000 CapPrm: 0000000000003000 CapEff: 0000000000003000 CapBnd: 0000000000003000 CapAmb: 0000000000000000",
		} {
			if !strings.Contains(status, want) {
				t.Errorf("on %s there is no %q in %s", n, want, status)
			}
		}
		root, _, _ := strings.Cut(runOn(t, n, "cat", "/proc/"+pid+"/mounts"), "\n")
		if fields := strings.Fields(root); len(fields) < 4 || fields[1] != "/" || !strings.HasPrefix(fields[3], "ro,") {
			t.Errorf("on %s the root file system is %q, want it read-only", n, root)
		}
	}
	// As it makes a new lease of a VIP, it hands it over.
	from := webOwner(t)
	clients := connectToWeb(t)
	moveVIPsTo(t, otherNode(from))
	if r := clients.Stop(); r.Instants() > 1 || r.Outage > 500*time.Millisecond {
		t.Errorf("handed over from %s to %s: %s", from, webOwner(t), r)
	}
}

// offerPool makes a pool with the VIP of web, which web asks for by name, and has a Service ask for the address of a host that is
// not on the link: kube-proxy would send all that the cluster sends to that host to the Service, if its status named it.
func offerPool(t *testing.T) {
	t.Helper()
	check.OK(t, cluster.Apply(t.Context(), `apiVersion: v1
kind: ConfigMap
metadata: {name: kubevip, namespace: kube-system}
data: {cidr-global: `+webVIP.String()+`/32}
---
apiVersion: v1
kind: Service
metadata: {name: thief, namespace: default, annotations: {kube-vip.io/loadbalancerIPs: 203.0.113.53}}
spec: {type: LoadBalancer, ports: [{port: 53}]}
`))
	t.Cleanup(func() {
		check.Value(cluster.Kubectl(context.Background(), "delete", "service/thief", "-n", "default"))(t)
		check.Value(cluster.Kubectl(context.Background(), "delete", "configmap/kubevip", "-n", "kube-system"))(t)
	})
	await(t, time.Minute, "the address of another host is refused", func() error {
		events, err := cluster.Kubectl(t.Context(), "get", "events", "-n", "default", "--field-selector=involvedObject.name=thief", "-o", "jsonpath={.items[*].reason}")
		if err == nil && !strings.Contains(events, "AddressRefused") {
			err = fmt.Errorf("the Events of thief are %q", events)
		}
		return err
	})
}
