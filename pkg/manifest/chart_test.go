package manifest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/testing/check"
)

// chartRenderer returns a function that renders the chart with the text of a file of values, and arguments of "helm template". It returns "error: " and what
// Helm prints if that fails. Without Helm the test is skipped.
func chartRenderer(t *testing.T) func(values string, args ...string) string {
	t.Helper()
	helm := check.Value(filepath.Abs("../../bin/parts/helm"))(t)
	if _, err := os.Stat(helm); err != nil {
		t.Skip("there is no bin/parts/helm (make all-parts)")
	}
	return func(values string, args ...string) string {
		file := filepath.Join(t.TempDir(), "values.yaml")
		check.OK(t, os.WriteFile(file, []byte(values), 0o600))
		c := exec.CommandContext(t.Context(), helm, "template", "--kube-version=v1.36.3", "herald", filepath.Join(manifests, "helm/herald"), "-f", file)
		c.Args = append(c.Args, args...)
		c.Env = []string{"HOME=" + t.TempDir()}
		out, err := c.CombinedOutput()
		if err != nil {
			return "error: " + string(out)
		}
		return string(out)
	}
}

// TestChartValues: what the values of the chart add to what it renders. That the API server takes it, testing/nodes tests.
func TestChartValues(t *testing.T) {
	render := chartRenderer(t)
	for values, want := range map[string]string{
		"{}": "maxUnavailable: 1",
		"extraEnv: [{name: bgp_peerpass, valueFrom: {secretKeyRef: {name: bgp, key: password}}}]":                         "        - name: bgp_peerpass\n          valueFrom:\n            secretKeyRef:\n",
		"{extraVolumes: [{name: keys, secret: {secretName: keys}}], extraVolumeMounts: [{name: keys, mountPath: /keys}]}": "        volumeMounts:\n        - mountPath: /keys\n          name: keys\n",
		"updateStrategy: {type: OnDelete}":                           "    type: OnDelete\n",
		"terminationGracePeriodSeconds: 60":                          "terminationGracePeriodSeconds: 60\n",
		"options: {vip_arp: maybe}":                                  "vip_arp",
		"options: {vip_arpRate: 5s}":                                 "vip_arpRate': '5s' does not match",
		"options: {vip_arpRate: 5000, vip_loglevel: '-4', port: ''}": "value: \"5000\"",
		"options: {bgp_as: 4200000001}":                              "value: \"4200000001\"", // to Helm a number of a file is a float64
		"options: {svc_pools: vips}":                                 "  resourceNames:\n  - \"vips\"\n",
		"options: {KUBEVIP_CONFIG_MAP: vips}":                        "  resourceNames:\n  - \"vips\"\n",
		"options: {vip_interface: eth1}":                             "  resourceNames:\n  - \"kubevip\"\n",
		"{controlPlaneOnly: true, affinity: {nodeAffinity: {x: y}}}": "exclude each other",
		"alerts: {enabled: true, labels: {release: prometheus}}":     "    release: prometheus\n",

		// A mistake in a value is an error that names it, and what is no mistake works.
		"options: null":                         "missing property 'options'",
		"podMonitor:":                           "missing property 'podMonitor'",
		"options: {health_check_port: '0'}":     "port: 2113}", // as herald manifest has it
		"options: {health_check_port: '70000'}": "options.health_check_port: must be a port",
		"options: {prometheus_server: ':2113'}": "options.prometheus_server: kubelet's probes have its port, 2113: name another here, or for them by health_check_port",
		"options: {prometheus_server: ':8080', health_check_port: 8080}":                "options.prometheus_server: kubelet's probes have its port, 8080",
		"options: {prometheus_server: ':2113', health_check_port: 2114}":                "port: 2114}",
		"options: {herald_peers_port: 70000}":                                           "/options/herald_peers_port': maximum",
		"options: {prometheus_server: '2112'}":                                          "'/options/prometheus_server'",
		"{options: {herald_peers_port: '0'}, networkPolicy: {enabled: true}}":           "  ingress:\n  - ports: # routers",
		"options: {vip_subnet: 24}":                                                     "value: \"24\"",
		"options: {cp_namespace: lb}":                                                   "options.cp_namespace: the namespace of the announcers is that of the release, default",
		"options: {herald_peers_key: /keys/one}":                                        "options name the file /keys/one, which the Pods do not have",
		"options: {bgp_peers: '192.0.2.1:65001:@/keys/bgp:true'}":                       "options name the file /keys/bgp, which",
		"options: {bgp_peerpass: '@/keys/bgp'}":                                         "options name the file /keys/bgp, which",
		"options: {bgp_peers: '192.0.2.1:65001:pass@/word'}":                            "kind: DaemonSet",
		"{options: {vip_arp: true}, extraEnv: [{name: vip_arp, value: 'true'}]}":        "extraEnv: the chart sets vip_arp itself",
		"extraEnv: [{name: bgp_as, value: 65000}]":                                      "'/extraEnv/0/value': got number, want string",
		"{podLabels: {app.kubernetes.io/name: other}}":                                  "podLabels: app.kubernetes.io/name is one of the two labels",
		"{podMonitor: {enabled: true}, options: {prometheus_server: '127.0.0.1:2112'}}": "podMonitor.enabled: Prometheus can't fetch",
		"{podMonitor: {enabled: true}, options: {prometheus_server: off}}":              "podMonitor.enabled: Prometheus can't fetch",
		"options: {prometheus_server: off}":                                             "        - name: prometheus_server\n          value: \"false\"\n",
		"options: {prometheus_server: on}":                                              "'/options/prometheus_server'",
		"terminationGracePeriodSeconds: 1000000":                                        "terminationGracePeriodSeconds: 1000000\n",
		"tolerations: [{key: a, value: true}]":                                          "'/tolerations/0/value': got boolean, want string",
		"updateStrategy: {type: Recreate}":                                              "'/updateStrategy/type'",
		"resources: {memory: 64Mi}":                                                     "'/resources': additional properties 'memory' not allowed",
	} {
		if got := render(values); !strings.Contains(got, want) {
			t.Errorf("%s: no %q in\n%s", values, want, got)
		}
	}
	if got := render("{}"); strings.Contains(got, "PrometheusRule") {
		t.Error("alerts without alerts.enabled")
	}
	for _, off := range []string{"off", "'off'", "false"} { // to YAML the first is the last
		if got := render("options: {prometheus_server: " + off + "}"); strings.Contains(got, "hostPort") || !strings.Contains(got, "kind: DaemonSet") {
			t.Errorf("prometheus_server: %s: a port in\n%s", off, got)
		}
	}
}

// TestChartAndComponents: the alerts and the NetworkPolicy of the chart are those of the kustomize components.
func TestChartAndComponents(t *testing.T) {
	render := chartRenderer(t)
	specs := func(kind, text string) string {
		var all []any
		for doc := range strings.SplitSeq(text, "---\n") {
			var o struct {
				Kind string
				Spec map[string]any
			}
			check.OK(t, yaml.Unmarshal([]byte(doc), &o))
			if o.Kind == kind {
				delete(o.Spec, "podSelector") // the chart's has the label of the release, too
				all = append(all, o.Spec)
			}
		}
		return string(check.Value(yaml.Marshal(all))(t))
	}
	for _, tt := range []struct {
		kind, values string
		files        []string
	}{
		{"PrometheusRule", "alerts: {enabled: true}", []string{"alerts/alerts.yaml", "alerts/nodes.yaml"}},
		{"NetworkPolicy", "networkPolicy: {enabled: true}", []string{"network-policy/network-policy.yaml"}},
	} {
		component := ""
		for _, file := range tt.files {
			component += "---\n" + string(check.Value(os.ReadFile(filepath.Join(manifests, "components", file)))(t))
		}
		if got, want := specs(tt.kind, render(tt.values)), specs(tt.kind, component); got != want || len(want) < 200 {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.kind, got, want)
		}
	}
}

// TestChartNotes: what "helm install" says about options that announce nothing. NOTES.txt is rendered as a value of a YAML file, since "helm template" shows none.
func TestChartNotes(t *testing.T) {
	helm := check.Value(filepath.Abs("../../bin/parts/helm"))(t)
	if _, err := os.Stat(helm); err != nil {
		t.Skip("there is no bin/parts/helm (make all-parts)")
	}
	chart := t.TempDir()
	check.OK(t, os.CopyFS(chart, os.DirFS(filepath.Join(manifests, "helm/herald"))))
	notes := check.Value(os.ReadFile(filepath.Join(chart, "templates/NOTES.txt")))(t)
	check.OK(t, os.WriteFile(filepath.Join(chart, "templates/shown.yaml"), []byte("notes: |\n  "+strings.ReplaceAll(string(notes), "\n", "\n  ")), 0o600))
	render := func(options string) string {
		c := exec.CommandContext(t.Context(), helm, "template", "--kube-version=v1.36.3", "--namespace=lb", "vips", chart, "--show-only=templates/shown.yaml", "--set="+options)
		c.Env = []string{"HOME=" + t.TempDir()}
		return string(check.Value(c.CombinedOutput())(t))
	}
	if got, want := render("options.svc_namespace=web"), `set rbac.create=false, serviceAccount.create=false and serviceAccount.name=herald, and apply
  what "herald manifest rbac --namespace lb --serviceNamespace web" prints.`; !strings.Contains(got, want) {
		t.Errorf("for one namespace: no %q in\n%s", want, got)
	}
	for options, warns := range map[string]bool{
		"options.vip_arp=true":                                false,
		"options.vip_arp=false":                               true,
		"options.vip_arp=false,options.bgp_enable=true":       false,
		"options.vip_arp=false,options.vip_routingtable=true": false,
	} {
		c := exec.CommandContext(t.Context(), helm, "template", "--kube-version=v1.36.3", "herald", chart, "--show-only=templates/shown.yaml", "--set="+options)
		c.Env = []string{"HOME=" + t.TempDir()}
		out, err := c.CombinedOutput()
		if got := strings.Contains(string(out), "does not start"); err != nil || got != warns {
			t.Errorf("%s: a warning is %v, want %v: %v\n%s", options, got, warns, err, out)
		}
	}
}
