package lease

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// A node lease that is deleted by hand is put back in the same epoch, also if a renewal meets that before the watch shows it. A watch that shows it more than a second
// later is not waited for.
func TestRenewalMeetsADeletion(t *testing.T) {
	for _, tt := range []struct {
		lag   time.Duration
		loses bool
	}{{5 * time.Millisecond, false}, {300 * time.Millisecond, false}, {900 * time.Millisecond, false}, {1800 * time.Millisecond, true}} {
		synctest.Test(t, func(t *testing.T) {
			s := leasetest.NewServer()
			var info atomic.Int32 // it has something new to say at each deletion
			n1, run := newNode(t, s, "n1", func(o *Options) {
				o.Info = func() vip.NodeInfo { return vip.NodeInfo{Interface: fmt.Sprint("eth", info.Load())} }
			})
			run(func(error) {})
			n1.want("a")
			time.Sleep(5 * time.Second)
			n1.way.SetFaults(func(f *leasetest.Faults) { f.Lag = tt.lag })
			lost := 0
			for i := range 40 {
				time.Sleep(5*time.Second + time.Duration(i)*period/40)
				n1.want("a")
				before, writes := n1.Tenure(), s.Writes()
				if err := s.Remove(nodeKey("n1"), ""); err != nil {
					t.Fatal(err)
				}
				info.Add(1)
				time.Sleep(5 * time.Second)
				after := n1.Tenure()
				if after.Epoch != before.Epoch {
					lost++
				}
				if n := s.Writes() - writes; s.Lease(nodeKey("n1")) == nil || !after.Holds(time.Now()) || n > 10 {
					t.Errorf("watch lag %v: it holds nothing, or only after %d writes", tt.lag, n)
				}
			}
			if (lost > 0) != tt.loses {
				t.Errorf("watch lag %v: %d of 40 deletions began a new epoch", tt.lag, lost)
			}
		})
	}
}

// A node that was fenced begins a new epoch, though the tombstone is deleted before its watch shows that.
func TestFencedAndDeletedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1 := start(t, s, "n1")
		n1.want("a")
		time.Sleep(5 * time.Second)
		for range 20 {
			before := n1.Tenure().Epoch
			annotateLease(t, s, nodeKey("n1"), FencedAnnotation, strconv.FormatInt(before, 10))
			if err := s.Remove(nodeKey("n1"), ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2*time.Second + 50*time.Millisecond)
			if got := n1.Tenure().Epoch; got <= before {
				t.Fatalf("epoch %d goes on as %d", before, got)
			}
		}
	})
}

// A node that is neither heard nor known to be dead may answer for VIPs for as long as its node lease says that it was fenced (docs/why.md, "Nobody answers beside a silent node"). Where
// something else answers in its place, a switch that suppresses ARP, somebody who knows that it is off deletes its node lease: then nobody waits for it.
func TestDeletedNodeLeaseIsWaitedForNoMore(t *testing.T) {
	for _, after := range []time.Duration{time.Second, 5 * time.Minute} { // the fence; the entry of a node that was silent for long is removed
		synctest.Test(t, func(t *testing.T) {
			s := leasetest.NewServer()
			n2, n3 := death(t, s)
			n2.want("a", "b")
			time.Sleep(after)
			for _, n := range []*node{n2, n3} {
				if until := n.member("n1").AnswersUntil; time.Until(until) < 5*time.Second {
					t.Errorf("%v after the fence n1 may answer until %v from now on, by what %s knows", after, time.Until(until), n.name)
				}
			}
			if err := s.Remove(nodeKey("n1"), ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(vip.AddressLifetime + vip.AddressRemovalDelay + time.Second)
			for _, n := range []*node{n2, n3} {
				if until := n.member("n1").AnswersUntil; time.Until(until) > 0 {
					t.Errorf("its node lease is deleted %v after the fence, and n1 may answer until %v from now on, by what %s knows", after, time.Until(until), n.name)
				}
			}
			if !n2.serves("a") || n3.world().Claims[lk("a")].Holder != "n2" {
				t.Errorf("n2 has %v", n2.world().Claims)
			}
		})
	}
}
