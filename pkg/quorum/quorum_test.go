package quorum

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

var timing = Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}

// kubeVIPTiming is that of kube-vip's static Pods.
var kubeVIPTiming = Timing{LeaseDuration: 5 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: time.Second}

// A node is what a test says of n1, or of what n1 knows of another node, from some time on.
type node struct {
	liveness   vip.Liveness
	renews     bool // its node lease is renewed
	api        bool // its heartbeats say that it reaches the API server
	tenure     bool // its heartbeats say that it acts on its claims
	agrees     bool // its heartbeats have this node's StateHash
	overdue    bool
	deaf       bool // it echoes nothing, and is not asked yet
	stopping   bool // dead, as its last heartbeat said
	ended      bool // dead since its process has ended
	silent     bool // nobody hears it
	gone       bool // its kernel does not answer either
	unanswered bool // suspect, and its kernel does not answer any more
	answers    bool // its kernel answers probes
	fenced     bool
	epoch      int64 // in its heartbeats
	voids      string
	moves      bool // its heartbeats say that it acts on moves that are not written
	isolated   bool // its heartbeats say that
	moved      bool // it has carried out view.moves
}

// well is a node that lacks nothing, cut one without the API server.
var (
	well = node{liveness: vip.Alive, renews: true, api: true, tenure: true, agrees: true, epoch: 1}
	cut  = node{liveness: vip.Alive, tenure: true, agrees: true, epoch: 1}
)

// with is n after a change.
func (n node) with(change func(*node)) node { change(&n); return n }

// is is n with another Liveness.
func (n node) is(l vip.Liveness) node { n.liveness = l; return n }

// A view is n1 and what it knows of others, evaluated each 50 ms.
type view struct {
	timing     Timing
	now, began time.Time
	self       Self
	others     map[string]node
	gateway    vip.Liveness
	off        bool             // no heartbeats
	nextEpoch  map[string]int64 // of node leases; 1 of others
	known      map[string]Peer
	statuses   map[string]vip.PeerStatus
	versions   map[vip.Key]uint64
	moves      map[vip.Key]Move

	state State
	d     Decision
}

// newView is n1 among others that have been well for 5 s, n2 and so on.
func newView(nodes int) *view {
	began := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	v := &view{
		timing: timing, now: began, began: began, others: map[string]node{}, known: map[string]Peer{}, statuses: map[string]vip.PeerStatus{},
		self: Self{Name: "n1", Epoch: 1, Renewed: began, RenewingSince: began},
	}
	v.set(well, 2, nodes)
	v.pass(5*time.Second, true)
	return v
}

// set makes the nodes from first to last so from now on.
func (v *view) set(n node, first, last int) {
	for i := first; i <= last; i++ {
		name := fmt.Sprint("n", i)
		v.others[name] = n
		s := v.statuses[name]
		if s.Liveness != n.liveness {
			s.Liveness, s.Since = n.liveness, v.now
		}
		v.statuses[name] = s
	}
}

// withoutServices says that the nodes announce no Services.
func (v *view) withoutServices(names ...string) {
	for _, name := range names {
		p := v.known[name]
		p.NoServices = true
		v.known[name] = p
	}
}

// neglects says for how long the agent of n2 has not taken up what the table gives it.
func (v *view) neglects(d time.Duration) {
	p := v.known["n2"]
	p.Neglects = d
	v.known["n2"] = p
}

// pass lets time pass; renews: n1 renews its node lease.
func (v *view) pass(d time.Duration, renews bool) {
	if !renews {
		v.self.RenewingSince = time.Time{}
	}
	for end := v.now.Add(d); v.now.Before(end); {
		v.now = v.now.Add(50 * time.Millisecond)
		if renews {
			v.self.Renewed = v.now
		}
		for name, n := range v.others {
			p := v.known[name]
			p.Epoch, p.Exists, p.Over = max(1, v.nextEpoch[name]), true, n.fenced
			if n.renews || p.Changed.IsZero() {
				p.Changed = v.now
			}
			s := v.statuses[name]
			s.EchoOverdue = n.deaf
			s.Overdue, s.Stopping, s.ProcessEnded, s.Gone, s.Unanswered = n.overdue, n.stopping, n.ended, n.gone, n.unanswered
			if s.SilentSince = s.HeardAt; !n.silent {
				s.SilentSince = time.Time{}
			}
			if n.answers {
				s.AnsweredAt = v.now
			}
			if !n.silent && !n.ended && !n.gone {
				s.HeardAt = v.now
			}
			s.Heartbeat = vip.Heartbeat{Epoch: n.epoch, APIReachable: n.api, TenureValid: n.tenure, VoidedClaim: n.voids, MovesUnwritten: n.moves, Isolated: n.isolated}
			if n.agrees {
				s.Heartbeat.StateHash, s.Heartbeat.ProposalHash = v.d.Heartbeat.StateHash, v.d.Heartbeat.ProposalHash
			} else {
				s.Heartbeat.StateHash, s.Heartbeat.ProposalHash = 7, 7
			}
			if n.moved {
				s.Heartbeat.StateHash, s.Heartbeat.ProposalHash = v.state.hash(v.moves), 0
			}
			v.known[name], v.statuses[name] = p, s
		}
		versions := make(map[vip.Key]uint64) // as of what has been moved, and no other
		for k := range v.state.Moved {
			versions[k] = v.versions[k]
		}
		in := Input{Now: v.now, Timing: v.timing, Self: v.self, Peers: v.known, Statuses: v.statuses, Gateway: v.gateway, Versions: versions}
		if v.off {
			in.Statuses = nil
		}
		v.state, v.d = Evaluate(v.state, in)
		if v.d.Confirmed {
			v.self.ConfirmAfter = time.Time{}
		}
		v.self.WasIsolated = v.self.WasIsolated && v.d.Isolated
		if v.d.EndEpoch != "" {
			v.self.EpochOver = true
			return // the last decision is what is looked at
		}
	}
}

// Each row of "Without the API server" in docs/ownership.md.
func TestWithoutAPIServer(t *testing.T) {
	dead := well.is(vip.Dead)
	tests := []struct {
		name  string
		nodes int
		set   func(v *view)
		after time.Duration // since n1's last renewal
		want  Verdict
	}{
		{"it renews", 3, func(v *view) { v.pass(time.Minute, true) }, 0, Renewing},
		{"others renew, for less than 6 s", 3, func(*view) {}, 5900 * time.Millisecond, Expiring},
		{"others renew", 3, func(*view) {}, 6100 * time.Millisecond, Yielding},
		{"nobody renews", 3, func(v *view) { v.set(cut, 2, 3) }, time.Hour, Holding},
		{"nobody renews, all of two", 2, func(v *view) { v.set(cut, 2, 2) }, time.Hour, Holding},
		{"nobody renews, heartbeats are off", 3, func(v *view) { v.set(cut, 2, 3); v.off = true }, 9 * time.Second, Expiring},
		{"nobody renews, and most see something else", 5, func(v *view) {
			v.set(cut, 2, 2)
			v.set(cut.with(func(n *node) { n.agrees = false }), 3, 5)
		}, 9 * time.Second, Expiring},
		{"the same, at the renew deadline", 5, func(v *view) {
			v.set(cut, 2, 2)
			v.set(cut.with(func(n *node) { n.agrees = false }), 3, 5)
		}, 10100 * time.Millisecond, GivingUp},
		{"half of four is left", 4, func(v *view) { v.set(cut, 2, 2); v.set(dead, 3, 4) }, 9 * time.Second, Expiring},
		{"half of four is left, and the gateway", 4, func(v *view) { v.set(cut, 2, 2); v.set(dead, 3, 4); v.gateway = vip.Alive }, time.Hour, Holding},
		{"half of four is left, and the gateway, and the others are not heard, though their kernels answer", 4, func(v *view) {
			v.set(cut, 2, 2)
			v.set(well.is(vip.Suspect), 3, 4)
			v.gateway = vip.Alive
		}, 10100 * time.Millisecond, GivingUp},
		{"half of four is left, and the gateway, and one of the others was never heard", 4, func(v *view) {
			v.set(cut, 2, 2)
			v.set(dead, 3, 3)
			v.set(well.is(vip.Unknown), 4, 4)
			v.gateway = vip.Alive
		}, 10100 * time.Millisecond, GivingUp},
		{"too few hold on", 3, func(v *view) { v.set(cut.is(vip.Suspect), 2, 3) }, 9 * time.Second, Expiring},
		{"too few hold on, at the renew deadline", 3, func(v *view) { v.set(cut.is(vip.Suspect), 2, 3) }, 10100 * time.Millisecond, GivingUp},
		{"most are dead", 3, func(v *view) { v.set(dead, 2, 3) }, 4100 * time.Millisecond, GivingUp},
		{"most are dead, for less than a second", 3, func(v *view) { v.set(dead, 2, 3) }, 3900 * time.Millisecond, Expiring},
		{"the API server is back for others", 3, func(v *view) {
			v.set(cut, 2, 3)
			v.pass(time.Minute, false)
			v.set(well, 2, 3)
		}, 66800 * time.Millisecond, Holding},
		{"the API server is back for others, and another begins just then", 4, func(v *view) {
			v.set(well.is(vip.Unknown), 4, 4)
			v.pass(time.Second, true)
			v.set(cut, 2, 3)
			v.pass(time.Minute, false)
			v.set(well, 2, 4)
		}, 66800 * time.Millisecond, Holding},
		{"the API server is back for others for 7 s", 3, func(v *view) {
			v.set(cut, 2, 3)
			v.pass(time.Minute, false)
			v.set(well, 2, 3)
		}, 67200 * time.Millisecond, Yielding},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(tt.nodes)
			tt.set(v)
			if left := tt.after - v.now.Sub(v.self.Renewed); left > 0 {
				v.pass(left, false)
			}
			if took := v.now.Sub(v.self.Renewed); v.d.Verdict != tt.want || v.d.EndEpoch != "" && took < tt.after-200*time.Millisecond {
				t.Errorf("after %v: %s (%s), want %s after %v", took, v.d.Verdict, v.d.EndEpoch, tt.want, tt.after)
			}
			holds := v.self.Tenure(timing, v.d.HoldUntil, v.now).Holds(v.now)
			if want := tt.want == Renewing || tt.want == Holding || tt.want == Expiring; holds != want {
				t.Errorf("holds its tenure: %v, want %v", holds, want)
			}
		})
	}
}

// Each row of "Fencing before any take-over" in docs/ownership.md.
func TestFence(t *testing.T) {
	dead := well.is(vip.Dead)
	ended := dead.with(func(n *node) { n.ended, n.renews = true, false })
	hangs := well.is(vip.Suspect).with(func(n *node) { n.silent, n.renews = true, false })
	tests := []struct {
		name   string
		nodes  int
		set    func(v *view)
		after  time.Duration
		fenced string // of n2
	}{
		{"well", 3, func(*view) {}, time.Hour, ""},
		{"dead", 3, func(v *view) { v.set(dead, 2, 2) }, 50 * time.Millisecond, ReasonDead},
		{"dead, and others are overdue", 3, func(v *view) {
			v.set(dead, 2, 2)
			v.set(well.with(func(n *node) { n.overdue = true }), 3, 3)
		}, time.Minute, ""},
		{"dead, and the others are suspect and silent: this node may be cut off since", 5, func(v *view) {
			v.set(hangs.with(func(n *node) { n.renews, n.answers = true, true }), 2, 5)
			v.pass(time.Minute, true)
			v.set(hangs.with(func(n *node) { n.renews = true }), 3, 5)
			v.set(dead.with(func(n *node) { n.gone = true }), 2, 2)
		}, 10 * time.Second, ""},
		{"dead, and the others are suspect and silent, and have answered since", 5, func(v *view) {
			v.set(hangs.with(func(n *node) { n.renews, n.answers = true, true }), 3, 5)
			v.pass(time.Minute, true)
			v.set(dead.with(func(n *node) { n.gone = true }), 2, 2)
		}, 100 * time.Millisecond, ReasonDead},
		{"half of them dead", 2, func(v *view) { v.set(dead, 2, 2) }, 10 * time.Second, ""},
		{"half of them dead, and the gateway answers", 2, func(v *view) { v.set(dead, 2, 2); v.gateway = vip.Alive }, 50 * time.Millisecond, ReasonDead},
		{"half of them dead, and the gateway does not", 2, func(v *view) { v.set(dead, 2, 2); v.gateway = vip.Dead }, 10 * time.Second, ""},
		{"most of them dead", 4, func(v *view) { v.set(dead, 2, 4) }, 10 * time.Second, ""},
		{"dead, just after most of them were", 4, func(v *view) {
			v.set(dead, 2, 4)
			v.pass(time.Second, true)
			v.set(well, 3, 4)
		}, 2900 * time.Millisecond, ""},
		{"dead, 3 s after most of them were", 4, func(v *view) {
			v.set(dead, 2, 4)
			v.pass(time.Second, true)
			v.set(well, 3, 4)
		}, 3100 * time.Millisecond, ReasonDead},
		{"dead, among others that were dead and are fenced", 6, func(v *view) {
			v.set(dead, 2, 2)
			v.set(dead.with(func(n *node) { n.fenced = true }), 4, 6)
		}, 50 * time.Millisecond, ReasonDead},
		{"dead in an earlier epoch", 3, func(v *view) { v.set(dead.with(func(n *node) { n.epoch = 0 }), 2, 2) }, time.Minute, ""},
		{"dead since it said that it stops", 3, func(v *view) {
			v.set(dead.with(func(n *node) { n.stopping = true }), 2, 2)
		}, 2900 * time.Millisecond, ""},
		{"dead for 3 s since it said that it stops, its node lease not released", 3, func(v *view) {
			v.set(dead.with(func(n *node) { n.stopping = true }), 2, 2)
		}, 3100 * time.Millisecond, ReasonDead},
		{"its process has ended, for as long as it may be started again", 3, func(v *view) { v.set(ended, 2, 2) }, 3700 * time.Millisecond, ""},
		{"its process has ended, and its VIPs end soon", 3, func(v *view) { v.set(ended, 2, 2) }, 3800 * time.Millisecond, ReasonDead},
		{"its process has ended, and had not taken up what it was given", 3, func(v *view) { v.set(ended, 2, 2); v.neglects(time.Millisecond) }, 50 * time.Millisecond, ReasonDead},
		{"the same, in a minority", 4, func(v *view) { v.set(ended, 2, 2); v.set(dead, 3, 4); v.neglects(time.Millisecond) }, time.Second, ""},
		{"its process has ended, and another one renews its node lease", 3, func(v *view) {
			v.set(ended, 2, 2)
			v.pass(3500*time.Millisecond, true)
			v.set(ended.with(func(n *node) { n.renews = true }), 2, 2)
		}, time.Minute, ""},
		{"its process has ended, and another one has renewed its node lease once and is not heard", 3, func(v *view) {
			v.set(ended, 2, 2)
			v.pass(3500*time.Millisecond, true)
			v.set(ended.with(func(n *node) { n.renews = true }), 2, 2)
			v.pass(50*time.Millisecond, true)
			v.set(ended, 2, 2)
		}, 3800 * time.Millisecond, ReasonDead},
		{"its process has ended, and then its kernel", 3, func(v *view) {
			v.set(ended, 2, 2)
			v.pass(time.Second, true)
			v.set(dead.with(func(n *node) { n.gone = true }), 2, 2)
		}, 50 * time.Millisecond, ReasonDead},
		{"its process has ended, and another one is heard", 3, func(v *view) {
			v.set(ended, 2, 2)
			v.pass(3500*time.Millisecond, true)
			v.set(well.with(func(n *node) { n.epoch = 0 }), 2, 2)
		}, 10 * time.Second, ""},
		{"suspect", 3, func(v *view) { v.set(well.is(vip.Suspect), 2, 2) }, time.Minute, ""},
		{"hangs, for less than four seconds", 3, func(v *view) { v.set(hangs, 2, 2) }, 3900 * time.Millisecond, ""},
		{"hangs", 3, func(v *view) { v.set(hangs, 2, 2) }, 4 * time.Second, ReasonHangs},
		{"hangs in an epoch in which it was never heard", 3, func(v *view) { v.set(hangs.with(func(n *node) { n.epoch = 0 }), 2, 2) }, 10 * time.Second, ""},
		{"silent, and renews", 3, func(v *view) { v.set(hangs.with(func(n *node) { n.renews = true }), 2, 2) }, time.Minute, ""},
		{"heard, and does not renew", 3, func(v *view) { v.set(hangs.with(func(n *node) { n.silent = false }), 2, 2) }, 14 * time.Second, ""},
		{"hangs, and only this node was without its heartbeats", 3, func(v *view) { v.set(hangs, 2, 3) }, 14 * time.Second, ""},
		{"half of them hang, and the gateway answers", 2, func(v *view) { v.set(hangs, 2, 2); v.gateway = vip.Alive }, 4 * time.Second, ReasonHangs},
		{"half of them hang", 2, func(v *view) { v.set(hangs, 2, 2) }, 14 * time.Second, ""},
		{"hangs, and this node's renewals fail", 3, func(v *view) { v.set(hangs, 2, 2); v.self.RenewingSince = time.Time{} }, 5 * time.Second, ""},
		{"holds nothing and does not reach the API server", 3, func(v *view) {
			v.set(cut.with(func(n *node) { n.tenure = false }), 2, 2)
		}, 2100 * time.Millisecond, ReasonYielded},
		{"the same, just after it was stopped for a moment", 3, func(v *view) {
			v.set(hangs, 2, 2)
			v.pass(3*time.Second, true)
			v.set(cut.with(func(n *node) { n.tenure = false }), 2, 2)
		}, 900 * time.Millisecond, ""},
		{"the same, a second after it was stopped for a moment", 3, func(v *view) {
			v.set(hangs, 2, 2)
			v.pass(3*time.Second, true)
			v.set(cut.with(func(n *node) { n.tenure = false }), 2, 2)
		}, 1100 * time.Millisecond, ReasonYielded},
		{"silent for less than 15 s", 3, func(v *view) { v.set(cut, 2, 2) }, 14900 * time.Millisecond, ""},
		{"silent for 15 s", 3, func(v *view) { v.set(cut, 2, 2) }, 15 * time.Second, ReasonSilent},
		{"silent, without heartbeats", 3, func(v *view) { v.set(cut, 2, 2); v.off = true }, 15 * time.Second, ReasonSilent},
		{"silent since before this node began to renew", 3, func(v *view) {
			v.set(cut, 2, 2)
			v.pass(10*time.Second, true)
			v.self.RenewingSince = v.now
		}, 14900 * time.Millisecond, ""},
		{"dead and fenced", 3, func(v *view) { v.set(dead.with(func(n *node) { n.fenced = true }), 2, 2) }, time.Minute, ""},
		{"dead, and this node's renewals fail", 3, func(v *view) { v.set(dead, 2, 2); v.self.RenewingSince = time.Time{} }, time.Second, ""},
		{"dead, and this node's tenure is not confirmed", 3, func(v *view) { v.set(dead, 2, 2); v.self.ConfirmAfter = v.now.Add(time.Hour) }, time.Second, ""},
		{"dead, and this node was stopped a moment ago", 3, func(v *view) { v.set(dead, 2, 2); v.self.ConfirmAfter = v.now }, 900 * time.Millisecond, ""},
		{"dead, and this node was stopped a second ago", 3, func(v *view) { v.set(dead, 2, 2); v.self.ConfirmAfter = v.now }, 1100 * time.Millisecond, ReasonDead},
		{"dead, as third in turn", 4, func(v *view) { v.self.Name = "n5"; v.set(dead, 2, 2) }, 250 * time.Millisecond, ""},
		{"dead, as the only other without Services, though it is the first by name", 3, func(v *view) { v.self.NoServices = true; v.set(dead, 2, 2) }, 100 * time.Millisecond, ""},
		{"the same, in its turn", 3, func(v *view) { v.self.NoServices = true; v.set(dead, 2, 2) }, 200 * time.Millisecond, ReasonDead},
		{"dead, as the only one with Services, as it had", 4, func(v *view) { v.self.Name = "n5"; v.withoutServices("n3", "n4"); v.set(dead, 2, 2) }, 50 * time.Millisecond, ReasonDead},
		{"dead, as one with Services, which it had not", 4, func(v *view) { v.withoutServices("n2", "n4"); v.set(dead, 2, 2) }, 100 * time.Millisecond, ""},
		{"dead, as the second without Services, as it was", 4, func(v *view) {
			v.self.Name, v.self.NoServices = "n5", true
			v.withoutServices("n2", "n4")
			v.set(dead, 2, 2)
		}, 200 * time.Millisecond, ReasonDead},
		{"its agent takes up what it is given", 3, func(v *view) { v.neglects(0) }, time.Second, ""},
		{"its agent has not taken up what it is given", 3, func(v *view) { v.neglects(time.Millisecond) }, 50 * time.Millisecond, ReasonNeglects},
		{"the same, as third in turn", 4, func(v *view) { v.self.Name = "n5"; v.neglects(300 * time.Millisecond) }, time.Second, ""},
		{"the same, and nobody fenced it before", 4, func(v *view) { v.self.Name = "n5"; v.neglects(301 * time.Millisecond) }, time.Second, ReasonNeglects},
		{"dead, and nobody fenced it before this node's turn", 4, func(v *view) { v.self.Name = "n5"; v.set(dead, 2, 2) }, 350 * time.Millisecond, ReasonDead},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(tt.nodes)
			tt.set(v)
			v.pass(tt.after, true)
			if got := v.d.Fence["n2"]; got != tt.fenced {
				t.Errorf("fenced: %q, want %q", got, tt.fenced)
			}
		})
	}
}

// While the API server answers nobody for a moment all node leases age: no node that lives is fenced for that, neither then nor when one
// reaches it before the others.
func TestNoFenceForAnOutage(t *testing.T) {
	tests := []struct {
		name   string
		timing Timing
		other  node
		away   time.Duration // at most
	}{
		{"kube-vip's timing", kubeVIPTiming, cut, 6 * time.Second},
		{"kube-vip's timing, blocked port", kubeVIPTiming, cut.is(vip.Suspect).with(func(n *node) { n.silent = true }), 6 * time.Second},
		{"blocked port", timing, cut.is(vip.Suspect).with(func(n *node) { n.silent = true }), 9 * time.Second},
	}
	for _, tt := range tests {
		for away := 3 * tt.timing.RetryPeriod; away <= tt.away; away += time.Second / 2 {
			t.Run(fmt.Sprint(tt.name, " ", away), func(t *testing.T) {
				v := newView(3)
				v.timing = tt.timing
				v.set(tt.other.with(func(n *node) { n.renews = true }), 2, 2)
				v.pass(5*time.Second, true)
				v.set(tt.other, 2, 2)
				v.set(cut, 3, 3)
				pass := func(d time.Duration, renews bool) {
					for end := v.now.Add(d); v.now.Before(end); {
						since := v.self.RenewingSince
						v.pass(50*time.Millisecond, renews)
						v.self.RenewingSince = since // requests have no answer, which is no failure yet
						if v.d.Fence["n2"] != "" {
							t.Fatalf("%v after the last renewal: %s", v.now.Sub(v.self.Renewed), v.d.Fence["n2"])
						}
					}
				}
				pass(tt.timing.RetryPeriod, true) // the other was the first whose renewal has had no answer
				pass(away-tt.timing.RetryPeriod, false)
				pass(500*time.Millisecond, true) // the others' next tries come later
			})
		}
	}
}

// With kube-vip's timing a node that can't renew keeps its VIPs until it knows whether others can, which is a retry period later for those that
// were the last to renew. It yields as soon as it knows.
func TestKeepsItsVIPsUntilItKnows(t *testing.T) {
	begin := func() *view {
		v := newView(3)
		v.timing = kubeVIPTiming
		v.pass(5*time.Second, true)
		return v
	}
	v := begin()
	v.pass(2500*time.Millisecond, false)
	if left := v.self.Tenure(v.timing, v.d.HoldUntil, v.now).Until.Sub(v.now); left < time.Second || v.d.Verdict != Expiring {
		t.Errorf("2.5 s after its last renewal: %s, for another %v; its addresses are removed in the last second", v.d.Verdict, left)
	}
	v.set(cut, 2, 3)
	if v.pass(100*time.Millisecond, false); v.d.Verdict != Holding {
		t.Errorf("%s, want it holding: nobody renews", v.d.Verdict)
	}
	v = begin()
	if v.pass(3100*time.Millisecond, false); v.d.EndEpoch == "" {
		t.Errorf("%s after 3.1 s, though others renew", v.d.Verdict)
	}
	v = begin()
	v.set(well.is(vip.Suspect), 2, 3)
	v.pass(3100*time.Millisecond, false)
	if v.self.Tenure(v.timing, v.d.HoldUntil, v.now).Holds(v.now) {
		t.Error("holds its tenure after the renew deadline, though it hears nobody")
	}
}

// A node that reaches too few others is isolated, until it has reached them for 3 s. Without
// its own renewals it is no such judge.
func TestIsolated(t *testing.T) {
	v := newView(4)
	v.set(well.is(vip.Dead), 2, 4)
	v.pass(50*time.Millisecond, true)
	if !v.d.Isolated || v.d.Reached != 1 || v.d.Known != 4 || !v.d.Changed {
		t.Errorf("%v (changed %v), reaches %d of %d; want it isolated, as 1 of 4", v.d.Isolated, v.d.Changed, v.d.Reached, v.d.Known)
	}
	v.set(well, 2, 4)
	v.pass(2900*time.Millisecond, true)
	if !v.d.Isolated {
		t.Error("no longer isolated before 3 s")
	}
	v.pass(200*time.Millisecond, true)
	if v.d.Isolated {
		t.Error("still isolated after 3 s")
	}
	v.pass(50*time.Millisecond, true)
	if v.d.Changed {
		t.Error("changed although nothing has")
	}
	v.pass(4*time.Second, false)
	v.set(well.is(vip.Dead), 2, 4)
	v.pass(50*time.Millisecond, false)
	if v.d.Isolated {
		t.Error("isolated without renewals")
	}
}

// A process whose predecessor was isolated is isolated until it has reached the others for 3 s, though it has never heard them. It is not for ever where
// there is nobody to be reached.
func TestWasIsolated(t *testing.T) {
	unknown := well.is(vip.Unknown).with(func(n *node) { n.epoch, n.api, n.tenure, n.agrees = 0, false, false, false })
	suspect, answers := unknown.is(vip.Suspect), func(n *node) { n.answers = true }
	tests := []struct {
		name     string
		nodes    int
		set      func(v *view)
		after    time.Duration
		isolated bool
	}{
		{"nobody is heard", 4, func(v *view) { v.set(unknown, 2, 4) }, time.Minute, true},
		{"the others are heard, and do not hear it", 4, func(v *view) { v.set(suspect, 2, 4) }, time.Minute, true},
		{"all are reached, for less than 3 s", 4, func(*view) {}, 2900 * time.Millisecond, true},
		{"all are reached", 4, func(*view) {}, 3100 * time.Millisecond, false},
		{"most are reached, after a while", 4, func(v *view) {
			v.set(unknown, 2, 4)
			v.pass(time.Minute, true)
			v.set(well, 2, 3)
		}, 3100 * time.Millisecond, false},
		{"half are reached, and the gateway is not", 4, func(v *view) { v.set(unknown, 3, 4); v.gateway = vip.Dead }, time.Minute, true},
		{"half are reached, and the gateway", 4, func(v *view) { v.set(unknown, 3, 4); v.gateway = vip.Alive }, 3100 * time.Millisecond, false},
		{"all are reached, while this node can't renew", 4, func(v *view) { v.pass(5*time.Second, false) }, 2900 * time.Millisecond, true},
		{"the ports of all others are blocked", 4, func(v *view) { v.set(suspect.with(answers), 2, 4) }, 3100 * time.Millisecond, false},
		{"all others refuse connections to this port", 4, func(v *view) { v.set(unknown.with(answers), 2, 4) }, 3100 * time.Millisecond, false},
		{"there are no others", 1, func(*view) {}, 3100 * time.Millisecond, false},
		{"the others have ended long ago", 4, func(v *view) { v.set(unknown.with(func(n *node) { n.renews = false }), 2, 4) }, 18100 * time.Millisecond, false},
		{"the others were fenced, or have stopped", 4, func(v *view) { v.set(unknown.with(func(n *node) { n.fenced = true }), 2, 4) }, 3100 * time.Millisecond, false},
		{"heartbeats are off", 4, func(v *view) { v.set(unknown, 2, 4); v.off = true }, 3100 * time.Millisecond, false},
		{"the others exchange none, or in another network", 4, func(v *view) {
			v.set(unknown, 2, 4)
			for name, p := range v.known {
				p.Neighbor = false
				v.known[name] = p
			}
		}, 3100 * time.Millisecond, false},
		{"one of many networks is reached", 6, func(v *view) {
			v.set(unknown, 3, 6)
			for _, name := range []string{"n3", "n4", "n5", "n6"} {
				p := v.known[name]
				p.Neighbor = false
				v.known[name] = p
			}
		}, 3100 * time.Millisecond, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(tt.nodes)
			v.state, v.self.WasIsolated = State{}, true
			for name, p := range v.known {
				p.Neighbor = true
				v.known[name] = p
			}
			tt.set(v)
			v.pass(tt.after, true)
			if v.d.Isolated != tt.isolated {
				t.Errorf("isolated: %v, reaches %d of %d", v.d.Isolated, v.d.Reached, v.d.Known)
			}
			if len(v.d.Fence) > 0 && tt.isolated {
				t.Errorf("fences %v", v.d.Fence)
			}
		})
	}
}

// A node that is isolated may give what it has to one that it hears in time. Once it reaches the others it rejoins them.
func TestIsolatedFromTheLiving(t *testing.T) {
	v := newView(5)
	v.set(well.is(vip.Dead).with(func(n *node) { n.gone = true }), 2, 4)
	v.pass(50*time.Millisecond, true)
	if !v.d.Isolated || v.d.Rejoining || !v.d.Alive["n5"] || v.d.Alive["n2"] || !v.d.Heartbeat.Isolated {
		t.Fatalf("isolated %v, rejoining %v, alive %v; want n5 alive alone", v.d.Isolated, v.d.Rejoining, v.d.Alive)
	}
	v.set(well.with(func(n *node) { n.overdue = true }), 5, 5)
	v.pass(50*time.Millisecond, true)
	if v.d.Alive["n5"] || !v.d.Changed {
		t.Errorf("alive %v, changed %v; want none, since the heartbeat of n5 is overdue", v.d.Alive, v.d.Changed)
	}
	v.set(well, 2, 5)
	v.pass(50*time.Millisecond, true)
	if !v.d.Isolated || !v.d.Rejoining || !v.d.Changed || v.d.Heartbeat.Isolated {
		t.Errorf("isolated %v, rejoining %v, changed %v; want it to rejoin", v.d.Isolated, v.d.Rejoining, v.d.Changed)
	}
}

// A node that says that it is isolated is fenced once, by those that reach most of the others, without it.
func TestFenceOfIsolated(t *testing.T) {
	says := well.is(vip.Suspect).with(func(n *node) { n.isolated = true })
	v := newView(3)
	v.set(says, 2, 2)
	v.pass(50*time.Millisecond, true)
	if v.d.Fence["n2"] != ReasonIsolated || v.d.Reached != 3 || v.d.Known != 3 {
		t.Fatalf("fences %v, reaches %d of %d; want n2 fenced, 3 of 3", v.d.Fence, v.d.Reached, v.d.Known)
	}
	v.set(says.with(func(n *node) { n.epoch = 2 }), 2, 2)
	v.nextEpoch = map[string]int64{"n2": 2}
	v.pass(time.Minute, true)
	if len(v.d.Fence) > 0 {
		t.Errorf("fences %v, in an epoch in which it takes nothing", v.d.Fence)
	}
	v = newView(3)
	v.set(says, 2, 3)
	v.pass(time.Minute, true)
	if len(v.d.Fence) > 0 || v.d.Isolated {
		t.Errorf("fences %v, isolated %v; want neither: who hears the others is not isolated because they are", v.d.Fence, v.d.Isolated)
	}
}

// A node that hears all others, and is heard by none, is isolated, and fences none of them when it hears them no more one after the other.
func TestTransmitsNothing(t *testing.T) {
	v := newView(5)
	v.gateway = vip.Dead // it asks that in vain, too
	if !v.d.MayPlace {
		t.Error("it may place nothing, though all hear it")
	}
	v.set(well.with(func(n *node) { n.deaf = true }), 2, 5)
	v.pass(50*time.Millisecond, true)
	if v.d.MayPlace {
		t.Error("it may place, though nobody shows that it is heard")
	}
	suspect := well.is(vip.Suspect)
	v.set(suspect, 2, 5)
	v.pass(4*time.Second, true)
	if v.d.Isolated || !v.d.MayPlace {
		t.Error("isolated, or places nothing, though their kernels answer")
	}
	v.set(suspect.with(func(n *node) { n.unanswered = true }), 2, 5)
	v.pass(50*time.Millisecond, true)
	if !v.d.Isolated || v.d.Reached != 1 || v.d.Known != 5 {
		t.Errorf("%v, reaches %d of %d; want it isolated, as 1 of 5", v.d.Isolated, v.d.Reached, v.d.Known)
	}
	for last := 2; last <= 5; last++ {
		v.set(well.is(vip.Dead).with(func(n *node) { n.gone = true }), 2, last)
		v.pass(2*time.Second, true)
		if len(v.d.Fence) > 0 {
			t.Errorf("it fences %v", v.d.Fence)
		}
	}
}

// Processes that end isolate nobody: the kernels that refuse connections are reached.
func TestEndedProcessesIsolateNobody(t *testing.T) {
	ended := well.is(vip.Dead).with(func(n *node) { n.ended, n.renews = true, false })
	v := newView(3)
	v.set(ended, 2, 3)
	v.pass(time.Second, true)
	if v.d.Isolated || v.d.Reached != 3 || !v.d.MayPlace {
		t.Errorf("isolated %v, reaches %d of %d, may place %v; want 3 of 3", v.d.Isolated, v.d.Reached, v.d.Known, v.d.MayPlace)
	}
	v.pass(5*time.Second, true)
	if len(v.d.Fence) > 0 {
		t.Errorf("fences %v, and hears nobody", v.d.Fence)
	}
	v = newView(2)
	v.gateway = vip.Alive
	v.set(ended, 2, 2)
	v.pass(6*time.Second, true)
	if v.d.Isolated || len(v.d.Fence) != 1 {
		t.Errorf("isolated %v, fences %v; want the other of two fenced, since the gateway answers", v.d.Isolated, v.d.Fence)
	}
}

// Nodes that stop in good order isolate nobody: the last one still has statuses to clear.
func TestStoppingNodesIsolateNobody(t *testing.T) {
	v := newView(3)
	v.set(well.is(vip.Dead).with(func(n *node) { n.stopping = true }), 2, 3)
	v.pass(50*time.Millisecond, true)
	if v.d.Isolated || v.d.Reached != 1 || v.d.Known != 1 {
		t.Errorf("isolated %v, reaches %d of %d; want 1 of 1", v.d.Isolated, v.d.Reached, v.d.Known)
	}
	v = newView(3)
	v.set(well.is(vip.Dead).with(func(n *node) { n.stopping = true }), 2, 2)
	v.set(well.is(vip.Dead), 3, 3)
	v.pass(50*time.Millisecond, true)
	if v.d.Isolated || !v.d.NeedsGateway {
		t.Errorf("isolated %v, asks the gateway %v; want that asked, since one of two is dead", v.d.Isolated, v.d.NeedsGateway)
	}
}

// A node that acts on claims that are void is told, and one that is told ends its epoch.
func TestVoidedClaim(t *testing.T) {
	v := newView(3)
	v.set(cut.with(func(n *node) { n.fenced = true }), 2, 3)
	v.pass(50*time.Millisecond, true)
	if got := v.d.Heartbeat.VoidedClaim; got != "n2@1" {
		t.Errorf("tells of %q, want of n2@1", got)
	}
	for _, liveness := range []vip.Liveness{vip.Alive, vip.Suspect, vip.Dead} { // Suspect: it does not hear this node
		v = newView(3)
		v.set(well.with(func(n *node) { n.voids = "n1@1" }).is(liveness), 2, 2)
		v.pass(50*time.Millisecond, true)
		if v.d.EndEpoch == "" || v.d.Heartbeat.TenureValid {
			t.Errorf("goes on although a node that is %s has voided its claim", liveness)
		}
	}
	// After a split with the API server on this side each says so of the other: who was fenced is wrong, else nobody has a VIP.
	v = newView(3)
	v.set(well.with(func(n *node) { n.voids, n.fenced = "n1@1", true }), 2, 2)
	if v.pass(50*time.Millisecond, true); v.d.EndEpoch != "" {
		t.Error("ends its epoch because a node says so that was itself fenced")
	}
	v.set(well.with(func(n *node) { n.voids, n.fenced, n.epoch = "n1@1", true, 2 }), 2, 2)
	if v.pass(50*time.Millisecond, true); v.d.EndEpoch == "" {
		t.Error("goes on although a node has voided its claim that was fenced in an earlier epoch")
	}
}

// A node that is not heard any more is told, too, after those that are.
func TestVoidedClaimOfASilentNode(t *testing.T) {
	v := newView(4)
	v.set(cut.with(func(n *node) { n.fenced = true }).is(vip.Dead), 2, 2)
	v.pass(50*time.Millisecond, true)
	if got := v.d.Heartbeat.VoidedClaim; got != "n2@1" {
		t.Errorf("tells of %q, want of n2@1", got)
	}
	v.set(cut.with(func(n *node) { n.fenced = true }), 4, 4)
	v.pass(50*time.Millisecond, true)
	if got := v.d.Heartbeat.VoidedClaim; got != "n4@1" {
		t.Errorf("tells of %q, want of n4@1", got)
	}
}

// What a dead node held is moved once all holders propose the same for 0.2 s.
func TestMoves(t *testing.T) {
	key := vip.Key{Namespace: "default", Name: "kubevip-a"}
	move := map[vip.Key]Move{key: {Holder: "n2", Version: 5, From: "n4", FromEpoch: 1}}
	tests := []struct {
		name  string
		set   func(v *view)
		moved bool
	}{
		{"all agree", func(*view) {}, true},
		{"one proposes something else", func(v *view) { v.set(cut.with(func(n *node) { n.agrees = false }), 3, 3) }, false},
		{"one reaches the API server", func(v *view) { v.set(well, 3, 3) }, false},
		{"the others are a minority with this node", func(v *view) { v.set(cut.is(vip.Suspect), 3, 3) }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(4)
			v.set(cut, 2, 4)
			v.pass(30*time.Second, false)
			v.set(cut.is(vip.Dead), 4, 4)
			tt.set(v)
			v.pass(100*time.Millisecond, false)
			if v.d.Released["n4"] != (v.d.Holders == 3 && v.state.Moving()) || v.d.Released["n2"] {
				t.Errorf("released: %v, with %d holders", v.d.Released, v.d.Holders)
			}
			v.versions = map[vip.Key]uint64{key: 5}
			v.state = v.state.Propose(move)
			v.pass(250*time.Millisecond, false) // the proposal reaches the others after 0.1 s
			if len(v.state.Moved) > 0 {
				t.Error("moved at once")
			}
			v.pass(100*time.Millisecond, false)
			if moved := v.state.Moved[key]; (moved == Move{"n2", 1, 5, "n4", 1}) != tt.moved {
				t.Errorf("moved: %+v, want that to be %v", moved, tt.moved)
			}
			if v.d.Heartbeat.MovesUnwritten {
				t.Error("says that it acts on the move, which is n2's")
			}
			if tt.moved { // n4 is back, and still acts on its claim
				v.set(cut, 4, 4)
				v.pass(50*time.Millisecond, false)
				if got := v.d.Heartbeat.VoidedClaim; got != "n4@1" {
					t.Errorf("tells of %q, want of n4@1", got)
				}
			}
			v.versions[key] = 6 // the lease was written
			v.pass(50*time.Millisecond, false)
			if len(v.state.Moved) > 0 {
				t.Error("the move outlives a write")
			}
		})
	}
}

// deadOwner is n1 of so many nodes that hold on without the API server, of which the last has just died; v.moves gives the VIP
// that it had to holder.
func deadOwner(nodes int, holder string) (v *view, key vip.Key) {
	v, key = newView(nodes), vip.Key{Namespace: "default", Name: "kubevip-a"}
	v.set(cut, 2, nodes)
	v.pass(30*time.Second, false)
	v.set(cut.is(vip.Dead), nodes, nodes)
	v.pass(100*time.Millisecond, false)
	v.versions = map[vip.Key]uint64{key: 5}
	v.moves = map[vip.Key]Move{key: {Holder: holder, Epoch: 1, Version: 5, From: fmt.Sprint("n", nodes), FromEpoch: 1}}
	return v, key
}

// TestWriteMoves: what was moved without the API server is written, and its former owner fenced, once this node renews
// again and no other that it hears holds on, or all have had the time to end that.
func TestWriteMoves(t *testing.T) {
	holds := cut.with(func(n *node) { n.moved, n.agrees = true, false })
	for _, tt := range []struct {
		name  string
		n2    node
		after time.Duration // of renewals
		want  bool
	}{
		{"no other holds on", well, 50 * time.Millisecond, true},
		{"another one holds on", holds, 6900 * time.Millisecond, false},
		{"and had time to end that", holds, 7100 * time.Millisecond, true},
		{"one holds on that is not heard", holds.is(vip.Suspect), 50 * time.Millisecond, true},
		{"one has given up", holds.with(func(n *node) { n.tenure = false }), 50 * time.Millisecond, true},
	} {
		v, _ := deadOwner(4, "n1")
		v.state = v.state.Propose(v.moves)
		v.pass(time.Second, false)
		if len(v.state.Moved) != 1 || v.d.WriteMoves || len(v.d.Fence) > 0 {
			t.Fatalf("moved %v, to be written %v, fences %v without the API server", v.state.Moved, v.d.WriteMoves, v.d.Fence)
		}
		v.set(well, 3, 3)
		v.set(tt.n2, 2, 2)
		v.set(cut.is(vip.Suspect), 4, 4) // not dead any more
		v.self.RenewingSince = v.now
		v.pass(tt.after, true)
		if got := v.d.Fence["n4"] == ReasonMoved; v.d.WriteMoves != tt.want || got != tt.want {
			t.Errorf("%s: writes %v, fences %v; want %v", tt.name, v.d.WriteMoves, v.d.Fence, tt.want)
		}
	}
}

// What all have agreed on holds for all, though another node dies when some have carried it out and this one has not.
func TestMovesAreCompleted(t *testing.T) {
	for _, agreed := range []bool{true, false} {
		v, key := deadOwner(5, "n2")
		if agreed {
			v.state = v.state.Propose(v.moves)
		}
		v.pass(150*time.Millisecond, false)
		v.set(cut.is(vip.Dead), 4, 4)
		v.set(cut.with(func(n *node) { n.moved = true }), 2, 3)
		v.pass(150*time.Millisecond, false)
		if moved := v.state.Moved[key]; (moved == v.moves[key]) != agreed {
			t.Errorf("agreed %v: moved %+v", agreed, moved)
		}
		if v.pass(2*time.Second, false); (v.d.EndEpoch == "") != agreed {
			t.Errorf("agreed %v: %s %s", agreed, v.d.Verdict, v.d.EndEpoch)
		}
	}
}

// Once a node reaches the API server, the others adopt no move: that node was told of none, and may have acquired the VIP. Nor do they when it has lost the API server again.
func TestNoMoveIsAdoptedOnceTheAPIServerIsBack(t *testing.T) {
	for _, again := range []bool{false, true} {
		v, _ := deadOwner(3, "n1")
		v.state = v.state.Propose(v.moves)
		v.pass(150*time.Millisecond, false) // n2 carries it out; what it says of that comes late
		back := well.with(func(n *node) { n.agrees, n.epoch = false, 2 })
		v.set(back, 3, 3)
		v.pass(50*time.Millisecond, false)
		if again {
			v.set(back.with(func(n *node) { n.api = false }), 3, 3)
		}
		v.set(cut.with(func(n *node) { n.moved = true }), 2, 2)
		v.pass(50*time.Millisecond, false)
		if len(v.state.Moved) > 0 {
			t.Errorf("lost again %v: moved %+v", again, v.state.Moved)
		}
	}
}

// A node says that it acts on moves that are not written as long as it has one; and knows of those of others if it has agreed on any, or is told.
func TestUnknownMoves(t *testing.T) {
	var key vip.Key
	movedTo := func(holder string) (v *view) { // what n4 had
		v, key = deadOwner(4, holder)
		v.state = v.state.Propose(v.moves)
		v.pass(500*time.Millisecond, false)
		return v
	}
	for _, holder := range []string{"n1", "n2"} {
		v := movedTo(holder)
		v.set(cut.with(func(n *node) { n.moves = holder == "n2" }), 2, 2)
		v.pass(50*time.Millisecond, false)
		if got := v.d.Heartbeat.MovesUnwritten; got != (holder == "n1") || v.d.UnknownMoves {
			t.Errorf("moved to %s: says %v, knows of unknown moves %v", holder, got, v.d.UnknownMoves)
		}
		v.versions[key] = 6 // the lease was written
		v.pass(50*time.Millisecond, false)
		if v.d.Heartbeat.MovesUnwritten {
			t.Errorf("moved to %s, and written: still says that it acts on a move", holder)
		}
	}
	v := movedTo("n2")
	v.set(cut.with(func(n *node) { n.moves = true }), 2, 3)
	if v.pass(50*time.Millisecond, false); !v.d.UnknownMoves {
		t.Error("n3 acts on moves, of which this node knows only those to n2")
	}
	v = movedTo("n2")
	v.set(cut.with(func(n *node) { n.moves = true }), 2, 2)
	v.versions[key] = 6 // the table has overtaken it, which n2 does not know
	if v.pass(50*time.Millisecond, false); v.d.UnknownMoves || len(v.state.Moved) != 1 {
		t.Errorf("unknown moves %v, moved %v; n2 still acts on one", v.d.UnknownMoves, v.state.Moved)
	}
	v.set(well, 2, 2)
	v.pass(50*time.Millisecond, true)
	v.set(well.with(func(n *node) { n.moves = true }), 2, 2)
	if v.pass(50*time.Millisecond, true); !v.d.UnknownMoves {
		t.Error("n2 acts on other moves than those that were known")
	}
	v = movedTo("n2")
	v.set(cut.with(func(n *node) { n.moves = true }), 2, 2)
	v.pass(50*time.Millisecond, false)
	v.self.EpochOver = true
	if v.pass(50*time.Millisecond, false); !v.d.UnknownMoves {
		t.Error("this node has lost its epoch: the others may have moved more since")
	}
	v = newView(4)
	late := cut.with(func(n *node) { n.overdue = true })
	for _, tt := range []struct {
		name              string
		other             node
		unknown, possible bool
	}{
		{"it says so", well.with(func(n *node) { n.moves = true }), true, false},
		{"it says so no more", well, false, false},
		{"it said so before it died", well.is(vip.Dead).with(func(n *node) { n.moves = true }), false, false},
		{"it acts without the API server", cut, false, false},
		{"what it says since is late", late, false, true},
		{"it acted on nothing", late.with(func(n *node) { n.tenure = false }), false, false},
		{"it reached the API server", well.with(func(n *node) { n.overdue = true }), false, false},
	} {
		v.set(tt.other, 2, 2)
		v.pass(50*time.Millisecond, true)
		if v.d.UnknownMoves != tt.unknown || v.d.PossibleMoves != tt.possible {
			t.Errorf("%s: unknown moves %v, possible ones %v; want %v, %v", tt.name, v.d.UnknownMoves, v.d.PossibleMoves, tt.unknown, tt.possible)
		}
	}
}

// A node is Alive for the others if it renews and is not dead; without renewals of this
// node's own, if it acts on its claims. Suspects are listed after 3 s.
func TestAlive(t *testing.T) {
	v := newView(5)
	v.set(well.is(vip.Dead), 2, 2)
	v.set(well.is(vip.Suspect), 3, 3)
	v.set(well.with(func(n *node) { n.fenced = true }), 4, 4)
	v.pass(3100*time.Millisecond, true)
	alive := func() (names []string) {
		for name, is := range v.d.Alive {
			if is {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	if got := alive(); !slices.Equal(got, []string{"n3", "n5"}) {
		t.Errorf("alive: %v, want n3 and n5", got)
	}
	if !slices.Equal(v.d.Suspects, []string{"n3"}) {
		t.Errorf("suspects: %v, want n3", v.d.Suspects)
	}
	v.set(cut, 2, 3)
	v.set(cut.with(func(n *node) { n.tenure = false }), 5, 5)
	v.pass(4*time.Second, false)
	if got := alive(); !slices.Equal(got, []string{"n2", "n3"}) {
		t.Errorf("alive without the API server: %v, want n2 and n3", got)
	}
}

// The kernel of a node that has lost its claims may answer for its VIPs for as long as an address lives.
func TestAnswersUntil(t *testing.T) {
	ended := well.is(vip.Dead).with(func(n *node) { n.ended = true })
	suspect := well.is(vip.Suspect).with(func(n *node) { n.silent, n.renews = true, false })
	fenced := func(n *node) { n.fenced = true }
	tests := []struct {
		name string
		set  func(v *view)
		want time.Duration // from now on; 0: it does not answer
	}{
		{"well", func(*view) {}, 0},
		{"its process has ended, and it does not renew: another may have fenced it, and the table may show that first",
			func(v *view) {
				v.set(ended.with(func(n *node) { n.renews = false }), 2, 2)
				v.pass(3100*time.Millisecond, true)
			}, 3100 * time.Millisecond},
		{"its process has ended just now", func(v *view) { v.set(ended, 2, 2); v.pass(time.Second, true) }, 0},
		{"its process has ended, and it was fenced", func(v *view) { v.set(ended.with(fenced), 2, 2); v.pass(time.Second, true) }, 10250 * time.Millisecond},
		{"for longer than it may not know that", func(v *view) { v.set(ended.with(fenced), 2, 2); v.pass(11300*time.Millisecond, true) }, 0},
		{"nobody answers for it: another may have fenced it, and the table may show that first", func(v *view) {
			v.set(suspect.is(vip.Dead).with(func(n *node) { n.gone = true }), 2, 2)
			v.pass(time.Second, true)
		}, 10200 * time.Millisecond},
		{"its kernel does not answer on the link of heartbeats: on others it may", func(v *view) {
			v.set(well.is(vip.Dead).with(func(n *node) { n.gone = true }).with(fenced), 2, 2)
			v.pass(time.Second, true)
		}, 10250 * time.Millisecond},
		{"another process is heard, which has not removed them yet", func(v *view) {
			v.set(ended.with(fenced), 2, 2)
			v.pass(2*time.Second, true)
			v.set(well, 2, 2)
			v.pass(time.Second, true)
		}, 8250 * time.Millisecond},
		{"was heard, and fenced all the same", func(v *view) { v.set(well.with(fenced), 2, 2); v.pass(time.Second, true) }, 10250 * time.Millisecond},
		{"acts on no claim, and was fenced; its addresses may be there until its next pass", func(v *view) {
			v.set(cut.with(func(n *node) { n.tenure = false }).with(fenced), 2, 2)
			v.pass(time.Second, true)
		}, 10250 * time.Millisecond},
		{"is not heard, and was fenced an hour ago: it may hold on with others, without the API server", func(v *view) {
			v.set(suspect.with(fenced), 2, 2)
			v.pass(time.Hour, true)
		}, vip.AddressLifetime + vip.AddressRemovalDelay},
		{"is not heard, was fenced, and then nobody answers for it: it may still have its right", func(v *view) {
			v.set(suspect.with(fenced), 2, 2)
			v.pass(time.Second, true)
			v.set(suspect.is(vip.Dead).with(func(n *node) { n.gone = true }).with(fenced), 2, 2)
			v.pass(6*time.Second, true)
		}, 4250 * time.Millisecond},
		{"is not heard, and does not renew: it may act on what was moved to it without the API server", func(v *view) {
			v.set(suspect, 2, 2)
			v.pass(3100*time.Millisecond, true)
		}, vip.AddressLifetime + vip.AddressRemovalDelay},
		{"nobody answers for it since it was fenced an hour ago, nor for another: the two may hold on, on another link", func(v *view) {
			v.set(suspect.is(vip.Dead).with(func(n *node) { n.gone = true }).with(fenced), 2, 3)
			v.pass(time.Hour, true)
		}, vip.AddressLifetime + vip.AddressRemovalDelay},
		{"nobody answers for it since it was fenced an hour ago, and another one is heard", func(v *view) {
			v.set(suspect.is(vip.Dead).with(func(n *node) { n.gone = true }).with(fenced), 2, 2)
			v.pass(time.Hour, true)
		}, 0},
		{"is not heard, and renews", func(v *view) {
			v.set(suspect.with(func(n *node) { n.renews = true }), 2, 2)
			v.pass(time.Minute, true)
		}, 0},
		{"was never heard, and does not renew", func(v *view) { v.set(suspect.is(vip.Unknown), 2, 2); v.pass(3100*time.Millisecond, true) }, vip.AddressLifetime + vip.AddressRemovalDelay},
		{"is heard, and does not renew", func(v *view) { v.set(cut, 2, 2); v.pass(3100*time.Millisecond, true) }, 0},
		{"was fenced when this node saw it first", func(v *view) { v.set(ended.with(fenced), 4, 4); v.pass(time.Second, true) }, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(3)
			tt.set(v)
			got := v.d.AnswersUntil["n2"]
			if tt.want == 0 && !got.IsZero() || tt.want > 0 && got.Sub(v.now) != tt.want {
				t.Errorf("it answers for %v from now on, want %v", got.Sub(v.now), tt.want)
			}
			if v.others["n4"].fenced && v.d.AnswersUntil["n4"].Sub(v.now) != 10250*time.Millisecond {
				t.Errorf("n4 answers for %v from now on, want 10.25 s", v.d.AnswersUntil["n4"].Sub(v.now))
			}
		})
	}
}

// A node whose process was stopped for a moment while the API server is away goes on once more than half of the voters, heard since, have
// its StateHash: they have moved nothing of what it has. Until then it says that it acts on its claims, for two seconds at most.
func TestConfirmedByOthers(t *testing.T) {
	tests := []struct {
		name   string
		others node // n3 to n5, from then on
		after  time.Duration
		valid  bool // its heartbeats say that it acts on its claims
		want   bool // confirmed
	}{
		{"not for long enough yet", cut, 900 * time.Millisecond, true, false},
		{"they agree", cut, 1100 * time.Millisecond, true, true},
		{"they have another state", cut.with(func(n *node) { n.agrees = false }), 1100 * time.Millisecond, false, false},
		{"what they have sent came before", cut.with(func(n *node) { n.silent = true }), 1100 * time.Millisecond, true, false},
		{"their heartbeats are overdue", cut.with(func(n *node) { n.overdue = true }), 1100 * time.Millisecond, true, false},
		{"they reach the API server", well, 1100 * time.Millisecond, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(5)
			v.set(cut, 2, 5)
			v.pass(time.Minute, false)
			v.self.ConfirmAfter = v.now
			v.set(tt.others, 3, 5)
			v.pass(tt.after, false)
			if got := v.self.Tenure(v.timing, v.d.HoldUntil, v.now).Confirmed; got != tt.want || v.d.Heartbeat.TenureValid != tt.valid {
				t.Errorf("confirmed %v, says that it acts on its claims: %v; want %v, %v", got, v.d.Heartbeat.TenureValid, tt.want, tt.valid)
			}
		})
	}
}

// The others need a moment until they hear a process again that was stopped: that ends nothing.
func TestConfirmedAfterAPause(t *testing.T) {
	v := newView(5)
	v.set(cut, 2, 5)
	v.pass(time.Minute, false)
	v.now = v.now.Add(2500 * time.Millisecond)
	v.self.ConfirmAfter = v.now
	v.set(cut.with(func(n *node) { n.agrees = false }), 2, 5)
	v.pass(500*time.Millisecond, false)
	v.set(cut, 2, 5)
	if v.pass(600*time.Millisecond, false); v.d.EndEpoch != "" || !v.self.ConfirmAfter.IsZero() {
		t.Errorf("%s, not confirmed since %v: %s", v.d.Verdict, v.self.ConfirmAfter, v.d.EndEpoch)
	}
}

// Half of the nodes that hold on by the gateway go on after one of them was stopped, or the gateway was silent, for a moment: the others are dead, so
// there is no majority that could have moved anything.
func TestHalfHoldsOn(t *testing.T) {
	tests := []struct {
		name  string
		nodes int
		do    func(v *view)
		want  Verdict
	}{
		{"it was stopped", 2, func(v *view) { v.self.ConfirmAfter = v.now }, Holding},
		{"one of two was stopped", 4, func(v *view) { v.self.ConfirmAfter = v.now }, Holding},
		{"the gateway is silent for a while", 2, func(v *view) { v.gateway = vip.Dead; v.pass(5500*time.Millisecond, false) }, Holding},
		{"for longer", 2, func(v *view) { v.gateway = vip.Dead; v.pass(6100*time.Millisecond, false) }, Expiring},
		{"it was stopped, and the gateway is silent", 2, func(v *view) {
			v.gateway, v.self.ConfirmAfter = vip.Dead, v.now
			v.pass(2500*time.Millisecond, false)
		}, Expiring},
		{"one of the others is no longer dead", 4, func(v *view) {
			v.set(well.is(vip.Suspect), 4, 4)
			v.pass(1100*time.Millisecond, false)
			v.set(well.is(vip.Dead), 4, 4)
		}, Renewing}, // it has given up
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := newView(tt.nodes)
			v.set(cut, 2, tt.nodes/2)
			v.set(well.is(vip.Dead), tt.nodes/2+1, tt.nodes)
			v.gateway = vip.Alive
			v.pass(time.Minute, false)
			tt.do(v)
			v.gateway = vip.Alive
			v.pass(time.Minute, false)
			if v.d.Verdict != tt.want || tt.want == Holding && !v.self.ConfirmAfter.IsZero() {
				t.Errorf("%s (%s), not confirmed since %v; want %s", v.d.Verdict, v.d.EndEpoch, v.self.ConfirmAfter, tt.want)
			}
		})
	}
}

// A node that is stopped again and again is not confirmed, and says so after two seconds.
func TestStoppedAgainAndAgain(t *testing.T) {
	v := newView(3)
	v.set(cut, 2, 3)
	v.pass(time.Minute, false)
	for range 5 {
		v.self.ConfirmAfter = v.now
		v.pass(800*time.Millisecond, false)
	}
	if v.d.Heartbeat.TenureValid || v.self.ConfirmAfter.IsZero() {
		t.Error("still says that it acts on its claims")
	}
}

// Without the API server nothing is moved from a node whose process may be started again, or go on.
func TestMovesWaitForAProcess(t *testing.T) {
	for name, n := range map[string]node{
		"ended": cut.is(vip.Dead).with(func(n *node) { n.ended = true }),
		"hangs": cut.is(vip.Suspect).with(func(n *node) { n.silent = true }),
	} {
		v := newView(4)
		v.set(cut, 2, 4)
		v.pass(30*time.Second, false)
		v.set(n, 4, 4)
		if v.pass(3700*time.Millisecond, false); v.d.Released["n4"] {
			t.Errorf("%s: released before its VIPs end", name)
		}
		if v.pass(100*time.Millisecond, false); !v.d.Released["n4"] || v.d.AnswersUntil["n4"].IsZero() {
			t.Errorf("%s: released %v, answers until %v", name, v.d.Released["n4"], v.d.AnswersUntil["n4"])
		}
	}
}

// TestReleasedTwice: a node that hangs, goes on in its epoch and hangs again is released with a pass each time.
func TestReleasedTwice(t *testing.T) {
	v := newView(4)
	v.set(cut, 2, 4)
	v.pass(30*time.Second, false)
	for i := range 2 {
		v.set(cut.is(vip.Suspect).with(func(n *node) { n.silent = true }), 4, 4)
		for n := 0; n < 100 && !v.d.Released["n4"]; n++ {
			v.pass(50*time.Millisecond, false)
		}
		if !v.d.Released["n4"] || !v.d.Changed {
			t.Errorf("%d: released %v, with a pass %v", i, v.d.Released["n4"], v.d.Changed)
		}
		v.set(cut, 4, 4)
		v.pass(10*time.Second, false)
	}
}

// TestCutOffInANewEpoch: a node that nobody hears any more, and that renews in a new epoch since it was fenced, is given
// nothing until it is heard. One whose process was started again may be, and one that exchanges no heartbeats.
func TestCutOffInANewEpoch(t *testing.T) {
	for name, tt := range map[string]struct {
		ended, neighbor, alive bool
	}{"cut off": {false, true, false}, "started again": {true, true, true}, "without heartbeats": {false, false, true}} {
		v := newView(3)
		v.set(well.is(vip.Dead).with(func(n *node) { n.ended, n.silent, n.gone = tt.ended, true, !tt.ended }), 2, 2)
		v.nextEpoch = map[string]int64{"n2": 2}
		p := v.known["n2"]
		p.Neighbor = tt.neighbor
		v.known["n2"] = p
		v.pass(100*time.Millisecond, true)
		if v.d.Alive["n2"] != tt.alive {
			t.Errorf("%s: alive %v", name, v.d.Alive["n2"])
		}
	}
}

// The API server goes away when this node's watch has shown that the others are fenced, and not yet that they have begun
// their next epochs: they count, since they are heard; alone it would be the majority.
func TestHeardInTheNextEpoch(t *testing.T) {
	for _, agrees := range []bool{true, false} {
		v := newView(3)
		later := func(n *node) { n.fenced, n.epoch, n.agrees = true, 2, agrees }
		v.set(well.with(later), 2, 3)
		v.pass(2*time.Second, true)
		v.set(cut.with(later), 2, 3)
		v.pass(9*time.Second, false)
		if holds := v.d.Verdict == Holding; holds != agrees || v.state.Moving() != agrees {
			t.Errorf("they agree %v: %s, moving %v", agrees, v.d.Verdict, v.state.Moving())
		}
	}
}
