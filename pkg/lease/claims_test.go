package lease

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
)

// A node lease that a process finds at its start proves nothing of that node, until it is renewed.
func TestUnproven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		dead := start(t, s, "n3")
		time.Sleep(5 * time.Second)
		dead.kill()
		start(t, s, "n2")
		time.Sleep(period / 2)
		n1 := start(t, s, "n1")
		unproven := func() (all string) {
			for _, m := range n1.world().Members {
				if m.Unproven {
					all += m.Name + " "
				}
			}
			return all
		}
		time.Sleep(period / 4)
		if got := unproven(); got != "n2 n3 " {
			t.Errorf("at the start: %q are unproven, want n2 n3", got)
		}
		time.Sleep(2 * period)
		if got := unproven(); got != "n3 " {
			t.Errorf("after two renewals: %q are unproven, want n3", got)
		}
	})
}
