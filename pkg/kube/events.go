package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// component is the source of Herald's Events.
const component = "herald"

const (
	// eventRate is how many Events are written a second and in a burst: leases and statuses shall not wait.
	eventRate = 20
	// A Service has serviceBurst Events at once, then one each eventInterval; others wait, while they hold.
	serviceBurst  = 25
	eventInterval = time.Minute
	// rememberFor is how long ended Events are remembered: as the API server does (--event-ttl, one hour).
	rememberFor = time.Hour
	// rewriteAfter is how old an Event that herald status reads is written again while it holds.
	rewriteAfter = rememberFor - 10*time.Minute
	// maxRepeats is how often a recurring Event is written within rememberFor.
	maxRepeats      = 10
	maxMessageBytes = 1024  // longer ones are refused by some API versions
	maxRemembered   = 10000 // Events that ceased to hold
)

// Events writes Events about Services, each once while it holds, a lasting one again before the API server forgets it,
// or if it held briefly. The name is made of the content, for another process to find, and of how often it began to
// hold.
type Events struct {
	node    string
	log     *slog.Logger
	metrics *metrics
	create  func(ctx context.Context, e *corev1.Event) error
	queue   *workqueue.Typed[vip.Event]
	turns   *turns[vip.Event]

	// What follows belongs to Run.
	budgets map[vip.Key]*rate.Limiter // of Services
	refused map[string]refusedEvents  // by namespace
	swept   time.Time                 // when these were last rid of what need not be known
	pause   time.Duration             // since the API server is unavailable
	warned  time.Time                 // when the log last said that Events are refused

	mu     sync.Mutex  // guards what follows
	last   []vip.Event // what Put was given last
	states map[vip.Event]*eventState
	forgot time.Time // when states was last rid of what is too old
	puts   uint64
}

// An eventState is what is remembered of an Event, for an hour.
type eventState struct {
	put         uint64    // the last Put that contained it
	occurrences int       // how many times it began to hold
	began       time.Time // when it last did, or was written again
	done        bool      // it is written, or need not be
	window      time.Time // since when it began to hold repeats times
	repeats     int
}

func newEvents(c *clients, o Options, m *metrics) *Events {
	e := &Events{
		node: o.Node, log: o.Log, metrics: m,
		create: func(ctx context.Context, e *corev1.Event) error {
			return c.core.Post().Namespace(e.Namespace).Resource("events").Body(e).MaxRetries(0).Do(ctx).Error()
		},
		turns:   newTurns(func(e vip.Event) string { return e.Service.Namespace }),
		budgets: make(map[vip.Key]*rate.Limiter),
		refused: make(map[string]refusedEvents),
		states:  make(map[vip.Event]*eventState),
	}
	e.queue = workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[vip.Event]{Queue: e.turns})
	return e
}

// Put takes the Events that hold now; Run writes new ones. It does not block.
func (e *Events) Put(want []vip.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(want) > 0 && slices.Equal(want, e.last) {
		return
	}
	now := time.Now()
	e.puts++
	e.last = want
	for _, w := range want {
		if w.Warning && w.Service.Namespace == "" { // of the control plane's VIP, which is no object
			w.Message = w.Service.Name + ": " + w.Message
			w = e.ofNode(w)
		}
		w.Message = vip.Shorten(w.Message, maxMessageBytes)
		s := e.states[w]
		if s == nil {
			s = &eventState{done: true}
			e.states[w] = s
		}
		if (s.occurrences == 0 || s.put < e.puts-1) && s.begin(now) && w.Service.Namespace != "" {
			s.done = false
			e.queue.Add(w)
		}
		s.put = e.puts
	}
	e.forget(now, len(want))
}

// forget forgets what ended rememberFor ago, or all ended, if too many.
func (e *Events) forget(now time.Time, held int) {
	tooMany := len(e.states) > held+maxRemembered
	if !tooMany && now.Sub(e.forgot) <= time.Minute {
		return
	}
	e.forgot = now
	for k, s := range e.states {
		if s.put != e.puts && (tooMany || now.Sub(s.began) > rememberFor) {
			e.drop(k, s)
		}
	}
}

// drop forgets an Event, and counts an unwritten one. e.mu is held.
func (e *Events) drop(k vip.Event, s *eventState) {
	if !s.done {
		e.metrics.events.WithLabelValues("given_up").Inc()
	}
	delete(e.states, k)
}

// begin counts a beginning, and reports whether to write the Event.
func (s *eventState) begin(now time.Time) bool {
	if now.Sub(s.window) > rememberFor {
		s.window, s.repeats = now, 0
	}
	s.occurrences++
	s.repeats++
	s.began = now
	return s.repeats <= maxRepeats
}

// warnEvery is how often refused Events are logged at most.
const warnEvery = 10 * time.Minute

// refusedEvents is how long a namespace that refuses Events is left alone.
type refusedEvents struct {
	until time.Time
	pause time.Duration
}

// Run writes Events until ctx ends. What waits then is lost.
func (e *Events) Run(ctx context.Context) error {
	q := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[vip.Event]{Queue: e.queue})
	defer context.AfterFunc(ctx, q.ShutDown)()
	limit := rate.NewLimiter(eventRate, eventRate)
	for {
		w, ended := q.Get()
		if ended {
			return nil
		}
		if again := e.look(ctx, limit, w); again > 0 {
			q.AddAfter(w, again)
		}
		e.turns.done(w, nothingSent)
		q.Done(w)
	}
}

// look writes a due Event, and returns when to look again, or 0.
func (e *Events) look(ctx context.Context, limit *rate.Limiter, w vip.Event) time.Duration {
	now, namespace := time.Now(), w.Service.Namespace
	e.sweep(now)
	budget := e.budgets[w.Service]
	if budget == nil {
		budget = rate.NewLimiter(rate.Every(eventInterval), serviceBurst)
		e.budgets[w.Service] = budget
	}
	tooMany := budget.TokensAt(now) < 1
	s, again := e.stateOf(w, tooMany)
	switch wait := e.refused[namespace].until.Sub(now); {
	case s.done || ctx.Err() != nil:
		return again
	case tooMany:
		return eventInterval
	case wait > 0:
		return wait
	}
	if limit.Wait(ctx) != nil {
		return 0
	}
	switch err := e.tryCreate(ctx, e.newEvent(w, s)); {
	case err == nil:
		e.pause = 0
		delete(e.refused, namespace)
		budget.AllowN(now, 1)
		e.setDone(w, s.occurrences)
		_, again = e.stateOf(w, false)
		return again
	case ofNamespace(err):
		return e.refuse(namespace, err)
	}
	// the API server is out of reach, or has too much to do
	e.pause = max(unavailableMin, min(2*e.pause, unavailableMax))
	mailbox.Sleep(ctx, e.pause)
	return time.Nanosecond
}

// refuse pauses a namespace that refuses Events, twice as long each time. An API server that starts does not know of
// rights yet.
func (e *Events) refuse(namespace string, err error) time.Duration {
	now, x, longest := time.Now(), refusedEvents{}, unavailableMax
	if apierrors.IsForbidden(err) {
		longest = refusedMax
	}
	x.pause = max(unavailableMin, min(2*e.refused[namespace].pause, longest))
	if x.pause > unavailableMax && now.Sub(e.warned) > warnEvery {
		e.warned = now
		e.log.Warn("can't create Events in a namespace: admission there refuses them, or a right is missing (herald "+
			"manifest rbac prints what is needed)", "namespace", namespace, "err", err)
	}
	x.until = now.Add(x.pause)
	e.refused[namespace] = x
	return x.pause
}

// stateOf returns what is known of an Event; if done, it is looked at after again, unless that is 0 or less.
func (e *Events) stateOf(w vip.Event, tooMany bool) (x eventState, again time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.states[w]
	switch {
	case s == nil:
		return eventState{done: true}, 0
	case s.done && (w.Warning || w.Reason == vip.AddressOffLink):
		if again = rewriteAfter - time.Since(s.began); again <= 0 && s.put == e.puts {
			s.occurrences, s.began, s.done = s.occurrences+1, time.Now(), false
		}
	case !s.done && tooMany && s.put != e.puts:
		e.drop(w, s)
		return eventState{done: true}, 0
	}
	return *s, again
}

func (e *Events) setDone(w vip.Event, occurrences int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.states[w]; s != nil && s.occurrences == occurrences {
		s.done = true
	}
}

// sweep forgets needless Services and namespaces, once a minute.
func (e *Events) sweep(now time.Time) {
	if now.Sub(e.swept) < time.Minute {
		return
	}
	e.swept = now
	maps.DeleteFunc(e.budgets, func(_ vip.Key, b *rate.Limiter) bool { return b.TokensAt(now) >= serviceBurst })
	maps.DeleteFunc(e.refused, func(_ string, x refusedEvents) bool { return now.Sub(x.until) > time.Minute })
}

// tryCreate returns nil as well if the API server will never take the Event.
func (e *Events) tryCreate(ctx context.Context, o *corev1.Event) (again error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	label, err := "dropped", e.create(ctx, o)
	switch {
	case err == nil:
		label = "created"
		if o.Type == corev1.EventTypeWarning {
			e.log.Info("a Warning is written as an Event", "service", o.InvolvedObject.Namespace+"/"+o.InvolvedObject.Name,
				"reason", o.Reason, "message", o.Message)
		}
	case apierrors.IsAlreadyExists(err):
		label = "already_exists"
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		// the namespace is being deleted, and the Service with it
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		e.log.Warn("the API server does not accept an Event", "service", o.InvolvedObject.Namespace+"/"+o.InvolvedObject.Name,
			"reason", o.Reason, "message", o.Message, "err", err)
	default:
		label, again = "error", err
		e.log.Debug("creating an Event failed; trying again", "err", err)
	}
	e.metrics.events.WithLabelValues(label).Inc()
	return again
}

// ofNamespace reports whether another namespace's Event may fare better: admission refuses, or a right is missing.
func ofNamespace(err error) bool {
	// 429 may be one namespace's limit (EventRateLimit), 500 a webhook's
	return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown &&
		!apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) &&
		!apierrors.IsUnauthorized(err)
}

const kindNode = "Node"

// ofNode returns w about this node's Node. Its UID is its name, as in kubelet's Events, for kubectl describe.
func (e *Events) ofNode(w vip.Event) vip.Event {
	w.Service, w.Kind, w.UID = vip.Key{Namespace: metav1.NamespaceDefault, Name: e.node}, kindNode, e.node
	return w
}

// newEvent returns w as an object, named by Service and content.
func (e *Events) newEvent(w vip.Event, s eventState) *corev1.Event {
	kind := corev1.EventTypeNormal
	if w.Warning {
		kind = corev1.EventTypeWarning
	}
	content, _ := json.Marshal([]any{w.UID, w.Reason, w.Message, w.Occurrence, s.occurrences}) // can't fail
	hash := sha256.Sum256(content)
	namespace := w.Service.Namespace
	if w.Kind == kindNode {
		namespace = ""
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.Service.Namespace, Name: w.Service.Name + "." + hex.EncodeToString(hash[:8])},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: cmp.Or(w.Kind, "Service"),
			Namespace: namespace, Name: w.Service.Name, UID: types.UID(w.UID),
		},
		Type: kind, Reason: string(w.Reason), Message: w.Message,
		FirstTimestamp: metav1.NewTime(s.began), LastTimestamp: metav1.NewTime(s.began), Count: 1,
		Source:              corev1.EventSource{Component: component, Host: e.node},
		ReportingController: component,
		ReportingInstance:   e.node,
	}
}

// WriteNodeEvent tries for 5 s to write a Warning on this node's Node; a failure is logged.
func (c *Cluster) WriteNodeEvent(ctx context.Context, reason vip.Reason, message string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	o := c.Events.newEvent(c.Events.ofNode(vip.Event{Warning: true, Reason: reason, Message: message}),
		eventState{occurrences: 1, began: time.Now()})
	if err := c.Events.tryCreate(ctx, o); err != nil {
		c.o.Log.Info("an Event on the Node could not be written", "err", err)
	}
}
