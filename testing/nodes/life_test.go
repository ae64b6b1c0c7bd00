package nodes

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// moveVIPsTo brings both VIPs to a node, by draining the others for a moment.
func moveVIPsTo(t *testing.T, node string) {
	t.Helper()
	awaitNodesReady(t)
	// kubeadm's label, which a Node that registers again has lost, is not what this is about.
	kubectl(t, "label", "nodes", "--all", "node.kubernetes.io/exclude-from-external-load-balancers-")
	const mark = "heraldvip.io/drain"
	for _, n := range cluster.Nodes() {
		if n != node {
			kubectl(t, "annotate", "node", n, "--overwrite", mark+"=test")
		}
	}
	await(t, time.Minute, "both VIPs are on "+node, func() error {
		if web, cp := webOwner(t), cpOwner(t); web != node || cp != node {
			return fmt.Errorf("they are on %s and %s", web, cp)
		}
		return nil
	})
	await(t, 30*time.Second, "the nodes that had the VIPs answer no more", func() error {
		for _, n := range cluster.Nodes() {
			if have := runOn(t, n, "ip", "-o", "addr", "show", "dev", "eth0"); n != node && strings.Contains(have, "/32") {
				return fmt.Errorf("%s has\n%s", n, have)
			}
		}
		return nil
	})
	kubectl(t, "annotate", "nodes", "--all", mark+"-")
}

// otherNode returns another node than node.
func otherNode(node string) string {
	return cluster.Nodes()[(slices.Index(cluster.Nodes(), node)+1)%len(cluster.Nodes())]
}

// vipClients are clients of the two VIPs, and a host that asks who has them.
type vipClients struct {
	web    *lab.Connect
	api    *apiWatch
	asking *lab.WhoHas
}

// watchVIPs starts clients of both VIPs, which run until end.
func watchVIPs(t *testing.T) *vipClients {
	t.Helper()
	reachWeb(t)
	ctx := context.WithoutCancel(t.Context())
	asking := check.Value(cluster.WhoHas(ctx, 20*time.Millisecond, cpVIP, webVIP))(t)
	web := check.Value(cluster.Connect(ctx, 10*time.Millisecond, webVIP.String()+":80"))(t)
	p := &vipClients{web, watchAPI(ctx, "cl", cpVIP), asking}
	p.api.awaitGoodAfter(t, time.Now())
	return p
}

// end stops the clients and logs what they saw. It fails the test if a VIP was away for longer than maxOutage, on two
// nodes for longer than a hand-over, or if more than maxFailed attempts failed. If this process got no CPU for much of
// the time, nor did API servers and etcd: then they have longer, and attempts are not counted.
func (p *vipClients) end(t *testing.T, maxOutage time.Duration, maxFailed int) {
	t.Helper()
	r, report := p.web.Stop(), p.asking.Stop()
	outage, bad := p.api.end()
	t.Logf("%sthe control plane's VIP: %d failed, away for %v; on two nodes for %v and %v",
		r, bad, outage.Round(time.Millisecond), report.Addrs[0].LongestDouble, report.Addrs[1].LongestDouble)
	if r.Stalled > r.Ended.Sub(r.Began)/20 {
		maxOutage, maxFailed = 2*maxOutage, math.MaxInt
	}
	if failed := len(r.Failures) + bad; failed > maxFailed {
		t.Errorf("%d connections failed", failed)
	}
	if r.Outage > maxOutage || outage > maxOutage {
		t.Errorf("web was away for %v, the control plane for %v, want %v at most", r.Outage, outage, maxOutage)
	}
	for _, a := range report.Addrs {
		if a.LongestDouble > handOver {
			t.Errorf("two nodes answered for %v, want %v at most:\n%s", a.LongestDouble, handOver, report)
		}
	}
}

// bootNode gives a node its power back, and waits until all nodes and its kube-proxy are ready.
func bootNode(t *testing.T, node string) {
	t.Helper()
	check.OK(t, cluster.Boot(node))
	awaitNodesReady(t)
	check.OK(t, cluster.StartProxy(node)) // sooner it would not find its API server, and wait for half a minute
	await(t, time.Minute, "kube-proxy is healthy on "+node, func() error {
		_, err := cluster.Get(t.Context(), node, "http://127.0.0.1:10256/healthz")
		return err
	})
}

// expectOwners fails the test if a VIP has another owner than it had before a node came back.
func expectOwners(t *testing.T, web, cp string) {
	t.Helper()
	if nowWeb, nowCP := webOwner(t), cpOwner(t); nowWeb != web || nowCP != cp {
		t.Errorf("the VIPs went on from %s and %s to %s and %s", web, cp, nowWeb, nowCP)
	}
}

// TestPowerCut: the node that has both VIPs is gone, and with it a member of etcd.
func TestPowerCut(t *testing.T) {
	withWeb(t)
	t.Run("etcd's leader is elsewhere", func(t *testing.T) { powerCut(t, otherNode(etcdLeader(t)), takeoverTime) })
	t.Run("etcd's leader goes with it", func(t *testing.T) { powerCut(t, etcdLeader(t), 5*time.Second) }) // it takes 1 to 3 s to elect another
}

func powerCut(t *testing.T, node string, maxOutage time.Duration) {
	t.Helper()
	moveVIPsTo(t, node)
	leader := etcdLeader(t)
	cluster.AvoidAPIServer(node)
	p := watchVIPs(t)
	check.OK(t, cluster.PowerOff(t.Context(), node))
	gone := time.Now()
	await(t, time.Minute, "both VIPs have other owners", func() error {
		if web, cp := webOwner(t), cpOwner(t); web == node || cp == node {
			return fmt.Errorf("web's is %s, the control plane's %s", web, cp)
		}
		return nil
	})
	p.api.awaitGoodAfter(t, time.Now())
	web, cp := webOwner(t), cpOwner(t)
	t.Logf("the power of %s was cut at %s; etcd's leader was %s; web is on %s, the control plane on %s", node, gone.Format("05.000"), leader, web, cp)
	for _, n := range cluster.Nodes() {
		if n != node {
			t.Logf("what Herald on %s says:\n%s", n, runOn(t, n, "sh", "-c", "tail -qn 6 /var/log/pods/kube-system_herald-*/herald/*.log | cut -c1-300"))
		}
	}
	bootNode(t, node)
	p.end(t, maxOutage, math.MaxInt)
	if web, cp := webOwner(t), cpOwner(t); web == node || cp == node {
		t.Errorf("a VIP went back to %s: web is on %s, the control plane on %s", node, web, cp)
	}
}

// etcdLeader is the node whose member of etcd leads.
func etcdLeader(t *testing.T) (leader string) {
	t.Helper()
	await(t, time.Minute, "etcd has a leader", func() error {
		for _, n := range cluster.Nodes() {
			text, err := cluster.Get(t.Context(), n, "http://127.0.0.1:2381/metrics")
			if err == nil && strings.Contains(text, "\netcd_server_is_leader 1\n") {
				leader = n
				return nil
			}
		}
		return fmt.Errorf("none says so")
	})
	return leader
}

// nodeDeleted deletes the Node of the node that has both VIPs, whose kubelet registers it again
// when it starts again.
func nodeDeleted(t *testing.T, after time.Duration) {
	t.Helper()
	node := cpOwner(t)
	moveVIPsTo(t, node)
	p := watchVIPs(t)
	kubectl(t, "delete", "node", node)
	time.Sleep(after)
	web, cp := webOwner(t), cpOwner(t)
	t.Logf("%s is deleted: web is on %s, the control plane on %s; pods there:\n%s", node, web, cp,
		kubectl(t, "get", "pods", "-A", "--field-selector=spec.nodeName="+node))
	runOn(t, node, "pkill", "-TERM", "-x", "kubelet")
	awaitNodesReady(t)
	kubectl(t, "label", "node", node, "node-role.kubernetes.io/control-plane=") // that was kubeadm's, not kubelet's
	p.end(t, time.Second, 2)
	expectOwners(t, web, cp)
}
