package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// setLeaseQuota allows so many Leases in a namespace. The lab has no controller that would count
// them, so this writes the status, too.
func setLeaseQuota(t *testing.T, namespace, most string) {
	t.Helper()
	quotas := cluster.Client().CoreV1().ResourceQuotas(namespace)
	hard := corev1.ResourceList{"count/leases.coordination.k8s.io": resource.MustParse(most)}
	q, err := quotas.Get(t.Context(), "leases", metav1.GetOptions{})
	if err != nil {
		q = check.Value(quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "leases"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{}))(t)
	}
	q.Status.Hard, q.Status.Used = hard, corev1.ResourceList{"count/leases.coordination.k8s.io": resource.MustParse("0")}
	check.Value(quotas.UpdateStatus(t.Context(), q, metav1.UpdateOptions{}))(t)
}

// A namespace whose quota allows no Lease has its twenty Services told so. No node is taken for
// stalled, and a new Service of another namespace is served as fast as ever. Once
// the quota allows them they are announced.
func TestLeasesRefused(t *testing.T) {
	f := start(t, env())
	createTenant(t, "tenant-leases")
	setLeaseQuota(t, "tenant-leases", "0")
	for i := range 20 {
		a := netip.MustParseAddr(fmt.Sprintf("10.77.0.%d", 100+i))
		createService(t, lab.Service("tenant-leases", fmt.Sprintf("refused-%d", i), lab.WithVIPs(a), lab.Annotated("kube-vip.io/allow-reconcile-without-endpoints", "true")))
	}
	until(t, 20*time.Second, "an Event LeaseRefused on each", func(ctx context.Context) error {
		list, err := cluster.Client().CoreV1().Events("tenant-leases").List(ctx, metav1.ListOptions{FieldSelector: "reason=LeaseRefused"})
		if err == nil && (len(list.Items) < 20 || !strings.Contains(list.Items[0].Message, "quota")) {
			err = fmt.Errorf("%d Events: %+.1v", len(list.Items), list.Items)
		}
		return err
	})
	for i := range 6 {
		vip, name := fmt.Sprintf("10.77.0.%d", 60+i), fmt.Sprintf("good-%d", i)
		w, began := whoHas(t, 20*time.Millisecond, vip), time.Now()
		createService(t, webService(name, vip))
		awaitAnswer(t, w, vip, 10*time.Second)
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Errorf("%s is answered after %v", name, took)
		}
		w.Stop()
	}
	for n, p := range f.node {
		if strings.Contains(p.Log(), "does not acquire the VIPs") {
			t.Errorf("%s takes another node for stalled", n)
		}
	}
	setLeaseQuota(t, "tenant-leases", "100")
	awaitAnswer(t, whoHas(t, 100*time.Millisecond, "10.77.0.100"), "10.77.0.100", time.Minute+10*time.Second)
}
