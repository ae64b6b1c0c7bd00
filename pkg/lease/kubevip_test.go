package lease

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// kubeVIP renews the Lease of a unit, as kube-vip on that node does, until stop is called or the test ends.
func kubeVIP(t *testing.T, s *leasetest.Server, k vip.Key, node string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	renew := func() {
		putLease(t, s, k, func(l *coordinationv1.Lease) {
			l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &node, new(int32(5)), microTime(time.Now())
		})
	}
	renew()
	ended.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(2 * time.Second):
				renew()
			}
		}
	})
	stop = func() { cancel(); ended.Wait() }
	t.Cleanup(stop)
	return stop
}

// keptBy returns the node whose Herald keeps the Lease of a unit from kube-vip for at least so long; "" if none does.
func keptBy(s *leasetest.Server, unit string, atLeast time.Duration) string {
	x := s.Lease(lk(unit))
	if x == nil || x.Annotations[ClaimAnnotation] == "" || time.Until(keptUntil(x)) < atLeast {
		return ""
	}
	return holder(x)
}

// TestBesideKubeVIP: while a kube-vip lives the owner of a unit writes its Lease once, so does the one that it goes to;
// when none lives, they are deleted.
func TestBesideKubeVIP(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
		n1.want("a", "b", "theirs")
		n2.planFor("n1", "a", "b", "theirs")
		time.Sleep(5 * time.Second)
		check.Equal(t, s.Lease(lk("a")), nil, "the Lease of a, though no kube-vip lives")
		putLease(t, s, lk("b"), func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("") }) // as kube-vip leaves it
		stop := kubeVIP(t, s, lk("theirs"), "n3")
		time.Sleep(3 * time.Second)
		for _, unit := range []string{"a", "b"} {
			check.Equal(t, keptBy(s, unit, besideTime), "n1", "who keeps the Lease of %s", unit)
			check.Equal(t, serving(unit, n1), "n1", "who serves %s", unit)
		}
		if holder(s.Lease(lk("theirs"))) != "n3" || n1.serves("theirs") {
			t.Error("kube-vip lost what it has")
		}
		written := s.Lease(lk("a")).ResourceVersion
		time.Sleep(time.Minute)
		check.Equal(t, s.Lease(lk("a")).ResourceVersion, written, "the version of a Lease that is written once")
		n1.give("n2", "a")
		time.Sleep(2 * time.Second)
		check.Equal(t, keptBy(s, "a", besideTime), "n2", "who keeps the Lease that was handed over")
		check.Equal(t, serving("a", n2), "n2", "who serves it")
		n1.want("b", "theirs")
		n2.planFor("n1", "b", "theirs") // no Service has a any more
		time.Sleep(unknownTime + 2*time.Second)
		check.Equal(t, s.Lease(lk("a")), nil, "the Lease of a unit that nobody has")
		time.Sleep(besideWait)
		for _, n := range []*node{n1, n2} {
			n.mu.Lock()
			check.Equal(t, len(n.beside.waits), 0, "Leases for which %s waits, though nothing is under way", n.name)
			n.mu.Unlock()
		}
		time.Sleep(30 * time.Minute)
		check.Equal(t, keptBy(s, "b", besideTime), "n1", "who keeps b while kube-vip goes on")
		stop()
		time.Sleep(100 * time.Millisecond) // until that is shown
		for _, n := range []*node{n1, n2} {
			n.mu.Lock()
			if left := time.Until(n.beside.until); left < besideTime-2*time.Second {
				t.Errorf("%s takes kube-vip to live for %v", n.name, left)
			}
			n.beside.until = time.Now().Add(time.Minute) // nearly an hour later
			n.mu.Unlock()
		}
		time.Sleep(50 * time.Second)
		check.Equal(t, keptBy(s, "b", 0), "n1", "who keeps b, since a kube-vip may wait on another node")
		check.Equal(t, serving("theirs", n1), "n1", "who serves what was theirs")
		time.Sleep(15 * time.Second)
		if s.Lease(lk("b")) != nil || s.Lease(lk("theirs")) != nil {
			t.Errorf("no kube-vip lives, but Leases are left:\n%s", s)
		}
	})
}

// TestBesideKubeVIPRestart: a process that begins goes on with it, though no kube-vip has anything; one that stops
// deletes its Leases, so that a kube-vip takes over at once.
func TestBesideKubeVIPRestart(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		stop := kubeVIP(t, s, lk("a"), "n3")
		n1 := start(t, s, "n1")
		n1.want("a", "b")
		time.Sleep(5 * time.Second)
		stop()
		putLease(t, s, lk("a"), func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("") })
		time.Sleep(100 * time.Millisecond)
		check.Equal(t, keptBy(s, "a", besideTime), "n1", "who keeps what kube-vip has released")
		check.Equal(t, serving("a", n1), "n1", "who serves it")
		n1.kill()
		n1 = start(t, s, "n1")
		n1.want("a", "b", "c")
		time.Sleep(5 * time.Second)
		for _, unit := range []string{"a", "b", "c"} {
			check.Equal(t, keptBy(s, unit, besideTime), "n1", "who keeps %s after a restart:\n%s", unit, s)
		}
		n1.end()
		for _, unit := range []string{"a", "b", "c"} {
			check.Equal(t, s.Lease(lk(unit)), nil, "the Lease of %s after the end", unit)
		}
	})
}

// TestNotBesideKubeVIP: what does not show that a kube-vip lives.
func TestNotBesideKubeVIP(t *testing.T) {
	for name, other := range map[string]func(t *testing.T, s *leasetest.Server, n1 *node){
		"a Lease that it has left": func(t *testing.T, s *leasetest.Server, n1 *node) {
			putLease(t, s, lk("old"), func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("n3") })
		},
		"the provider of its addresses": func(t *testing.T, s *leasetest.Server, n1 *node) {
			kubeVIP(t, s, vip.Key{Namespace: "kube-system", Name: "provider"}, "n3")
		},
		"a Lease of Herald that was to last for years": func(t *testing.T, s *leasetest.Server, n1 *node) {
			putLease(t, s, lk("old"), func(l *coordinationv1.Lease) {
				annotate(l, ClaimAnnotation, "n2@1")
				at := microTime(time.Now())
				l.Spec = coordinationv1.LeaseSpec{
					HolderIdentity: new("n2"), LeaseDurationSeconds: new(int32(1e9)), RenewTime: at, AcquireTime: at,
				}
			})
		},
	} {
		withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
			n1.want("a")
			other(t, s, n1)
			time.Sleep(time.Minute)
			if s.Lease(lk("a")) != nil || !n1.serves("a") {
				t.Errorf("%s: a Lease is written; n1 serves: %v", name, n1.serves("a"))
			}
		})
	}
}

// TestKubeVIPTakesOurs: a kube-vip that renews a Lease which Herald has written, as one on that node may, has the
// Service.
func TestKubeVIPTakesOurs(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
		kubeVIP(t, s, lk("theirs"), "n3")
		time.Sleep(5 * time.Second)
		check.Equal(t, keptBy(s, "a", 0), "n1", "who keeps a")
		n1.kill()
		time.Sleep(time.Second)
		kubeVIP(t, s, lk("a"), "n1")
		time.Sleep(time.Minute)
		if c := n2.claim("a"); !c.Foreign || !c.Valid || n2.serves("a") || holder(s.Lease(lk("a"))) != "n1" {
			t.Errorf("the kube-vip of n1 is not respected: %+v\n%s", c, s)
		}
	})
}

// TestKubeVIPElsewhere: a kube-vip may have a unit by a Lease of another namespace; Herald leaves it to that, and then keeps it there.
func TestKubeVIPElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, there := leasetest.NewServer(), vip.Key{Namespace: "kube-system", Name: "plndr-svcs-lock"}
		n1, run := newNode(t, s, "n1", func(o *Options) { o.Units = map[vip.Key]vip.Key{there: lk("a")} })
		run(func(err error) { check.OK(t, err) })
		stop := kubeVIP(t, s, there, "n2")
		n1.want("a")
		time.Sleep(10 * time.Second)
		if c := n1.claim("a"); !c.Foreign || !c.Valid || n1.serves("a") || holder(s.Lease(there)) != "n2" {
			t.Errorf("the kube-vip of n2 is not respected: %+v\n%s", c, s)
		}
		stop()
		time.Sleep(10 * time.Second)
		if !n1.serves("a") || holder(s.Lease(there)) != "n1" || s.Lease(lk("a")) != nil {
			t.Errorf("kube-vip has ended; n1 serves: %v\n%s", n1.serves("a"), s)
		}
		n1.end()
		check.Equal(t, s.Lease(there), nil, "the Lease after the end")
	})
}

// TestBesideKubeVIPRefused: Herald without rights in a namespace serves all the same, and says so once.
func TestBesideKubeVIPRefused(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		tries := 0
		s.Refuse = func(l *coordinationv1.Lease) error {
			if l.Namespace == "default" && l.Annotations[ClaimAnnotation] != "" {
				tries++
				return apierrors.NewForbidden(leasesResource, l.Name, errors.New("no rights"))
			}
			return nil
		}
		var log strings.Builder
		n1, run := newNode(t, s, "n1", logTo(&log))
		run(func(err error) { check.OK(t, err) })
		n1.want("a", "b", "c")
		kubeVIP(t, s, lk("theirs"), "n3")
		time.Sleep(time.Minute)
		if tries == 0 || tries > 3 || !n1.serves("a") {
			t.Errorf("%d writes in a minute; n1 serves: %v", tries, n1.serves("a"))
		}
		time.Sleep(besideRefuse)
		check.Between(t, tries, 0, 6, "writes in eleven minutes")
		n1.end()
		check.Equal(t, strings.Count(log.String(), "refuses that Herald writes"), 1, "how often that is said")
	})
}

// TestUnseenBesideKubeVIP: what this node has written it deletes, though the watch does not show it, since the Service
// that names it is gone.
func TestUnseenBesideKubeVIP(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
		n1.want("a")
		kubeVIP(t, s, lk("theirs"), "n3")
		time.Sleep(5 * time.Second)
		n1.fault(func(f *leasetest.Faults) { f.Lag = time.Hour })
		n1.want()
		time.Sleep(unknownTime - time.Second)
		n1.mu.Lock()
		delete(n1.beside.seen, lk("a")) // as if it had been shown that it is gone
		n1.mu.Unlock()
		check.OK(t, s.Remove(lk("a"), ""))
		time.Sleep(500 * time.Millisecond)
		check.Equal(t, keptBy(s, "a", besideTime), "n1", "who keeps a:\n%s", s)
		time.Sleep(5 * time.Second)
		check.Equal(t, s.Lease(lk("a")), nil, "the Lease of a in the end:\n%s", s)
	})
}
