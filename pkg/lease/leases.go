package lease

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// Options of Leases.
type Options struct {
	Node      string // this node's name, the holder identity
	NodeUID   func() string
	Namespace string // of the node leases

	// Duration > RenewDeadline > RetryPeriod (vip_leaseduration, vip_renewdeadline,
	// vip_retryperiod). A node lease is renewed each RetryPeriod; without success for
	// RenewDeadline the node gives up; silent for Duration it may be fenced.
	Duration, RenewDeadline, RetryPeriod time.Duration

	Info func() vip.NodeInfo // what to tell the others about this node; must not block

	// What is seen and told on the wire that the VIPs live on. All may be nil.
	Sights func() map[string]vip.PeerStatus // the other nodes; a nil map: nothing can be seen at present
	Anchor func() vip.Liveness              // the default gateway: Alive, Dead, or Unknown
	Tell   func(vip.Heartbeat)              // must not block, and is called often

	Log  *slog.Logger
	Poke func() // called when World has changed; must not block
}

// Constants of time. All but overlap are about courtesy, not safety.
const (
	beat     = 250 * time.Millisecond  // how often times are looked at
	asleep   = 1250 * time.Millisecond // a beat that comes later than this: the process was stopped, or starved
	patience = 1500 * time.Millisecond // how long the first in rank may take to claim
	forgive  = 30 * time.Second        // how long a stalled node comes last
	turn     = 500 * time.Millisecond  // between the nodes that might fence a silent one
	hurry    = 600 * time.Millisecond  // how long the first tries of a fence may take: with a node may have died what was to answer, or etcd's leader
	hurries  = 3                       // that many
	fencing  = 1500 * time.Millisecond // and how long those that follow
	quick    = 200 * time.Millisecond  // a renewal is hurried, too, if the one before took no longer
	overlap  = 3 * time.Second         // how long an old owner waits to hear its successor
	bury     = time.Hour               // a fenced node's lease is deleted after this
	writes   = 32                      // VIP leases written at a time
	farewell = 3 * time.Second         // how long Run may take to end
)

// Leases is this node's part in the agreement: it renews the node lease, takes,
// gives and lets go of VIP leases as its Stakes say, and fences silent nodes.
type Leases struct {
	o       Options
	store   Store
	wake    chan struct{}
	results chan func() // what a finished request changes, run by the loop
	metrics *metrics

	mu       sync.Mutex // guards all below; the loop writes, Observe, Set and Tenure read
	shelf    shelf
	peers    map[string]*peer
	changed  map[vip.Key]time.Time             // when a VIP lease that no Herald holds was seen to change
	vanished map[vip.Key]*coordinationv1.Lease // VIP leases whose holder did not let go of them before they went
	stakes   map[vip.Key]vip.LeaseIntent
	decided  bool // Set has been called
	// The versions of the VIP leases that name this node, as last observed, and of
	// those the ones that the plan then had no Stake in. A lease that was given to
	// this node since then is not unwanted: nobody has planned with it yet.
	observed, unwanted map[vip.Key]uint64
	outdated           map[vip.Key]uint64 // versions that a refused write has shown to be old, though the cache shows no newer one
	busy               map[vip.Key]bool
	failed             map[vip.Key]failure
	leaving            map[vip.Key]vip.HandingOver
	own                own
	lastBeat           time.Time
	running            int // requests on VIP leases under way

	wired     bool      // the others can be seen on the wire
	quorum    bool      // this node sees so many of them that it may judge the rest
	cut       time.Time // when it last was cut off from most of them
	alone     bool      // it sees so few of them that it may not carry VIPs
	aloneLast time.Time
	bide      bide
	signature signature
}

// own is this node's own node lease.
type own struct {
	epoch    int64 // 0 until the first write
	lease    *coordinationv1.Lease
	sent     time.Time // when the last good renewal was sent
	unbroken time.Time // since when renewals have been good without a break
	confirm  time.Time // the process was asleep until then: renewals sent earlier prove nothing
	lost     bool      // fenced, or in other hands: epoch is over
	busy     bool
	hurries  int  // how often the next renewal is tried again soon
	failing  bool // the last renewal failed, and that was said
	next     time.Time
	infoText string
}

// A failure is a write that did not go through.
type failure struct {
	count int
	until time.Time
	// What was to be replaced, if another writer was faster: as soon as something
	// else is known to be there, the write may be tried again.
	raced bool
	over  uint64
}

// New makes Leases on a Store. Run does the work.
func New(store Store, o Options) *Leases {
	return &Leases{
		o: o, store: store,
		wake:     make(chan struct{}, 1),
		results:  make(chan func()),
		metrics:  newMetrics(),
		shelf:    newShelf(o.Node),
		peers:    make(map[string]*peer),
		changed:  make(map[vip.Key]time.Time),
		vanished: make(map[vip.Key]*coordinationv1.Lease),
		stakes:   make(map[vip.Key]vip.LeaseIntent),
		outdated: make(map[vip.Key]uint64),
		busy:     make(map[vip.Key]bool),
		failed:   make(map[vip.Key]failure),
		leaving:  make(map[vip.Key]vip.HandingOver),
	}
}

// String names the task.
func (l *Leases) String() string { return "leases" }

// Wake tells Leases that the Store or the node's Info has changed.
func (l *Leases) Wake() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Set stores what is wanted of every VIP lease and returns the Stakes in leases
// that this node holds. A lease that it held when it was observed last, and that
// has no Stake in it, is let go of.
func (l *Leases) Set(_ context.Context, want []vip.LeaseIntent) (have []vip.LeaseIntent, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.decided = true
	clear(l.stakes)
	l.unwanted = maps.Clone(l.observed)
	now := time.Now()
	for _, s := range want {
		l.stakes[s.Lease] = s
		delete(l.unwanted, s.Lease)
		if x := l.shelf.known[s.Lease]; x != nil {
			if c := l.claim(x, now); c.Valid && c.Holder == l.o.Node {
				have = append(have, s)
			}
		}
	}
	l.propose(want, now)
	l.Wake()
	return have, nil
}

// Put is Set for a caller that needs no answer.
func (l *Leases) Put(want []vip.LeaseIntent) { l.Set(context.Background(), want) }

// Observe fills in what the leases say.
func (l *Leases) Observe(w *vip.World) {
	info := l.o.Info() // before the lock: another room answers
	l.mu.Lock()
	defer l.mu.Unlock()
	info.Isolated = l.alone
	w.Members = l.members(w.Now, info)
	w.Tenure = l.tenure()
	w.Claims = make(map[vip.Key]vip.Claim, len(l.shelf.known))
	for k, x := range l.vanished {
		w.Claims[k] = l.bereft(x, w.Now)
	}
	l.observed = make(map[vip.Key]uint64)
	for k, x := range l.shelf.known {
		if l.nodeOf(k) != "" {
			continue
		}
		w.Claims[k] = l.claim(x, w.Now)
		if l.shelf.mine[k] {
			l.observed[k] = x.version
		}
	}
	w.HandingOver = make(map[vip.Key]vip.HandingOver, len(l.leaving))
	for k, v := range l.leaving {
		w.HandingOver[k] = v
	}
}

// Tenure is this node's right to act on its claims, at this moment. Whoever
// refreshes or repeats anything asks before each time.
func (l *Leases) Tenure() vip.Tenure {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); !l.lastBeat.IsZero() && now.Sub(l.lastBeat) > asleep {
		l.own.confirm = now
	}
	return l.tenure()
}

func (l *Leases) tenure() vip.Tenure {
	t := vip.Tenure{Epoch: l.own.epoch, Confirmed: !l.own.sent.Before(l.own.confirm)}
	if l.own.epoch != 0 && !l.own.lost && !l.own.sent.IsZero() {
		t.Until = later(l.own.sent.Add(l.o.RenewDeadline), l.bide.until)
	}
	if now := time.Now(); l.lacks(now) {
		t.RenewalLateSince = l.own.sent.Add(l.late())
	}
	return t
}

// NodeInfos is what the other nodes tell of themselves, but for those that have stopped.
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

// Held is the number of VIP leases this node holds.
func (l *Leases) Held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.signature.held
}

// Ready says why this node can't hold claims at present, or nil.
func (l *Leases) Ready() error {
	if t := l.Tenure(); !t.Holds(time.Now()) {
		return errors.New("the node lease is not renewed: the API server is out of reach, or refuses it")
	}
	return nil
}

// Run works until ctx ends. Then it releases the node lease, so that the others
// need not wait for it.
func (l *Leases) Run(ctx context.Context) error {
	// Requests outlive ctx by as long as it takes to hear their end.
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ticker := time.NewTicker(beat)
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
			defer time.AfterFunc(farewell, cancel).Stop()
			l.quit(requests)
			return l.release(requests)
		case <-l.wake:
		case <-ticker.C:
		case apply := <-l.results:
			l.locked(apply)
		}
		for more := true; more; {
			select {
			case apply := <-l.results:
				l.locked(apply)
			default:
				more = false
			}
		}
	}
}

func (l *Leases) locked(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// quit lets go of every VIP lease that is left: another node that stops as well
// may have given it to us only now. It hears the end of what is under way, which
// may have been done already.
func (l *Leases) quit(ctx context.Context) {
	for {
		l.Observe(&vip.World{Now: time.Now()})
		l.Set(ctx, nil)

		if ctx.Err() == nil {
			l.step(ctx)
		}
		l.mu.Lock()
		under := l.running
		if l.own.busy {
			under++
		}
		l.mu.Unlock()
		if under == 0 {
			return
		}
		l.locked(<-l.results)
	}
}

// step looks at everything once and starts the requests that are due.
func (l *Leases) step(ctx context.Context) {
	me := self{info: l.o.Info()} // before the lock: other rooms answer
	if l.o.NodeUID != nil {
		me.uid = l.o.NodeUID()
	}
	var sights map[string]vip.PeerStatus
	if l.o.Sights != nil {
		sights = l.o.Sights()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if !l.lastBeat.IsZero() && now.Sub(l.lastBeat) > asleep {
		l.own.confirm, l.own.next = now, now
		l.o.Log.Warn("this process was stopped or starved of CPU; it confirms its claims before it goes on", "for", now.Sub(l.lastBeat).Round(time.Millisecond))
	}
	l.lastBeat = now
	if !l.store.Synced() {
		return
	}
	l.read(now)
	l.look(sights, now)
	l.wait(now)
	me.info.Isolated, me.info.Suspects = l.alone, l.mute(now)
	l.renew(ctx, now, me)
	l.fence(ctx, now)
	l.write(ctx, now)
	l.tell(now)
}

// read takes over what the cache shows.
func (l *Leases) read(now time.Time) {
	changed, gone := l.shelf.read(l.store.TakeChanges())
	for _, x := range changed {
		k := keyOf(x)
		node := l.nodeOf(k)
		switch {
		case node == l.o.Node:
			l.watchOwn(x, now)
		case node != "":
			if l.peer(node, now).note(x, node, now) {
				l.signature.changes++
			}
		default:
			l.noteClaim(x, now)
			l.signature.changes++
		}
	}
	for _, x := range gone {
		k := keyOf(x)
		switch node := l.nodeOf(k); {
		case node == l.o.Node:
			l.own.next = now // put it back at once
		case node != "":
			p := l.peer(node, now)
			if p.lease != nil && version(x) > version(p.lease) {
				p.note(x, node, now) // its last words
			}
			p.gone = true
			l.signature.changes++
		default:
			delete(l.changed, k)
			if _, _, ours := claimOf(x); ours {
				l.vanished[k], l.changed[k] = x, now
			}
			l.signature.changes++
		}
	}
	for node, p := range l.peers {
		// A stopped node, or one whose name no claim bears any more, is forgotten.
		if p.gone && (p.released || p.silent(now, 2*l.o.Duration)) {
			delete(l.peers, node)
			l.signature.changes++
		}
	}
}

func (l *Leases) peer(node string, now time.Time) *peer {
	p := l.peers[node]
	if p == nil {
		p = &peer{changed: now, gone: true}
		l.peers[node] = p
	}
	return p
}

// noteClaim notes when a VIP lease changed, as far as that matters later.
func (l *Leases) noteClaim(x *coordinationv1.Lease, now time.Time) {
	k := keyOf(x)
	delete(l.vanished, k)
	delete(l.outdated, k)
	node, epoch, ours := claimOf(x)
	if !ours {
		l.changed[k] = now
		return
	}
	delete(l.changed, k)
	if node == l.o.Node {
		return
	}
	p := l.peer(node, now) // a claim by a node without a node lease: its time runs from now
	if p.lease == nil {
		p.epoch = max(p.epoch, epoch)
	}
	p.progress, p.stalled = now, time.Time{}
}

// signature is what the World depends on, beside the Leases themselves: when it
// changes with time alone, the agent must hear of it.
type signature struct {
	changes   int // versions that matter
	alive     int
	calm      int
	stalled   int
	strangers int // whose claim is valid
	vanished  int
	leaving   int
	held      int
	holds     bool
	confirmed bool
	alone     bool
}

// tell pokes if the World has changed since last time.
func (l *Leases) tell(now time.Time) {
	s := signature{changes: l.signature.changes}
	for node, p := range l.peers {
		alive := l.alive(node, p, now)
		p.pulse(alive, now)
		if alive {
			s.alive++
		}
		if p.calm(now) {
			s.calm++
		}
		if !p.stalled.IsZero() {
			if now.Sub(p.stalled) > forgive {
				p.stalled, p.expected = time.Time{}, time.Time{}
			} else {
				s.stalled++
			}
		}
	}
	for k := range l.changed {
		if x := l.shelf.known[k]; x != nil && l.claim(x, now).Valid {
			s.strangers++
		}
		if x := l.vanished[k]; x != nil && now.Sub(l.changed[k]) >= l.o.Duration {
			delete(l.vanished, k)
			delete(l.changed, k)
		}
	}
	s.vanished = len(l.vanished)
	for k, v := range l.leaving {
		if !now.Before(v.Until) {
			delete(l.leaving, k)
		}
	}
	s.leaving = len(l.leaving)
	for k := range l.shelf.mine {
		if l.nodeOf(k) == "" && l.claim(l.shelf.known[k], now).Valid {
			s.held++
		}
	}
	t := l.tenure()
	s.holds, s.confirmed, s.alone = t.Holds(now), t.Confirmed, l.alone
	if l.signature.holds && !s.holds {
		l.o.Log.Warn("the node lease could not be renewed in time: this node gives up its VIPs until it can", "renewdeadline", l.o.RenewDeadline)
	}
	if s != l.signature || s.changes != 0 {
		s.changes = 0
		l.signature = s
		l.metrics.held.Set(float64(s.held))
		l.metrics.members.Set(float64(s.alive))
		l.o.Poke()
	}
}
