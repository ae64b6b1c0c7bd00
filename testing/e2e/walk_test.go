package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// seenAs waits until what `herald ARGUMENTS` prints matches a pattern, and logs it: what someone reads who follows docs/troubleshooting.md.
func seenAs(t *testing.T, pattern string, within time.Duration, args ...string) {
	t.Helper()
	out, want := "", regexp.MustCompile(pattern)
	file := check.Value(cluster.Kubeconfig(t.Context(), "admin"))(t)
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		var err error
		if out, err = cluster.Run(t.Context(), "w1", append([]string{herald}, append(args, "--kubeconfig", file)...)...); err != nil {
			out += err.Error()
		}
		if want.MatchString(out) {
			t.Logf("herald %s, after %v:\n%s", strings.Join(args, " "), time.Since(began).Round(100*time.Millisecond), out)
			return
		}
		if time.Since(began) > within {
			t.Errorf("herald %s does not show %s:\n%s", strings.Join(args, " "), pattern, out)
			return
		}
	}
}

// TestTroubleshootingWalk makes the faults of docs/troubleshooting.md, and looks at each as the page says: the commands lead to
// the cause and to what to do.
func TestTroubleshootingWalk(t *testing.T) {
	if os.Getenv("HERALD_ALERTS") != "all" {
		t.Skip("it takes a minute (make test-alerts)")
	}
	f := start(t, env())
	walkPending(t)
	walkUnanswered(t, f)
	walkMoves(t, f)
}

// walkPending: EXTERNAL-IP is <pending>.
func walkPending(t *testing.T) {
	node, _ := cluster.Addrs("n2")
	runOn(t, "rt", "ip", "addr", "add", "10.77.0.56/32", "dev", "eth0")
	t.Cleanup(func() { cluster.Run(context.Background(), "rt", "ip", "addr", "del", "10.77.0.56/32", "dev", "eth0") })
	createService(t, webService("none", ""))
	createService(t, webService("refused", node.String()))
	createService(t, webService("used", "10.77.0.56"))
	createService(t, webService("field", "10.77.0.57", func(s *corev1.Service) { s.Annotations["kube-vip.io/loadbalancerIPs"] = "10.77.0.one" }))
	who, seconds, now := "kube-vip-7", int32(30), metav1.NowMicro()
	check.Value(cluster.Client().CoordinationV1().Leases("default").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "kubevip-foreign"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &who, LeaseDurationSeconds: &seconds, RenewTime: &now}}, metav1.CreateOptions{}))(t)
	createService(t, webService("foreign", "10.77.0.58"))
	createService(t, webService("leased", "0.0.0.0"))
	seenAs(t, `(?s)NoAddress.*What to do: .*kube-vip.io/loadbalancerIPs`, 10*time.Second, "explain", "none")
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.60"})
	createService(t, webService("second", ""))
	seenAs(t, `default/second: NoPoolAddress`, 10*time.Second, "explain", "second")
	seenAs(t, `range-global`, 10*time.Second, "pools")
	seenAs(t, `AddressRefused.*node n2`, 10*time.Second, "explain", "refused")
	seenAs(t, `AddressInUse.*`+cluster.MAC("rt"), 10*time.Second, "explain", "used")
	seenAs(t, `default/field: InvalidField: kube-vip.io/loadbalancerIPs`, 10*time.Second, "explain", "field")
	seenAs(t, `HeldByOtherAnnouncer.*kube-vip-7`, 10*time.Second, "explain", "foreign")
	seenAs(t, `DHCPFailed.*no DHCP server answered`, 40*time.Second, "explain", "leased")
	deleteServices(t, "none", "refused", "used", "field", "foreign", "leased", "second")
}

// walkUnanswered: EXTERNAL-IP is there, and nobody answers; or some clients reach it, others don't.
func walkUnanswered(t *testing.T, f *heralds) {
	createService(t, webService("empty", "10.77.0.61", lab.Selecting("nobody")))
	addPod(t, "astray-w", "w1")
	createService(t, localService("astray", "10.77.0.62"))
	createService(t, webService("web", "10.77.0.64"))
	owner := awaitOwner(t, "web")
	seenAs(t, `default/empty .*NoEndpoints`, 10*time.Second, "status")
	seenAs(t, `NoEligibleNode`, 10*time.Second, "explain", "astray")
	seenAs(t, `announced by node `+owner, 5*time.Second, "explain", "web")
	deleteServices(t, "empty", "astray")

	runOn(t, owner, "nft", "add table arp e2e; add chain arp e2e in { type filter hook input priority 0; }; add rule arp e2e in arp daddr ip 10.77.0.64 drop")
	seenAs(t, `VIPUnanswered`, 20*time.Second, "status")
	seenAs(t, `(?s)VIPUnanswered.*arping`, 5*time.Second, "explain", "web")
	runOn(t, owner, "nft", "delete table arp e2e")
	runOn(t, "rt", "ip", "addr", "add", "10.77.0.64/32", "dev", "eth0")
	announceByARP(t, "rt", "10.77.0.64")
	seenAs(t, `VIPForeignMAC.*`+cluster.MAC("rt"), 20*time.Second, "status")
	seenAs(t, cluster.MAC("rt"), 5*time.Second, "explain", "web")
	runOn(t, "rt", "ip", "addr", "del", "10.77.0.64/32", "dev", "eth0")

	other := otherNodes(owner)[0]
	check.OK(t, cluster.Unplug(other))
	seenAs(t, other+` .*its link eth0 is down`, 10*time.Second, "status")
	seenAs(t, `its link eth0 is down`, 5*time.Second, "explain", "--node", other)
	check.OK(t, cluster.Reconnect(other))
	awaitDetectable(t)
	check.OK(t, cluster.Cut(other))
	seenAs(t, other+` .*it reaches too few other nodes`, 20*time.Second, "status")
	seenAs(t, `it reaches too few other nodes`, 5*time.Second, "explain", "--node", other)
	check.OK(t, cluster.Reconnect(other))
	awaitDetectable(t)
	stopProxy(t, other, true)
	seenAs(t, other+` .*look at kube-proxy`, 20*time.Second, "status")
	seenAs(t, `look at kube-proxy`, 5*time.Second, "explain", "--node", other)
	startProxy(t, other)
	runHerald(t, "drain", other)
	seenAs(t, other+` .*it is drained`, 10*time.Second, "status")
	seenAs(t, `it is drained`, 5*time.Second, "explain", "--node", other)
	runHerald(t, "undrain", other)
}

// walkMoves: a VIP moves late, or again and again.
func walkMoves(t *testing.T, f *heralds) {
	owner := awaitOwner(t, "web")
	awaitDetectable(t)
	blockPort(t, owner, 7947)
	seenAs(t, `it gets no heartbeats from`, 20*time.Second, "status")
	seenAs(t, `(?i)heartbeats`, 5*time.Second, "explain", "--node", owner)
	check.OK(t, cluster.OpenPort(t.Context(), owner))
	awaitDetectable(t)
	startSecond(t, owner, f.env)
	seenAs(t, `another Herald`, 20*time.Second, "status")
	check.OK(t, cluster.CutAPI(owner))
	t.Cleanup(func() { cluster.ConnectAPI(owner) })
	seenAs(t, `announced by node n`, 20*time.Second, "explain", "web")
	until(t, 20*time.Second, "it moves", func(context.Context) error {
		if now := awaitOwner(t, "web"); now == owner {
			return fmt.Errorf("it is on %s", now)
		}
		return nil
	})
	seenAs(t, `It moved since `+owner+`: its Herald does not reach the API server`, 5*time.Second, "explain", "web")
	check.OK(t, cluster.ConnectAPI(owner))
	f.awaitReady(owner) // else it has no API server to delete its node lease by
}
