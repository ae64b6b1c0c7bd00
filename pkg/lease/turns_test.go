package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// A namespace whose Services name other leases all the time keeps no other namespace from its lease.
func TestLeasesOfNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a := start(t, s, "n1")
		a.way.SetFaults(func(f *leasetest.Faults) { f.Delay = 50 * time.Millisecond })
		time.Sleep(time.Second)
		good := vip.LeaseIntent{Lease: vip.Key{Namespace: "other", Name: "kubevip-good"}, Action: vip.Acquire}
		var asked time.Time
		for i := range 60 { // a pass each 50 ms
			var intents []vip.LeaseIntent
			for j := range 100 {
				intents = append(intents, vip.LeaseIntent{Lease: vip.Key{Namespace: "a-tenant", Name: fmt.Sprintf("x-%d-%d", j, i)}, Action: vip.Acquire})
			}
			if i == 20 {
				asked = time.Now()
			}
			if i >= 20 {
				intents = append(intents, good)
			}
			a.world()
			a.Put(intents)
			time.Sleep(50 * time.Millisecond)
			if c := a.world().Claims[good.Lease]; c.Valid && c.Holder == "n1" {
				if took := time.Since(asked); took > 300*time.Millisecond {
					t.Errorf("acquired after %v", took)
				}
				return
			}
		}
		t.Error("never acquired")
	})
}
