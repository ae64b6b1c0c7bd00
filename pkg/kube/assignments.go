package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// Assignments writes the addresses that Services are given: kube-vip.io/loadbalancerIPs and
// heraldvip.io/allocated, and, but for what a DHCP server is to lease, the condition Allocated, in one write that is conditional on the version that the cache shows,
// and begins only if that has the addresses for which it was decided (Assignment.Had), so that it never undoes what somebody else has written.
type Assignments struct {
	log    *slog.Logger
	off    bool // Options.NoUpdates
	cached func(vip.Key) *cachedService
	patch  func(ctx context.Context, k vip.Key, body []byte) error
	wanted *mailbox.Mailbox[[]vip.Assignment]

	refused refusals
	fights  fights
}

func newAssignments(c *Cluster, api *clients, o Options) *Assignments {
	return &Assignments{
		log: o.Log, off: o.NoUpdates, cached: c.service,
		patch: func(ctx context.Context, k vip.Key, body []byte) error {
			return api.core.Patch(types.StrategicMergePatchType).Namespace(k.Namespace).Resource("services").Name(k.Name).
				SubResource("status").Body(body).MaxRetries(0).Do(ctx).Error()
		},
		wanted: mailbox.New[[]vip.Assignment](), refused: refusals{poke: o.Poke}, fights: fights{refusals: refusals{poke: o.Poke}},
	}
}

// Put has Run write every Assignment of want that has addresses and is not seen on its Service
// in the cache, if that has the same UID. With Options.NoUpdates it does nothing.
func (a *Assignments) Put(want []vip.Assignment) {
	if a.off || len(want) == 0 && len(a.wanted.Get()) == 0 {
		return
	}
	a.wanted.Put(want)
}

// Observe fills in AssignmentRefusals and AssignmentFights.
func (a *Assignments) Observe(w *vip.World) {
	w.AssignmentRefusals, w.AssignmentFights = a.refused.get(), a.fights.get()
}

// String names the task.
func (a *Assignments) String() string { return "kube: addresses of Services" }

// An attempt is the last write of an Assignment.
type attempt struct {
	version    string // that it was made for
	at         time.Time
	rejections int           // of this version, in a row
	wait       time.Duration // from at until it is tried again, unless the version changes
	failedAt   time.Time     // when the last write that has ended began, if the API server did not take it; else zero
	toldAt     time.Time     // when why the API server rejects it was last told, of whichever version
}

// Run writes until ctx ends, and the writes under way have ended.
func (a *Assignments) Run(ctx context.Context) error {
	w := &assignmentWriter{Assignments: a, attempts: make(map[vip.Key]attempt), busy: make(map[vip.Key]bool), limits: newWriteLimits(), results: make(chan assignmentResult)}
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	for {
		again := w.fights.end(time.Now())
		if w.startWrites(ctx); w.again {
			again = time.Second
		}
		retry.Reset(again)
		select {
		case <-ctx.Done():
			for range len(w.busy) {
				<-w.results
			}
			return nil
		case <-a.wanted.Changed:
			w.enqueue()
		case <-retry.C:
			w.enqueue()
		case r := <-w.results:
			w.finish(r)
		}
	}
}

// An assignmentWriter is the state of one Run.
type assignmentWriter struct {
	*Assignments
	attempts map[vip.Key]attempt
	busy     map[vip.Key]bool // being written
	limits   writeLimits
	queue    []vip.Assignment // to be written, unless the cache shows them by then
	again    bool             // something is to be tried again although nothing changes
	results  chan assignmentResult

	pause      time.Duration // how long the last pause was; 0 if the API server took the last write, or rejected it
	pauseUntil time.Time     // no write begins before
	warned     time.Time     // when the log last said that it takes none
}

// An assignmentResult is the outcome of one write.
type assignmentResult struct {
	service vip.Key
	err     error
}

// mostPause is how long no address is written at most after the API server did not take one: unavailableMin at first, twice as long after each in a row.
const mostPause = time.Second

// toldAgain is how long what was told first of why the API server rejects an address stands, whatever it says meanwhile: the condition of the Service that says so is a
// new version of it, for which the address is written again at once, and an answer may differ each time.
const toldAgain = 10 * time.Minute

// enqueue queues all that is wanted and not being written, where namespaces take turns, and forgets attempts of what is wanted no more. What
// the API server did not take comes last, the latest at the end: a webhook may fail for some namespaces only.
func (w *assignmentWriter) enqueue() {
	w.queue, w.again = w.queue[:0], false
	wanted := make(map[vip.Key]bool)
	for _, x := range w.wanted.Get() {
		wanted[x.Service] = true
		switch {
		case len(x.Addresses) == 0 && !x.Remove:
		case w.busy[x.Service]:
			w.again = true
		default:
			w.queue = append(w.queue, x)
		}
	}
	vip.TakeTurns(w.queue, w.limits.underWay, func(x vip.Assignment) string { return x.Service.Namespace })
	slices.SortStableFunc(w.queue, func(x, y vip.Assignment) int {
		return w.attempts[x.Service].failedAt.Compare(w.attempts[y.Service].failedAt)
	})
	for k := range w.attempts {
		if !wanted[k] && !w.busy[k] {
			delete(w.attempts, k)
			w.refused.set(k, "")
		}
	}
}

// startWrites begins as many of the queued writes as may be under way: six, and of each namespace as many as its limit; none in a pause. What the API server rejects,
// since the Service has become too large, say, is tried again after 1 s, then less and less often, until the Service changes.
func (w *assignmentWriter) startWrites(ctx context.Context) {
	if len(w.queue) > 0 && time.Now().Before(w.pauseUntil) {
		w.again = true
		return
	}
	for len(w.busy) < writesAtATime {
		i := slices.IndexFunc(w.queue, func(x vip.Assignment) bool { return w.limits.mayBegin(x.Service.Namespace) })
		if i < 0 {
			return
		}
		x := w.queue[i]
		w.queue = slices.Delete(w.queue, i, i+1)
		o := w.cached(x.Service)
		if o == nil || o.UID != x.UID || o.shows(x) || !o.stillNames(x.Had) || o.Allocated != x.HadPool || ctx.Err() != nil {
			continue // the last but one: the agent decides again
		}
		last := w.attempts[x.Service]
		if last.version != o.version {
			last = attempt{version: o.version, toldAt: last.toldAt}
		} else if time.Since(last.at) < last.wait {
			w.again = true
			continue
		}
		if c := w.fights.counts[x.Service]; c.times > promptRewrites && time.Since(c.last) < rewriteInterval {
			w.again = true
			continue
		}
		last.at, last.wait = time.Now(), cacheTimeout // the cache does not show the result yet
		w.attempts[x.Service], w.busy[x.Service] = last, true
		w.limits.begin(x.Service.Namespace)
		go func() { w.results <- assignmentResult{x.Service, w.write(ctx, o, x)} }()
	}
}

// finish takes account of a write that ended.
func (w *assignmentWriter) finish(r assignmentResult) {
	delete(w.busy, r.service)
	last, pause := w.attempts[r.service], w.pause
	w.limits.end(r.service.Namespace, r.err == nil || resultOf(r.err) == rejected)
	last.failedAt, w.pause = time.Time{}, 0
	switch {
	case r.err == nil:
		w.refused.set(r.service, "")
		if o := w.cached(r.service); o != nil { // written more than once a minute, it was changed back
			w.fights.count(r.service, o, time.Now())
		}
	case resultOf(r.err) == rejected:
		w.again, last.wait = true, min(rejectedMin<<min(last.rejections, 10), rejectedMax)
		last.rejections++
		told := w.refused.get()[r.service] != ""
		if !told {
			w.log.Warn("the API server does not accept the address that a Service was given; trying again", "service", r.service.String(), "err", r.err)
		}
		if !told || time.Since(last.toldAt) > toldAgain {
			last.toldAt = time.Now()
			w.refused.set(r.service, r.err.Error())
		}
	default:
		w.again, last.wait, last.failedAt = true, 0, last.at
		w.pause = max(unavailableMin, pause)
		if now := time.Now(); !w.pauseUntil.After(now) { // else the error is one of several writes that were under way
			w.pause = max(unavailableMin, min(2*pause, mostPause))
			w.pauseUntil = now.Add(w.pause)
		}
		w.logUnavailable(r)
	}
	w.attempts[r.service] = last
}

// logUnavailable logs why the API server takes no address: as a warning once in warnEvery.
func (w *assignmentWriter) logUnavailable(r assignmentResult) {
	level, now := slog.LevelDebug, time.Now()
	if now.Sub(w.warned) > warnEvery {
		level, w.warned = slog.LevelWarn, now
	}
	w.log.Log(context.Background(), level, "the address that a Service was given could not be written; trying again", "service", r.service.String(), "err", r.err)
}

// stillNames reports whether s names what it did when its addresses were decided; what only its status names may have
// counted for nothing, since no Service can have it.
func (s *cachedService) stillNames(had []netip.Addr) bool {
	return slices.Equal(s.Addresses, had) || len(had) == 0 && s.Source == vip.SourceStatus
}

// shows reports whether s has what w says.
func (s *cachedService) shows(w vip.Assignment) bool {
	if w.Remove {
		return !s.Superseded
	}
	return s.Allocated == w.Pool && (s.Source == addressesKey || s.Own != nil) && slices.Equal(s.Addresses, w.Addresses)
}

// write makes o have the addresses of w, for 10 s at most. A write
// that was refused since the Service has changed, or is gone, is no error: the cache will show that.
func (a *Assignments) write(ctx context.Context, o *cachedService, w vip.Assignment) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	annotations := map[string]any{allocatedKey: w.Pool} // null removes one
	given := slices.DeleteFunc(slices.Clone(w.Addresses), func(x netip.Addr) bool { return slices.Contains(w.Own, x) })
	switch {
	case w.Remove && o.beside:
		annotations[allocatedKey], annotations[besideKey] = nil, nil
	case w.Remove:
		annotations[allocatedKey], annotations[addressesKey] = nil, nil
	case len(w.Own) > 0:
		annotations[besideKey] = joinAddrs(given)
	default:
		annotations[addressesKey] = joinAddrs(given)
		if o.beside {
			annotations[besideKey] = nil
		}
	}
	patch := map[string]any{"metadata": map[string]any{"resourceVersion": o.version, "annotations": annotations}}
	if !w.Remove && !slices.ContainsFunc(w.Addresses, netip.Addr.IsUnspecified) { // else it has none before a DHCP server has leased one
		allocated := vip.Condition{Type: vip.Allocated, Status: vip.ConditionTrue, Reason: vip.AddressAllocated, Message: strings.ReplaceAll(joinAddrs(w.Addresses), ",", ", ") + ": of pool " + w.Pool}
		record := vip.Record{Named: w.Own, Given: given}
		patch["status"] = map[string]any{"conditions": o.conditionsPatch([]vip.Condition{allocated, record.Condition()})}
	}
	body, err := json.Marshal(patch)
	if err == nil {
		err = a.patch(ctx, w.Service, body)
	}
	switch {
	case err == nil:
		a.log.Debug("address written", "service", w.Service.String(), "addresses", joinAddrs(w.Addresses), "pool", w.Pool)
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil
	}
	return fmt.Errorf("writing the address of Service %s: %w", w.Service, err)
}

// joinAddrs writes addresses with commas.
func joinAddrs(addrs []netip.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, a := range addrs {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}
