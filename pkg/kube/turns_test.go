package kube

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// TestStatusesOfNamespacesTakeTurns: while a namespace changes its 300 Services faster than their statuses can be
// written, the status of another namespace's Service is written at once.
func TestStatusesOfNamespacesTakeTurns(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := func(k vip.Key, node string) vip.Status {
			return vip.Status{Service: k, VIPHost: node, Ingress: []vip.Ingress{{Addr: addrs("10.0.0.1")[0], IPMode: vip.ModeVIP,
				Ports: []vip.Port{{Protocol: "TCP", Port: 80}}}}}
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
			if got := q.all["a"].limit(); got != 1 {
				t.Errorf("limit %d, want 1", got)
			}
		}
		time.Sleep(2 * time.Minute)
		write("b", answered)
		if len(q.all) > 0 {
			t.Errorf("%d namespaces are known minutes after the last failure, want none", len(q.all))
		}
	})
}
