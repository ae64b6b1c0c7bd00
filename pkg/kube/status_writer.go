package kube

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// cacheTimeout is when a Service is written again although the cache has not shown
	// the result of the last write.
	cacheTimeout   = 10 * time.Second
	rejectedMin    = time.Second // before a write that was rejected is tried again; doubles
	rejectedMax    = time.Minute
	unavailableMin = 250 * time.Millisecond // without writes when the API server takes none; doubles
	unavailableMax = 5 * time.Second
	// A status that somebody else keeps changing is corrected at once this many times,
	// then each rewriteInterval, until nobody changed it for rewritesForgotten.
	promptRewrites    = 3
	rewriteInterval   = 5 * time.Second
	rewritesForgotten = time.Minute
)

// String names the task.
func (s *Statuses) String() string { return "kube: statuses" }

// Run writes what Put wants until ctx ends, and the writes under way have ended.
func (s *Statuses) Run(ctx context.Context) error {
	w := &statusWriter{Statuses: s, states: make(map[vip.Key]*statusState), limits: newWriteLimits(), results: make(chan statusResult)}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(min(w.startWrites(ctx), w.fights.end(time.Now())))
		select {
		case <-ctx.Done():
			for ; w.busy > 0; w.busy-- {
				<-w.results
			}
			return nil
		case <-s.wanted.Changed:
			w.takeWanted()
		case r := <-w.results:
			w.finish(r)
		case <-timer.C:
			w.enqueue()
		}
	}
}

// A statusWriter is the state of one Run.
type statusWriter struct {
	*Statuses
	taken   wantedStatuses
	states  map[vip.Key]*statusState
	queue   []vip.Key // Services to be written, unless the cache shows what is wanted by then
	next    time.Time // when the first Service that was too early in queue is ready; zero: none was
	busy    int       // writes under way
	limits  writeLimits
	results chan statusResult

	pauseUntil time.Time     // no write begins before
	pause      time.Duration // how long the last pause was; 0 if the API server answers
	denied     bool          // that permissions are missing is logged
}

// A statusState is one Service that is being written, or was.
type statusState struct {
	want    vip.Status
	pending bool // the cache did not show want at the last takeWanted
	busy    bool // being written

	lastTry     time.Time
	failedAt    time.Time // when the last write that has ended began, if the API server did not take it; else zero
	lastVersion string    // for which the last write that was answered, and not rejected, was made: the cache must show another first
	rejections  int       // in a row
	notBefore   time.Time

	lastWritten    *vip.Status // by a write that went through
	foreignVersion string      // the last version that differs from lastWritten
}

// A statusResult is the outcome of one write.
type statusResult struct {
	key     vip.Key
	version string
	want    vip.Status
	result  writeResult
	err     error
}

// takeWanted takes over what was Put last, and forgets Services that are no longer wanted, once their rewrites
// need not be known any more.
func (w *statusWriter) takeWanted() {
	w.taken = w.wanted.Get()
	wanted := make(map[vip.Key]bool, len(w.taken.all))
	for i := range w.taken.all {
		wanted[w.taken.all[i].Service] = true
	}
	now := time.Now()
	for k, s := range w.states {
		s.pending = false
		if wanted[k] || s.busy {
			continue
		}
		w.refused.set(k, "")
		if !s.countsRewrites(now) {
			delete(w.states, k)
		}
	}
	for _, want := range w.taken.pending {
		s := w.states[want.Service]
		if s == nil {
			s = &statusState{}
			w.states[want.Service] = s
		}
		if !reflect.DeepEqual(s.want, want) {
			s.rejections, s.notBefore = 0, time.Time{}
		}
		s.want, s.pending = want, true
	}
	w.enqueue()
}

// enqueue queues all that is pending and not being written; namespaces take turns. What the API server did not take comes last, the latest
// at the end: a webhook may fail for some namespaces only.
func (w *statusWriter) enqueue() {
	w.queue, w.next = w.queue[:0], time.Time{}
	for i := range w.taken.pending {
		if k := w.taken.pending[i].Service; !w.states[k].busy {
			w.queue = append(w.queue, k)
		}
	}
	vip.TakeTurns(w.queue, w.limits.underWay, func(k vip.Key) string { return k.Namespace })
	slices.SortStableFunc(w.queue, func(x, y vip.Key) int { return w.states[x].failedAt.Compare(w.states[y].failedAt) })
}

// startWrites begins as many of the queued writes as may be under way: six, and of each namespace as many as its limit; none
// in a pause. It returns after what time to call enqueue.
func (w *statusWriter) startWrites(ctx context.Context) time.Duration {
	now := time.Now()
	if w.pauseUntil.After(now) {
		return w.pauseUntil.Sub(now)
	}
	for w.busy < writesAtATime {
		i := slices.IndexFunc(w.queue, func(k vip.Key) bool { return w.limits.mayBegin(k.Namespace) })
		if i < 0 {
			break
		}
		k := w.queue[i]
		w.queue = slices.Delete(w.queue, i, i+1)
		w.startWrite(ctx, k, w.states[k], now)
	}
	if w.next.IsZero() {
		return time.Hour
	}
	return w.next.Sub(now)
}

// startWrite begins the write of one Service if the cache does not show what is wanted
// of it. If that is too early it sets w.next. It writes nothing to a Service that the
// cache does not contain, and no addresses to one that is not of type LoadBalancer.
func (w *statusWriter) startWrite(ctx context.Context, k vip.Key, s *statusState, now time.Time) {
	o := w.cached(k)
	if o == nil || w.matches(o, s.want) {
		return
	}
	if len(s.want.Ingress) > 0 && !o.LoadBalancer {
		return // the API server refuses them; the Plan is of before the change, and the next one is under way
	}
	w.countRewrites(s, o, now)
	ready := s.notBefore
	if timeout := s.lastTry.Add(cacheTimeout); o.version == s.lastVersion && timeout.After(ready) {
		ready = timeout
	}
	if ready.After(now) {
		if w.next.IsZero() || ready.Before(w.next) {
			w.next = ready
		}
		return
	}
	s.busy, s.lastTry = true, now
	w.busy++
	w.limits.begin(k.Namespace)
	want := s.want
	go func() {
		result, err := w.write(ctx, o, want)
		w.results <- statusResult{k, o.version, want, result, err}
	}()
}

// countsRewrites reports whether s must be kept although its Status is no longer wanted: for rewritesForgotten after
// conditions alone were written. The Plan contains these only while the cache does not show them, so somebody else who
// changes them has them wanted again.
func (s *statusState) countsRewrites(now time.Time) bool {
	return s.lastWritten != nil && s.lastWritten.ConditionsOnly && s.rejections == 0 && now.Sub(s.lastTry) <= rewritesForgotten
}

// countRewrites counts versions of a Service that somebody else made of what this
// process had written and still wants. It logs the first, and delays the rewrite from
// the fourth on.
func (w *statusWriter) countRewrites(s *statusState, o *cachedService, now time.Time) {
	if s.lastWritten == nil || o.version == s.lastVersion || o.version == s.foreignVersion || !reflect.DeepEqual(*s.lastWritten, s.want) {
		return
	}
	s.foreignVersion = o.version
	times := w.fights.count(o.Key, o, now)
	if times == 1 {
		w.log.Warn("somebody else changed the status of a Service; putting it right", "service", o.Key.String(), "who", o.otherManager)
	}
	if times > promptRewrites {
		s.notBefore = s.lastTry.Add(rewriteInterval)
	}
}

// finish takes account of a write that ended. If the Service is still pending it is
// queued again: startWrite finds out whether the cache shows what is wanted.
func (w *statusWriter) finish(r statusResult) {
	w.busy--
	w.metrics.statuses.WithLabelValues(string(r.result)).Inc()
	w.limits.end(r.key.Namespace, r.result != unavailable)
	s := w.states[r.key]
	s.busy, s.failedAt = false, time.Time{}
	if r.result != unavailable {
		w.pause, w.denied = 0, false
		s.lastVersion = r.version
	}
	if r.result == written || r.result == notFound {
		w.refused.set(r.key, "")
	}
	switch r.result {
	case written:
		s.lastWritten, s.rejections = &r.want, 0
		w.log.Debug("status written", "service", r.key.String(), "host", r.want.VIPHost)
	case rejected:
		s.lastVersion = "" // it changed nothing, or was changed: then the next one is a conflict until the cache shows that
		w.refused.set(r.key, r.err.Error())
		if s.rejections == 0 {
			w.log.Warn("the API server does not accept the status of a Service", "service", r.key.String(), "err", r.err)
		}
		s.notBefore = time.Now().Add(min(rejectedMin<<min(s.rejections, 10), rejectedMax))
		s.rejections++
	case unavailable:
		s.failedAt = s.lastTry
		w.pauseWrites(r.err)
	}
	if s.pending {
		w.queue = append(w.queue, r.key)
	}
}

// pauseWrites begins a pause, twice as long as the one before, unless one is under way.
func (w *statusWriter) pauseWrites(err error) {
	now := time.Now()
	if w.pauseUntil.After(now) {
		return // the error is one of several writes that were under way
	}
	w.pause = max(unavailableMin, min(2*w.pause, unavailableMax))
	w.pauseUntil = now.Add(w.pause/2 + rand.N(w.pause/2))
	if apierrors.IsForbidden(err) && !w.denied {
		w.denied = true
		w.log.Warn("not allowed to write the status of Services; herald manifest rbac prints what is needed", "err", err)
		return
	}
	w.log.Debug("writing statuses failed; trying again", "err", err)
}
