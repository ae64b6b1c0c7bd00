package kube

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// component is the source of Herald's Events.
const component = "herald"

const (
	// eventRate is how many Events are written a second, and at most in a burst. When
	// hundreds of VIPs move at once, the leases and statuses of others shall not wait.
	eventRate = 20
	// maxBatches is how many Puts with new Events may be ahead of Run.
	maxBatches = 64
	// rememberFor is how long an Event that ceased to hold is remembered: as long
	// as the API server keeps Events (--event-ttl, one hour).
	rememberFor = time.Hour
	// maxRepeats is how often an Event that holds and ceases to hold is written within
	// rememberFor.
	maxRepeats      = 10
	maxMessageBytes = 1024 // longer ones are refused by some API versions
	// maxRemembered is how many Events that ceased to hold are remembered.
	maxRemembered = 10000
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
	added   chan []*queuedEvent // from Put to Run
	pause   time.Duration       // Run's, since the API server is unavailable
	warned  time.Time           // when Run last said that Events are refused
	again   atomic.Bool         // Events that were given up shall be queued again by the next Put

	// What follows belongs to the caller of Put.
	last   []vip.Event // what Put was given last; nil if Run was too far behind to take what is new
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
// eventWritten to eventUnwritten; Run changes eventQueued to eventWritten, or back to
// eventUnwritten if it gives the Event up.
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

	// Of an Event into which others of its Service and reason have been combined:
	similar int       // how many others
	first   time.Time // when the first of them began to hold
	due     time.Time // when it is to be written
}

func newEvents(c *clients, o Options, m *metrics) *Events {
	return &Events{
		node: o.Node, log: o.Log, metrics: m,
		create: func(ctx context.Context, e *corev1.Event) error {
			return c.core.Post().Namespace(e.Namespace).Resource("events").Body(e).MaxRetries(0).Do(ctx).Error()
		},
		added:  make(chan []*queuedEvent, maxBatches),
		states: make(map[vip.Event]*eventState),
	}
}

// Put takes the Events that hold now, and queues for Run those that the Put before did
// not contain, but for those that have been written maxRepeats times within rememberFor
// and those without a namespace. Those that Run has given up, or could not take, are queued by
// a later Put: the next one that differs, or once few are waiting. It is for one goroutine, and does not block.
func (e *Events) Put(want []vip.Event) {
	again := e.again.Swap(false)
	if len(want) > 0 && !again && slices.Equal(want, e.last) {
		return
	}
	now := time.Now()
	e.puts++
	e.last = want
	var added []*queuedEvent
	for _, w := range want {
		w.Message = limitMessage(w.Message)
		s := e.states[w]
		if s == nil {
			s = &eventState{}
			e.states[w] = s
		}
		if s.occurrences == 0 || s.put < e.puts-1 {
			s.begin(now)
		}
		s.put = e.puts
		if w.Service.Namespace != "" && s.progress.CompareAndSwap(eventUnwritten, eventQueued) {
			added = append(added, &queuedEvent{Event: w, occurrences: s.occurrences, began: s.began, progress: &s.progress})
		}
	}
	e.send(added)
	e.forget(now, len(want))
}

// send hands Events to Run. If that is too far behind, a later Put does so.
func (e *Events) send(added []*queuedEvent) {
	if len(added) == 0 {
		return
	}
	select {
	case e.added <- added:
	default:
		for _, q := range added {
			q.progress.Store(eventUnwritten)
		}
		e.last = nil
	}
}

// forget forgets once a minute what ceased to hold rememberFor ago, and if more than maxRemembered
// Events are remembered besides the held ones that hold, all that are not queued.
func (e *Events) forget(now time.Time, held int) {
	tooMany := len(e.states) > held+maxRemembered
	if !tooMany && now.Sub(e.swept) <= time.Minute {
		return
	}
	e.swept = now
	for k, s := range e.states {
		if s.put != e.puts && s.progress.Load() != eventQueued && (tooMany || now.Sub(s.began) > rememberFor) {
			delete(e.states, k)
		}
	}
}

// limitMessage cuts what is longer than maxMessageBytes.
func limitMessage(m string) string {
	if len(m) <= maxMessageBytes {
		return m
	}
	return truncate(m, maxMessageBytes-len("...")) + "..."
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

// String names the task.
func (e *Events) String() string { return "kube: events" }
