package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
)

// finalizer is that of load balancers, which cloud providers and Herald write.
const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// A cloudProvider is a stand-in for kube-vip's cloud provider: while it runs it renews the provider's lease, and gives each
// Service of type LoadBalancer that names no address the lowest one of a range, and writes what the provider writes.
type cloudProvider struct {
	first, last netip.Addr
	stop        func()
}

// startCloudProvider runs one with a range of the ConfigMap until it is stopped, or the test has ended.
func startCloudProvider(t *testing.T, first, last string) *cloudProvider {
	t.Helper()
	p := &cloudProvider{first: netip.MustParseAddr(first), last: netip.MustParseAddr(last)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	p.stop = func() { cancel(); <-ended }
	go func() {
		defer close(ended)
		for tick := time.NewTicker(500 * time.Millisecond); ; {
			if err := p.reconcile(ctx); err != nil && ctx.Err() == nil {
				t.Log("the cloud provider:", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	t.Cleanup(func() {
		p.stop()
		cluster.Client().CoordinationV1().Leases("kube-system").Delete(context.Background(), "kube-vip-cloud-controller", metav1.DeleteOptions{})
	})
	return p
}

// reconcile renews the lease, and gives addresses.
func (p *cloudProvider) reconcile(ctx context.Context) error {
	if err := cluster.Apply(ctx, providerLease(time.Now())); err != nil {
		return err
	}
	services := cluster.Client().CoreV1().Services("default")
	list, err := services.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	used := make(map[string]bool)
	for _, s := range list.Items {
		used[s.Annotations["kube-vip.io/loadbalancerIPs"]] = true
	}
	for _, s := range list.Items {
		if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Annotations["kube-vip.io/loadbalancerIPs"] != "" || !s.DeletionTimestamp.IsZero() {
			continue
		}
		x := p.first
		for ; used[x.String()]; x = x.Next() {
			if x == p.last {
				return fmt.Errorf("%s: no address is left", s.Name)
			}
		}
		used[x.String()] = true
		metav1.SetMetaDataLabel(&s.ObjectMeta, "implementation", "kube-vip")
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, "kube-vip.io/loadbalancerIPs", x.String())
		s.Spec.LoadBalancerIP = x.String()
		if !slices.Contains(s.Finalizers, finalizer) { // by the library that the provider is made with
			s.Finalizers = append(s.Finalizers, finalizer)
		}
		if _, err := services.Update(ctx, &s, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// awaitAddress waits until a Service names this address, and returns what it is given as.
func awaitAddress(t *testing.T, name, want string) (allocated string) {
	t.Helper()
	until(t, 20*time.Second, "Service "+name+" names "+want, func(context.Context) error {
		s := getService(t, name)
		allocated = s.Annotations["heraldvip.io/allocated"]
		if got := s.Annotations["kube-vip.io/loadbalancerIPs"]; got != want {
			return fmt.Errorf("it names %q", got)
		}
		return nil
	})
	return allocated
}

// expectAddresses fails the test unless each Service names, in all places, the address that want says, which nobody but the cloud provider gave
// it, and its status shows that.
func expectAddresses(t *testing.T, want map[string]string) {
	t.Helper()
	for name, address := range want {
		until(t, 5*time.Second, name+" has "+address, func(context.Context) error {
			s := getService(t, name)
			shown, _, _ := strings.Cut(externalIPs(s), "(")
			got := []string{s.Annotations["kube-vip.io/loadbalancerIPs"], s.Spec.LoadBalancerIP, shown, s.Annotations["heraldvip.io/allocated"]}
			if !slices.Equal(got, []string{address, address, address, ""}) {
				return fmt.Errorf("annotation, spec, status and pool: %q", got)
			}
			return nil
		})
	}
}

// takeOverPools ends the cloud provider, as docs/migrate-from-kube-vip.md says, once kube-vip is gone: each Service keeps the address that the
// provider gave it, the next one gets the next address, and what the provider left on Services is taken off.
func takeOverPools(t *testing.T, p *cloudProvider, given map[string]string, next string) {
	t.Helper()
	out := check.Value(cluster.Run(t.Context(), "cp", herald, "import", "kube-vip"))(t)
	if strings.Contains(out, "kind: Service") {
		t.Errorf("a Service is to be edited, though each names its address:\n%s", out)
	}
	p.stop()
	createService(t, webService("after", ""))
	if pool := awaitAddress(t, "after", next); pool != "range-global" {
		t.Errorf("after was given %s of pool %q, want range-global", next, pool)
	}
	awaitStatus(t, "after", next+"(VIP)", 5*time.Second)
	expectAddresses(t, given)
	for name := range given {
		check.OK(t, cluster.Client().CoreV1().Services("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
		until(t, 10*time.Second, "Service "+name+" is gone, without the provider's finalizer", func(c ctx) error {
			list, err := cluster.Client().CoreV1().Services("default").List(c, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
			if err == nil && len(list.Items) > 0 {
				err = fmt.Errorf("finalizers %v", list.Items[0].Finalizers)
			}
			return err
		})
		return // one of them is enough
	}
}
