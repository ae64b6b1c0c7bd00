package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

var leaseResource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// refuseTenant has the server refuse each new Lease in the namespace tenant, as a quota does.
func refuseTenant(l *coordinationv1.Lease) error {
	if l.Namespace == "tenant" && l.ResourceVersion == "" {
		return apierrors.NewForbidden(leaseResource, l.Name, errors.New("exceeded quota: q, requested: count/leases.coordination.k8s.io=1, used: count/leases.coordination.k8s.io=0, limited: count/leases.coordination.k8s.io=0"))
	}
	return nil
}

// Two hundred leases that the API server refuses make no node count as stalled, cost few writes, and
// keep no other lease from being acquired; what is wrong is in the World.
func TestRefusedLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		s.Refuse = refuseTenant
		a, b := start(t, s, "n1"), start(t, s, "n2")
		time.Sleep(time.Second)
		var acquire, follow []vip.LeaseIntent
		for i := range 200 {
			k := vip.Key{Namespace: "tenant", Name: fmt.Sprintf("kubevip-%d", i)}
			acquire = append(acquire, vip.LeaseIntent{Lease: k, Service: k, Action: vip.Acquire})
			follow = append(follow, vip.LeaseIntent{Lease: k, Service: k, Action: vip.Follow, ExpectedHolder: "n1"})
		}
		a.world()
		a.Put(acquire)
		b.world()
		b.Put(follow)
		time.Sleep(10 * time.Second)
		acquire = append(acquire, vip.LeaseIntent{Lease: lk("good"), Service: lk("good"), Action: vip.Acquire})
		a.world()
		a.Put(acquire)
		time.Sleep(time.Second)
		if !a.serves("good") {
			t.Error("n1 does not serve what is not refused")
		}
		time.Sleep(3 * time.Minute)
		if got := s.Writes(); got > 200+200+1000 {
			t.Errorf("%d writes in the first three minutes, want some 200 renewals, 200 first tries and few more of each", got)
		}
		before := s.Writes()
		for range 120 {
			time.Sleep(time.Second)
			for _, m := range b.world().Members {
				if m.Stalled {
					t.Fatalf("%s counts as stalled at %s", m.Name, time.Now())
				}
			}
		}
		if got := s.Writes() - before; got > 120+120 {
			t.Errorf("%d writes in two minutes, want at most 120 renewals and a try a second", got)
		}
		w := a.world()
		if len(w.LeaseRefusals) != 200 || !strings.Contains(w.LeaseRefusals[acquire[0].Lease], "quota") {
			t.Errorf("%d refused, such as %q", len(w.LeaseRefusals), w.LeaseRefusals[acquire[0].Lease])
		}
		a.Put(acquire[200:])
		time.Sleep(time.Second)
		if w := a.world(); len(w.LeaseRefusals) != 0 {
			t.Errorf("%d are still refused that nobody wants", len(w.LeaseRefusals))
		}
	})
}

// Services that come and go in a namespace that refuses their leases cost one write each.
func TestRefusedComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		s.Refuse = refuseTenant
		a := start(t, s, "n1")
		time.Sleep(time.Second)
		before := s.Writes()
		for i := range 300 {
			k := vip.Key{Namespace: "tenant", Name: fmt.Sprintf("kubevip-%d", i)}
			a.world()
			a.Put([]vip.LeaseIntent{{Lease: k, Service: k, Action: vip.Acquire}})
			time.Sleep(100 * time.Millisecond)
			a.world()
			a.Put(nil)
			time.Sleep(100 * time.Millisecond)
		}
		if got := s.Writes() - before; got > 300+40 {
			t.Errorf("%d writes in a minute, want 300 tries and 30 renewals", got)
		}
	})
}

// A lease whose refusal ends is acquired within a minute.
func TestRefusalEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		began := time.Now()
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Namespace == "default" && time.Since(began) < 10*time.Minute {
				return apierrors.NewForbidden(leaseResource, l.Name, errors.New("no"))
			}
			return nil
		}
		a := start(t, s, "n1")
		a.want("a")
		time.Sleep(10*time.Minute + maxRefusalPause + time.Second)
		if !a.serves("a") || len(a.world().LeaseRefusals) > 0 {
			t.Error("it is not acquired")
		}
	})
}

// Which answers count as refusals: those that other nodes would get as well.
func TestRefusalText(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string // part of the text; "" if it is no refusal
	}{
		{err: refuseTenant(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "x"}}), want: "quota"},
		{err: apierrors.NewForbidden(leaseResource, "x", errors.New("User \"system:serviceaccount:a:b\" cannot create resource")), want: "herald manifest rbac"},
		{err: &apierrors.StatusError{ErrStatus: metav1.Status{Code: 403, Message: "forbidden", Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "NamespaceTerminating"}}}}}, want: "being deleted"},
		{err: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "tenant"), want: "namespace"},
		{err: apierrors.NewInternalError(errors.New(`failed calling webhook "x": connection refused`)), want: "webhook"},
		{err: apierrors.NewInvalid(schema.GroupKind{}, "x", nil), want: "invalid"},
		{err: apierrors.NewNotFound(leaseResource, "x")},
		{err: apierrors.NewConflict(leaseResource, "x", errors.New("x"))},
		{err: apierrors.NewAlreadyExists(leaseResource, "x")},
		{err: apierrors.NewTooManyRequests("x", 1)},
		{err: apierrors.NewInternalError(errors.New("etcdserver: leader changed"))},
		{err: apierrors.NewServiceUnavailable("x")},
		{err: apierrors.NewUnauthorized("x")},
		{err: errors.New("connection refused")},
	} {
		if got := refusalText(tt.err); (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) || len(got) > maxRefusalText {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}

// A noDeletes is a Store that may not delete Leases.
type noDeletes struct {
	Store
	tried atomic.Int64
}

func (s *noDeletes) Delete(context.Context, string, string, string) error {
	time.Sleep(3 * time.Millisecond)
	s.tried.Add(1)
	return apierrors.NewForbidden(leaseResource, "", errors.New("no verb delete"))
}

// A node lease that was fenced long ago, and that this node may not delete, is tried to be deleted each ten minutes.
func TestFencedLeaseIsNotDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, run := newNode(t, s, "n1", func(*Options) {})
		store := &noDeletes{Store: n1.store}
		n1.store = store
		run(func(error) {})
		n2 := start(t, s, "n2")
		time.Sleep(time.Second)
		n2.kill()
		time.Sleep(leaseDuration + 5*time.Second + keepFenced)
		if got := store.tried.Load(); got != 1 {
			t.Errorf("tried %d times, want once", got)
		}
		time.Sleep(2*cleanupRetry + time.Minute)
		if got := store.tried.Load(); got != 3 {
			t.Errorf("tried %d times after two more waits, want 3", got)
		}
	})
}
