package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/vip"
)

// A paperAPI keeps Services on paper: versions, conditional writes, and a cache
// that is behind by lag. It stands for the API server in bubbles of synctest.
type paperAPI struct {
	mu       sync.Mutex
	version  int
	services map[vip.Key]*corev1.Service
	shown    map[vip.Key]*record // the cache
	changed  func()              // called when the cache has changed

	latency, lag time.Duration
	dropsMode    bool                                // drops ipMode
	refuse       func(k vip.Key) error               // fails a patch
	after        func(k vip.Key)                     // runs after a patch
	mutate       func(s *corev1.Service) (stay bool) // a webhook

	patches  map[vip.Key]int
	busy     int
	busiest  int
	attempts int
}

func newPaperAPI() *paperAPI {
	return &paperAPI{
		services: make(map[vip.Key]*corev1.Service), shown: make(map[vip.Key]*record),
		patches: make(map[vip.Key]int), changed: func() {}, latency: 10 * time.Millisecond, lag: 50 * time.Millisecond,
	}
}

// edit changes a Service, or creates it, as somebody else.
func (p *paperAPI) edit(k vip.Key, f func(*corev1.Service)) {
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
func (p *paperAPI) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// tried is how many patches were sent.
func (p *paperAPI) tried() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts
}

// writes is how many patches of a Service took effect.
func (p *paperAPI) writes(k vip.Key) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.patches[k]
}

// at is a Service as the API server has it.
func (p *paperAPI) at(k vip.Key) *corev1.Service {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.services[k]
}

func (p *paperAPI) store(s *corev1.Service) {
	k := vip.Key{Namespace: s.Namespace, Name: s.Name}
	p.version++
	s.ResourceVersion = strconv.Itoa(p.version)
	p.services[k] = s
	time.AfterFunc(p.lag, func() {
		p.mu.Lock()
		if r := p.shown[k]; r == nil || number(r.version) < number(s.ResourceVersion) {
			p.shown[k] = readService(s)
		}
		p.mu.Unlock()
		p.changed()
	})
}

func number(version string) int {
	n, _ := strconv.Atoi(version)
	return n
}

func (p *paperAPI) current(k vip.Key) *record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shown[k]
}

func (p *paperAPI) patch(ctx context.Context, k vip.Key, body []byte) (*corev1.Service, error) {
	p.mu.Lock()
	p.busy++
	p.attempts++
	p.busiest = max(p.busiest, p.busy)
	p.mu.Unlock()
	wait := time.NewTimer(p.latency)
	defer wait.Stop()
	select {
	case <-ctx.Done():
	case <-wait.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy--
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if p.refuse != nil {
		if err := p.refuse(k); err != nil {
			return nil, err
		}
	}
	var m struct {
		Metadata struct {
			ResourceVersion string
			UID             string
			Annotations     map[string]*string
		}
		Status corev1.ServiceStatus
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	old := p.services[k]
	services := schema.GroupResource{Resource: "services"}
	switch {
	case old == nil:
		return nil, apierrors.NewNotFound(services, k.Name)
	case m.Metadata.ResourceVersion != old.ResourceVersion:
		return nil, apierrors.NewConflict(services, k.Name, errors.New("it has changed"))
	}
	s := old.DeepCopy()
	for key, v := range m.Metadata.Annotations {
		if v == nil {
			delete(s.Annotations, key)
			continue
		}
		if s.Annotations == nil {
			s.Annotations = make(map[string]string)
		}
		s.Annotations[key] = *v
	}
	s.Status.LoadBalancer.Ingress = m.Status.LoadBalancer.Ingress
	if p.dropsMode {
		for i := range s.Status.LoadBalancer.Ingress {
			s.Status.LoadBalancer.Ingress[i].IPMode = nil
		}
	}
	if p.mutate != nil && !p.mutate(s) {
		return old, nil
	}
	p.patches[k]++
	p.store(s)
	if f := p.after; f != nil {
		time.AfterFunc(20*time.Millisecond, func() { f(k) })
	}
	return s, nil
}

// idle lets time pass in a bubble, until nothing is left to do.
func idle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A desk is Statuses at work on paper, with an agent that calls Set whenever the
// cache changes.
type desk struct {
	*paperAPI
	*Statuses
	log *journal

	mu   sync.Mutex
	want []vip.Status
	have []vip.Status
}

// desk must be made in a bubble; what it starts ends with stop.
func newDesk(t *testing.T) (d *desk, stop func()) {
	d = &desk{paperAPI: newPaperAPI(), log: &journal{}}
	d.Statuses = &Statuses{log: d.log.logger(), metrics: newMetrics(), current: d.paperAPI.current, patch: d.paperAPI.patch, wake: make(chan struct{}, 1)}
	d.changed = d.pass
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Run(ctx)
	}()
	return d, func() {
		cancel()
		<-done
		if t.Failed() {
			t.Logf("log:\n%s", d.log)
		}
	}
}

// pass is a pass of the agent.
func (d *desk) pass() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.have, _ = d.Set(context.Background(), d.want)
}

// ask is a Plan.
func (d *desk) ask(want ...vip.Status) {
	d.mu.Lock()
	d.want = want
	d.mu.Unlock()
	d.pass()
}

func (d *desk) held() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.have)
}

func web(i int) vip.Key { return vip.Key{Namespace: "default", Name: fmt.Sprint("web-", i)} }

func statusOf(i int) vip.Status {
	return vip.Status{Service: web(i), Host: "n1", Ingress: []vip.Ingress{{
		Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Mode: vip.ModeVIP, Ports: []vip.Port{{Protocol: "TCP", Port: 80}}}}}
}

// fill makes n Services and wants for them.
func (d *desk) fill(n int) (want []vip.Status) {
	for i := range n {
		d.edit(web(i), func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
		want = append(want, statusOf(i))
	}
	idle(time.Second)
	return want
}

func TestStatusesAreWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		const n = 300
		want := d.fill(n)
		began := time.Now()
		d.ask(want...)
		for d.held() < n {
			idle(5 * time.Millisecond)
		}
		if took, most := time.Since(began), 2*n*d.latency/statusWrites; took > most {
			t.Errorf("took %v, want at most %v", took, most)
		}
		idle(time.Hour)
		if d.tried() != n {
			t.Errorf("%d requests for %d statuses", d.tried(), n)
		}
		if d.busiest != statusWrites {
			t.Errorf("%d requests at a time, want %d", d.busiest, statusWrites)
		}
		d.ask(vip.Status{Service: web(0)})
		idle(time.Second)
		if s := d.at(web(0)); len(s.Status.LoadBalancer.Ingress) != 0 || len(s.Annotations) != 0 || d.held() != 1 {
			t.Errorf("after clearing: %+v, %d held", s, d.held())
		}
		if s := d.at(web(1)); len(s.Status.LoadBalancer.Ingress) != 1 {
			t.Error("a status that is wanted no longer was touched")
		}
	})
}

// TestStatusConflict: a Service that changed is written again when the cache has
// shown the change, and not before.
func TestStatusConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(1)
		d.set(func() { d.lag = 3 * time.Second })
		d.edit(web(0), func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} })
		d.ask(want...)
		idle(2900 * time.Millisecond)
		if d.tried() != 1 || d.writes(web(0)) != 0 {
			t.Errorf("%d requests and %d writes while the cache is behind, want one that is refused", d.tried(), d.writes(web(0)))
		}
		idle(10 * time.Second)
		if d.tried() != 2 || d.held() != 1 {
			t.Errorf("%d requests, %d held; want 2 and 1", d.tried(), d.held())
		}
		if n := d.log.count("level=WARN"); n != 0 {
			t.Errorf("%d warnings", n)
		}
	})
}

// TestStatusOfALateCache: a cache that shows nothing at all does not end the matter.
func TestStatusOfALateCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(1)
		d.set(func() { d.lag = 25 * time.Second })
		d.ask(want...)
		idle(24 * time.Second)
		if d.tried() != 3 || d.writes(web(0)) != 1 {
			t.Errorf("%d requests, %d writes; want 3 and 1", d.tried(), d.writes(web(0)))
		}
	})
}

// TestStatusQuarrel: who keeps rewriting is corrected at once at first, then
// seldom, and it is said once.
func TestStatusQuarrel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(2)
		foreign := func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.9.9.9"}}
		}
		d.set(func() {
			d.after = func(k vip.Key) {
				if k == web(0) {
					d.edit(k, foreign)
				}
			}
		})
		d.ask(want...)
		idle(time.Second)
		if got := d.writes(web(0)); got != quarrelFree+1 {
			t.Errorf("%d writes in the first second, want %d", got, quarrelFree+1)
		}
		idle(50 * time.Second)
		if got := d.writes(web(0)); got != quarrelFree+1+10 {
			t.Errorf("%d writes in 51 s, want %d", got, quarrelFree+1+10)
		}
		if n := d.log.count("level=WARN", "somebody else changed"); n != 1 {
			t.Errorf("said %d times, want once", n)
		}
		if got := d.writes(web(1)); got != 1 {
			t.Errorf("the other Service was written %d times, want once", got)
		}
		d.set(func() { d.after = nil })
		idle(2 * time.Minute)
		if d.held() != 2 {
			t.Error("the quarrel is over, and the status is not what is wanted")
		}
		idle(time.Hour)
		before := d.writes(web(0))
		d.edit(web(0), foreign)
		idle(200 * time.Millisecond)
		if got := d.writes(web(0)) - before; got != 1 || d.held() != 2 {
			t.Errorf("a later change: %d writes, %d held, want 1 and 2", got, d.held())
		}
		if n := d.log.count("level=WARN", "somebody else changed"); n != 2 {
			t.Errorf("said %d times in all, want once for each quarrel", n)
		}
	})
}

// TestStatusMovedIsNoQuarrel: another node's Herald may write in between.
func TestStatusMovedIsNoQuarrel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(1)
		for range 10 {
			d.ask(want...)
			idle(time.Second)
			d.ask()
			d.edit(web(0), func(s *corev1.Service) { s.Annotations[hostKey] = "n2" })
			idle(time.Second)
		}
		if got := d.writes(web(0)); got != 10 {
			t.Errorf("%d writes, want 10", got)
		}
		if n := d.log.count("level=WARN"); n != 0 {
			t.Errorf("%d warnings, want none", n)
		}
	})
}

func TestStatusServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(100)
		d.set(func() { d.refuse = func(vip.Key) error { return errors.New("connection refused") } })
		d.ask(want...)
		idle(10 * time.Minute)
		if d.tried() < 100 || d.tried() > 300 {
			t.Errorf("%d requests in 10 minutes for 100 statuses of a server that is away", d.tried())
		}
		before := d.tried()
		d.set(func() { d.refuse = nil })
		idle(awayMost + time.Second)
		if d.held() != 100 {
			t.Errorf("%d statuses %v after the server came back, want all", d.held(), awayMost+time.Second)
		}
		if got := d.tried() - before; got != 100 {
			t.Errorf("%d requests for 100 statuses", got)
		}
	})
}

func TestStatusForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(20)
		d.set(func() {
			d.refuse = func(k vip.Key) error {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "services/status"}, k.Name, errors.New("no"))
			}
		})
		d.ask(want...)
		idle(time.Minute)
		if n := d.log.count("level=WARN", "herald manifest rbac"); n != 1 {
			t.Errorf("said %d times, want once", n)
		}
	})
}

// TestStatusWithoutIPMode: an API server that drops ipMode is not asked for it
// again and again; a newer one in its place gets it everywhere.
func TestStatusWithoutIPMode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		d.set(func() { d.dropsMode = true })
		want := d.fill(20)
		d.ask(want...)
		idle(time.Hour)
		if d.tried() != 20 || d.held() != 20 {
			t.Errorf("%d requests, %d held; want 20 and 20", d.tried(), d.held())
		}
		if n := d.log.count("level=INFO", "ipMode"); n != 1 {
			t.Errorf("said %d times, want once", n)
		}
		d.set(func() { d.dropsMode = false })
		d.ask(append(want[1:], vip.Status{Service: web(0), Host: "n2", Ingress: want[0].Ingress})...)
		idle(time.Minute)
		for i := range 20 {
			if d.at(web(i)).Status.LoadBalancer.Ingress[0].IPMode == nil {
				t.Errorf("%s has no ipMode", web(i))
			}
		}
		if d.held() != 20 || d.tried() != 40 {
			t.Errorf("%d requests, %d held; want 40 and 20", d.tried(), d.held())
		}
	})
}

// TestStatusRejected: one Service that the API server does not take holds up no other.
func TestStatusRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(20)
		d.set(func() {
			d.refuse = func(k vip.Key) error {
				if k == web(3) {
					return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, k.Name, nil)
				}
				return nil
			}
		})
		d.ask(want...)
		idle(time.Second)
		if d.held() != 19 {
			t.Errorf("%d held after a second, want 19", d.held())
		}
		idle(10 * time.Minute)
		if got := d.tried() - 19; got < 10 || got > 20 {
			t.Errorf("%d attempts in ten minutes, want about one a minute", got)
		}
		if n := d.log.count("level=WARN", "default/web-3"); n != 1 {
			t.Errorf("said %d times, want once", n)
		}
		d.set(func() { d.refuse = nil })
		idle(2 * time.Minute)
		if d.held() != 20 {
			t.Error("not written when it would have been taken")
		}
	})
}

// TestStatusChangedByAWebhook: a write that goes through without effect, or with
// another, is not repeated at once.
func TestStatusChangedByAWebhook(t *testing.T) {
	for _, stay := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d, stop := newDesk(t)
			defer stop()
			want := d.fill(1)
			d.set(func() {
				d.mutate = func(s *corev1.Service) bool {
					s.Status.LoadBalancer.Ingress = nil
					return stay
				}
			})
			d.ask(want...)
			idle(10 * time.Minute)
			if d.tried() < 5 || d.tried() > 60 {
				t.Errorf("changed %v: %d attempts in ten minutes", stay, d.tried())
			}
			if n := d.log.count("level=WARN", "webhook"); n != 1 {
				t.Errorf("changed %v: said %d times, want once", stay, n)
			}
		})
	}
}

// TestStatusOfNoService: nothing is asked for a Service that is not there, or is
// gone at the API server already.
func TestStatusOfNoService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(1)
		d.paperAPI.mu.Lock()
		delete(d.services, web(0)) // and the cache never hears of it
		d.paperAPI.mu.Unlock()
		d.ask(append(want, statusOf(1))...)
		idle(9 * time.Second)
		if d.tried() != 1 || d.held() != 0 {
			t.Errorf("%d requests, %d held; want 1 and 0", d.tried(), d.held())
		}
	})
}

// TestStatusWantIsTheLast: what is wanted no longer is not written any more.
func TestStatusWantIsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(100)
		d.set(func() { d.latency = time.Second })
		d.ask(want...)
		idle(100 * time.Millisecond)
		other := statusOf(0)
		other.Host = "n9"
		d.ask(other)
		idle(time.Minute)
		if d.tried() != statusWrites+1 {
			t.Errorf("%d requests, want the %d under way and one more", d.tried(), statusWrites)
		}
		if got := d.at(web(0)).Annotations[hostKey]; got != "n9" {
			t.Errorf("host %q, want that of the last want", got)
		}
	})
}

func TestStatusesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		want := d.fill(100)
		d.set(func() { d.latency = time.Hour })
		d.ask(want...)
		idle(time.Second)
		began := time.Now()
		stop()
		if took := time.Since(began); took != 0 {
			t.Errorf("Run ended after %v", took)
		}
		if d.busy != 0 {
			t.Errorf("%d requests are left", d.busy)
		}
	})
}
