package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A fakeEvents keeps Events for an hour, as the API server does.
type fakeEvents struct {
	mu       sync.Mutex
	events   map[string]time.Time
	messages []string // of the Events created, in order
	requests int
	refuse   func(e *corev1.Event) error
}

func (b *fakeEvents) create(_ context.Context, e *corev1.Event) error {
	time.Sleep(5 * time.Millisecond)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests++
	if b.refuse != nil {
		if err := b.refuse(e); err != nil {
			return err
		}
	}
	id := e.Namespace + "/" + e.Name
	if at, ok := b.events[id]; ok && time.Since(at) < time.Hour {
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "events"}, e.Name)
	}
	b.events[id] = time.Now()
	b.messages = append(b.messages, e.Message)
	return nil
}

func (b *fakeEvents) set(refuse func(e *corev1.Event) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = refuse
}

// takeCreated is the messages of all Events created since it was called last.
func (b *fakeEvents) takeCreated() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.messages
	b.messages = nil
	return m
}

// takeRequests is how many requests were sent since it was called last.
func (b *fakeEvents) takeRequests() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.requests
	b.requests = 0
	return n
}

// run is the Events of one process, at work in a bubble.
func (b *fakeEvents) run(t *testing.T, node string) (n *Events, log *logBuffer, stop func()) {
	log = &logBuffer{}
	n = newEvents(&clients{}, Options{Node: node, Log: log.logger()}, newMetrics())
	n.create = b.create
	return n, log, check.Run(t, n)
}

// eventBubble runs a test of the Events of the node n1 in a bubble.
func eventBubble(t *testing.T, test func(t *testing.T, b *fakeEvents, n *Events, log *logBuffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &fakeEvents{events: make(map[string]time.Time)}
		n, log, stop := b.run(t, "n1")
		defer stop()
		test(t, b, n, log)
	})
}

func eventOf(i int, message string) vip.Event {
	return vip.Event{Service: serviceKey(i), UID: "u", Reason: vip.NoAddress, Message: message}
}

// putEvents is a pass with these Events, and the second after it.
func putEvents(n *Events, want ...vip.Event) {
	n.Put(want)
	advance(time.Second)
}

// putWritten is a pass with these Events; it returns those that have been written.
func putWritten(n *Events, want ...vip.Event) []vip.Event {
	n.Put(want)
	return slices.DeleteFunc(slices.Clone(want), func(w vip.Event) bool {
		w.Message = vip.Shorten(w.Message, maxMessageBytes)
		n.mu.Lock()
		defer n.mu.Unlock()
		return !n.states[w].done
	})
}

func TestEventsAreWrittenOnce(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, _ *logBuffer) {
		a, c := eventOf(1, "a"), eventOf(2, "c")
		check.Equal(t, len(putWritten(n, a)), 0, "written before Run wrote it")
		for range 100 {
			putEvents(n, a)
		}
		putEvents(n, a, c)
		putEvents(n, c, a)
		have := putWritten(n, c, a)
		check.Same(t, []vip.Event{c, a}, have, "written")
		check.Same(t, []string{"a", "c"}, b.takeCreated(), "Events")
		check.Equal(t, b.takeRequests(), 2, "requests")
		other := a
		other.Occurrence = 7
		putEvents(n, c, a, other)
		check.Same(t, []string{"a"}, b.takeCreated(), "another occurrence")
	})
}

// TestEventsOfTheControlPlane: its VIP has no object, so a Warning about it is an Event on the Node.
func TestEventsOfTheControlPlane(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, _ *logBuffer) {
		var on []corev1.ObjectReference
		b.set(func(e *corev1.Event) error {
			on = append(on, e.InvolvedObject)
			return nil
		})
		of := vip.Event{Service: vip.Key{Name: "control-plane"}, Reason: vip.AddressRefused, Message: "m", Warning: true}
		normal := of
		normal.Reason, normal.Warning = vip.VIPAnnounced, false
		for range 10 {
			putEvents(n, normal, of)
		}
		check.Same(t, []string{"control-plane: m"}, b.takeCreated(), "Events")
		check.Same(t, []corev1.ObjectReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "n1"}}, on, "objects")
	})
}

// TestEventsThatRepeat: what ceases to hold and holds again is written again, but not each time if that goes on and on.
func TestEventsThatRepeat(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, _ *logBuffer) {
		a := eventOf(1, "a")
		for i := range 3 {
			putEvents(n, a)
			check.Equal(t, len(b.takeCreated()), 1, "Events, time %d", i+1)
			putEvents(n)
		}
		for range 1000 {
			putEvents(n, a)
			putEvents(n)
		}
		check.Equal(t, len(b.takeCreated())+3, maxRepeats, "Events in an hour for one that flaps")
		putEvents(n, a)
		check.Equal(t, len(putWritten(n, a)), 1, "one that was written often enough counts as written")
		for range 5 * 360 { // five hours, a second in each ten
			putEvents(n, a)
			putEvents(n)
			advance(8 * time.Second)
		}
		if got := len(b.takeCreated()); got < 4*maxRepeats || got > 6*maxRepeats {
			t.Errorf("%d Events in five hours for one that flaps, want about %d", got, 5*maxRepeats)
		}
		advance(2 * time.Hour)
		putEvents(n, eventOf(2, "b"))
		if n.states[a] != nil {
			t.Error("an Event that ceased to hold hours ago is still remembered")
		}
		b.takeCreated()
		putEvents(n, a)
		check.Equal(t, len(b.takeCreated()), 1, "Events hours later")
	})
}

// TestEventsThatLast: what herald status reads of Events alone is there for as long as it holds, though the API server
// keeps an Event for an hour, and no pass comes; other Events are written once.
func TestEventsThatLast(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, _ *logBuffer) {
		warning, offLink, once := eventOf(1, "a warning"), eventOf(1, "off the link"), eventOf(1, "once")
		warning.Warning, offLink.Reason = true, vip.AddressOffLink
		putEvents(n, warning, offLink, once)
		for _, want := range [][]string{{"a warning", "off the link", "once"}, {"a warning", "off the link"}, {"a warning", "off the link"}} {
			got := b.takeCreated()
			slices.Sort(got)
			check.Same(t, want, got, "within an hour")
			advance(rememberFor - 5*time.Minute)
		}
		b.takeCreated()
		putEvents(n, once)
		advance(3 * time.Hour)
		check.Same(t, []string(nil), b.takeCreated(), "once they are over")
	})
}

// TestEventsAfterARestart: a new process, and other nodes, find what was written.
func TestEventsAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeEvents{events: make(map[string]time.Time)}
		a := eventOf(1, "a")
		for i := range 3 {
			n, _, stop := b.run(t, fmt.Sprint("n", i))
			putEvents(n, a)
			check.Equal(t, len(putWritten(n, a)), 1, "counts as written")
			stop()
		}
		check.Same(t, []string{"a"}, b.takeCreated(), "Events")
	})
}

// TestEventsThatHeldBriefly: what held for a moment only is written as well.
func TestEventsThatHeldBriefly(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, _ *logBuffer) {
		n.Put([]vip.Event{eventOf(1, "held briefly")})
		n.Put(nil)
		advance(time.Second)
		check.Same(t, []string{"held briefly"}, b.takeCreated(), "")
	})
}

func TestEventsOfAServerThatFails(t *testing.T) {
	events := schema.GroupResource{Resource: "events"}
	terminating := apierrors.NewForbidden(events, "x", errors.New("namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	tests := []struct {
		name  string
		err   error
		tries [2]int // least and most in a minute
		after []string
		warns int
	}{
		{"unreachable", errors.New("connection refused"), [2]int{10, 30}, []string{"a"}, 0},
		{"overloaded", apierrors.NewTooManyRequests("slow down", 1), [2]int{10, 30}, []string{"a"}, 0},
		{"forbidden", apierrors.NewForbidden(events, "x", errors.New("no")), [2]int{8, 9}, []string{"a"}, 1},
		{"namespace deleted", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "default"), [2]int{1, 1}, nil, 0},
		{"namespace terminating", terminating, [2]int{1, 1}, nil, 0},
		{"invalid", apierrors.NewInvalid(schema.GroupKind{Kind: "Event"}, "x", nil), [2]int{1, 1}, nil, 1},
		{"time-out", &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGatewayTimeout,
			Reason: metav1.StatusReasonTimeout}}, [2]int{10, 30}, []string{"a"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &fakeEvents{events: make(map[string]time.Time)}
				b.set(func(*corev1.Event) error { return tt.err })
				n, log, stop := b.run(t, "n1")
				defer stop()
				putEvents(n, eventOf(1, "a"))
				advance(59 * time.Second)
				if got := b.takeRequests(); got < tt.tries[0] || got > tt.tries[1] {
					t.Errorf("%d requests in a minute, want %v", got, tt.tries)
				}
				check.Equal(t, log.count("level=WARN"), tt.warns, "warnings:\n%s", log)
				b.set(nil)
				advance(2 * refusedMax)
				check.Same(t, tt.after, b.takeCreated(), "when the server works again")
				putEvents(n, eventOf(2, "b"))
				check.Same(t, []string{"b"}, b.takeCreated(), "the next")
			})
		})
	}
}

// TestEventsOfAServerThatStarts: it knows of no rights yet.
func TestEventsOfAServerThatStarts(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, log *logBuffer) {
		b.set(refusedIn("default"))
		n.Put([]vip.Event{eventOf(1, "a")})
		advance(time.Second)
		b.set(nil)
		advance(time.Second)
		check.Same(t, []string{"a"}, b.takeCreated(), "")
		check.Equal(t, log.count("level=WARN"), 0, "warnings:\n%s", log)
	})
}

// TestEventNames: names are valid, and different for what is different.
func TestEventNames(t *testing.T) {
	n := newEvents(&clients{}, Options{Node: "n1"}, newMetrics())
	long := vip.Key{Namespace: "default", Name: strings.Repeat("a", 63)}
	base, state := vip.Event{Service: long, UID: "u", Reason: vip.VIPMoved, Message: "m", Occurrence: 1},
		eventState{occurrences: 1}
	variants := []func(*vip.Event, *eventState){
		func(*vip.Event, *eventState) {},
		func(x *vip.Event, _ *eventState) { x.UID = "v" },
		func(x *vip.Event, _ *eventState) { x.Reason = vip.VIPAnnounced },
		func(x *vip.Event, _ *eventState) { x.Message = "n" },
		func(x *vip.Event, _ *eventState) { x.Occurrence = 2 },
		func(_ *vip.Event, s *eventState) { s.occurrences = 2 },
	}
	var names []string
	for _, change := range variants {
		x, s := base, state
		change(&x, &s)
		name := n.newEvent(x, s).Name
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	check.Equal(t, len(slices.Compact(names)), len(variants), "names")
}

// eventsIn are n Events about different Services of a namespace.
func eventsIn(namespace string, n int) (all []vip.Event) {
	for i := range n {
		e := eventOf(i, fmt.Sprint(namespace, i))
		e.Service.Namespace = namespace
		all = append(all, e)
	}
	return all
}

// refusedIn refuses Events in one namespace, as admission does.
func refusedIn(namespace string) func(*corev1.Event) error {
	return func(e *corev1.Event) error {
		if e.Namespace == namespace {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, e.Name, errors.New("denied"))
		}
		return nil
	}
}

// TestEventsRefusedInOneNamespace: a namespace that refuses Events delays no Event in another. What still holds when
// Events are taken again is written then.
func TestEventsRefusedInOneNamespace(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, log *logBuffer) {
		b.set(refusedIn("full"))
		refused := eventsIn("full", 300)
		putEvents(n, refused...)
		for i := range 10 {
			if putEvents(n, slices.Concat(refused, eventsIn("web", i+1))...); len(b.takeCreated()) != 1 {
				t.Errorf("an Event of another namespace is not written within a second")
			}
		}
		advance(9 * time.Minute)
		if got := b.takeRequests(); got > 60 {
			t.Errorf("%d requests in nine minutes", got)
		}
		if got := log.count("level=WARN"); got != 1 || !strings.Contains(log.String(), "namespace=full") {
			t.Errorf("%d warnings, want one that names the namespace:\n%s", got, log)
		}
		b.set(nil)
		web := eventsIn("web", 11)
		putEvents(n, slices.Concat(refused, web)...)
		advance(2 * refusedMax)
		putEvents(n, slices.Concat(refused, web)...)
		advance(time.Minute)
		check.Equal(t, len(b.takeCreated()), 301, "Events when they are not refused any more")
	})
}

// TestEventsOfManyServices: a namespace with many Events to write delays no Event of another, and they are written slowly, and all.
func TestEventsOfManyServices(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, _ *logBuffer) {
		many := eventsIn("many", 3000)
		n.Put(many)
		for second := range 10 {
			advance(time.Second)
			if got, most := b.takeRequests(), 2*eventRate; got > most {
				t.Errorf("second %d: %d requests, want at most %d", second, got, most)
			}
		}
		b.takeCreated()
		n.Put(append(many, eventsIn("web", 3)...))
		advance(time.Second)
		if got := b.takeCreated(); !slices.Contains(got, "web2") {
			t.Errorf("the Events of another namespace are not written within a second, but %q", got)
		}
		advance(5 * time.Minute)
		check.Equal(t, len(putWritten(n, many...)), len(many), "written")
	})
}

// TestEventsBeyondTheBudget: of very many Events about one Service the first are written, and then one a minute, the
// last one too. The others are dropped, and counted.
func TestEventsBeyondTheBudget(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, _ *logBuffer) {
		for i := range 3 * maxRemembered { // ten minutes
			n.Put([]vip.Event{eventOf(1, fmt.Sprint("a", i)), eventOf(2, "b")})
			advance(20 * time.Millisecond)
			n.mu.Lock()
			remembered := len(n.states)
			n.mu.Unlock()
			if remembered > maxRemembered+10 {
				t.Fatalf("%d Events are remembered", remembered)
			}
		}
		advance(3 * time.Minute)
		got := b.takeCreated()
		dropped := check.Metric(t, "herald_events_total given_up", n.metrics.events)
		check.Equal(t, len(got)+int(dropped), 3*maxRemembered+1, "Events that were written or dropped")
		if len(got) < serviceBurst || len(got) > serviceBurst+30 {
			t.Errorf("%d Events were written for %d about one Service", len(got), 3*maxRemembered)
		}
		if !slices.Contains(got, "b") || !slices.Contains(got, fmt.Sprint("a", 3*maxRemembered-1)) {
			t.Errorf("written: %q, want the last one too", got)
		}
	})
}

// TestEventsWhileUnavailable: however many Events can't be written, one namespace does not wait for another, and all
// that hold are written in the end.
func TestEventsWhileUnavailable(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, _ *logBuffer) {
		b.set(func(*corev1.Event) error { return errors.New("connection refused") })
		all := slices.Concat(eventsIn("many", 20000), eventsIn("web", 100))
		putEvents(n, all...)
		b.set(nil)
		advance(unavailableMax + 15*time.Second)
		check.Equal(t, len(slices.DeleteFunc(b.takeCreated(), func(m string) bool { return !strings.HasPrefix(m, "web") })), 100, "Events of the other namespace")
		advance(20 * time.Minute)
		check.Equal(t, len(putWritten(n, all...)), len(all), "written")
	})
}

// TestEventsForget: nothing is kept of Services and namespaces of which nothing was written for long.
func TestEventsForget(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, _ *logBuffer) {
		b.set(refusedIn("full"))
		putEvents(n, slices.Concat(eventsIn("web", 100), eventsIn("full", 1))...)
		advance(time.Minute)
		putEvents(n)
		advance(rememberFor)
		putEvents(n, eventOf(1, "a"))
		advance(2 * time.Minute)
		putEvents(n, eventOf(1, "b"))
		if len(n.budgets) > 1 || len(n.refused) > 0 || len(n.states) > 2 || len(n.turns.all) > 0 {
			t.Errorf("%d Services, %d namespaces, %d Events, %d turns; want what was written last", len(n.budgets),
				len(n.refused), len(n.states), len(n.turns.all))
		}
	})
}
