package lease

import (
	"encoding/json"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// A peer is what this node knows of another node's lease. Times are this node's
// own clock: the clocks of two nodes are never compared.
type peer struct {
	quorum.Peer
	lease    *coordinationv1.Lease // as last seen; nil if only a claim names the node
	released bool                  // the node itself ended its epoch: it has stopped
	info     vip.NodeInfo
	infoText string
	stability

	expectedSince time.Time // since when it has been expected to acquire a VIP lease; zero: it is not
	acquiredAt    time.Time // when it last acquired one
	stalledSince  time.Time // since when it counts as stalled: it was expected to acquire one and did not; zero: it is not
}

// void reports whether claims of the epoch are.
func (p *peer) void(epoch int64) bool {
	return p.released || p.Epoch > epoch || p.Over && p.Epoch >= epoch
}

// silent reports whether the node lease has not changed for d.
func (p *peer) silent(now time.Time, d time.Duration) bool {
	return now.Sub(p.Changed) >= d
}

// update stores a version of the node lease. It reports whether anything but the renewal
// time has changed.
func (p *peer) update(l *coordinationv1.Lease, now time.Time) bool {
	epoch := transitions(l)
	// Only the fence voids claims, its own or another's. A lease that was blanked or
	// renamed by hand is still this node's: it writes it again as soon as its watch shows that.
	over := fenced(l)
	released := over && holder(l) == ""
	text := l.Annotations[NodeAnnotation]
	same := p.Exists && p.Epoch == epoch && p.Over == over && p.released == released && p.infoText == text
	if text != p.infoText {
		p.infoText, p.info = text, vip.NodeInfo{}
		if json.Unmarshal([]byte(text), &p.info) != nil {
			p.info = vip.NodeInfo{Excluded: "its node lease can't be read"}
		}
	}
	if epoch != p.Epoch {
		p.stalledSince = time.Time{}
		if p.lease != nil {
			p.setAlive(false, now)
		}
	}
	p.lease, p.released, p.Peer = l, released, quorum.Peer{Epoch: epoch, Over: over, Exists: true, Changed: now}
	return !same
}

// updateStalled marks the node as stalled if it is expected to acquire a VIP lease and has
// acquired none for stalledAfter. It returns for how long if it has just become stalled,
// and 0 otherwise.
func (p *peer) updateStalled(expected bool, now time.Time) time.Duration {
	if !expected {
		p.expectedSince = time.Time{}
		return 0
	}
	if p.expectedSince.IsZero() {
		p.expectedSince = now
	}
	waited := min(now.Sub(p.expectedSince), now.Sub(p.acquiredAt))
	if !p.stalledSince.IsZero() || waited <= stalledAfter {
		return 0
	}
	p.stalledSince = now
	return waited
}

// Times of stability.
const (
	stableAfter = 30 * time.Second // how long a node must have been alive to be stable; twice as long for each break
	maxBreaks   = 6                // no more breaks count
	forgetAfter = 10 * time.Minute // breaks are forgotten after so long without one
)

// stability is how long a node has been alive without a break, and how often that ended.
type stability struct {
	aliveSince time.Time // zero: it is not alive
	lastBreak  time.Time
	breaks     int
}

// setAlive stores whether the node is alive now.
func (s *stability) setAlive(alive bool, now time.Time) {
	switch {
	case alive && s.aliveSince.IsZero():
		s.aliveSince = now
	case !alive && !s.aliveSince.IsZero():
		s.aliveSince, s.lastBreak, s.breaks = time.Time{}, now, min(s.breaks+1, maxBreaks)
	}
	if now.Sub(s.lastBreak) > forgetAfter {
		s.breaks = 0
	}
}

// stable reports whether the node has been alive for so long that VIPs may be moved to it.
func (s *stability) stable(now time.Time) bool {
	return !s.aliveSince.IsZero() && now.Sub(s.aliveSince) >= stableAfter<<s.breaks
}
