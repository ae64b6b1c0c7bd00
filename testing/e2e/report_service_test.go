package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What a person asks for later wins over what Herald gave from a pool, in whichever field: the VIP moves, and the old address is
// free again. Where a person's own annotation says otherwise, an Event names both.
func TestLaterWish(t *testing.T) {
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.60"})
	start(t, env())
	for _, tt := range []struct{ name, patch, want string }{
		{"spec", `{"spec":{"loadBalancerIP":"10.77.0.70"}}`, "10.77.0.70(VIP)"},
		{"metallb", `{"metadata":{"annotations":{"metallb.io/loadBalancerIPs":"10.77.0.71"}}}`, "10.77.0.71(VIP)"},
		{"cilium", `{"metadata":{"annotations":{"lbipam.cilium.io/ips":"10.77.0.72"}}}`, "10.77.0.72(VIP)"},
	} {
		createService(t, webService(tt.name, ""))
		awaitStatus(t, tt.name, "10.77.0.60(VIP)", 3*time.Second) // the only one: it is free again
		patchService(t, tt.name, tt.patch)
		awaitStatus(t, tt.name, tt.want, 3*time.Second)
		until(t, 3*time.Second, "what was given is taken off", func(ctx) error {
			a := getService(t, tt.name).Annotations
			if got := a["kube-vip.io/loadbalancerIPs"] + a["heraldvip.io/allocated"]; got != "" {
				return fmt.Errorf("it has %q", got)
			}
			return nil
		})
	}
	createService(t, webService("two", "10.77.0.80"))
	awaitStatus(t, "two", "10.77.0.80(VIP)", 3*time.Second)
	patchService(t, "two", `{"spec":{"loadBalancerIP":"10.77.0.81"}}`)
	awaitEvent(t, "two", "InvalidField", `spec.loadBalancerIP asks for "10.77.0.81", and has no effect: kube-vip.io/loadbalancerIPs, which comes first, asks for "10.77.0.80"`)
}

// Somebody who changes the status again and again is named, in an Event and in the condition Announced, until it stops.
func TestStatusContested(t *testing.T) {
	start(t, env())
	createService(t, webService("a", "10.77.0.60"))
	awaitStatus(t, "a", "10.77.0.60(VIP)", 3*time.Second)
	ctx, stop := context.WithCancel(t.Context())
	var other sync.WaitGroup
	other.Go(func() {
		body := []byte(`{"status":{"loadBalancer":{"ingress":[{"ip":"10.99.0.1"}]}}}`)
		for tick := time.NewTicker(100 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				cluster.Client().CoreV1().Services("default").Patch(ctx, "a", types.MergePatchType, body, metav1.PatchOptions{FieldManager: "other-lb"}, "status")
			}
		}
	})
	defer other.Wait()
	defer stop()
	awaitEvent(t, "a", "StatusContested", `"other-lb" changes what Herald writes on this Service again and again`)
	awaitCondition(t, "a", "Announced", `True StatusContested "other-lb" changes`)
	stop()
	other.Wait()
	awaitStatus(t, "a", "10.77.0.60(VIP)", 10*time.Second)
}
