package kube

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A write that was refused since somebody else has written something to the Service that Herald does not read, as many a
// controller does to new Services, is made again as soon as the cache shows that: no pass of the agent follows, since the World is the same.
func TestWritesAfterAnIrrelevantChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, pokes := newTestCluster(t, "https://192.0.2.1:6443")
		o := loadBalancer("web", "")
		o.UID, o.ResourceVersion = "u", "1"
		check.OK(t, c.services.Add(o))
		changed := apierrors.NewConflict(schema.GroupResource{Resource: "services"}, "web", nil)
		var addresses, statuses int
		c.Assignments.patch = func(context.Context, vip.Key, []byte) error { addresses++; return changed }
		c.Statuses.patch = func(context.Context, vip.Key, []byte) (*corev1.Service, error) { statuses++; return nil, changed }
		defer check.Run(t, c.Assignments)()
		defer check.Run(t, c.Statuses)()
		k := vip.Key{Namespace: "default", Name: "web"}
		c.Assignments.Put([]vip.Assignment{{Service: k, UID: "u", Addresses: addrs("10.0.0.1"), Pool: "web"}})
		c.Statuses.Put([]vip.Status{{Service: k, VIPHost: "n1"}})
		time.Sleep(time.Minute)
		synctest.Wait()
		pokes()
		before := [2]int{addresses, statuses}

		o = o.DeepCopy()
		o.ResourceVersion, o.Annotations["example.com/seen"] = "2", "true"
		check.OK(t, c.services.Update(o))
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if pokes() > 0 {
			t.Error("the agent was poked, though the World is the same")
		}
		if addresses != before[0]+1 || statuses != before[1]+1 {
			t.Errorf("within 0.1 s: %d writes of the address, %d of the status, want one each", addresses-before[0], statuses-before[1])
		}
	})
}
