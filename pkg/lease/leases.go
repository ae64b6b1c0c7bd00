package lease

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// Peers exchanges heartbeats with the other nodes.
type Peers interface {
	// Statuses is the status of each other node, by name. The map is the caller's.
	Statuses() map[string]vip.PeerStatus
	Off() string
	// AddressLost reports whether this node had an address for heartbeats, and has lost it.
	AddressLost() bool
	// SetHeartbeat sends h in heartbeats from now on; called several times a second, mostly with the same h.
	SetHeartbeat(h vip.Heartbeat)
}

// Options of Leases. No function or interface in it may block.
type Options struct {
	Node      string                   // this node's name, the holder identity
	NodeUID   func(node string) string // of its Node object, "" if that is not known; may be nil
	Namespace string                   // of the node leases and the table
	Process   vip.ProcessInfo          // this process; zero: it does not matter which one writes the node lease
	Units     map[vip.Key]vip.Key      // by Leases elsewhere on which kube-vip may have them

	quorum.Timing // vip_leaseduration, vip_renewdeadline, vip_retryperiod

	Info  func() vip.NodeInfo // of this node, for its node lease
	Peers Peers               // may be nil: no heartbeats are exchanged
	// Gateway is whether the default gateway on the VIPs' link answers, asked at since or later, only where that decides;
	// may be nil: Unknown.
	Gateway func(since time.Time) vip.Liveness

	Log  *slog.Logger
	Wake mailbox.Signal // has Run look at the Store, Info, Peers and Gateway at once; may be nil
	Poke func()         // called when the World has changed
}

// Times of Run.
const (
	stepPeriod = 250 * time.Millisecond  // Run looks at all leases and times at least that often
	pauseLimit = 1250 * time.Millisecond // after a pause longer than this the process was stopped, or got no CPU
)

// Leases is this node's part in the agreement: it renews the node lease, fences others, and writes the table.
type Leases struct {
	*metrics
	o     Options
	store Store
	wake  mailbox.Signal

	// mu guards all below. Run changes it, the end of each request (start), Put, Observe and Tenure (own.ConfirmAfter).
	mu       sync.Mutex
	watch    watch
	own      ownLease
	peers    map[string]*peer // by node
	table    table
	beside   beside
	quorum   quorum.State
	decision quorum.Decision // the last one

	about      vip.NodeInfo              // what Info returned for the last step
	statuses   map[string]vip.PeerStatus // of the last evaluation
	hearsSince time.Time                 // since when there is a socket for heartbeats; zero: there is none
	lastStep   time.Time
	changed    bool // the World differs from what was last reported, beyond summary

	addressLost bool // as Peers said in the last step
	reported    summary
}

// New makes Leases on a Store, with a wake signal if o.Wake is nil.
func New(store Store, o Options) *Leases {
	return &Leases{
		o: o, store: store, wake: cmp.Or(o.Wake, mailbox.NewSignal()), metrics: newMetrics(), peers: make(map[string]*peer),
		watch: watch{fenced: make(map[string]uint64)},
		table: table{known: newTable(0, nil), handingOver: make(map[vip.Key]vip.HandingOver)},
		beside: beside{foreign: make(map[vip.Key]*foreign), seen: make(map[vip.Key]*coordinationv1.Lease),
			waits: make(map[vip.Key]time.Time)},
		own: ownLease{Self: quorum.Self{Name: o.Node}},
	}
}

// Wake has Run look at its sources at once. It does not block.
func (l *Leases) Wake() { l.wake.Send() }

// Put replaces where the plan has every unit, and wakes Run, once the rest of the plan is carried out.
func (l *Leases) Put(want []vip.Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.table.setWanted(want)
	if l.quorum.Moving() {
		l.quorum = l.quorum.Propose(l.proposedMoves())
	}
	l.Wake()
}

// Observe fills in Members and Claims as of w.Now, Tenure and HandingOver.
func (l *Leases) Observe(w *vip.World) {
	info := l.o.Info() // before the lock: another room answers
	l.mu.Lock()
	defer l.mu.Unlock()
	info.Isolated, info.Restarts = l.isolated(), l.own.recentRestarts(w.Now)
	w.Members, w.Claims, w.Tenure = l.members(w.Now, info), l.claims(w.Now), l.tenure(time.Now())
	w.StopTold = info.Excluded != "" && l.own.stopTold()
	w.HandingOver = make(map[vip.Key]vip.HandingOver, len(l.table.handingOver))
	for k, h := range l.table.handingOver {
		if w.Claims[k].Holder != l.o.Node { // else it came back
			h.InDoubt = l.table.doubt != nil && l.table.doubt.over[k]
			w.HandingOver[k] = h
		}
	}
	l.table.observed = l.table.known.Number
}

// Tenure returns this node's right to act on claims, for rooms that refresh addresses. A process that was stopped
// (pauseLimit) confirms nothing until a renewal.
func (l *Leases) Tenure() vip.Tenure {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.pausedFor(now) > 0 {
		l.own.ConfirmAfter = now
	}
	return l.tenure(now)
}

// tenure returns the right at now; none before the table was first read, so that no plan removes what is bound. mu is
// held.
func (l *Leases) tenure(now time.Time) vip.Tenure {
	t := l.own.Tenure(l.o.Timing, l.decision.HoldUntil, now)
	if l.table.actsIn != l.own.Epoch {
		t.Until = time.Time{}
	}
	if l.table.actsIn == 0 {
		t.Epoch = 0
	}
	return t
}

// pausedFor returns how long the process was stopped, above pauseLimit; or 0.
func (l *Leases) pausedFor(now time.Time) time.Duration {
	if d := now.Sub(l.lastStep); !l.lastStep.IsZero() && d > pauseLimit {
		return d
	}
	return 0
}

// NodeInfos returns other nodes' info by name, without released node leases.
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

// Ready returns an error without tenure.
func (l *Leases) Ready() error {
	if t := l.Tenure(); !t.Holds(time.Now()) {
		return errors.New("the node lease is not renewed: the API server is out of reach, or refuses it")
	}
	return nil
}

// Run makes steps until ctx ends, gives back what this node has, and releases the node lease. If another process has
// taken the name it releases nothing, and returns an error that says which.
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

// start runs a request in a goroutine, then what it returns, with mu held, and wakes Run. Callers mark it as under way.
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

// releaseAll gives back all of this node's, and blocks until no request, maybe carried out, is under way.
func (l *Leases) releaseAll(ctx context.Context) {
	for tries := 0; ; tries++ {
		l.mu.Lock()
		l.own.releasing = true
		l.table.setWanted(nil)
		l.mu.Unlock()
		if ctx.Err() == nil {
			l.step(ctx)
		}
		l.mu.Lock()
		now := time.Now()
		done := len(l.listChanges(now)) == 0 && len(l.dueBeside(now, true)) == 0
		idle := !l.table.pending && !l.own.pending && l.beside.pending == 0 &&
			(done || ctx.Err() != nil || !l.mayWriteTable(now))
		for _, p := range l.peers {
			idle = idle && !p.pending
		}
		l.mu.Unlock()
		if idle {
			return
		}
		select {
		case <-l.wake: // at the end of a request
		case <-time.After(stepPeriod):
		}
	}
}

// step reads cache and heartbeats, decides, and starts requests without waiting.
func (l *Leases) step(ctx context.Context) {
	info := l.o.Info() // before the lock: other rooms answer
	var statuses map[string]vip.PeerStatus
	if l.o.Peers != nil && l.o.Peers.Off() == "" {
		statuses = l.o.Peers.Statuses()
	}
	lost := l.o.Peers != nil && l.o.Peers.AddressLost()
	l.mu.Lock()
	if lost && !l.addressLost && len(l.quorum.Voters) > 1 { // the others do not ask what its kernel answers for
		l.endEpoch("its own address is gone from the link of VIPs, so the other nodes take it for dead")
	}
	l.addressLost = lost
	now := time.Now()
	if paused := l.pausedFor(now); paused > 0 {
		l.own.ConfirmAfter, l.own.next = now, now
		l.o.Log.Warn("this process was stopped or got no CPU; it confirms its claims before it goes on", "for",
			paused.Round(time.Millisecond))
	}
	l.lastStep, l.about = now, info
	if !l.store.Synced() {
		l.mu.Unlock()
		return
	}
	l.readCache(now)
	l.checkWatch(now)
	l.evaluate(statuses, &info, now)
	l.updateBehind(now)
	l.updateActs(now)
	l.readTable(ctx, now)
	l.fence(ctx, now)
	l.writeTable(ctx, now)
	l.standBeside(ctx, now)
	l.renew(ctx, now, info)
	l.report(now)
	heartbeat := l.decision.Heartbeat
	heartbeat.Table, heartbeat.TableDigest, heartbeat.Carried = l.table.known.Number, l.table.known.digest, l.table.carried
	heartbeat.APIServerReady = info.APIServerReady
	// the agent has ended: others may move what is left, though it can't be given back
	if l.own.releasing {
		heartbeat.TenureValid = false
	}
	l.mu.Unlock()
	if l.o.Peers != nil {
		l.o.Peers.SetHeartbeat(heartbeat)
	}
}

// peer returns what is known of another node; new ones changed now.
func (l *Leases) peer(node string, now time.Time) *peer {
	p := l.peers[node]
	if p == nil {
		p = &peer{Peer: quorum.Peer{Changed: now}, behindSince: now}
		l.peers[node] = p
	}
	return p
}
