package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/heraldvip/herald/pkg/vip"
)

// An eventResult is what became of one request to create an Event.
type eventResult int

const (
	eventTaken       eventResult = iota // the API server has it, or never will
	eventRefused                        // by its namespace: admission there, or a right that is missing
	eventUnavailable                    // the API server is not in reach, or has too much to do
)

// warnEvery is how often the log says at most that Events are refused.
const warnEvery = 10 * time.Minute

// Run writes Events until ctx ends. What waits then is lost.
func (e *Events) Run(ctx context.Context) error {
	limit := flowcontrol.NewTokenBucketRateLimiter(eventRate, eventRate)
	q := newEventQueue(func(o *queuedEvent) {
		o.progress.Store(eventUnwritten)
		e.metrics.events.WithLabelValues("given_up").Inc()
	})
	for ctx.Err() == nil {
		o, wait := q.next(time.Now())
		if o == nil {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			case added := <-e.added:
				q.addAll(added, time.Now())
			}
			continue
		}
		if limit.Wait(ctx) == nil {
			e.writeNext(ctx, q, o)
		}
		e.takeAdded(q)
	}
	return nil
}

// takeAdded moves what Put has added meanwhile to q.
func (e *Events) takeAdded(q *eventQueue) {
	for {
		select {
		case added := <-e.added:
			q.addAll(added, time.Now())
		default:
			return
		}
	}
}

// writeNext tries once to create o, which is next in q.
func (e *Events) writeNext(ctx context.Context, q *eventQueue, o *queuedEvent) {
	result, err := e.tryCreate(ctx, e.newEvent(o))
	now := time.Now()
	switch {
	case ctx.Err() != nil:
	case result == eventTaken:
		e.pause = 0
		o.progress.Store(eventWritten)
		if q.taken(o); q.waiting == maxWaiting/2 {
			e.again.Store(true) // there is room for those that found none
		}
	case result == eventUnavailable:
		e.pause = max(unavailableMin, min(2*e.pause, unavailableMax))
		sleep(ctx, e.pause)
	case apierrors.IsForbidden(err):
		q.refused(o, now, refusedMax, refusedMax)
		if now.Sub(e.warned) > warnEvery {
			e.warned = now
			e.log.Warn("can't create Events in a namespace: admission there refuses them, or a right is missing (herald manifest rbac prints what is needed)", "namespace", o.Service.Namespace, "err", err)
		}
	default:
		q.refused(o, now, unavailableMin, unavailableMax)
	}
}

// tryCreate tries once to create an Event. err is nil if result is eventTaken.
func (e *Events) tryCreate(ctx context.Context, o *corev1.Event) (result eventResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = e.create(ctx, o)
	label := "dropped"
	switch {
	case err == nil:
		label = "created"
		if o.Type == corev1.EventTypeWarning {
			e.log.Info("a Warning is written as an Event", "service", o.InvolvedObject.Namespace+"/"+o.InvolvedObject.Name, "reason", o.Reason, "message", o.Message)
		}
	case apierrors.IsAlreadyExists(err):
		label = "already_exists"
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// the namespace is being deleted, and the Service with it
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		e.log.Warn("the API server does not accept an Event", "service", o.InvolvedObject.Namespace+"/"+o.InvolvedObject.Name, "reason", o.Reason, "message", o.Message, "err", err)
	default:
		label, result = "error", eventUnavailable
		if ofNamespace(err) {
			result = eventRefused
		}
		e.log.Debug("creating an Event failed; trying again", "err", err)
	}
	e.metrics.events.WithLabelValues(label).Inc()
	if result == eventTaken {
		err = nil
	}
	return result, err
}

// ofNamespace reports whether another namespace's Event may fare better: the API server has answered, and not that it
// is unavailable or that time ran out. Too many requests (429) may be the limit of one namespace
// (admission plugin EventRateLimit), and an internal error that of a webhook.
func ofNamespace(err error) bool {
	return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown &&
		!apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) && !apierrors.IsUnauthorized(err)
}

// newEvent is q as an object of the API server. Its name is that of the Service and a
// hash of what distinguishes Events of one Service. One that others have been combined into says so, and
// how many, as those of client-go do.
func (e *Events) newEvent(q *queuedEvent) *corev1.Event {
	kind := corev1.EventTypeNormal
	if q.Warning {
		kind = corev1.EventTypeWarning
	}
	distinct := []any{q.UID, q.Reason, q.Message, q.Occurrence, q.occurrences}
	message, first := q.Message, q.began
	if q.similar > 0 {
		message, first = limitMessage("(combined from similar events): "+message), q.first
		distinct = append(distinct, e.node, q.similar, first)
	}
	content, _ := json.Marshal(distinct) // can't fail
	hash := sha256.Sum256(content)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: q.Service.Namespace, Name: q.Service.Name + "." + hex.EncodeToString(hash[:8])},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: cmp.Or(q.Kind, "Service"),
			Namespace: q.Service.Namespace, Name: q.Service.Name, UID: types.UID(q.UID),
		},
		Type: kind, Reason: string(q.Reason), Message: message,
		FirstTimestamp: metav1.NewTime(first), LastTimestamp: metav1.NewTime(q.began), Count: int32(1 + q.similar),
		Source:              corev1.EventSource{Component: component, Host: e.node},
		ReportingController: component,
		ReportingInstance:   e.node,
	}
}

// WriteNodeEvent tries once to create a Warning on this node's Node object, in the namespace
// where Events of Nodes are. It blocks for 5 s at most; a failure is logged.
func (c *Cluster) WriteNodeEvent(ctx context.Context, reason vip.Reason, message string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	o := c.Events.newEvent(&queuedEvent{Event: vip.Event{
		Service: vip.Key{Namespace: metav1.NamespaceDefault, Name: c.o.Node}, Warning: true, Reason: reason, Message: message,
	}, occurrences: 1, began: time.Now()})
	// kubectl describe looks for Events of a Node by its name in place of the UID, as kubelet writes them.
	o.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: c.o.Node, UID: types.UID(c.o.Node)}
	if _, err := c.Events.tryCreate(ctx, o); err != nil {
		c.o.Log.Info("an Event on the Node could not be written", "err", err)
	}
}
