package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
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
		for i := range 500 {
			if _, err := s.Put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("other-", i)}}); err != nil {
				t.Fatal(err)
			}
		}
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
