package lease

import (
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
)

// A node whose watch is stuck, while it renews its lease, has it begin again. So it knows that others live, and can hand over to them.
func TestStuckWatchBeginsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		n1.acquire(n2, "a")
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchStuck = true })
		time.Sleep(time.Minute)
		n1.handOver("n2", "a")
		time.Sleep(100 * time.Millisecond)
		n2.want("a")
		if !n2.serves("a") {
			t.Errorf("n2 does not serve; n1 knows of %v\n%s", n1.world().Members, s)
		}
		if got := n1.way.Begun(); got != 1 {
			t.Errorf("the watches have begun again %d times", got)
		}
	})
}

// A VIP lease that is deleted by hand while the watch of its owner is stuck is back before any other node takes it for free.
func TestDeletedWhileTheWatchIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		n1.acquire(n2, "a")
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchStuck = true })
		if err := s.Remove(lk("a"), ""); err != nil {
			t.Fatal(err)
		}
		if both := overlapping(n1, n2, time.Minute); both > 0 {
			t.Errorf("both may serve for %v", both)
		}
		if !n1.serves("a") {
			t.Error("n1 does not serve")
		}
	})
}

// Where that does not help, watches begin again less and less often; after a long time without it soon again.
func TestStuckWatchBeginsAgainLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1 := start(t, s, "n1")
		begins := func(within time.Duration, min, max int) {
			t.Helper()
			before := n1.way.Begun()
			time.Sleep(within)
			if got := n1.way.Begun() - before; got < min || got > max {
				t.Errorf("within %v the watches have begun again %d times, want %d to %d", within, got, min, max)
			}
		}
		begins(time.Minute, 0, 0)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		begins(9*time.Second, 0, 0)
		begins(5*time.Second, 1, 1)
		begins(6*time.Minute, 3, 6)
		begins(time.Hour, 7, 13)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = false })
		begins(13*time.Minute, 0, 0)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		begins(time.Minute, 2, 4)
	})
}

// Nodes that renew at the same moments, and whose watches are all stuck, begin them again at different moments.
func TestStuckWatchesBeginAgainOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		nodes := []*node{start(t, s, "n1"), start(t, s, "n2")}
		time.Sleep(5 * time.Second)
		for _, n := range nodes {
			n.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		}
		var at [2][]time.Duration
		for began := time.Now(); time.Since(began) < 20*time.Minute; time.Sleep(stepPeriod) { // the first pauses may be the same, to the length of a step
			for i, n := range nodes {
				if n.way.Begun() > len(at[i]) {
					at[i] = append(at[i], time.Since(began))
				}
			}
		}
		if slices.Equal(at[0], at[1]) {
			t.Errorf("both have begun their watches again after %v", at)
		}
	})
}

// A watch that is slow, and one that is away together with the API server, does not begin again.
func TestSlowWatchGoesOn(t *testing.T) {
	for name, fault := range map[string]func(*leasetest.Faults){
		"slow":           func(f *leasetest.Faults) { f.Lag = 8 * time.Second },
		"slow requests":  func(f *leasetest.Faults) { f.Delay = 3 * time.Second },
		"slow answers":   func(f *leasetest.Faults) { f.AnswerDelay = 4 * time.Second },
		"away":           func(f *leasetest.Faults) { f.Cut = true },
		"without answer": func(f *leasetest.Faults) { f.LoseAnswers = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := leasetest.NewServer()
				n1 := start(t, s, "n1")
				time.Sleep(5 * time.Second)
				for range 10 {
					n1.way.SetFaults(fault)
					time.Sleep(time.Minute + 137*time.Millisecond)
					n1.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
					time.Sleep(7 * time.Second)
				}
				if got := n1.way.Begun(); got != 0 {
					t.Errorf("the watches have begun again %d times", got)
				}
			})
		})
	}
}

// A watch that shows each renewal 12 s late, so that there are always some that it has not shown, does not begin again; one that then shows none does once.
func TestLateWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n1, _ := newNode(t, leasetest.NewServer(), "n1", func(*Options) {})
		lease := func(version int) *coordinationv1.Lease {
			return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version)}}
		}
		renew := func(from, to int, shown func(i int) int) {
			for i := from; i < to; i++ {
				time.Sleep(period)
				n1.watch.renewals = addSent(n1.watch.renewals, lease(i), time.Now())
				n1.cache.watched[nodeKey("n1")] = lease(shown(i))
				n1.checkWatch(time.Now())
			}
		}
		renew(1, 200, func(i int) int { return max(i/2, i-6) }) // it grows late
		if got := n1.way.Begun(); got != 0 {
			t.Errorf("the watches have begun again %d times", got)
		}
		renew(200, 210, func(int) int { return 193 })
		if got := n1.way.Begun(); got != 1 {
			t.Errorf("the watches have begun again %d times, want once", got)
		}
	})
}

// A watch that is back some seconds after the API server does not begin again, though a renewal from before that was not shown either.
func TestWatchIsBackAfterTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n1 := start(t, leasetest.NewServer(), "n1")
		time.Sleep(5 * time.Second)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		time.Sleep(2100 * time.Millisecond)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.Cut = true })
		time.Sleep(time.Minute)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.Cut = false })
		time.Sleep(4500 * time.Millisecond)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = false })
		time.Sleep(time.Minute)
		if got := n1.way.Begun(); got != 0 {
			t.Errorf("the watches have begun again %d times", got)
		}
	})
}
