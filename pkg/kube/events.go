package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/heraldvip/herald/pkg/vip"
)

// component is the source of Herald's Events.
const component = "herald"

const (
	// eventRate is how many Events are written a second, and at most in a burst. When
	// hundreds of VIPs move at once, the leases and statuses of others shall not wait.
	eventRate  = 20
	eventQueue = 20000 // that wait to be written
	// rememberFor is how long an Event that ceased to hold is remembered: as long
	// as the API server keeps Events (--event-ttl, one hour).
	rememberFor = time.Hour
	// maxRepeats is how often an Event that holds and ceases to hold is written within
	// rememberFor.
	maxRepeats      = 10
	maxMessageBytes = 1024 // longer ones are refused by some API versions
)

// Events writes Events about Services.
//
// An Event is written once for as long as it holds, and also if it has ceased to hold
// before its turn came. Its name is made of its content, so that a process that was
// restarted, or another node that observes the same, finds it at the API server. An
// Event that ceased to hold and holds again is a new one: how many times this process
// has seen that is part of the name as well. So, after a restart, an Event that ceased
// to hold and came back may not be written while its last one is still there (an hour).
type Events struct {
	node    string
	log     *slog.Logger
	metrics *metrics
	create  func(ctx context.Context, e *corev1.Event) error
	queue   chan *queuedEvent // from Put to Run

	// What follows belongs to the caller of Put.
	last   []vip.Event // what Put was given last; nil if not all of it found room in the queue
	states map[vip.Event]*eventState
	swept  time.Time // when states was last rid of what is too old
	puts   uint64
}

// An eventState is what is remembered of an Event that holds, or held within the last hour.
type eventState struct {
	put         uint64    // the last Put that contained it
	occurrences int       // how many times it began to hold
	began       time.Time // when it last did
	progress    atomic.Int32
	window      time.Time // since when it began to hold repeats times
	repeats     int
}

// Values of eventState.progress. Put changes eventUnwritten to eventQueued, and
// eventWritten to eventUnwritten; Run changes eventQueued to eventWritten.
const (
	eventUnwritten int32 = iota
	eventQueued
	eventWritten
)

// A queuedEvent is an Event to be written.
type queuedEvent struct {
	vip.Event
	occurrences int
	began       time.Time
	progress    *atomic.Int32
}

func newEvents(c *clients, o Options, m *metrics) *Events {
	return &Events{
		node: o.Node, log: o.Log, metrics: m,
		create: func(ctx context.Context, e *corev1.Event) error {
			return c.core.Post().Namespace(e.Namespace).Resource("events").Body(e).MaxRetries(0).Do(ctx).Error()
		},
		queue:  make(chan *queuedEvent, eventQueue),
		states: make(map[vip.Event]*eventState),
	}
}

// Put takes the Events that hold now, and queues for Run those that the Put before did
// not contain, but for those that have been written maxRepeats times within rememberFor
// and those without a namespace. Those that find no room in the queue are queued by a
// later Put. It is for one goroutine, and does not block.
func (e *Events) Put(want []vip.Event) {
	if len(want) > 0 && slices.Equal(want, e.last) {
		return
	}
	now := time.Now()
	e.puts++
	e.last = want
	for _, w := range want {
		s := e.states[w]
		if s == nil {
			s = &eventState{}
			e.states[w] = s
		}
		if s.occurrences == 0 || s.put < e.puts-1 {
			s.begin(now)
		}
		s.put = e.puts
		if s.progress.Load() == eventUnwritten && w.Service.Namespace != "" && !e.enqueue(w, s) {
			e.last = nil
		}
	}
	if now.Sub(e.swept) > time.Minute {
		e.swept = now
		for k, s := range e.states {
			if s.put != e.puts && s.progress.Load() != eventQueued && now.Sub(s.began) > rememberFor {
				delete(e.states, k)
			}
		}
	}
}

// begin counts that the Event begins to hold. One that was written is written again,
// but at most maxRepeats times within rememberFor.
func (s *eventState) begin(now time.Time) {
	if now.Sub(s.window) > rememberFor {
		s.window, s.repeats = now, 0
	}
	s.occurrences++
	s.repeats++
	s.began = now
	if s.repeats <= maxRepeats {
		s.progress.CompareAndSwap(eventWritten, eventUnwritten)
	}
}

// enqueue queues an Event for Run. It reports whether there was room.
func (e *Events) enqueue(w vip.Event, s *eventState) bool {
	s.progress.Store(eventQueued)
	select {
	case e.queue <- &queuedEvent{w, s.occurrences, s.began, &s.progress}:
		return true
	default:
		s.progress.Store(eventUnwritten)
		return false
	}
}

// String names the task.
func (e *Events) String() string { return "kube: events" }

// Run writes Events until ctx ends. What is queued then is lost.
func (e *Events) Run(ctx context.Context) error {
	limit := flowcontrol.NewTokenBucketRateLimiter(eventRate, eventRate)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case q := <-e.queue:
			e.write(ctx, limit, e.newEvent(q))
			q.progress.Store(eventWritten)
		}
	}
	return nil
}

// write tries to create an Event until the API server has it or does not want it, or
// ctx ends.
func (e *Events) write(ctx context.Context, limit flowcontrol.RateLimiter, o *corev1.Event) {
	var pause time.Duration
	for denied := false; limit.Wait(ctx) == nil; sleep(ctx, pause) {
		final, err := e.tryCreate(ctx, o)
		if final || ctx.Err() != nil {
			return
		}
		pause = max(unavailableMin, min(2*pause, unavailableMax))
		if apierrors.IsForbidden(err) {
			pause = refusedMax
			if !denied {
				denied = true
				e.log.Warn("not allowed to create Events; herald manifest rbac prints what is needed", "err", err)
			}
		}
	}
}

// tryCreate tries once to create an Event. final is false if it should be tried again.
func (e *Events) tryCreate(ctx context.Context, o *corev1.Event) (final bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = e.create(ctx, o)
	result := "dropped"
	switch {
	case err == nil:
		result, final = "created", true
	case apierrors.IsAlreadyExists(err):
		result, final = "already_exists", true
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		final = true // the namespace is being deleted, and the Service with it
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		final = true
		e.log.Warn("the API server does not accept an Event", "service", o.InvolvedObject.Namespace+"/"+o.InvolvedObject.Name, "reason", o.Reason, "message", o.Message, "err", err)
	default:
		result = "error"
		e.log.Debug("creating an Event failed; trying again", "err", err)
	}
	e.metrics.events.WithLabelValues(result).Inc()
	return final, err
}

// newEvent is q as an object of the API server. Its name is that of the Service and a
// hash of what distinguishes Events of one Service.
func (e *Events) newEvent(q *queuedEvent) *corev1.Event {
	kind := corev1.EventTypeNormal
	if q.Warning {
		kind = corev1.EventTypeWarning
	}
	content, _ := json.Marshal([]any{q.UID, q.Reason, q.Message, q.Occurrence, q.occurrences}) // can't fail
	hash := sha256.Sum256(content)
	message := q.Message
	if len(message) > maxMessageBytes {
		message = truncate(message, maxMessageBytes-len("...")) + "..."
	}
	began := metav1.NewTime(q.began)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: q.Service.Namespace, Name: q.Service.Name + "." + hex.EncodeToString(hash[:8])},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service",
			Namespace: q.Service.Namespace, Name: q.Service.Name, UID: types.UID(q.UID),
		},
		Type: kind, Reason: string(q.Reason), Message: message,
		FirstTimestamp: began, LastTimestamp: began, Count: 1,
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
