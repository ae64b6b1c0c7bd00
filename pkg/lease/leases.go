package lease

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// Peers exchanges heartbeats with the other nodes.
type Peers interface {
	// Statuses is the status of each other node, by name. The map is the caller's.
	Statuses() map[string]vip.PeerStatus
	// Off is why no heartbeats are exchanged at present, or "".
	Off() string
	// SetHeartbeat sends h in all heartbeats from now on. It is called several times a second,
	// mostly with the same h.
	SetHeartbeat(h vip.Heartbeat)
}

// A Gateway knows whether the default gateway on the VIPs' link is Alive, Dead, or Unknown.
type Gateway interface{ Liveness() vip.Liveness }

// Options of Leases. No function or interface in it may block.
type Options struct {
	Node      string                   // this node's name, the holder identity
	NodeUID   func(node string) string // of its Node object, "" if that is not known; may be nil
	Namespace string                   // of the node leases

	quorum.Timing // vip_leaseduration, vip_renewdeadline, vip_retryperiod

	Info    func() vip.NodeInfo // of this node, for its node lease
	Peers   Peers               // may be nil: no heartbeats are exchanged
	Gateway Gateway             // may be nil: Unknown; asked only where it decides

	Log  *slog.Logger
	Wake mailbox.Signal // has Run look at the Store, Info, Peers and Gateway at once; may be nil
	Poke func()         // called when the World has changed
}

// Times of Run.
const (
	stepPeriod = 250 * time.Millisecond  // Run looks at all leases and times at least that often
	pauseLimit = 1250 * time.Millisecond // after a pause longer than this the process was stopped, or got no CPU
	stopTime   = 3 * time.Second         // how long Run may take to end
)

// Leases is this node's part in the agreement: it renews the node lease, acquires,
// hands over and releases VIP leases as the plan wants, and fences dead and silent nodes.
type Leases struct {
	o       Options
	store   Store
	wake    mailbox.Signal
	metrics *metrics

	// mu guards all below. Run changes it, the end of each request (start), Put (writes and
	// quorum), Observe (writes.observed) and Tenure (own.ConfirmAfter).
	mu       sync.Mutex
	cache    cache
	own      ownLease
	peers    map[string]*peer // by node
	writes   writes
	quorum   quorum.State
	decision quorum.Decision // the last one
	lastStep time.Time
	changed  bool // the World differs from what was last reported, beyond summary
	reported summary
}

// New makes Leases on a Store. Run does the work.
func New(store Store, o Options) *Leases {
	l := &Leases{
		o: o, store: store, wake: o.Wake,
		metrics: newMetrics(),
		cache:   newCache(o.Node),
		peers:   make(map[string]*peer),
		writes:  newWrites(),
		own:     ownLease{Self: quorum.Self{Name: o.Node}},
	}
	if l.wake == nil {
		l.wake = mailbox.NewSignal()
	}
	return l
}

// String names the task.
func (l *Leases) String() string { return "leases" }

// Wake has Run look at the Store, Info, Peers and Gateway at once. It does not block.
func (l *Leases) Wake() { l.wake.Send() }

// Put stores what is wanted of every VIP lease. One that this node held when Observe was
// last called, and that no intent names, is released; one that it was given since then is
// kept, since no plan knows of it yet. So Observe and Put are called by one goroutine.
func (l *Leases) Put(want []vip.LeaseIntent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes.setIntents(want)
	if l.quorum.Moving() {
		l.quorum = l.quorum.Propose(l.moves(want, time.Now()))
	}
	l.Wake()
}

// Observe fills in Members, Tenure, Claims and HandingOver.
func (l *Leases) Observe(w *vip.World) {
	info := l.o.Info() // before the lock: another room answers
	l.mu.Lock()
	defer l.mu.Unlock()
	info.Isolated = l.decision.Isolated
	w.Members = l.members(w.Now, info)
	w.Tenure = l.tenure(time.Now())
	w.Claims = l.claims(w.Now)
	w.HandingOver = maps.Clone(l.writes.handingOver)
	l.writes.observed = make(map[vip.Key]uint64)
	for k := range l.cache.mine {
		if l.nodeOf(k) == "" {
			l.writes.observed[k] = l.cache.version(k)
		}
	}
}

// Tenure is this node's right to act on its claims at this moment. Each room that
// refreshes an address or repeats an announcement asks for it before each time. After a
// pause of the process it is not Confirmed until a renewal succeeds that was sent later.
func (l *Leases) Tenure() vip.Tenure {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.pausedFor(now) > 0 {
		l.own.ConfirmAfter = now
	}
	return l.tenure(now)
}

// tenure is this node's right to act on its claims.
func (l *Leases) tenure(now time.Time) vip.Tenure {
	return l.own.Tenure(l.o.Timing, l.decision.HoldUntil, now)
}

// pausedFor is how long the process was stopped, or got no CPU, until now; 0 if it was not.
func (l *Leases) pausedFor(now time.Time) time.Duration {
	if d := now.Sub(l.lastStep); !l.lastStep.IsZero() && d > pauseLimit {
		return d
	}
	return 0
}

// NodeInfos is the vip.NodeInfo on the node lease of each other node, by name.
// Nodes that have stopped are left out; those that were fenced are not.
func (l *Leases) NodeInfos() map[string]vip.NodeInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]vip.NodeInfo, len(l.peers))
	for node, p := range l.peers {
		if p.lease != nil && !p.released {
			all[node] = p.info
		}
	}
	return all
}

// Ready is why this node can't act on claims at present, or nil.
func (l *Leases) Ready() error {
	if t := l.Tenure(); !t.Holds(time.Now()) {
		return errors.New("the node lease is not renewed: the API server is out of reach, or refuses it")
	}
	return nil
}

// Run works until ctx ends. Then it releases all VIP leases and the node lease, so that
// the others need not wait for it, within stopTime.
func (l *Leases) Run(ctx context.Context) error {
	// Requests outlive ctx: their end must be known.
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ticker := time.NewTicker(stepPeriod)
	defer ticker.Stop()
	for {
		began := time.Now()
		l.step(requests)
		// A step looks at every lease. When hundreds are written it waits a little, and
		// takes in what has come meanwhile at once.
		if took := time.Since(began); took > time.Millisecond {
			time.Sleep(3 * took)
		}
		select {
		case <-ctx.Done():
			defer time.AfterFunc(stopTime, cancel).Stop()
			l.releaseAll(requests)
			return l.releaseNodeLease(requests)
		case <-l.wake:
		case <-ticker.C:
		}
	}
}

// start runs a request in a goroutine of its own, then what it returns, with mu held, and
// wakes Run.
func (l *Leases) start(ctx context.Context, timeout time.Duration, request func(context.Context) func()) {
	go func() {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		apply := request(ctx)
		l.mu.Lock()
		apply()
		l.mu.Unlock()
		l.Wake()
	}()
}

// releaseAll releases every VIP lease that this node still holds: another node that stops
// may have handed it over a moment ago. It returns when no request is under way, since
// one that was not answered may have been carried out.
func (l *Leases) releaseAll(ctx context.Context) {
	for {
		l.Observe(&vip.World{Now: time.Now()})
		l.mu.Lock()
		l.writes.setIntents(nil)
		l.mu.Unlock()
		if ctx.Err() == nil {
			l.step(ctx)
		}
		l.mu.Lock()
		idle := len(l.writes.pending) == 0 && !l.own.pending
		l.mu.Unlock()
		if idle {
			return
		}
		<-l.wake // at the end of a request
	}
}

// step looks at everything once: it reads the watch cache and the heartbeats, decides, and
// starts the requests that follow. It does nothing until the watch cache is filled.
func (l *Leases) step(ctx context.Context) {
	info := l.o.Info() // before the lock: other rooms answer
	var statuses map[string]vip.PeerStatus
	if l.o.Peers != nil && l.o.Peers.Off() == "" {
		statuses = l.o.Peers.Statuses()
	}
	l.mu.Lock()
	now := time.Now()
	if paused := l.pausedFor(now); paused > 0 {
		l.own.ConfirmAfter, l.own.next = now, now
		l.o.Log.Warn("this process was stopped or got no CPU; it confirms its claims before it goes on", "for", paused.Round(time.Millisecond))
	}
	l.lastStep = now
	if !l.store.Synced() {
		l.mu.Unlock()
		return
	}
	l.readCache(now)
	l.evaluate(statuses, now)
	l.renew(ctx, now, info)
	l.fence(ctx, now)
	l.write(ctx, now)
	l.report(now)
	heartbeat := l.decision.Heartbeat
	l.mu.Unlock()
	if l.o.Peers != nil {
		l.o.Peers.SetHeartbeat(heartbeat)
	}
}

// readCache takes over what the watch shows, and forgets nodes that have stopped or whose
// node lease has long been gone.
func (l *Leases) readCache(now time.Time) {
	changed, gone := l.cache.update(l.store.TakeChanges())
	maps.DeleteFunc(l.cache.dropped, func(k vip.Key, _ uint64) bool { return !l.writes.pending[k] })
	for _, x := range changed {
		switch node := l.nodeOf(keyOf(x)); {
		case node == l.o.Node:
			l.checkOwn(x, now)
		case node != "":
			if l.peer(node, now).update(x, now) {
				l.changed = true
			}
		default:
			l.changedVIPLease(parseRecord(x), now)
			l.changed = true
		}
	}
	for _, x := range gone {
		switch node := l.nodeOf(keyOf(x)); {
		case node == l.o.Node:
			l.own.next = now // put it back at once
			continue
		case node != "":
			p := l.peer(node, now)
			if p.lease != nil && version(x) > version(p.lease) {
				p.update(x, now) // it may have been released before it was deleted
			}
			p.Exists = false
		default:
			l.cache.goneVIPLease(parseRecord(x), now)
		}
		l.changed = true
	}
	for node, p := range l.peers {
		if !p.Exists && (p.released || p.silent(now, 2*l.o.LeaseDuration)) {
			delete(l.peers, node)
			l.changed = true
		}
	}
}

// peer is what is known of a node; if that was nothing, it is known from now on.
func (l *Leases) peer(node string, now time.Time) *peer {
	p := l.peers[node]
	if p == nil {
		p = &peer{Peer: quorum.Peer{Changed: now}}
		l.peers[node] = p
	}
	return p
}

// changedVIPLease takes over a new version of a VIP lease: its holder is not stalled.
func (l *Leases) changedVIPLease(x *record, now time.Time) {
	l.cache.changedVIPLease(x, now)
	if !x.ours || x.holder == l.o.Node {
		return
	}
	p := l.peer(x.holder, now) // without a node lease it may be fenced once the lease duration has passed
	if p.lease == nil {
		p.Epoch = max(p.Epoch, x.epoch)
	}
	p.acquiredAt, p.stalledSince = now, time.Time{}
}
