// Package manifest writes the YAML that installs Herald: a DaemonSet, a
// static Pod, and the permissions they need.
package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/pkg/config"
)

// name is that of every object that is written.
const name = "herald"

// repository is where released images are.
const repository = "ghcr.io/heraldvip/herald"

// A Request says what an installation should be like.
type Request struct {
	Config config.Config
	Given  []config.Setting // what goes into the environment
	Image  string
	// InCluster: a Pod authenticates with its ServiceAccount, not with a
	// kubeconfig of the host. A DaemonSet always has the ServiceAccount.
	InCluster bool
	// ControlPlane: a DaemonSet runs on control-plane nodes only.
	ControlPlane bool
}

// released is what versions of releases look like; others have no image of their own.
var released = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// Image is the image of a version: that of a release, or the latest.
func Image(version string) string {
	if !released.MatchString(version) {
		version = "latest"
	}
	return repository + ":" + version
}

// DaemonSet writes a DaemonSet for all nodes, or for the control plane.
func DaemonSet(r Request) ([]byte, error) {
	for _, s := range r.Given {
		if s.Option.Env == nodeName {
			return nil, fmt.Errorf("%v: a DaemonSet has many nodes and names each by itself; remove it", s)
		}
	}
	return write(head("daemonset", r,
		"Herald on every node, as a DaemonSet.",
		"",
		"  "+command("rbac", r)+" | kubectl apply -f -",
		"  kubectl apply -f this-file.yaml",
	), daemonSet(r))
}

// Pod writes a static Pod, for the kubelet of one node.
func Pod(r Request) ([]byte, error) {
	how := []string{
		"Herald on one node, as a static Pod. On every node that may carry VIPs:",
		"",
		"  cp this-file.yaml /etc/kubernetes/manifests/herald.yaml",
		"",
		"It acts as the kubeconfig " + kubeConfig(r) + " of the node allows.",
	}
	if r.InCluster {
		how = []string{"Herald on one node, as a Pod.", "", "  " + command("rbac", r) + " | kubectl apply -f -", "  kubectl apply -f this-file.yaml"}
	}
	return write(head("pod", r, how...), pod(r))
}

// RBAC writes the ServiceAccount and the least that it must be allowed:
// everywhere, or with svc_namespace in the namespaces concerned.
func RBAC(r Request) ([]byte, error) {
	return write(head("rbac", r,
		"What Herald must be allowed. The namespace "+r.Config.Node.Namespace+" has to exist.",
		"",
		"  kubectl apply -f this-file.yaml",
	), rbac(r.Config)...)
}

// head is the comment a file begins with: how to use it, and how to make it again.
func head(kind string, r Request, how ...string) string {
	var b strings.Builder
	for _, line := range append(how, "", "Made by: "+command(kind, r)) {
		b.WriteString(strings.TrimRight("# "+line, " ") + "\n")
	}
	return b.String()
}

// plain is what a shell, and a comment, take as it is.
var plain = regexp.MustCompile(`^[-\w./:,@%+]*$`)

// quote keeps a value to one word of a shell and one line of a comment.
func quote(value string) string {
	if plain.MatchString(value) {
		return value
	}
	return strconv.Quote(value)
}

// command is the command line that makes a file of this kind.
func command(kind string, r Request) string {
	words := []string{"herald manifest", kind}
	for _, s := range r.Given {
		if s.Option.Env == configFile || kind == "rbac" && !slices.Contains(ofRBAC, s.Option.Env) {
			continue
		}
		word := "--" + s.Option.Flag
		if yes, err := strconv.ParseBool(s.Value); s.Option.Type != config.Bool || err != nil || !yes {
			word += "=" + quote(s.Value)
		}
		words = append(words, word)
	}
	if r.InCluster && kind == "pod" {
		words = append(words, "--inCluster")
	}
	if r.ControlPlane && kind == "daemonset" {
		words = append(words, "--taint")
	}
	return strings.Join(words, " ")
}

// write writes the objects as YAML documents, without what only the API server fills in.
func write(head string, objects ...any) ([]byte, error) {
	out := bytes.NewBufferString(head)
	for _, object := range objects {
		text, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		var fields map[string]any
		if err := json.Unmarshal(text, &fields); err != nil {
			return nil, err
		}
		delete(fields, "status")
		text, err = yaml.Marshal(fields)
		if err != nil {
			return nil, err
		}
		out.WriteString("---\n")
		out.Write(text)
	}
	return out.Bytes(), nil
}
