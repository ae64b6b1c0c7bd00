package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/heraldvip/herald/pkg/vip"
)

var services = schema.GroupResource{Resource: "services"}

// A fakeAPI stands for the API server in bubbles of synctest: it keeps Services with versions, takes conditional
// writes, and has a cache that is behind by lag.
type fakeAPI struct {
	mu       sync.Mutex
	version  int
	services map[vip.Key]*corev1.Service
	cache    map[vip.Key]*cachedService // the cache
	changed  func()                     // called when the cache has changed

	latency, lag time.Duration
	dropsMode    bool                                // drops ipMode
	refuse       func(k vip.Key) error               // fails a patch, after a while if it sleeps
	refuseBody   func(body string) error             // the same, by what is in it
	afterPatch   func(k vip.Key)                     // runs after a patch
	webhook      func(s *corev1.Service) (stay bool) // a webhook

	patches  map[vip.Key]int
	busy     int
	maxBusy  int
	attempts int
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{
		services: make(map[vip.Key]*corev1.Service), cache: make(map[vip.Key]*cachedService),
		patches: make(map[vip.Key]int), changed: func() {}, latency: 10 * time.Millisecond, lag: 50 * time.Millisecond,
	}
}

// edit changes a Service, or creates it, as somebody else.
func (p *fakeAPI) edit(k vip.Key, f func(*corev1.Service)) {
	p.mu.Lock()
	s := &corev1.Service{}
	if old := p.services[k]; old != nil {
		s = old.DeepCopy()
	}
	s.Namespace, s.Name, s.UID = k.Namespace, k.Name, "uid"
	f(s)
	p.store(s)
	p.mu.Unlock()
}

// set changes how the API server behaves.
func (p *fakeAPI) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// refusing has the API server answer patches of some Services with an error.
func (p *fakeAPI) refusing(err error, of func(k vip.Key) bool) {
	p.set(func() {
		p.refuse = func(k vip.Key) error {
			if of(k) {
				return err
			}
			return nil
		}
	})
}

// requests is how many patches were sent.
func (p *fakeAPI) requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts
}

// writes is how many patches of a Service took effect.
func (p *fakeAPI) writes(k vip.Key) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.patches[k]
}

// at is a Service as the API server has it.
func (p *fakeAPI) at(k vip.Key) *corev1.Service {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.services[k]
}

func (p *fakeAPI) store(s *corev1.Service) {
	k := vip.Key{Namespace: s.Namespace, Name: s.Name}
	p.version++
	s.ResourceVersion = strconv.Itoa(p.version)
	p.services[k] = s
	time.AfterFunc(p.lag, func() {
		p.mu.Lock()
		if r := p.cache[k]; r == nil || number(r.version) < number(s.ResourceVersion) {
			p.cache[k] = readService(s)
		}
		p.mu.Unlock()
		p.changed()
	})
}

func number(version string) int {
	n, _ := strconv.Atoi(version)
	return n
}

func (p *fakeAPI) cached(k vip.Key) *cachedService {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cache[k]
}

func (p *fakeAPI) patch(ctx context.Context, k vip.Key, body []byte) (*corev1.Service, error) {
	p.mu.Lock()
	p.busy++
	p.attempts++
	p.maxBusy = max(p.maxBusy, p.busy)
	p.mu.Unlock()
	wait := time.NewTimer(p.latency)
	defer wait.Stop()
	select {
	case <-ctx.Done():
	case <-wait.C:
	}
	p.mu.Lock()
	p.busy--
	refuse := p.refuse
	p.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if refuse != nil {
		if err := refuse(k); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuseBody != nil {
		if err := p.refuseBody(string(body)); err != nil {
			return nil, err
		}
	}
	old := p.services[k]
	if old == nil {
		return nil, apierrors.NewNotFound(services, k.Name)
	}
	s, err := patched(old, body)
	switch {
	case err != nil:
		return nil, apierrors.NewBadRequest(err.Error())
	case s.ResourceVersion != old.ResourceVersion:
		return nil, apierrors.NewConflict(services, k.Name, errors.New("it has changed"))
	}
	if p.dropsMode {
		for i := range s.Status.LoadBalancer.Ingress {
			s.Status.LoadBalancer.Ingress[i].IPMode = nil
		}
	}
	if p.webhook != nil && !p.webhook(s) {
		return old, nil
	}
	p.patches[k]++
	p.store(s)
	if f := p.afterPatch; f != nil {
		time.AfterFunc(20*time.Millisecond, func() { f(k) })
	}
	return s, nil
}

// patched is a Service after a strategic merge patch.
func patched(old *corev1.Service, body []byte) (*corev1.Service, error) {
	text, err := json.Marshal(old)
	if err != nil {
		return nil, err
	}
	if text, err = strategicpatch.StrategicMergePatch(text, body, old); err != nil {
		return nil, err
	}
	s := &corev1.Service{}
	return s, json.Unmarshal(text, s)
}

// advance lets time pass in a bubble, until nothing is left to do.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
