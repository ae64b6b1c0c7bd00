package kube

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/vip"
)

// TestStatusRefusedForOneService: what the API server says of one Service, that it is too large or that an admission
// webhook denies it, does not make the statuses of others wait; and is told to the plan.
func TestStatusRefusedForOneService(t *testing.T) {
	services := schema.GroupResource{Resource: "services"}
	for name, err := range map[string]error{
		"etcd":    apierrors.NewInternalError(errors.New("etcdserver: request is too large")),
		"webhook": apierrors.NewForbidden(services, "x", errors.New(`admission webhook "x.example.com" denied the request: no`)),
		"policy":  apierrors.NewForbidden(services, "x", errors.New(`ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no`)),
	} {
		t.Run(name, func(t *testing.T) {
			statusBubble(t, func(t *testing.T, d *statusTest) {
				pokes := 0
				d.refused[ofStatus].poke = func() { pokes++ }
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
				if got := d.written(); got != 60-n {
					t.Errorf("%d written after a second, want %d", got, 60-n)
				}
				var w vip.World
				d.Observe(&w)
				if why := w.StatusRefusals[serviceKey(1)]; len(w.StatusRefusals) != n ||
					!strings.Contains(why, strings.TrimPrefix(err.Error(), "Internal error occurred: ")) || pokes == 0 {
					t.Errorf("%d pokes, refusals: %q", pokes, w.StatusRefusals)
				}
				d.set(func() { d.refuse = nil })
				advance(2 * time.Minute)
				if d.Observe(&w); len(w.StatusRefusals) > 0 || d.written() != 60 {
					t.Errorf("%d written, refusals: %q", d.written(), w.StatusRefusals)
				}
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
		if n := d.requests() - before; n > 0 {
			t.Errorf("%d writes of addresses to a Service of type ClusterIP", n)
		}
		d.plan(vip.Status{Service: serviceKey(0)})
		advance(time.Second)
		if s := d.at(serviceKey(0)); len(s.Annotations) > 0 {
			t.Errorf("left of it: %v", s.Annotations)
		}
	})
}

// TestStatusAfterARefusal: a write that the API server refuses changes nothing, so what another Plan wants is written at once.
func TestStatusAfterARefusal(t *testing.T) {
	statusBubble(t, func(t *testing.T, d *statusTest) {
		want := d.fill(1)
		d.set(func() {
			d.refuse = func(vip.Key) error { return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "web-0", nil) }
		})
		d.plan(want...)
		advance(100 * time.Millisecond)
		d.set(func() { d.refuse = nil })
		want[0].VIPHost = "n2"
		d.plan(want...)
		advance(500 * time.Millisecond)
		if d.written() != 1 {
			t.Errorf("not written half a second after another Plan")
		}
	})
}
