package lease

import (
	"testing"
	"testing/synctest"
	"time"

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
		begins(6*time.Minute, 4, 6)
		begins(time.Hour, 11, 13)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = false })
		begins(11*time.Minute, 0, 0)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		begins(time.Minute, 2, 4)
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
