package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Snapshot is what the API server knows of Herald at one time.
type Snapshot struct {
	Services []vip.Service // of type LoadBalancer; their Endpoints are not read
	Leases   []*coordinationv1.Lease
	Nodes    []vip.Node    // none if they may not be read
	Events   []StoredEvent // Herald's own about Services, oldest first
}

// A StoredEvent is an Event about a Service as the API server has it.
type StoredEvent struct {
	vip.Event
	At   time.Time
	Node string // that wrote it

	order uint64 // resourceVersion: the order of Events of the same second
}

// TakeSnapshot lists Services, Leases and Events of a namespace, "" for all, and Nodes.
// The error joins what could not be listed; the rest is returned with it. Nodes are
// left out without an error if they may not be listed.
func TakeSnapshot(ctx context.Context, cfg *rest.Config, namespace string) (Snapshot, error) {
	var s Snapshot
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return s, err
	}
	servicesErr := list(ctx, &watchedResource{client: c.core, resource: "services", namespace: namespace}, func(o *corev1.Service) {
		if r := readService(o); r.LoadBalancer {
			s.Services = append(s.Services, r.Service)
		}
	})
	leases := &watchedResource{client: c.coordination, resource: "leases", namespace: namespace}
	if namespace == "" {
		leases.fields = notKubeletLeases
	}
	leasesErr := list(ctx, leases, func(o *coordinationv1.Lease) { s.Leases = append(s.Leases, o) })
	nodesErr := list(ctx, &watchedResource{client: c.core, resource: "nodes"}, func(o *corev1.Node) { s.Nodes = append(s.Nodes, *readNode(o, "")) })
	if apierrors.IsForbidden(nodesErr) {
		nodesErr = nil // who has a Role in one namespace gets the rest
	}
	events := &watchedResource{client: c.core, resource: "events", namespace: namespace, fields: "involvedObject.kind=Service,source=" + component}
	eventsErr := list(ctx, events, func(o *corev1.Event) {
		s.Events = append(s.Events, readEvent(o))
	})
	slices.SortFunc(s.Services, func(a, b vip.Service) int { return a.Key.Compare(b.Key) })
	slices.SortStableFunc(s.Events, func(a, b StoredEvent) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.order, b.order), a.Service.Compare(b.Service))
	})
	return s, errors.Join(servicesErr, leasesErr, nodesErr, eventsErr)
}

// TakeAllowedSnapshot is TakeSnapshot of all namespaces, since nodes have their leases in another one than Services; of namespace for
// those who may not read the others.
func TakeAllowedSnapshot(ctx context.Context, cfg *rest.Config, namespace string) (Snapshot, error) {
	s, err := TakeSnapshot(ctx, cfg, "")
	if namespace != "" && apierrors.IsForbidden(err) {
		return TakeSnapshot(ctx, cfg, namespace)
	}
	return s, err
}

// list calls each with all objects of a resource. It lists 500 at a time.
func list[O runtime.Object](ctx context.Context, r *watchedResource, each func(O)) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.request(o).Do(ctx).Get()
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		each(o.(O))
		return nil
	})
	if err != nil {
		return fmt.Errorf("can't list %s: %w", r.resource, err)
	}
	return nil
}

// readEvent converts an Event; Occurrence is not kept by the API server.
func readEvent(o *corev1.Event) StoredEvent {
	e := StoredEvent{At: o.LastTimestamp.UTC(), Node: o.Source.Host}
	e.order, _ = strconv.ParseUint(o.ResourceVersion, 10, 64)
	e.Service = vip.Key{Namespace: o.InvolvedObject.Namespace, Name: o.InvolvedObject.Name}
	e.UID = string(o.InvolvedObject.UID)
	e.Warning = o.Type == corev1.EventTypeWarning
	e.Reason = vip.Reason(o.Reason)
	e.Message = o.Message
	return e
}
