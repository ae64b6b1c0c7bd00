package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/pkg/vip"
)

// Statuses is the part that makes the status of Services what the Plan wants.
//
// What a Service's status is, only the cache says. A write names the version it
// was made for, so it changes nothing that the cache has not shown; and when it
// went through, the very next version that the cache shows is its result. Until
// then the Service is left alone. So there is no order of events in which a
// write is repeated or undoes another's.
type Statuses struct {
	log     *slog.Logger
	metrics *metrics
	off     bool
	current func(vip.Key) *record
	patch   func(ctx context.Context, k vip.Key, body []byte) (*corev1.Service, error)
	wake    chan struct{}

	// modeless: the API server drops ipMode (Kubernetes before 1.29), so it can't
	// be compared. It goes on being sent, so that a newer server is noticed.
	modeless atomic.Bool

	mu      sync.Mutex
	want    []vip.Status
	todo    []vip.Status // what of it does not hold
	pending int          // how many of want do not hold, according to the cache
}

// Observe fills in how many statuses are still to be written.
func (s *Statuses) Observe(w *vip.World) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.StatusesPending = s.pending
}

func newStatuses(c *Cluster, a *api, o Options) *Statuses {
	return &Statuses{
		log: o.Log, metrics: c.metrics, off: o.NoUpdates,
		current: c.current,
		patch: func(ctx context.Context, k vip.Key, body []byte) (*corev1.Service, error) {
			out := &corev1.Service{}
			err := a.core.Patch(types.MergePatchType).Namespace(k.Namespace).Resource("services").Name(k.Name).
				SubResource("status").Body(body).MaxRetries(0).Do(ctx).Into(out)
			return out, err
		},
		wake: make(chan struct{}, 1),
	}
}

// Set has Run write every Status of want that does not hold, and returns those
// that do, according to the cache. A Service that want does not name is left as
// it is. A Service that does not exist has no status: nothing holds, and nothing
// is written. With Options.NoUpdates there is nothing to be done, and nobody has
// to wait for it: all counts as held.
func (s *Statuses) Set(_ context.Context, want []vip.Status) (have []vip.Status, err error) {
	if s.off {
		return want, nil
	}
	have = make([]vip.Status, 0, len(want))
	var todo []vip.Status
	for _, w := range want {
		if s.modeless.Load() {
			w.Ingress = vips(w.Ingress)
		}
		r := s.current(w.Service)
		switch {
		case r == nil:
		case s.holds(r, w):
			have = append(have, w)
		default:
			todo = append(todo, w)
		}
	}
	s.mu.Lock()
	s.want, s.todo, s.pending = want, todo, len(want)-len(have)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return have, nil
}

// vips is a status without the external addresses of gateways, which stand behind
// VIPs with another mode. Where the API server drops that mode kube-proxy would take
// them for the Service's.
func vips(list []vip.Ingress) []vip.Ingress {
	if !slices.ContainsFunc(list, func(i vip.Ingress) bool { return i.IPMode == vip.ModeVIP }) {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(i vip.Ingress) bool { return i.IPMode == vip.ModeProxy })
}

// holds reports whether r's status says w already.
func (s *Statuses) holds(r *record, w vip.Status) bool {
	if r.VIPHost != w.VIPHost || r.Announcer != w.Announcer || r.hosted != (w.VIPHost != "") {
		return false
	}
	if !sameLeases(r.DHCP.Leases, w.DHCPLeases) || r.leasing != (len(w.DHCPLeases) > 0) || len(w.DHCPLeases) > 0 && !slices.Equal(r.DHCP.Requested, leasedAddrs(w.DHCPLeases)) {
		return false
	}
	return slices.EqualFunc(r.Ingress, w.Ingress, func(have, want vip.Ingress) bool {
		return have.Addr == want.Addr && have.Hostname == want.Hostname && slices.Equal(have.Ports, want.Ports) &&
			(have.IPMode == want.IPMode || want.IPMode == "" || s.modeless.Load())
	})
}

// body is the JSON merge patch (RFC 7386) that makes r's status w, if r has not
// changed meanwhile. The annotations go with it through the status subresource,
// so that no permission on Services themselves is needed.
func body(r *record, w vip.Status) ([]byte, error) {
	meta := map[string]any{"resourceVersion": r.version}
	annotations := map[string]any{}
	for key, value := range map[string]string{hostKey: w.VIPHost, markKey: w.Announcer} {
		switch {
		case value != "":
			annotations[key] = value
		case key == hostKey && r.hosted, key == markKey && r.Announcer != "":
			annotations[key] = nil // null removes it
		}
	}
	if err := leaseAnnotations(annotations, r, w); err != nil {
		return nil, err
	}
	if len(annotations) > 0 {
		meta["annotations"] = annotations
	}
	var ingress any // null removes the field
	if len(w.Ingress) > 0 {
		ingress = writeIngress(w.Ingress)
	}
	return json.Marshal(map[string]any{
		"metadata": meta,
		"status":   map[string]any{"loadBalancer": map[string]any{"ingress": ingress}},
	})
}

// An outcome is how a write ended.
type outcome int

const (
	written  outcome = iota
	conflict         // the Service has changed: the cache will show it
	gone             // the Service does not exist any more
	away             // the API server can't take writes at present
	rejected         // it does not want this one
)

// write tries once to make the Service's status w.
func (s *Statuses) write(ctx context.Context, r *record, w vip.Status) (outcome, error) {
	data, err := body(r, w)
	if err != nil {
		return rejected, fmt.Errorf("status of Service %s: %w", w.Service, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	o, err := s.patch(ctx, w.Service, data)
	if err != nil {
		return classify(err), fmt.Errorf("status of Service %s not written: %w", w.Service, err)
	}
	now := readService(o)
	s.learn(now, w)
	if !s.holds(now, w) {
		return rejected, fmt.Errorf("status of Service %s: the API server took the write but did not do as asked; an admission webhook may have changed it", w.Service)
	}
	return written, nil
}

// learn notes whether the API server knows ipMode.
func (s *Statuses) learn(now *record, w vip.Status) {
	for i, want := range w.Ingress {
		if want.IPMode == "" || i >= len(now.Ingress) || now.Ingress[i].Addr != want.Addr {
			continue
		}
		dropped := now.Ingress[i].IPMode == ""
		if s.modeless.Swap(dropped) != dropped && dropped {
			s.log.Info("the API server does not know ipMode (Kubernetes before 1.29); statuses go without it")
		}
	}
}

func classify(err error) outcome {
	switch {
	case apierrors.IsConflict(err):
		return conflict
	case apierrors.IsNotFound(err):
		return gone
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return rejected
	}
	// Everything else is about the server or our permissions, not about this Service:
	// no connection, time-outs, 401, 403, 429, 5xx.
	return away
}
