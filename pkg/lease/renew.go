package lease

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// watchOwn looks at a version of this node's own lease that the cache shows.
func (l *Leases) watchOwn(x *coordinationv1.Lease, now time.Time) {
	if l.own.lease == nil || version(x) <= version(l.own.lease) {
		return
	}
	// Somebody else wrote it. Whether that matters, the API server says.
	if fencedAt(x) >= l.own.epoch {
		l.lose("it was fenced by another node")
	}
	l.own.lease = nil
	l.own.next = now
}

// lose ends this node's epoch: what it claims is void, from this moment on.
func (l *Leases) lose(why string) {
	if l.own.lost || l.own.epoch == 0 {
		return
	}
	l.own.lost = true
	l.signature.changes++
	l.metrics.lost.Inc()
	l.o.Log.Warn("the node lease is lost: this node gives up its VIPs and claims anew", "why", why, "epoch", l.own.epoch)
}

// self is what the node lease says of this node.
type self struct {
	info vip.NodeInfo
	uid  string // of the Node object, "" if not known
}

// renew starts a renewal if one is due.
func (l *Leases) renew(ctx context.Context, now time.Time, me self) {
	o := &l.own
	info, err := json.Marshal(me.info)
	if err != nil {
		l.o.Log.Error("this node's description can't be written", "err", err)
		return
	}
	if o.busy || now.Before(o.next) && (string(info) == o.infoText || o.unbroken.IsZero()) {
		return
	}
	o.busy = true
	have, epoch := o.lease, o.epoch
	if o.lost {
		have = nil
	}
	most, hurried := l.o.RenewDeadline/2, false
	if o.hurries > 0 && have != nil && hurry < most {
		most, hurried = hurry, true
		o.hurries--
	}
	l.start(ctx, most, func(ctx context.Context) func() {
		sent := time.Now()
		if have == nil {
			var err error
			have, err = l.store.Get(ctx, l.o.Namespace, NodePrefix+l.o.Node)
			switch {
			case apierrors.IsNotFound(err):
				have = nil
			case err != nil:
				return func() { l.renewed(nil, sent, err) }
			}
		}
		next, alters := l.nextOwn(have, epoch, string(info), me.uid)
		if alters {
			// This epoch is over. That must be true here before anybody can see it there.
			l.locked(func() { l.lose("another epoch has begun, or it was fenced") })
			l.o.Poke()
		}
		var got *coordinationv1.Lease
		var err error
		if have == nil {
			if got, err = l.store.Create(ctx, next); apierrors.IsNotFound(err) {
				// Not a lease that went meanwhile: that is tried again at once.
				err = fmt.Errorf("the namespace %s can't take it; cp_namespace names the one that Herald runs in: %s", l.o.Namespace, err.Error())
			}
		} else {
			got, err = l.store.Update(ctx, next)
		}
		if hurried && err != nil && ctx.Err() != nil {
			// Where an answer takes milliseconds, one that takes so long won't come: its
			// API server has died, or etcd's leader. Not for that one's sake is this node's right put at risk.
			return func() { l.own.busy, l.own.next = false, time.Now() }
		}
		return func() { l.renewed(got, sent, err) }
	})
}

// nextOwn is what to write over have (nil: no lease is there). alters is true if
// epoch, which this process has lived in so far, is over.
func (l *Leases) nextOwn(have *coordinationv1.Lease, epoch int64, info, nodeUID string) (next *coordinationv1.Lease, alters bool) {
	now := metav1.NewMicroTime(time.Now())
	l.mu.Lock()
	lost := l.own.lost
	l.mu.Unlock()
	e := epoch
	switch {
	case have == nil && epoch == 0:
		e = firstEpoch(now.Time)
	case have == nil && lost:
		e = max(epoch+1, firstEpoch(now.Time))
	case have == nil:
		// Deleted by hand. Nobody can have fenced us: that would have put a lease there.
	case fencedAt(have) != 0 && fencedAt(have) >= max(epoch, transitions(have)):
		e = max(epoch, fencedAt(have)) + 1
	case epoch == 0 && transitions(have) == 0:
		e = firstEpoch(now.Time)
	case epoch == 0 && ending(have):
		// The earlier process was letting go of its claims. It may have letters in the post.
		e = transitions(have) + 1
	case epoch == 0 || transitions(have) > epoch:
		// An earlier process of this node, or a second one, lives in that epoch; nobody
		// has fenced it, so its claims are this node's.
		e = transitions(have)
	case lost:
		// Nobody has fenced it, but others may have moved what it held without the API
		// server. Its claims must not come alive again.
		e = epoch + 1
	}
	next = &coordinationv1.Lease{}
	if have != nil {
		next = have.DeepCopy()
	}
	next.Namespace, next.Name = l.o.Namespace, NodePrefix+l.o.Node
	label(next)
	annotate(next, FencedAnnotation, "")
	annotate(next, NodeAnnotation, info)
	if nodeUID != "" {
		next.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: l.o.Node, UID: uid(nodeUID)}}
	}
	seconds, count := int32(l.o.Duration/time.Second), int32(e)
	next.Spec.HolderIdentity, next.Spec.RenewTime = &l.o.Node, &now
	next.Spec.LeaseDurationSeconds, next.Spec.LeaseTransitions = &seconds, &count
	if have == nil || e != transitions(have) {
		next.Spec.AcquireTime = &now
	}
	return next, epoch != 0 && e != epoch
}

// ending reports whether the node lease was left by a process that was stopping.
func ending(l *coordinationv1.Lease) bool {
	var info vip.NodeInfo
	return json.Unmarshal([]byte(l.Annotations[NodeAnnotation]), &info) == nil && info.Excluded != ""
}

// renewed takes over the outcome of a renewal that was sent at the given time.
func (l *Leases) renewed(got *coordinationv1.Lease, sent time.Time, err error) {
	o := &l.own
	o.busy = false
	now := time.Now()
	switch {
	case err == nil:
		if o.epoch != transitions(got) {
			o.epoch, o.lost = transitions(got), false
			l.signature.changes++
			l.o.Log.Info("the node lease is held", "lease", l.o.Namespace+"/"+got.Name, "epoch", o.epoch)
		}
		if o.unbroken.IsZero() {
			o.unbroken = sent
		}
		if o.failing {
			o.failing = false
			l.o.Log.Info("the node lease is renewed again")
		}
		o.lease, o.sent = got, sent
		o.hurries = 0
		if now.Sub(sent) < quick {
			o.hurries = hurries
		}
		o.infoText = got.Annotations[NodeAnnotation]
		o.next = sent.Add(l.o.RetryPeriod)
		if o.lost { // while this renewal was under way
			o.next = now
		}
		l.shelf.put(got)
		l.metrics.renewals.WithLabelValues("ok").Inc()
		return
	case apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		// It is not as it was: read it, then decide (rule: fenced or another epoch: drop all).
		o.lease, o.next = nil, now
		l.metrics.renewals.WithLabelValues("conflict").Inc()
	default:
		o.next = now.Add(l.o.RetryPeriod / 4)
		l.metrics.renewals.WithLabelValues("error").Inc()
		if !o.failing {
			l.o.Log.Warn("the node lease can't be renewed; trying on", "err", err)
		}
		o.failing, o.unbroken = true, time.Time{}
	}
}

// release tells the others that this node has stopped: the node lease is blanked,
// which voids its epoch, and deleted.
func (l *Leases) release(ctx context.Context) error {
	if l.own.epoch == 0 {
		return nil
	}
	var err error
	for range 3 { // it may be written by others, or by a renewal whose answer was lost
		var x *coordinationv1.Lease
		x, err = l.store.Get(ctx, l.o.Namespace, NodePrefix+l.o.Node)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			break
		}
		x = x.DeepCopy()
		x.Spec.HolderIdentity = new(string)
		annotate(x, FencedAnnotation, strconv.FormatInt(max(l.own.epoch, transitions(x)), 10))
		if x, err = l.store.Update(ctx, x); err == nil {
			err = l.store.Delete(ctx, x.Namespace, x.Name, x.ResourceVersion)
		}
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsConflict(err) {
			break
		}
	}
	return fmt.Errorf("the node lease was not released, so the others wait until it is %v old: %w", l.o.Duration, err)
}

// fence marks the epoch of a silent node as over, if it is this node's turn.
func (l *Leases) fence(ctx context.Context, now time.Time) {
	if l.own.unbroken.IsZero() || !l.tenure().Holds(now) || !l.tenure().Confirmed {
		return // without a working way to the API server there is no judging others
	}
	for node, p := range l.peers {
		if p.fenced || p.released || p.gone && !l.claims(node) {
			if p.fenced && !p.gone && p.silent(now, bury) && !l.busy[keyOf(p.lease)] {
				l.bury(ctx, p.lease)
			}
			continue
		}
		k := vip.Key{Namespace: l.o.Namespace, Name: NodePrefix + node}
		why := l.overdue(node, p, now)
		if why == "" || l.busy[k] || now.Before(l.failed[k].until) {
			continue
		}
		l.busy[k] = true
		next := l.tombstone(node, p)
		l.o.Log.Info("the claims of a node are voided", "node", node, "why", why, "renewed", now.Sub(p.changed).Round(time.Millisecond).String()+" ago", "epoch", p.epoch)
		l.running++
		most := fencing
		if l.failed[k].count < hurries {
			most = hurry
		}
		l.start(ctx, min(most, l.o.RenewDeadline/2), func(ctx context.Context) func() {
			var got *coordinationv1.Lease
			var err error
			if next.ResourceVersion == "" {
				got, err = l.store.Create(ctx, next)
			} else {
				got, err = l.store.Update(ctx, next)
			}
			return func() {
				l.wrote(k, got, err)
				if err == nil {
					l.metrics.fenced.Inc()
					p.note(got, node, now)
					l.signature.changes++
				}
			}
		})
	}
}

// tombstone is p's node lease with its epoch marked as over. It replaces the very
// version that was seen to grow old.
func (l *Leases) tombstone(node string, p *peer) *coordinationv1.Lease {
	next := &coordinationv1.Lease{}
	if p.lease != nil && !p.gone {
		next = p.lease.DeepCopy()
	}
	next.Namespace, next.Name = l.o.Namespace, NodePrefix+node
	label(next)
	annotate(next, FencedAnnotation, strconv.FormatInt(p.epoch, 10))
	count := int32(p.epoch)
	next.Spec.HolderIdentity, next.Spec.LeaseTransitions = &node, &count
	return next
}

// bury deletes the lease of a node that has been fenced for long.
func (l *Leases) bury(ctx context.Context, x *coordinationv1.Lease) {
	k := keyOf(x)
	l.busy[k] = true
	l.running++
	l.start(ctx, l.o.RenewDeadline/2, func(ctx context.Context) func() {
		err := l.store.Delete(ctx, x.Namespace, x.Name, x.ResourceVersion)
		return func() { l.wrote(k, nil, err) }
	})
}

// turn is this node's place among those that might fence another: one tries,
// the others follow should it fail.
func (l *Leases) turn(node string, now time.Time) int {
	n := 0
	for name, p := range l.peers {
		if name != node && name < l.o.Node && l.alive(name, p, now) {
			n++
		}
	}
	return n
}

// claims reports whether any VIP lease bears the node's name.
func (l *Leases) claims(node string) bool {
	for k, x := range l.shelf.known {
		if x.holder == node && l.nodeOf(k) == "" {
			return true
		}
	}
	return false
}

// annotate sets an annotation, or removes it if value is "".
func annotate(x *coordinationv1.Lease, key, value string) {
	x.Annotations = maps.Clone(x.Annotations)
	if value == "" {
		delete(x.Annotations, key)
		return
	}
	if x.Annotations == nil {
		x.Annotations = make(map[string]string)
	}
	x.Annotations[key] = value
}

func label(x *coordinationv1.Lease) {
	x.Labels = maps.Clone(x.Labels)
	if x.Labels == nil {
		x.Labels = make(map[string]string)
	}
	maps.Copy(x.Labels, Labels)
}
