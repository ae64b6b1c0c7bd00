package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
)

// clusterState lists what Herald might write: every Service with its annotations, finalizers and status, Leases, Secrets,
// ConfigMaps, the annotations of Nodes; and of each node its addresses, links and nftables tables.
func clusterState(t *testing.T) (lines []string) {
	t.Helper()
	c, all := cluster.Client(), metav1.ListOptions{}
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, s := range check.Value(c.CoreV1().Services("").List(t.Context(), all))(t).Items {
		add("Service %s: %v %v %v %q", s.Name, s.Annotations, s.Finalizers, s.Status.Conditions, externalIPs(&s))
	}
	for _, l := range check.Value(c.CoordinationV1().Leases("").List(t.Context(), all))(t).Items {
		add("Lease %s/%s", l.Namespace, l.Name)
	}
	for _, s := range check.Value(c.CoreV1().Secrets("").List(t.Context(), all))(t).Items {
		add("Secret %s/%s", s.Namespace, s.Name)
	}
	for _, m := range check.Value(c.CoreV1().ConfigMaps("").List(t.Context(), all))(t).Items {
		add("ConfigMap %s/%s: %v", m.Namespace, m.Name, m.Data)
	}
	for _, n := range check.Value(c.CoreV1().Nodes().List(t.Context(), all))(t).Items {
		add("Node %s: %v", n.Name, n.Annotations)
	}
	for _, n := range cluster.Nodes() {
		for line := range strings.Lines(outputOf(t, n, "ip", "-o", "addr")) {
			before, _, _ := strings.Cut(line, "valid_lft")
			add("%s: address %s", n, before)
		}
		for line := range strings.Lines(outputOf(t, n, "ip", "-br", "link")) {
			add("%s: link %s", n, strings.Fields(line)[0])
		}
		for line := range strings.Lines(outputOf(t, n, "nft", "list", "tables")) {
			add("%s: %s", n, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// expectState fails the test if the state is not as before.
func expectState(t *testing.T, when string, before []string) {
	t.Helper()
	now := clusterState(t)
	for _, l := range before {
		if !slices.Contains(now, l) {
			t.Errorf("%s: gone: %s", when, l)
		}
	}
	for _, l := range now {
		if !slices.Contains(before, l) {
			t.Errorf("%s: new: %s", when, l)
		}
	}
}

// uninstallOn runs herald uninstall on a machine, and returns what it says, with its error.
func uninstallOn(t *testing.T, host string, args ...string) string {
	t.Helper()
	out, err := cluster.Run(t.Context(), host, append([]string{herald, "uninstall"}, args...)...)
	if err != nil {
		out += "error: " + err.Error()
	}
	return out
}

// After herald uninstall the cluster and the nodes are as they were before Herald came, though all Heralds were killed.
func TestUninstall(t *testing.T) {
	const secret = "herald-peers"
	secrets := cluster.Client().CoreV1().Secrets("kube-system")
	t.Cleanup(func() { // which comes with the manifests, for the tests that follow
		secrets.Create(context.Background(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secret}}, metav1.CreateOptions{})
	})
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.62"})
	createService(t, webService("a", ""))
	createService(t, webService("b", "10.77.0.70"))
	before := slices.DeleteFunc(clusterState(t), func(l string) bool { return l == "Secret kube-system/"+secret })
	f := start(t, env("vip_leaseduration", "5", "vip_renewdeadline", "3", "vip_retryperiod", "1"))
	awaitStatus(t, "a", "10.77.0.60(VIP)", 5*time.Second)
	awaitStatus(t, "b", "10.77.0.70(VIP)", 5*time.Second)
	owner := awaitOwner(t, "a")
	runHerald(t, "drain", owner)
	runOn(t, owner, "ip", "link", "add", "link", "eth0", "name", "herald-e2e", "type", "macvlan")
	runOn(t, owner, "ip", "link", "set", "herald-e2e", "alias", "herald: macvlan for DHCP; parent had arp_ignore=0 arp_announce=0")
	t.Cleanup(func() { cluster.Run(context.Background(), owner, "ip", "link", "del", "herald-e2e") })
	drained := owner
	owner = awaitAnotherOwner(t, "a", drained, 5*time.Second)
	until(t, 5*time.Second, "an nftables table for the former owner", func(context.Context) error {
		if tables := outputOf(t, owner, "nft", "list", "tables"); !strings.Contains(tables, "table ip herald") {
			return fmt.Errorf("there are %q", tables)
		}
		return nil
	})
	expectWords(t, uninstallOn(t, "cp"), "Herald still runs on "+strings.Join(cluster.Nodes(), ", ")+", and would write all of this again")
	expectWords(t, uninstallOn(t, owner, "node"), "a Herald runs on this node")

	f.killed = true
	for _, n := range cluster.Nodes() {
		check.OK(t, f.node[n].Signal(syscall.SIGKILL))
	}
	for _, n := range cluster.Nodes() {
		f.node[n].Wait(withTimeout(t, 10*time.Second))
	}
	listed := uninstallOn(t, "cp", "--dry-run")
	expectWords(t, listed, "Service default/a: the status; the finalizer; annotations heraldvip.io/announcer, kube-vip.io/vipHost, heraldvip.io/allocated, heraldvip.io/allocated-addresses, kube-vip.io/loadbalancerIPs",
		"Service default/b: the status; the finalizer; annotations heraldvip.io/announcer, kube-vip.io/vipHost; conditions heraldvip.io/Allocated, heraldvip.io/Announced, heraldvip.io/Record\n", "Lease kube-system/herald-table: all",
		"Lease kube-system/herald-node-"+owner+": all", ": annotations heraldvip.io/drain", "Secret kube-system/herald-peers: all", " to be removed\n")
	if getService(t, "a").Annotations["heraldvip.io/allocated"] == "" {
		t.Error("a dry run has changed a Service")
	}
	removed := uninstallOn(t, "cp")
	if want := strings.Replace(listed, " to be removed\n", " removed. On nodes whose Herald was killed: herald uninstall node\n", 1); removed != want {
		t.Errorf("removed\n%s\nwhile listed was\n%s", removed, listed)
	}
	for _, n := range cluster.Nodes() {
		expectWords(t, uninstallOn(t, n, "node"), " was removed\n")
	}
	expectState(t, "after uninstall", before)
	expectWords(t, uninstallOn(t, "cp"), "0 removed. ")
}

// outputOf runs a command on a machine, and returns what it writes.
func outputOf(t *testing.T, host string, argv ...string) string {
	t.Helper()
	return check.Value(cluster.Run(t.Context(), host, argv...))(t)
}

// expectWords fails the test if a text lacks one of these parts.
func expectWords(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in\n%s", p, text)
		}
	}
}
