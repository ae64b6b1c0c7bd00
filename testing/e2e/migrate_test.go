package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// What the clients may see of a migration.
const (
	handOver = 3200 * time.Millisecond // both nodes of a hand-over answer for so long (docs/ownership.md)
	// A VIP whose announcer has ended is taken by another when that one next asks (RetryPeriod),
	// or, where it released nothing, when the lease is over.
	releasedGap = 2500 * time.Millisecond
	expiredGap  = 5*time.Second + releasedGap
)

// permitLeases permits Herald to write the Leases of Services, as docs/migrate-from-kube-vip.md says.
func permitLeases(t *testing.T) {
	t.Helper()
	roles := cluster.Client().RbacV1()
	name := metav1.ObjectMeta{Name: "herald-beside-kube-vip"}
	check.Value(roles.ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create", "update", "delete"},
	}}}, metav1.CreateOptions{}))(t)
	check.Value(roles.ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "herald"}},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		roles.ClusterRoleBindings().Delete(context.Background(), name.Name, metav1.DeleteOptions{})
		roles.ClusterRoles().Delete(context.Background(), name.Name, metav1.DeleteOptions{})
	})
}

// kubeVIPOf returns the holder of the Lease of a Service.
func kubeVIPOf(t *testing.T, service string) string {
	t.Helper()
	l := check.Value(cluster.Client().CoordinationV1().Leases("default").Get(t.Context(), "kubevip-"+service, metav1.GetOptions{}))(t)
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

// ownedOf returns which of the first n Services of TestMigration a Herald owns, and on which node.
func ownedOf(t *testing.T, n int) map[int]string {
	owned := make(map[int]string)
	for i := range n {
		if node, err := cluster.Owner(t.Context(), "default", fmt.Sprintf("kubevip-m%d", i)); err == nil {
			owned[i] = node
		}
	}
	return owned
}

// TestMigration goes from kube-vip with its cloud provider to Herald node by node, with a pause in which both run,
// kills kube-vip on the last node instead of stopping it, and ends the cloud provider. Every Service keeps its address.
func TestMigration(t *testing.T) {
	kubeconfig := check.Value(cluster.Kubeconfig(t.Context(), "admin"))(t)
	self := check.Value(os.Executable())(t)
	f := &heralds{t: t, env: env("vip_leaseduration", "5", "vip_renewdeadline", "3", "vip_retryperiod", "1"), node: map[string]*lab.Process{}}
	permitLeases(t) // before f.end is put off: Herald deletes what it has written
	t.Cleanup(f.end)
	var pairs []string
	var vips4 []netip.Addr
	given := make(map[string]string)
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.65"})
	for i := range 4 {
		vip := fmt.Sprintf("10.77.0.%d", 60+i)
		name := fmt.Sprintf("m%d", i)
		createService(t, webService(name, ""))
		pairs, vips4, given[name] = append(pairs, name+"="+vip), append(vips4, netip.MustParseAddr(vip)), vip
	}
	provider := startCloudProvider(t, "10.77.0.60", "10.77.0.65")
	for name, vip := range given {
		awaitAddress(t, name, vip)
	}
	old := map[string]*lab.Process{}
	t.Cleanup(func() {
		for n, p := range old {
			if p.Running() {
				p.Kill()
			}
			for _, a := range vips4 {
				cluster.Run(context.Background(), n, "ip", "addr", "del", a.String()+"/32", "dev", "eth0")
			}
		}
		for i := range vips4 {
			cluster.Client().CoordinationV1().Leases("default").Delete(context.Background(), fmt.Sprintf("kubevip-m%d", i), metav1.DeleteOptions{})
		}
	})
	var w *lab.WhoHas
	for i, n := range cluster.Nodes() {
		p := check.Value(cluster.Start(n, "standin-"+n, []string{self}, standInNode+"="+n, standInVIPs+"="+strings.Join(pairs, ","), "KUBECONFIG="+kubeconfig))(t)
		old[n] = p
		if i > 0 {
			continue
		}
		// The node that is replaced first has them all, so that all of them move.
		w = check.Value(cluster.WhoHas(t.Context(), 20*time.Millisecond, vips4...))(t)
		for _, a := range vips4 {
			check.Value(w.AwaitAnswer(withTimeout(t, 20*time.Second), a, n))(t)
		}
	}
	w.Stop() // what was before they came up is not of interest
	w = check.Value(cluster.WhoHas(t.Context(), 20*time.Millisecond, vips4...))(t)
	nodes, taken := slices.Clone(cluster.Nodes()), 0
	for i := range nodes {
		sig := syscall.SIGTERM
		if i == 1 && kubeVIPOf(t, "m0") == nodes[2] { // one that has something goes next
			nodes[1], nodes[2] = nodes[2], nodes[1]
		}
		n := nodes[i]
		if i == len(nodes)-1 {
			sig = syscall.SIGKILL // nobody releases anything, and its addresses stay
		}
		check.OK(t, old[n].Signal(sig))
		old[n].Wait(withTimeout(t, 10*time.Second))
		f.startAgain(n)
		switch i {
		case 0:
			createService(t, webService("meanwhile", ""))
			given["meanwhile"] = "10.77.0.64"
			awaitAddress(t, "meanwhile", "10.77.0.64")
		case len(nodes) - 1:
			continue
		}
		time.Sleep(time.Second) // until it is decided who was first
		owned := ownedOf(t, len(vips4))
		taken += len(owned)
		time.Sleep(7 * time.Second) // longer than kube-vip's lease
		for m, node := range owned {
			if now := ownedOf(t, len(vips4))[m]; now == "" {
				t.Errorf("kube-vip has taken m%d back from the Herald on %s", m, node)
			}
		}
	}
	if taken == 0 {
		t.Error("Herald has taken nothing of what kube-vip has released")
	}
	for _, a := range vips4 {
		if _, err := w.AwaitAnswer(withTimeout(t, 20*time.Second), a, ""); err != nil {
			t.Error(err)
		}
	}
	report := w.Stop()
	t.Logf("%s", report)
	for _, r := range report.Addrs {
		if r.LongestDouble > handOver {
			t.Errorf("two nodes answered for %s for %v, want %v at most", r.Addr, r.LongestDouble, handOver)
		}
		if r.LongestSilence > expiredGap {
			t.Errorf("nobody answered for %s for %v, want %v at most", r.Addr, r.LongestSilence, expiredGap)
		}
	}
	until(t, 20*time.Second, "Herald owns every VIP", func(ctx context.Context) error {
		for i := range vips4 {
			if _, err := cluster.Owner(ctx, "default", fmt.Sprintf("kubevip-m%d", i)); err != nil {
				return err
			}
		}
		return nil
	})
	takeOverPools(t, provider, given, "10.77.0.65")
}
