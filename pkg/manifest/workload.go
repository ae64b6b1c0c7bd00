package manifest

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/heraldvip/herald/pkg/config"
)

// The options that are not just copied into the environment.
const (
	nodeName   = "vip_nodename"
	healthPort = "health_check_port"
	configFile = "herald_config" // read when the manifest is made, so that it need not be on the nodes
)

// The probes' port, and a static Pod's kubeconfig, by default.
const (
	defaultHealthPort = 2113
	defaultKubeConfig = "/etc/kubernetes/admin.conf"
)

var labels = map[string]string{"app.kubernetes.io/name": name}

func daemonSet(r Request) *appsv1.DaemonSet {
	spec := podSpec(r)
	spec.ServiceAccountName = name
	spec.NodeSelector = map[string]string{corev1.LabelOSStable: "linux"}
	if r.Config.Kube.ConfigFile != "" {
		mountFile(&spec, "kubeconfig", r.Config.Kube.ConfigFile)
	}
	mountNamedFiles(&spec, r)
	if r.Taint {
		spec.Affinity = controlPlanes(corev1.NodeSelectorOpExists)
	} else if r.Workers {
		spec.Affinity = controlPlanes(corev1.NodeSelectorOpDoesNotExist)
	}
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: meta(r.Config.Node.Namespace),
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
			// One by one, so that there is a node to hand VIPs to.
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromInt32(1))},
			},
		},
	}
}

func pod(r Request) *corev1.Pod {
	spec := podSpec(r)
	if r.InCluster {
		spec.ServiceAccountName = name
	} else { // the kubelet refuses a static Pod that names a ServiceAccount
		mountFile(&spec, "kubeconfig", kubeConfig(r))
	}
	mountNamedFiles(&spec, r)
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: meta(r.Config.Node.Namespace),
		Spec:       spec,
	}
}

func meta(namespace string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels}
}

func kubeConfig(r Request) string { return cmp.Or(r.Config.Kube.ConfigFile, defaultKubeConfig) }

func podSpec(r Request) corev1.PodSpec {
	port := cmp.Or(int32(r.Config.Serve.HealthPort), defaultHealthPort)
	return corev1.PodSpec{
		HostNetwork:                   true, // VIPs are the node's
		PriorityClassName:             "system-node-critical",
		TerminationGracePeriodSeconds: new(int64(30)), // to hand its VIPs over
		SecurityContext: &corev1.PodSecurityContext{
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Tolerations: []corev1.Toleration{
			{Effect: corev1.TaintEffectNoSchedule, Operator: corev1.TolerationOpExists},
			{Effect: corev1.TaintEffectNoExecute, Operator: corev1.TolerationOpExists},
		},
		Containers: []corev1.Container{{
			Name:            name,
			Image:           r.Image,
			ImagePullPolicy: corev1.PullIfNotPresent,
			Args:            []string{"manager"},
			Env:             environment(r.Given, port),
			LivenessProbe:   httpProbe("/healthz", port, 10),
			ReadinessProbe:  httpProbe("/readyz", port, 5),
			SecurityContext: securityContext(),
			// No limits: a throttled announcer renews its lease too late.
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("50m"),
				corev1.ResourceMemory: resource.MustParse("64Mi"),
			}},
		}},
	}
}

// securityContext returns the rights to bind addresses (NET_ADMIN) and send ARP (NET_RAW).
func securityContext() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		// Added capabilities need file capabilities for other users (overlay hardened).
		RunAsUser: new(int64(0)),
		Capabilities: &corev1.Capabilities{
			Drop: []corev1.Capability{"ALL"},
			Add:  []corev1.Capability{"NET_ADMIN", "NET_RAW"},
		},
	}
}

// environment returns given and necessary variables, in the order of the table of options.
func environment(given []config.Setting, port int32) []corev1.EnvVar {
	var vars []corev1.EnvVar
	for _, o := range config.Options {
		i := slices.IndexFunc(given, func(s config.Setting) bool { return s.Option.Env == o.Env })
		switch {
		case o.Env == configFile:
		case i >= 0:
			vars = append(vars, corev1.EnvVar{Name: o.Env, Value: given[i].Value})
		case o.Env == nodeName:
			vars = append(vars, fieldVariable(o.Env, "spec.nodeName"))
		case o.Env == healthPort:
			vars = append(vars, corev1.EnvVar{Name: o.Env, Value: strconv.Itoa(int(port))})
		}
	}
	// With it a process tells another of its node name which Pod it is.
	return append(vars, fieldVariable("POD_NAME", "metadata.name"))
}

// fieldVariable returns a variable with a field of the Pod (downward API).
func fieldVariable(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name,
		ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
}

// httpProbe asks over loopback: Herald answers probes of its own node only.
func httpProbe(path string, port, period int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "127.0.0.1", Path: path,
			Port: intstr.FromInt32(port)}},
		InitialDelaySeconds: period,
		PeriodSeconds:       period,
		TimeoutSeconds:      5,
		FailureThreshold:    3,
	}
}

func mountNamedFiles(spec *corev1.PodSpec, r Request) {
	if path := r.Config.ControlPlane.CheckCA; path != "" {
		mountFile(spec, "api-server-ca", path)
	}
	if path := r.Config.Peers.KeyFile; path != "" {
		mountFile(spec, "peers-key", path)
	}
	if r.Config.BGP.Enable {
		for i, path := range passwordFiles(r.Given) {
			mountFile(spec, "bgp-password-"+strconv.Itoa(i), path)
		}
	}
}

// passwordFile matches a BGP password in a file: "@" and its path.
var passwordFile = regexp.MustCompile(`(?:^|:)@(/[^:,]+)`)

func passwordFiles(given []config.Setting) (paths []string) {
	for _, s := range given {
		if s.Option.Env != "bgp_peers" && s.Option.Env != "bgp_peerpass" {
			continue
		}
		for _, m := range passwordFile.FindAllStringSubmatch(s.Value, -1) {
			if !slices.Contains(paths, m[1]) {
				paths = append(paths, m[1])
			}
		}
	}
	return paths
}

// mountFile mounts a host's file read-only at the same path.
func mountFile(spec *corev1.PodSpec, volume, path string) {
	spec.Volumes = append(spec.Volumes, corev1.Volume{
		Name:         volume,
		VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: new(corev1.HostPathFile)}},
	})
	c := &spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: path, ReadOnly: true})
}

// controlPlanes returns the affinity to nodes for which kubeadm's label of control planes does, or does not, exist.
func controlPlanes(op corev1.NodeSelectorOperator) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "node-role.kubernetes.io/control-plane", Operator: op},
			},
		}}},
	}}
}
