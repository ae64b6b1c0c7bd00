package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/heraldvip/herald/pkg/vip"
)

// A feed keeps a cache equal to what the API server has of one kind of object.
// It is the store of a client-go reflector: every object is turned into a V when
// it arrives and dropped; what it arrived as is not kept.
//
// The lock is shared by all feeds of a Cluster. changed is called with it held.
type feed[V any] struct {
	source
	mu     *sync.RWMutex
	values map[vip.Key]V
	filled bool // the cache has been complete once

	read    func(runtime.Object) (v V, ok bool)
	changed func(k vip.Key, old, new V) (matters bool) // the zero V stands for none
	poke    func()
}

// A source is where a feed comes from.
type source struct {
	client    rest.Interface
	resource  string // as in URLs
	namespace string // "" for all
	fields    string // field selector
	object    runtime.Object
	log       *slog.Logger
	health    health
}

// health is how it goes with a source.
type health struct {
	mu       sync.Mutex
	failures int  // errors in a row that the API server answered
	refused  bool // it won't do it: RBAC, or it has no such resource
	said     bool // the operator knows
}

// Times of a feed's retries.
const (
	retryFirst = 200 * time.Millisecond
	retryMost  = 3 * time.Second
	// A server that refuses is asked again more and more seldom: permissions appear
	// late while a cluster starts, but may never do.
	refusedFirst = 500 * time.Millisecond
	refusedMost  = 30 * time.Second
	absentAgain  = 10 * time.Minute // a server without the resource may be replaced by a newer one
	// failuresToSettle is after how many errors in a row the operator is told; and
	// if they are refusals, the answer is taken to be no, and Herald goes on without
	// the resource.
	failuresToSettle = 3
)

// String names the feed in errors and logs.
func (f *feed[V]) String() string { return "kube: watch " + f.describe() }

func (s *source) describe() string {
	if s.namespace == "" {
		return s.resource
	}
	return fmt.Sprintf("%s in namespace %s", s.resource, s.namespace)
}

// Run lists and watches until ctx ends.
func (f *feed[V]) Run(ctx context.Context) error {
	r := cache.NewReflectorWithOptions(f.listWatch(), f.object, f, cache.ReflectorOptions{
		Name: "herald",
		// For refused connections only, while a watch is being resumed; all other
		// failures end ListAndWatch and come back here.
		Backoff: &wait.Backoff{Duration: retryFirst, Factor: 2, Jitter: 0.5, Steps: 5, Cap: retryMost},
	})
	pause := retryFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := r.ListAndWatchWithContext(ctx)
		if ctx.Err() != nil {
			break
		}
		if time.Since(began) > time.Minute {
			pause = retryFirst
		}
		before := f.refused()
		delay := f.judge(err)
		if f.refused() != before {
			f.poke() // Synced has changed, perhaps
		}
		if delay == 0 {
			delay, pause = pause, min(2*pause, retryMost)
		}
		sleep(ctx, delay+rand.N(delay/2))
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// listWatch asks the API server.
func (s *source) listWatch() cache.ListerWatcher {
	request := func(o metav1.ListOptions) *rest.Request {
		o.FieldSelector = s.fields
		return s.client.Get().Namespace(s.namespace).Resource(s.resource).VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := request(o).Do(ctx).Get()
			s.settle(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := request(o).Watch(ctx)
			if err == nil {
				s.settle(nil)
			}
			if o.SendInitialEvents != nil && utilnet.IsConnectionRefused(err) {
				// The reflector would wait by itself, and not notice that ctx ends.
				return nil, errors.New(err.Error())
			}
			return w, err
		},
	}
}

// settle notes that the API server serves the resource, if err is nil.
func (s *source) settle(err error) {
	if err != nil {
		return
	}
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if s.health.said {
		s.log.Info("watching "+s.describe()+" works now", "resource", s.resource)
	}
	s.health.failures, s.health.refused, s.health.said = 0, false, false
}

// judge looks at why a list or a watch ended, and tells the operator of what
// does not pass by itself. It returns how long to leave the API server alone if
// that is longer than usual.
func (s *source) judge(err error) (delay time.Duration) {
	reason := apierrors.ReasonForError(err)
	absent := reason == metav1.StatusReasonNotFound
	refusal := absent || reason == metav1.StatusReasonForbidden
	switch reason {
	case metav1.StatusReasonUnknown: // no answer: the line tells of it
		if err != nil {
			s.log.Debug("watching "+s.describe()+" failed", "err", err)
		}
		return 0
	case metav1.StatusReasonExpired, metav1.StatusReasonGone: // too long without news; listing again helps
		return 0
	}
	h := &s.health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	settled := h.failures >= failuresToSettle
	h.refused = refusal && settled
	switch {
	case !settled || h.said || absent:
	case refusal:
		h.said = true
		s.log.Warn("not allowed to watch "+s.describe()+"; herald manifest rbac prints what is needed", "resource", s.resource, "err", err)
	default:
		h.said = true
		s.log.Warn("the API server does not let us watch "+s.describe()+"; trying on", "resource", s.resource, "err", err)
	}
	switch {
	case absent && settled:
		return absentAgain
	case refusal:
		return min(refusedFirst<<min(h.failures-1, 10), refusedMost)
	}
	return 0
}

// refused reports whether the API server does not serve the resource to us.
func (s *source) refused() bool {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	return s.health.refused
}

// synced reports whether the cache has been complete once.
func (f *feed[V]) synced() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.filled
}

// Add implements cache.ReflectorStore.
func (f *feed[V]) Add(o any) error { return f.put(o) }

// Update implements cache.ReflectorStore.
func (f *feed[V]) Update(o any) error { return f.put(o) }

// Delete implements cache.ReflectorStore.
func (f *feed[V]) Delete(o any) error {
	k, err := keyOf(o)
	if err != nil {
		return err
	}
	f.mu.Lock()
	matters := f.drop(k)
	f.mu.Unlock()
	if matters {
		f.poke()
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (f *feed[V]) Replace(list []any, _ string) error {
	f.mu.Lock()
	matters := !f.filled
	seen := make(map[vip.Key]bool, len(list))
	var errs []error
	for _, o := range list {
		k, err := keyOf(o)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		seen[k] = true
		matters = f.set(k, o) || matters
	}
	for k := range f.values {
		if !seen[k] {
			matters = f.drop(k) || matters
		}
	}
	f.filled = true
	f.mu.Unlock()
	if matters {
		f.poke()
	}
	return errors.Join(errs...)
}

// Resync implements cache.ReflectorStore; there is nothing to do.
func (f *feed[V]) Resync() error { return nil }

func (f *feed[V]) put(o any) error {
	k, err := keyOf(o)
	if err != nil {
		return err
	}
	f.mu.Lock()
	matters := f.set(k, o)
	f.mu.Unlock()
	if matters {
		f.poke()
	}
	return nil
}

func (f *feed[V]) set(k vip.Key, o any) (matters bool) {
	v, ok := f.read(o.(runtime.Object))
	if !ok {
		return f.drop(k)
	}
	old := f.values[k]
	f.values[k] = v
	return f.changed(k, old, v)
}

func (f *feed[V]) drop(k vip.Key) (matters bool) {
	old, ok := f.values[k]
	if !ok {
		return false
	}
	delete(f.values, k)
	var none V
	return f.changed(k, old, none)
}

func keyOf(o any) (vip.Key, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return vip.Key{}, fmt.Errorf("a %T was watched, which is no API object", o)
	}
	return vip.Key{Namespace: m.GetNamespace(), Name: m.GetName()}, nil
}
