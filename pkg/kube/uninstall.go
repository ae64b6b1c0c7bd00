package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/heraldvip/herald/pkg/vip"
)

// An uninstaller removes what an installation has written to the API server, while no Herald runs.
type uninstaller struct {
	api           *clients
	namespace     string // where the node leases are
	keepAddresses bool   // leave statuses and given addresses
}

// A Trace is what Herald has written: an object, or parts of one.
type Trace struct {
	Kind   string // of the object
	Object vip.Key
	What   string // what of it is removed
	Left   string // what Herald may have written and can't tell from what a user wrote; it stays

	remove func(context.Context) error
}

// Remove removes it within 10 s. A missing object is no error.
func (t Trace) Remove(ctx context.Context) error {
	if t.remove == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := t.remove(ctx); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %s: %s not removed: %w", t.Kind, t.Object, t.What, err)
	}
	return nil
}

// Traces returns what is there of Heralds whose node leases are in namespace, in order of removal. keepAddresses leaves
// statuses and given addresses.
func Traces(ctx context.Context, cfg *rest.Config, namespace string, keepAddresses bool) (all []Trace, err error) {
	api, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return nil, err
	}
	u := &uninstaller{api, namespace, keepAddresses}
	add := func(t Trace) { all = append(all, t) }
	servicesErr := list(ctx, &watchedResource{client: api.core, resource: "services"}, func(o *corev1.Service) {
		if _, what, left := u.cleanService(o); what != "" || left != "" {
			k := vip.Key{Namespace: o.Namespace, Name: o.Name}
			add(Trace{Kind: "Service", Object: k, What: what, Left: left,
				remove: func(ctx context.Context) error { return u.writeService(ctx, k) }})
		}
	})
	leases := &watchedResource{client: api.coordination, resource: "leases", fields: notKubeletLeases}
	leasesErr := list(ctx, leases, func(o *coordinationv1.Lease) {
		k := vip.Key{Namespace: o.Namespace, Name: o.Name}
		// Elsewhere those beside kube-vip, with names of Services; "herald-..." are another installation's.
		own := o.Namespace == namespace || !strings.HasPrefix(o.Name, "herald-")
		if own && o.Labels["app.kubernetes.io/managed-by"] == "herald" {
			same := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion}}
			add(Trace{Kind: "Lease", Object: k, What: "all", remove: func(ctx context.Context) error {
				r := api.coordination.Delete().Namespace(k.Namespace).Resource("leases").Name(k.Name)
				return r.Body(same).Do(ctx).Error()
			}})
		}
	})
	nodesErr := list(ctx, &watchedResource{client: api.core, resource: "nodes"}, func(o *corev1.Node) {
		if keys := present(o.Annotations, drainKey, returnKey); len(keys) > 0 {
			add(Trace{Kind: "Node", Object: vip.Key{Name: o.Name}, What: "annotations " + strings.Join(keys, ", "),
				remove: func(ctx context.Context) error {
					changes := map[string]any{"metadata": map[string]any{"annotations": nulls(keys)}}
					return patch(api, "nodes", vip.Key{Name: o.Name}, changes).Do(ctx).Error()
				}})
		}
	})
	if err = cmp.Or(servicesErr, leasesErr, nodesErr); err != nil {
		return nil, err
	}
	switch _, err = getPeersSecret(ctx, api.core, namespace); {
	case err == nil:
		add(Trace{Kind: "Secret", Object: vip.Key{Namespace: namespace, Name: PeersSecret}, What: "all",
			remove: func(ctx context.Context) error {
				return api.core.Delete().Namespace(namespace).Resource("secrets").Name(PeersSecret).Do(ctx).Error()
			}})
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("can't look for the Secret %s/%s: %w", namespace, PeersSecret, err)
	}
	return all, nil
}

// cleanService returns the patch that removes Herald's part, what that is, and what is left.
func (u *uninstaller) cleanService(o *corev1.Service) (patch map[string]any, what, left string) {
	announcer := o.Annotations[announcerKey]
	if announcer != "" && announcer != u.namespace {
		return nil, "", ""
	}
	var keys, conditions, parts []string
	meta, status := map[string]any{"resourceVersion": o.ResourceVersion}, map[string]any{}
	if announcer != "" {
		keys = present(o.Annotations, announcerKey, vipHostKey, dhcpLeaseKey)
		if slices.Contains(keys, dhcpLeaseKey) {
			keys = append(keys, present(o.Annotations, requestedKey)...)
		}
		if len(o.Status.LoadBalancer.Ingress) > 0 && !u.keepAddresses {
			status["loadBalancer"] = map[string]any{"ingress": nil}
			parts = append(parts, "the status")
		}
	}
	s, allocated, annotations := readService(o), o.Annotations[allocatedKey] != "", map[string]any{}
	if allocated {
		keys = append(keys, present(o.Annotations, allocatedKey, allocatedAddressesKey)...)
		switch theirs := s.Source == addressesKey && (s.Superseded || s.Own != nil); {
		case u.keepAddresses && (s.Own != nil || s.Source == allocatedAddressesKey):
			annotations[addressesKey] = vip.JoinAddrs(s.Addresses, ",")
		case !theirs && (s.Superseded || !u.keepAddresses):
			keys = append(keys, present(o.Annotations, addressesKey)...)
		}
	}
	if (announcer != "" || allocated || s.Record.Covers(s.Ingress)) && slices.Contains(o.Finalizers, cleanupFinalizer) {
		meta["$deleteFromPrimitiveList/finalizers"] = []string{cleanupFinalizer}
		parts = append(parts, "the finalizer")
	}
	if len(keys) > 0 {
		maps.Copy(annotations, nulls(keys))
		meta["annotations"] = annotations
		parts = append(parts, "annotations "+strings.Join(keys, ", "))
	}
	if gone := s.conditionsPatch([]vip.Condition{{Type: vip.Allocated}, {Type: vip.Announced},
		{Type: vip.Recorded}}); len(gone) > 0 {
		status["conditions"] = gone
		for _, c := range gone {
			conditions = append(conditions, fmt.Sprint(c["type"]))
		}
		parts = append(parts, "conditions "+strings.Join(conditions, ", "))
	}
	if asked := present(o.Annotations, requestedKey); len(asked) > 0 && !slices.Contains(keys, requestedKey) {
		left = "annotation " + requestedKey + ": a user may have set it"
	}
	return map[string]any{"metadata": meta, "status": status}, strings.Join(parts, "; "), left
}

// writeService does what cleanService says, to the current Service.
func (u *uninstaller) writeService(ctx context.Context, k vip.Key) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o := &corev1.Service{}
		if err := u.api.core.Get().Namespace(k.Namespace).Resource("services").Name(k.Name).Do(ctx).Into(o); err != nil {
			return err
		}
		changes, what, _ := u.cleanService(o)
		if what == "" {
			return nil
		}
		return patch(u.api, "services", k, changes).SubResource("status").Do(ctx).Error()
	})
}

func present(annotations map[string]string, keys ...string) (found []string) {
	for _, k := range keys {
		if _, ok := annotations[k]; ok {
			found = append(found, k)
		}
	}
	return found
}

func nulls(keys []string) map[string]any {
	m := make(map[string]any, len(keys))
	for _, k := range keys {
		m[k] = nil
	}
	return m
}
