package lease

import (
	"context"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// deleteLeftTime is how long a node that has released its node lease waits for its watch to show that.
const deleteLeftTime = time.Second

// deleteLeft deletes the VIP leases that Heralds which have ended have left, if no other node runs one that would acquire them: claims that
// this node could not release, since its process was paused, and those that nodes which stop at once have handed to each other. released is
// this node's node lease without a holder, so that no claim of this node is valid; once the watch shows it, it has shown what
// others wrote before. Each is deleted on the condition that nobody has written it since; one that can't be deleted stays. It blocks.
func (l *Leases) deleteLeft(ctx context.Context, released *coordinationv1.Lease) {
	l.mu.Lock()
	l.own.EpochOver, l.own.lease = true, released
	l.mu.Unlock()
	late := time.NewTimer(deleteLeftTime)
	defer late.Stop()
	for {
		l.mu.Lock()
		now := time.Now()
		l.readCache(now)
		shown, alone, left := l.cache.shown >= version(released), l.runsAlone(now), l.leftVIPLeases(now)
		l.mu.Unlock()
		switch {
		case !alone:
			return
		case shown:
			for _, x := range left {
				if err := l.store.Delete(ctx, x.Namespace, x.Name, x.ResourceVersion); err != nil {
					l.o.Log.Info("a VIP lease of a Herald that has ended is left", "lease", x.key, "err", err)
					continue
				}
				l.mu.Lock()
				l.cache.setDeleted(x.Lease)
				l.mu.Unlock()
			}
			return
		}
		select {
		case <-l.wake:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// runsAlone reports whether no other node runs a Herald that may carry VIPs: each has released its node lease, was fenced, refuses VIPs, as one
// does that stops, or has been silent for a lease duration. mu is held.
func (l *Leases) runsAlone(now time.Time) bool {
	for _, p := range l.peers {
		if !p.released && !p.Over && p.info.Excluded == "" && !p.silent(now, l.o.LeaseDuration) {
			return false
		}
	}
	return true
}

// leftVIPLeases returns the VIP leases, sorted, that a Herald has written and whose claims are not valid. mu is held.
func (l *Leases) leftVIPLeases(now time.Time) (left []*record) {
	for k, x := range l.cache.latest {
		if x.ours && l.counts(k) && l.mayChange(k, now) && !l.valid(x, now) {
			left = append(left, x)
		}
	}
	slices.SortFunc(left, func(a, b *record) int { return strings.Compare(a.key.String(), b.key.String()) })
	return left
}
