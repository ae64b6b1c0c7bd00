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

// A namespace in which no write of a Lease is answered, since a webhook hangs, for more leases than may be written at once, keeps no other waiting.
func TestLeasesHangForOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(t, leasetest.NewServer(), "n1")
		a.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "hangs-" })
		time.Sleep(time.Second)
		all := tenantLeases(2 * maxWrites)
		a.intend(vip.Acquire, all...)
		time.Sleep(25 * time.Second)
		for i := range 4 {
			all = append(all, lk(fmt.Sprint(i)))
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
}

// The same of VIPs that a fence has given to a node: it writes those of other namespaces before it is passed over.
func TestTransferredHangForOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		n1 := startTransferring(t, s, "n1", "n2")
		all := append(tenantLeases(4*maxUnwritten), lk("a"), lk("b"))
		n1.intend(vip.Acquire, all...)
		time.Sleep(time.Second)
		n2, n3 := startTransferring(t, s, "n2", "n2"), startTransferring(t, s, "n3", "n2")
		n2.intend(vip.Follow, all...)
		n3.intend(vip.Follow, all...)
		time.Sleep(5 * time.Second)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "hangs-" })
		n1.kill()
		for s.Lease(nodeKey("n1")).Annotations[FencedAnnotation] == "" {
			time.Sleep(10 * time.Millisecond)
		}
		n2.intend(vip.Acquire, all...)
		time.Sleep(stalledAfter - 300*time.Millisecond)
		for _, k := range []vip.Key{lk("a"), lk("b")} {
			if got := holder(s.Lease(k)); got != "n2" {
				t.Errorf("%s is written in the name of %s", k, got)
			}
		}
	})
}

// A namespace that is alone, and whose writes are answered, has all the requests there are: also where VIP leases are in the announcers' namespace.
func TestLeasesOfOneNamespaceAreAcquiredQuickly(t *testing.T) {
	for _, announcers := range []bool{false, true} {
		t.Run(fmt.Sprintf("announcers=%v", announcers), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := startIn(t, leasetest.NewServer(), "n1", announcers)
				a.way.SetFaults(func(f *leasetest.Faults) { f.Delay = 20 * time.Millisecond })
				time.Sleep(5 * time.Second)
				const n = 320 // ten times maxWrites
				a.intend(vip.Acquire, tenantLeases(n)...)
				time.Sleep(250 * time.Millisecond) // ten times 20 ms, and once more until the first is answered; it would be 400 ms of half the requests
				if got := a.held(); got != n {
					t.Errorf("%d of %d acquired", got, n)
				}
			})
		})
	}
}

// In the announcers' namespace a webhook can't tell the namespaces of Services apart: no namespace leaves requests to others, though all writes are slow.
func TestLeasesInAnnouncersNamespaceAreNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := startIn(t, leasetest.NewServer(), "n1", true)
		time.Sleep(5 * time.Second)
		a.way.SetFaults(func(f *leasetest.Faults) { f.Delay = 400 * time.Millisecond })
		a.intend(vip.Acquire, tenantLeases(2*maxWrites)...)
		time.Sleep(900 * time.Millisecond)
		if got := a.held(); got != 2*maxWrites {
			t.Errorf("%d of %d acquired in the time of two writes", got, 2*maxWrites)
		}
	})
}

// The same of VIPs that a fence has given to the node: it writes them as fast as maxUnwritten permits.
func TestTransferredOfOneNamespaceAreWrittenQuickly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, all := leasetest.NewServer(), tenantLeases(200)
		n1 := startTransferring(t, s, "n1", "n2")
		n1.intend(vip.Acquire, all...)
		time.Sleep(time.Second)
		n2 := startTransferring(t, s, "n2", "n2")
		n2.intend(vip.Follow, all...)
		n2.way.SetFaults(func(f *leasetest.Faults) { f.Delay = 20 * time.Millisecond })
		time.Sleep(5 * time.Second)
		n1.kill()
		for s.Lease(nodeKey("n1")).Annotations[FencedAnnotation] == "" {
			time.Sleep(10 * time.Millisecond)
		}
		n2.intend(vip.Acquire, all...)
		time.Sleep(700 * time.Millisecond) // 200 of 8 at a time, at 20 ms: half a second
		for _, k := range all {
			if got := holder(s.Lease(k)); got != "n2" {
				t.Fatalf("%s is written in the name of %s", k, got)
			}
		}
	})
}

// A namespace in which every second Lease can't be written, since one of two webhooks hangs, holds all requests once, and half of them after that.
func TestLeasesHangForHalfANamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := start(t, leasetest.NewServer(), "n1")
		a.way.SetFaults(func(f *leasetest.Faults) { f.Hang = "hangs-" })
		time.Sleep(time.Second)
		all := tenantLeases(4 * maxWrites)
		for i := range all {
			if i%2 == 1 {
				all[i].Name = fmt.Sprintf("good-%02d", i)
			}
		}
		a.intend(vip.Acquire, all...)
		time.Sleep(2 * deadline)
		for i := range 8 {
			all = append(all, lk(fmt.Sprint(i)), vip.Key{Namespace: "tenant", Name: fmt.Sprintf("good-%d", i)})
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
}
