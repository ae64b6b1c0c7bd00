package lease

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Without the API server nobody can take a claim, so nobody needs to let go of
// one, as long as it is sure that the others can't either.
//
//	renews                      holds until the renew deadline after each renewal
//	does not, others do         yields: the others fence it and take what it held
//	does not, nor do the others it reaches; with them it is most of the crew, and
//	                            they see the same: holds on, for hours
//	the same, and one of the    the nodes propose to each other where its VIPs go; once
//	crew dies                   all propose the same they act on it, and write it down
//	                            when the API server is back
//	neither API nor crew        gives up
//
// The crew is the nodes that had not been fenced when this node renewed last. Two
// nodes that hold on each have most of the crew with them that see the same as
// they, so there is one who sees the same as both: both see the same.

// Times of biding.
const (
	rolling = 3 * time.Second        // a hold lasts that long if the process hangs
	waver   = time.Second            // how long what a hold rests on may be missing
	settle  = 200 * time.Millisecond // how long all must have proposed the same
)

// A bide is how this node does without the API server.
type bide struct {
	crew   map[string]int64 // by name: the epochs of the nodes that lived while this one last renewed, itself included
	until  time.Time        // the tenure that biding gives
	good   time.Time        // when it last rested on enough
	bad    time.Time        // since when this node has been cut off from both API server and crew
	others time.Time        // since when others have been seen to reach the API server
	moving bool             // what the dead held is free

	moved     map[vip.Key]moved // what has changed hands
	proposals map[vip.Key]string
	reach     []string // who holds, as far as this node sees: sorted, itself included
	agreed    time.Time
	then      uint64 // the View once the proposals have come true; 0 without any
	card      vip.Heartbeat
}

// moved is a claim that changed hands while the API server was away.
type moved struct {
	holder string
	epoch  int64
	over   uint64 // the version of the lease that it stands for
}

// late is how long after the last good renewal was sent the next one is overdue.
func (l *Leases) late() time.Duration { return l.o.RetryPeriod * 3 / 2 }

// lacks reports whether this node can't get its renewals through at present.
func (l *Leases) lacks(now time.Time) bool {
	return l.own.epoch != 0 && now.Sub(l.own.sent) > l.late()
}

// yield is how long after its last renewal a node yields to others that renew.
// By then those have noticed if the API server is away for them, too.
func (l *Leases) yield() time.Duration {
	return max(l.o.RenewDeadline*6/10, l.o.RetryPeriod*5/2+time.Second/2)
}

// enlist makes the crew of the nodes that live now, as this node does. One whose
// lease is silent is one of them until it is fenced: it may be this node's watch
// that is stuck, and of a crew of itself alone it would be most.
func (l *Leases) enlist() {
	crew := map[string]int64{l.o.Node: l.own.epoch}
	for node, p := range l.peers {
		if p.lives() {
			crew[node] = p.epoch
		}
	}
	l.bide.crew = crew
}

// wait decides what this node's claims rest on while its lease is not renewed.
func (l *Leases) wait(now time.Time) {
	b := &l.bide
	lacks := l.lacks(now)
	if !lacks {
		l.enlist()
	}
	t := l.tenure()
	holds := t.Holds(now)
	api, back, dead := l.survey(holds && t.Confirmed)
	if !api {
		b.others = time.Time{}
	} else if b.others.IsZero() {
		b.others = now
	}
	soon := now.Sub(b.others) <= l.indulge(back)
	with, all := l.agreeing(), len(b.crew)
	most := 2*with > all
	half := 2*with == all && l.anchor() == vip.Alive
	if !lacks || api || !l.wired || 2*dead <= all {
		b.bad = time.Time{}
	} else if b.bad.IsZero() {
		b.bad = now
	}
	switch {
	case !lacks || l.own.lost || l.own.epoch == 0:
		b.until, b.good = time.Time{}, now
	case api && !soon && now.Sub(l.own.sent) > l.yield():
		l.lose("other nodes reach the API server and this one does not")
	case !b.bad.IsZero() && now.Sub(b.bad) > waver:
		l.lose("it reaches neither the API server nor most of the other nodes")
	case !holds && l.wired && all > 2:
		// Others may have moved what it held. Its claims must not come alive again.
		l.lose("it could not be renewed in time")
	case l.wired && holds && (!api || back && soon) && (most || half):
		b.good, b.until = now, now.Add(rolling)
	case now.Sub(b.good) > waver:
		b.until = time.Time{}
	}
	before := b.moving
	b.moving = l.wired && lacks && holds && !api && most && !l.own.lost && now.Sub(l.own.sent) > l.late()+2*time.Second
	if before != b.moving {
		b.proposals = nil
		l.signature.changes++
	}
	l.commit(now)
	l.settleMoved(now)
	l.tellCard(now)
}

// indulge is how long others may reach the API server before this node, which does
// not, takes it that it can't; back: it was away for them, too. It may then take
// this node's renewal, which waits for an answer that never comes, some time to
// be given up and sent again.
func (l *Leases) indulge(back bool) time.Duration {
	if back {
		return l.o.RenewDeadline/2 + l.o.RetryPeriod
	}
	return waver
}

// survey finds who holds, whether another node reaches the API server, whether it was
// away for all of those, and how many of the crew are gone.
func (l *Leases) survey(holds bool) (api, back bool, dead int) {
	reach := []string{}
	back = true
	if holds {
		reach = append(reach, l.o.Node)
	}
	for node, p := range l.peers {
		epoch, ok := l.bide.crew[node]
		switch s := p.sight; {
		case s.Liveness == vip.Alive:
			api = api || s.Heartbeat.APIReachable
			back = back && (p.lacked || !s.Heartbeat.APIReachable)
			if ok && s.Heartbeat.TenureValid && s.Heartbeat.Epoch == epoch {
				reach = append(reach, node)
			}
		case ok && s.Liveness == vip.Dead:
			dead++
		}
	}
	slices.Sort(reach)
	l.bide.reach = reach
	l.bide.card.StateHash, l.bide.then = l.bide.view(l.bide.moved), 0
	if len(l.bide.proposals) > 0 {
		l.bide.then = l.bide.view(l.after())
	}
	return api, api && back, dead
}

// agreeing is how many nodes see the same as this one, itself included.
func (l *Leases) agreeing() int {
	b := &l.bide
	n := 0
	for _, node := range b.reach {
		if node == l.o.Node || l.agrees(node) {
			n++
		}
	}
	return n
}

// agrees reports whether a node sees the same, or what this node will see once
// its own proposals have come true.
func (l *Leases) agrees(node string) bool {
	b := &l.bide
	v := l.peers[node].sight.Heartbeat.StateHash // 0 from a node that has told nothing yet
	return v != 0 && (v == b.card.StateHash || v == b.then)
}

// after is what will have moved once the proposals have come true.
func (l *Leases) after() map[vip.Key]moved {
	all := maps.Clone(l.bide.moved)
	if all == nil {
		all = make(map[vip.Key]moved, len(l.bide.proposals))
	}
	for k, node := range l.bide.proposals {
		all[k] = moved{holder: node, epoch: l.bide.crew[node], over: l.shelf.at(k)}
	}
	return all
}

// view is a digest of who holds and of what has moved. It is never 0.
func (b *bide) view(all map[vip.Key]moved) uint64 {
	h := fnv.New64a()
	for _, node := range b.reach {
		h.Write([]byte(node))
		h.Write(binary.BigEndian.AppendUint64([]byte{0}, uint64(b.crew[node])))
	}
	for _, k := range slices.SortedFunc(maps.Keys(all), vip.Key.Compare) {
		h.Write([]byte("\x01" + k.String() + "\x00" + all[k].holder))
	}
	return max(1, h.Sum64())
}

// free reports whether what a node held may be moved without the API server.
func (l *Leases) free(node string) bool {
	p := l.peers[node]
	if !l.bide.moving || p == nil || l.bide.crew[node] == 0 {
		return false
	}
	return p.dead() || p.sight.Liveness == vip.Alive && !p.sight.Heartbeat.TenureValid
}

// propose notes where this node would have the free claims go: where the plan
// says that they do.
func (l *Leases) propose(want []vip.LeaseIntent, now time.Time) {
	b := &l.bide
	if !b.moving {
		return
	}
	proposals := make(map[vip.Key]string)
	for _, s := range want {
		node := s.ExpectedHolder
		if s.Action == vip.Acquire {
			node = l.o.Node
		}
		x := l.shelf.known[s.Lease]
		if x == nil || node == "" || s.Action == vip.HandOver || !slices.Contains(b.reach, node) || l.claim(x, now).Valid {
			continue
		}
		proposals[s.Lease] = node
	}
	if !maps.Equal(proposals, b.proposals) {
		b.proposals, b.agreed = proposals, time.Time{}
	}
}

// commit moves what all nodes that hold have proposed to move.
func (l *Leases) commit(now time.Time) {
	b := &l.bide
	b.card.ProposalHash = 0
	if !b.moving || b.then == 0 {
		return
	}
	next := b.then
	b.card.ProposalHash = next
	for _, node := range b.reach {
		if node == l.o.Node {
			continue
		}
		if c := l.peers[node].sight.Heartbeat; c.StateHash != next && (c.StateHash != b.card.StateHash || c.ProposalHash != next) {
			b.agreed = time.Time{}
			return
		}
	}
	if b.agreed.IsZero() {
		b.agreed = now
	}
	if now.Sub(b.agreed) < settle {
		return
	}
	l.o.Log.Info("the API server is away and a node has gone; the nodes that are left have agreed on who takes its VIPs", "vips", len(b.proposals), "nodes", len(b.reach))
	b.moved, b.proposals, b.agreed = l.after(), nil, time.Time{}
	b.card.StateHash, b.card.ProposalHash = next, 0
	l.signature.changes++
}

// settleMoved forgets what has moved as soon as the API server knows better. Who
// reaches it again must have written down what it took within the renew deadline:
// nodes that have started since know nothing of it, and may fence the old owner
// once its lease has been silent before their eyes.
func (l *Leases) settleMoved(now time.Time) {
	for k, m := range l.bide.moved {
		term := l.o.Duration
		if m.holder == l.o.Node {
			term = l.o.RenewDeadline
		}
		late := !l.own.unbroken.IsZero() && now.Sub(l.own.unbroken) > term
		if l.shelf.at(k) != m.over || late || m.holder == l.o.Node && l.own.lost {
			delete(l.bide.moved, k)
			l.signature.changes++
		}
	}
}

// owner is who has the VIP lease x although it does not say so.
func (l *Leases) owner(x *paper) (moved, bool) {
	m, ok := l.bide.moved[x.key]
	return m, ok && m.over == x.version
}

// tellCard tells the others on the wire what this node does.
func (l *Leases) tellCard(now time.Time) {
	t := l.tenure()
	c := vip.Heartbeat{
		Epoch: l.own.epoch, APIReachable: !l.lacks(now) && !l.own.lost && l.own.epoch != 0, TenureValid: t.Holds(now) && t.Confirmed,
		StateHash: l.bide.card.StateHash, ProposalHash: l.bide.card.ProposalHash, VoidedClaim: l.stale(),
	}
	l.bide.card = c
	if l.o.Tell != nil {
		l.o.Tell(c)
	}
}

// stale is a claim, as ClaimAnnotation has it, that a node holds on to although it is over.
func (l *Leases) stale() string {
	first, over := "", int64(0)
	for node, p := range l.peers {
		c := p.sight.Heartbeat
		if p.sight.Liveness == vip.Alive && c.TenureValid && c.Epoch != 0 && (first == "" || node < first) && (p.epoch >= c.Epoch && p.void(c.Epoch) || l.took(node, c.Epoch)) {
			first, over = node, c.Epoch
		}
	}
	if first == "" {
		return ""
	}
	return claimText(first, over)
}

// took reports whether something was moved from a node without the API server.
func (l *Leases) took(node string, epoch int64) bool {
	for k := range l.bide.moved {
		x := l.shelf.known[k]
		if x == nil {
			continue
		}
		if m, ok := l.owner(x); ok && x.holder == node && x.epoch == epoch && m.holder != node {
			return true
		}
	}
	return false
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
