package lease

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// A peer is what this node knows of another node's lease. Times are this node's
// own clock: the clocks of two nodes are never compared.
type peer struct {
	lease    *coordinationv1.Lease // as last seen; nil if only a claim names the node
	changed  time.Time             // when this node saw it change last
	epoch    int64
	fenced   bool // epoch is over
	released bool // the node stopped and said so
	gone     bool // the node lease does not exist (any more)
	info     vip.NodeInfo
	infoText string
	sight    vip.PeerStatus // on the wire
	yields   time.Time      // since when it says that it holds nothing; zero: it does not
	lacked   bool           // it has been seen to lack the API server since this node does

	steady time.Time // since when it has been alive without a break
	broke  time.Time // when that ended last
	breaks int       // how often it did of late

	expected time.Time // since when it has been expected to claim something; zero: nothing is
	progress time.Time // when it last took a VIP lease
	stalled  time.Time // when it was found not to claim what is its; zero: it does
}

// void reports whether claims of epoch e are.
func (p *peer) void(e int64) bool {
	return p.released || p.epoch > e || p.fenced && p.epoch >= e
}

// silent reports whether the node has not renewed for as long as d.
func (p *peer) silent(now time.Time, d time.Duration) bool {
	return now.Sub(p.changed) >= d
}

// lives reports whether the node has neither stopped nor been fenced.
func (p *peer) lives() bool { return p.lease != nil && !p.gone && !p.fenced && !p.released }

// note takes over a version of the node lease. It reports whether anything but
// the renewal changed.
func (p *peer) note(l *coordinationv1.Lease, node string, now time.Time) bool {
	epoch := transitions(l)
	// Only the fence voids claims, its own or another's. A lease that was blanked or
	// renamed by hand is still this node's: it puts it right as soon as it sees it.
	fenced := fencedAt(l) != 0 && fencedAt(l) >= epoch
	released := fenced && holder(l) == ""
	text := l.Annotations[NodeAnnotation]
	same := p.lease != nil && p.epoch == epoch && p.fenced == fenced && p.released == released && p.infoText == text && !p.gone
	if text != p.infoText {
		p.infoText, p.info = text, vip.NodeInfo{}
		if json.Unmarshal([]byte(text), &p.info) != nil {
			p.info = vip.NodeInfo{Excluded: "its node lease can't be read"}
		}
	}
	if epoch != p.epoch {
		p.stalled = time.Time{}
		if p.lease != nil {
			p.pulse(false, now)
		}
	}
	p.lease, p.changed, p.gone = l, now, false
	p.epoch, p.fenced, p.released = epoch, fenced, released
	return !same
}

// Times of flap damping.
const (
	quiet  = 30 * time.Second // how long a node must have been alive to be calm; twice as long for each break
	breaks = 6                // as many breaks count, at most
	pardon = 10 * time.Minute // breaks are forgotten after so long without one
)

// pulse notes whether the node is alive.
func (p *peer) pulse(alive bool, now time.Time) {
	switch {
	case alive && p.steady.IsZero():
		p.steady = now
	case !alive && !p.steady.IsZero():
		p.steady, p.broke, p.breaks = time.Time{}, now, min(p.breaks+1, breaks)
	}
	if now.Sub(p.broke) > pardon {
		p.breaks = 0
	}
}

// calm reports whether the node has been alive for so long that VIPs may be moved to it.
func (p *peer) calm(now time.Time) bool {
	return !p.steady.IsZero() && now.Sub(p.steady) >= quiet<<p.breaks
}

// nodeOf is the node whose node lease l is, or "".
func (l *Leases) nodeOf(k vip.Key) string {
	if k.Namespace != l.o.Namespace {
		return ""
	}
	node, ok := strings.CutPrefix(k.Name, NodePrefix)
	if !ok {
		return ""
	}
	return node
}

// alive reports whether p may be given VIPs, as far as its lease and the wire tell.
func (l *Leases) alive(node string, p *peer, now time.Time) bool {
	if l.lacks(now) {
		_, reaches := slices.BinarySearch(l.bide.reach, node)
		return reaches
	}
	return l.renews(p, now) && !p.dead()
}

// renews reports whether p renews its lease.
func (l *Leases) renews(p *peer, now time.Time) bool {
	return p.lives() && !p.silent(now, l.o.Duration)
}

// members is World.Members.
func (l *Leases) members(now time.Time, info vip.NodeInfo) []vip.Member {
	all := make([]vip.Member, 0, len(l.peers)+1)
	if l.own.epoch != 0 {
		t := l.tenure()
		all = append(all, vip.Member{Name: l.o.Node, Epoch: t.Epoch, Alive: t.Holds(now), Info: info})
	}
	for _, name := range slices.Sorted(maps.Keys(l.peers)) {
		p := l.peers[name]
		if p.lease == nil {
			continue
		}
		all = append(all, vip.Member{
			Name: name, Epoch: p.epoch, Alive: l.alive(name, p, now),
			Stalled: !p.stalled.IsZero(), Stable: p.calm(now), Info: p.info,
		})
	}
	slices.SortFunc(all, func(a, b vip.Member) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// claim judges a VIP lease.
func (l *Leases) claim(x *paper, now time.Time) vip.Claim {
	if m, ok := l.owner(x); ok {
		return vip.Claim{
			Holder: m.holder, PreviousHolder: x.holder, Transitions: transitions(x.Lease) + 1,
			Valid: m.holder != l.o.Node || m.epoch == l.own.epoch && !l.own.lost,
		}
	}
	return l.written(x, now)
}

// written judges what a VIP lease itself says.
func (l *Leases) written(x *paper, now time.Time) vip.Claim {
	if x.bereft {
		return l.bereft(x.Lease, now)
	}
	c := vip.Claim{Holder: x.holder, PreviousHolder: x.Annotations[FromAnnotation], Transitions: transitions(x.Lease)}
	if x.Spec.AcquireTime != nil {
		c.AcquiredAt = x.Spec.AcquireTime.Time
	}
	c.Foreign = x.holder != "" && !x.ours
	c.Valid = l.valid(x, now)
	return c
}

// valid reports whether what a VIP lease itself says is a valid claim.
func (l *Leases) valid(x *paper, now time.Time) bool {
	switch node := x.holder; {
	case x.bereft:
		return l.bereft(x.Lease, now).Valid
	case node == "":
		return false
	case !x.ours:
		// By our own name: an earlier program on this node, which has gone since we
		// are here. Anybody else's lasts until it isn't renewed for its own duration.
		return node != l.o.Node && now.Sub(l.changed[x.key]) < foreignDuration(x.Lease, l.o.Duration)
	case node == l.o.Node:
		return x.epoch == l.own.epoch && !l.own.lost && l.outdated[x.key] != x.version
	default:
		p := l.peers[node] // absent: it has stopped, or been silent long after it was fenced
		return p != nil && !p.void(x.epoch) && !l.free(node)
	}
}

// bereft judges a VIP lease that was blanked or deleted by someone else than its
// holder. The holder, if it lives, still announces the VIP until it hears of that
// and claims it anew: nobody else may have it before it could have heard.
func (l *Leases) bereft(x *coordinationv1.Lease, now time.Time) vip.Claim {
	node, e, _ := strings.Cut(x.Annotations[ClaimAnnotation], "@")
	epoch, _ := strconv.ParseInt(e, 10, 64)
	p := l.peers[node]
	return vip.Claim{
		Holder: node, Transitions: transitions(x),
		Valid: node != l.o.Node && p != nil && !p.void(epoch) && now.Sub(l.changed[keyOf(x)]) < l.o.Duration,
	}
}

func foreignDuration(x *coordinationv1.Lease, otherwise time.Duration) time.Duration {
	if x.Spec.LeaseDurationSeconds == nil || *x.Spec.LeaseDurationSeconds < 1 {
		return otherwise
	}
	return time.Duration(*x.Spec.LeaseDurationSeconds) * time.Second
}
