package kube

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// A reflectorStore is the cache of one resource that a Reflector fills: objects are converted to V at once, and
// dropped.
type reflectorStore[V any] struct {
	watchedResource
	mu     sync.Locker // that of the Cluster or of the Leases; guards values, held while onChange runs
	values map[vip.Key]*V
	synced atomic.Bool // the first list is in values

	convert func(runtime.Object) *V // nil: the object is not kept
	// onChange is called when a value is added (old is nil), replaced, or removed (new is nil). poke is called, without
	// mu, if it returned true, or synced, refused or doneWithout has changed.
	onChange func(k vip.Key, old, new *V) (worldChanged bool)
}

// A watchedResource is what a Reflector watches, and whether that works.
type watchedResource struct {
	client    rest.Interface
	resource  string         // as in URLs
	namespace string         // "" for all
	fields    string         // field selector
	labels    string         // label selector
	object    runtime.Object // of its type; may be a nil pointer
	log       *slog.Logger
	poke      func()
	relists   *atomic.Int64 // how often all were to be listed again

	requesting sync.Mutex  // held while a request is under way, and until ended. Guards what follows
	relisted   int64       // what relists was when all were listed last
	failures   int         // errors in a row that the API server answered with
	reported   bool        // that it fails is logged
	refused    atomic.Bool // the last failuresBeforeReport errors were 403 or 404

	optional bool // that it is forbidden is no fault
	// doWithoutAfter is after how many refusals the objects are done without; at once after a 404.
	doWithoutAfter int
	doneWithout    atomic.Bool // there were so many once
}

// Delays before a failed request double from retryMin to retryMax, plus up to half; after retryReset they
// begin again.
const (
	retryMin = 200 * time.Millisecond
	retryMax = 2 * time.Second
	// After a 403 or 404 these are added: permissions appear late while a cluster starts, or never.
	refusedMin = 200 * time.Millisecond
	refusedMax = 30 * time.Second
	// missingRetry is how often what is absent, or optional, is asked for: a newer server may come.
	missingRetry = 10 * time.Minute
	// failuresBeforeReport is how many errors in a row are logged, and how many refusals mean no, unless doWithoutAfter is
	// less.
	failuresBeforeReport = 3
)

func (r *watchedResource) description() string {
	if r.namespace == "" {
		return r.resource
	}
	return r.resource + " in namespace " + r.namespace
}

// listedOrRefused reports whether the objects were listed, or refused long enough.
func (s *reflectorStore[V]) listedOrRefused() bool { return s.synced.Load() || s.doneWithout.Load() }

// Run lists and watches until ctx ends.
func (s *reflectorStore[V]) Run(ctx context.Context) error {
	backoff := &wait.Backoff{Duration: retryMin, Factor: 2, Cap: retryMax, Steps: 10, Jitter: 0.5}
	o := cache.ReflectorOptions{Name: "herald", Backoff: backoff}
	cache.NewReflectorWithOptions(s.listWatch(), s.object, s, o).RunWithContext(ctx)
	return nil
}

func (r *watchedResource) request(o metav1.ListOptions) *rest.Request {
	o.FieldSelector, o.LabelSelector = r.fields, r.labels
	return r.client.Get().Namespace(r.namespace).Resource(r.resource).VersionedParams(&o, metav1.ParameterCodec)
}

// A lister lists and then watches: by a watch that lists, a server or proxy that never says where the list ends would
// be waited for without end (https://github.com/kubernetes/kubernetes/issues/140890).
type lister struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported has the Reflector list.
func (lister) IsWatchListSemanticsUnSupported() bool { return true }

// listWatch sends the Reflector's requests, each once. Lists are new ones, not old ones of a server's cache.
func (r *watchedResource) listWatch() cache.ListerWatcher {
	return lister{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			o.ResourceVersion = ""
			err = r.send(ctx, true, func() error {
				list, err = r.request(o).MaxRetries(0).Do(ctx).Get()
				return err
			})
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (w watch.Interface, err error) {
			o.Watch = true
			err = r.send(ctx, false, func() error {
				w, err = r.request(o).MaxRetries(0).Watch(ctx)
				return err
			})
			return w, err
		},
	}}
}

// send sends a request, and returns its error when the next may go. After relists changed, a list must come first.
func (r *watchedResource) send(ctx context.Context, lists bool, request func() error) error {
	r.requesting.Lock()
	defer r.requesting.Unlock()
	wanted := r.relists.Load()
	if wanted != r.relisted && !lists {
		return apierrors.NewResourceExpired("all " + r.resource + " are to be listed again")
	}
	err := request()
	if err == nil {
		r.relisted = wanted
	}
	if err != nil || !lists { // only a watch shows that all is well
		r.ended(ctx, err)
	}
	return err
}

// ended takes account of a request's err, and blocks for retryDelay, or until ctx ends.
func (r *watchedResource) ended(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	before, without := r.refused.Load(), r.doneWithout.Load()
	var delay time.Duration
	if err == nil {
		r.succeeded()
	} else {
		delay = r.retryDelay(err)
	}
	if r.refused.Load() != before || r.doneWithout.Load() != without {
		r.poke() // Cluster.Synced depends on it
	}
	mailbox.Sleep(ctx, wait.Jitter(delay, 0.5))
}

// succeeded forgets all failures, and logs their end if they were logged.
func (r *watchedResource) succeeded() {
	if r.reported {
		r.log.Info("watching "+r.description()+" works now", "resource", r.resource)
	}
	r.failures, r.reported = 0, false
	r.refused.Store(false)
}

// retryDelay counts a failure, and returns how long to wait beside the Reflector's back-off.
func (r *watchedResource) retryDelay(err error) time.Duration {
	reason := apierrors.ReasonForError(err)
	switch reason {
	case metav1.StatusReasonUnknown: // no answer: countingTransport logs that
		r.log.Debug("watching "+r.description()+" failed", "err", err)
		return 0
	case metav1.StatusReasonExpired, metav1.StatusReasonGone: // listing again helps
		return 0
	}
	missing, forbidden := reason == metav1.StatusReasonNotFound, reason == metav1.StatusReasonForbidden
	r.failures++
	lasting := r.failures >= failuresBeforeReport
	r.refused.Store(lasting && (missing || forbidden))
	if missing || forbidden && r.failures >= r.doWithoutAfter {
		r.doneWithout.Store(true)
	}
	if lasting && !missing && !r.reported && !(forbidden && r.optional) {
		r.reported = true
		text := "the API server does not let us watch " + r.description() + "; retrying"
		if forbidden {
			text = "not allowed to watch " + r.description() + "; herald manifest rbac prints what is needed"
		}
		r.log.Warn(text, "resource", r.resource, "err", err)
	}
	switch {
	case missing && lasting, forbidden && lasting && r.optional:
		return missingRetry
	case missing || forbidden:
		return min(refusedMin<<min(r.failures-1, 10), refusedMax)
	}
	return 0
}

// Add, Update, Delete, Resync and Replace implement cache.ReflectorStore.
func (s *reflectorStore[V]) Add(o any) error    { return s.Update(o) }
func (s *reflectorStore[V]) Update(o any) error { return s.apply(o, s.convert(o.(runtime.Object))) }
func (s *reflectorStore[V]) Delete(o any) error { return s.apply(o, nil) }
func (s *reflectorStore[V]) Resync() error      { return nil }

// apply stores v, or nil for none, for the object o.
func (s *reflectorStore[V]) apply(o any, v *V) error {
	s.mu.Lock()
	worldChanged := s.put(keyOf(o), v)
	s.mu.Unlock()
	if worldChanged {
		s.poke()
	}
	return nil
}

// Replace stores the objects of list, and removes all others.
func (s *reflectorStore[V]) Replace(list []any, _ string) error {
	values := make(map[vip.Key]*V, len(list))
	for _, o := range list {
		values[keyOf(o)] = s.convert(o.(runtime.Object))
	}
	s.mu.Lock()
	worldChanged := false
	for k, v := range values {
		worldChanged = s.put(k, v) || worldChanged
	}
	for k := range s.values {
		if values[k] == nil {
			worldChanged = s.put(k, nil) || worldChanged
		}
	}
	first := !s.synced.Swap(true)
	s.mu.Unlock()
	if worldChanged || first {
		s.poke()
	}
	return nil
}

// put stores v, which nil removes, if it differs.
func (s *reflectorStore[V]) put(k vip.Key, v *V) (worldChanged bool) {
	old := s.values[k]
	if reflect.DeepEqual(old, v) {
		return false
	}
	if v == nil {
		delete(s.values, k)
	} else {
		s.values[k] = v
	}
	return s.onChange(k, old, v)
}

func keyOf(o any) vip.Key {
	name, _ := cache.ObjectToName(o) // it can't fail: o is of a type that is watched
	return vip.Key(name)
}
