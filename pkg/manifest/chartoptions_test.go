package manifest

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/testing/check"
)

// valuesOf returns a file of values with these options of the chart.
func valuesOf(t *testing.T, options map[string]any, other ...string) string {
	t.Helper()
	return string(check.Value(yaml.Marshal(map[string]any{"options": options}))(t)) + strings.Join(other, "\n")
}

// objectsOf returns the objects in what Helm prints.
func objectsOf(t *testing.T, text string) (objects []map[string]any) {
	t.Helper()
	if strings.HasPrefix(text, "error: ") {
		t.Fatal(text)
	}
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		var o map[string]any
		if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil { // a key that is there twice is an error
			t.Fatalf("%v in\n%s", err, doc)
		}
		if o != nil {
			objects = append(objects, o)
		}
	}
	return objects
}

// chartPod returns the Pods of the DaemonSet in what Helm prints.
func chartPod(t *testing.T, text string) corev1.PodSpec {
	t.Helper()
	for _, o := range objectsOf(t, text) {
		if o["kind"] == "DaemonSet" {
			var d appsv1.DaemonSet
			check.OK(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o, &d, true))
			return d.Spec.Template.Spec
		}
	}
	t.Fatalf("no DaemonSet in\n%s", text)
	return corev1.PodSpec{}
}

// TestChartOptions: each option that Herald has, and each of kube-vip that the manager starts with, reaches the Pod, or is refused with the reason.
func TestChartOptions(t *testing.T) {
	render := chartRenderer(t)
	refused := map[string]string{
		"vip_nodename":  "options.vip_nodename: a DaemonSet has many nodes",
		"herald_config": "options.herald_config: the chart does not see",
	}
	samples := map[config.Type]any{
		config.Bool: true, config.Int: 4200000, config.Seconds: 1000000, config.Milliseconds: 5000, config.Port: 8080, config.String: "text", config.Name: "default",
		config.Interface: "eth1", config.Path: "/files/one", config.Endpoint: ":9100", config.URL: "https://192.0.2.1:6443", config.List: 80,
	}
	options := map[string]any{}
	for _, o := range config.Options {
		if !inChart(o) {
			continue
		}
		for _, name := range append([]string{o.Env}, o.Aliases...) {
			options[name] = samples[o.Type]
		}
		if want, ok := refused[o.Env]; ok {
			delete(options, o.Env)
			if got := render(valuesOf(t, map[string]any{o.Env: samples[o.Type]})); !strings.Contains(got, want) {
				t.Errorf("%s: no %q in\n%s", o.Env, want, got)
			}
		}
	}
	env := chartPod(t, render(valuesOf(t, options, "extraVolumes: [{name: files, secret: {secretName: files}}]", "extraVolumeMounts: [{name: files, mountPath: /files}]"))).Containers[0].Env
	for _, name := range slices.Sorted(maps.Keys(options)) {
		var got []string
		for _, v := range env {
			if v.Name == name {
				got = append(got, v.Value)
			}
		}
		if want := []string{fmt.Sprint(options[name])}; !slices.Equal(got, want) {
			t.Errorf("%s is %q in the Pod, want %q", name, got, want)
		}
	}
	if len(options) < 120 {
		t.Errorf("only %d options", len(options))
	}
	for _, name := range []string{"vip_wireguard", "vip_packet*", "--etcdCert", "vip_apr"} {
		if got := render(valuesOf(t, map[string]any{name: true})); !strings.Contains(got, "additional properties '"+name+"' not allowed") {
			t.Errorf("%s: no error in\n%s", name, got)
		}
	}
}

// TestChartTakesValuesOfKubeVIP: what kube-vip's chart sets by itself, and what its documentation adds, are options of this chart.
func TestChartTakesValuesOfKubeVIP(t *testing.T) {
	render := chartRenderer(t)
	options := map[string]any{"svc_election": "false", "cp_detect": "true", "vip_ddns": "false", "cp_namespace": "default", "vip_subnet": "32", "dns_mode": "first"}
	for line := range strings.Lines(string(check.Value(os.ReadFile("../config/testdata/distributions/helm-chart.env"))(t))) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			options[name] = value
		}
	}
	var env []string
	for _, v := range chartPod(t, render(valuesOf(t, options))).Containers[0].Env {
		env = append(env, v.Name+"="+v.Value)
	}
	for name, value := range options {
		if want := fmt.Sprintf("%s=%s", name, value); !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
}

// rightsOf returns what roles allow that are bound to the ServiceAccount: "namespace group/resource name verb", sorted, each once.
func rightsOf(t *testing.T, objects []map[string]any) (all []string) {
	t.Helper()
	bound, roles := map[string]bool{}, 0
	for _, o := range objects {
		if kind, _ := o["kind"].(string); strings.HasSuffix(kind, "RoleBinding") {
			var b rbacv1.RoleBinding
			check.OK(t, runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o, &b, true))
			if slices.Equal(b.Subjects, []rbacv1.Subject{{Kind: "ServiceAccount", Name: "herald", Namespace: "default"}}) {
				bound[b.Namespace+"/"+b.RoleRef.Kind+"/"+b.RoleRef.Name] = true
			}
		}
	}
	for _, o := range objects {
		if kind, _ := o["kind"].(string); kind == "Role" || kind == "ClusterRole" {
			var r rbacv1.Role // a ClusterRole has the same fields
			check.OK(t, runtime.DefaultUnstructuredConverter.FromUnstructured(o, &r))
			if roles++; !bound[r.Namespace+"/"+kind+"/"+r.Name] {
				t.Errorf("%s %s/%s is bound to nobody", kind, r.Namespace, r.Name)
			}
			for _, p := range r.Rules {
				for _, verb := range p.Verbs {
					all = append(all, r.Namespace+" "+p.APIGroups[0]+"/"+p.Resources[0]+" "+strings.Join(p.ResourceNames, ",")+" "+verb)
				}
			}
		}
	}
	check.Equal(t, len(bound), roles, "how many bindings there are for roles")
	slices.Sort(all)
	return slices.Compact(all)
}

// TestChartRights: the chart allows what "herald manifest rbac" allows with the same options, and brings the Secret if that does.
func TestChartRights(t *testing.T) {
	render := chartRenderer(t)
	for _, options := range []map[string]any{
		{},
		{"svc_election": false, "svc_leasename": "locks/one"},
		{"vip_leasename": "locks/cp", "svc_leasename": "locks/one"},
		{"vip_leasename": "locks/cp", "svc_leasename": "more/one", "disable_service_updates": "True"},
		{"vip_leasename": "default/cp", "svc_leasename": "one"},
		{"egress_enable": false},
		{"egress_enable": "0", "svc_pools": ""},
		{"svc_pools": "vips", "KUBEVIP_CONFIG_MAP": "others"},
		{"svc_pools": nil, "KUBEVIP_CONFIG_MAP": "others"},
		{"herald_peers_port": 0},
		{"herald_peers_port": "0"},
		{"herald_peers_key": "/var/run/secrets/herald/key"},
	} {
		env := []string{"cp_namespace=default", "svc_enable=true", "vip_arp=true"}
		for name, value := range options {
			if value != nil {
				env = append(env, fmt.Sprintf("%s=%v", name, value))
			}
		}
		c, _, err := config.Parse(config.Sources{Env: env, Hostname: "n1"})
		check.OK(t, err)
		var want []map[string]any
		for _, o := range rbacObjects(c) {
			want = append(want, check.Value(runtime.DefaultUnstructuredConverter.ToUnstructured(o))(t))
		}
		got := objectsOf(t, render(valuesOf(t, options)))
		check.Same(t, rightsOf(t, want), rightsOf(t, got), "rights of the chart, as herald manifest gives with %v", options)
		secret := func(o map[string]any) bool { return o["kind"] == "Secret" }
		check.Equal(t, slices.ContainsFunc(want, secret), slices.ContainsFunc(got, secret), "%v: the chart has a Secret as herald manifest has", options)
	}
}
