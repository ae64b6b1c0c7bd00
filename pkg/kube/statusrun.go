package kube

import (
	"context"
	"math/rand/v2"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/vip"
)

// Bounds of the writing of statuses.
const (
	statusWrites = 6 // at a time: more would only make the leases of VIPs that move wait
	// cacheLate is when a Service is written again although the cache has not shown
	// the result of the last write.
	cacheLate   = 10 * time.Second
	rejectFirst = time.Second
	rejectMost  = time.Minute
	awayFirst   = 250 * time.Millisecond
	awayMost    = 5 * time.Second
	// Who rewrites what we wrote is corrected at once this many times, then each
	// quarrelEvery, until there was no quarrel for quarrelOver.
	quarrelFree  = 3
	quarrelEvery = 5 * time.Second
	quarrelOver  = time.Minute
)

// String names the task.
func (s *Statuses) String() string { return "kube: statuses" }

// Run writes until ctx ends.
func (s *Statuses) Run(ctx context.Context) error {
	w := &writer{s: s, efforts: make(map[vip.Key]*effort), results: make(chan result)}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(w.start(ctx))
		select {
		case <-ctx.Done():
			for ; w.busy > 0; w.busy-- {
				<-w.results
			}
			return nil
		case <-s.wake:
			w.read()
		case r := <-w.results:
			w.finish(r)
		case <-timer.C:
			w.recall()
		}
	}
}

// A writer is the state of one Run.
type writer struct {
	s       *Statuses
	efforts map[vip.Key]*effort
	reads   uint64    // how often read was called
	queue   []vip.Key // to be looked at
	waiting []vip.Key // to be looked at later, each at its effort's next
	busy    int
	results chan result

	awayTill time.Time // nothing is written before, and one attempt at first
	awayFor  time.Duration
	denied   bool // the operator has been told that permissions are missing
}

// An effort is one Service that is being written, or was.
type effort struct {
	read   uint64 // the last read that found it among what is wanted
	want   vip.Status
	wanted bool // want does not hold yet
	listed bool // in queue or waiting
	busy   bool
	next   time.Time // when to look again, if waiting

	lastTry    time.Time
	basis      string // the version the last answered write was made for: the cache must show another first
	rejections int
	notBefore  time.Time

	wrote   *vip.Status // what the last good write said
	foreign string      // the last version that undid it
	undone  int         // how many did
}

// A result is the end of one write.
type result struct {
	key     vip.Key
	version string
	want    vip.Status
	outcome outcome
	err     error
}

// read takes over what is wanted.
func (w *writer) read() {
	w.s.mu.Lock()
	todo, want := w.s.todo, w.s.want
	w.s.mu.Unlock()
	w.forget(want)
	for _, want := range todo {
		k := want.Service
		e := w.efforts[k]
		if e == nil {
			e = &effort{read: w.reads}
			w.efforts[k] = e
		}
		if !reflect.DeepEqual(e.want, want) {
			e.rejections, e.notBefore = 0, time.Time{}
		}
		e.want, e.wanted = want, true
		w.enqueue(k, e)
	}
	// The cache may have changed: look at all again.
	w.queue = append(w.queue, w.waiting...)
	w.waiting = nil
}

// forget drops what is remembered of Services that are no longer ours to write.
func (w *writer) forget(want []vip.Status) {
	w.reads++
	for i := range want {
		if e := w.efforts[want[i].Service]; e != nil {
			e.read = w.reads
		}
	}
	for k, e := range w.efforts {
		e.wanted = false
		if e.read != w.reads && !e.busy && !e.listed {
			delete(w.efforts, k)
		}
	}
}

func (w *writer) enqueue(k vip.Key, e *effort) {
	if !e.listed && !e.busy {
		e.listed = true
		w.queue = append(w.queue, k)
	}
}

// recall brings back what waited long enough.
func (w *writer) recall() {
	now := time.Now()
	var keep []vip.Key
	for _, k := range w.waiting {
		if w.efforts[k].next.After(now) {
			keep = append(keep, k)
		} else {
			w.queue = append(w.queue, k)
		}
	}
	w.waiting = keep
}

// start starts what may be started, and returns when to call recall.
func (w *writer) start(ctx context.Context) time.Duration {
	now := time.Now()
	if w.awayTill.After(now) {
		return w.awayTill.Sub(now)
	}
	limit := statusWrites
	if w.awayFor > 0 {
		limit = 1 // see whether it is back
	}
	for len(w.queue) > 0 && w.busy < limit {
		k := w.queue[0]
		w.queue = w.queue[1:]
		w.begin(ctx, k, w.efforts[k], now)
	}
	rest := time.Hour
	for _, k := range w.waiting {
		rest = min(rest, w.efforts[k].next.Sub(now))
	}
	return max(rest, 0)
}

// begin starts the write of one Service, or puts it off, or finds nothing to do.
func (w *writer) begin(ctx context.Context, k vip.Key, e *effort, now time.Time) {
	e.listed = false
	r := w.s.current(k)
	if !e.wanted || r == nil || w.s.holds(r, e.want) {
		return
	}
	w.quarrel(k, e, r, now)
	due := e.notBefore
	if r.version == e.basis {
		due = later(due, e.lastTry.Add(cacheLate))
	}
	if due.After(now) {
		e.next, e.listed = due, true
		w.waiting = append(w.waiting, k)
		return
	}
	e.busy, e.lastTry = true, now
	w.busy++
	want := e.want
	go func() {
		o, err := w.s.write(ctx, r, want)
		w.results <- result{key: k, version: r.version, want: want, outcome: o, err: err}
	}()
}

// quarrel bounds how often the status is corrected that somebody else keeps changing.
func (w *writer) quarrel(k vip.Key, e *effort, r *record, now time.Time) {
	if e.wrote == nil || r.version == e.basis || r.version == e.foreign || !reflect.DeepEqual(*e.wrote, e.want) {
		return
	}
	if now.Sub(e.lastTry) > quarrelOver {
		e.undone = 0
	}
	e.foreign = r.version
	e.undone++
	if e.undone == 1 {
		w.s.log.Warn("somebody else changed the status of a Service; putting it right", "service", k.String())
	}
	if e.undone > quarrelFree {
		e.notBefore = e.lastTry.Add(quarrelEvery)
	}
}

// finish learns from a result.
func (w *writer) finish(r result) {
	w.busy--
	e := w.efforts[r.key]
	e.busy = false
	if r.outcome != away {
		w.awayFor, w.denied = 0, false
		e.basis = r.version
	}
	switch r.outcome {
	case written:
		e.wrote, e.rejections = &r.want, 0
		w.s.log.Debug("status written", "service", r.key.String(), "host", r.want.VIPHost)
		w.s.metrics.statuses.WithLabelValues("written").Inc()
	case conflict:
		w.s.metrics.statuses.WithLabelValues("conflict").Inc()
	case gone:
		w.s.metrics.statuses.WithLabelValues("gone").Inc()
	case rejected:
		w.s.metrics.statuses.WithLabelValues("error").Inc()
		if e.rejections == 0 {
			w.s.log.Warn("the API server does not accept the status of a Service", "service", r.key.String(), "err", r.err)
		}
		e.notBefore = time.Now().Add(min(rejectFirst<<min(e.rejections, 10), rejectMost))
		e.rejections++
	case away:
		w.s.metrics.statuses.WithLabelValues("error").Inc()
		w.backOff(r.err)
	}
	if e.wanted {
		w.enqueue(r.key, e)
	}
}

// backOff leaves the API server alone for a while.
func (w *writer) backOff(err error) {
	now := time.Now()
	if w.awayTill.After(now) {
		return // one of several that were under way
	}
	w.awayFor = max(awayFirst, min(2*w.awayFor, awayMost))
	w.awayTill = now.Add(w.awayFor/2 + rand.N(w.awayFor/2))
	if apierrors.IsForbidden(err) && !w.denied {
		w.denied = true
		w.s.log.Warn("not allowed to write the status of Services; herald manifest rbac prints what is needed", "err", err)
		return
	}
	w.s.log.Debug("writing statuses failed; trying again", "err", err)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
