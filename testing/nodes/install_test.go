package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// kubectl runs kubectl as the admin.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out := check.Value(cluster.Kubectl(t.Context(), args...))(t)
	return out
}

// manifestText is what "herald manifest" prints.
func manifestText(t *testing.T, args ...string) string {
	t.Helper()
	text := check.Value(manifest(args...))(t)
	return text
}

// installed is the way Herald is installed at present, "nothing" if it is not; the cluster comes up with static Pods.
var installed = "static"

// asStaticPods has Herald run as a static Pod on every node, from the given manifest.
func asStaticPods(t *testing.T, what, yaml string) {
	t.Helper()
	uninstall(t)
	for _, n := range cluster.Nodes() {
		check.OK(t, cluster.StaticPod(n, "herald", yaml))
	}
	installed = what
	awaitNodesReady(t)
}

// asDaemonSet has it run as a DaemonSet of that name, with what "herald manifest rbac" prints with the options rbac.
func asDaemonSet(t *testing.T, name, yaml string, rbac ...string) {
	t.Helper()
	uninstall(t)
	check.OK(t, cluster.Apply(t.Context(), manifestText(t, append([]string{"rbac"}, rbac...)...)))
	check.OK(t, cluster.Apply(t.Context(), yaml))
	installed = "daemonset/" + name
	kubectl(t, "-n", "kube-system", "rollout", "status", installed, "--timeout=2m")
	awaitNodesReady(t)
}

// uninstall ends Herald on all nodes, and waits until nothing is left of it.
func uninstall(t *testing.T) {
	t.Helper()
	if installed == "nothing" {
		return
	}
	if kind, name, ok := strings.Cut(installed, "/"); ok {
		kubectl(t, "-n", "kube-system", "delete", kind, name, "--wait")
	} else {
		for _, n := range cluster.Nodes() {
			check.OK(t, cluster.StaticPod(n, "herald", ""))
		}
	}
	await(t, time.Minute, "the last Herald is gone", func() error {
		leases, err := cluster.Client().CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, l := range leases.Items {
			if strings.HasPrefix(l.Name, "herald-node-") {
				return fmt.Errorf("%s is still there", l.Name)
			}
		}
		return nil
	})
	// The next installation has its own rights.
	kubectl(t, "delete", "clusterrolebinding/herald", "--ignore-not-found")
	for _, n := range cluster.Nodes() {
		if out := runOn(t, n, "ip", "-o", "addr", "show", "dev", "eth0"); strings.Contains(out, "/32") {
			t.Errorf("%s still has a VIP:\n%s", n, out)
		}
	}
}

// bothOptions are the options of an installation for the control plane and Services.
var bothOptions = []string{"--arp", "--controlplane", "--address=" + cpVIP.String(), "--interface=eth0", "--services", "--servicesElection"}

// webVIP is the VIP of the Service of most tests.
var webVIP = netip.MustParseAddr("10.77.0.50")

const webManifest = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
      - name: web
        image: ` + lab.ToolImage + `
        imagePullPolicy: Never
        args: [web]
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata:
  name: web
  annotations: {kube-vip.io/loadbalancerIPs: 10.77.0.50}
spec:
  type: LoadBalancer
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
`

// withWeb makes a Deployment and its Service, unless they are there, and waits until the
// client reaches the VIP. It returns how long that took.
func withWeb(t *testing.T) time.Duration {
	t.Helper()
	awaitNodesReady(t) // or all of web may be on one node
	began := time.Now()
	check.OK(t, cluster.Apply(t.Context(), webManifest))
	reachWeb(t)
	return time.Since(began)
}

// reachWeb waits until the client reaches web by its VIP.
func reachWeb(t *testing.T) {
	t.Helper()
	await(t, 2*time.Minute, "the client reaches "+webVIP.String(), func() error {
		_, err := cluster.Get(t.Context(), "cl", "http://"+webVIP.String()+"/")
		return err
	})
}

// webOwner is the node that announces web's VIP.
func webOwner(t *testing.T) string {
	t.Helper()
	var node string
	await(t, time.Minute, "web's VIP has an owner", func() error {
		var err error
		node, err = cluster.Owner(t.Context(), "default", "kubevip-web")
		return err
	})
	return node
}

// awaitProxies waits until every kube-proxy forwards connections to web's VIP: on a busy machine that may be
// seconds after the first. A node that has the VIP before that refuses connections.
func awaitProxies(t *testing.T) {
	t.Helper()
	await(t, time.Minute, "all kube-proxies serve "+webVIP.String(), func() error {
		for _, n := range cluster.Nodes() {
			rules := runOn(t, n, "sh", "-c", "nft list table ip kube-proxy 2>/dev/null || iptables-save")
			if err := lab.RulesServe(rules, webVIP.String()); err != nil {
				return fmt.Errorf("that of %s: %w", n, err)
			}
		}
		return nil
	})
}

// connectToWeb is a client that opens a new connection to web's VIP every 20 ms, once one was answered and
// every node would serve it.
func connectToWeb(t *testing.T) *lab.Connect {
	t.Helper()
	reachWeb(t)
	awaitProxies(t)
	c := check.Value(cluster.Connect(context.WithoutCancel(t.Context()), 20*time.Millisecond, webVIP.String()+":80"))(t)
	return c
}
