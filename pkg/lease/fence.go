package lease

import (
	"context"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	fenceTimeout = 1500 * time.Millisecond // how long a write of a fence may take
	keepFenced   = time.Hour               // the node lease of a fenced node is deleted after this
)

// fence starts to mark the epochs as over that the decision names, and to delete node
// leases that have been fenced for keepFenced. Without a confirmed tenure it does nothing.
func (l *Leases) fence(ctx context.Context, now time.Time) {
	if t := l.tenure(now); l.own.renewingSince.IsZero() || !t.Holds(now) || !t.Confirmed {
		return
	}
	for node, p := range l.peers {
		k := vip.Key{Namespace: l.o.Namespace, Name: NodePrefix + node}
		if l.writes.pending[k] {
			continue
		}
		if p.fenced && !p.gone && p.silent(now, keepFenced) {
			l.deleteFenced(ctx, k, p.lease)
		}
		why := l.decision.Fence[node]
		if why == "" || p.fenced || p.gone && !l.isHolder(node) || now.Before(l.writes.failures[k].until) {
			continue
		}
		l.o.Log.Info("the claims of a node are voided", "node", node, "why", why, "renewed", now.Sub(p.changed).Round(time.Millisecond).String()+" ago", "epoch", p.epoch)
		l.writeFence(ctx, k, node, p)
	}
}

// writeFence starts to replace p's node lease by its tombstone. The first tries are given
// up early: with the node may have died the API server that would answer, or etcd's leader.
func (l *Leases) writeFence(ctx context.Context, k vip.Key, node string, p *peer) {
	timeout := fenceTimeout
	if l.writes.failures[k].count < shortTries {
		timeout = shortTimeout
	}
	next, now := l.tombstone(node, p), time.Now()
	l.writes.pending[k] = true
	l.start(ctx, min(timeout, l.o.RenewDeadline/2), func(ctx context.Context) func() {
		write := l.store.Update
		if next.ResourceVersion == "" {
			write = l.store.Create
		}
		got, err := write(ctx, next)
		return func() {
			l.written(k, got, err)
			if err == nil {
				l.metrics.fenced.Inc()
				p.update(got, now)
				delete(l.decision.Alive, node)
				l.changed = true
			}
		}
	})
}

// tombstone is p's node lease with its epoch marked as over. It replaces the very
// version that was seen to grow old.
func (l *Leases) tombstone(node string, p *peer) *coordinationv1.Lease {
	next := &coordinationv1.Lease{}
	if p.lease != nil && !p.gone {
		next = p.lease.DeepCopy()
	}
	next.Namespace, next.Name = l.o.Namespace, NodePrefix+node
	addLabels(next)
	annotate(next, FencedAnnotation, strconv.FormatInt(p.epoch, 10))
	next.Spec.HolderIdentity, next.Spec.LeaseTransitions = &node, new(int32(p.epoch))
	return next
}

// deleteFenced starts to delete a node lease.
func (l *Leases) deleteFenced(ctx context.Context, k vip.Key, x *coordinationv1.Lease) {
	l.writes.pending[k] = true
	l.start(ctx, l.o.RenewDeadline/2, func(ctx context.Context) func() {
		err := l.store.Delete(ctx, x.Namespace, x.Name, x.ResourceVersion)
		return func() { l.written(k, nil, err) }
	})
}
