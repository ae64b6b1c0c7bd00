package pool

import (
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Service with PreferDualStack that has what there is does not wait.
func TestPreferDualStackDoesNotWait(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.0/24")
	w.set("a", families(vip.PreferDualStack, vip.IPv4, vip.IPv6))
	for range 2 {
		if waits := w.decide(); len(waits) > 0 {
			t.Errorf("it waits: %v", waits)
		}
		w.restart()
	}
	w.expect("a: 10.0.0.1 of cidr-global")
}
