package lease

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	fenceTimeout = 1500 * time.Millisecond // how long a write of a fence may take
	keepFenced   = time.Hour               // the node lease of a fenced node is deleted after this
	cleanupRetry = time.Minute             // how often that is tried
	fenceFailing = time.Minute             // how often it is logged that a fence can't be written
)

// evaluate stores, logs and carries out what quorum.Evaluate makes.
func (l *Leases) evaluate(statuses map[string]vip.PeerStatus, info *vip.NodeInfo, now time.Time) {
	in := quorum.Input{
		Now: now, Timing: l.o.Timing, Self: l.own.Self, Statuses: statuses,
		Peers: make(map[string]quorum.Peer, len(l.peers)), Versions: make(map[vip.Key]uint64, len(l.quorum.Moved)),
	}
	for node, p := range l.peers {
		x := p.Peer
		x.Neglects, x.NoServices, x.Neighbor = l.neglects(node, p, now), !p.info.AnnouncesServices(),
			p.info.LivenessOff == "" && hasNetworkOf(info, p.info.HeartbeatAddress())
		in.Peers[node] = x
		l.changed = l.changed || p.gone != statuses[node].Gone
		p.gone, p.heardAt = statuses[node].Gone, statuses[node].HeardAt
		p.met = p.met || statuses[node].Liveness != vip.Unknown
		p.noAPI = statuses[node].Liveness == vip.Alive && !statuses[node].Heartbeat.APIReachable
		if s := statuses[node]; s.Liveness == vip.Alive && s.Heartbeat.APIServerReady != p.info.APIServerReady {
			p.info.APIServerReady, l.changed = s.Heartbeat.APIServerReady, true
		}
		if statuses[node].ProcessEnded {
			p.heardAt = now // its kernel answers
		}
	}
	for claim, since := range l.table.unproven { // deleted by hand, or this watch is late: it lives
		node, epoch, _ := parseClaimText(claim)
		if x := in.Peers[node]; !x.Exists && !x.Over {
			x.Epoch, x.Exists, x.Changed = max(epoch, x.Epoch), true, since
			in.Peers[node] = x
		}
	}
	in.Self.NoServices = !info.AnnouncesServices()
	for k := range l.quorum.Moved {
		in.Versions[k] = uint64(l.table.known.Units[k].Number)
	}
	l.statuses, l.hearsSince = statuses, quorum.Since(l.hearsSince, statuses != nil, now)
	state, d := quorum.Evaluate(l.quorum, in)
	if d.NeedsGateway && l.o.Gateway != nil {
		in.Gateway = l.o.Gateway(d.GatewaySince) // which has it asked: so not without need
		state, d = quorum.Evaluate(l.quorum, in)
	}
	before := l.decision
	l.quorum, l.decision = state, d
	l.own.WasIsolated = l.own.WasIsolated && d.Isolated
	if d.EndEpoch != "" {
		l.endEpoch(d.EndEpoch)
	}
	if d.Confirmed {
		l.own.ConfirmAfter = time.Time{}
		l.o.Log.Info("the other nodes confirm that nothing of what this node has was moved while its process was stopped")
	}
	l.logDecision(before, d, info)
	l.changed = l.changed || d.Changed
}

// logDecision logs what is new in a decision.
func (l *Leases) logDecision(before, d quorum.Decision, info *vip.NodeInfo) {
	if d.Rejoining && !before.Isolated {
		l.o.Log.Info("the last Herald of this node reached too few other nodes on the VIPs' link; this one takes no VIP " +
			"until it has reached them for a moment")
	} else if d.Isolated && !before.Isolated {
		l.o.Log.Warn(isolatedText(info), "reached", d.Reached-1, "of", d.Known-1)
	} else if before.Isolated && !d.Isolated {
		l.o.Log.Info("this node reaches the other nodes on the VIPs' link again")
	}
	if d.Agreed > 0 {
		l.o.Log.Info("the API server is out of reach and a node is dead: the nodes that are left have agreed on who "+
			"takes its VIPs", "agreed", d.Agreed, "nodes", d.Holders)
	}
	if d.Verdict == quorum.Holding && before.Verdict != quorum.Holding {
		l.o.Log.Warn("the API server is out of reach of this node and of the others that it hears: VIPs stay where they "+
			"are, since more than half of the nodes agree on that", "holding", d.Holders)
	}
	if d.UnknownMoves && !before.UnknownMoves {
		l.o.Log.Info("VIPs were moved while the API server was away, and their new owners have not written that yet; " +
			"this node acquires none until they have")
	}
}

// hasNetworkOf reports whether a node has an address in the network of a on its link of heartbeats.
func hasNetworkOf(info *vip.NodeInfo, a netip.Addr) bool {
	link := info.HeartbeatLink()
	return slices.ContainsFunc(info.Links, func(l vip.Link) bool {
		return l.Name == link && slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// meetTime is how long a new process with a socket waits at most to hear the others, and meetPerNode more for each.
const (
	meetTime    = time.Second
	meetPerNode = 5 * time.Millisecond // two intervals of pkg/peers, which sends fewer heartbeats to more nodes
)

// mayNotKnow reports whether others may have moved claims unknown here (docs/why.md, "Without the API server").
func (l *Leases) mayNotKnow(now time.Time) bool {
	if l.decision.UnknownMoves || l.decision.PossibleMoves {
		return true
	}
	meet := meetTime + time.Duration(len(l.peers))*meetPerNode
	hears := l.own.began.Add(2 * meetTime) // at the latest: by then it has the key, or gets none
	if at := l.hearsSince; !at.IsZero() && at.Before(hears) {
		hears = quorum.Later(l.own.began, at)
	}
	if l.o.Peers == nil || now.Sub(hears) >= meet {
		return false
	}
	for _, p := range l.peers {
		if p.Exists && !p.Over && !p.met && p.info.LivenessOff == "" {
			return true
		}
	}
	return false
}

func isolatedText(info *vip.NodeInfo) string {
	link := info.HeartbeatLink()
	for _, l := range info.Links {
		if l.Name == link && !l.Up {
			return "the VIPs' link " + link + " of this node is down; it carries no VIP until it is up and other nodes are " +
				"reached on it"
		}
	}
	return "this node reaches too few other nodes on the VIPs' link, though its link is up; it takes no VIP until it " +
		"does, and keeps what it has only while it knows of no other node for it"
}

// A fenceFailure is tries in a row to fence a node that failed.
type fenceFailure struct {
	count int
	until time.Time // when the next may be sent
}

// fence starts the decision's fences, and deletes old node leases, unless this node's renewals fail.
func (l *Leases) fence(ctx context.Context, now time.Time) {
	if l.own.RenewingSince.IsZero() {
		return
	}
	l.fenceUnproven(ctx, now)
	for node, p := range l.peers {
		if p.pending {
			continue
		}
		if p.Over && p.Exists && now.Sub(p.Changed) >= keepFenced && now.Sub(p.deletedAt) >= cleanupRetry {
			p.deletedAt = now
			l.deleteFenced(ctx, p)
			continue
		}
		why := l.decision.Fence[node]
		if why == "" && l.decision.Alive[node] {
			p.failure = fenceFailure{} // another node's fence may have been written, or none was needed
		}
		if why == "" || p.Over || !p.Exists && !l.table.known.owns(node) || now.Before(p.failure.until) {
			continue
		}
		l.writeFence(ctx, node, p, p.Epoch, why)
	}
}

// fenceUnproven fences nodes with units in an epoch that this watch, maybe late, has not shown for the lease duration.
func (l *Leases) fenceUnproven(ctx context.Context, now time.Time) {
	if t := l.tenure(now); !t.Holds(now) || !t.Confirmed || l.decision.Verdict != quorum.Renewing {
		return
	}
	for claim, since := range l.table.unproven {
		node, epoch, _ := parseClaimText(claim)
		if now.Sub(since) < l.o.LeaseDuration+l.turn() {
			continue
		}
		if p := l.peer(node, now); !p.pending && !now.Before(p.failure.until) {
			l.writeFence(ctx, node, p, max(epoch, p.Epoch), ReasonUnproven)
		}
	}
}

// ReasonUnproven is a reason to fence a node.
const ReasonUnproven = "the table gives it units in an epoch that its node lease has not reached for the lease duration"

// writeFence starts to write a tombstone. First tries are short: the API server or etcd's leader may have died, too.
func (l *Leases) writeFence(ctx context.Context, node string, p *peer, epoch int64, why string) {
	timeout := fenceTimeout
	if p.failure.count > shortTries {
		timeout = l.o.LeaseDuration
	} else if l.own.shortTries > 0 && p.failure.count < shortTries {
		timeout = shortTimeout
	}
	next, now := l.tombstone(node, p, epoch), time.Now()
	sent := &sentFence{epoch, why, now.Sub(p.Changed)}
	p.pending = true
	l.start(ctx, min(timeout, l.o.RenewDeadline/2), func(ctx context.Context) func() {
		got, err := l.store.Write(ctx, next)
		refused := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
		if refused {
			got, _ = l.store.Get(ctx, l.o.Namespace, vip.NodeLeasePrefix+node)
		}
		return func() {
			p.pending = false
			if got != nil && (p.lease == nil || version(got) > version(p.lease)) {
				l.watch.fenced[node] = version(got)
				l.changed = p.update(got, now) || l.changed
			}
			if refused {
				l.logFenced(node, p) // it may be an earlier fence of this node
				return
			}
			l.endFence(node, p, sent, err)
		}
	})
}

// endFence takes in a fence that no conflict refused.
func (l *Leases) endFence(node string, p *peer, sent *sentFence, err error) {
	now := time.Now()
	if err == nil {
		p.failure = fenceFailure{}
		delete(l.decision.Alive, node)
		l.decision.AnswersUntil[node] = now.Add(vip.KernelAnswers) // a plan may be made before the next evaluation
		l.changed = true
	} else {
		n := min(p.failure.count+1, 6)
		p.failure = fenceFailure{n, now.Add(50 * time.Millisecond << n)}
		if n > shortTries && now.Sub(p.fenceFailedAt) >= fenceFailing {
			p.fenceFailedAt = now
			l.o.Log.Warn("a node can't be fenced, so nobody else takes its VIPs; it is tried again", "node", node, "why",
				sent.why, "err", err)
		}
	}
	p.fence = sent // it was written, or may have been
	l.logFenced(node, p)
}

type sentFence struct {
	epoch   int64
	why     string
	renewed time.Duration // how long before that the node lease was last seen to be renewed
}

// logFenced logs and counts, once, that this node's fence has voided claims, as the API server or the watch says.
func (l *Leases) logFenced(node string, p *peer) {
	f := p.fence
	if f == nil || !p.Over || p.released || p.Epoch != f.epoch {
		return
	}
	p.fence = nil
	l.metrics.fenced.Inc()
	l.o.Log.Info("the claims of a node are voided", "node", node, "why", f.why, "renewed",
		f.renewed.Round(time.Millisecond).String()+" ago", "epoch", f.epoch)
}

// tombstone returns p's node lease marked as over, with the version last seen: after a renewal it is refused.
func (l *Leases) tombstone(node string, p *peer, epoch int64) *coordinationv1.Lease {
	known := p.lease
	if !p.Exists {
		known = nil
	}
	next := nextLease(known, l.o.Namespace, vip.NodeLeasePrefix+node)
	// 0, of a node lease made by hand, marks nothing
	annotate(next, FencedAnnotation, strconv.FormatInt(max(epoch, 1), 10))
	next.Spec.HolderIdentity, next.Spec.LeaseTransitions = &node, new(int32(epoch))
	return next
}

// deleteFenced starts to delete a node lease fenced long ago, if unchanged.
func (l *Leases) deleteFenced(ctx context.Context, p *peer) {
	p.pending = true
	x := p.lease
	l.start(ctx, l.o.RenewDeadline/2, func(ctx context.Context) func() {
		err := l.store.Delete(ctx, x.Namespace, x.Name, x.ResourceVersion)
		return func() {
			p.pending = false
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				l.o.Log.Warn("the node lease of a node that was fenced long ago can't be deleted; it is tried again each "+
					cleanupRetry.String(), "lease", x.Name, "err", err)
			}
		}
	})
}
