package kube

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

const (
	// writesAtATime is how many Services are written at a time: moving VIPs' leases must not wait.
	writesAtATime = 6
	// answersPerWrite is after how many answers a namespace may have one more write under way.
	answersPerWrite = 8
	// keepLimit is how long after a failed write a namespace is limited.
	keepLimit = 5 * time.Minute
)

// turns orders a workqueue: namespaces take turns, so that a thousand items of one delay others by one.
//
// A webhook may let a namespace's writes hang. So after a failure it has one write under way, and one more after
// every answersPerWrite answers.
type turns[T comparable] struct {
	namespace func(T) string

	mu   sync.Mutex // guards what follows: the queue calls Push, Len and Pop, its workers call done
	all  map[string]*turn[T]
	next []*turn[T] // those in which items wait, by whose turn it is
}

// A turn is what waits of one namespace, and how its writes went.
type turn[T comparable] struct {
	items    []T
	underWay int
	failedAt time.Time // zero: none failed
	answered int       // since
}

var _ workqueue.Queue[int] = &turns[int]{}

func newTurns[T comparable](namespace func(T) string) *turns[T] {
	return &turns[T]{namespace: namespace, all: make(map[string]*turn[T])}
}

func (n *turn[T]) limit() int {
	if n.failedAt.IsZero() {
		return writesAtATime
	}
	return 1 + n.answered/answersPerWrite
}

// Touch implements workqueue.Queue.
func (q *turns[T]) Touch(T) {}

// Push implements workqueue.Queue.
func (q *turns[T]) Push(x T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.all[q.namespace(x)]
	if n == nil {
		n = &turn[T]{}
		q.all[q.namespace(x)] = n
	}
	if n.items = append(n.items, x); len(n.items) == 1 {
		q.next = append(q.next, n)
	}
}

// Len implements workqueue.Queue: how many namespaces have an item that may begin.
func (q *turns[T]) Len() (able int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, n := range q.next {
		if n.underWay < n.limit() {
			able++
		}
	}
	return able
}

// Pop implements workqueue.Queue.
func (q *turns[T]) Pop() (x T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.IndexFunc(q.next, func(n *turn[T]) bool { return n.underWay < n.limit() })
	n := q.next[at]
	x, n.items = n.items[0], n.items[1:]
	n.underWay++
	if q.next = slices.Delete(q.next, at, at+1); len(n.items) > 0 {
		q.next = append(q.next, n)
	}
	return x
}

type outcome int

const (
	nothingSent outcome = iota
	answered            // by the API server: taken, or refused because of the object
	failed              // not taken, for another reason
)

// done ends the work on an item that Pop returned.
func (q *turns[T]) done(x T, o outcome) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.all[q.namespace(x)]
	n.underWay--
	switch o {
	case answered:
		n.answered++
	case failed:
		n.failedAt, n.answered = time.Now(), 0
	}
	maps.DeleteFunc(q.all, func(_ string, n *turn[T]) bool {
		if n.limit() >= writesAtATime || time.Since(n.failedAt) > keepLimit {
			n.failedAt, n.answered = time.Time{}, 0
		}
		return n.failedAt.IsZero() && n.underWay == 0 && len(n.items) == 0
	})
}
