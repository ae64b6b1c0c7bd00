package kube

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"

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
	// maxRepeats is how often a recurring Event is written within rememberFor.
	maxRepeats      = 10
	maxMessageBytes = 1024  // longer ones are refused by some API versions
	maxRemembered   = 10000 // Events that ceased to hold
)

// Events writes Events about Services, each once while it holds, or if it held briefly. The name is made of the
// content, for another process to find, and of how often it began to hold.
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
	began       time.Time // when it last did
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

// String names the task.
func (e *Events) String() string { return "kube: events" }
