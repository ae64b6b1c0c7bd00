package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// Statuses makes the status of Services what the Plan wants.
//
// What the status of a Service is, only the cache says. A write names the version it
// was made for, so it changes nothing that the cache has not shown; and when it went
// through, the very next version that the cache shows is its result. Until then the
// Service is left alone. So there is no order of events in which a write is repeated
// or undoes another's.
type Statuses struct {
	log     *slog.Logger
	metrics *metrics
	off     bool // Options.NoUpdates
	cached  func(vip.Key) *cachedService
	patch   func(ctx context.Context, k vip.Key, body []byte) (*corev1.Service, error)
	wanted  *mailbox.Mailbox[wantedStatuses]
	refused refusals
	fights  fights

	// dropsIPMode: the API server drops ipMode (Kubernetes before 1.29), so it can't
	// be compared. It goes on being sent, so that a newer server is noticed.
	dropsIPMode atomic.Bool
}

// wantedStatuses is what Put was given, and what of it the cache did not show then.
type wantedStatuses struct{ all, pending []vip.Status }

func newStatuses(c *Cluster, api *clients, o Options) *Statuses {
	return &Statuses{
		log: o.Log, metrics: c.metrics, off: o.NoUpdates,
		cached: c.service,
		patch: func(ctx context.Context, k vip.Key, body []byte) (*corev1.Service, error) {
			out := &corev1.Service{}
			err := api.core.Patch(types.StrategicMergePatchType).Namespace(k.Namespace).Resource("services").Name(k.Name).
				SubResource("status").Body(body).MaxRetries(0).Do(ctx).Into(out)
			return out, err
		},
		wanted: mailbox.New[wantedStatuses](), refused: refusals{poke: o.Poke}, fights: fights{refusals: refusals{poke: o.Poke}},
	}
}

// Put has Run write every Status of want that the cache does not show. A Service that
// want does not name is left as it is. A Service that the cache does not contain is
// pending, but nothing is written. With Options.NoUpdates it does nothing.
func (s *Statuses) Put(want []vip.Status) {
	if s.off {
		return
	}
	var pending []vip.Status
	for _, w := range want {
		if s.dropsIPMode.Load() {
			w.Ingress = withoutGateways(w.Ingress) // without its mode kube-proxy would take such an address for the Service's
		}
		if o := s.cached(w.Service); o == nil || !s.matches(o, w) {
			pending = append(pending, w)
		}
	}
	s.wanted.Put(wantedStatuses{want, pending})
}

// Observe fills in StatusesPending: how many Statuses of the last Put the cache did not
// show then; with Options.NoUpdates 0; StatusRefusals and StatusFights.
func (s *Statuses) Observe(w *vip.World) {
	w.StatusesPending = len(s.wanted.Get().pending)
	w.StatusRefusals, w.StatusFights = s.refused.get(), s.fights.get()
}

// finalizerAfter reports whether s has the finalizer of load balancers after this change. It can't be added to
// a Service that is being deleted.
func (s *cachedService) finalizerAfter(c vip.FinalizerChange) bool {
	switch {
	case c == vip.RemoveFinalizer:
		return false
	case c == vip.AddFinalizer && s.Deleted.IsZero():
		return true
	}
	return s.Finalizer
}

// matches reports whether o has the status, the conditions, the annotations and the finalizer that w wants. Modes are
// not compared where w wants none, or the API server drops them.
func (s *Statuses) matches(o *cachedService, w vip.Status) bool {
	if !o.hasConditions(w.Conditions) {
		return false
	}
	if w.ConditionsOnly {
		return true
	}
	if o.VIPHost != w.VIPHost || o.Announcer != w.Announcer || o.hasHostAnnotation != (w.VIPHost != "") {
		return false
	}
	if o.Finalizer != o.finalizerAfter(w.Finalizer) {
		return false
	}
	leased := len(w.DHCPLeases) > 0
	if o.hasLeaseAnnotation != leased || !equalDHCPLeases(o.DHCP.Leases, w.DHCPLeases) || leased && !slices.Equal(o.DHCP.Requested, leasedAddrs(w.DHCPLeases)) {
		return false
	}
	return slices.EqualFunc(o.Ingress, w.Ingress, func(have, want vip.Ingress) bool {
		return have.Addr == want.Addr && have.Hostname == want.Hostname && slices.Equal(have.Ports, want.Ports) &&
			(have.IPMode == want.IPMode || want.IPMode == "" || s.dropsIPMode.Load())
	})
}

// patchBody is the strategic merge patch that makes the status of o what w wants, if o has not changed meanwhile: null
// removes a field, conditions are merged by their type. The annotations go with it through the status
// subresource, so that no permission on Services themselves is needed.
func patchBody(o *cachedService, w vip.Status) ([]byte, error) {
	status := map[string]any{}
	if c := o.conditionsPatch(w.Conditions); len(c) > 0 {
		status["conditions"] = c
	}
	if w.ConditionsOnly {
		return json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.version}, "status": status})
	}
	annotations := map[string]any{}
	set := func(key, value string, exists bool) {
		if value != "" {
			annotations[key] = value
		} else if exists {
			annotations[key] = nil // null removes it
		}
	}
	set(vipHostKey, w.VIPHost, o.hasHostAnnotation)
	set(announcerKey, w.Announcer, o.Announcer != "")
	if err := addLeaseAnnotations(annotations, o, w); err != nil {
		return nil, err
	}
	meta := map[string]any{"resourceVersion": o.version}
	if len(annotations) > 0 {
		meta["annotations"] = annotations
	}
	if wanted := o.finalizerAfter(w.Finalizer); wanted != o.Finalizer {
		key := "finalizers" // a strategic merge patch adds to the list
		if !wanted {
			key = "$deleteFromPrimitiveList/finalizers"
		}
		meta[key] = []string{cleanupFinalizer}
	}
	var ingress any // null removes the field
	if len(w.Ingress) > 0 {
		ingress = writeIngress(w.Ingress)
	}
	status["loadBalancer"] = map[string]any{"ingress": ingress}
	return json.Marshal(map[string]any{"metadata": meta, "status": status})
}

// A writeResult is the outcome of a write of a status; the value of a metric's label.
type writeResult string

const (
	written     writeResult = "written"
	conflict    writeResult = "conflict"    // the Service has changed: the cache will show it
	notFound    writeResult = "not_found"   // the Service does not exist any more
	unavailable writeResult = "unavailable" // the API server takes no writes at present, or none of ours
	rejected    writeResult = "rejected"    // it does not accept this one
)

// write tries once to make the status of o what w wants, for 10 s at most.
func (s *Statuses) write(ctx context.Context, o *cachedService, w vip.Status) (writeResult, error) {
	data, err := patchBody(o, w)
	if err != nil {
		return rejected, fmt.Errorf("status of Service %s: %w", w.Service, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := s.patch(ctx, w.Service, data)
	if err != nil {
		return resultOf(err), fmt.Errorf("status of Service %s not written: %w", w.Service, err)
	}
	now := readService(answer)
	s.detectIPMode(now, w)
	if !s.matches(now, w) {
		return rejected, fmt.Errorf("status of Service %s: the API server took the write but did not do as asked; an admission webhook may have changed it", w.Service)
	}
	return written, nil
}

// detectIPMode sets dropsIPMode if an ipMode that w wanted is missing from now, the
// answer to its write, and clears it if it is there.
func (s *Statuses) detectIPMode(now *cachedService, w vip.Status) {
	for i, want := range w.Ingress {
		if want.IPMode == "" || i >= len(now.Ingress) || now.Ingress[i].Addr != want.Addr {
			continue
		}
		dropped := now.Ingress[i].IPMode == ""
		if s.dropsIPMode.Swap(dropped) != dropped && dropped {
			s.log.Info("the API server does not know ipMode (Kubernetes before 1.29); statuses go without it")
		}
	}
}

// resultOf is what an error of a write means.
func resultOf(err error) writeResult {
	switch {
	case apierrors.IsConflict(err):
		return conflict
	case apierrors.IsNotFound(err):
		return notFound
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err), refusesObject(err):
		return rejected
	}
	// Everything else is about the server or our permissions, not about this Service:
	// no connection, time-outs, 401, 403, 429, 5xx.
	return unavailable
}

// refusesObject reports whether an error with a code that stands for the server or our permissions is about the one object: it is too
// large for etcd (500), or an admission webhook or policy denies it (403).
func refusesObject(err error) bool {
	text := err.Error()
	return apierrors.IsInternalError(err) && strings.Contains(text, "request is too large") ||
		apierrors.IsForbidden(err) && (strings.Contains(text, " denied the request") || strings.Contains(text, " denied request"))
}
