package lease

import (
	"encoding/json"
	"reflect"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// A peer is what this node knows of another's lease, by its own clock: clocks of nodes are never compared.
type peer struct {
	quorum.Peer
	lease         *coordinationv1.Lease // as last seen
	gone          bool                  // it is dead by heartbeats, and so is its kernel
	noAPI         bool                  // its heartbeats arrive, and say that it does not reach the API server
	heardAt       time.Time             // when its last heartbeat came; zero: none did
	met           bool                  // heartbeats have shown what it is since this process started
	renewed       bool                  // its node lease was seen to be renewed
	renewAt       time.Time             // when that, or the node lease itself, was seen last; a fence is no renewal
	released      bool                  // the node itself ended its epoch: it has stopped
	info          vip.NodeInfo
	infoText      string
	deletedAt     time.Time // when it was last tried to delete the node lease, which is over
	fenceFailedAt time.Time // when it was last logged that it can't be fenced
	// this node's last one, written or unanswered, not logged yet; nil: none, or a later version is known
	fence *sentFence
	stability

	pending     bool         // a fence or a delete of its node lease is under way
	failure     fenceFailure // of its fence
	carried     int64        // the number of the table that its agent has carried out, when that was last behind
	behindSince time.Time    // since when that has not changed, while it is behind
	followBy    time.Time    // until when it may be
	owesSince   time.Time    // since when it has had something that it has not carried out
	overdueAt   time.Time    // until when it may
	stalled     bool         // for longer
	// the last number that it is known to have carried out, or an earlier process of it, and until when that was so
	served   int64
	servedAt time.Time
}

// void reports whether claims of epoch are released, fenced, or outdated.
func (p *peer) void(epoch int64) bool {
	return p.released || p.Epoch > epoch || p.Over && p.Epoch >= epoch
}

// lastHeard returns when a heartbeat came last, or a renewal, unless the kernel answers nobody.
func (p *peer) lastHeard() time.Time {
	fenced := p.Over && p.renewAt.Sub(p.heardAt) < fencedWithin
	if p.heardAt.After(p.renewAt) || (p.gone || fenced) && !p.heardAt.IsZero() {
		return p.heardAt
	}
	return p.renewAt
}

// fencedWithin is how long after its last heartbeat a cut-off node is fenced: half a second, with room.
const fencedWithin = 2 * time.Second

// update takes in a node lease, and reports more than a renewal.
func (p *peer) update(l *coordinationv1.Lease, now time.Time) bool {
	epoch := transitions(l)
	// Only a fence voids claims. A lease blanked or renamed by hand is still this node's, which writes it again when its
	// watch shows that.
	over := fenced(l)
	if !over {
		p.fence = nil // it was for an earlier version
	}
	released := over && holder(l) == ""
	text := l.Annotations[NodeAnnotation]
	same := p.Exists && p.Epoch == epoch && p.Over == over && p.released == released
	if text != p.infoText {
		before := p.info
		p.infoText, p.info = text, vip.NodeInfo{}
		if json.Unmarshal([]byte(text), &p.info) != nil {
			p.info = vip.NodeInfo{Excluded: "its node lease can't be read"}
		}
		before.Table = p.info.Table // the number of the table alone is no change
		same = same && reflect.DeepEqual(before, p.info)
	}
	if epoch != p.Epoch && p.lease != nil {
		p.setAlive(false, now)
	}
	if p.lease == nil || !renewTime(l).Equal(renewTime(p.lease)) {
		p.renewAt = now
	}
	if !p.renewed && p.lease != nil && renewTime(l).After(renewTime(p.lease)) {
		p.renewed, same = true, false // others may wait for that
	}
	p.lease, p.released, p.Peer = l, released, quorum.Peer{Epoch: epoch, Over: over, Exists: true, Changed: now}
	return !same
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

// setAlive stores since when the node is alive, and counts breaks up to maxBreaks, forgotten after forgetAfter.
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

// stable reports whether VIPs may move there: after stableAfter, doubled for each break.
func (s *stability) stable(now time.Time) bool {
	return !s.aliveSince.IsZero() && now.Sub(s.aliveSince) >= stableAfter<<s.breaks
}
