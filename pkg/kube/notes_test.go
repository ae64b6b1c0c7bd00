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

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/heraldvip/herald/pkg/vip"
)

// A board keeps Events for an hour, as the API server does.
type board struct {
	mu       sync.Mutex
	events   map[string]time.Time
	messages []string // of the Events created, in order
	requests int
	refuse   func(e *corev1.Event) error
}

func (b *board) create(_ context.Context, e *corev1.Event) error {
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

func (b *board) set(refuse func(e *corev1.Event) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = refuse
}

// said is the messages of all Events created since it was called last.
func (b *board) said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.messages
	b.messages = nil
	return m
}

// tried is how many requests were sent since it was called last.
func (b *board) tried() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.requests
	b.requests = 0
	return n
}

// herald is Notes of one process, at work in a bubble.
func (b *board) herald(t *testing.T, node string) (n *Notes, log *journal, stop func()) {
	log = &journal{}
	n = newNotes(&api{}, Options{Node: node, Log: log.logger()}, newMetrics())
	n.create = b.create
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Run(ctx)
	}()
	return n, log, func() {
		cancel()
		<-done
	}
}

func noteOf(i int, message string) vip.Event {
	return vip.Event{Service: web(i), UID: "u", Reason: vip.NoAddress, Message: message}
}

// tell is a pass with these Notes, and the second after it.
func tell(t *testing.T, n *Notes, want ...vip.Event) {
	t.Helper()
	if _, err := n.Set(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	idle(time.Second)
}

func TestNotesAreSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{events: make(map[string]time.Time)}
		n, _, stop := b.herald(t, "n1")
		defer stop()
		a, c := noteOf(1, "a"), noteOf(2, "c")
		if have, _ := n.Set(t.Context(), []vip.Event{a}); len(have) != 0 {
			t.Errorf("said before it was: %v", have)
		}
		for range 100 {
			tell(t, n, a)
		}
		tell(t, n, a, c)
		tell(t, n, c, a)
		have, _ := n.Set(t.Context(), []vip.Event{c, a})
		if diff := cmp.Diff([]vip.Event{c, a}, have); diff != "" {
			t.Errorf("said (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"a", "c"}, b.said()); diff != "" {
			t.Errorf("Events (-want +got):\n%s", diff)
		}
		if got := b.tried(); got != 2 {
			t.Errorf("%d requests, want 2", got)
		}
		other := a
		other.Occurrence = 7
		tell(t, n, c, a, other)
		if diff := cmp.Diff([]string{"a"}, b.said()); diff != "" {
			t.Errorf("another occasion (-want +got):\n%s", diff)
		}
	})
}

// TestNotesComeBack: what ceases to hold and holds again is said again, but not
// each time if that goes on and on.
func TestNotesComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{events: make(map[string]time.Time)}
		n, _, stop := b.herald(t, "n1")
		defer stop()
		a := noteOf(1, "a")
		for i := range 3 {
			tell(t, n, a)
			if got := len(b.said()); got != 1 {
				t.Errorf("time %d: %d Events, want 1", i+1, got)
			}
			tell(t, n)
		}
		for range 1000 {
			tell(t, n, a)
			tell(t, n)
		}
		if got := len(b.said()) + 3; got != repeatMost {
			t.Errorf("%d Events in an hour for a Note that flaps, want %d", got, repeatMost)
		}
		tell(t, n, a)
		if have, _ := n.Set(t.Context(), []vip.Event{a}); len(have) != 1 {
			t.Error("a Note that was said often enough is not held to be said")
		}
		for range 5 * 360 { // five hours, a second in each ten
			tell(t, n, a)
			tell(t, n)
			idle(8 * time.Second)
		}
		if got := len(b.said()); got < 4*repeatMost || got > 6*repeatMost {
			t.Errorf("%d Events in five hours for a Note that flaps, want about %d", got, 5*repeatMost)
		}
		idle(2 * time.Hour)
		tell(t, n, noteOf(2, "b"))
		n.mu.Lock()
		if n.notes[a] != nil {
			t.Error("a Note that ceased to hold hours ago is still remembered")
		}
		n.mu.Unlock()
		b.said()
		tell(t, n, a)
		if got := len(b.said()); got != 1 {
			t.Errorf("hours later: %d Events, want 1", got)
		}
	})
}

// TestNotesAfterARestart: a new process, and other nodes, find what was said.
func TestNotesAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{events: make(map[string]time.Time)}
		a := noteOf(1, "a")
		for i := range 3 {
			n, _, stop := b.herald(t, fmt.Sprint("n", i))
			tell(t, n, a)
			if have, _ := n.Set(t.Context(), []vip.Event{a}); len(have) != 1 {
				t.Error("not held to be said")
			}
			stop()
		}
		if diff := cmp.Diff([]string{"a"}, b.said()); diff != "" {
			t.Errorf("Events (-want +got):\n%s", diff)
		}
	})
}

// TestNotesDoNotStorm: very many Notes are said slowly, and all.
func TestNotesDoNotStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{events: make(map[string]time.Time)}
		n, _, stop := b.herald(t, "n1")
		defer stop()
		var want []vip.Event
		for i := range 2000 {
			want = append(want, noteOf(i, fmt.Sprint(i)))
		}
		tell(t, n, want...)
		for second := range 20 {
			if got, most := b.tried(), 2*eventRate; got > most {
				t.Errorf("second %d: %d requests, want at most %d", second, got, most)
			}
			idle(time.Second)
		}
		idle(2 * time.Minute)
		if have, _ := n.Set(t.Context(), want); len(have) != len(want) {
			t.Errorf("%d of %d said", len(have), len(want))
		}
	})
}

// TestNotesThatPass: what held for a moment only is said as well.
func TestNotesThatPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{events: make(map[string]time.Time)}
		n, _, stop := b.herald(t, "n1")
		defer stop()
		n.Set(t.Context(), []vip.Event{noteOf(1, "gone at once")})
		n.Set(t.Context(), nil)
		idle(time.Second)
		if diff := cmp.Diff([]string{"gone at once"}, b.said()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestNotesOfAServerThatFails(t *testing.T) {
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
		{"away", errors.New("connection refused"), [2]int{10, 30}, []string{"a"}, 0},
		{"overloaded", apierrors.NewTooManyRequests("slow down", 1), [2]int{10, 30}, []string{"a"}, 0},
		{"forbidden", apierrors.NewForbidden(events, "x", errors.New("no")), [2]int{2, 3}, []string{"a"}, 1},
		{"namespace gone", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "default"), [2]int{1, 1}, nil, 0},
		{"namespace going", terminating, [2]int{1, 1}, nil, 0},
		{"invalid", apierrors.NewInvalid(schema.GroupKind{Kind: "Event"}, "x", nil), [2]int{1, 1}, nil, 1},
		{"time-out", &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusGatewayTimeout, Reason: metav1.StatusReasonTimeout}}, [2]int{10, 30}, []string{"a"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &board{events: make(map[string]time.Time)}
				b.set(func(*corev1.Event) error { return tt.err })
				n, log, stop := b.herald(t, "n1")
				defer stop()
				tell(t, n, noteOf(1, "a"))
				idle(59 * time.Second)
				if got := b.tried(); got < tt.tries[0] || got > tt.tries[1] {
					t.Errorf("%d requests in a minute, want %v", got, tt.tries)
				}
				if got := log.count("level=WARN"); got != tt.warns {
					t.Errorf("%d warnings, want %d:\n%s", got, tt.warns, log)
				}
				b.set(nil)
				idle(2 * refusedMost)
				if diff := cmp.Diff(tt.after, b.said()); diff != "" {
					t.Errorf("when the server is well again (-want +got):\n%s", diff)
				}
				tell(t, n, noteOf(2, "b"))
				if diff := cmp.Diff([]string{"b"}, b.said()); diff != "" {
					t.Errorf("the next (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestNotesQueueIsBounded: Notes that find no room are said when there is some.
func TestNotesQueueIsBounded(t *testing.T) {
	n := newNotes(&api{}, Options{Node: "n1"}, newMetrics())
	var want []vip.Event
	for i := range eventQueue + 10 {
		want = append(want, noteOf(i, "x"))
	}
	n.Set(t.Context(), want)
	if got := len(n.queue); got != eventQueue {
		t.Fatalf("%d in the queue, want %d", got, eventQueue)
	}
	for range 20 {
		x, _ := n.next()
		n.finish(x)
	}
	have, _ := n.Set(t.Context(), want)
	if len(have) != 20 || len(n.queue) != eventQueue-10 {
		t.Errorf("%d said, %d in the queue; want 20 and %d", len(have), len(n.queue), eventQueue-10)
	}
}

// TestEventNames: names are valid, and different for what is different.
func TestEventNames(t *testing.T) {
	n := newNotes(&api{}, Options{Node: "n1"}, newMetrics())
	long := vip.Key{Namespace: "default", Name: strings.Repeat("a", 63)}
	base := note{Event: vip.Event{Service: long, UID: "u", Reason: vip.VIPMoved, Message: "m", Occurrence: 1}, times: 1}
	variants := []func(*note){
		func(*note) {},
		func(x *note) { x.UID = "v" },
		func(x *note) { x.Reason = vip.VIPAnnounced },
		func(x *note) { x.Message = "n" },
		func(x *note) { x.Occurrence = 2 },
		func(x *note) { x.times = 2 },
	}
	var names []string
	for _, change := range variants {
		x := base
		change(&x)
		name := n.event(&x).Name
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			t.Errorf("%s: %v", name, problems)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	if got := len(slices.Compact(names)); got != len(variants) {
		t.Errorf("%d names for %d Events", got, len(variants))
	}
}

// BenchmarkNotes: a pass with 10 000 Notes that have all been said.
func BenchmarkNotes(b *testing.B) {
	for _, same := range []bool{true, false} {
		b.Run(fmt.Sprintf("notes=10000/same=%v", same), func(b *testing.B) {
			n := newNotes(&api{}, Options{Node: "n1"}, newMetrics())
			var want []vip.Event
			for i := range 10000 {
				want = append(want, noteOf(i, fmt.Sprint("node n1 announces ", i)))
			}
			n.Set(b.Context(), want)
			for _, x := range n.notes {
				x.said = true
			}
			n.have = nil
			for b.Loop() {
				if !same {
					want[0].Occurrence++
				}
				n.Set(b.Context(), slices.Clone(want))
			}
		})
	}
}
