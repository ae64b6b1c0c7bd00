package kube

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A statusTest is Statuses at work on a fakeAPI, with an agent that calls Put whenever the cache changes.
type statusTest struct {
	*fakeAPI
	*Statuses
	log *logBuffer

	mu   sync.Mutex
	want []vip.Status
	give []vip.Assignment
}

// newStatusTest must be called in a bubble; what it starts ends with stop.
func newStatusTest(t *testing.T) (d *statusTest, stop func()) {
	d = &statusTest{fakeAPI: newFakeAPI(), log: &logBuffer{}}
	d.Statuses = newStatuses(Options{Log: d.log.logger(), Poke: func() {}}, d.fakeAPI.cached, newMetrics())
	d.Statuses.patch = d.fakeAPI.patch
	d.changed = d.pass
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", d.log)
		}
	})
	return d, check.Run(t, d.Statuses)
}

// statusBubble runs a test of a statusTest in a bubble.
func statusBubble(t *testing.T, test func(t *testing.T, d *statusTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d, stop := newStatusTest(t)
		defer stop()
		test(t, d)
	})
}

// pass is a pass of the agent.
func (d *statusTest) pass() {
	d.mu.Lock()
	defer d.mu.Unlock()
	Assignments{d.Statuses}.Put(d.give)
	d.Put(d.want)
}

// plan is a pass with another Plan.
func (d *statusTest) plan(want ...vip.Status) {
	d.mu.Lock()
	d.want = want
	d.mu.Unlock()
	d.pass()
}

// assign is a pass in which these addresses are to be given.
func (d *statusTest) assign(give ...vip.Assignment) {
	d.mu.Lock()
	d.give = give
	d.mu.Unlock()
	d.pass()
}

// observed is what the Statuses say in the World.
func (d *statusTest) observed() (w vip.World) {
	d.Observe(&w)
	return w
}

// written is how many Statuses of the Plan the cache showed in the last pass.
func (d *statusTest) written() int {
	w := d.observed()
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.want) - w.StatusesPending
}

func serviceKey(i int) vip.Key { return vip.Key{Namespace: "default", Name: fmt.Sprint("web-", i)} }

func statusOf(i int) vip.Status {
	return vip.Status{Service: serviceKey(i), UID: "uid", VIPHost: "n1", Ingress: []vip.Ingress{{
		Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), IPMode: vip.ModeVIP,
		Ports: []vip.Port{{Protocol: "TCP", Port: 80}}}}}
}

func ofLoadBalancer(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }

// fill makes n Services and wants for them.
func (d *statusTest) fill(n int) []vip.Status { return d.fillNamespace("default", n) }

// fillNamespace makes n Services of a namespace and wants for them.
func (d *statusTest) fillNamespace(namespace string, n int) (want []vip.Status) {
	for i := range n {
		w := statusOf(i)
		w.Service.Namespace = namespace
		d.edit(w.Service, ofLoadBalancer)
		want = append(want, w)
	}
	advance(time.Second)
	return want
}

func TestStatusesAreWrittenOnce(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		const n = 300
		want := d.fill(n)
		began := time.Now()
		d.plan(want...)
		for d.written() < n {
			advance(5 * time.Millisecond)
		}
		if took, most := time.Since(began), 2*n*d.latency/writesAtATime; took > most {
			t.Errorf("took %v, want at most %v", took, most)
		}
		advance(time.Hour)
		check.Equal(t, d.requests(), n, "requests")
		check.Equal(t, d.maxBusy, writesAtATime, "requests at a time")
		d.plan(vip.Status{Service: serviceKey(0), UID: "uid"})
		advance(time.Second)
		if s := d.at(serviceKey(0)); len(s.Status.LoadBalancer.Ingress) != 0 || len(s.Annotations) != 0 || d.written() != 1 {
			t.Errorf("after clearing: %+v, %d written", s, d.written())
		}
		check.Equal(t, len(d.at(serviceKey(1)).Status.LoadBalancer.Ingress), 1, "addresses in a status that is wanted no longer")
	})
}

// TestStatusConflict: a Service that changed is written again when the cache has shown the change, and not before.
func TestStatusConflict(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := d.fill(1)
		d.set(func() { d.lag = 3 * time.Second })
		d.edit(serviceKey(0), func(s *corev1.Service) { s.Labels = map[string]string{"a": "b"} })
		d.plan(want...)
		advance(2900 * time.Millisecond)
		check.Equal(t, d.requests(), 1, "requests while the cache is behind")
		check.Equal(t, d.writes(serviceKey(0)), 0, "writes meanwhile, since it is refused")
		advance(10 * time.Second)
		check.Equal(t, d.requests(), 2, "requests")
		check.Equal(t, d.written(), 1, "written")
		check.Equal(t, d.log.count("level=WARN"), 0, "warnings")
	})
}

// TestStatusCacheIsLate: a cache that shows nothing for long does not end the writing.
func TestStatusCacheIsLate(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := d.fill(1)
		d.set(func() { d.lag = 25 * time.Second })
		d.plan(want...)
		advance(24 * time.Second)
		check.Equal(t, d.requests(), 3, "requests")
		check.Equal(t, d.writes(serviceKey(0)), 1, "writes")
	})
}

// TestStatusRewrittenByOthers: who keeps rewriting is corrected at once at first, then seldom, and it is logged once.
func TestStatusRewrittenByOthers(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := d.fill(2)
		foreign := func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.9.9.9"}}
			early, late := metav1.NewTime(time.Now().Add(-time.Minute)), metav1.Now()
			s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", Time: &early}, {Manager: "other-lb", Time: &late},
				{Manager: "herald", Time: &late}}
		}
		fight := func() string { return fmt.Sprint(d.observed().StatusFights) }
		d.set(func() {
			d.afterPatch = func(k vip.Key) {
				if k == serviceKey(0) {
					d.edit(k, foreign)
				}
			}
		})
		d.plan(want...)
		advance(time.Second)
		check.Equal(t, d.writes(serviceKey(0)), promptRewrites+1, "writes in the first second")
		check.Equal(t, fight(), fmt.Sprintf("map[%s:%q]", serviceKey(0), "other-lb"), "who fights")
		advance(50 * time.Second)
		check.Equal(t, d.writes(serviceKey(0)), promptRewrites+1+10, "writes in 51 s")
		check.Equal(t, d.log.count("level=WARN", "somebody else changed"), 1, "how often it is logged")
		check.Equal(t, d.writes(serviceKey(1)), 1, "writes of the other Service")
		d.set(func() { d.afterPatch = nil })
		advance(2 * time.Minute)
		check.Equal(t, d.written(), 2, "written, once nobody changes it any more")
		check.Equal(t, fight(), "map[]", "who fights, once nobody changes it any more")
		advance(time.Hour)
		before := d.writes(serviceKey(0))
		d.edit(serviceKey(0), foreign)
		advance(200 * time.Millisecond)
		check.Equal(t, d.writes(serviceKey(0))-before, 1, "writes after a later change")
		check.Equal(t, d.written(), 2, "written after it")
		check.Equal(t, d.log.count("level=WARN", "somebody else changed"), 2, "how often it is logged in all, once for each dispute")
	})
}

// TestConditionsRewrittenByOthers: the same holds of conditions alone, which a Plan has only while the cache does not show them.
func TestConditionsRewrittenByOthers(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		d.fill(1)
		k := serviceKey(0)
		want := vip.Status{Service: k, UID: "uid", ConditionsOnly: true, Conditions: []vip.Condition{{Type: vip.Announced,
			Status: vip.ConditionFalse, Reason: vip.NoPoolAddress}}}
		pass := func() {
			if d.fakeAPI.cached(k).hasConditions(want.Conditions) {
				d.plan()
				return
			}
			d.plan(want)
		}
		other := func(s *corev1.Service) {
			s.Status.Conditions = []metav1.Condition{{Type: string(vip.Announced), Status: metav1.ConditionFalse,
				Reason: string(vip.InvalidField)}}
		}
		d.set(func() {
			d.fakeAPI.changed = pass
			d.afterPatch = func(vip.Key) { time.AfterFunc(100*time.Millisecond, func() { d.edit(k, other) }) }
		})
		pass()
		advance(2 * time.Second)
		check.Equal(t, d.writes(k), promptRewrites+1, "writes in the first 2 s")
		advance(50 * time.Second)
		check.Equal(t, d.writes(k), promptRewrites+1+10, "writes in 52 s")
		check.Equal(t, d.log.count("level=WARN", "somebody else changed"), 1, "how often it is logged")
		d.set(func() { d.afterPatch = nil })
		advance(10 * time.Minute)
		before := d.writes(k)
		d.edit(k, other)
		advance(200 * time.Millisecond)
		if got := d.writes(k) - before; got != 1 || !d.fakeAPI.cached(k).hasConditions(want.Conditions) {
			t.Errorf("a later change: %d writes, conditions %+v; want 1 and what is wanted", got, d.fakeAPI.cached(k).Conditions)
		}
	})
}

// TestStatusMovedIsNotRewritten: another node's Herald may write in between.
func TestStatusMovedIsNotRewritten(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := d.fill(1)
		for range 10 {
			d.plan(want...)
			advance(time.Second)
			d.plan()
			d.edit(serviceKey(0), func(s *corev1.Service) { s.Annotations[vipHostKey] = "n2" })
			advance(time.Second)
		}
		check.Equal(t, d.writes(serviceKey(0)), 10, "writes")
		check.Equal(t, d.log.count("level=WARN"), 0, "warnings")
	})
}

// TestStatusServerUnavailable: few writes are tried in a long outage; once the API server takes one of those again that it did not take, the
// others of the namespace are written six at a time.
func TestStatusServerUnavailable(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		const n = 300
		want := d.fill(n)
		d.set(func() { d.refuse = func(vip.Key) error { return errors.New("connection refused") } })
		d.plan(want...)
		advance(time.Hour) // each of them has failed
		if d.requests() < 600 || d.requests() > 1800 {
			t.Errorf("%d requests in an hour for statuses of a server that is unavailable", d.requests())
		}
		before, back := d.requests(), time.Now()
		d.set(func() { d.refuse = nil })
		for d.written() == 0 {
			advance(100 * time.Millisecond)
		}
		advance(n / 4 * 10 * time.Millisecond)
		if got := d.written(); got != n || time.Since(back) > unavailableMax+3*time.Second {
			t.Errorf("%d of %d statuses are written %v after the server came back", got, n, time.Since(back))
		}
		check.Equal(t, d.requests()-before, n, "requests")
	})
}

// TestStatusManyFailuresAreOne: many failures at once are one failure.
func TestStatusManyFailuresAreOne(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := d.fill(100)
		d.set(func() { d.refuse = func(vip.Key) error { return errors.New("connection refused") } })
		d.plan(want...)
		advance(2 * d.latency)
		d.set(func() { d.refuse = nil })
		advance(unavailableMin + time.Second)
		check.Equal(t, d.written(), 100, "written a second after a short failure")
	})
}

func TestStatusForbidden(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
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
			d.plan(want...)
			advance(time.Minute)
			check.Equal(t, d.log.count("level=WARN", "herald manifest rbac"), times, "how often it is logged")
			refusals := d.observed().StatusRefusals
			check.Equal(t, len(refusals), 20, "refusals")
			check.Equal(t, refusals[serviceKey(7)], notAllowed, "why one is refused")
			d.set(func() { d.refuse = nil })
			advance(time.Minute)
			check.Equal(t, d.written(), 20, "written")
			check.Equal(t, len(d.observed().StatusRefusals), 0, "refusals once it is allowed")
		}
	})
}

// TestStatusWithoutIPMode: an API server that drops ipMode is not asked for it again and again; a newer one in its
// place gets it everywhere.
func TestStatusWithoutIPMode(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		d.set(func() { d.dropsMode = true })
		want := d.fill(20)
		d.plan(want...)
		advance(time.Hour)
		check.Equal(t, d.requests(), 20, "requests")
		check.Equal(t, d.written(), 20, "written")
		check.Equal(t, d.log.count("level=INFO", "ipMode"), 1, "how often it is logged")
		d.set(func() { d.dropsMode = false })
		d.plan(append(want[1:], vip.Status{Service: serviceKey(0), UID: "uid", VIPHost: "n2", Ingress: want[0].Ingress})...)
		advance(time.Minute)
		for i := range 20 {
			if d.at(serviceKey(i)).Status.LoadBalancer.Ingress[0].IPMode == nil {
				t.Errorf("%s has no ipMode", serviceKey(i))
			}
		}
		check.Equal(t, d.written(), 20, "written")
		check.Equal(t, d.requests(), 40, "requests")
	})
}

// TestStatusRejected: one Service that the API server does not take holds up no other.
func TestStatusRejected(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := d.fill(20)
		d.refusing(apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "x", nil), func(k vip.Key) bool { return k == serviceKey(3) })
		d.plan(want...)
		advance(time.Second)
		check.Equal(t, d.written(), 19, "written after a second")
		advance(10 * time.Minute)
		if got := d.requests() - 19; got < 10 || got > 20 {
			t.Errorf("%d attempts in ten minutes, want about one a minute", got)
		}
		check.Equal(t, d.log.count("level=WARN", "default/web-3"), 1, "how often it is logged")
		before := d.requests()
		d.edit(serviceKey(3), func(s *corev1.Service) { s.Labels = map[string]string{"smaller": "now"} })
		advance(100 * time.Millisecond)
		check.Equal(t, d.requests(), before+1, "writes once it has changed")
		d.set(func() { d.refuse = nil })
		want[3].VIPHost = "n2" // another want is tried at once
		d.plan(want...)
		advance(time.Second)
		check.Equal(t, d.written(), 20, "written, with another want than the one that was rejected")
	})
}

// TestStatusChangedByAWebhook: a write that goes through without effect, or with another, is not repeated at once.
func TestStatusChangedByAWebhook(t *testing.T) {
	for _, stay := range []bool{false, true} {
		statusBubble(t, func(t *testing.T, d *statusTest) {
			want := d.fill(1)
			d.set(func() {
				d.webhook = func(s *corev1.Service) bool {
					s.Status.LoadBalancer.Ingress = nil
					return stay
				}
			})
			d.plan(want...)
			advance(10 * time.Minute)
			if d.requests() < 5 || d.requests() > 60 {
				t.Errorf("changed %v: %d attempts in ten minutes", stay, d.requests())
			}
			check.Equal(t, d.log.count("level=WARN", "webhook"), 1, "changed %v: how often it is logged", stay)
		})
	}
}

// TestStatusOfNoService: nothing is asked for a Service that is not there, or is deleted at the API server already.
func TestStatusOfNoService(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := d.fill(1)
		d.set(func() { delete(d.services, serviceKey(0)) }) // and the cache keeps it
		d.plan(append(want, statusOf(1))...)
		advance(9 * time.Second)
		check.Equal(t, d.requests(), 1, "requests")
		check.Equal(t, d.written(), 0, "written")
	})
}

// TestStatusLastPutCounts: what is wanted no longer is not written any more.
func TestStatusLastPutCounts(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := d.fill(100)
		d.set(func() { d.latency = time.Second })
		d.plan(want...)
		advance(100 * time.Millisecond)
		other := statusOf(0)
		other.VIPHost = "n9"
		d.plan(other)
		advance(time.Minute)
		check.Equal(t, d.requests(), writesAtATime+1, "requests: those under way and one more")
		check.Equal(t, d.at(serviceKey(0)).Annotations[vipHostKey], "n9", "the host, that of the last want")
	})
}

// TestStatesAreForgotten: what is kept of a Service goes soon after the last Plan that named it.
func TestStatesAreForgotten(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		d.plan(d.fill(1)...)
		advance(2 * rewritesForgotten)
		check.Equal(t, len(d.states), 1, "states of what a Plan names")
		d.plan()
		advance(2 * rewritesForgotten)
		check.Equal(t, len(d.states), 0, "states of what none names")
	})
}

// TestStatusOfAServiceMadeAgain: a status is not written on the next Service of that name.
func TestStatusOfAServiceMadeAgain(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := d.fill(1)
		d.changed = func() { d.queue.Add(serviceKey(0)) }                        // no pass of the agent
		d.edit(serviceKey(0), func(s *corev1.Service) { s.UID = "of the next" }) // which the cache does not show yet
		d.plan(want...)
		advance(time.Minute)
		check.Equal(t, d.requests(), 1, "requests")
		check.Equal(t, d.writes(serviceKey(0)), 0, "writes")
		want[0].UID = "of the next"
		d.plan(want...)
		advance(time.Second)
		check.Equal(t, d.writes(serviceKey(0)), 1, "writes of its own status")
	})
}

// TestStatusMatches: what counts as being what is wanted.
func TestStatusMatches(t *testing.T) {
	have := func(change func(*cachedService)) *cachedService {
		w := statusOf(1)
		r := &cachedService{hasHostAnnotation: true}
		r.VIPHost, r.Ingress = w.VIPHost, w.Ingress
		change(r)
		return r
	}
	ingress := func(f func(*vip.Ingress)) func(*cachedService) {
		return func(r *cachedService) {
			r.Ingress = []vip.Ingress{r.Ingress[0]}
			f(&r.Ingress[0])
		}
	}
	blank := statusOf(1)
	blank.Ingress[0].IPMode = ""
	tests := []struct {
		name string
		have *cachedService
		want vip.Status
		is   bool
	}{
		{"the same", have(func(*cachedService) {}), statusOf(1), true},
		{"another host", have(func(r *cachedService) { r.VIPHost = "n2" }), statusOf(1), false},
		{"no ingress", have(func(r *cachedService) { r.Ingress = nil }), statusOf(1), false},
		{"another address", have(ingress(func(i *vip.Ingress) { i.Addr = i.Addr.Next() })), statusOf(1), false},
		{"a host name besides", have(ingress(func(i *vip.Ingress) { i.Hostname = "x" })), statusOf(1), false},
		{"another mode", have(ingress(func(i *vip.Ingress) { i.IPMode = vip.ModeProxy })), statusOf(1), false},
		{"no mode", have(ingress(func(i *vip.Ingress) { i.IPMode = "" })), statusOf(1), false},
		{"any mode, none wanted", have(func(*cachedService) {}), blank, true},
		{"other ports", have(ingress(func(i *vip.Ingress) { i.Ports = nil })), statusOf(1), false},
		{"one more", have(func(r *cachedService) { r.Ingress = append(r.Ingress, vip.Ingress{Hostname: "x"}) }), statusOf(1), false},
		{"nothing, nothing wanted", &cachedService{}, vip.Status{}, true},
		{"an empty annotation, nothing wanted", &cachedService{hasHostAnnotation: true}, vip.Status{}, false},
	}
	s := &Statuses{}
	for _, tt := range tests {
		check.Equal(t, s.matches(tt.have, tt.want), tt.is, "%s", tt.name)
	}
}

func TestStatusRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newStatusTest(t)
		want := d.fill(100)
		d.set(func() { d.latency = time.Hour })
		d.plan(want...)
		advance(time.Second)
		began := time.Now()
		stop()
		check.Equal(t, time.Since(began), 0, "Run ended after")
		check.Equal(t, d.busy, 0, "requests that are left")
	})
}

// A write that was refused since somebody else has written something to the Service that Herald does not read, as many a controller does to
// new Services, is made again as soon as the cache shows that: no pass of the agent follows, since the World is the same.
func TestWritesAfterAnIrrelevantChange(t *testing.T) {
	k := vip.Key{Namespace: "default", Name: "web"}
	for what, put := range map[string]func(*Cluster){
		"address": func(c *Cluster) {
			c.Assignments.Put([]vip.Assignment{{Service: k, UID: "u", Addresses: addrs("10.0.0.1"), Pool: "web"}})
		},
		"status": func(c *Cluster) { c.Statuses.Put([]vip.Status{{Service: k, UID: "u", VIPHost: "n1"}}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			c, pokes := newTestCluster(t, "https://192.0.2.1:6443")
			o := loadBalancer("web", "")
			o.UID, o.ResourceVersion = "u", "1"
			check.OK(t, c.services.Add(o))
			writes := 0
			c.Statuses.patch = func(context.Context, vip.Key, []byte) (*corev1.Service, error) {
				writes++
				return nil, apierrors.NewConflict(schema.GroupResource{Resource: "services"}, "web", nil)
			}
			defer check.Run(t, c.Statuses)()
			put(c)
			time.Sleep(time.Minute)
			synctest.Wait()
			pokes()
			before := writes

			o = o.DeepCopy()
			o.ResourceVersion, o.Annotations["example.com/seen"] = "2", "true"
			check.OK(t, c.services.Update(o))
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			check.Equal(t, pokes(), 0, "pokes of the agent, though the World is the same")
			if before == 0 || writes != before+1 {
				t.Errorf("within 0.1 s: %d writes of the %s, want one; %d before", writes-before, what, before)
			}
		})
	}
}

// The finalizer of load balancers is written with the status; those of others stay.
func TestFinalizerWithStatus(t *testing.T) {
	const foreign = "example.com/other"
	for _, tt := range []struct {
		name   string
		have   []string
		going  bool // the Service is being deleted
		change vip.FinalizerChange
		want   []string
	}{
		{"added", nil, false, vip.AddFinalizer, []string{cleanupFinalizer}},
		{"added to others", []string{foreign}, false, vip.AddFinalizer, []string{cleanupFinalizer, foreign}},
		{"there already", []string{cleanupFinalizer, foreign}, false, vip.AddFinalizer, []string{cleanupFinalizer, foreign}},
		{"not added to one that is being deleted", []string{foreign}, true, vip.AddFinalizer, []string{foreign}},
		{"removed", []string{cleanupFinalizer, foreign}, true, vip.RemoveFinalizer, []string{foreign}},
		{"left", []string{cleanupFinalizer}, false, vip.LeaveFinalizer, []string{cleanupFinalizer}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			statusBubble(t, func(t *testing.T, d *statusTest) {
				want := d.fill(1)
				d.edit(serviceKey(0), func(s *corev1.Service) {
					s.Finalizers = tt.have
					if tt.going {
						s.DeletionTimestamp = &metav1.Time{Time: time.Now()}
					}
				})
				advance(time.Second)
				want[0].Finalizer = tt.change
				d.plan(want...)
				advance(time.Second)
				if got := d.at(serviceKey(0)).Finalizers; !slices.Equal(got, tt.want) || d.requests() != 1 || d.written() != 1 {
					t.Errorf("finalizers %v after %d requests, %d written; want %v", got, d.requests(), d.written(), tt.want)
				}
			})
		})
	}
}

// TestStatusRefusedForOneService: what the API server says of one Service, that it is too large or that an admission
// webhook denies it, does not make the statuses of others wait; and is told to the plan.
func TestStatusRefusedForOneService(t *testing.T) {
	for name, err := range map[string]error{
		"etcd":    apierrors.NewInternalError(errors.New("etcdserver: request is too large")),
		"webhook": apierrors.NewForbidden(services, "x", errors.New(`admission webhook "x.example.com" denied the request: no`)),
		"policy":  apierrors.NewForbidden(services, "x", errors.New(`ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no`)),
	} {
		t.Run(name, func(t *testing.T) {
			statusBubble(t, func(t *testing.T, d *statusTest) {
				pokes := 0
				d.poke = func() { pokes++ }
				want := d.fill(60)
				bad := func(k vip.Key) bool { return strings.HasPrefix(k.Name, "web-1") || strings.HasPrefix(k.Name, "web-2") }
				n := 0
				for _, w := range want {
					if bad(w.Service) {
						n++
					}
				}
				d.refusing(err, bad)
				d.plan(want...)
				advance(time.Second)
				check.Equal(t, d.written(), 60-n, "written after a second")
				w := d.observed()
				if why := w.StatusRefusals[serviceKey(1)]; len(w.StatusRefusals) != n ||
					!strings.Contains(why, strings.TrimPrefix(err.Error(), "Internal error occurred: ")) || pokes == 0 {
					t.Errorf("%d pokes, refusals: %q", pokes, w.StatusRefusals)
				}
				d.set(func() { d.refuse = nil })
				advance(2 * time.Minute)
				check.Equal(t, d.written(), 60, "written, once they are taken")
				check.Equal(t, len(d.observed().StatusRefusals), 0, "refusals then")
			})
		})
	}
}

// TestStatusOfAServiceOfAnotherType: the API server takes no addresses for a Service that is no load balancer any more; they are not
// written to it, though the Plan is of before that, and what the next Plan wants is written at once.
func TestStatusOfAServiceOfAnotherType(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		d.plan(d.fill(1)...)
		advance(time.Second)
		before := d.requests()
		d.edit(serviceKey(0), func(s *corev1.Service) {
			s.Spec.Type, s.Status.LoadBalancer = corev1.ServiceTypeClusterIP, corev1.LoadBalancerStatus{}
		})
		advance(100 * time.Millisecond)
		check.Equal(t, d.requests()-before, 0, "writes of addresses to a Service of type ClusterIP")
		d.plan(vip.Status{Service: serviceKey(0), UID: "uid"})
		advance(time.Second)
		check.Equal(t, len(d.at(serviceKey(0)).Annotations), 0, "annotations that are left")
	})
}

// fails is the answer of an API server whose webhook for Services of namespace a does not work.
func fails(k vip.Key) error {
	if k.Namespace != "a" {
		return nil
	}
	return apierrors.NewInternalError(errors.New(`failed calling webhook "x.example.com": connection refused`))
}

// hangs is fails of a webhook that does not answer: the API server gives up after 10 s.
func hangs(k vip.Key) error {
	if k.Namespace == "a" {
		time.Sleep(10 * time.Second)
	}
	return fails(k)
}

// oneAtATime is a webhook of namespace a that answers after 50 ms what comes alone; for what comes together the API
// server gives up after 10 s.
func oneAtATime() func(vip.Key) error {
	var underWay atomic.Int32
	return func(k vip.Key) error {
		if k.Namespace != "a" {
			return nil
		}
		underWay.Add(1)
		defer underWay.Add(-1)
		time.Sleep(50 * time.Millisecond)
		if underWay.Load() == 1 {
			return nil
		}
		return hangs(k)
	}
}

// TestStatusesOneAtATimeInOneNamespace: a namespace with 100 Services whose webhook answers only what comes alone
// keeps no other waiting, and is written, too.
func TestStatusesOneAtATimeInOneNamespace(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		d.set(func() { d.refuse = oneAtATime() })
		all := d.fillNamespace("a", 100)
		d.plan(all...)
		advance(15 * time.Second)
		for i, s := range d.fillNamespace("b", 40) {
			all = append(all, s)
			d.plan(all...)
			advance(2 * time.Second)
			check.Equal(t, d.writes(s.Service), 1, "writes within two seconds of Service %d of the other namespace", i)
			advance(5 * time.Second)
		}
		check.Equal(t, d.written(), 140, "written after 300 s")
	})
}

// TestStatusesOfNamespacesTakeTurns: while a namespace changes its 300 Services faster than their statuses can be
// written, the status of another namespace's Service is written at once.
func TestStatusesOfNamespacesTakeTurns(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := func(k vip.Key, node string) vip.Status {
			return vip.Status{Service: k, UID: "uid", VIPHost: node, Ingress: statusOf(1).Ingress}
		}
		var tenant []vip.Key
		for i := range 300 {
			tenant = append(tenant, vip.Key{Namespace: "a-tenant", Name: fmt.Sprintf("web-%03d", i)})
		}
		other := vip.Key{Namespace: "other", Name: "web"}
		for _, k := range append(tenant, other) {
			d.edit(k, ofLoadBalancer)
		}
		advance(time.Second)
		for i := range 40 { // a pass each 50 ms
			var all []vip.Status
			for _, k := range tenant {
				all = append(all, want(k, fmt.Sprint("n", i)))
			}
			if i >= 10 {
				all = append(all, want(other, "n1"))
			}
			d.plan(all...)
			advance(50 * time.Millisecond)
			if i == 12 && d.writes(other) != 1 {
				t.Errorf("%d writes of the other Service after three passes", d.writes(other))
			}
		}
		if d.requests() < 400 {
			t.Errorf("%d requests: the writer has had nothing to do", d.requests())
		}
	})
}

// A failed write lowers Len at the next Pop only: a workqueue relies on Len until its Pop.
func TestWriteLimitBeginsWithAPop(t *testing.T) {
	q := newTurns(func(int) string { return "a" })
	for i := range 4 {
		q.Push(i)
	}
	first, second := q.Pop(), q.Pop()
	q.done(first, failed)
	check.Equal(t, q.Len(), 1, "after a failure")
	third := q.Pop()
	q.done(second, answered)
	check.Equal(t, q.Len(), 0, "with one under way")
	q.done(third, answered)
	check.Equal(t, q.Len(), 1, "with none under way")
}

// A namespace of which a write failed, and few are made, is limited for some minutes only, and then forgotten.
func TestWriteLimitIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTurns(func(namespace string) string { return namespace })
		write := func(namespace string, o outcome) {
			q.Push(namespace)
			q.done(q.Pop(), o)
		}
		write("a", failed)
		for range 4 {
			time.Sleep(time.Minute)
			write("a", answered)
			write("b", answered)
			check.Equal(t, q.all["a"].limit, 1, "the limit")
		}
		time.Sleep(2 * time.Minute)
		write("b", answered)
		check.Equal(t, len(q.all), 0, "namespaces that are known minutes after the last failure")
	})
}
