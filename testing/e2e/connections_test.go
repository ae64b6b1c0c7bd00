package e2e

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// A held is a connection, and which node owned its VIP when it began.
type held struct {
	*lab.Held
	owner string
}

// hold opens n connections to a VIP.
func hold(t *testing.T, n int, vip, owner string) []*held {
	t.Helper()
	var all []*held
	for range n {
		h, err := cluster.Hold(withTimeout(t, 5*time.Second), net.JoinHostPort(vip, "80"))
		if err != nil {
			t.Fatalf("%v; at that time\n%s", err, whoServes(vip, owner))
		}
		t.Cleanup(func() { h.Close() })
		all = append(all, &held{h, owner})
	}
	return all
}

// whoServes is what tells why a VIP's owner refuses a connection: to which node the client sends, which nodes have the address, what the
// Service's status says, and what the owner's kube-proxy has of it.
func whoServes(vip, owner string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out := []string{"owner: " + owner}
	say := func(where string, argv ...string) {
		text, err := cluster.Run(ctx, where, argv...)
		out = append(out, fmt.Sprintf("%s: %s: %v\n%s", where, strings.Join(argv, " "), err, text))
	}
	say("cl", "ip", "neigh", "show", vip)
	for _, n := range cluster.Nodes() {
		say(n, "ip", "addr", "show", "to", vip)
	}
	services, err := cluster.Kubectl(ctx, "get", "services", "-o", "wide")
	out = append(out, fmt.Sprintf("services: %v\n%s", err, services))
	say(owner, "sh", "-c", "nft list ruleset | grep -F -B2 -A2 "+vip)
	return strings.Join(out, "\n")
}

// expectHeld fails the test if one of the connections does not answer, and returns the slowest answer.
func expectHeld(t *testing.T, after string, all []*held) {
	t.Helper()
	var broken []string
	var slowest time.Duration
	for _, h := range all {
		took, err := h.Ask()
		if err != nil {
			broken = append(broken, fmt.Sprintf("begun at %s: %v", h.owner, err))
		}
		slowest = max(slowest, took)
	}
	t.Logf("after %s: %d of %d broken, slowest answer %v", after, len(broken), len(all), slowest.Round(time.Millisecond))
	if len(broken) > 0 {
		t.Errorf("after %s: %s", after, strings.Join(slices.Compact(broken), "\n"))
	}
}

// awaitNeighbor waits until the client sends packets for vip to a node: it follows the gratuitous
// ARP or unsolicited neighbor advertisement, which come a little after the table has changed.
func awaitNeighbor(t *testing.T, vip, node string) {
	t.Helper()
	until(t, 10*time.Second, "the client sends packets for "+vip+" to "+node, func(ctx context.Context) error {
		return neighborIs(ctx, vip, node)
	})
}

// neighborIs returns an error if the client does not send packets for vip to a node.
func neighborIs(ctx context.Context, vip, node string) error {
	neighbors, err := cluster.Run(ctx, "cl", "ip", "neigh", "show", vip)
	if err == nil && !strings.Contains(neighbors, cluster.MAC(node)) {
		err = fmt.Errorf("it has %q", strings.TrimSpace(neighbors))
	}
	return err
}

// Connections outlive their VIP's moves, by IPv4 and IPv6: one Herald after another is stopped, and started again, twice, while
// 200 of them have traffic; then one is killed, one drained, and one node after the other excluded.
func TestConnectionsSurviveMoves(t *testing.T) {
	f := start(t, env())
	f.killed = true
	vips := []string{"10.77.0.50", "fd77::50"}
	createService(t, webService("a", strings.Join(vips, ","), func(s *corev1.Service) {
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
	}))
	owner := awaitOwner(t, "a")
	for _, v := range vips {
		awaitReachable(t, "http://"+net.JoinHostPort(v, "80")+"/")
		awaitProxies(t, v)
	}
	var all []*held
	more := func() {
		t.Helper()
		for _, v := range vips {
			awaitNeighbor(t, v, owner)
			all = append(all, hold(t, 5, v, owner)...)
		}
	}
	moved := func(how string) {
		t.Helper()
		before := owner
		owner = awaitMoved(t, "a", before, 10*time.Second)
		expectHeld(t, fmt.Sprintf("%s, from %s to %s", how, before, owner), all)
	}
	expectNoTables(t)
	more()
	busy := check.Value(cluster.HoldMany(withTimeout(t, 30*time.Second), net.JoinHostPort(vips[0], "80"), 200))(t)
	t.Cleanup(func() {
		for _, h := range busy {
			h.Close()
		}
	})
	traffic := lab.Exchange(busy, 250*time.Millisecond)
	for range 4 {
		stopped := owner
		f.node[stopped].Signal(syscall.SIGTERM)
		moved("SIGTERM")
		check.OK(t, f.node[stopped].Wait(withTimeout(t, 10*time.Second)))
		expectHeld(t, "the end of "+stopped, all)
		more()
		f.startAgain(stopped)
		expectHeld(t, "the start of "+stopped, all)
	}
	if r := traffic(); r.Broken > 0 {
		t.Errorf("with traffic: %v", r)
	} else {
		t.Logf("with traffic: %v", r)
	}
	awaitDetectable(t)
	killed := owner
	f.node[killed].Kill()
	moved("SIGKILL")
	more()
	f.startAgain(killed)
	expectHeld(t, "the start of "+killed, all)
	drained := owner
	runHerald(t, "drain", drained)
	moved("drain")
	runHerald(t, "undrain", drained)
	moved("undrain")
	// From one node to the second and third, and back, as fast as labels make it.
	const label = "node.kubernetes.io/exclude-from-external-load-balancers"
	t.Cleanup(func() { cluster.Kubectl(context.Background(), "label", "nodes", "--all", label+"-") })
	var excluded []string
	for range 3 {
		if len(excluded) == 2 {
			check.Value(cluster.Kubectl(t.Context(), "label", "node", excluded[0], label+"-"))(t)
		}
		excluded = append(excluded, owner)
		check.Value(cluster.Kubectl(t.Context(), "label", "node", owner, label+"="))(t)
		moved("exclusion")
	}
	if owner != excluded[0] {
		t.Errorf("the VIP went from %v to %s, want it back at the first", excluded, owner)
	}
}

// expectNoTables fails the test if a node has a table of Herald's, though no VIP has moved, but for that of packets that conntrack calls invalid.
func expectNoTables(t *testing.T) {
	t.Helper()
	for _, n := range cluster.Nodes() {
		if out := check.Value(cluster.Run(t.Context(), n, "nft", "list", "tables"))(t); strings.Contains(strings.ReplaceAll(out, "herald_invalid", ""), "herald") {
			t.Errorf("%s has a table:\n%s", n, out)
		}
	}
}

// Under externalTrafficPolicy Local a connection goes on at the Pod on the former owner.
func TestLocalConnectionsSurviveMoves(t *testing.T) {
	f := start(t, env())
	addPod(t, "local-1", "n1")
	addPod(t, "local-2", "n2")
	createService(t, localService("b", "10.77.0.51"))
	owner := awaitOwner(t, "b")
	until(t, 10*time.Second, "the client reaches a pod", func(ctx context.Context) error {
		_, err := cluster.Get(ctx, "cl", "http://10.77.0.51/")
		return err
	})
	awaitNeighbor(t, "10.77.0.51", owner)
	all := hold(t, 5, "10.77.0.51", owner)
	f.node[owner].Signal(syscall.SIGTERM)
	awaitMoved(t, "b", owner, 10*time.Second)
	check.OK(t, f.node[owner].Wait(withTimeout(t, 10*time.Second)))
	expectHeld(t, "SIGTERM of "+owner, all)
}
