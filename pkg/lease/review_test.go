package lease

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
)

// A VIP lease that was transferred, and is deleted by hand before its new owner has written it, is that node's to write again: the one that it named has no right to
// it any more, and waits for nobody.
func TestTransferredLeaseDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1, n2 := owners(t, s)
		n3 := startTransferring(t, s, "n3", "")
		time.Sleep(time.Second)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "kubevip-" })
		n1.handOver("n2", "a", "b", "c")
		time.Sleep(50 * time.Millisecond)
		if !n2.serves("a") {
			t.Fatal("n2 does not serve")
		}
		if err := s.Remove(lk("a"), s.Lease(lk("a")).ResourceVersion); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if c := n3.world().Claims[lk("a")]; c.Holder != "n2" || !c.Valid {
			t.Errorf("n3 takes it for %+v", c)
		}
		n2.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
		n1.follow("a", "b", "c")
		n2.want("a", "b", "c")
		time.Sleep(500 * time.Millisecond)
		if !n2.serves("a") {
			t.Errorf("n2 has %+v", n2.world().Claims[lk("a")])
		}
	})
}
