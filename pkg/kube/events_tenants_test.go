package kube

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
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
		if got := len(b.takeCreated()); got != 301 {
			t.Errorf("%d Events when they are not refused any more, want 301", got)
		}
	})
}

// TestEventsOfManyServices: a namespace with many Events to write delays no Event of another.
func TestEventsOfManyServices(t *testing.T) {
	eventBubble(t, func(t *testing.T, b *fakeEvents, n *Events, _ *logBuffer) {
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
		dropped := sum(t, []prometheus.Collector{n.metrics.events}, "herald_events_total", "given_up")
		if want := 3*maxRemembered + 1; len(got)+int(dropped) != want {
			t.Errorf("%d Events were written and %v dropped, want %d in all", len(got), dropped, want)
		}
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
		if got := slices.DeleteFunc(b.takeCreated(), func(m string) bool { return !strings.HasPrefix(m, "web") }); len(got) != 100 {
			t.Errorf("%d Events of the other namespace are written, want 100", len(got))
		}
		advance(20 * time.Minute)
		if have := putWritten(n, all...); len(have) != len(all) {
			t.Errorf("%d of %d written", len(have), len(all))
		}
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
