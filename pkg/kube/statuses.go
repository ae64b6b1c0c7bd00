package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/heraldvip/herald/pkg/vip"
)

// Statuses makes Services what the Plan wants: their statuses and addresses.
//
// Only the cache says what a Service is. A write names the version it was made for; after it went through, the next
// version in the cache is its result, and until then the Service is left alone. So no order of events repeats a write
// or undoes another's.
type Statuses struct {
	log     *slog.Logger
	metrics *metrics
	off     bool // Options.NoUpdates
	cached  func(vip.Key) *cachedService
	patch   func(ctx context.Context, k vip.Key, body []byte) (*corev1.Service, error)

	turns *turns[vip.Key]
	queue *workqueue.Typed[vip.Key] // Services to look at
	poke  func()                    // called when refused or fights have changed

	// dropsIPMode: the API server drops ipMode (Kubernetes before 1.29). It is still sent, so a newer server is noticed.
	dropsIPMode atomic.Bool

	mu      sync.Mutex // guards what follows
	puts    [kinds]uint64
	states  map[vip.Key]*serviceState
	rest    pause
	pending int // how many Statuses of the last Put the cache did not show
	// by Service: why the API server does not take what is written, and who changes it again and again
	refused [kinds]map[vip.Key]string
	fights  map[vip.Key]string
}

// The kinds of wishes.
const (
	ofAddress = iota
	ofStatus
	kinds
)

// A wish is what to write on a Service: its given address, or a status.
type wish struct {
	address *vip.Assignment
	status  *vip.Status
}

func newStatuses(o Options, cached func(vip.Key) *cachedService, m *metrics) *Statuses {
	s := &Statuses{
		log: o.Log, metrics: m, off: o.NoUpdates, cached: cached, poke: o.Poke,
		turns:   newTurns(func(k vip.Key) string { return k.Namespace }),
		states:  make(map[vip.Key]*serviceState),
		refused: [kinds]map[vip.Key]string{{}, {}}, fights: map[vip.Key]string{},
	}
	s.queue = workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[vip.Key]{Queue: s.turns})
	return s
}

// Put has Run write the Statuses that the cache does not show.
func (s *Statuses) Put(want []vip.Status) {
	if s.off { // but for a finalizer from before the option was set: it would hold up the deletion for ever
		want = slices.DeleteFunc(slices.Clone(want), func(w vip.Status) bool {
			o := s.cached(w.Service)
			return w.Finalizer != vip.RemoveFinalizer || o == nil || !o.Finalizer || o.Deleted.IsZero()
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = 0
	s.puts[ofStatus]++
	for _, w := range want {
		if s.dropsIPMode.Load() {
			w.Ingress = withoutGateways(w.Ingress) // without its mode kube-proxy would take it for the Service's
		}
		if o := s.cached(w.Service); o != nil && s.matches(o, w) {
			s.take(w.Service, ofStatus, wish{})
			continue
		}
		s.pending++
		s.take(w.Service, ofStatus, wish{status: new(w)})
	}
	s.drop(ofStatus)
}

// Assignments takes the addresses that Services are given.
type Assignments struct{ statuses *Statuses }

// Put has Statuses write the Assignments that still are to be.
func (a Assignments) Put(want []vip.Assignment) {
	s := a.statuses
	if s.off {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts[ofAddress]++
	for _, w := range want {
		if len(w.Addresses) > 0 || w.Remove {
			s.take(w.Service, ofAddress, wish{address: &w})
		}
	}
	s.drop(ofAddress)
}

// Observe fills in StatusesPending, StatusRefusals, AssignmentRefusals and StatusFights.
func (s *Statuses) Observe(w *vip.World) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.StatusesPending = s.pending
	w.AssignmentRefusals, w.StatusRefusals = maps.Clone(s.refused[ofAddress]), maps.Clone(s.refused[ofStatus])
	w.StatusFights = maps.Clone(s.fights)
	if !s.rest.denied {
		return
	}
	for k, x := range s.states {
		for kind, refusals := range [kinds]map[vip.Key]string{w.AssignmentRefusals, w.StatusRefusals} {
			if x.errands[kind].want != (wish{}) {
				refusals[k] = notAllowed
			}
		}
	}
}

// tell stores in refused or fights what is true of a Service, "" for nothing, and pokes at news. s.mu is held.
func (s *Statuses) tell(all map[vip.Key]string, k vip.Key, what string) {
	if all[k] == what {
		return
	}
	if all[k] = what; what == "" {
		delete(all, k)
	}
	s.poke()
}

// finalizerAfter reports whether s has the finalizer after this change.
func (s *cachedService) finalizerAfter(c vip.FinalizerChange) bool {
	switch {
	case c == vip.RemoveFinalizer:
		return false
	case c == vip.AddFinalizer && s.Deleted.IsZero():
		return true
	}
	return s.Finalizer
}

// matches reports whether o has all that w wants.
func (s *Statuses) matches(o *cachedService, w vip.Status) bool {
	leased := len(w.DHCPLeases) > 0
	switch {
	case !o.hasConditions(w.Conditions):
		return false
	case w.ConditionsOnly:
		return true
	case o.VIPHost != w.VIPHost || o.Announcer != w.Announcer || o.hasHostAnnotation != (w.VIPHost != ""),
		o.Finalizer != o.finalizerAfter(w.Finalizer),
		o.hasLeaseAnnotation != leased || !equalDHCPLeases(o.DHCP.Leases, w.DHCPLeases),
		leased && !slices.Equal(o.DHCP.Requested, o.requestedBeside(w.DHCPLeases)):
		return false
	}
	return slices.EqualFunc(o.Ingress, w.Ingress, func(have, want vip.Ingress) bool {
		return have.Addr == want.Addr && have.Hostname == want.Hostname && slices.Equal(have.Ports, want.Ports) &&
			(have.IPMode == want.IPMode || want.IPMode == "" || s.dropsIPMode.Load())
	})
}

// patchBody returns the strategic merge patch from unchanged o to w.
func patchBody(o *cachedService, w vip.Status) ([]byte, error) {
	status := map[string]any{}
	if c := o.conditionsPatch(w.Conditions); len(c) > 0 {
		status["conditions"] = c
	}
	if w.ConditionsOnly {
		return json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.version}, "status": status})
	}
	// through the status, which needs no right on Services themselves
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

// A writeResult is the outcome of a write of a status; a metric's label.
type writeResult string

const (
	written     writeResult = "written"
	conflict    writeResult = "conflict"    // the Service has changed: the cache will show it
	notFound    writeResult = "not_found"   // the Service does not exist any more
	unavailable writeResult = "unavailable" // the API server takes no writes at present, or none of ours
	rejected    writeResult = "rejected"    // it does not accept this one
)

// lacks reports whether w is for s as it is, and missing.
func (s *cachedService) lacks(w *vip.Assignment) bool {
	shown := s.Allocated == w.Pool && (s.Source == addressesKey || s.Own != nil) && slices.Equal(s.Addresses, w.Addresses)
	if w.Remove {
		shown = !s.Superseded && s.Allocated == ""
	}
	stillNames := slices.Equal(s.Addresses, w.Had) || len(w.Had) == 0 && s.Source == vip.SourceStatus
	return !shown && s.Allocated == w.HadPool && stillNames // what it did at the decision
}

// addressPatch returns the patch that gives unchanged o the addresses of w.
func addressPatch(o *cachedService, w *vip.Assignment) ([]byte, error) {
	given := slices.DeleteFunc(slices.Clone(w.Addresses), func(x netip.Addr) bool { return slices.Contains(w.Own, x) })
	text := vip.JoinAddrs(given, ",")
	annotations := map[string]any{allocatedKey: w.Pool, allocatedAddressesKey: text}
	switch {
	case w.Remove:
		annotations[allocatedKey], annotations[allocatedAddressesKey] = nil, nil // null removes one
		// else a person has overwritten it
		if o.Source != addressesKey {
			annotations[addressesKey] = nil
		}
	case len(w.Own) == 0:
		annotations[addressesKey] = text
	}
	patch := map[string]any{"metadata": map[string]any{"resourceVersion": o.version, "annotations": annotations}}
	if !w.Remove && !slices.ContainsFunc(w.Addresses, netip.Addr.IsUnspecified) {
		allocated := vip.Condition{Type: vip.Allocated, Status: vip.ConditionTrue, Reason: vip.AddressAllocated,
			Message: vip.JoinAddrs(w.Addresses, ", ") + ": of pool " + w.Pool}
		record := vip.Record{Named: w.Own, Given: given}
		patch["status"] = map[string]any{"conditions": o.conditionsPatch([]vip.Condition{allocated, record.Condition()})}
	}
	return json.Marshal(patch)
}

// write tries for 10 s to write w; now is the answer, or nil.
func (s *Statuses) write(ctx context.Context, o *cachedService, w wish) (
	result writeResult, now *cachedService, err error) {
	var body []byte
	what := "status"
	if w.address != nil {
		what = "address"
		body, err = addressPatch(o, w.address)
	} else {
		body, err = patchBody(o, *w.status)
	}
	if err != nil {
		return rejected, nil, fmt.Errorf("%s of Service %s: %w", what, o.Key, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := s.patch(ctx, o.Key, body)
	if err != nil {
		return resultOf(err), nil, fmt.Errorf("%s of Service %s not written: %w", what, o.Key, err)
	}
	now = readService(answer)
	if w.status != nil {
		s.detectIPMode(now, *w.status)
	}
	if s.isToWrite(now, w) {
		return rejected, now, fmt.Errorf("%s of Service %s: the API server took the write but did not do as asked; an "+
			"admission webhook may have changed it", what, o.Key)
	}
	return written, now, nil
}

// isToWrite reports whether w is for o, and not what that has.
func (s *Statuses) isToWrite(o *cachedService, w wish) bool {
	if w.address != nil {
		return o.UID == w.address.UID && o.lacks(w.address)
	}
	return w.status != nil && o.UID == w.status.UID && !s.matches(o, *w.status)
}

// detectIPMode sets dropsIPMode by the answer to a write of w.
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
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err),
		refusesObject(err):
		return rejected
	}
	// All else is about the server or permissions: no connection, time-outs, 401, 403, 429, 5xx.
	return unavailable
}

// refusesObject reports whether a 500 or 403 is about the object: too large for etcd, or denied.
func refusesObject(err error) bool {
	text := err.Error()
	return apierrors.IsInternalError(err) && strings.Contains(text, "request is too large") ||
		apierrors.IsForbidden(err) && (strings.Contains(text, " denied the request") ||
			strings.Contains(text, " denied request"))
}

// readConditions fills in Conditions, Record and conditionsSince from status.conditions.
func (s *cachedService) readConditions(all []metav1.Condition) {
	var ours []vip.Condition
	for _, c := range all {
		t := vip.ConditionType(c.Type)
		if t != vip.Allocated && t != vip.Announced && t != vip.Recorded { // somebody else's
			continue
		}
		if s.conditionsSince == nil {
			s.conditionsSince = make(map[vip.ConditionType]metav1.Time)
		}
		s.conditionsSince[t] = c.LastTransitionTime
		ours = append(ours, vip.Condition{
			Type: t, Status: vip.ConditionStatus(c.Status), Reason: vip.Reason(c.Reason),
			Message: vip.Truncate(c.Message, maxConditionMessage),
		})
	}
	s.SetConditions(ours)
}

// maxConditionMessage is how many bytes of a message are kept: more than Herald writes.
const maxConditionMessage = 2048

// hasConditions reports whether s has each of want, absent ones not.
func (s *cachedService) hasConditions(want []vip.Condition) bool {
	return !slices.ContainsFunc(want, func(c vip.Condition) bool { return !c.In(s.Conditions) })
}

// conditionsPatch returns the strategic merge patch that gives s want.
func (s *cachedService) conditionsPatch(want []vip.Condition) []map[string]any {
	out := make([]map[string]any, 0, len(want))
	for _, c := range want {
		if c.Status == vip.ConditionAbsent {
			if !c.In(s.Conditions) {
				out = append(out, map[string]any{"$patch": "delete", "type": c.Type})
			}
			continue
		}
		since := metav1.Now()
		for _, h := range s.Conditions {
			if h.Type == c.Type && h.Status == c.Status {
				since = s.conditionsSince[c.Type]
			}
		}
		out = append(out, map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
			"lastTransitionTime": since})
	}
	return out
}
