package lease

import (
	"time"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// liveness is what heartbeats say of the other nodes, nil if none are exchanged, and the
// gateway's liveness. It is called without the lock: other rooms answer.
func (l *Leases) liveness() (statuses map[string]vip.PeerStatus, gateway vip.Liveness) {
	if l.o.Peers != nil && l.o.Peers.Off() == "" {
		statuses = l.o.Peers.Statuses()
	}
	if l.o.Gateway != nil {
		gateway = l.o.Gateway.Liveness()
	}
	return statuses, gateway
}

func (l *Leases) timing() quorum.Timing {
	return quorum.Timing{LeaseDuration: l.o.Duration, RenewDeadline: l.o.RenewDeadline, RetryPeriod: l.o.RetryPeriod}
}

// evaluate makes the next decision, and logs what it changes.
func (l *Leases) evaluate(statuses map[string]vip.PeerStatus, gateway vip.Liveness, now time.Time) {
	in := quorum.Input{
		Now: now, Timing: l.timing(), Self: l.own.self(l.o.Node), Statuses: statuses, Gateway: gateway,
		Peers: make(map[string]quorum.Peer, len(l.peers)), Versions: make(map[vip.Key]uint64, len(l.quorum.Moved)),
	}
	for node, p := range l.peers {
		in.Peers[node] = quorum.Peer{Epoch: p.epoch, Over: p.fenced, Exists: p.lease != nil && !p.gone, Changed: p.changed}
	}
	for k := range l.quorum.Moved {
		in.Versions[k] = l.cache.version(k)
	}
	before := l.decision
	l.quorum, l.decision = quorum.Evaluate(l.quorum, in)
	d := l.decision
	if d.EndEpoch != "" {
		l.endEpoch(d.EndEpoch)
	}
	if d.Isolated && !before.Isolated {
		l.o.Log.Warn("this node reaches too few other nodes on the VIPs' link, though its link is up; it carries no VIP until it does", "reached", d.Reached-1, "of", d.Known-1)
	} else if before.Isolated && !d.Isolated {
		l.o.Log.Info("this node reaches the other nodes on the VIPs' link again")
	}
	if d.Agreed > 0 {
		l.o.Log.Info("the API server is out of reach and a node is dead: the nodes that are left have agreed on who takes its VIPs", "vips", d.Agreed, "nodes", d.Holders)
	}
	l.changed = l.changed || d.Changed
}
