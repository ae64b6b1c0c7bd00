package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/vip"
)

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
	return vip.Status{Service: web(i), VIPHost: "n1", Ingress: []vip.Ingress{{
		Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), IPMode: vip.ModeVIP, Ports: []vip.Port{{Protocol: "TCP", Port: 80}}}}}
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
		const n = 500
		want := d.fill(n)
		d.set(func() { d.refuse = func(vip.Key) error { return errors.New("connection refused") } })
		d.ask(want...)
		idle(10 * time.Minute)
		if d.tried() < 100 || d.tried() > 300 {
			t.Errorf("%d requests in 10 minutes for statuses of a server that is away", d.tried())
		}
		before := d.tried()
		d.set(func() { d.refuse = nil })
		idle(awayMost + time.Second)
		if d.held() != n {
			t.Errorf("%d statuses %v after the server came back, want %d", d.held(), awayMost+time.Second, n)
		}
		if got := d.tried() - before; got != n {
			t.Errorf("%d requests for %d statuses", got, n)
		}
	})
}

// TestStatusServerHiccup: many failures at once are one failure.
func TestStatusServerHiccup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(100)
		d.set(func() { d.refuse = func(vip.Key) error { return errors.New("connection refused") } })
		d.ask(want...)
		idle(2 * d.latency)
		d.set(func() { d.refuse = nil })
		idle(awayFirst + time.Second)
		if d.held() != 100 {
			t.Errorf("%d of 100 statuses a second after a short failure", d.held())
		}
	})
}

func TestStatusForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newDesk(t)
		defer stop()
		want := d.fill(20)
		for times := 1; times <= 2; times++ {
			d.set(func() {
				d.refuse = func(k vip.Key) error {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "services/status"}, k.Name, errors.New("no"))
				}
			})
			for i := range want {
				want[i].VIPHost = fmt.Sprint("n", times)
			}
			d.ask(want...)
			idle(time.Minute)
			if n := d.log.count("level=WARN", "herald manifest rbac"); n != times {
				t.Errorf("said %d times, want %d", n, times)
			}
			d.set(func() { d.refuse = nil })
			idle(time.Minute)
			if d.held() != 20 {
				t.Errorf("%d held, want 20", d.held())
			}
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
		d.ask(append(want[1:], vip.Status{Service: web(0), VIPHost: "n2", Ingress: want[0].Ingress})...)
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
		want[3].VIPHost = "n2" // another want is another matter
		d.ask(want...)
		idle(time.Second)
		if d.held() != 20 {
			t.Error("another want waits for the one that was rejected")
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
		other.VIPHost = "n9"
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

// TestHolds: what counts as being what is wanted.
func TestHolds(t *testing.T) {
	have := func(change func(*record)) *record {
		w := statusOf(1)
		r := &record{hosted: true}
		r.VIPHost, r.Ingress = w.VIPHost, w.Ingress
		change(r)
		return r
	}
	ingress := func(f func(*vip.Ingress)) func(*record) {
		return func(r *record) {
			r.Ingress = []vip.Ingress{r.Ingress[0]}
			f(&r.Ingress[0])
		}
	}
	blank := statusOf(1)
	blank.Ingress[0].IPMode = ""
	tests := []struct {
		name string
		have *record
		want vip.Status
		is   bool
	}{
		{"the same", have(func(*record) {}), statusOf(1), true},
		{"another host", have(func(r *record) { r.VIPHost = "n2" }), statusOf(1), false},
		{"no ingress", have(func(r *record) { r.Ingress = nil }), statusOf(1), false},
		{"another address", have(ingress(func(i *vip.Ingress) { i.Addr = i.Addr.Next() })), statusOf(1), false},
		{"a host name besides", have(ingress(func(i *vip.Ingress) { i.Hostname = "x" })), statusOf(1), false},
		{"another mode", have(ingress(func(i *vip.Ingress) { i.IPMode = vip.ModeProxy })), statusOf(1), false},
		{"no mode", have(ingress(func(i *vip.Ingress) { i.IPMode = "" })), statusOf(1), false},
		{"any mode, none wanted", have(func(*record) {}), blank, true},
		{"other ports", have(ingress(func(i *vip.Ingress) { i.Ports = nil })), statusOf(1), false},
		{"one more", have(func(r *record) { r.Ingress = append(r.Ingress, vip.Ingress{Hostname: "x"}) }), statusOf(1), false},
		{"nothing, nothing wanted", &record{}, vip.Status{}, true},
		{"an empty annotation, nothing wanted", &record{hosted: true}, vip.Status{}, false},
	}
	s := &Statuses{}
	for _, tt := range tests {
		if got := s.holds(tt.have, tt.want); got != tt.is {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.is)
		}
	}
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

// BenchmarkStatuses: a pass with 10 000 Statuses that hold.
func BenchmarkStatuses(b *testing.B) {
	const n = 10000
	p := newPaperAPI()
	var want []vip.Status
	for i := range n {
		w := statusOf(i)
		r := &record{hosted: true}
		r.VIPHost, r.Ingress = w.VIPHost, statusOf(i).Ingress
		p.shown[web(i)] = r
		want = append(want, w)
	}
	s := &Statuses{metrics: newMetrics(), current: p.current, wake: make(chan struct{}, 1)}
	for b.Loop() {
		if have, _ := s.Set(b.Context(), want); len(have) != n {
			b.Fatal(len(have))
		}
	}
}
