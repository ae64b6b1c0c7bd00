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
