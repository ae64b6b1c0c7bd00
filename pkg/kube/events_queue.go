package kube

import (
	"maps"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Bounds of what one namespace or one Service costs, and of memory.
const (
	// maxWaiting is how many Events wait to be written, of all namespaces. Beyond that the
	// namespace with the most loses its last one.
	maxWaiting = 10000
	// A Service has serviceBurst Events written one by one, and gains one more each combineFor.
	// Beyond that those of one reason are combined into one, which is written after combineFor.
	serviceBurst = 25
	combineFor   = time.Minute
	// giveUpAfter is how long a namespace refuses Events until those that wait are dropped.
	giveUpAfter = 5 * time.Minute
)

// An eventQueue is the Events that wait to be written, each namespace's by itself: they are
// written in turns, and one that refuses Events keeps nobody else's waiting. It is for one
// goroutine.
type eventQueue struct {
	namespaces map[string]*namespaceEvents
	turns      []*namespaceEvents // those in which Events wait, by whose turn it is
	services   map[vip.Key]*eventBudget
	waiting    int                // in all namespaces
	drop       func(*queuedEvent) // is called for each Event that is given up
	swept      time.Time
}

// A namespaceEvents is the Events of one namespace that wait.
type namespaceEvents struct {
	name         string
	events       []*queuedEvent
	combined     map[similarEvents]*queuedEvent // that are not due yet
	notBefore    time.Time
	pause        time.Duration
	refusedSince time.Time // zero: the last one was taken
}

// An eventBudget is how many Events of a Service are written one by one, at a time.
type eventBudget struct {
	left int
	at   time.Time // when left was last raised
}

// similarEvents is what Events that are combined have in common.
type similarEvents struct {
	service vip.Key
	uid     string
	reason  vip.Reason
}

func newEventQueue(drop func(*queuedEvent)) *eventQueue {
	return &eventQueue{namespaces: map[string]*namespaceEvents{}, services: map[vip.Key]*eventBudget{}, drop: drop}
}

// add adds an Event, at the end of its namespace's or combined with others of its Service and reason.
func (q *eventQueue) add(e *queuedEvent, now time.Time) {
	q.waiting++
	n := q.namespaces[e.Service.Namespace]
	if n == nil {
		n = &namespaceEvents{name: e.Service.Namespace, combined: map[similarEvents]*queuedEvent{}}
		q.namespaces[n.name] = n
	}
	if q.takeFromBudget(e.Service, now) {
		q.append(n, e)
	} else {
		q.combine(n, e, now)
	}
	if q.waiting > maxWaiting {
		q.dropLast()
	}
}

func (q *eventQueue) addAll(events []*queuedEvent, now time.Time) {
	for _, e := range events {
		q.add(e, now)
	}
}

// takeFromBudget reports whether an Event of the Service is written by itself.
func (q *eventQueue) takeFromBudget(service vip.Key, now time.Time) bool {
	b := q.services[service]
	if b == nil {
		b = &eventBudget{left: serviceBurst, at: now}
		q.services[service] = b
	}
	b.fill(now)
	if b.left == 0 {
		return false
	}
	b.left--
	return true
}

// fill adds one for each combineFor that has passed.
func (b *eventBudget) fill(now time.Time) {
	n := int(now.Sub(b.at) / combineFor)
	b.left, b.at = min(b.left+n, serviceBurst), b.at.Add(time.Duration(n)*combineFor)
}

// combine adds e to those like it that wait for combineFor to pass.
func (q *eventQueue) combine(n *namespaceEvents, e *queuedEvent, now time.Time) {
	key := similarEvents{e.Service, e.UID, e.Reason}
	if c := n.combined[key]; c != nil {
		c.progress.Store(eventWritten) // as a part of e
		e.similar, e.first, e.due = c.similar+1, c.first, c.due
		q.waiting--
	} else {
		e.first, e.due = e.began, now.Add(combineFor)
	}
	n.combined[key] = e
}

// append adds e to the end of n.
func (q *eventQueue) append(n *namespaceEvents, e *queuedEvent) {
	if n.events = append(n.events, e); len(n.events) == 1 {
		q.turns = append(q.turns, n)
	}
}

// dropLast gives up an Event of the namespace with the most: the last one, or if all have been combined, one of those.
func (q *eventQueue) dropLast() {
	var most *namespaceEvents
	for _, n := range q.namespaces {
		if most == nil || len(n.events)+len(n.combined) > len(most.events)+len(most.combined) {
			most = n
		}
	}
	if last := len(most.events) - 1; last >= 0 {
		q.giveUp(most.events[last])
		most.events[last] = nil
		q.setEvents(most, most.events[:last])
		return
	}
	for key, e := range most.combined {
		q.giveUp(e)
		delete(most.combined, key)
		return
	}
}

func (q *eventQueue) giveUp(e *queuedEvent) {
	q.waiting--
	q.drop(e)
}

// setEvents sets what waits in n, which has no turn if that is nothing.
func (q *eventQueue) setEvents(n *namespaceEvents, events []*queuedEvent) {
	if n.events = events; len(events) == 0 {
		n.events = nil
		q.turns = slices.DeleteFunc(q.turns, func(o *namespaceEvents) bool { return o == n })
	}
}

// next returns the first Event of the namespace whose turn it is, and leaves it there until
// taken or refused is called. Nil is none before wait has passed.
func (q *eventQueue) next(now time.Time) (e *queuedEvent, wait time.Duration) {
	wait = combineFor
	q.sweep(now)
	for i, n := range q.turns {
		if d := n.notBefore.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		q.turns = append(slices.Delete(q.turns, i, i+1), n)
		return n.events[0], 0
	}
	return nil, min(wait, q.untilDue(now))
}

// untilDue is when sweep next has something to do: a second if Events have been combined.
func (q *eventQueue) untilDue(now time.Time) time.Duration {
	for _, n := range q.namespaces {
		if len(n.combined) > 0 {
			return max(0, q.swept.Add(time.Second).Sub(now))
		}
	}
	return combineFor
}

// sweep ends once a second the waiting of combined Events that are due, and forgets Services and
// namespaces of which nothing need be known any more.
func (q *eventQueue) sweep(now time.Time) {
	if now.Sub(q.swept) < time.Second {
		return
	}
	q.swept = now
	maps.DeleteFunc(q.services, func(_ vip.Key, b *eventBudget) bool {
		b.fill(now)
		return b.left == serviceBurst
	})
	maps.DeleteFunc(q.namespaces, func(_ string, n *namespaceEvents) bool {
		for key, e := range n.combined {
			if !now.Before(e.due) {
				delete(n.combined, key)
				q.append(n, e)
			}
		}
		return len(n.events)+len(n.combined) == 0 && now.Sub(n.notBefore) > giveUpAfter
	})
}

// taken removes e, which next has returned and which is dealt with.
func (q *eventQueue) taken(e *queuedEvent) {
	n := q.namespaces[e.Service.Namespace]
	n.refusedSince, n.pause = time.Time{}, 0
	q.waiting--
	n.events[0] = nil
	q.setEvents(n, n.events[1:])
}

// refused notes that the namespace of e, which next has returned, does not take it: nothing of that namespace is tried
// before a pause, which doubles from least to most. After giveUpAfter all that waits there is given up.
func (q *eventQueue) refused(e *queuedEvent, now time.Time, least, most time.Duration) {
	n := q.namespaces[e.Service.Namespace]
	if n.refusedSince.IsZero() {
		n.refusedSince = now
	}
	n.pause = max(least, min(2*n.pause, most))
	n.notBefore = now.Add(n.pause)
	if now.Sub(n.refusedSince) < giveUpAfter {
		return
	}
	for _, e := range n.events {
		q.giveUp(e)
	}
	q.setEvents(n, nil)
}
