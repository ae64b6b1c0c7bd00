package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/testing/check"
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
		{"overwritten", `{"metadata":{"annotations":{"kube-vip.io/loadbalancerIPs":"10.77.0.73"}}}`, "10.77.0.73(VIP)"},
	} {
		createService(t, webService(tt.name, ""))
		awaitStatus(t, tt.name, "10.77.0.60(VIP)", 3*time.Second) // the only one: it is free again
		patchService(t, tt.name, tt.patch)
		awaitStatus(t, tt.name, tt.want, 3*time.Second)
		until(t, 3*time.Second, "what was given is taken off", func(ctx) error {
			a := getService(t, tt.name).Annotations
			if got := strings.TrimSuffix(a["kube-vip.io/loadbalancerIPs"], "10.77.0.73") + a["heraldvip.io/allocated"] +
				a["heraldvip.io/allocated-addresses"]; got != "" {
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

// Another program takes a VIP off its owner's link again and again: it is put back, and the Service says so.
func TestAddressContested(t *testing.T) {
	start(t, env())
	createService(t, webService("a", "10.77.0.60"))
	owner := awaitOwner(t, "a")
	for range 4 {
		until(t, 5*time.Second, "the owner has it", func(ctx context.Context) error {
			_, err := cluster.Run(ctx, owner, "ip", "addr", "del", "10.77.0.60/32", "dev", "eth0")
			return err
		})
	}
	awaitEvent(t, "a", "AddressContested", "another program takes 10.77.0.60 off eth0 of node "+owner+" again and again")
	awaitCondition(t, "a", "Announced", "True AddressContested another program takes 10.77.0.60")
	awaitReachable(t, "http://10.77.0.60/")
}

// What another load balancer has left in a status, the addresses of nodes, say, is no wish: the Service is given one of a pool.
func TestLeftByServiceLB(t *testing.T) {
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.69"})
	createService(t, webService("a", ""))
	body := []byte(fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q},{"ip":%q}]}}}`, "10.77.0.11", "10.77.0.12"))
	check.Value(cluster.Client().CoreV1().Services("default").Patch(t.Context(), "a", types.MergePatchType, body, metav1.PatchOptions{}, "status"))(t)
	start(t, env())
	awaitStatus(t, "a", "10.77.0.60(VIP)", 5*time.Second) // Herald starts, too
}

// A Service that requires both families and names one address is given the other of a pool, beside it; without one it is told which lacks.
func TestBesideOwnAddress(t *testing.T) {
	start(t, env())
	both := func(s *corev1.Service) {
		s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	createService(t, webService("a", "10.77.0.80", both))
	awaitEvent(t, "a", "FamilyMissing", "the Service has no IPv6 address: name one beside 10.77.0.80")
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.69"})
	awaitEvent(t, "a", "NoPoolAddress", "no free IPv6 address")
	setPools(t, map[string]string{"range-global": "10.77.0.60-10.77.0.69,fd77::60-fd77::69"})
	awaitStatus(t, "a", "10.77.0.80(VIP),fd77::60(VIP)", 5*time.Second)
	if a := getService(t, "a").Annotations; a["kube-vip.io/loadbalancerIPs"] != "10.77.0.80" || a["heraldvip.io/allocated-addresses"] != "fd77::60" {
		t.Errorf("annotations %v", a)
	}
}
