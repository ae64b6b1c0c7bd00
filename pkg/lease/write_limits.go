package lease

import (
	"maps"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	quickAnswer = 300 * time.Millisecond // a request that ends within this is quick, another slow
	quickFor    = time.Second            // so long after a quick request a namespace need not leave half of the requests to others
	slowFor     = 10 * time.Second       // but not so long after a slow one; longer than one that hangs takes with the pause after it
)

// writeLimits limit how many requests on VIP leases are under way, and how many of them a namespace of Services has: as many as it leaves to the others,
// unless it is quick. So one in which no write is answered, since a webhook of admission hangs, leaves half of them to the
// others, the next one half of that, and so on. (Those of package kube limit a namespace only after a write that failed: nobody waits for a status.)
type writeLimits struct {
	most     int                  // requests under way
	requests map[vip.Key]request  // those under way, by VIP lease
	underWay map[string]int       // how many they are, by namespace; none that is 0
	answers  map[string]lastTimes // by namespace; those of the last slowFor
}

// A request is one that is under way.
type request struct {
	namespace string // of the Services of its VIP lease
	began     time.Time
}

// lastTimes is when a request of a namespace last ended that was quick, and one that was slow.
type lastTimes struct{ quick, slow time.Time }

func newWriteLimits(most int) writeLimits {
	return writeLimits{most, make(map[vip.Key]request), make(map[string]int), make(map[string]lastTimes)}
}

// free returns how many requests may still begin.
func (w *writeLimits) free() int { return max(0, w.most-len(w.requests)) }

// mayBegin reports whether another request of a namespace may begin: while any may, or, if the namespace leaves half of them to others (leaves) and is not
// quick, while fewer of it are under way than may still begin. It is quick if a request of it was within quickFor, and none was slow within slowFor.
func (w *writeLimits) mayBegin(namespace string, leaves bool) bool {
	last := w.answers[namespace]
	quick := time.Since(last.quick) <= quickFor && time.Since(last.slow) > slowFor
	return w.free() > 0 && (!leaves || quick || w.underWay[namespace] < w.free())
}

// begin counts a request on a VIP lease as under way.
func (w *writeLimits) begin(k vip.Key, namespace string) {
	w.requests[k] = request{namespace, time.Now()}
	w.underWay[namespace]++
}

// end counts the request on a VIP lease as under way no more, and stores whether it was quick, however it was answered. It does nothing if none is under way.
func (w *writeLimits) end(k vip.Key) {
	r, isUnderWay := w.requests[k]
	if !isUnderWay {
		return
	}
	delete(w.requests, k)
	if w.underWay[r.namespace]--; w.underWay[r.namespace] == 0 {
		delete(w.underWay, r.namespace)
	}
	last, now := w.answers[r.namespace], time.Now()
	if now.Sub(r.began) <= quickAnswer {
		last.quick = now
	} else {
		last.slow = now
	}
	w.answers[r.namespace] = last
	maps.DeleteFunc(w.answers, func(_ string, last lastTimes) bool {
		return now.Sub(last.quick) > slowFor && now.Sub(last.slow) > slowFor
	})
}
