package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// egressService is a Service that asks for egress of the pods app=NAME.
func egressService(name string, created time.Time) *corev1.Service {
	s := loadBalancer(name, "10.0.0.50")
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, egressKey, "true")
	s.CreationTimestamp, s.Spec.Selector = metav1.NewTime(created), map[string]string{"app": name}
	return s
}

// The pods of Services with egress are watched, the oldest 64, each by its selector, as long as they ask for it; a
// Service says why its pods are not known as soon as that is known.
func TestPodsOfEgress(t *testing.T) {
	c, _ := newTestCluster(t, "https://10.0.0.1:6443")
	c.o.Egress = true
	for i := range maxEgressServices + 1 {
		check.OK(t, c.services.Add(egressService(fmt.Sprintf("s%d", i), time.Unix(int64(i), 0))))
	}
	select {
	case <-c.pods.wake:
	default:
		t.Error("the watches are not told of Services with egress")
	}
	for _, s := range observe(c).Services {
		check.Equal(t, s.PodsUnknown, vip.PodsBeingListed, "before they are watched the pods of %s are not known", s.Key)
	}
	fresh := c.pods.begin(t.Context())
	check.Equal(t, len(fresh), maxEgressServices, "watches")
	last := vip.Key{Namespace: "default", Name: fmt.Sprint("s", maxEgressServices)}
	if c.pods.watches[last] != nil {
		t.Error("the youngest is watched")
	}
	first := c.pods.watches[vip.Key{Namespace: "default", Name: "s0"}]
	check.Equal(t, first.labels, "app=s0", "labels of the pods that are watched")
	check.Equal(t, first.namespace, "default", "their namespace")
	of := func(name string) vip.Service {
		all := observe(c).Services
		return all[slices.IndexFunc(all, func(s vip.Service) bool { return s.Key.Name == name })]
	}
	check.Equal(t, of("s0").PodsUnknown, vip.PodsBeingListed, "before the first list")
	check.Equal(t, of(last.Name).PodsUnknown, tooManyWithEgress, "of the youngest")
	for range failuresBeforeReport {
		first.retryDelay(apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil))
	}
	first.poke()
	check.Equal(t, of("s0").PodsUnknown, podsRefused, "refused")
	first.succeeded()
	pod := func(name, node string, change func(*corev1.Pod), addresses ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node}}
		for _, a := range addresses {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
		}
		change(p)
		return p
	}
	as := func(*corev1.Pod) {}
	check.OK(t, first.Replace([]any{
		pod("b", "n2", as, "10.1.0.2", "fd01::2"), pod("a", "n1", as, "10.1.0.1"), pod("none", "n1", as),
		pod("host", "n1", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "10.0.0.1"),
		pod("done", "n1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "10.1.0.3"),
	}, ""))
	want := []vip.Pod{{Name: "a", Node: "n1", Addresses: addrs("10.1.0.1")},
		{Name: "b", Node: "n2", Addresses: addrs("10.1.0.2", "fd01::2")}}
	check.Equal(t, of("s0").PodsUnknown, "", "once they are listed")
	check.Equal(t, fmt.Sprint(of("s0").Pods), fmt.Sprint(want), "the pods")
	check.OK(t, first.Delete(pod("a", "n1", as, "10.1.0.1")))
	check.Equal(t, len(of("s0").Pods), 1, "pods after one has gone")
	check.OK(t, c.services.Update(loadBalancer("s0", "10.0.0.50")))
	if fresh := c.pods.begin(t.Context()); len(fresh) != 1 || c.pods.watches[last] == nil {
		t.Errorf("%d new watches, want one, of the next", len(fresh))
	}
	changed := egressService("s1", time.Unix(1, 0))
	changed.Spec.Selector["tier"] = "web"
	check.OK(t, c.services.Update(changed))
	check.Equal(t, len(c.pods.begin(t.Context())), 1, "new watches after a change of the selector")
	check.Equal(t, c.pods.watches[vip.Key{Namespace: "default", Name: "s1"}].labels, "app=s1,tier=web", "the selector")
}

// A Service whose selector changes all the time has its pods listed once a second.
func TestSelectorThatChangesAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newTestCluster(t, "https://10.0.0.1:6443")
		c.o.Egress = true
		lists := 0
		c.o.Poke = func() {}
		c.pods = newPods(c, nil) // with a signal of this bubble
		c.pods.run = func(context.Context, *reflectorStore[vip.Pod]) { lists++ }
		ctx, end := context.WithCancel(t.Context())
		go c.pods.Run(ctx)
		for i := range 1000 {
			s := egressService("s0", time.Unix(0, 0))
			s.Spec.Selector["tier"] = fmt.Sprint(i)
			check.OK(t, c.services.Update(s))
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		if lists < 5 || lists > 15 {
			t.Errorf("in 10 s the pods of one Service were listed %d times", lists)
		}
		end()
		synctest.Wait()
	})
}

// One namespace can't take all places: every namespace gets its oldest Service in before any gets another.
func TestPlacesAreShared(t *testing.T) {
	c, _ := newTestCluster(t, "https://10.0.0.1:6443")
	c.o.Egress = true
	add := func(namespace, name string, created int64) {
		s := egressService(name, time.Unix(created, 0))
		s.Namespace = namespace
		check.OK(t, c.services.Add(s))
	}
	for i := range maxEgressServices {
		add("greedy", fmt.Sprintf("s%02d", i), int64(i))
	}
	c.pods.begin(t.Context())
	check.Equal(t, len(c.pods.watches), maxEgressServices, "places of a namespace, alone")
	add("late", "a", 1000)
	add("late", "b", 1001)
	c.pods.begin(t.Context())
	for name, want := range map[string]string{"a": vip.PodsBeingListed, "b": vip.PodsBeingListed,
		"s00": vip.PodsBeingListed, "s61": vip.PodsBeingListed, "s62": tooManyWithEgress, "s63": tooManyWithEgress} {
		for _, s := range observe(c).Services {
			if s.Key.Name == name && s.PodsUnknown != want {
				t.Errorf("%s: %q, want %q", s.Key, s.PodsUnknown, want)
			}
		}
	}
	check.Equal(t, len(c.pods.watches), maxEgressServices, "Services with places")
}

// What an earlier process left in the kernel counts until the pods of all Services with egress have been listed once,
// or can't be, but not for long.
func TestPodsPending(t *testing.T) {
	for name, end := range map[string]func(*Cluster, *podWatch){
		"listed":      func(_ *Cluster, w *podWatch) { check.OK(t, w.Replace(nil, "")) },
		"refused":     func(_ *Cluster, w *podWatch) { w.refused.Store(true) },
		"gone":        func(c *Cluster, _ *podWatch) { check.OK(t, c.services.Update(loadBalancer("s0", "10.0.0.50"))) },
		"never ready": func(*Cluster, *podWatch) { time.Sleep(maxPending) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _ := newTestCluster(t, "https://10.0.0.1:6443")
				c.o.Egress = true
				c.pods = newPods(c, nil) // with a signal of this bubble
				check.OK(t, c.services.Add(egressService("s0", time.Unix(0, 0))))
				pending := func() bool {
					c.mu.Lock()
					defer c.mu.Unlock()
					return c.pods.pending()
				}
				check.Equal(t, pending(), true, "pending while nothing is listed")
				c.pods.begin(t.Context())
				check.Equal(t, pending(), true, "pending while the list is not complete")
				end(c, c.pods.watches[vip.Key{Namespace: "default", Name: "s0"}])
				check.Equal(t, pending(), false, "pending, then")
				check.OK(t, c.services.Add(egressService("s1", time.Unix(1, 0))))
				check.Equal(t, pending(), false, "pending again for a Service that is new")
			})
		})
	}
}

// FuzzPod: of a Pod the addresses are kept that are some, and of few; one without, or with its node's, counts for nothing.
func FuzzPod(f *testing.F) {
	f.Add("10.0.0.1 fd00::1", "n1", "Running", false)
	f.Add("::ffff:10.0.0.1 10.0.0.1 x "+strings.Repeat("10.0.0.2 ", 1000), "", "", true)
	f.Fuzz(func(t *testing.T, addresses, node, phase string, hostNetwork bool) {
		o := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node, HostNetwork: hostNetwork},
			Status: corev1.PodStatus{Phase: corev1.PodPhase(phase)}}
		for _, a := range strings.Fields(addresses) {
			o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a})
		}
		p := readPod(o)
		if p == nil {
			return
		}
		if hostNetwork || len(p.Addresses) == 0 || len(p.Addresses) > maxPodAddresses {
			t.Errorf("%+v", p)
		}
		for _, a := range p.Addresses {
			if !a.IsValid() || a.Is4In6() || a.Zone() != "" {
				t.Errorf("address %s", a)
			}
		}
	})
}
