package manifest

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/testing/check"
)

// read reads one YAML document into a type of Kubernetes, strictly.
func read[T any](t *testing.T, text []byte) T {
	t.Helper()
	var v T
	if err := yaml.UnmarshalStrict(text, &v); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return v
}

func documents(t *testing.T, text []byte) []string {
	t.Helper()
	parts := strings.Split(string(text), "---\n")
	for line := range strings.Lines(parts[0]) {
		if !strings.HasPrefix(line, "#") {
			t.Errorf("line of the header that is no comment: %q", line)
		}
	}
	return parts[1:]
}

func daemonSetOf(t *testing.T, r Request) appsv1.DaemonSet {
	t.Helper()
	text := check.Value(DaemonSet(r))(t)
	return read[appsv1.DaemonSet](t, []byte(documents(t, text)[0]))
}

func podOf(t *testing.T, r Request) corev1.Pod {
	t.Helper()
	text := check.Value(Pod(r))(t)
	return read[corev1.Pod](t, []byte(documents(t, text)[0]))
}

// env is the environment of the only container, NAME=value or NAME<-field.
func env(t *testing.T, spec corev1.PodSpec) []string {
	t.Helper()
	if len(spec.Containers) != 1 {
		t.Fatalf("%d containers, want 1", len(spec.Containers))
	}
	var vars []string
	for _, v := range spec.Containers[0].Env {
		if v.ValueFrom != nil {
			vars = append(vars, v.Name+"<-"+v.ValueFrom.FieldRef.FieldPath)
			continue
		}
		vars = append(vars, v.Name+"="+v.Value)
	}
	return vars
}

func TestEnvironment(t *testing.T) {
	tests := []struct {
		args string
		want []string
	}{
		{"", []string{"vip_nodename<-spec.nodeName", "health_check_port=2113", "POD_NAME<-metadata.name"}},
		{"--arp --services --interface eth0 --leaderElection", // as kube-vip's documentation has it
			[]string{"vip_nodename<-spec.nodeName", "vip_interface=eth0", "svc_enable=true", "vip_arp=true", "health_check_port=2113", "POD_NAME<-metadata.name"}},
		{"--arp=true --services --leaseDuration 15 --leaseRenewDuration=8 --log -4",
			[]string{"vip_loglevel=-4", "vip_nodename<-spec.nodeName", "vip_renewdeadline=8", "svc_enable=true", "vip_arp=true", "health_check_port=2113", "POD_NAME<-metadata.name"}},
		{"--lbClassName= --healthCheckPort 8080", []string{"vip_nodename<-spec.nodeName", "lb_class_name=", "health_check_port=8080", "POD_NAME<-metadata.name"}},
		{"-n lb", []string{"vip_nodename<-spec.nodeName", "cp_namespace=lb", "health_check_port=2113", "POD_NAME<-metadata.name"}},
	}
	for _, tt := range tests {
		r := request(t, strings.Fields(tt.args)...)
		check.Same(t, tt.want, env(t, daemonSetOf(t, r).Spec.Template.Spec), "daemonset %s", tt.args)
		check.Same(t, tt.want, env(t, podOf(t, r).Spec), "pod %s", tt.args)
	}
}

// TestSecurityContext: no more than the least that works, for every kind of workload.
func TestSecurityContext(t *testing.T) {
	r := request(t, "--arp", "--services", "--healthCheckPort=9000")
	for name, spec := range map[string]corev1.PodSpec{"daemonset": daemonSetOf(t, r).Spec.Template.Spec, "pod": podOf(t, r).Spec} {
		c := spec.Containers[0]
		sc := c.SecurityContext
		check.Same(t, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}}, sc.Capabilities, "%s: capabilities", name)
		if !*sc.ReadOnlyRootFilesystem || *sc.AllowPrivilegeEscalation || sc.Privileged != nil || *sc.RunAsUser != 0 {
			t.Errorf("%s: security context %+v", name, sc)
		}
		if spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || spec.HostPID || spec.HostIPC || !spec.HostNetwork {
			t.Errorf("%s: pod %+v", name, spec)
		}
		for _, p := range []struct {
			probe *corev1.Probe
			path  string
		}{{c.LivenessProbe, "/healthz"}, {c.ReadinessProbe, "/readyz"}} {
			if p.probe.HTTPGet.Host != "127.0.0.1" || p.probe.HTTPGet.Path != p.path || p.probe.HTTPGet.Port.IntValue() != 9000 {
				t.Errorf("%s: probe of %s at %s:%s", name, p.probe.HTTPGet.Path, p.probe.HTTPGet.Host, &p.probe.HTTPGet.Port)
			}
		}
	}
}

func TestDaemonSet(t *testing.T) {
	r := request(t, "--arp", "--services", "-n", "lb")
	ds := daemonSetOf(t, r)
	spec := ds.Spec.Template.Spec
	if ds.Namespace != "lb" || spec.ServiceAccountName != "herald" || spec.Volumes != nil || spec.Affinity != nil {
		t.Errorf("got %+v", ds)
	}
	for operator, only := range map[corev1.NodeSelectorOperator]Request{
		corev1.NodeSelectorOpExists:       {Config: r.Config, Taint: true},
		corev1.NodeSelectorOpDoesNotExist: {Config: r.Config, Workers: true},
	} {
		spec = daemonSetOf(t, only).Spec.Template.Spec
		terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) != 1 || terms[0].MatchExpressions[0].Key != "node-role.kubernetes.io/control-plane" || terms[0].MatchExpressions[0].Operator != operator {
			t.Errorf("%s: terms %+v", operator, terms)
		}
	}

	if _, err := DaemonSet(request(t, "--nodeName", "n1")); err == nil || !strings.Contains(err.Error(), `vip_nodename="n1" (flag --nodeName)`) {
		t.Errorf("one name for all nodes: %v", err)
	}
}

// Each file of the host that an option names is in the container.
func TestNamedFilesAreMounted(t *testing.T) {
	r := request(t, "--arp", "--controlplane", "--address", "192.0.2.10", "--cpCheckAddress", "https://127.0.0.1:6443/livez", "--cpCheckCA", "/etc/ca.crt", "--peersKey", "/etc/herald/key")
	for _, spec := range []corev1.PodSpec{podOf(t, r).Spec, daemonSetOf(t, r).Spec.Template.Spec} {
		var mounted []string
		for i, m := range spec.Containers[0].VolumeMounts {
			if v := spec.Volumes[i]; v.Name == m.Name && v.HostPath.Path == m.MountPath {
				mounted = append(mounted, m.MountPath)
			}
		}
		for _, path := range []string{"/etc/ca.crt", "/etc/herald/key"} {
			if !slices.Contains(mounted, path) {
				t.Errorf("mounted are %v, without %s", mounted, path)
			}
		}
	}
}

func TestPod(t *testing.T) {
	p := podOf(t, request(t, "--arp", "--services", "--nodeName", "n7"))
	check.Equal(t, p.Spec.ServiceAccountName, "", "ServiceAccount, which the kubelet refuses in a static Pod")
	check.Equal(t, env(t, p.Spec)[0], "vip_nodename=n7", "first variable")
	for path, args := range map[string][]string{
		"/etc/kubernetes/admin.conf":   nil,
		"/etc/kubernetes/kubelet.conf": {"--k8sConfigPath", "/etc/kubernetes/kubelet.conf"},
	} {
		r := request(t, args...)
		p := podOf(t, r)
		v, m := p.Spec.Volumes, p.Spec.Containers[0].VolumeMounts
		if len(v) != 1 || len(m) != 1 || v[0].Name != m[0].Name || v[0].HostPath.Path != path || m[0].MountPath != path || !m[0].ReadOnly {
			t.Errorf("%s: volumes %+v, mounts %+v", path, v, m)
		}
	}
	// Only control-plane nodes have the default kubeconfig; who names another one knows where it is.
	for want, args := range map[string][]string{
		"# Workers don't have that file":                       nil,
		"# On each node that has /etc/kubernetes/kubelet.conf": {"--k8sConfigPath", "/etc/kubernetes/kubelet.conf"},
	} {
		text := string(check.Value(Pod(request(t, args...)))(t))
		if !strings.Contains(text, want) || strings.Contains(text, "# Workers") != (args == nil) {
			t.Errorf("%q: the header is not right:\n%s", args, text)
		}
	}
	r := request(t)
	r.InCluster = true
	if p := podOf(t, r); p.Spec.ServiceAccountName != "herald" || p.Spec.Volumes != nil {
		t.Errorf("in the cluster: %+v", p.Spec)
	}
	spec := daemonSetOf(t, request(t, "--k8sConfigPath", "/etc/k3s.yaml")).Spec.Template.Spec
	if len(spec.Volumes) != 1 || spec.Volumes[0].HostPath.Path != "/etc/k3s.yaml" {
		t.Errorf("a DaemonSet with a kubeconfig: volumes %+v", spec.Volumes)
	}
}

// TestHeader: the header shows how to make the file again, and no value ends it.
func TestHeader(t *testing.T) {
	line := func(text []byte, err error) string {
		check.OK(t, err)
		documents(t, text)
		for line := range strings.Lines(string(text)) {
			if _, made, ok := strings.Cut(line, "# Made by: "); ok {
				return strings.TrimSpace(made)
			}
		}
		return ""
	}
	r := request(t, "--arp=1", "--services", "--disableServiceUpdates", "--lbClassNameLegacyHandling=false", "-n", "lb", "--k8sConfigPath", "/a b\n---\nkind: Evil")
	r.InCluster, r.Taint = true, true
	tests := []struct{ got, want string }{
		{line(DaemonSet(r)), `herald manifest daemonset --namespace=lb --services --disableServiceUpdates --lbClassNameLegacyHandling=false --arp --k8sConfigPath="/a b\n---\nkind: Evil" --taint`},
		{line(Pod(r)), `herald manifest pod --namespace=lb --services --disableServiceUpdates --lbClassNameLegacyHandling=false --arp --k8sConfigPath="/a b\n---\nkind: Evil" --inCluster`},
		{line(RBAC(r)), `herald manifest rbac --namespace=lb --disableServiceUpdates`},
	}
	for _, tt := range tests {
		check.Equal(t, tt.got, tt.want, "the header")
	}
}

func TestImage(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "ghcr.io/heraldvip/herald:v1.2.3", "": "ghcr.io/heraldvip/herald:" + Release,
		"devel": "ghcr.io/heraldvip/herald:" + Release, "v1.2.3-4-gabcdef": "ghcr.io/heraldvip/herald:" + Release,
	} {
		check.Equal(t, Image(version), want, "Image(%q)", version)
	}
}

// granted lists what the roles of a manifest allow, "namespace group/resource name verb".
func granted(t *testing.T, args ...string) []string {
	t.Helper()
	r := request(t, args...)
	text := check.Value(RBAC(r))(t)
	var all []string
	bound, secrets, flows := map[string]int{}, 0, 0
	for _, doc := range documents(t, text) {
		switch kind := read[struct{ Kind string }](t, []byte(kindOnly(doc))).Kind; kind {
		case "ServiceAccount":
			if sa := read[corev1.ServiceAccount](t, []byte(doc)); sa.Name != "herald" || sa.Namespace != r.Config.Node.Namespace {
				t.Errorf("ServiceAccount %s/%s", sa.Namespace, sa.Name)
			}
		case "Secret": // empty, so that applying it again leaves the key alone
			want := corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Type: corev1.SecretTypeOpaque,
				ObjectMeta: metav1.ObjectMeta{Name: "herald-peers", Namespace: r.Config.Node.Namespace, Labels: labels}}
			check.Same(t, want, read[corev1.Secret](t, []byte(doc)), "Secret")
			secrets++
		case "FlowSchema":
			if r.Config.Node.Namespace == "kube-system" {
				t.Error("a FlowSchema, where the API server has its own")
			}
			flows++
		case "Role", "ClusterRole":
			role := read[rbacv1.Role](t, []byte(doc)) // a ClusterRole has the same fields
			bound[kind+role.Namespace]++
			for _, p := range role.Rules {
				for _, verb := range p.Verbs {
					all = append(all, strings.TrimSpace(role.Namespace+" "+p.APIGroups[0]+"/"+strings.Join(append(p.Resources, p.ResourceNames...), " ")+" "+verb))
				}
			}
		case "RoleBinding", "ClusterRoleBinding":
			b := read[rbacv1.RoleBinding](t, []byte(doc))
			bound[b.RoleRef.Kind+b.Namespace]++
			want := []rbacv1.Subject{{Kind: "ServiceAccount", Name: "herald", Namespace: r.Config.Node.Namespace}}
			if diff := cmp.Diff(want, b.Subjects); diff != "" || b.RoleRef.Name != named("herald", b.Namespace, r.Config.Node.Namespace).Name || kind != b.RoleRef.Kind+"Binding" {
				t.Errorf("%s: %+v", kind, b)
			}
		default:
			t.Errorf("kind %q", kind)
		}
	}
	check.Equal(t, secrets == 1, strings.Contains(strings.Join(all, "\n"), "/secrets "), "a Secret, and rights on it")
	if flows != 2 && r.Config.Node.Namespace != "kube-system" {
		t.Errorf("%d FlowSchemas", flows)
	}
	for role, n := range bound {
		check.Equal(t, n, 2, "a role and its binding: %s", role)
	}
	return all
}

func kindOnly(doc string) string {
	for line := range strings.Lines(doc) {
		if strings.HasPrefix(line, "kind:") {
			return line
		}
	}
	return ""
}

// each is "prefix verb" for every verb.
func each(prefix string, verbs ...string) (all []string) {
	for _, v := range verbs {
		all = append(all, prefix+" "+v)
	}
	return all
}

func TestRBAC(t *testing.T) {
	join := func(parts ...[]string) (all []string) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	services := func(ns string) []string {
		return join(each(ns+"/services", "list", "watch"), each(ns+"/services/status", "patch"),
			each(ns+"discovery.k8s.io/endpointslices", "list", "watch"), each(ns+"/pods", "list", "watch"),
			each(ns+"coordination.k8s.io/leases", "list", "watch"), each(ns+"/events", "create"))
	}
	nodes, cidrs := each("/nodes", "list", "watch"), each("networking.k8s.io/servicecidrs", "list", "watch")
	pools := each("/configmaps kubevip", "list", "watch")
	cluster := join(nodes, pools, each("/namespaces", "list", "watch"), cidrs)
	written := func(ns string) []string {
		return each(ns+"coordination.k8s.io/leases", "get", "create", "update", "delete")
	}
	watched := func(ns string) []string { return each(ns+"coordination.k8s.io/leases", "list", "watch") }
	secret := func(ns string) []string { return each(ns+"/secrets herald-peers", "get", "update") }
	own := func(ns string) []string { return join(written(ns), secret(ns)) }
	home := func(ns string) []string { return join(written(ns), watched(ns), secret(ns)) }
	tests := []struct {
		args string
		want []string
	}{
		{"", join(services(""), cluster, own("kube-system "))},
		{"--peersPort 0", join(services(""), cluster, written("kube-system "))},
		{"--peersKey /etc/herald/key", join(services(""), cluster, written("kube-system "))},
		{"--disableServiceUpdates", join(each("/services", "list", "watch"), each("discovery.k8s.io/endpointslices", "list", "watch"), each("/pods", "list", "watch"),
			watched(""), each("/events", "create"), nodes, cidrs, own("kube-system "))},
		{"--serviceNamespace web", join(services("web "), home("kube-system "))},
		{"--serviceNamespace web -n lb --servicesElection", join(services("web "), home("lb "))},
		{"--serviceNamespace lb -n lb", join(slices.Concat(services("lb ")[:9], written("lb "), services("lb ")[9:]), secret("lb "))},
		{"--serviceNamespace web --servicesLeaseName locks/one", join(services("web "), home("kube-system "), watched("locks "))},
		{"--serviceNamespace web --servicesLeaseName web/one", join(services("web "), home("kube-system "))},
		{"--pools addresses --poolsNamespace lb", join(services(""), nodes, each("/configmaps addresses", "list", "watch"), each("/namespaces", "list", "watch"), cidrs, own("kube-system "))},
		{"--pools=", join(services(""), nodes, cidrs, own("kube-system "))},
		{"--servicesLeaseName locks/one", join(services(""), cluster, own("kube-system "))},
		{"--serviceNamespace web --leaseName locks/cp --servicesLeaseName locks/one", join(services("web "), home("kube-system "), watched("locks "))},
		{"--serviceNamespace web --leaseName locks/cp --servicesLeaseName more/one", join(services("web "), home("kube-system "), watched("more "), watched("locks "))},
	}
	for _, tt := range tests {
		check.Same(t, tt.want, granted(t, strings.Fields(tt.args)...), "%q", tt.args)
	}
}

// TestPermissionsOfNamedLeases: Leases are written in the announcers' namespace only. With svc_namespace preflight asks to
// watch the Leases that options name elsewhere, if they are used.
func TestPermissionsOfNamedLeases(t *testing.T) {
	for _, tt := range []struct {
		args string
		want []string // the namespaces in which leases must be watched, "" for all
	}{
		{"--servicesLeaseName=locks/one --leaseName=more/cp", []string{""}},
		{"--servicesLeaseName=locks/one --leaseName=more/cp --serviceNamespace=web", []string{"kube-system", "locks", "web"}}, // without cp_enable there is no lease for it
		{"--servicesLeaseName=locks/one --leaseName=more/cp --serviceNamespace=web --servicesElection --controlplane --address=192.0.2.10", []string{"kube-system", "more", "web"}},
	} {
		watched := make(map[string]bool)
		for _, p := range permissions(request(t, strings.Fields("--arp "+tt.args)...).Config) {
			switch {
			case p.Resource != "leases":
			case p.Verb == "watch":
				watched[p.Namespace] = true
			case p.Verb == "update" && p.Namespace != "kube-system":
				t.Errorf("%s: leases are to be written in %s", tt.args, p.Namespace)
			}
		}
		if got := slices.Sorted(maps.Keys(watched)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: leases are to be watched in %q, want %q", tt.args, got, tt.want)
		}
	}
}

// TestWrittenAnnotations: the policy of admission lets Herald write each annotation that the reference says it writes.
func TestWrittenAnnotations(t *testing.T) {
	found := 0
	for _, a := range kube.Annotations {
		if a.Written {
			found++
			if !slices.Contains(written, a.Key) {
				t.Errorf("%s is not in the list", a.Key)
			}
		}
	}
	if found < 3 {
		t.Errorf("only %d annotations are written", found)
	}
}

// TestEnvironmentSaysTheSame: the variables of a manifest mean what the flags meant that it was made of.
func TestEnvironmentSaysTheSame(t *testing.T) {
	for _, args := range []string{"", "--prometheusHTTPServer=", "--prometheusHTTPServer=off", "--lbClassName=", "--pools=", "--interface=", "--services=0", "--prometheusHTTPServer=:9100 --cidr=24 --vip=192.0.2.1 --controlplane"} {
		want := request(t, strings.Fields("--arp "+args)...).Config
		var env []string
		for _, v := range environment(request(t, strings.Fields("--arp "+args)...).Given, 0) {
			if v.Name != healthPort && v.ValueFrom == nil {
				env = append(env, v.Name+"="+v.Value)
			}
		}
		got, _, err := config.Parse(config.Sources{Env: env, Hostname: "n1"})
		check.OK(t, err)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: the environment %q asks for\n%+v\nwant\n%+v", args, env, got, want)
		}
	}
}
