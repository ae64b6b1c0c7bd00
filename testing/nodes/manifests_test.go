package nodes

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/testing/check"
)

// manifests is the directory of the repository's manifests.
const manifests = "../../manifests"

func readFile(t *testing.T, file string) string {
	t.Helper()
	text := check.Value(os.ReadFile(file))(t)
	return string(text)
}

// TestPermissions: nobody widens what the ServiceAccount may do without changing this list.
func TestPermissions(t *testing.T) {
	check.OK(t, cluster.Apply(t.Context(), manifestText(t, "rbac")))
	got := func(namespace string) []string {
		var lines []string
		out := kubectl(t, "auth", "can-i", "--list", "--no-headers", "-n", namespace, "--as=system:serviceaccount:kube-system:herald")
		for line := range strings.Lines(out) {
			// What every user may: ask who and what they are, and read the API's own pages.
			if !strings.Contains(line, "selfsubject") && !strings.Contains(line, "[/") {
				lines = append(lines, strings.Join(strings.Fields(line), " "))
			}
		}
		slices.Sort(lines)
		return lines
	}
	const leases = "leases.coordination.k8s.io [] [] "
	everywhere := []string{
		"configmaps [] [kubevip] [list watch]",
		"endpointslices.discovery.k8s.io [] [] [list watch]",
		"events [] [] [create]",
		leases + "[list watch]",
		"namespaces [] [] [list watch]",
		"nodes [] [] [list watch]",
		"pods [] [] [list watch]",
		"servicecidrs.networking.k8s.io [] [] [list watch]",
		"services [] [] [list watch]",
		"services/status [] [] [patch]",
	}
	home := append([]string{"secrets [] [herald-peers] [get update]"}, everywhere...)
	home[slices.Index(home, leases+"[list watch]")] = leases + "[list watch get create update delete]"
	slices.Sort(home)
	if diff := cmp.Diff(everywhere, got("default")); diff != "" {
		t.Errorf("in any namespace, -want +got:\n%s", diff)
	}
	if diff := cmp.Diff(home, got("kube-system")); diff != "" {
		t.Errorf("in kube-system, -want +got:\n%s", diff)
	}
}

// dryRun has the API server look at what it would be given.
func dryRun(t *testing.T, yaml string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "all.yaml")
	check.OK(t, os.WriteFile(file, []byte(yaml), 0o600))
	out := kubectl(t, "apply", "--dry-run=server", "--validate=strict", "-f", file)
	t.Logf("%d objects: %s", strings.Count(out, "\n"), strings.ReplaceAll(out, " (server dry run)\n", ", "))
}

// TestKustomize: every overlay renders, and the API server takes it.
func TestKustomize(t *testing.T) {
	overlays, err := filepath.Glob(manifests + "/overlays/*")
	if err != nil || len(overlays) < 4 {
		t.Fatalf("overlays %q, %v", overlays, err)
	}
	for _, o := range overlays {
		t.Run(filepath.Base(o), func(t *testing.T) { dryRun(t, kustomize(t, o)) })
	}
}

func kustomize(t *testing.T, dir string) string {
	t.Helper()
	dir = check.Value(filepath.Abs(dir))(t)
	return kubectl(t, "kustomize", "--load-restrictor=LoadRestrictionsNone", dir)
}

// TestKustomizeInstalls: an overlay of one's own, on top of one of the repository's.
func TestKustomizeInstalls(t *testing.T) {
	dir := t.TempDir()
	// Bases are relative to the file that names them.
	base := check.Value(filepath.Abs(manifests))(t)
	up := check.Value(filepath.Rel(dir, base))(t)
	check.OK(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(`resources: [`+up+`/overlays/control-plane]
components: [`+up+`/components/network-policy]
configMapGenerator:
- {name: herald, namespace: kube-system, behavior: merge, literals: [vip_interface=eth0, address=`+cpVIP.String()+`]}
`), 0o600))
	asDaemonSet(t, "herald", kustomize(t, dir))
	w := watchAPI(t.Context(), "cl", cpVIP)
	w.awaitGoodAfter(t, time.Now())
	w.end()
	withWeb(t)
}

// helm is the program, which testing/lab/nodes/parts/build.sh builds.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path := check.Value(filepath.Abs("../../bin/parts/helm"))(t)
	if _, err := os.Stat(path); err != nil {
		t.Skip("there is no bin/parts/helm: its modules could not be had")
	}
	c := exec.Command(path, args...)
	c.Env = []string{"HOME=" + t.TempDir()}
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestChart: it renders with every option it has, the API server takes that, and
// mistakes are reported.
func TestChart(t *testing.T) {
	chart := manifests + "/helm/herald"
	out, err := helm(t, "lint", "--strict", chart)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, set := range []string{
		"image.tag=latest",
		"preflight=true,controlPlaneOnly=true,networkPolicy.enabled=true,admission.enabled=true,nonRoot=true,options.cp_enable=true,options.address=10.77.0.40,image.pullPolicy=Never",
		"options.vip_arp=false,options.bgp_enable=true,options.bgp_as=65000,serviceAccount.name=other,options.prometheus_server=off",
	} {
		out, err := helm(t, "template", "--kube-version=v1.36.3", "other", chart, "-n", "kube-system", "--set", set)
		if err != nil {
			t.Fatalf("%s: %v\n%s", set, err, out)
		}
		dryRun(t, out)
	}
	for set, want := range map[string]string{
		"options.vip_apr=true":                           "vip_apr",
		"options.vip_arp=perhaps":                        "vip_arp",
		"controlPlaneOnly=true,affinity.podAffinity.x=y": "exclude each other",
		"image.pullPolicy=Maybe":                         "pullPolicy",
		"podMonitr.enabled=true":                         "podMonitr",
		"options.bgp_as.x=1":                             "bgp_as",
	} {
		out, err := helm(t, "template", "--kube-version=v1.36.3", "herald", chart, "--set", set)
		if want != "" && (err == nil || !strings.Contains(out, want)) {
			t.Errorf("%s: %v, %s", set, err, out)
		}
	}
	out, err = helm(t, "template", "--kube-version=v1.36.3", "x", chart, "--set", "podMonitor.enabled=true")
	if err != nil || !strings.Contains(out, "kind: PodMonitor") || !strings.Contains(out, "name: x-herald") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestChartInstalls: with the preflight check as init container.
func TestChartInstalls(t *testing.T) {
	out, err := helm(t, "template", "--kube-version=v1.36.3", "herald", manifests+"/helm/herald", "-n", "kube-system", "--set",
		"preflight=true,networkPolicy.enabled=true,options.cp_enable=true,options.vip_interface=eth0,options.address="+cpVIP.String())
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	asDaemonSet(t, "herald", out)
	w := watchAPI(t.Context(), "cl", cpVIP)
	w.awaitGoodAfter(t, time.Now())
	w.end()
	withWeb(t)
	log := kubectl(t, "-n", "kube-system", "logs", "daemonset/herald", "-c", "preflight")
	t.Log(log)
	if !strings.Contains(log, "permissions") || strings.Contains(log, "error ") {
		t.Error("the node was not found fit")
	}
}

// TestPreflight: on a node, as it is, and with what a user may forget.
func TestPreflight(t *testing.T) {
	node := cluster.Nodes()[0]
	run := func(argv ...string) (string, error) {
		return cluster.RunOnNode(t.Context(), node, append([]string{herald, "preflight", "--k8sConfigPath=/etc/kubernetes/admin.conf"}, argv...)...)
	}
	out, err := run(bothOptions...)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log(out)
	for _, want := range []string{"NET_ADMIN and NET_RAW", "eth0 (vip_interface", "v1.36.3, by file /etc/kubernetes/admin.conf", "the API server knows it"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q", want)
		}
	}
	if out, err := run("--arp", "--services", "--interface=eth9"); err == nil || !strings.Contains(out, "vip_interface=eth9: this node has no such interface") {
		t.Errorf("%v\n%s", err, out)
	}
	// A link as kube-proxy in ipvs mode has it.
	runOn(t, node, "ip", "link", "add", "kube-ipvs0", "type", "bridge")
	defer runOn(t, node, "ip", "link", "del", "kube-ipvs0")
	// The kernel's files of this network namespace are not in /sys, which is the machine's.
	if out, _ := cluster.RunOnNode(t.Context(), node, "unshare", "-m", "sh", "-c", "mount -t sysfs sysfs /sys && exec "+herald+
		" preflight --k8sConfigPath=/etc/kubernetes/admin.conf --arp --services --interface=eth0"); !strings.Contains(out, "strictARP") {
		t.Errorf("there is no message about strict ARP:\n%s", out)
	}
}
