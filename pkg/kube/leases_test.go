package kube

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// newLeasesTest is a Cluster that is connected to nothing; pokes counts its PokeLeases.
func newLeasesTest(t testing.TB) (c *Cluster, pokes func() int) {
	t.Helper()
	n := 0
	c, err := New(&rest.Config{Host: "https://192.0.2.1:6443"}, Options{
		NodeLeaseNamespace: "kube-system", NodeLeasePrefix: "herald-node-", Leases: []vip.Key{{Namespace: "kube-system", Name: "plndr-cp-lock"}},
		Node: "n1", Log: slog.New(slog.DiscardHandler), Poke: func() {}, PokeLeases: func() { n++ },
	})
	check.OK(t, err)
	return c, func() int {
		defer func() { n = 0 }()
		return n
	}
}

// renewed is a version of a Lease.
func renewed(namespace, name string, version int) *coordinationv1.Lease {
	holder, now := "some-pod", metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: fmt.Sprint(version)},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &now},
	}
}

// taken is the names of what TakeChanges returns, sorted; what was deleted with a minus.
func taken(l *Leases) (names []string) {
	changed, deleted := l.TakeChanges()
	for _, x := range changed {
		names = append(names, x.Namespace+"/"+x.Name)
	}
	for _, x := range deleted {
		names = append(names, "-"+x.Namespace+"/"+x.Name)
	}
	slices.Sort(names)
	return names
}

// A Lease wakes somebody only if it is a node lease, or an option or a Service names it, or a Service has named it before.
func TestLeasesThatNothingNames(t *testing.T) {
	c, pokes := newLeasesTest(t)
	s := c.Leases.stores[0]
	expect := func(step string, wantPokes int, want ...string) {
		t.Helper()
		if got, n := taken(c.Leases), pokes(); !slices.Equal(got, want) || n != wantPokes {
			t.Errorf("%s: %d pokes, changes %q; want %d, %q", step, n, got, wantPokes, want)
		}
	}
	check.OK(t, s.Replace([]any{renewed("default", "kubevip-web", 1), renewed("kube-system", "kube-scheduler", 2), renewed("kube-system", "herald-node-n2", 3)}, "3"))
	expect("the first list", 1, "kube-system/herald-node-n2")
	for i := range 300 {
		check.OK(t, s.Update(renewed("kube-system", "kube-scheduler", 10+i)))
		check.OK(t, s.Update(renewed("tenant", "herald-node-n1", 10+i)))
	}
	expect("leader elections", 0)
	check.OK(t, s.Update(renewed("kube-system", "plndr-cp-lock", 400)))
	expect("named by an option", 1, "kube-system/plndr-cp-lock")
	check.OK(t, c.services.Update(loadBalancer("web", "10.0.0.1")))
	expect("named by a Service from now on", 1, "default/kubevip-web")
	check.OK(t, s.Update(renewed("default", "kubevip-web", 401)))
	expect("changed", 1, "default/kubevip-web")
	other := loadBalancer("web", "10.0.0.1")
	other.Annotations[leaseNameKey] = "shared"
	check.OK(t, c.services.Update(other))
	check.OK(t, s.Update(renewed("default", "kubevip-web", 404)))
	check.OK(t, s.Update(renewed("default", "shared", 403)))
	expect("the Service names another, and the first is still held", 2, "default/kubevip-web", "default/shared")
	check.OK(t, s.Delete(renewed("default", "kubevip-web", 404)))
	expect("the first is deleted", 1, "-default/kubevip-web")
	check.OK(t, s.Update(renewed("default", "kubevip-web", 405)))
	expect("where what it names does not count it has its own again", 1, "default/kubevip-web")
	check.OK(t, s.Delete(renewed("default", "kubevip-web", 405)))
	expect("that is deleted", 1, "-default/kubevip-web")
	check.OK(t, c.services.Delete(other))
	check.OK(t, s.Update(renewed("default", "kubevip-web", 406)))
	expect("nothing names it any more", 0)
	check.OK(t, s.Delete(renewed("default", "shared", 406)))
	expect("the Service is deleted, then its lease", 1, "-default/shared")
	if len(c.Leases.told) != 2 || len(c.Leases.named) != 1 {
		t.Errorf("remembered: told %v, named %v", c.Leases.told, c.Leases.named)
	}
}

// TestLargeLeases: of a Lease that a tenant has made large little is kept, however that is done, and all that decides; a node lease is kept as it is.
func TestLargeLeases(t *testing.T) {
	large, claim := strings.Repeat("x", 200<<10), map[string]string{"heraldvip.io/claim": "n1@7", "kubectl.kubernetes.io/last": "{}"}
	c, _ := newLeasesTest(t)
	s := c.Leases.stores[0]
	owned := []metav1.OwnerReference{{Kind: "Service", Name: "web", UID: "1"}}
	keep := func(namespace, name string, change func(*coordinationv1.Lease)) *coordinationv1.Lease {
		o := renewed(namespace, name, 1)
		o.Annotations, o.OwnerReferences, o.Labels = maps.Clone(claim), slices.Clone(owned), map[string]string{"app.kubernetes.io/managed-by": "herald"}
		change(o)
		check.OK(t, s.Add(o))
		return s.values[vip.Key{Namespace: namespace, Name: name}]
	}
	for what, change := range map[string]func(*coordinationv1.Lease){
		"annotation": func(o *coordinationv1.Lease) { o.Annotations["x"] = large },
		"many-own": func(o *coordinationv1.Lease) {
			for i := range 9000 {
				o.Annotations[fmt.Sprint("heraldvip.io/", i)] = "x"
			}
		},
		"holder":          func(o *coordinationv1.Lease) { o.Spec.HolderIdentity = &large },
		"preferredholder": func(o *coordinationv1.Lease) { o.Spec.PreferredHolder = &large },
		"strategy":        func(o *coordinationv1.Lease) { o.Spec.Strategy = new(coordinationv1.CoordinatedLeaseStrategy(large)) },
		"labels": func(o *coordinationv1.Lease) {
			for i := range 9000 {
				o.Labels[fmt.Sprint("l", i)] = "x"
			}
		},
		"finalizers": func(o *coordinationv1.Lease) { o.Finalizers = []string{large} },
		"owners": func(o *coordinationv1.Lease) {
			o.OwnerReferences = append(o.OwnerReferences, metav1.OwnerReference{Name: large})
		},
		"generatename": func(o *coordinationv1.Lease) { o.GenerateName = large },
	} {
		got := keep("default", what, change)
		if got.Size() > 8<<10 {
			t.Errorf("%s: %d bytes are kept", what, got.Size())
		}
		if got.Annotations["heraldvip.io/claim"] != "n1@7" || got.ResourceVersion != "1" || got.Spec.RenewTime == nil {
			t.Errorf("%s: what decides is not kept: %+v", what, got)
		}
	}
	if small := keep("default", "small", func(*coordinationv1.Lease) {}); len(small.Annotations) != 2 || len(small.OwnerReferences) != 1 {
		t.Errorf("a small one is kept as %+v", small)
	}
	if table := keep("kube-system", "herald-table", func(o *coordinationv1.Lease) { o.Annotations["heraldvip.io/owners"] = large }); table.Size() < len(large) {
		t.Error("the table is cut")
	}
	if node := keep("kube-system", "herald-node-n2", func(o *coordinationv1.Lease) { o.Annotations["heraldvip.io/node"] = large }); node.Size() < len(large) {
		t.Error("a node lease is not kept whole")
	}
}
