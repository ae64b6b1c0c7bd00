package kube

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// TestAssignmentRejected: a Service that its user has made so large that no annotation can be added costs ever fewer writes, and
// delays no other; once it has changed it is written at once. While the API server is away each second is tried.
func TestAssignmentRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large, other := vip.Key{Namespace: "a", Name: "large"}, vip.Key{Namespace: "b", Name: "web"}
		services := map[vip.Key]*cachedService{large: {version: "1"}, other: {version: "1"}}
		writes := make(map[vip.Key]int)
		away := false
		a := &Assignments{log: slog.New(slog.DiscardHandler), wanted: mailbox.New[[]vip.Assignment](),
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
