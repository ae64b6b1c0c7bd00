package lease

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A node whose watch is stuck, while it renews its lease, has it begin again. So it knows that others live, and can hand over to them.
func TestStuckWatchBeginsAgain(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
		n1.fault(func(f *leasetest.Faults) { f.WatchStuck = true })
		time.Sleep(time.Minute)
		n1.give("n2", "a")
		time.Sleep(100 * time.Millisecond)
		check.Equal(t, serving("a", n2), "n2", "who serves; n1 knows of %v\n%s", n1.world().Members, s)
		check.Equal(t, n1.way.Begun(), 1, "how often the watches have begun again")
	})
}

// Where that does not help, watches begin again less and less often; after a long time without it soon again.
func TestStuckWatchBeginsAgainLessOften(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
		begins := func(within time.Duration, min, max int) {
			t.Helper()
			before := n1.way.Begun()
			time.Sleep(within)
			check.Between(t, n1.way.Begun()-before, min, max, "within %v the watches have begun again", within)
		}
		begins(time.Minute, 0, 0)
		n1.fault(func(f *leasetest.Faults) { f.WatchCut = true })
		begins(9*time.Second, 0, 0)
		begins(5*time.Second, 1, 1)
		begins(6*time.Minute, 3, 6)
		begins(time.Hour, 7, 13)
		n1.fault(func(f *leasetest.Faults) { f.WatchCut = false })
		begins(13*time.Minute, 0, 0)
		n1.fault(func(f *leasetest.Faults) { f.WatchCut = true })
		begins(time.Minute, 2, 4)
	})
}

// Nodes that renew at the same moments, and whose watches are all stuck, begin them again at different moments.
func TestStuckWatchesBeginAgainOneByOne(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		nodes := []*node{start(t, s, "n1"), start(t, s, "n2")}
		time.Sleep(5 * time.Second)
		for _, n := range nodes {
			n.fault(func(f *leasetest.Faults) { f.WatchCut = true })
		}
		var at [2][]time.Duration
		for began := time.Now(); time.Since(began) < 6*time.Minute; time.Sleep(stepPeriod) { // the first pauses may be the same, to the length of a step
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
			withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
				time.Sleep(5 * time.Second)
				for range 4 {
					n1.fault(fault)
					time.Sleep(time.Minute + 137*time.Millisecond)
					n1.mend()
					time.Sleep(7 * time.Second)
				}
				check.Equal(t, n1.way.Begun(), 0, "how often the watches have begun again")
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
				n1.watch.renewals = addRenewal(n1.watch.renewals, lease(i), time.Now())
				n1.watch.own = uint64(shown(i))
				n1.checkWatch(time.Now())
			}
		}
		renew(1, 200, func(i int) int { return max(i/2, i-6) }) // it grows late
		check.Equal(t, n1.way.Begun(), 0, "how often the watches have begun again")
		renew(200, 210, func(int) int { return 193 })
		check.Equal(t, n1.way.Begun(), 1, "how often the watches have begun again")
	})
}

// A watch that is back some seconds after the API server does not begin again, though a renewal from before that was not shown either.
func TestWatchIsBackAfterTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n1 := start(t, leasetest.NewServer(), "n1")
		time.Sleep(5 * time.Second)
		n1.fault(func(f *leasetest.Faults) { f.WatchCut = true })
		time.Sleep(2100 * time.Millisecond)
		n1.fault(func(f *leasetest.Faults) { f.Cut = true })
		time.Sleep(time.Minute)
		n1.fault(func(f *leasetest.Faults) { f.Cut = false })
		time.Sleep(4500 * time.Millisecond)
		n1.fault(func(f *leasetest.Faults) { f.WatchCut = false })
		time.Sleep(time.Minute)
		check.Equal(t, n1.way.Begun(), 0, "how often the watches have begun again")
	})
}

// What the table said that a node has written just before etcd was restored from an earlier backup, so that nobody else
// knows of it, and its watch has never shown it: one has it in the end.
func TestLostWrite(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		time.Sleep(10 * time.Second)
		restore := s.Snapshot()
		time.Sleep(10 * time.Second)
		n1.fault(func(f *leasetest.Faults) { f.WatchCut = true })
		n2.fault(func(f *leasetest.Faults) { f.WatchCut = true })
		n1.want("a")
		time.Sleep(500 * time.Millisecond)
		if !n1.serves("a") {
			t.Fatal("n1 does not serve")
		}
		restore(0)
		n1.mend()
		n2.mend()
		time.Sleep(500 * time.Millisecond)
		n2.want("a")
		both := time.Duration(0) // until n1 finds by its next renewal that etcd was restored, and reads
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if n1.serves("a") && n2.serves("a") {
				both += 20 * time.Millisecond
			}
		}
		check.Between(t, both, 0, period+time.Second, "two serve for")
		if owner := ownerIn(t, s, "a"); owner == "" || n1.serves("a") != (owner == "n1") || n2.serves("a") != (owner == "n2") {
			t.Errorf("it is %q's, n1 serves %v, n2 serves %v\n%s", owner, n1.serves("a"), n2.serves("a"), s)
		}
	})
}

// A process that has just begun an epoch when etcd is restored from an earlier backup, so that versions begin again, does not wait for the version with
// which it did.
func TestRestoredAtTheBeginning(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
		time.Sleep(time.Second)
		n1.kill()
		restore := s.Snapshot()
		others(t, s, 500)
		n1, run := newNode(t, s, "n1", func(*Options) {})
		n1.fault(func(f *leasetest.Faults) { f.Lag = time.Second })
		run(func(error) {})
		time.Sleep(500 * time.Millisecond)
		restore(0)
		n1.mend()
		time.Sleep(10 * time.Second)
		n1.want("a")
		time.Sleep(time.Second)
		check.Equal(t, serving("a", n1), "n1", "who serves\n%s", s)
	})
}

// others has n Leases written that are nobody's, so that versions rise.
func others(t *testing.T, s *leasetest.Server, n int) {
	t.Helper()
	for i := range n {
		check.Value(s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("other-", i)}}))(t)
	}
}

// etcd is restored from a backup in which n1 has a, which it has handed to n2 since. The watch of n1 begins with a list;
// that of n2 goes on from a version that etcd has not reached again, so that it shows nothing. The table is written again
// as it was last, and nothing moves.
func TestRestoredWhileAWatchGoesOn(t *testing.T) {
	withPair(t, func(t *testing.T, s *leasetest.Server, n1, n2 *node) {
		restore := s.Snapshot()
		time.Sleep(10 * time.Second)
		n1.give("n2", "a")
		time.Sleep(time.Second)
		others(t, s, 500)
		time.Sleep(30 * time.Second)
		check.Equal(t, serving("a", n1, n2), "n2", "who serves before")
		n2.fault(func(f *leasetest.Faults) { f.WatchesOn = true })
		restore(0)
		before := s.Writes()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if n1.serves("a") || !n2.serves("a") {
				t.Fatalf("n1 serves %v, n2 %v, want n2 to, as the table said last\n%s", n1.serves("a"), n2.serves("a"), s.Trace(5))
			}
		}
		check.Between(t, s.Writes()-before, 0, 65, "writes in a minute, of which 30 of each node are renewals")
		check.Equal(t, ownerIn(t, s, "a"), "n2", "the owner in the table")
	})
}

// However etcd goes on to count after a restore from a backup in which the table is older: it is written again as nodes have
// seen it, and then units are placed, handed over and taken from the dead as ever.
func TestRestored(t *testing.T) {
	for name, tt := range map[string]struct {
		bump   uint64
		others int  // Leases that others write before any node renews
		on     bool // watches go on from their last version
	}{
		"versions begin again":                         {},
		"versions are soon as high":                    {others: 1000},
		"versions are soon as high, and watches go on": {others: 1000, on: true},
		"bumped":                    {bump: 1e9},
		"bumped, and watches go on": {bump: 1e9, on: true},
	} {
		t.Run(name, func(t *testing.T) {
			withThree(t, func(t *testing.T, a *network, n1, n2, n3 *node) {
				plan := func(unit, to string) {
					for _, n := range []*node{n1, n2, n3} {
						n.pass.Lock()
						n.plans[unit] = to
						clear(n.gives)
						n.pass.Unlock()
						n.plan()
					}
				}
				restore := a.api.Snapshot()
				n1.give("n2", "a")
				others(t, a.api, 500)
				time.Sleep(30 * time.Second)
				before, conflicts := tableOf(t, a.api).Number, a.api.Conflicts()
				for _, n := range []*node{n1, n2, n3} {
					n.fault(func(f *leasetest.Faults) { f.WatchesOn = tt.on })
				}
				restore(tt.bump)
				others(t, a.api, tt.others)
				time.Sleep(period + time.Second)
				if got := tableOf(t, a.api); got.Number <= before || !n2.serves("a") {
					t.Errorf("the table has number %d after %d, n2 serves a: %v", got.Number, before, n2.serves("a"))
				}
				plan("c", "n1")
				waitServes(t, n1, "c", time.Second)
				n2.give("n3", "a")
				waitServes(t, n3, "a", time.Second)
				plan("a", "n1")
				n3.kill()
				a.setBetween(vip.Dead, "n3")
				waitServes(t, n1, "a", time.Second)
				if n := a.api.Conflicts() - conflicts; n > 10 {
					t.Errorf("%d writes were refused", n)
				}
			})
		})
	}
}

// A node whose lease is not in the backup finds by its next one that etcd was restored, whether the table is in it or not.
func TestRestoredToBeforeTheNode(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		start(t, s, "n2").want("a")
		time.Sleep(5 * time.Second)
		restore := s.Snapshot()
		n1 := start(t, s, "n1")
		others(t, s, 500)
		time.Sleep(10 * time.Second)
		n1.fault(func(f *leasetest.Faults) { f.WatchesOn = true })
		restore(0)
		time.Sleep(period + 3*time.Second)
		check.Between(t, n1.way.Begun(), 1, 2, "how often its watches have begun again")
	})
	withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
		restore := s.Snapshot()
		n1.want("a")
		others(t, s, 500)
		time.Sleep(10 * time.Second)
		n1.fault(func(f *leasetest.Faults) { f.WatchesOn = true })
		restore(0)
		time.Sleep(period + 3*time.Second)
		check.Between(t, n1.way.Begun(), 1, 2, "how often its watches have begun again") // by lease and table
		check.Equal(t, n1.serves("a") && ownerIn(t, s, "a") == "n1", true, "whether n1 serves")
	})
}

// A read that the watch overtakes shows no restore of etcd.
func TestOvertakenRead(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
		n1.want("a")
		time.Sleep(5 * time.Second)
		n1.fault(func(f *leasetest.Faults) { f.AnswerDelay = 300 * time.Millisecond })
		annotateLease(t, s, nodeKey("n1"), FencedAnnotation, "1") // it reads the table in its next epoch
		for i := range 200 {
			annotateLease(t, s, tableKey, "another", fmt.Sprint(i))
			time.Sleep(20 * time.Millisecond)
		}
		if got := n1.way.Begun(); got != 0 || n1.Tenure().Epoch == 1 {
			t.Errorf("the watches have begun again %d times, the epoch is %d", got, n1.Tenure().Epoch)
		}
	})
}

// A node whose watch is stuck when etcd is restored renews its lease no more often than before, and begins the epoch that it
// finds it must.
func TestRestoredWhileTheWatchIsStuck(t *testing.T) {
	withServer(t, func(t *testing.T, s *leasetest.Server) {
		n2 := start(t, s, "n2")
		time.Sleep(5 * time.Second)
		restore := s.Snapshot()
		others(t, s, 500)
		time.Sleep(3 * time.Second)
		n2.fault(func(f *leasetest.Faults) { f.WatchCut = true })
		restore(0)
		annotateLease(t, s, nodeKey("n2"), FencedAnnotation, "1")
		before := s.Writes()
		time.Sleep(20 * time.Second)
		check.Between(t, s.Writes()-before, 0, 14, "writes in 20 s, of which 10 are renewals")
		if epoch := n2.Tenure().Epoch; epoch != transitions(s.Lease(nodeKey("n2"))) || epoch == 1 {
			t.Errorf("it acts in epoch %d", epoch)
		}
		n2.fault(func(f *leasetest.Faults) { f.WatchCut = false })
		time.Sleep(time.Second)
		n2.want("a")
		time.Sleep(time.Second)
		check.Equal(t, serving("a", n2), "n2", "who serves in the end")
	})
}

// A watch is not stuck where another program writes the node lease right after each renewal, so that it shows that program's versions alone.
func TestRenewalsOverwrittenAtOnce(t *testing.T) {
	withOne(t, func(t *testing.T, s *leasetest.Server, n1 *node) {
		time.Sleep(5 * time.Second)
		var last time.Time
		for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(time.Millisecond) {
			if at := renewTime(s.Lease(nodeKey("n1"))); !at.Equal(last) {
				last = at
				annotateLease(t, s, nodeKey("n1"), "another", at.String())
			}
		}
		check.Equal(t, n1.way.Begun(), 0, "how often the watches have begun again")
	})
}
