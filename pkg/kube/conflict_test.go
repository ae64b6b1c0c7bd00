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

// A write that was refused since somebody else has written something to the Service that Herald does not read, as many a controller does to
// new Services, is made again as soon as the cache shows that: no pass of the agent follows, since the World is the same.
func TestWritesAfterAnIrrelevantChange(t *testing.T) {
	k := vip.Key{Namespace: "default", Name: "web"}
	for what, put := range map[string]func(*Cluster){
		"address": func(c *Cluster) {
			c.Assignments.Put([]vip.Assignment{{Service: k, UID: "u", Addresses: addrs("10.0.0.1"), Pool: "web"}})
		},
		"status": func(c *Cluster) { c.Statuses.Put([]vip.Status{{Service: k, VIPHost: "n1"}}) },
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
			if pokes() > 0 {
				t.Error("the agent was poked, though the World is the same")
			}
			if before == 0 || writes != before+1 {
				t.Errorf("within 0.1 s: %d writes of the %s, want one; %d before", writes-before, what, before)
			}
		})
	}
}
