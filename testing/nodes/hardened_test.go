package nodes

import (
	"context"
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
	if r := clients.Stop(); len(r.Failures) > 1 {
		t.Errorf("handed over from %s to %s: %s", from, webOwner(t), r)
	}
}
