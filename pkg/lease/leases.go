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

// A Gateway knows whether the default gateway on the VIPs' link answers, by a question asked at since or later.
type Gateway interface {
	Liveness(since time.Time) vip.Liveness
}

// Options of Leases. No function or interface in it may block.
type Options struct {
	Node      string                   // this node's name, the holder identity
	NodeUID   func(node string) string // of its Node object, "" if that is not known; may be nil
	Namespace string                   // of the node leases
	Process   vip.ProcessInfo          // this process; zero: it does not matter which one writes the node lease

	Announcers bool             // svc_leasenamespace: VIP leases are to be in Namespace, not in those of the Services
	Fixed      map[vip.Key]bool // VIP leases that options name: they are where they are

	quorum.Timing // vip_leaseduration, vip_renewdeadline, vip_retryperiod

	// Successors returns where the VIP leases go that are free in a World: the one of the last plan, with what fill
	// stores in it. It may take as long as a plan. nil: a fence names no successors, and each VIP is moved by a write.
	Successors func(fill func(*vip.World)) map[vip.Key]vip.Successor

	// VIPLeasesKnown reports whether the Store tells of all VIP leases that a Herald has claimed. nil: from the first plan on it does.
	VIPLeasesKnown func() bool

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
	location locations
	quorum   quorum.State
	decision quorum.Decision // the last one

	unwritten unwritten
	watch     watchCheck
	lastStep  time.Time
	changed   bool // the World differs from what was last reported, beyond summary
	reported  summary
}

// New makes Leases on a Store, with a wake signal of its own if o.Wake is nil. Run does the
// work.
func New(store Store, o Options) *Leases {
	l := &Leases{
		o: o, store: store, wake: o.Wake,
		metrics:   newMetrics(),
		cache:     newCache(o.Node, o.Namespace),
		peers:     make(map[string]*peer),
		writes:    newWrites(),
		location:  locations{phase: phase{inServices, inServices}, services: make(map[vip.Key]vip.Key)},
		unwritten: unwritten{owners: make(map[vip.Key]owner), limits: newWriteLimits(maxUnwritten)},
		own:       ownLease{Self: quorum.Self{Name: o.Node}},
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

// Put replaces what is wanted of every VIP lease and wakes Run, which writes. A lease that
// this node held when Observe was last called, and that no intent names, is released; one that
// it was given since then is kept, since no plan knows of it yet. So Observe and Put are
// called by one goroutine. While claims may be moved without the API server it also proposes
// where those go that are not valid.
func (l *Leases) Put(want []vip.LeaseIntent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	want = l.locateIntents(want)
	l.writes.setIntents(want)
	l.forgetGone()
	if l.quorum.Moving() && !l.location.moving() {
		l.quorum = l.quorum.Propose(l.proposedMoves(want, time.Now()))
	}
	l.Wake()
}

// Observe fills in Members and Claims as of w.Now, Tenure, TransfersPending, HandingOver and LeaseRefusals, and remembers the
// versions of the VIP leases that name this node as holder: only those may be released by the
// next Put.
func (l *Leases) Observe(w *vip.World) {
	info := l.o.Info() // before the lock: another room answers
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observeOwnership(w, info)
	w.TransfersPending = w.Stopping && l.transfersPending()
	w.HandingOver = byServiceLease(l, l.writes.handingOver)
	w.LeaseRefusals = byServiceLease(l, l.writes.refusals())
	l.writes.observed = make(map[vip.Key]uint64)
	for k := range l.ownKeys() {
		if l.counts(k) {
			l.writes.observed[k] = l.cache.version(k)
		}
	}
}

// observeOwnership fills in Members and Claims as of w.Now, and Tenure. info is of this node. mu is held.
func (l *Leases) observeOwnership(w *vip.World, info vip.NodeInfo) {
	info.Isolated, info.Restarts = l.isolated(), l.own.recentRestarts(w.Now)
	w.Members, w.Claims, w.Tenure = l.members(w.Now, info), l.claims(w.Now), l.tenure(time.Now())
}

// byServiceLease returns a copy of m, which has the keys of VIP leases, with the keys by which the
// plan knows them (serviceLease); nil for nil.
func byServiceLease[V any](l *Leases, m map[vip.Key]V) map[vip.Key]V {
	if m == nil {
		return nil
	}
	all := make(map[vip.Key]V, len(m))
	for k, v := range m {
		all[l.serviceLease(k)] = v
	}
	return all
}

// Tenure returns this node's right to act on its claims at this moment. Each room that
// refreshes an address or repeats an announcement asks for it before each time. If Run has not
// made a step for more than pauseLimit the process was stopped: from then on the tenure is not
// Confirmed until a renewal that is sent later succeeds.
func (l *Leases) Tenure() vip.Tenure {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.pausedFor(now) > 0 {
		l.own.ConfirmAfter = now
	}
	return l.tenure(now)
}

// tenure returns this node's right to act on its claims at now: the end of it, whether a
// renewal has confirmed it since the process was paused, and since when renewals are late, if
// they are. mu is held.
//
// It does not hold until this node knows where VIP leases are (updateReady); before the first time there
// is none, so that no plan removes what an earlier process has bound.
func (l *Leases) tenure(now time.Time) vip.Tenure {
	t := l.own.Tenure(l.o.Timing, l.decision.HoldUntil, now)
	if !l.location.ready {
		t.Until = time.Time{}
	}
	if !l.location.began {
		t.Epoch = 0
	}
	return t
}

// pausedFor returns the time since Run's last step if that is more than pauseLimit, so that
// the process was stopped or got no CPU; 0 otherwise, and before the first step.
func (l *Leases) pausedFor(now time.Time) time.Duration {
	if d := now.Sub(l.lastStep); !l.lastStep.IsZero() && d > pauseLimit {
		return d
	}
	return 0
}

// NodeInfos returns the vip.NodeInfo on the node lease of each other node, by name. Nodes that
// have released theirs are left out; those that were fenced are not.
func (l *Leases) NodeInfos() map[string]vip.NodeInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]vip.NodeInfo, len(l.peers))
	for node, p := range l.peers {
		if !p.released {
			all[node] = p.info
		}
	}
	return all
}

// Ready returns an error if this node's tenure does not hold at present, confirmed or not, or
// while AwaitName waits for another process; nil if it does.
func (l *Leases) Ready() error {
	l.mu.Lock()
	other := l.own.waitsFor
	l.mu.Unlock()
	if other != "" {
		return errors.New("another Herald has the name of this node, and this one waits until that ends: " + other)
	}
	if t := l.Tenure(); !t.Holds(time.Now()) {
		return errors.New("the node lease is not renewed: the API server is out of reach, or refuses it")
	}
	return nil
}

// Run makes a step when it is woken, and at least each stepPeriod, until ctx ends; after one
// that took more than 1 ms it pauses three times as long, up to stepPeriod. Then it releases all VIP leases and
// the node lease, so that the others need not wait for it, within quorum.StopTime, and returns the
// error of the latter. If another process has taken the name of this node it releases nothing,
// and returns an error that says which.
func (l *Leases) Run(ctx context.Context) error {
	// Requests outlive ctx: their end must be known.
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ticker := time.NewTicker(stepPeriod)
	defer ticker.Stop()
	for {
		began := time.Now()
		l.step(requests)
		if err := l.taken(); err != nil {
			return err
		}
		// A step looks at every lease. When hundreds are written it waits a little, and
		// takes in what has come meanwhile at once.
		if took := time.Since(began); took > time.Millisecond {
			time.Sleep(min(3*took, stepPeriod)) // if it took long, the process was stopped meanwhile
		}
		select {
		case <-ctx.Done():
			defer time.AfterFunc(quorum.StopTime, cancel).Stop()
			l.releaseAll(requests)
			return l.releaseNodeLease(requests)
		case <-l.wake:
		case <-ticker.C:
		}
	}
}

// start runs a request in a goroutine of its own, with that timeout, then the function that it
// returns, with mu held, and wakes Run. It does not block. Marks that a request is under way
// are the caller's to set, and that function's to clear.
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

// releaseAll releases the VIP leases that name this node as holder, and blocks until no request is
// under way, since one that was not answered may have been carried out. It makes a step that wants
// no VIP lease, and another after the end of each request, which also releases those that another
// node that stops handed over a moment ago. A release that failed, a timeout included, is not
// repeated; after ctx has ended nothing more is started.
func (l *Leases) releaseAll(ctx context.Context) {
	for {
		l.Observe(&vip.World{Now: time.Now()})
		l.mu.Lock()
		l.own.releasing = true
		l.writes.setIntents(nil)
		l.mu.Unlock()
		if ctx.Err() == nil {
			l.step(ctx)
		}
		l.mu.Lock()
		idle := len(l.writes.limits.requests)+len(l.writes.nodeLeases) == 0 && !l.own.pending
		l.mu.Unlock()
		if idle {
			return
		}
		<-l.wake // at the end of a request
	}
}

// step reads the watch cache and the heartbeats (none while Peers.Off gives a reason),
// decides, starts the requests that follow (renewal, fences, VIP leases) without waiting for
// them, pokes the agent if the World has changed, and sets the heartbeat. After a pause of the
// process it logs that, and the tenure is not confirmed until a renewal succeeds, which is due
// at once. Until the watch cache is filled it does no more than that. It takes mu.
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
	l.updateUnwritten()
	l.checkWatch(now)
	l.evaluate(statuses, &info, now)
	l.updateReady(now)
	l.copyClaims(ctx, now)
	l.updateLocationDue(now)
	l.fence(ctx, now)
	l.writeVIPLeases(ctx, now)
	l.renew(ctx, now, info) // with what writeVIPLeases leaves to it
	l.writeRecord(ctx, now)
	l.deleteCopies(ctx, now)
	l.report(now)
	heartbeat := l.decision.Heartbeat
	if l.own.releasing { // the agent has ended: others may move what is left, though nothing can be released without the API server
		heartbeat.TenureValid = false
	}
	l.mu.Unlock()
	if l.o.Peers != nil {
		l.o.Peers.SetHeartbeat(heartbeat)
	}
}

// readCache applies what has changed in the watch cache since the last call. A newer version
// of this node's own lease is checked (checkOwn), and one that is gone is written again at
// once, in another epoch if it was fenced; those of other nodes are stored in l.peers, and VIP leases in the cache, as vanished
// if they are gone. It forgets nodes whose node lease does not exist, if they released it or
// it has not changed for two lease durations. All that concerns other nodes and VIPs, but for
// mere renewals, sets l.changed.
func (l *Leases) readCache(now time.Time) {
	before, known := l.cache.restores, l.cache.restored
	changed, gone := l.cache.update(l.store.TakeChanges())
	if l.cache.restores > before && !known {
		l.watchAgain(restoredText) // watches of other resources may go on
	}
	maps.DeleteFunc(l.cache.dropped, func(k vip.Key, _ uint64) bool { return !l.writes.pending(k) })
	for _, x := range changed { // node leases first: what the others say is judged by them
		switch node := l.nodeOf(keyOf(x)); {
		case node == "":
		case node == l.o.Node:
			l.checkOwn(x, now)
		case l.peer(node, now).update(x, now):
			l.changed = true
			l.logFenced(node, l.peers[node])
		}
	}
	for _, x := range changed {
		if keyOf(x) == l.recordKey() {
			l.readRecord(x, now)
		} else if l.isVIPLease(keyOf(x)) {
			l.storeVIPLease(parseRecord(x), now)
			l.changed = true
		}
	}
	for _, x := range gone {
		switch node := l.nodeOf(keyOf(x)); {
		case keyOf(x) == l.recordKey():
			l.readRecord(nil, now)
		case node == l.o.Node:
			if fencedEpoch(x) >= l.own.Epoch { // and deleted before the watch has shown that
				l.endEpoch("it was fenced by another node, and deleted")
			}
			l.own.next = now // put it back at once
			continue
		case node != "":
			p := l.peer(node, now)
			if p.lease == nil || version(x) > version(p.lease) {
				p.update(x, now) // it may have been released before it was deleted
			}
			p.Exists = false
		default:
			l.cache.setVIPLeaseGone(parseRecord(x), now)
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

// peer returns what is known of another node; if that is nothing, it adds an entry that counts
// as changed now.
func (l *Leases) peer(node string, now time.Time) *peer {
	p := l.peers[node]
	if p == nil {
		p = &peer{Peer: quorum.Peer{Changed: now}}
		l.peers[node] = p
	}
	return p
}

// storeVIPLease updates what follows from the new version x of a VIP lease: the marks in the cache
// (setVIPLeaseChanged), and, if a Herald on another node holds it in the epoch of its node lease,
// that the other node acquired a lease just now and is not stalled. Nothing that a VIP lease says
// adds a node or changes its epoch: whoever may write Leases in a namespace of Services can write
// anything there (docs/why.md, "What tenants can write").
func (l *Leases) storeVIPLease(x *record, now time.Time) {
	l.cache.setVIPLeaseChanged(x, !x.ours || x.holder != l.o.Node && l.unproven(x), now)
	if p := l.peers[x.holder]; p != nil && x.ours && p.Epoch == x.epoch {
		p.acquiredAt, p.stalledSince, p.passedOver = now, time.Time{}, false
	}
}

// unproven reports whether the claim of another node on x names an epoch that its node lease has
// not reached, or there is no node lease of it.
func (l *Leases) unproven(x *record) bool {
	p := l.peers[x.holder]
	return p == nil || x.epoch > p.Epoch
}
