// Package manifest writes the YAML that installs Herald: a DaemonSet, a static Pod, and their permissions.
package manifest

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/pkg/config"
)

const name = "herald"

const repository = "ghcr.io/heraldvip/herald"

// A Request describes an installation of Herald.
type Request struct {
	Config config.Config
	Given  []config.Setting // what goes into the environment
	Image  string
	// InCluster: a Pod authenticates with its ServiceAccount, as a DaemonSet always does, not with a host's kubeconfig.
	InCluster bool
	// Taint: a DaemonSet runs on control-plane nodes only. Workers: on all others.
	Taint, Workers bool
}

// Release is the release that this source is, or becomes, in manifests, chart and documentation. "make release" builds
// it.
const Release = "v0.2.0"

// releaseVersion matches the versions that have an image of their own.
var releaseVersion = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// Image returns a version's image: a release's, else that of Release.
func Image(version string) string {
	if !releaseVersion.MatchString(version) {
		version = Release
	}
	return repository + ":" + version
}

// DaemonSet returns the YAML of a DaemonSet for all nodes, control planes or workers; a node's name among the settings
// is an error.
func DaemonSet(r Request) ([]byte, error) {
	for _, s := range r.Given {
		if s.Option.Env == nodeName {
			return nil, config.NewError(fmt.Errorf("%v: a DaemonSet has many nodes and names each by itself; remove it", s))
		}
	}
	return writeWorkload(r, header("daemonset", r,
		"Herald on every node, as a DaemonSet.",
		"",
		"  "+command("rbac", r)+" | kubectl apply -f -",
		"  kubectl apply -f this-file.yaml",
	), daemonSet(r))
}

// Pod returns the YAML of a static Pod, for one node's kubelet.
func Pod(r Request) ([]byte, error) {
	how := []string{
		"Herald on one node, as a static Pod, with the rights that the node's kubeconfig has.",
		"On each node that has " + quote(kubeConfig(r)) + ":",
		"",
		"  cp this-file.yaml /etc/kubernetes/manifests/herald.yaml",
	}
	if r.Config.Kube.ConfigFile == "" {
		how = append(how, "", "Workers don't have that file, and kubelet would start no Pod there: run the DaemonSet on "+
			"them, or name by --k8sConfigPath a kubeconfig",
			"that may do what \"herald manifest rbac\" lists.")
	}
	if r.InCluster {
		how = []string{"Herald on one node, as a Pod.", "", "  " + command("rbac", r) + " | kubectl apply -f -",
			"  kubectl apply -f this-file.yaml"}
	}
	return writeWorkload(r, header("pod", r, how...), pod(r))
}

// RBAC returns the YAML of the ServiceAccount and its least rights: everywhere, or in the namespaces concerned by
// svc_namespace.
func RBAC(r Request) ([]byte, error) {
	return write(header("rbac", r,
		"What Herald must be allowed. The namespace "+r.Config.Node.Namespace+" has to exist.",
		"",
		"  kubectl apply -f this-file.yaml",
	), rbacObjects(r.Config)...)
}

// Admission returns the YAML of policies that limit what tenants may ask for.
func Admission(r Request) ([]byte, error) {
	return write(header("admission", r,
		"What Services and Leases of tenants may ask for, checked by the API server (1.30 or newer). Annotations that "+
			"concern",
		"others are permitted to a namespace only once an administrator lists them on it: docs/security.md#admission.",
		"",
		"  kubectl apply -f this-file.yaml",
	), admissionObjects(r.Config)...)
}

// header returns a file's comment: how to use it, and make it again.
func header(kind string, r Request, how ...string) string {
	var b strings.Builder
	for _, line := range append(how, "", "Made by: "+command(kind, r)) {
		b.WriteString(strings.TrimRight("# "+line, " ") + "\n")
	}
	return b.String()
}

var plainWord = regexp.MustCompile(`^[-\w./:,@%+]*$`)

// quote makes a value one word of a shell, and one line of a comment.
func quote(value string) string {
	if plainWord.MatchString(value) {
		return value
	}
	return strconv.Quote(value)
}

// command returns the command line that makes a file of this kind.
func command(kind string, r Request) string {
	words := []string{"herald manifest", kind}
	for _, s := range r.Given {
		if s.Option.Env == configFile || kind == "rbac" && hasServices(r.Config) &&
			!slices.Contains(rbacOptions, s.Option.Env) || kind == "admission" && s.Option.Env != "cp_namespace" {
			continue
		}
		word := "--" + s.Option.Flag
		if yes, err := strconv.ParseBool(s.Value); s.Option.Type != config.Bool || err != nil || !yes {
			word += "=" + quote(s.Value)
		}
		words = append(words, word)
	}
	if r.Image != Image("") && (kind == "pod" || kind == "daemonset") {
		words = append(words, "--image="+quote(r.Image))
	}
	if r.InCluster && kind == "pod" {
		words = append(words, "--inCluster")
	}
	if r.Taint && kind == "daemonset" {
		words = append(words, "--taint")
	}
	if r.Workers && kind == "daemonset" {
		words = append(words, "--workers")
	}
	return strings.Join(words, " ")
}

// writeWorkload is write, or an error if metrics would have the port that is chosen here for probes.
func writeWorkload(r Request, comment string, object any) ([]byte, error) {
	for _, s := range r.Given {
		if s.Option.Env == "prometheus_server" && r.Config.Serve.HealthPort == 0 &&
			strings.HasSuffix(s.Value, fmt.Sprintf(":%d", defaultHealthPort)) {
			return nil, config.NewError(fmt.Errorf("%v: kubelet's probes have that port in a manifest; name another here, "+
				"or for them by health_check_port", s))
		}
	}
	return write(comment, object)
}

// write returns a comment and objects as YAML documents, without their status.
func write(comment string, objects ...any) ([]byte, error) {
	out := bytes.NewBufferString(comment)
	for _, object := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, err
		}
		delete(fields, "status")
		text, err := yaml.Marshal(fields)
		if err != nil {
			return nil, err
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}
