package kube

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// cacheTimeout is when a write is repeated whose result the cache does not show.
	cacheTimeout   = 10 * time.Second
	rejectedMin    = time.Second // before a write that was rejected is tried again; doubles
	rejectedMax    = time.Minute
	unavailableMin = 250 * time.Millisecond // without writes when the API server takes none; doubles
	unavailableMax = 5 * time.Second
	// What somebody else changes is corrected at once so often, then each rewriteInterval, until left alone for
	// rewritesForgotten.
	promptRewrites    = 3
	rewriteInterval   = 5 * time.Second
	rewritesForgotten = time.Minute
	// toldAgain is how long a rejection's first answer stands: answers may differ, and each condition is a new version.
	toldAgain = 10 * time.Minute
)

type serviceState struct {
	errands [kinds]errand
	tried   time.Time // when the last write began
	// of the last write answered and not rejected: the cache must show another first
	version string
	own     string // the version that the last write has made

	rewrites    int // how often somebody else undid, in a row, what was written
	rewrittenAt time.Time
	foreign     string // the version that was counted last
}

// An errand is what is wanted of one kind, and what became of it.
type errand struct {
	want wish   // that the cache did not show at the last Put; zero: none
	put  uint64 // the last Put that named the Service

	rejections int    // in a row
	rejected   string // the version for which the last was
	notBefore  time.Time
	toldAt     time.Time

	written wish // by the last write that went through
}

// A pause is a time in which the API server takes no writes.
type pause struct {
	until  time.Time
	length time.Duration // of the last one; 0 if the API server answers
	denied bool          // that permissions are missing is logged
	warned time.Time     // when another error was last logged as a warning
}

func (w wish) same(x wish) bool {
	if w.address != nil && x.address != nil {
		a, b := w.address, x.address
		return a.UID == b.UID && slices.Equal(a.Addresses, b.Addresses) && a.Pool == b.Pool && a.Remove == b.Remove
	}
	return w.address == x.address && reflect.DeepEqual(w.status, x.status)
}

// take sets what is wanted; zero if the cache shows it. s.mu is held.
func (s *Statuses) take(k vip.Key, kind int, w wish) {
	x := s.states[k]
	if x == nil {
		if w == (wish{}) {
			return
		}
		x = &serviceState{}
		s.states[k] = x
	}
	e := &x.errands[kind]
	if e.put = s.puts[kind]; w == (wish{}) {
		s.forget(k, kind)
		return
	}
	if !e.want.same(w) {
		e.rejections, e.notBefore = 0, time.Time{}
	}
	e.want = w
	s.queue.Add(k)
}

// drop ends what the last Put of a kind did not name. s.mu is held.
func (s *Statuses) drop(kind int) {
	for k, x := range s.states {
		e := &x.errands[kind]
		if e.put == s.puts[kind] {
			continue
		}
		if e.put == s.puts[kind]-1 {
			s.queue.Add(k) // choose forgets it now or soon
		}
		s.forget(k, kind)
		// A Plan has an address, or conditions alone, only while the cache lacks them: so if somebody else changes them they
		// are wanted again, and what was written is remembered until choose forgets it.
		if e.written.status != nil && !e.written.status.ConditionsOnly {
			e.written = wish{}
		}
	}
}

// forget ends what is wanted of a Service. s.mu is held.
func (s *Statuses) forget(k vip.Key, kind int) {
	e := &s.states[k].errands[kind]
	if e.want != (wish{}) {
		e.want, e.rejections, e.notBefore = wish{}, 0, time.Time{}
		s.queue.Add(k)
	}
	s.tell(s.refused[kind], k, "")
}

// Run writes until ctx ends, and the writes under way have ended.
func (s *Statuses) Run(ctx context.Context) error {
	q := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[vip.Key]{Queue: s.queue})
	defer context.AfterFunc(ctx, q.ShutDown)()
	var workers sync.WaitGroup
	for range writesAtATime {
		workers.Go(func() {
			for {
				k, ended := q.Get()
				if ended {
					return
				}
				did, again := s.look(ctx, k)
				if s.turns.done(k, did); did != nothingSent {
					q.Add(k) // Done wakes another worker then: more may be under way now
				} else if again > 0 {
					q.AddAfter(k, again)
				}
				q.Done(k)
			}
		})
	}
	workers.Wait()
	return nil
}

// look writes what is due, and returns the outcome, and when again.
func (s *Statuses) look(ctx context.Context, k vip.Key) (did outcome, again time.Duration) {
	if ctx.Err() != nil {
		return nothingSent, 0
	}
	o, kind, want, again := s.choose(k, time.Now())
	if want == (wish{}) {
		return nothingSent, again
	}
	result, now, err := s.write(ctx, o, want)
	s.metrics.statuses.WithLabelValues(string(result)).Inc()
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.states[k]
	if now != nil {
		x.own = now.version
	}
	if result == unavailable {
		s.pauseWrites(err)
		return failed, 0
	}
	s.rest.length, s.rest.denied = 0, false
	if result == rejected {
		s.reject(o, kind, want, err)
		return answered, 0
	}
	if x.version = o.version; result != conflict {
		s.tell(s.refused[kind], k, "")
	}
	if result == written {
		x.errands[kind].written, x.errands[kind].rejections = want, 0
		s.log.Debug("status written", "service", k.String())
	}
	return answered, 0
}

// choose returns what to write now, or zero and when to look.
func (s *Statuses) choose(k vip.Key, now time.Time) (o *cachedService, kind int, want wish, again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.states[k]
	if x == nil {
		return nil, 0, wish{}, 0
	}
	o = s.cached(k)
	var next time.Time
	earlier := func(t time.Time) {
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	switch forgotten := x.rewrittenAt.Add(rewritesForgotten); {
	case x.rewrites == 0:
	case now.Before(forgotten):
		earlier(forgotten)
	default:
		x.rewrites = 0
		s.tell(s.fights, k, "")
	}
	idle := x.rewrites == 0
	for kind := range x.errands {
		e := &x.errands[kind]
		idle = idle && e.want == (wish{}) && (e.written == (wish{}) || e.put != s.puts[kind] &&
			now.Sub(x.tried) >= rewritesForgotten)
		if o == nil || !s.isToWrite(o, e.want) || e.want.status != nil && len(e.want.status.Ingress) > 0 && !o.LoadBalancer {
			continue // the last: the API server refuses them; the Plan is of before the change
		}
		if ready := s.readyAt(o, x, e, now); ready.After(now) {
			earlier(ready)
			continue
		}
		x.tried = now
		return o, kind, e.want, 0
	}
	if idle {
		delete(s.states, k)
	} else if next.IsZero() && now.Sub(x.tried) < rewritesForgotten {
		next = x.tried.Add(rewritesForgotten) // for idle
	}
	return o, 0, wish{}, max(0, next.Sub(now))
}

// readyAt returns when an errand may be written. s.mu is held.
func (s *Statuses) readyAt(o *cachedService, x *serviceState, e *errand, now time.Time) time.Time {
	if e.written.same(e.want) && o.version != x.version && o.version != x.foreign {
		s.countRewrite(o, x, e, now)
	}
	if e.rejections > 0 && o.version != e.rejected && o.version != x.own { // somebody else has changed the Service
		e.rejections, e.notBefore = 0, time.Time{}
	}
	ready := e.notBefore
	if s.rest.until.After(ready) {
		ready = s.rest.until
	}
	if timeout := x.tried.Add(cacheTimeout); o.version == x.version && timeout.After(ready) {
		ready = timeout
	}
	return ready
}

// countRewrite counts undone writes; from the fourth on it waits. s.mu is held.
func (s *Statuses) countRewrite(o *cachedService, x *serviceState, e *errand, now time.Time) {
	if x.rewrites++; x.rewrites == 1 {
		s.log.Warn("somebody else changed the status of a Service; putting it right", "service", o.Key.String(), "who",
			o.otherManager)
	}
	if x.foreign, x.rewrittenAt = o.version, now; x.rewrites >= promptRewrites {
		s.tell(s.fights, o.Key, cmp.Or(o.otherManager, "a program that metadata.managedFields does not name"))
	}
	if x.rewrites > promptRewrites {
		e.notBefore = x.tried.Add(rewriteInterval)
	}
}

// reject has a refused write tried ever less often. s.mu is held.
func (s *Statuses) reject(o *cachedService, kind int, want wish, err error) {
	k := o.Key
	e, now := &s.states[k].errands[kind], time.Now()
	if !e.want.same(want) {
		return
	}
	told := s.refused[kind][k] != ""
	if !told {
		s.log.Warn("the API server does not accept what is written on a Service; trying again", "service", k.String(), "err",
			err)
	}
	if !told || now.Sub(e.toldAt) > toldAgain {
		e.toldAt = now
		s.tell(s.refused[kind], k, err.Error()+"; make the Service smaller, or ask the operator of the webhook or policy "+
			"that denies it")
	}
	e.rejected, e.notBefore = o.version, now.Add(min(rejectedMin<<min(e.rejections, 10), rejectedMax))
	e.rejections++
}

const notAllowed = "not allowed to write the status of Services; herald manifest rbac prints what is needed"

// pauseWrites begins a pause, twice as long as the last, unless one is under way. s.mu is held.
func (s *Statuses) pauseWrites(err error) {
	p, now := &s.rest, time.Now()
	if p.until.After(now) {
		return // the error is one of several writes that were under way
	}
	p.length = max(unavailableMin, min(2*p.length, unavailableMax))
	p.until = now.Add(p.length/2 + rand.N(p.length/2))
	level, text := slog.LevelDebug, "writing on Services failed; trying again"
	switch {
	case apierrors.IsForbidden(err) && !p.denied:
		p.denied, level, text = true, slog.LevelWarn, notAllowed
		s.poke()
	// else the log says that it can't be reached
	case apierrors.ReasonForError(err) != "" && !apierrors.IsForbidden(err) && now.Sub(p.warned) > warnEvery:
		p.warned, level = now, slog.LevelWarn
	}
	s.log.Log(context.Background(), level, text, "err", err)
}

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
	limit    int       // of underWay; only Pop lowers it: a workqueue relies on Len until its Pop
	failedAt time.Time // zero: none failed
	answered int       // since
}

var _ workqueue.Queue[int] = &turns[int]{}

func newTurns[T comparable](namespace func(T) string) *turns[T] {
	return &turns[T]{namespace: namespace, all: make(map[string]*turn[T])}
}

// Touch implements workqueue.Queue.
func (q *turns[T]) Touch(T) {}

// Push implements workqueue.Queue.
func (q *turns[T]) Push(x T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.all[q.namespace(x)]
	if n == nil {
		n = &turn[T]{limit: writesAtATime}
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
		if n.underWay < n.limit {
			able++
		}
	}
	return able
}

// Pop implements workqueue.Queue.
func (q *turns[T]) Pop() (x T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.IndexFunc(q.next, func(n *turn[T]) bool { return n.underWay < n.limit })
	n := q.next[at]
	x, n.items = n.items[0], n.items[1:]
	if n.underWay++; !n.failedAt.IsZero() {
		n.limit = 1 + n.answered/answersPerWrite
	}
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
		if n.answered >= (writesAtATime-1)*answersPerWrite || time.Since(n.failedAt) > keepLimit {
			n.limit, n.failedAt, n.answered = writesAtATime, time.Time{}, 0
		}
		return n.failedAt.IsZero() && n.underWay == 0 && len(n.items) == 0
	})
}
