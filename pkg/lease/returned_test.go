package lease

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// A node that could not renew for so long that it was fenced, and its node lease deleted since (after an hour, or with its Node), acts on no claim of that
// epoch when it is back, although its watch does not show yet who has what it had, and no node lease says that it was fenced.
func TestFencedAndForgotten(t *testing.T) {
	own := vip.Key{Namespace: "kube-system", Name: NodePrefix + "n1"}
	tests := []struct {
		name   string
		forget func(s *leasetest.Server)
	}{
		{"after an hour", func(*leasetest.Server) { time.Sleep(keepFenced + 2*leaseDuration) }},
		{"with its Node", func(s *leasetest.Server) {
			if err := s.Remove(own, ""); err != nil {
				t.Error(err)
			}
			time.Sleep(leaseDuration)
		}},
	}
	for _, tt := range tests {
		for _, heartbeats := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, with heartbeats: %v", tt.name, heartbeats), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, a := leasetest.NewServer(), newNetwork()
					run := func(name string) *node {
						if heartbeats {
							return a.join(t, s, name)
						}
						return start(t, s, name)
					}
					n1, n2 := run("n1"), run("n2")
					n1.want("a")
					time.Sleep(time.Second)
					n2.want("a")
					neverTwo(t, t.Context(), "a", newGroup(n1, n2))
					time.Sleep(10 * time.Second)
					n1.way.SetFaults(func(f *leasetest.Faults) { f.Cut = true })
					if heartbeats {
						a.setBetween(vip.Dead, "n1")
					}
					time.Sleep(time.Minute)
					if !n2.serves("a") {
						t.Fatalf("n2 does not serve\n%s", s)
					}
					tt.forget(s)
					if s.Lease(own) != nil {
						t.Fatalf("the node lease is still there\n%s", s)
					}
					n1.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults; f.WatchCut = true })
					if heartbeats {
						a.setBetween(vip.Alive, "n1")
					}
					time.Sleep(8 * time.Second)
					n1.way.SetFaults(func(f *leasetest.Faults) { *f = leasetest.NoFaults })
					time.Sleep(10 * time.Second)
					if !n2.serves("a") || n1.serves("a") {
						t.Errorf("n1 serves %v, n2 serves %v\n%s", n1.serves("a"), n2.serves("a"), s.Trace(20))
					}
				})
			})
		}
	}
}
