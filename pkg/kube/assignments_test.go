package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestAssignmentRejected: a Service that its user has made so large that no annotation can be added costs ever fewer writes, and
// delays no other; once it has changed it is written at once. While the API server is away each second is tried.
func TestAssignmentRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large, other := vip.Key{Namespace: "a", Name: "large"}, vip.Key{Namespace: "b", Name: "web"}
		services := map[vip.Key]*cachedService{large: {version: "1"}, other: {version: "1"}}
		writes := make(map[vip.Key]int)
		away := false
		a := &Assignments{log: slog.New(slog.DiscardHandler), wanted: mailbox.New[[]vip.Assignment](), refused: refusals{poke: func() {}},
			cached: func(k vip.Key) *cachedService { return services[k] },
			patch: func(_ context.Context, k vip.Key, _ []byte) error {
				writes[k]++
				switch {
				case away:
					return apierrors.NewServiceUnavailable("away")
				case k == large:
					return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, k.Name, nil)
				}
				return nil
			},
		}
		go a.Run(t.Context())
		both := []vip.Assignment{{Service: large, Addresses: addrs("10.0.0.1")}, {Service: other, Addresses: addrs("10.0.0.2")}}
		a.Put(both[:1])
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := writes[large]; n < 5 || n > 20 {
			t.Errorf("%d writes in ten minutes", n)
		}
		a.Put(both)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if writes[other] != 1 {
			t.Errorf("%d writes of another Service", writes[other])
		}
		before := writes[large]
		services[large] = &cachedService{version: "2"}
		a.Put(both[:1])
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if writes[large] != before+1 {
			t.Errorf("%d writes once it has changed", writes[large]-before)
		}
		away, services[other] = true, &cachedService{version: "3"}
		before = writes[other]
		a.Put(both[1:])
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := writes[other] - before; n < 50 {
			t.Errorf("%d writes in a minute in which the API server was away", n)
		}
	})
}

// TestAssignmentsDoNotWaitForOthers: a write that is not answered, by a webhook that hangs, say, keeps no other Service from its address.
func TestAssignmentsDoNotWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, other := vip.Key{Namespace: "a", Name: "slow"}, vip.Key{Namespace: "b", Name: "web"}
		services := map[vip.Key]*cachedService{slow: {version: "1"}, other: {version: "1"}}
		var mu sync.Mutex
		writes := make(map[vip.Key]int)
		count := func(k vip.Key) int {
			mu.Lock()
			defer mu.Unlock()
			return writes[k]
		}
		a := &Assignments{log: slog.New(slog.DiscardHandler), wanted: mailbox.New[[]vip.Assignment](), refused: refusals{poke: func() {}},
			cached: func(k vip.Key) *cachedService { return services[k] },
			patch: func(ctx context.Context, k vip.Key, _ []byte) error {
				mu.Lock()
				writes[k]++
				mu.Unlock()
				if k == slow {
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return nil
			},
		}
		stop := check.Run(t, a)
		both := []vip.Assignment{{Service: slow, Addresses: addrs("10.0.0.1")}, {Service: other, Addresses: addrs("10.0.0.2")}}
		a.Put(both[:1])
		time.Sleep(15 * time.Second) // it is the second time that it is not answered
		a.Put(both)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if count(other) != 1 {
			t.Errorf("%d writes of another Service while one is not answered", count(other))
		}
		time.Sleep(time.Minute)
		if n := count(slow); n < 3 || n > 10 {
			t.Errorf("%d writes in a minute of the Service whose writes are not answered", n)
		}
		stop()
	})
}

// TestAssignmentByDHCP: that a DHCP server is asked for an address is no address that was allocated.
func TestAssignmentByDHCP(t *testing.T) {
	for addr, want := range map[string]bool{"10.0.0.1": true, "0.0.0.0": false, "::": false} {
		var body []byte
		a := &Assignments{log: slog.New(slog.DiscardHandler), patch: func(_ context.Context, _ vip.Key, b []byte) error { body = b; return nil }}
		check.OK(t, a.write(t.Context(), &cachedService{version: "1"}, vip.Assignment{Addresses: addrs(addr), Pool: "web"}))
		if got := strings.Contains(string(body), string(vip.Allocated)); got != want || !strings.Contains(string(body), `"kube-vip.io/loadbalancerIPs":"`+addr+`"`) {
			t.Errorf("%s: %s; want a condition: %v", addr, body, want)
		}
	}
}

// TestAssignmentRefusals: why the API server does not take an address is told while that is wanted, once for each answer.
func TestAssignmentRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newAssignmentTest(t, func(k vip.Key) error {
			if k.Namespace == "a" {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, k.Name, errors.New(`admission webhook "x.example.com" denied the request: no`))
			}
			return nil
		})
		var pokes atomic.Int32
		d.refused.poke = func() { pokes.Add(1) }
		refusals := func() map[vip.Key]string {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			var w vip.World
			d.Observe(&w)
			return w.AssignmentRefusals
		}
		d.plan(d.plan(nil, "a", 2), "b", 1)
		if all := refusals(); len(all) != 2 || !strings.Contains(all[vip.Key{Namespace: "a", Name: "web-001"}], "denied the request: no") || pokes.Load() != 2 {
			t.Errorf("%d pokes, refused: %q", pokes.Load(), all)
		}
		time.Sleep(10 * time.Minute)
		if n, _ := d.count("a"); n > 40 || pokes.Load() != 2 || strings.Count(d.log.String(), "level=WARN") != 2 {
			t.Errorf("%d writes and %d pokes in ten minutes; log: %s", n, pokes.Load(), &d.log)
		}
		all := d.plan(nil, "a", 1)
		if got := refusals(); len(got) != 1 {
			t.Errorf("refused: %q, though one Service is left", got)
		}
		d.mu.Lock()
		d.answer = func(vip.Key) error { return nil }
		d.mu.Unlock()
		time.Sleep(rejectedMax)
		if got := refusals(); len(got) != 0 {
			t.Errorf("refused: %q, though %v is written", got, all)
		}
	})
}

// TestAssignmentOfWhatWasThere: an address is written on no Service on which its user has named others since it was decided, though something else wakes the writer before
// the agent's next pass.
func TestAssignmentOfWhatWasThere(t *testing.T) {
	named := func(version, allocated string, a ...string) *cachedService {
		s := &cachedService{version: version}
		s.Addresses, s.Source, s.Allocated = addrs(a...), addressesKey, allocated
		return s
	}
	for name, tt := range map[string]struct {
		before, now *cachedService
		want        int // writes
	}{
		"only its status names what no Service can have": {&cachedService{version: "1"}, &cachedService{version: "2", Service: vip.Service{Addresses: addrs("10.0.0.11"), Source: vip.SourceStatus}}, 2},
		"what it was given is superseded":                {&cachedService{version: "1", Service: vip.Service{Superseded: true}}, &cachedService{version: "2"}, 1},
		"its user names another":                         {&cachedService{version: "1"}, named("2", "", "10.0.0.99"), 1},
		"... in place of what it was given":              {named("1", "old", "10.9.0.1"), named("2", "old", "10.0.0.99"), 1},
		"what it was given is a person's by now":         {named("1", "old", "10.9.0.1"), named("2", "", "10.9.0.1"), 1},
		"something else has changed":                     {named("1", "old", "10.9.0.1"), named("2", "old", "10.9.0.1"), 2},
		"something else has changed, without any":        {&cachedService{version: "1"}, &cachedService{version: "2"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := vip.Key{Namespace: "a", Name: "web"}
				var service atomic.Pointer[cachedService]
				service.Store(tt.before)
				writes := 0
				a := &Assignments{log: slog.New(slog.DiscardHandler), wanted: mailbox.New[[]vip.Assignment](), refused: refusals{poke: func() {}},
					cached: func(vip.Key) *cachedService { return service.Load() },
					patch: func(_ context.Context, _ vip.Key, body []byte) error {
						if writes++; strings.Contains(string(body), `"resourceVersion":"1"`) {
							return apierrors.NewConflict(schema.GroupResource{Resource: "services"}, k.Name, nil) // the API server has version 2
						}
						return nil
					},
				}
				check.Run(t, a)
				a.Put([]vip.Assignment{{Service: k, Addresses: addrs("10.0.0.1"), Pool: "cidr-global", Had: tt.before.Addresses, HadPool: tt.before.Allocated, Remove: tt.before.Superseded}})
				synctest.Wait()
				service.Store(tt.now)
				a.wanted.Changed.Send() // as wakeWriters does
				synctest.Wait()
				if writes != tt.want {
					t.Errorf("%d writes, want %d", writes, tt.want)
				}
			})
		})
	}
}

// TestRefusalInOtherWords: a webhook that denies an address in other words each time, with the number of the request, say, costs ever fewer writes, though what it says is
// written on the Service as a condition.
func TestRefusalInOtherWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := vip.Key{Namespace: "a", Name: "web"}
		var service atomic.Pointer[cachedService]
		service.Store(&cachedService{version: "1"})
		var writes, conditions atomic.Int32
		poked := make(chan struct{}, 1)
		a := &Assignments{log: slog.New(slog.DiscardHandler), wanted: mailbox.New[[]vip.Assignment](),
			refused: refusals{poke: func() {
				select {
				case poked <- struct{}{}:
				default:
				}
			}},
			cached: func(vip.Key) *cachedService { return service.Load() },
			patch: func(context.Context, vip.Key, []byte) error {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, k.Name, fmt.Errorf(`admission webhook "x.example.com" denied the request: no (request %d)`, writes.Add(1)))
			},
		}
		check.Run(t, a)
		want := []vip.Assignment{{Service: k, Addresses: addrs("10.0.0.1")}}
		a.Put(want)
		end := time.After(30 * time.Minute)
		for told := ""; ; { // the agent, and the writer of conditions
			select {
			case <-end:
				if w, c := writes.Load(), conditions.Load(); w > 60 || c < 2 || c > 4 {
					t.Errorf("%d writes of the address and %d of the condition in half an hour", w, c)
				}
				return
			case <-poked:
			}
			time.Sleep(100 * time.Millisecond)
			if why := a.refused.get()[k]; why != told {
				told = why
				service.Store(&cachedService{version: fmt.Sprint("condition ", conditions.Add(1))})
			}
			a.Put(want)
		}
	})
}
