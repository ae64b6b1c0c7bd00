package netif

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/vishvananda/netlink"
)

// TestRenewalsDoNotWaitForManyNewAddresses: 5000 addresses are bound beside six, and removed, and none of the six comes near its end.
func TestRenewalsDoNotWaitForManyNewAddresses(t *testing.T) {
	for _, bits := range []int{32, 16} {
		t.Run(fmt.Sprint(bits), func(t *testing.T) {
			l := newVeth(t, "eth0", "10.0.0.5/24")
			r, stop := kernelRig(t)
			defer stop()
			var held, others []vip.Address
			for i := range 5006 {
				a := addr(fmt.Sprintf("10.1.%d.%d/%d", i>>8, i&255, bits), "eth0")
				if i < 5000 {
					others = append(others, a)
				} else {
					held = append(held, a)
				}
			}
			check.Value(r.Set(t.Context(), held))(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for _, want := range [][]vip.Address{slices.Concat(held, others), held} {
					began := time.Now()
					if _, err := r.Set(t.Context(), want); err != nil {
						t.Errorf("Set: %v", err)
					}
					t.Logf("Set of %d took %v", len(want), time.Since(began).Round(time.Millisecond))
				}
			}()
			least := lifetime
			for end := false; !end; {
				least = min(least, leastLifetime(t, l, held))
				select {
				case <-done:
					end = true
				case <-time.After(100 * time.Millisecond):
				}
			}
			// The lifetime counts down by whole seconds, of which the first is over at once.
			if t.Logf("the least lifetime was %d s", least); least < lifetime-2 {
				t.Errorf("an address had %d s to live", least)
			}
		})
	}
}

// leastLifetime is how many seconds the kernel will keep the first of the addresses to go; 0 if it has dropped one.
func leastLifetime(t *testing.T, l netlink.Link, list []vip.Address) int {
	t.Helper()
	left := map[string]int{}
	all, err := netlink.AddrList(l, netlink.FAMILY_V4)
	if err != nil { // it changed while it was read
		return lifetime
	}
	for _, a := range all {
		left[a.IP.String()] = a.ValidLft
	}
	least := lifetime
	for _, a := range list {
		least = min(least, left[a.Addr.String()])
	}
	return least
}
