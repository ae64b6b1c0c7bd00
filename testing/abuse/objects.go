package abuse

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/testing/lab"
)

// manyAddresses is where those of the one long annotation begin; they are of the nodes' subnet for
// no host.
var manyAddresses = netip.MustParseAddr("10.77.64.1")

// createTenant makes the namespace, a user who may write Services and Leases there, as the role edit
// allows, and a quota that lets no Event in.
func (r *Running) createTenant(ctx context.Context) error {
	admin, user := r.lab.Client(), "tenant"
	_, err := admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) { // of an earlier load, like the next two
		return err
	}
	// The ClusterRole edit is empty here: a controller would fill it.
	_, err = admin.RbacV1().Roles(Namespace).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "edit"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"*"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"*"}},
	}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = admin.RbacV1().RoleBindings(Namespace).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "edit"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "edit"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	// There is no controller that would write the status.
	none := corev1.ResourceList{"count/events": resource.MustParse("0"), "count/events.events.k8s.io": resource.MustParse("0")}
	quota, err := admin.CoreV1().ResourceQuotas(Namespace).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "no-events"},
		Spec: corev1.ResourceQuotaSpec{Hard: none}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	quota.Status = corev1.ResourceQuotaStatus{Hard: none, Used: none}
	if _, err := admin.CoreV1().ResourceQuotas(Namespace).UpdateStatus(ctx, quota, metav1.UpdateOptions{}); err != nil {
		return err
	}
	c := r.lab.Config()
	c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	r.tenant, err = kubernetes.NewForConfig(c)
	return err
}

// createObjects creates the Services and Leases, several at a time.
func (r *Running) createObjects(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	services := r.tenant.CoreV1().Services(Namespace)
	create := func(s *corev1.Service) {
		g.Go(func() error {
			_, err := services.Create(ctx, s, metav1.CreateOptions{})
			return err
		})
	}
	for i := range r.load[Services] {
		create(r.service(i))
	}
	if n := r.load[Addresses]; n > 0 {
		var addrs []string
		for a := manyAddresses; len(addrs) < n; a = a.Next() {
			addrs = append(addrs, a.String())
		}
		create(tenantService("many", addrs...))
	}
	for i := range r.load[DHCP] {
		create(tenantService(fmt.Sprintf("dhcp-%d", i), "0.0.0.0"))
	}
	leases := r.tenant.CoordinationV1().Leases(Namespace)
	for _, l := range r.leases() {
		g.Go(func() error {
			_, err := leases.Create(ctx, l, metav1.CreateOptions{})
			return err
		})
	}
	return g.Wait()
}

// tenantService is a Service that asks for the addresses, and needs no endpoints.
func tenantService(name string, addrs ...string) *corev1.Service {
	return lab.Service(Namespace, name, lab.Annotated("kube-vip.io/loadbalancerIPs", strings.Join(addrs, ",")),
		lab.Annotated("kube-vip.io/allow-reconcile-without-endpoints", "true"))
}

// service is the i-th Service: a third of them ask for all VIPs on an unused port and an interface
// that no node has, a third for all VIPs on an unused port, a third for one VIP with its port.
func (r *Running) service(i int) *corev1.Service {
	var all []string
	for _, a := range r.vips {
		all = append(all, a.String())
	}
	name := fmt.Sprintf("app-%04d", i)
	if i%3 == 2 {
		return tenantService(name, all[i%len(all)])
	}
	s := tenantService(name, all...)
	s.Spec.Ports[0].Port = int32(1000 + i)
	if i%3 == 0 {
		lab.Annotated("kube-vip.io/serviceInterface", "nope")(s)
	}
	return s
}

// leases is those with forged claims, and those of the elections.
func (r *Running) leases() (all []*coordinationv1.Lease) {
	add := func(name, holder, claim string) {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}
		l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &holder, new(int32(15)), new(metav1.NowMicro())
		if claim != "" {
			l.Annotations = map[string]string{"heraldvip.io/claim": claim}
		}
		all = append(all, l)
	}
	nodes := r.lab.Nodes()
	for i := range r.load[Leases] {
		ghost, node := fmt.Sprintf("ghost-%d", i), nodes[i%len(nodes)]
		switch i % 4 {
		case 0: // of a node that there is not
			add("claim-"+ghost, ghost, ghost+"@1")
		case 1: // of a node, in its last epoch
			add("claim-"+ghost, node, fmt.Sprintf("%s@%d", node, math.MaxInt32))
		case 2: // on the VIP lease of a Service of this namespace
			add(fmt.Sprintf("kubevip-app-%04d", i), node, node+"@1")
		default: // by the name of a node lease
			add("herald-node-"+ghost, ghost, "")
		}
	}
	for i := range r.load[Elections] {
		add(electionName(i), "leader", "")
	}
	return all
}

func electionName(i int) string { return fmt.Sprintf("election-%04d", i) }

// renew renews the Leases of the elections in turn, each every 2 s, until ctx ends.
func (r *Running) renew(ctx context.Context) error {
	n := r.load[Elections]
	leases := r.tenant.CoordinationV1().Leases(Namespace)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	err := each(ctx, (n+1)/2, func(i int) error {
		g.Go(func() error {
			patch := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
			_, err := leases.Patch(ctx, electionName(i%n), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			r.made[Elections].Add(1)
			return err
		})
		return ctx.Err()
	})
	return errors.Join(err, g.Wait())
}

// change writes annotations that can't be read into one Service after the other, until ctx ends.
func (r *Running) change(ctx context.Context) error {
	n := r.load[Services]
	if n == 0 {
		return nil
	}
	return each(ctx, r.load[Changes], func(i int) error {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"heraldvip.io/ip-mode":"wrong-%d"}}}`, i)
		_, err := r.tenant.CoreV1().Services(Namespace).Patch(ctx, fmt.Sprintf("app-%04d", i%n), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		r.made[Changes].Add(1)
		return err
	})
}

// deleteObjects deletes all that the load has made.
func (r *Running) deleteObjects(ctx context.Context) error {
	admin := r.lab.Client()
	list, err := admin.CoreV1().Services(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, s := range list.Items {
		g.Go(func() error {
			err := admin.CoreV1().Services(Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				err = nil
			}
			return err
		})
	}
	g.Go(func() error {
		return admin.CoordinationV1().Leases(Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	g.Go(func() error {
		return admin.CoreV1().ResourceQuotas(Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	return g.Wait()
}
