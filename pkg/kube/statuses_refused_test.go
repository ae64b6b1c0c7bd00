package kube

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/vip"
)

// TestStatusRefusedForOneService: what the API server says of one Service, that it is too large or that an admission webhook denies
// it, does not make the statuses of others wait; and is told to the plan.
func TestStatusRefusedForOneService(t *testing.T) {
	services := schema.GroupResource{Resource: "services"}
	for name, err := range map[string]error{
		"etcd":    apierrors.NewInternalError(errors.New("etcdserver: request is too large")),
		"webhook": apierrors.NewForbidden(services, "x", errors.New(`admission webhook "x.example.com" denied the request: no`)),
		"policy":  apierrors.NewForbidden(services, "x", errors.New(`ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no`)),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, stop := newStatusTest(t)
				defer stop()
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
				d.set(func() {
					d.refuse = func(k vip.Key) error {
						if bad(k) {
							return err
						}
						return nil
					}
				})
				d.plan(want...)
				advance(time.Second)
				if got := d.written(); got != 60-n {
					t.Errorf("%d written after a second, want %d", got, 60-n)
				}
				var w vip.World
				d.Observe(&w)
				if why := w.StatusRefusals[serviceKey(1)]; len(w.StatusRefusals) != n || !strings.Contains(why, strings.TrimPrefix(err.Error(), "Internal error occurred: ")) || pokes == 0 {
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
