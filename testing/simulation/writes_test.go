package simulation

import (
	"strings"
	"sync/atomic"
	"testing"
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
		{"power", 3, 450, func(n *node) { n.toggle(unplug); n.kill(true) }, 5},
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

// countWrites counts from now on what is written beside renewals; it is called before a node starts.
func (c *cluster) countWrites() *atomic.Int64 {
	writes := new(atomic.Int64)
	c.api.Refuse = func(l *coordinationv1.Lease) error {
		node, isNode := strings.CutPrefix(l.Name, lease.NodePrefix)
		before := c.api.LeaseLocked(vip.Key{Namespace: l.Namespace, Name: l.Name})
		if !isNode || l.Annotations[lease.FencedAnnotation] != "" || before == nil || *l.Spec.HolderIdentity != node {
			writes.Add(1)
		}
		return nil
	}
	return writes
}
