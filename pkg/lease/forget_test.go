package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
)

// remembered counts what a node remembers of writes that failed, and of versions that are old.
func (n *node) remembered() (failures, outdated int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.writes.failures), len(n.cache.outdated)
}

// Of Services that are gone nothing is remembered: neither that their leases could not be written, nor which versions of them were old.
func TestServicesThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1 := start(t, s, "n1")
		time.Sleep(time.Second)
		for i := range 10 {
			name := fmt.Sprint("gone-", i)
			n1.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "kubevip-" })
			n1.want(name)
			time.Sleep(deadline/2 + time.Second)
			n1.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
			n1.want()
			time.Sleep(deadline)

			n1.want("released")
			time.Sleep(time.Second)
			n1.way.SetFaults(func(f *leasetest.Faults) { f.Lag = time.Second })
			n1.want()
			time.Sleep(5 * time.Second)
			n1.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
			n1.want()
		}
		if failures, outdated := n1.remembered(); failures+outdated != 0 {
			t.Errorf("%d failures, %d versions", failures, outdated)
		}
	})
}

// What is still needed is remembered: which version of a lease that the watch shows is old, and that a write of a lease that is wanted failed.
func TestRememberedWhileNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := start(t, s, "n1"), start(t, s, "n2")
		n1.acquire(n2, "a")
		n1.way.SetFaults(func(f *leasetest.Faults) { f.WatchCut = true })
		annotateLease(t, s, lk("a"), "tenant", "x")
		n1.handOver("n2", "a")
		time.Sleep(500 * time.Millisecond)
		n1.handOver("n2", "a")
		if failures, outdated := n1.remembered(); failures != 1 || outdated != 1 {
			t.Errorf("%d failures, %d versions, want 1, 1", failures, outdated)
		}
		n1.follow() // as if the Service of a were gone for a moment
		if _, outdated := n1.remembered(); outdated != 1 {
			t.Errorf("%d versions, want 1", outdated)
		}
		if n1.serves("a") {
			t.Error("n1 serves a by a version that is old")
		}
	})
}
