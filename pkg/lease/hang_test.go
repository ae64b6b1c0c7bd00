package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// tenantLeases returns the keys of n VIP leases in the namespace tenant, whose names begin with "hangs-".
func tenantLeases(n int) (all []vip.Key) {
	for i := range n {
		all = append(all, vip.Key{Namespace: "tenant", Name: fmt.Sprintf("hangs-%02d", i)})
	}
	return all
}

// intend has the node want an action on each lease.
func (n *node) intend(action vip.LeaseAction, leases ...vip.Key) {
	var intents []vip.LeaseIntent
	for _, k := range leases {
		intents = append(intents, vip.LeaseIntent{Lease: k, Service: k, Action: action})
	}
	n.world()
	n.Put(intents)
}

// A namespace in which no write of a Lease is answered, since a webhook hangs, for more leases than may be written at once, keeps no other waiting. One in which every
// second can't be written, since one of two webhooks hangs, holds all requests once, and half of them after that.
func TestLeasesHangForOneNamespace(t *testing.T) {
	for _, half := range []bool{false, true} {
		t.Run(fmt.Sprintf("half=%v", half), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := start(t, leasetest.NewServer(), "n1")
				a.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "hangs-" })
				time.Sleep(time.Second)
				all := tenantLeases(4 * maxWrites)
				for i := range all {
					if half && i%2 == 1 {
						all[i].Name = fmt.Sprintf("good-%02d", i)
					}
				}
				a.intend(vip.Acquire, all...)
				time.Sleep(2*deadline + 5*time.Second)
				for i := range 8 {
					if all = append(all, lk(fmt.Sprint(i))); half {
						all = append(all, vip.Key{Namespace: "tenant", Name: fmt.Sprintf("good-%d", i)})
					}
					a.intend(vip.Acquire, all...)
					time.Sleep(time.Second)
					if !a.serves(fmt.Sprint(i)) {
						t.Errorf("lease %d of the other namespace is not acquired after a second", i)
					}
					time.Sleep(700 * time.Millisecond)
				}
				a.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "" })
				time.Sleep(deadline) // those that hang have ended
			})
		})
	}
}

// The same of VIPs that a fence has given to a node: it writes those of other namespaces before it is passed over.
func TestTransferredHangForOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		all := append(tenantLeases(4*maxUnwritten), lk("a"), lk("b"))
		n2, _ := deathOf(t, s, all, func(f *leasetest.Faults) { f.Hang = "hangs-" })
		n2.intend(vip.Acquire, all...)
		time.Sleep(stalledAfter - 300*time.Millisecond)
		if got := writtenTo(s, "n2", "a", "b"); got != 2 {
			t.Errorf("%d of the two leases of the other namespace are written", got)
		}
	})
}

// A namespace that is alone, and whose writes are answered, has all the requests there are. So it has in the announcers' namespace, where a webhook can't tell the
// namespaces of Services apart, though all writes are slow.
func TestLeasesOfOneNamespaceAreAcquiredQuickly(t *testing.T) {
	for _, tt := range []struct {
		announcers    bool
		n             int
		delay, within time.Duration
	}{
		{false, 10 * maxWrites, 20 * time.Millisecond, 250 * time.Millisecond}, // ten times 20 ms, and once more until the first is answered; it would be 400 ms of half the requests
		{true, 10 * maxWrites, 20 * time.Millisecond, 250 * time.Millisecond},
		{true, 2 * maxWrites, 400 * time.Millisecond, 900 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := startIn(t, leasetest.NewServer(), "n1", tt.announcers)
			time.Sleep(5 * time.Second)
			a.way.SetFaults(func(f *leasetest.Faults) { f.Delay = tt.delay })
			a.intend(vip.Acquire, tenantLeases(tt.n)...)
			time.Sleep(tt.within)
			if got := a.held(); got != tt.n {
				t.Errorf("%+v: %d acquired", tt, got)
			}
		})
	}
}

// The same of VIPs that a fence has given to the node: it writes them as fast as maxUnwritten permits.
func TestTransferredOfOneNamespaceAreWrittenQuickly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, all := leasetest.NewServer(), tenantLeases(200)
		n2, _ := deathOf(t, s, all, func(f *leasetest.Faults) { f.Delay = 20 * time.Millisecond })
		n2.intend(vip.Acquire, all...)
		time.Sleep(700 * time.Millisecond) // 200 of 8 at a time, at 20 ms: half a second
		for _, k := range all {
			if got := holder(s.Lease(k)); got != "n2" {
				t.Fatalf("%s is written in the name of %s", k, got)
			}
		}
	})
}
