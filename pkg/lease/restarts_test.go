package lease

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// restartsSeenBy is how many restarts of n1 a node knows of: by its node lease, or its own.
func (n *node) restartsSeenBy(t *testing.T) int {
	t.Helper()
	all := n.world().Members
	i := slices.IndexFunc(all, func(m vip.Member) bool { return m.Name == "n1" })
	if i < 0 {
		t.Fatalf("%s does not know n1", n.name)
	}
	return len(all[i].Info.Restarts)
}

// A node that is killed and started again says so on its node lease, for a while; one that is
// stopped in good order does not.
func TestRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := leasetest.NewServer()
		a, b := start(t, s, "n1"), start(t, s, "n2")
		time.Sleep(time.Second)
		expect := func(when string, want int) {
			t.Helper()
			if self, other := a.restartsSeenBy(t), b.restartsSeenBy(t); self != want || other != want {
				t.Errorf("%s: %d restarts by its own count, %d by the other's; want %d", when, self, other, want)
			}
		}
		expect("first start", 0)
		a.stop()
		<-a.done
		a = start(t, s, "n1")
		time.Sleep(time.Second)
		expect("stopped in good order", 0)
		for i := range 10 {
			a.kill()
			time.Sleep(time.Duration(i) * 3 * time.Second) // not fenced, and fenced
			a = start(t, s, "n1")
			time.Sleep(time.Second)
			expect("killed", min(i+1, maxRestarts))
		}
		time.Sleep(forgetAfter - 10*time.Second)
		expect("almost for long enough", maxRestarts)
		time.Sleep(12 * time.Second)
		expect("alive for long enough", 0)
		a.kill()
		time.Sleep(time.Minute)
		a = start(t, s, "n1")
		time.Sleep(time.Second)
		expect("killed once, long after", 1)
		time.Sleep(2*stableAfter - 2*time.Second)
		expect("killed once, almost for long enough", 1)
		time.Sleep(3 * time.Second)
		expect("killed once, alive for long enough", 0)
	})
}
