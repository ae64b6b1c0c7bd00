package kube

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// newAssignmentTest is newStatusTest with Services of type LoadBalancer.
func newAssignmentTest(t *testing.T, services ...vip.Key) *statusTest {
	d, stop := newStatusTest(t)
	t.Cleanup(stop)
	for _, k := range services {
		d.edit(k, ofLoadBalancer)
	}
	advance(time.Second)
	return d
}

// given is an Assignment of an address to a Service that has none.
func given(k vip.Key, addr string) vip.Assignment {
	return vip.Assignment{Service: k, UID: "uid", Addresses: addrs(addr), Pool: "web"}
}

// TestAssignmentByDHCP: that a DHCP server is asked for an address is no address that was allocated.
func TestAssignmentByDHCP(t *testing.T) {
	for addr, want := range map[string]bool{"10.0.0.1": true, "0.0.0.0": false, "::": false} {
		body := check.Value(addressPatch(&cachedService{version: "1"}, &vip.Assignment{Addresses: addrs(addr), Pool: "web"}))(t)
		if got := strings.Contains(string(body), string(vip.Allocated)); got != want ||
			!strings.Contains(string(body), `"kube-vip.io/loadbalancerIPs":"`+addr+`"`) {
			t.Errorf("%s: %s; want a condition: %v", addr, body, want)
		}
	}
}

// TestAssignmentAnnotations: what was given is written beside what a person has named, which no Assignment touches.
func TestAssignmentAnnotations(t *testing.T) {
	const spec = "metallb.io/loadBalancerIPs"
	give := vip.Assignment{Addresses: addrs("10.0.0.1"), Pool: "web"}
	beside := vip.Assignment{Addresses: addrs("10.0.0.8", "fd00::1"), Own: addrs("10.0.0.8"), Pool: "web"}
	for name, tt := range map[string]struct {
		before map[string]string
		w      vip.Assignment
		want   map[string]string
	}{
		"given": {nil, give, map[string]string{addressesKey: "10.0.0.1", allocatedKey: "web", allocatedAddressesKey: "10.0.0.1"}},
		"given beside an own one": {map[string]string{addressesKey: "10.0.0.8"}, beside,
			map[string]string{addressesKey: "10.0.0.8", allocatedKey: "web", allocatedAddressesKey: "fd00::1"}},
		"given beside one of the spec, then nothing is given any more": {map[string]string{allocatedKey: "web", allocatedAddressesKey: "fd00::1",
			spec: "10.0.0.8"}, vip.Assignment{Addresses: addrs("10.0.0.8"), Own: addrs("10.0.0.8"), Remove: true}, map[string]string{spec: "10.0.0.8"}},
		"given, then another is asked for": {map[string]string{addressesKey: "10.0.0.1", allocatedKey: "web",
			allocatedAddressesKey: "10.0.0.1", spec: "10.0.0.9"}, vip.Assignment{Remove: true}, map[string]string{spec: "10.0.0.9"}},
		"... as before it was written which": {map[string]string{addressesKey: "10.0.0.1", allocatedKey: "web", spec: "10.0.0.9"},
			vip.Assignment{Remove: true}, map[string]string{spec: "10.0.0.9"}},
		"given, then another in its place": {map[string]string{addressesKey: "10.0.0.9", allocatedKey: "web",
			allocatedAddressesKey: "10.0.0.1"}, vip.Assignment{Remove: true}, map[string]string{addressesKey: "10.0.0.9"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := vip.Key{Namespace: "a", Name: "web"}
				d := newAssignmentTest(t, k)
				d.edit(k, func(s *corev1.Service) {
					s.Annotations, s.Spec.IPFamilyPolicy = tt.before, new(corev1.IPFamilyPolicyRequireDualStack)
				})
				advance(time.Second)
				o := d.fakeAPI.cached(k)
				tt.w.Service, tt.w.UID, tt.w.Had, tt.w.HadPool = k, "uid", o.Addresses, o.Allocated
				d.assign(tt.w)
				advance(time.Second)
				check.Same(t, tt.want, d.at(k).Annotations, "annotations")
				if o := d.fakeAPI.cached(k); o.lacks(&tt.w) || o.Superseded {
					t.Errorf("it is still to be written on %+v", o.Service)
				}
			})
		})
	}
}

// TestAssignmentRefusals: why the API server does not take an address is told while that is wanted, once for each answer.
func TestAssignmentRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, other := vip.Key{Namespace: "a", Name: "web-1"}, vip.Key{Namespace: "a", Name: "web-2"},
			vip.Key{Namespace: "b", Name: "web"}
		d := newAssignmentTest(t, first, second, other)
		d.refusing(apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "x",
			errors.New(`admission webhook "x.example.com" denied the request: no`)), func(k vip.Key) bool { return k.Namespace == "a" })
		var pokes atomic.Int32
		d.poke = func() { pokes.Add(1) }
		refusals := func() map[vip.Key]string {
			advance(100 * time.Millisecond)
			return d.observed().AssignmentRefusals
		}
		d.assign(given(first, "10.0.0.1"), given(second, "10.0.0.2"), given(other, "10.0.0.3"))
		if all := refusals(); len(all) != 2 || !strings.Contains(all[first], "denied the request: no") || pokes.Load() != 2 {
			t.Errorf("%d pokes, refused: %q", pokes.Load(), all)
		}
		advance(10 * time.Minute)
		if n := d.requests(); n > 40 || pokes.Load() != 2 || strings.Count(d.log.String(), "level=WARN") != 2 {
			t.Errorf("%d writes and %d pokes in ten minutes; log: %s", n, pokes.Load(), d.log)
		}
		d.assign(given(first, "10.0.0.1"))
		check.Equal(t, len(refusals()), 1, "how many are refused, though one Service is left")
		d.set(func() { d.refuse = nil })
		advance(rejectedMax)
		check.Equal(t, len(refusals()), 0, "how many are refused, though it is written")
	})
}

// TestAssignmentOfWhatWasThere: an address is written on no Service on which its user has named others since it was
// decided, though something else wakes the writer before the agent's next pass.
func TestAssignmentOfWhatWasThere(t *testing.T) {
	k := vip.Key{Namespace: "a", Name: "web"}
	names := func(allocated, addr string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Annotations = map[string]string{addressesKey: addr, allocatedKey: allocated}
		}
	}
	something := func(s *corev1.Service) { s.Labels = map[string]string{"something": "else"} }
	for name, tt := range map[string]struct {
		before, now func(*corev1.Service)
		remove      bool
		want        int // requests
	}{
		"only its status names what no Service can have": {nil, func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.11"}}
		}, false, 2},
		"what it was given is superseded": {func(s *corev1.Service) {
			s.Annotations = map[string]string{addressesKey: "10.0.0.8", allocatedKey: "old", "metallb.io/loadBalancerIPs": "10.0.0.9"}
		}, func(s *corev1.Service) { s.Annotations = nil }, true, 1},
		"its user names another":                  {nil, names("", "10.0.0.99"), false, 1},
		"... in place of what it was given":       {names("old", "10.9.0.1"), names("old", "10.0.0.99"), false, 1},
		"what it was given is a person's by now":  {names("old", "10.9.0.1"), names("", "10.9.0.1"), false, 1},
		"something else has changed":              {names("old", "10.9.0.1"), something, false, 2},
		"something else has changed, without any": {nil, something, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newAssignmentTest(t, k)
				if tt.before != nil {
					d.edit(k, tt.before)
					advance(time.Second)
				}
				d.changed = func() { d.queue.Add(k) } // no pass of the agent
				o := d.fakeAPI.cached(k)
				if o.Superseded != tt.remove {
					t.Fatalf("superseded: %v", o.Superseded)
				}
				w := vip.Assignment{Service: k, UID: "uid", Pool: "cidr-global", Had: o.Addresses, HadPool: o.Allocated, Remove: tt.remove}
				if !tt.remove {
					w.Addresses = addrs("10.0.0.1")
				}
				d.edit(k, tt.now) // which the cache does not show yet
				d.assign(w)
				advance(time.Second)
				check.Equal(t, d.requests(), tt.want, "writes")
			})
		})
	}
}

// TestServiceMadeAgain: a Service that is made again under its name, and is to have the same again, is not contested.
func TestServiceMadeAgain(t *testing.T) {
	k := vip.Key{Namespace: "a", Name: "web"}
	for what, put := range map[string]func(d *statusTest, uid string){
		"address": func(d *statusTest, uid string) {
			w := given(k, "0.0.0.0")
			w.UID = uid
			d.assign(w)
		},
		"conditions": func(d *statusTest, uid string) {
			d.plan(vip.Status{Service: k, UID: uid, ConditionsOnly: true, Conditions: []vip.Condition{{Type: vip.Announced,
				Status: vip.ConditionFalse, Reason: vip.NoPoolAddress}}})
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newAssignmentTest(t)
			for i := range promptRewrites + 1 {
				uid := fmt.Sprint("uid-", i)
				d.edit(k, func(s *corev1.Service) { s.Spec.Type, s.UID = corev1.ServiceTypeLoadBalancer, types.UID(uid) })
				advance(time.Second)
				put(d, uid)
				advance(time.Second)
				d.assign()
				d.plan()
				d.set(func() {
					delete(d.services, k)
					delete(d.cache, k)
				})
			}
			if w := d.observed(); d.writes(k) != promptRewrites+1 || len(w.StatusFights) > 0 || d.log.count("level=WARN") > 0 {
				t.Errorf("%s: %d writes, contested by %q", what, d.writes(k), w.StatusFights)
			}
		})
	}
}

// TestRefusalInOtherWords: a webhook that denies an address in other words each time, with the number of the request,
// say, costs ever fewer writes, though what it says is written on the Service as a condition.
func TestRefusalInOtherWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := vip.Key{Namespace: "a", Name: "web"}
		d := newAssignmentTest(t, k)
		tries := 0
		d.set(func() {
			d.refuseBody = func(body string) error {
				if !strings.Contains(body, addressesKey) {
					return nil
				}
				tries++
				return apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, k.Name,
					fmt.Errorf(`admission webhook "x.example.com" denied the request: no (request %d)`, tries))
			}
		})
		told := func() {
			if why := d.observed().AssignmentRefusals[k]; why != "" {
				d.plan(vip.Status{Service: k, UID: "uid", ConditionsOnly: true, Conditions: []vip.Condition{{Type: vip.Announced,
					Status: vip.ConditionFalse, Reason: vip.NoPoolAddress, Message: why}}})
			}
		}
		d.poke = func() { time.AfterFunc(100*time.Millisecond, told) }
		d.assign(given(k, "10.0.0.1"))
		advance(30 * time.Minute)
		if c := d.writes(k); tries > 60 || c < 2 || c > 4 {
			t.Errorf("%d writes of the address and %d of the condition in half an hour", tries, c)
		}
	})
}
