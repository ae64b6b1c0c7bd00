package simulation

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// TestLeasesMove: the same as TestFaults, or TestWire, while the option that says where VIP leases are changes on one node
// after the other, and back.
func TestLeasesMove(t *testing.T) {
	all := seeds(t)
	var moved atomic.Uint64
	t.Cleanup(func() {
		if n := moved.Load(); !t.Failed() && n < all/2 {
			t.Errorf("the VIP leases have moved with %d of %d seeds only", n, all)
		}
	})
	for seed := range all {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 15))
				c := newCluster(t, size{nodes: 3 + 2*r.IntN(2), services: 12, skew: 0.02})
				fault := c.anyFault
				if seed%2 == 1 {
					c.wire, fault = newWire(c, rand.New(rand.NewPCG(seed, 16))), c.wireFault
				}
				c.run(r, 40, func(r *rand.Rand, n *node) { c.locationFault(r, n, fault) })
				if c.location() != "" {
					moved.Add(1)
				}
			})
		})
	}
}

// locationFault is, in one of three, that n restarts with its option changed, or that all have it changed and one restarts; else the other fault.
func (c *cluster) locationFault(r *rand.Rand, n *node, other func(*rand.Rand, *node)) {
	switch r.IntN(9) {
	default:
		other(r, n)
	case 0:
		all := r.IntN(2) == 0
		for _, o := range c.nodes {
			o.setAnnouncers(all)
		}
		c.restart(r, n, "killed and started", func() { n.kill(false) })
	case 1, 2:
		n.setAnnouncers(r.IntN(2) == 0)
		for range 1 + r.IntN(2) {
			o := c.nodes[r.IntN(len(c.nodes))]
			end := o.stop
			if r.IntN(2) == 0 {
				end = func() { o.kill(false) }
			}
			end()
			time.Sleep(time.Duration(r.IntN(3000)) * time.Millisecond)
			o.start()
			time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
		}
	}
}

// location is what the record of where VIP leases are says; "" if there is none.
func (c *cluster) location() string {
	x := c.api.Lease(vip.Key{Namespace: "kube-system", Name: lease.RecordName})
	if x == nil {
		return ""
	}
	return x.Annotations[lease.LocationAnnotation]
}

// TestLeasesMoveWithoutGap: nodes are restarted one after the other with the option that has VIP leases in the
// announcers' namespace, and then without it. No VIP is unanswered at any time; and then all VIP leases are
// where they should be, and nowhere else.
func TestLeasesMoveWithoutGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, size{nodes: 5, services: 40})
		c.wire = newWire(c, rand.New(rand.NewPCG(1, 17)))
		c.run(rand.New(rand.NewPCG(1, 18)), 1, func(*rand.Rand, *node) {
			for _, announcers := range []bool{true, false} {
				want := "services"
				if announcers {
					want = "announcers"
				}
				for _, n := range c.nodes {
					n.setAnnouncers(announcers)
					c.setMustAnswer(true)
					n.stop()
					n.start()
					time.Sleep(10 * time.Second)
					c.setMustAnswer(false)
				}
				time.Sleep(2 * time.Minute)
				if got := c.location(); got != want {
					t.Errorf("VIP leases are in %q, want %q", got, want)
				}
				for _, s := range c.services {
					k := s.LeaseKey()
					in := vip.VIPLeaseIn("kube-system", k)
					if here, there := c.api.Lease(k) != nil, c.api.Lease(in) != nil; here == announcers || there != announcers {
						c.mu.Lock()
						c.fail(netip.Addr{}, c.nodes, "%s: in the Service's namespace %v, in the announcers' %v", k, here, there)
						c.mu.Unlock()
					}
				}
			}
		})
	})
}
