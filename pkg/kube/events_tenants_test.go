package kube

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/vip"
)

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

// TestEventsRefusedInOneNamespace: a namespace that refuses Events delays no Event in another. What it
// refuses for some minutes is dropped and counted, and written if it still holds when Events are taken again.
func TestEventsRefusedInOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeEvents{events: make(map[string]time.Time)}
		n, log, stop := b.run(t, "n1")
		defer stop()
		b.set(refusedIn("full"))
		refused := eventsIn("full", 300)
		putEvents(n, refused...)
		for i := range 10 {
			if putEvents(n, slices.Concat(refused, eventsIn("web", i+1))...); len(b.takeCreated()) != 1 {
				t.Errorf("an Event of another namespace is not written within a second")
			}
		}
		advance(10 * time.Minute)
		if got := b.takeRequests(); got > 60 {
			t.Errorf("%d requests in ten minutes", got)
		}
		if got := sum(t, []prometheus.Collector{n.metrics.events}, "herald_events_total", "given_up"); got < 300 || got > 310 {
			t.Errorf("%v Events were given up, want about 300", got)
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
		if got := len(b.takeCreated()); got != 301 {
			t.Errorf("%d Events when they are not refused any more, want 301", got)
		}
	})
}

// TestEventsOfManyServices: a namespace with many Events to write delays no Event of another.
func TestEventsOfManyServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeEvents{events: make(map[string]time.Time)}
		n, _, stop := b.run(t, "n1")
		defer stop()
		many := eventsIn("many", 3000)
		n.Put(many)
		advance(10 * time.Second)
		b.takeCreated()
		n.Put(append(many, eventsIn("web", 3)...))
		advance(time.Second)
		if got := b.takeCreated(); !slices.Contains(got, "web2") {
			t.Errorf("the Events of another namespace are not written within a second, but %q", got)
		}
		advance(5 * time.Minute)
		if have := putWritten(n, many...); len(have) != len(many) {
			t.Errorf("%d of %d written", len(have), len(many))
		}
	})
}

// TestEventsAreCombined: of very many Events about one Service the first are written one by one, and then one a
// minute and reason that says how many they were.
func TestEventsAreCombined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeEvents{events: make(map[string]time.Time)}
		n, _, stop := b.run(t, "n1")
		defer stop()
		events, count := 0, int32(0)
		b.set(func(e *corev1.Event) error {
			events++
			count += e.Count
			if combined := strings.HasPrefix(e.Message, "(combined from similar events): "); combined != (e.Count > 1) || combined && !e.FirstTimestamp.Before(&e.LastTimestamp) {
				t.Errorf("Event %q, count %d from %v to %v", e.Message, e.Count, e.FirstTimestamp, e.LastTimestamp)
			}
			return nil
		})
		for i := range 3 * maxRemembered { // ten minutes
			n.Put([]vip.Event{eventOf(1, fmt.Sprint("a", i)), eventOf(2, "b")})
			advance(20 * time.Millisecond)
			if len(n.states) > maxRemembered+10 {
				t.Fatalf("%d Events are remembered", len(n.states))
			}
		}
		advance(2 * time.Minute)
		if want := int32(3*maxRemembered + 1); count != want {
			t.Errorf("%d Events were counted, want %d", count, want)
		}
		if events < serviceBurst+10 || events > serviceBurst+30 {
			t.Errorf("%d Events were written for %d about one Service", events, 3*maxRemembered)
		}
		if got := b.takeCreated(); !slices.Contains(got, "b") || !strings.Contains(strings.Join(got, " "), fmt.Sprint("a", 3*maxRemembered-1)) {
			t.Errorf("written: %q, want the last one too", got)
		}
	})
}

// TestEventsAreBounded: of Events that can't be written a bounded number is kept, and the namespace with the most loses
// its last ones first.
func TestEventsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &fakeEvents{events: make(map[string]time.Time)}
		n, _, stop := b.run(t, "n1")
		defer stop()
		b.set(func(*corev1.Event) error { return errors.New("connection refused") })
		all := slices.Concat(eventsIn("web", 100), eventsIn("many", 2*maxWaiting))
		putEvents(n, all...)
		if got := sum(t, []prometheus.Collector{n.metrics.events}, "herald_events_total", "given_up"); got != maxWaiting+100 {
			t.Errorf("%v Events were dropped, want %d", got, maxWaiting+100)
		}
		b.set(nil)
		advance(unavailableMax + 15*time.Second)
		if got := slices.DeleteFunc(b.takeCreated(), func(m string) bool { return !strings.HasPrefix(m, "web") }); len(got) != 100 {
			t.Errorf("%d Events of the other namespace are written, want 100", len(got))
		}
		for range 100 { // those that were dropped are written as well
			putEvents(n, all...)
			advance(time.Minute)
		}
		if have := putWritten(n, all...); len(have) != len(all) {
			t.Errorf("%d of %d written", len(have), len(all))
		}
	})
}

// TestEventQueueForgets: nothing is kept of Services and namespaces of which nothing was written for long.
func TestEventQueueForgets(t *testing.T) {
	q, now := newEventQueue(func(*queuedEvent) {}), time.Unix(1e9, 0)
	for i, e := range slices.Concat(eventsIn("web", 100), eventsIn("other", 1)) {
		q.add(&queuedEvent{Event: e, progress: new(atomic.Int32)}, now)
		if i == 50 {
			o, _ := q.next(now)
			q.refused(o, now, time.Minute, time.Minute)
		}
	}
	for range 10000 {
		now = now.Add(time.Second)
		if o, _ := q.next(now); o != nil {
			q.taken(o)
		}
	}
	if len(q.namespaces) != 0 || len(q.services) != 0 || len(q.turns) != 0 || q.waiting != 0 {
		t.Errorf("%d namespaces, %d Services, %d turns, %d waiting; want none", len(q.namespaces), len(q.services), len(q.turns), q.waiting)
	}
}
