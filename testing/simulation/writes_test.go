package simulation

import (
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// TestWrites: how many Leases are written beside renewals: when nodes find Services at their start, when one is drained, and
// when one loses its power.
func TestWrites(t *testing.T) {
	for _, tt := range []struct {
		name            string
		nodes, services int
		do              func(*node)
		atMost          int64
	}{
		{"start", 3, 300, nil, 30},
		{"drain", 3, 300, func(n *node) { n.toggle(drained) }, 4},
		{"power", 3, 450, func(n *node) { n.kill(true) }, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var writes *atomic.Int64
			inCluster(t, 1, size{nodes: tt.nodes, services: tt.services}, func(c *cluster) { writes = c.countWrites() }, func(c *cluster) {
				if tt.do != nil {
					writes.Store(0)
					tt.do(c.nodes[0])
					c.pokeAll()
					time.Sleep(time.Minute)
				}
				t.Logf("%d writes", writes.Load())
				if writes.Load() > tt.atMost {
					t.Errorf("%d writes, want %d at most", writes.Load(), tt.atMost)
				}
			})
		})
	}
}

// TestSpread: nodes that start together share the VIPs that wait for them, though one is the first.
func TestSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, size{nodes: 3, services: 60})
		c.broken = true // TestFaults has what is checked in between
		c.wire = newWire(c, rand.New(rand.NewPCG(1, 116)))
		c.create()
		for _, n := range c.nodes {
			n.start()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(5 * time.Second)
		c.mu.Lock()
		for _, n := range c.nodes {
			if len(n.kernel) < 15 || len(n.kernel) > 25 {
				t.Errorf("%s has %d of 60 VIPs", n.name, len(n.kernel))
			}
		}
		c.mu.Unlock()
		for _, n := range c.nodes {
			n.stop()
		}
	})
}

// countWrites counts from now on what is written beside renewals; it is called before a node starts.
func (c *cluster) countWrites() *atomic.Int64 {
	writes := new(atomic.Int64)
	c.api.Refuse = func(l *coordinationv1.Lease) error {
		node, isNode := strings.CutPrefix(l.Name, vip.NodeLeasePrefix)
		before := c.api.LeaseLocked(vip.Key{Namespace: l.Namespace, Name: l.Name})
		if !isNode || l.Annotations[lease.FencedAnnotation] != "" || before == nil || *l.Spec.HolderIdentity != node {
			writes.Add(1)
		}
		return nil
	}
	return writes
}
