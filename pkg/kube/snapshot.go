package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Snapshot is what the API server knows of Herald.
type Snapshot struct {
	Services    []vip.Service // of type LoadBalancer; their Endpoints are not read
	Leases      []*coordinationv1.Lease
	FewerLeases bool          // some or all may not be read
	Nodes       []vip.Node    // none if they may not be read
	Events      []StoredEvent // Herald's own about Services, oldest first
	Missing     []string      // what may not be read, what is not shown for want of it, and the error
	At          time.Time     // when that was, by the API server's clock: this machine's may be wrong
}

// A StoredEvent is an Event about a Service at the API server.
type StoredEvent struct {
	vip.Event
	At   time.Time
	Node string // that wrote it

	order uint64 // resourceVersion: the order of Events of the same second
}

// TakeSnapshot lists what a namespace, "" for all, has; that Services or Leases may not be read is an error.
func TakeSnapshot(ctx context.Context, cfg *rest.Config, namespace string) (Snapshot, error) {
	s, leasesErr, err := takeSnapshot(ctx, cfg, namespace)
	return s, errors.Join(err, leasesErr)
}

func takeSnapshot(ctx context.Context, cfg *rest.Config, namespace string) (s Snapshot, leasesErr, err error) {
	cfg = rest.CopyConfig(cfg)
	now := readClock(cfg)
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return s, nil, err
	}
	defer func() { s.At = now() }()
	servicesErr := list(ctx, &watchedResource{client: c.core, resource: "services", namespace: namespace},
		func(o *corev1.Service) {
			if r := readService(o); r.LoadBalancer {
				s.Services = append(s.Services, r.Service)
			}
		})
	if servicesErr != nil && !apierrors.IsForbidden(servicesErr) {
		return s, nil, servicesErr
	}
	leases := &watchedResource{client: c.coordination, resource: "leases", fields: notKubeletLeases}
	fewer, leasesErr := listAllowed(ctx, leases, namespace,
		func(o *coordinationv1.Lease) { s.Leases = append(s.Leases, o) })
	if s.FewerLeases = fewer != nil || leasesErr != nil; leasesErr == nil {
		_ = s.leaveOut(fewer, "Leases of other namespaces than "+namespace+", so the nodes may not be shown")
	}
	nodesErr := list(ctx, &watchedResource{client: c.core, resource: "nodes"},
		func(o *corev1.Node) { s.Nodes = append(s.Nodes, *readNode(o, "")) })
	nodesErr = s.leaveOut(nodesErr, "Nodes, so drains, taints and conditions of nodes are not shown")
	events := &watchedResource{client: c.core, resource: "events", namespace: namespace,
		fields: "involvedObject.kind=Service,source=" + component}
	eventsErr := list(ctx, events, func(o *corev1.Event) { s.Events = append(s.Events, readEvent(o)) })
	eventsErr = s.leaveOut(eventsErr, "Events, so much of why a Service has no VIP is not shown")
	s.dropForeignEvents()
	slices.SortFunc(s.Services, func(a, b vip.Service) int { return a.Key.Compare(b.Key) })
	slices.SortStableFunc(s.Events, func(a, b StoredEvent) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.order, b.order), a.Service.Compare(b.Service))
	})
	return s, leasesErr, errors.Join(servicesErr, nodesErr, eventsErr)
}

// readClock has cfg read each answer's clock (RFC 9110 section 6.6.1: whole seconds). now returns the server's time, or
// this machine's without an answer, or within the 2 s of error of a Date.
func readClock(cfg *rest.Config) (now func() time.Time) {
	var ahead atomic.Int64
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if err == nil {
				if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
					ahead.Store(int64(time.Until(date)))
				}
			}
			return resp, err
		})
	})
	return func() time.Time {
		if d := time.Duration(ahead.Load()); d.Abs() >= 2*time.Second {
			return time.Now().Add(d)
		}
		return time.Now()
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// dropForeignEvents drops Events of another name than the UID's Service: users may write them.
func (s *Snapshot) dropForeignEvents() {
	keys := make(map[string]vip.Key, len(s.Services))
	for i := range s.Services {
		keys[s.Services[i].UID] = s.Services[i].Key
	}
	s.Events = slices.DeleteFunc(s.Events, func(e StoredEvent) bool {
		k, known := keys[e.UID]
		return known && e.Service != k
	})
}

// TakeAllowedSnapshot is TakeSnapshot of all namespaces, else of the readable one, also without Leases.
func TakeAllowedSnapshot(ctx context.Context, cfg *rest.Config, namespace string) (Snapshot, error) {
	s, leasesErr, err := takeSnapshot(ctx, cfg, "")
	if namespace != "" && apierrors.IsForbidden(errors.Join(err, leasesErr)) {
		s, leasesErr, err = takeSnapshot(ctx, cfg, namespace)
	}
	return s, errors.Join(err, s.leaveOut(leasesErr, "Leases, so owners and nodes are not shown"))
}

// leaveOut returns err, or names what is missing if that is forbidden.
func (s *Snapshot) leaveOut(err error, what string) error {
	if apierrors.IsForbidden(err) {
		s.Missing, err = append(s.Missing, what+": "+err.Error()), nil
	}
	return err
}

// TakeEndpoints fills in the Services' Endpoints of all namespaces, else of the readable one; "" is none.
func (s *Snapshot) TakeEndpoints(ctx context.Context, cfg *rest.Config, namespace string) error {
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return err
	}
	all := make(map[vip.Key][]*cachedSlice)
	r := &watchedResource{client: c.discovery, resource: "endpointslices"}
	_, err = listAllowed(ctx, r, namespace, func(o *discoveryv1.EndpointSlice) {
		if x := readSlice(o); x != nil {
			all[x.service] = append(all[x.service], x)
		}
	})
	for i := range s.Services {
		x := &s.Services[i]
		x.Endpoints = mergeEndpoints(slices.Values(all[x.Key]), x)
	}
	return err
}

// listAllowed lists all namespaces, else the readable one; fewer is why not all.
func listAllowed[O runtime.Object](ctx context.Context, r *watchedResource, namespace string, each func(O)) (
	fewer, err error) {
	if err = list(ctx, r, each); namespace == "" || !apierrors.IsForbidden(err) {
		return nil, err
	}
	r.namespace = namespace
	return err, list(ctx, r, each)
}

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

// readEvent converts an Event; Occurrence is not stored.
func readEvent(o *corev1.Event) StoredEvent {
	e := StoredEvent{At: o.LastTimestamp.UTC(), Node: o.Source.Host}
	e.order, _ = strconv.ParseUint(o.ResourceVersion, 10, 64)
	e.Service = vip.Key{Namespace: o.InvolvedObject.Namespace, Name: o.InvolvedObject.Name}
	e.UID, e.Warning = string(o.InvolvedObject.UID), o.Type == corev1.EventTypeWarning
	e.Reason, e.Message = vip.Reason(o.Reason), o.Message
	return e
}
