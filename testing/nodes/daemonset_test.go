package nodes

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
)

// TestStaticPodsCarryServices: the installation that brought the cluster up does both.
func TestStaticPodsCarryServices(t *testing.T) {
	awaitNodesReady(t)
	t.Logf("a Deployment, its Service, and the client's first answer: %v; %v in all since nothing was there",
		withWeb(t).Round(100*time.Millisecond), time.Since(startedAt).Round(time.Second))
	if out := kubectl(t, "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}"); out != webVIP.String() {
		t.Errorf("the status says %q", out)
	}
}

// TestRollingUpdate: every node's Herald is replaced while a client opens connections. One to a Service, and a watch, were
// open before, and outlive it.
func TestRollingUpdate(t *testing.T) {
	asDaemonSet(t, "herald", manifestText(t, append([]string{"daemonset"}, bothOptions...)...))
	withWeb(t)
	was := webOwner(t)
	api := watchAPI(t.Context(), "cl", cpVIP)
	clients := connectToWeb(t)
	held := check.Value(cluster.Hold(t.Context(), webVIP.String()+":80"))(t)
	defer held.Close()
	watched := watchByVIP(t)
	kubectl(t, "-n", "kube-system", "rollout", "restart", "daemonset/herald")
	kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/herald", "--timeout=3m")
	time.Sleep(time.Second)
	r := clients.Stop()
	outage, bad := api.end()
	took, err := held.Ask()
	t.Logf("a connection that was opened before answers in %v (%v)", took, err)
	if err != nil {
		t.Errorf("a connection that was opened before: %v", err)
	}
	watched.expectEvent(t, "the rolling update")
	t.Logf("from %s to %s\n%sthe control plane's VIP: %d failed, away for %v", was, webOwner(t), r, bad, outage.Round(time.Millisecond))
	// Handshakes that are under way when the VIP's MAC changes are lost (docs/ownership.md); the VIP moves
	// when its owner is replaced, and there are three owners to be.
	if r.Instants() > len(cluster.Nodes()) {
		t.Errorf("%d of %d connections failed", len(r.Failures), r.Attempts)
	}
	if r.Outage > 500*time.Millisecond || outage > takeoverTime {
		t.Errorf("web was away for %v, the control plane for %v", r.Outage, outage)
	}
	tryHistory(t)
}

// tryHistory: an operator with a kubeconfig moves a VIP, and is told of it, and of what was before the update.
func tryHistory(t *testing.T) {
	t.Helper()
	asOperator := func(args ...string) string {
		file := check.Value(cluster.Kubeconfig(t.Context(), "admin"))(t)
		return check.Value(cluster.Run(t.Context(), "cp", append([]string{herald}, append(args, "--kubeconfig", file)...)...))(t)
	}
	from := webOwner(t)
	asOperator("drain", from)
	await(t, 30*time.Second, "web has moved", func() error {
		if now := webOwner(t); now == from {
			return fmt.Errorf("it is on %s", now)
		}
		return nil
	})
	out := asOperator("history", "web")
	asOperator("undrain", from)
	t.Log("\n" + out)
	if want := regexp.MustCompile(`default/web +10\.77\.0\.\d+ +` + from + ` +n\d +\S+ +.*drained`); !want.MatchString(out) {
		t.Errorf("the move from %s is not in it", from)
	}
	if strings.Count(out, "default/web ") < 2 {
		t.Error("what was before the restarts of all Heralds is not in it")
	}
}

// TestCrash: kubelet starts the container again at once, and the VIP stays; after another crash kubelet backs off for longer than an
// address lives that nobody renews, and another node takes over. No client notices.
func TestCrash(t *testing.T) {
	if installed != "daemonset/herald" {
		asDaemonSet(t, "herald", manifestText(t, append([]string{"daemonset"}, bothOptions...)...))
	}
	withWeb(t)
	const crashes = 6 // each of three nodes has one at least after which kubelet does not back off
	for range crashes {
		node := webOwner(t)
		clients := connectToWeb(t)
		before := heraldContainer(t, node)
		runOn(t, node, "pkill", "-KILL", "-x", "herald")
		backsOff := false
		await(t, 30*time.Second, "kubelet on "+node+" starts Herald again, or backs off", func() error {
			now := heraldContainer(t, node)
			if backsOff = now.waits == "CrashLoopBackOff"; !backsOff && now.restarts == before.restarts {
				return fmt.Errorf("its container: %+v", now)
			}
			return nil
		})
		if backsOff {
			await(t, 30*time.Second, "another node has the VIP", func() error {
				if now := webOwner(t); now == node {
					return fmt.Errorf("%s has it", now)
				}
				return nil
			})
		}
		time.Sleep(2 * time.Second) // of clients that may notice
		r := clients.Stop()
		t.Logf("killed on %s, kubelet backs off: %v; now on %s: %s", node, backsOff, webOwner(t), r)
		if len(r.Failures) > 0 {
			t.Errorf("%d of %d connections failed", len(r.Failures), r.Attempts)
		}
		if backsOff {
			kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/herald", "--timeout=2m")
			return
		}
	}
	t.Errorf("kubelet did not back off once in %d crashes", crashes)
}

// A containerState is what kubelet says of a container.
type containerState struct {
	restarts int32
	waits    string // why it does not run; "" if it does, or has just ended
}

// heraldContainer returns what kubelet says of Herald's container on a node.
func heraldContainer(t *testing.T, node string) (s containerState) {
	t.Helper()
	pods := check.Value(cluster.Client().CoreV1().Pods("kube-system").List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=herald", FieldSelector: "spec.nodeName=" + node,
	}))(t)
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			s.restarts = c.RestartCount
			if c.State.Waiting != nil {
				s.waits = c.State.Waiting.Reason
			}
		}
	}
	return s
}

// TestNodeLife: cordon, drain, labels and taints of a node either move its VIP or do not.
func TestNodeLife(t *testing.T) {
	if installed != "daemonset/herald" {
		asDaemonSet(t, "herald", manifestText(t, append([]string{"daemonset"}, bothOptions...)...))
	}
	withWeb(t)
	// kubeadm puts the label that excludes from load balancers on each of these nodes.
	const label = "node.kubernetes.io/exclude-from-external-load-balancers"
	kubectl(t, "label", "nodes", "--all", label+"-")
	on, since := webOwner(t), time.Now()
	await(t, time.Minute, "web's VIP stays where it is", func() error { // the nodes lose the label one by one
		if now := webOwner(t); now != on {
			on, since = now, time.Now()
		}
		if time.Since(since) < 2*time.Second {
			return fmt.Errorf("it came to %s just now", on)
		}
		return nil
	})
	t.Cleanup(func() { cluster.Kubectl(context.Background(), append([]string{"uncordon"}, cluster.Nodes()...)...) })
	moved := func(from string) {
		t.Helper()
		await(t, 30*time.Second, "the VIP leaves "+from, func() error {
			if now := webOwner(t); now == from {
				return fmt.Errorf("it is still there")
			}
			return nil
		})
	}
	steps := []struct {
		name  string
		do    func(node string)
		undo  func(node string)
		moves bool
	}{
		{"cordon", func(n string) { kubectl(t, "cordon", n) }, func(n string) { kubectl(t, "uncordon", n) }, false},
		{"drain", func(n string) {
			kubectl(t, "drain", n, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=90s", "--pod-selector=app=web")
		}, func(n string) { kubectl(t, "uncordon", n) }, false}, // the VIP's pods went, the VIP need not
		{"the label", func(n string) { kubectl(t, "label", "node", n, label+"=") }, func(n string) { kubectl(t, "label", "node", n, label+"-") }, true},
		{"out of service", func(n string) {
			kubectl(t, "taint", "node", n, "node.kubernetes.io/out-of-service=nodeshutdown:NoSchedule")
		},
			func(n string) { kubectl(t, "taint", "node", n, "node.kubernetes.io/out-of-service-") }, true},
		{"Herald's Pod is deleted", func(n string) {
			kubectl(t, "-n", "kube-system", "delete", "pod", "-l", "app.kubernetes.io/name=herald", "--field-selector=spec.nodeName="+n)
		}, func(string) {}, true},
	}
	for _, s := range steps {
		node, cp := webOwner(t), cpOwner(t)
		clients := connectToWeb(t)
		s.do(node)
		if s.moves {
			moved(node)
		} else {
			time.Sleep(3 * time.Second)
		}
		time.Sleep(time.Second)
		r := clients.Stop()
		now, cpNow := webOwner(t), cpOwner(t)
		t.Logf("%s: web from %s to %s, the control plane from %s to %s; %s", s.name, node, now, cp, cpNow, strings.SplitN(r.String(), "\n", 2)[0])
		if (now != node) != s.moves {
			t.Errorf("%s: from %s to %s", s.name, node, now)
		}
		if r.Instants() > 1 || r.Outage > time.Second { // beside another lab 0.65 s, where nothing happened
			t.Errorf("%s: %s", s.name, r)
		}
		s.undo(node)
		awaitNodesReady(t)
	}
}

// TestNodeDeleted: nothing on the node ends at once, and it registers again when kubelet starts.
func TestNodeDeleted(t *testing.T) {
	if installed != "daemonset/herald" {
		asDaemonSet(t, "herald", manifestText(t, append([]string{"daemonset"}, bothOptions...)...))
	}
	withWeb(t)
	nodeDeleted(t, 5*time.Second)
}

// TestTextOfKubeVIP: what a user of kube-vip has, with only the image changed.
func TestTextOfKubeVIP(t *testing.T) {
	const page = "migrate-from-kube-vip.md"
	check := func(t *testing.T) {
		w := watchAPI(t.Context(), "cl", cpVIP)
		w.awaitGoodAfter(t, time.Now())
		w.end()
		withWeb(t)
		t.Logf("the control plane's VIP is on %s, web answers", cpOwner(t))
	}
	t.Run("static Pod", func(t *testing.T) {
		asStaticPods(t, "static", readFile(t, "testdata/kube-vip-pod.yaml"))
		check(t)
	})
	t.Run("DaemonSet", func(t *testing.T) {
		asDaemonSet(t, "kube-vip-ds", readFile(t, "testdata/kube-vip-ds.yaml"))
		paste(t, strings.ReplaceAll(documented(t, page, "## A DaemonSet", "OnDelete"), "registry.example.com/herald:v0.2.0", image))
		for _, pod := range strings.Fields(kubectl(t, "-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=kube-vip-ds", "-o", "name")) {
			kubectl(t, "-n", "kube-system", "delete", pod)
			kubectl(t, "-n", "kube-system", "wait", "pod", "--for=condition=Ready", "-l", "app.kubernetes.io/name=kube-vip-ds", "--timeout=1m")
		}
		check(t)
	})
	t.Run("Herald's DaemonSet", func(t *testing.T) {
		commands := documented(t, page, "## Before", "> options.yaml") + "\n" + documented(t, page, "### Herald's own DaemonSet", "delete daemonset kube-vip-ds")
		clients := connectToWeb(t)
		paste(t, strings.ReplaceAll(commands, "registry.example.com/herald:v0.2.0", image))
		installed = "daemonset/herald"
		kubectl(t, "-n", "kube-system", "rollout", "status", installed, "--timeout=1m")
		r := clients.Stop()
		t.Log(r)
		if r.Instants() > len(cluster.Nodes()) || r.Outage > 500*time.Millisecond { // as in TestRollingUpdate
			t.Errorf("%d of %d connections failed, web was away for %v", len(r.Failures), r.Attempts, r.Outage)
		}
		check(t)
		kubectl(t, "delete", "clusterrolebinding,clusterrole", "herald-beside-kube-vip")
	})
}
