package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/manifest"
	"github.com/heraldvip/herald/testing/check"
)

// run runs a command as a shell would.
func run(t *testing.T, c *cobra.Command, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&errs)
	c.SetArgs(args)
	c.SilenceErrors = true
	err = c.Execute()
	return out.String(), errs.String(), err
}

// runManifest runs herald manifest.
func runManifest(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return run(t, root(), append([]string{"manifest"}, args...)...)
}

// TestManifestFiles runs the command line that each manifest of the repository names, and looks whether that prints the file.
func TestManifestFiles(t *testing.T) {
	files, err := filepath.Glob("../../manifests/*.yaml")
	if err != nil || len(files) < 4 {
		t.Fatalf("manifests %q, %v", files, err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			want := string(check.Value(os.ReadFile(f))(t))
			_, rest, _ := strings.Cut(want, "# Made by: herald manifest ")
			line, _, _ := strings.Cut(rest, "\n")
			got, stderr, err := runManifest(t, append(strings.Fields(line), "--image="+manifest.Image(""))...)
			if err != nil || stderr != "" {
				t.Fatalf("%v, stderr %q", err, stderr)
			}
			check.Same(t, want, got, "the file")
		})
	}
}

func TestManifest(t *testing.T) {
	tests := []struct {
		args   string
		stdout []string // parts
		stderr string
		err    string
	}{
		{args: "pod --interface eth0 --arp --services --leaderElection --address 192.0.2.1",
			stdout: []string{"kind: Pod\n", "- name: vip_interface\n      value: eth0\n", "/etc/kubernetes/admin.conf\n"},
			stderr: "warning: address=\"192.0.2.1\" (flag --address) has no effect without cp_enable=true\n"},
		{args: "pod --interface eth0 --arp --controlplane --address 192.0.2.1 --wireguard",
			err: `vip_wireguard="true" (flag --wireguard): Herald makes no WireGuard tunnels; remove it, and announce VIPs by BGP over a tunnel that the nodes have`},
		{args: "daemonset --inCluster --taint --arp --services --image example.com/herald:1",
			stdout: []string{"kind: DaemonSet\n", "image: example.com/herald:1\n", "node-role.kubernetes.io/control-plane\n"}},
		{args: "daemonset --workers --taint", err: "if any flags in the group [taint workers] are set none of the others can be; [taint workers] were all set"},
		{args: "daemonset", stdout: []string{"kind: DaemonSet\n"},
			stderr: "warning: svc_enable=\"false\" (default): no VIP is announced; set svc_enable=true for those of Services, cp_enable=true for the control plane's\n"},
		{args: "rbac --serviceNamespace web --namespace lb", stdout: []string{"kind: Role\n", "  namespace: web\n", "  namespace: lb\n"}},
		{args: "rbac --serviceNamespace web --namespace lb --role --rolebinding", stdout: []string{"kind: Role\n"}},
		{args: "pod --inCluster --arp --services", stdout: []string{"serviceAccountName: herald\n"}},
		{args: "daemonset --arp --services --nodeName n1", err: `can't make the manifest: vip_nodename="n1" (flag --nodeName): a DaemonSet has many nodes and names each by itself; remove it`},
		{args: "daemonset --arp --services --prometheusHTTPServer :2113", err: `can't make the manifest: prometheus_server=":2113" (flag --prometheusHTTPServer): kubelet's probes have that port in a manifest; name another here, or for them by health_check_port`},
		{args: "pod --arp --services --prometheusHTTPServer 127.0.0.1:2113", err: `can't make the manifest: prometheus_server="127.0.0.1:2113" (flag --prometheusHTTPServer): kubelet's probes have that port in a manifest; name another here, or for them by health_check_port`},
		{args: "pod --arp --services --prometheusHTTPServer :2113 --healthCheckPort 2114", stdout: []string{"value: :2113\n"}},
		{args: "daemonset --servces", err: "unknown flag: --servces; did you mean --services?"},
		{args: "daemonset --imge=x", err: "unknown flag: --imge; did you mean --image?"},
		{args: "daemonset --arp=x --log=y", err: "vip_loglevel=\"y\" (flag --log): must be a whole number: -4 is debug, 0 info, 4 warnings, 8 errors\n" +
			"vip_arp=\"x\" (flag --arp): must be true or false"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			stdout, stderr, err := runManifest(t, strings.Fields(tt.args)...)
			if got := text(err); got != tt.err {
				t.Fatalf("error %s\nwant  %s", got, tt.err)
			}
			if err != nil && (stdout != "" || status(err) != 2 && !strings.Contains(tt.err, "group")) {
				t.Errorf("output %q and status %d beside an error", stdout, status(err))
			}
			check.Equal(t, stderr, tt.stderr, "stderr")
			check.Contains(t, stdout, tt.stdout...)
		})
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestManifestOfEnvironment: the environment and a file count as they do for the manager.
func TestManifestOfEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "herald.yaml")
	check.OK(t, os.WriteFile(file, []byte("svc_enable: true\nvip_arp: true\n"), 0o600))
	t.Setenv("herald_config", file)
	t.Setenv("vip_interface", "eth7")
	stdout, stderr, err := runManifest(t, "daemonset", "--interface=eth0")
	if err != nil || stderr != "" {
		t.Fatalf("%v, stderr %q", err, stderr)
	}
	check.Contains(t, stdout, "# Made by: herald manifest daemonset --interface=eth7 --services --arp\n", "value: eth7\n", "- name: svc_enable\n")
	check.Equal(t, strings.Contains(stdout, "herald_config"), false, "a file of this machine is in\n%s", stdout)
}

// A password in a file is on the nodes, not where the manifest is made: it is mounted, once.
func TestManifestOfPasswordFiles(t *testing.T) {
	for _, args := range []string{"--bgppeers=192.0.2.1:65001:@/no/such/file,192.0.2.2:65001:@/no/such/file:true", "--peerAddress=192.0.2.1 --peerAS=65001 --peerPass=@/no/such/file"} {
		out, _, err := runManifest(t, append([]string{"daemonset", "--bgp", "--services"}, strings.Fields(args)...)...)
		if n := strings.Count(out, "mountPath: /no/such/file\n"); err != nil || n != 1 || strings.Count(out, "  path: /no/such/file\n") != 1 {
			t.Errorf("%s: %d mounts, %v in\n%s", args, n, err, out)
		}
	}
	if out, _, err := runManifest(t, "daemonset", "--bgp", "--services", "--bgppeers=192.0.2.1:65001:pass@/word"); err != nil || strings.Contains(out, "mountPath") {
		t.Errorf("a password with @/ in it: %v in\n%s", err, out)
	}
}

// The comment of a manifest names the image, too, unless it is that of the release.
func TestManifestNamesItsImage(t *testing.T) {
	for _, kind := range []string{"daemonset", "pod"} {
		first, _, err := runManifest(t, kind, "--arp", "--services", "--image=registry.example.com/herald:v9")
		check.OK(t, err)
		_, made, _ := strings.Cut(first, "# Made by: herald manifest ")
		made, _, _ = strings.Cut(made, "\n")
		if again, _, err := runManifest(t, strings.Fields(made)...); err != nil || again != first {
			t.Errorf("%q makes another manifest: %v\n%s", made, err, again)
		}
	}
}

// TestDocumentedManifests: the commands in the documents work, without warnings.
func TestDocumentedManifests(t *testing.T) {
	command := regexp.MustCompile(`(?m)^\s*herald manifest ((?:[^|>\n\\]|\\\n)+)`)
	seen := 0
	root := check.Value(filepath.Abs("../.."))(t)
	t.Chdir(t.TempDir())
	check.OK(t, os.WriteFile("options.yaml", []byte("vip_arp: true\nsvc_enable: true\n"), 0o644)) // which a page has the reader make
	for _, file := range append(check.Value(filepath.Glob(root+"/docs/*.md"))(t), root+"/README.md") {
		for _, m := range command.FindAllStringSubmatch(string(check.Value(os.ReadFile(file))(t)), -1) {
			seen++
			args := strings.Fields(strings.ReplaceAll(m[1], "\\\n", " "))
			if stdout, stderr, err := runManifest(t, args...); err != nil || stderr != "" || stdout == "" {
				t.Errorf("%s: herald manifest %q: %v, stderr %q", file, args, err, stderr)
			}
		}
	}
	if seen < 4 {
		t.Errorf("only %d commands found", seen)
	}
}
