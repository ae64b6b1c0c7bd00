package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestStatusesOfNamespacesTakeTurns: while a namespace changes its 300 Services faster than their statuses can be written, the status of
// another namespace's Service is written at once.
func TestStatusesOfNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, stop := newStatusTest(t)
		defer stop()
		want := func(k vip.Key, node string) vip.Status {
			return vip.Status{Service: k, VIPHost: node, Ingress: []vip.Ingress{{Addr: addrs("10.0.0.1")[0], IPMode: vip.ModeVIP, Ports: []vip.Port{{Protocol: "TCP", Port: 80}}}}}
		}
		var tenant []vip.Key
		for i := range 300 {
			tenant = append(tenant, vip.Key{Namespace: "a-tenant", Name: fmt.Sprintf("web-%03d", i)})
		}
		other := vip.Key{Namespace: "other", Name: "web"}
		for _, k := range append(tenant, other) {
			d.edit(k, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer })
		}
		advance(time.Second)
		for i := range 100 { // a pass each 50 ms
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
		if d.requests() < 1000 {
			t.Errorf("%d requests: the writer has had nothing to do", d.requests())
		}
	})
}

// TestAssignmentsOfNamespacesTakeTurns: the same of addresses that Services are given.
func TestAssignmentsOfNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := vip.Key{Namespace: "other", Name: "web"}
		var mu sync.Mutex
		version, writes := 0, make(map[vip.Key]int)
		a := &Assignments{log: slog.New(slog.DiscardHandler), wanted: mailbox.New[[]vip.Assignment](), refused: refusals{poke: func() {}},
			cached: func(vip.Key) *cachedService {
				mu.Lock()
				defer mu.Unlock()
				return &cachedService{version: fmt.Sprint(version)}
			},
			patch: func(_ context.Context, k vip.Key, _ []byte) error {
				time.Sleep(10 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				writes[k]++
				return nil
			},
		}
		defer check.Run(t, a)()
		var all []vip.Assignment
		for i := range 300 {
			all = append(all, vip.Assignment{Service: vip.Key{Namespace: "a-tenant", Name: fmt.Sprintf("web-%03d", i)}, Addresses: addrs("10.0.0.1")})
		}
		for i := range 100 {
			if i == 10 {
				all = append(all, vip.Assignment{Service: other, Addresses: addrs("10.0.0.2")})
			}
			mu.Lock()
			version++
			mu.Unlock()
			a.Put(all)
			time.Sleep(50 * time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		if writes[other] == 0 || len(writes) < 10 {
			t.Errorf("%d writes of the other Service, %d Services were written", writes[other], len(writes))
		}
	})
}
