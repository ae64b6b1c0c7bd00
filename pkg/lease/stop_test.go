package lease

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// startStopping is start for a node that says on its node lease that it stops once stopping is set.
func startStopping(t *testing.T, s *leasetest.Server, name string) (n *node, stopping *atomic.Bool) {
	t.Helper()
	stopping = new(atomic.Bool)
	n, run := newNode(t, s, name, func(o *Options) {
		o.Info = func() (info vip.NodeInfo) {
			if info.Interface = "eth0"; stopping.Load() {
				info.Excluded = "its Herald is stopping"
			}
			return info
		}
	})
	run(func(err error) { check.OK(t, err) })
	return n, stopping
}

// TestLastToStopLeavesNothing: the last node that stops deletes what is left on VIP leases of nodes that have stopped, whether it could not
// release its own, or was handed one while it ended. As long as another node runs, that has them.
func TestLastToStopLeavesNothing(t *testing.T) {
	t.Run("its process was paused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := leasetest.NewServer()
			a, _ := startStopping(t, s, "n1")
			a.want("a")
			time.Sleep(500 * time.Millisecond)
			a.mu.Lock()
			a.own.ConfirmAfter = time.Now() // as after a pause that nothing was confirmed since
			a.mu.Unlock()
			a.stop()
			<-a.done
			if got := s.String(); got != "" {
				t.Errorf("left after the end:\n%s", got)
			}
		})
	})
	t.Run("another hands over while it ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := leasetest.NewServer()
			a, stoppingA := startStopping(t, s, "n1")
			b, stoppingB := startStopping(t, s, "n2")
			a.want("a")
			time.Sleep(time.Second)
			a.way.SetFaults(func(f *leasetest.Faults) { f.Delay = 20 * time.Millisecond })
			b.way.SetFaults(func(f *leasetest.Faults) { f.Lag = 200 * time.Millisecond })
			stoppingA.Store(true)
			stoppingB.Store(true)
			a.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.HandOver, Successor: "n2"}})
			time.Sleep(10 * time.Millisecond)
			b.stop() // which the hand-over reaches a moment later
			a.stop()
			<-a.done
			<-b.done
			if got := s.String(); got != "" {
				t.Errorf("left after the end:\n%s\n%s", got, s.Trace(20))
			}
		})
	})
	t.Run("another runs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := leasetest.NewServer()
			a, _ := startStopping(t, s, "n1")
			startStopping(t, s, "n2")
			a.want("a")
			time.Sleep(time.Second)
			a.mu.Lock()
			a.own.ConfirmAfter = time.Now()
			a.mu.Unlock()
			a.stop()
			<-a.done
			if s.Lease(lk("a")) == nil {
				t.Error("a VIP lease is deleted that another node may acquire at this moment")
			}
		})
	})
}
