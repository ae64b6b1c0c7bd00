package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/heraldvip/herald/pkg/vip"
)

// component is who Events come from.
const component = "herald"

// Bounds of the writing of Events.
const (
	// eventRate is how many are written a second, and at a time. When hundreds of VIPs
	// move at once, the leases and statuses of others shall not wait for them.
	eventRate  = 20
	eventQueue = 20000 // that wait to be written
	// memory is how long it is remembered that a Note was said after it has ceased
	// to hold: as long as the API server keeps Events (--event-ttl, one hour).
	memory = time.Hour
	// repeatMost is how often a Note that comes and goes is said within memory.
	repeatMost  = 10
	messageMost = 1024 // bytes; longer ones are refused by some API versions
)

// Notes is the part that tells the users of Services what they must know, as
// Events.
//
// A Note is said once for as long as it holds. The Event's name is made of what
// the Note says, so that a process that was restarted, or another node that sees
// the same, finds the Event there already. A Note that ceased to hold and holds
// again is a new happening: how many times this process has seen that goes into
// the name as well. So, after a restart, a Note that ceased to hold and came back
// may go unsaid while its last Event is still there to be read (an hour).
//
// What was to be said is said even if it has ceased to hold meanwhile.
type Notes struct {
	node    string
	log     *slog.Logger
	metrics *metrics
	create  func(ctx context.Context, e *corev1.Event) error
	wake    chan struct{}

	mu     sync.Mutex
	last   []vip.Event // what Set was given last
	have   []vip.Event // what of it is known to be said; nil: to be made anew
	notes  map[vip.Event]*note
	queue  []*note
	swept  time.Time
	passes uint64
}

// A note is a Note that holds, or held within the last hour.
type note struct {
	vip.Event
	pass   uint64 // the last Set it was part of
	times  int    // how many times it began to hold
	since  time.Time
	said   bool
	queued bool

	window time.Time // since when it was said spent times
	spent  int
}

func newNotes(a *api, o Options, m *metrics) *Notes {
	return &Notes{
		node: o.Node, log: o.Log, metrics: m,
		create: func(ctx context.Context, e *corev1.Event) error {
			return a.core.Post().Namespace(e.Namespace).Resource("events").Body(e).MaxRetries(0).Do(ctx).Error()
		},
		wake:  make(chan struct{}, 1),
		notes: make(map[vip.Event]*note),
	}
}

// Set takes the Notes that hold now, and returns those that the API server has
// been told; neither slice may be changed afterwards. It does no I/O and never
// fails; Run does the telling.
func (n *Notes) Set(_ context.Context, want []vip.Event) (have []vip.Event, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.have == nil || !slices.Equal(want, n.last) {
		n.take(want, time.Now())
	}
	return n.have, nil
}

// take makes notes, queue and have what want asks for.
func (n *Notes) take(want []vip.Event, now time.Time) {
	n.passes++
	n.last = want
	n.have = make([]vip.Event, 0, len(want))
	for _, w := range want {
		x := n.notes[w]
		if x == nil {
			x = &note{Event: w}
			n.notes[w] = x
		}
		if x.pass < n.passes-1 || x.times == 0 { // it begins to hold
			x.begin(now)
		}
		x.pass = n.passes
		if !x.said {
			n.enqueue(x)
		} else {
			n.have = append(n.have, w)
		}
	}
	if now.Sub(n.swept) > time.Minute {
		n.swept = now
		for k, x := range n.notes {
			if x.pass != n.passes && !x.queued && now.Sub(x.since) > memory {
				delete(n.notes, k)
			}
		}
	}
}

// begin notes that x begins to hold. A Note that comes and goes all the time is
// not said each time.
func (x *note) begin(now time.Time) {
	if now.Sub(x.window) > memory {
		x.window, x.spent = now, 0
	}
	x.times++
	x.spent++
	x.since = now
	x.said = x.said && x.spent > repeatMost
}

func (n *Notes) enqueue(x *note) {
	if x.queued || x.Service.Namespace == "" || len(n.queue) >= eventQueue {
		return // a later Set tries again
	}
	x.queued = true
	n.queue = append(n.queue, x)
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// String names the task.
func (n *Notes) String() string { return "kube: events" }

// Run writes Events until ctx ends.
func (n *Notes) Run(ctx context.Context) error {
	limit := flowcontrol.NewTokenBucketRateLimiter(eventRate, eventRate)
	var pause time.Duration
	denied := false
	for {
		x, e := n.next()
		if x == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-n.wake:
				continue
			}
		}
		if limit.Wait(ctx) != nil {
			return nil
		}
		done, err := n.say(ctx, e)
		if ctx.Err() != nil {
			return nil
		}
		if done {
			n.finish(x)
			pause, denied = 0, false
			continue
		}
		pause = max(awayFirst, min(2*pause, awayMost))
		if apierrors.IsForbidden(err) {
			pause = refusedMost
			if !denied {
				denied = true
				n.log.Warn("not allowed to create Events; herald manifest rbac prints what is needed", "err", err)
			}
		}
		sleep(ctx, pause)
	}
}

// next is what to say next, or nil.
func (n *Notes) next() (*note, *corev1.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		return nil, nil
	}
	return n.queue[0], n.event(n.queue[0])
}

// finish takes the first of the queue from it.
func (n *Notes) finish(x *note) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue = n.queue[1:]
	x.queued, x.said = false, true
	n.have = nil
}

// say tries once to create an Event. done is false if it should be tried again.
func (n *Notes) say(ctx context.Context, e *corev1.Event) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = n.create(ctx, e)
	result := "dropped"
	switch {
	case err == nil:
		result, done = "created", true
	case apierrors.IsAlreadyExists(err):
		result, done = "known", true
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		done = true // the namespace goes, and the Service with it
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		done = true
		n.log.Warn("the API server does not accept an Event", "service", e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "reason", e.Reason, "message", e.Message, "err", err)
	default:
		result = "error"
		n.log.Debug("creating an Event failed; trying again", "err", err)
	}
	n.metrics.events.WithLabelValues(result).Inc()
	return done, err
}

// event is x as an Event.
func (n *Notes) event(x *note) *corev1.Event {
	kind := corev1.EventTypeNormal
	if x.Warning {
		kind = corev1.EventTypeWarning
	}
	when := metav1.NewTime(x.since)
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: x.Service.Namespace, Name: x.Service.Name + "." + digest(x)},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: "Service",
			Namespace: x.Service.Namespace, Name: x.Service.Name, UID: types.UID(x.UID),
		},
		Type: kind, Reason: string(x.Reason), Message: shorten(x.Message),
		FirstTimestamp: when, LastTimestamp: when, Count: 1,
		Source:              corev1.EventSource{Component: component, Host: n.node},
		ReportingController: component,
		ReportingInstance:   n.node,
	}
}

// digest tells Events of one Service apart.
func digest(x *note) string {
	text, _ := json.Marshal([]any{x.UID, x.Reason, x.Message, x.Occurrence, x.times}) // can't fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// shorten cuts a message to what an Event may carry.
func shorten(s string) string {
	if len(s) <= messageMost {
		return s
	}
	cut := messageMost - len("...")
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}
