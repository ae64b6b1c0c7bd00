package e2e

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/testing/check"
)

// forgeClaim creates a Lease with the claim node@epoch, as whoever has the role edit in the namespace can.
func forgeClaim(t *testing.T, namespace, name, node string, epoch int64) {
	t.Helper()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"heraldvip.io/claim": fmt.Sprintf("%s@%d", node, epoch)}}}
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = &node, new(int32(3600))
	check.Value(cluster.Client().CoordinationV1().Leases(namespace).Create(t.Context(), l, metav1.CreateOptions{}))(t)
}

// createTenant creates a namespace that is deleted with all in it when the test ends. It waits for one of that name that is being deleted.
func createTenant(t *testing.T, name string) {
	t.Helper()
	until(t, time.Minute, "the namespace "+name+" of an earlier run is gone, and there is another", func(ctx context.Context) error {
		_, err := cluster.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	})
	t.Cleanup(func() {
		ctx := context.Background()
		cluster.Client().CoordinationV1().Leases(name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		cluster.Client().CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
		if left, err := cluster.Client().CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err == nil {
			left.Spec.Finalizers = nil // for the controller of namespaces, which the lab has not
			cluster.Client().CoreV1().Namespaces().Finalize(ctx, left, metav1.UpdateOptions{})
		}
	})
}

// ownership returns what Leases say of it: the epoch of each node and whether that is over, and the version of the table.
func ownership(t *testing.T) (lines string) {
	t.Helper()
	list := check.Value(cluster.Client().CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{}))(t)
	for _, l := range list.Items {
		switch {
		case strings.HasPrefix(l.Name, "herald-node-"):
			lines += fmt.Sprintln(l.Name, *l.Spec.LeaseTransitions, l.Annotations[lease.FencedAnnotation])
		case l.Name == lease.TableName:
			lines += fmt.Sprintln(l.Name, l.ResourceVersion)
		}
	}
	return lines
}

// A thousand Leases in a tenant's namespace claim VIPs for nodes that do not exist, for a node that is stopped, in an epoch it never had,
// and for a healthy node in its own: no node lease is made or raised, nothing is written, and the stopped node serves again.
func TestForgedLeases(t *testing.T) {
	f := start(t, env("vip_leaseduration", "5", "vip_renewdeadline", "3", "vip_retryperiod", "1"))
	good := observe(t, "good", "10.77.0.50")
	if good.owner == "n3" {
		runHerald(t, "drain", "n3") // nothing of the test hangs on which node it is
		t.Cleanup(func() { runHerald(t, "undrain", "n3") })
		good.awaitMove(10 * time.Second)
	}
	f.node["n3"].Signal(syscall.SIGTERM)
	check.OK(t, f.node["n3"].Wait(withTimeout(t, 30*time.Second)))
	createTenant(t, "tenant")
	own := check.Value(cluster.Client().CoordinationV1().Leases("kube-system").Get(t.Context(), "herald-node-n1", metav1.GetOptions{}))(t)
	before := ownership(t)
	forgeClaim(t, "tenant", "forged", "n3", 1<<31-1)
	for i := range 100 {
		forgeClaim(t, "tenant", fmt.Sprintf("ghost-%d", i), fmt.Sprintf("ghost%d", i), 1)
	}
	for i := range 900 {
		forgeClaim(t, "tenant", fmt.Sprintf("kubevip-forged-%d", i), "n1", int64(*own.Spec.LeaseTransitions))
	}
	time.Sleep(8 * time.Second) // a lease duration, and what the nodes wait for one another
	if after := ownership(t); after != before || strings.Count(after, "herald-node-") != 2 {
		t.Errorf("written in the table, or of nodes: before\n%s\nafter\n%.2000s", before, after)
	}
	f.startAgain("n3")
	n3 := check.Value(cluster.Client().CoordinationV1().Leases("kube-system").Get(t.Context(), "herald-node-n3", metav1.GetOptions{}))(t)
	if e := *n3.Spec.LeaseTransitions; e < 1 || e > 1<<30 {
		t.Errorf("n3 is in epoch %d", e)
	}
	g, c := good.report()
	if len(c.Failures) > 1 || g.LongestSilence > time.Second {
		t.Errorf("another Service was harmed: unanswered for %v, %d connections failed", g.LongestSilence, len(c.Failures))
	}
}
