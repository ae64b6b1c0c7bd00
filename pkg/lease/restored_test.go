package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/testing/check"
)

// A node acts on no VIP lease that it has written just before etcd was restored from an earlier backup, so that nobody else knows of it, and its watch
// has never shown it.
func TestLostWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		time.Sleep(10 * time.Second)
		restore := s.Snapshot()
		time.Sleep(10 * time.Second)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		n1.want("a")
		time.Sleep(500 * time.Millisecond)
		if !n1.serves("a") {
			t.Fatal("n1 does not serve")
		}
		restore()
		n1.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
		n2.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
		time.Sleep(500 * time.Millisecond)
		n2.want("a")
		neverTwo(t, t.Context(), "a", newGroup(n1, n2))
		time.Sleep(time.Minute)
		if x := s.Lease(lk("a")); x == nil || n1.serves("a") != (holder(x) == "n1") || n2.serves("a") != (holder(x) == "n2") {
			t.Errorf("n1 serves %v, n2 serves %v\n%s", n1.serves("a"), n2.serves("a"), s)
		}
	})
}

// A process that has just begun an epoch when etcd is restored from an earlier backup, so that versions begin again, does not wait for the version with
// which it did.
func TestRestoredAtTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1 := start(t, s, "n1")
		time.Sleep(time.Second)
		n1.kill()
		restore := s.Snapshot()
		others(t, s, 500)
		n1, run := newNode(t, s, "n1", func(*Options) {})
		n1.way.SetFaults(func(f *leasetest.Faults) { f.Lag = time.Second })
		run(func(error) {})
		time.Sleep(500 * time.Millisecond)
		restore()
		n1.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
		time.Sleep(10 * time.Second)
		n1.want("a")
		time.Sleep(time.Second)
		if !n1.serves("a") {
			t.Errorf("n1 does not serve\n%s", s)
		}
	})
}

// overlapping counts for how long, within d, both nodes may serve a.
func overlapping(n1, n2 *node, d time.Duration) (both time.Duration) {
	for began := time.Now(); time.Since(began) < d; time.Sleep(20 * time.Millisecond) {
		n1.want("a")
		n2.want("a")
		if n1.serves("a") && n2.serves("a") {
			both += 20 * time.Millisecond
		}
	}
	return both
}

// others has n Leases written that are nobody's, so that versions rise.
func others(t *testing.T, s *leasetest.Server, n int) {
	t.Helper()
	for i := range n {
		check.Value(s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("other-", i)}}))(t)
	}
}

// etcd is restored from a backup in which n1 has a, which it has handed to n2 since. The watch of n1 begins with a list; that of n2 goes on from a version
// that etcd has not reached again, so that it shows nothing. n2 finds that by its next renewal.
func TestRestoredWhileAWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		n1.acquire(n2, "a")
		restore := s.Snapshot()
		time.Sleep(10 * time.Second)
		n1.handOver("n2", "a")
		time.Sleep(time.Second)
		n2.want("a")
		n1.follow("a")
		others(t, s, 500)
		time.Sleep(30 * time.Second)
		if !n2.serves("a") || n1.serves("a") {
			t.Fatal("n2 does not serve, or n1 does")
		}
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchesOn = true })
		restore()
		before := s.Writes()
		if both := overlapping(n1, n2, time.Minute); both > period+100*time.Millisecond {
			t.Errorf("both may serve for %v", both)
		}
		if !n1.serves("a") || n2.serves("a") {
			t.Errorf("n1 serves %v, n2 %v, want n1 to\n%s", n1.serves("a"), n2.serves("a"), s)
		}
		if n := s.Writes() - before; n > 65 {
			t.Errorf("%d writes in a minute, want 30 renewals of each node", n)
		}
		if old := time.Since(n2.unwritten.asOf); old > 2*period {
			t.Errorf("n2 knows what was written up to %v ago", old)
		}
	})
}

// A node whose watch is stuck when etcd is restored does not take itself to know what was written since, and renews its lease no more often than before.
func TestRestoredWhileTheWatchIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n2 := start(t, s, "n2")
		time.Sleep(5 * time.Second)
		restore := s.Snapshot()
		others(t, s, 500)
		time.Sleep(3 * time.Second)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		restore()
		annotateLease(t, s, nodeKey("n2"), FencedAnnotation, "1")
		restored, before := time.Now(), s.Writes()
		time.Sleep(20 * time.Second)
		if n := s.Writes() - before; n > 14 {
			t.Errorf("%d writes in 20 s, want 10 renewals", n)
		}
		n2.mu.Lock()
		asOf, ready, epoch := n2.unwritten.asOf, n2.location.ready, n2.own.Epoch
		n2.mu.Unlock()
		if asOf.After(restored) {
			t.Errorf("it takes itself to know what was written up to %v after etcd was restored", asOf.Sub(restored))
		}
		if ready || epoch != 2 {
			t.Errorf("it acts in epoch %d, before its watch has shown that this has begun", epoch)
		}
		n2.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = false })
		time.Sleep(time.Second)
		n2.want("a")
		time.Sleep(time.Second)
		if !n2.serves("a") {
			t.Error("it does not serve in the end")
		}
	})
}

// A node that lists again, and sees that etcd was restored, has all other watches of the process list again, too: they may show nothing.
func TestRestoredAsTheWatchShows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		time.Sleep(5 * time.Second)
		restore := s.Snapshot()
		others(t, s, 500)
		time.Sleep(5 * time.Second)
		restore()
		time.Sleep(5 * time.Second)
		for _, n := range []*node{n1, n2} {
			if got := n.way.Begun(); got != 1 {
				t.Errorf("%s has begun its watches again %d times, want 1", n.name, got)
			}
		}
	})
}

// A node lease that another program writes all the time is renewed five times a second at most.
func TestOwnLeaseWrittenByAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1 := start(t, s, "n1")
		time.Sleep(5 * time.Second)
		renewals, last := 0, renewTime(s.Lease(nodeKey("n1")))
		for i := range 500 {
			time.Sleep(20 * time.Millisecond)
			if at := renewTime(s.Lease(nodeKey("n1"))); !at.Equal(last) {
				renewals, last = renewals+1, at
			}
			annotateLease(t, s, nodeKey("n1"), "another", fmt.Sprint(i))
		}
		if !n1.Tenure().Holds(time.Now()) {
			t.Error("the tenure does not hold")
		}
		if renewals > 50 {
			t.Errorf("%d renewals in ten seconds", renewals)
		}
	})
}

// A watch is not stuck where another program writes the node lease right after each renewal, so that it shows that program's versions alone.
func TestRenewalsOverwrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1 := start(t, s, "n1")
		time.Sleep(5 * time.Second)
		var last time.Time
		for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(time.Millisecond) {
			if x := s.Lease(nodeKey("n1")).DeepCopy(); !renewTime(x).Equal(last) {
				last = renewTime(x)
				annotate(x, "another", last.String())
				if _, err := s.Put(x); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got := n1.way.Begun(); got != 0 {
			t.Errorf("the watches have begun again %d times", got)
		}
	})
}
