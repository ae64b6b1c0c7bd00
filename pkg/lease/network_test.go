package lease

import (
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/vip"
)

// A network is what heartbeats tell each node of the others, without delay.
type network struct {
	api        *leasetest.Server
	mu         sync.Mutex
	nodes      map[string]*node
	heartbeats map[string]vip.Heartbeat
	seen       map[[2]string]vip.PeerStatus
	gateway    map[string]vip.Liveness // by node
	lost       map[string]bool         // nodes that have lost the address of heartbeats

	gatewayAsked int
	log          *slog.Logger         // of nodes that join; nil: none
	offUntil     map[string]time.Time // by node: it has no socket before
	livenessOff  bool                 // nodes that join say on their node leases that they exchange no heartbeats
}

func newNetwork(s *leasetest.Server) *network {
	return &network{
		api: s, nodes: map[string]*node{}, heartbeats: map[string]vip.Heartbeat{},
		seen: map[[2]string]vip.PeerStatus{}, gateway: map[string]vip.Liveness{}, lost: map[string]bool{},
		offUntil: map[string]time.Time{},
	}
}

// join runs a node that sees the others and is seen by them.
func (a *network) join(t *testing.T, s *leasetest.Server, name string) *node {
	t.Helper()
	n, run := newNode(t, s, name, func(o *Options) {
		o.Peers, o.Gateway = view{a, name}, view{a, name}.Liveness
		if a.log != nil {
			o.Log = a.log
		}
		if a.livenessOff {
			o.Info = func() vip.NodeInfo { return vip.NodeInfo{Interface: "eth0", LivenessOff: "there is no key"} }
		}
	})
	a.mu.Lock()
	for other := range a.nodes {
		a.seen[[2]string{name, other}] = vip.PeerStatus{Liveness: vip.Alive, Since: time.Now(), Heartbeat: a.heartbeats[other]}
		a.seen[[2]string{other, name}] = vip.PeerStatus{Liveness: vip.Alive, Since: time.Now()}
	}
	a.nodes[name] = n
	a.mu.Unlock()
	run(func(error) {}) // the API server may be away when it ends
	return n
}

// A view is the network as one node sees it.
type view struct {
	*network
	of string
}

func (v view) Statuses() map[string]vip.PeerStatus { return v.statuses(v.of) }

func (v view) Off() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Now().Before(v.offUntil[v.of]) {
		return "there is no key yet"
	}
	return ""
}

func (v view) AddressLost() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.lost[v.of]
}

func (v view) SetHeartbeat(h vip.Heartbeat) { v.announce(v.of, h) }

func (v view) Liveness(time.Time) vip.Liveness {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gatewayAsked++
	return v.gateway[v.of]
}

func (a *network) statuses(of string) map[string]vip.PeerStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string]vip.PeerStatus{}
	for pair, s := range a.seen {
		if pair[0] == of {
			if n := a.nodes[pair[1]]; s.Liveness == vip.Alive && n != nil && !n.ended.Load() {
				s.HeardAt = time.Now()
				a.seen[pair] = s
			}
			all[pair[1]] = s
		}
	}
	return all
}

func (a *network) announce(name string, h vip.Heartbeat) {
	a.mu.Lock()
	if n := a.nodes[name]; n != nil && n.ended.Load() {
		a.mu.Unlock()
		return
	}
	changed := a.heartbeats[name] != h
	a.heartbeats[name] = h
	for pair, s := range a.seen {
		if pair[1] == name && s.Liveness == vip.Alive {
			s.Heartbeat = h
			a.seen[pair] = s
		}
	}
	nodes := maps.Clone(a.nodes)
	a.mu.Unlock()
	if changed {
		for other, n := range nodes {
			if other != name {
				n.Wake()
			}
		}
	}
}

// setLiveness sets the Liveness of one node (to) as another (from) sees it.
func (a *network) setLiveness(from, to string, state vip.Liveness) {
	var n *node
	a.change(from, to, func(s *vip.PeerStatus) {
		s.Liveness, s.Since, s.Overdue, n = state, time.Now(), false, a.nodes[from]
		if state == vip.Alive {
			s.Heartbeat = a.heartbeats[to]
		}
	})
	n.Wake()
}

// setOverdue makes the heartbeat of one node (to) overdue for another, until setLiveness.
func (a *network) setOverdue(from, to string) {
	a.change(from, to, func(s *vip.PeerStatus) { s.Overdue = true })
}

// setEchoOverdue makes the echoes of one node (to) overdue for another: what that transmits does not arrive.
func (a *network) setEchoOverdue(from, to string) {
	a.change(from, to, func(s *vip.PeerStatus) { s.EchoOverdue = true })
}

// change changes the status of one node (to) as another (from) sees it.
func (a *network) change(from, to string, change func(*vip.PeerStatus)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.seen[[2]string{from, to}]
	change(&s)
	a.seen[[2]string{from, to}] = s
}

// setBetween sets the Liveness of each node of one side for each of the other, both ways.
func (a *network) setBetween(state vip.Liveness, side ...string) {
	in := map[string]bool{}
	for _, n := range side {
		in[n] = true
	}
	between := func(set func(from, to string)) {
		for from := range a.nodes {
			for to := range a.nodes {
				if in[from] != in[to] {
					set(from, to)
				}
			}
		}
	}
	if state == vip.Dead { // while one is found dead after the other, the heartbeats of all are overdue
		between(a.setOverdue)
	}
	between(func(from, to string) { a.setLiveness(from, to, state) })
}

// setGatewayAlive has the default gateway answer a node from now on.
func (a *network) setGatewayAlive(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gateway[node] = vip.Alive
}

// three is n1, which has the unit a, and n2 and n3, which both plan it for n2 if n1 has it no more.
func three(t *testing.T, a *network, s *leasetest.Server) (n1, n2, n3 *node) {
	t.Helper()
	n1, n2, n3 = a.join(t, s, "n1"), a.join(t, s, "n2"), a.join(t, s, "n3")
	time.Sleep(time.Second)
	n1.want("a")
	time.Sleep(time.Second)
	n2.want("a")
	n3.planFor("n2", "a")
	time.Sleep(5 * time.Second)
	if !n1.serves("a") {
		t.Fatalf("n1 does not serve\n%s", s.Trace(10))
	}
	return n1, n2, n3
}

// two is n1, which has the unit a, and n2, which takes it if n1 has it no more.
func two(t *testing.T, a *network, s *leasetest.Server) (n1, n2 *node) {
	t.Helper()
	n1, n2 = a.join(t, s, "n1"), a.join(t, s, "n2")
	time.Sleep(time.Second)
	n1.want("a")
	time.Sleep(time.Second)
	n2.want("a")
	time.Sleep(5 * time.Second)
	return n1, n2
}

// ownerDies is n2 and n3 when the API server has been away for a while, and n1, which has the unit a, has just died.
func ownerDies(t *testing.T, a *network, s *leasetest.Server) (n2, n3 *node) {
	t.Helper()
	n1, n2, n3 := three(t, a, s)
	cutFromAPI(n1, n2, n3)
	time.Sleep(time.Minute)
	n1.kill()
	a.setBetween(vip.Dead, "n1")
	return n2, n3
}

// moves is ownerDies, and n2 has taken over.
func moves(t *testing.T, a *network, s *leasetest.Server) (n2, n3 *node) {
	t.Helper()
	n2, n3 = ownerDies(t, a, s)
	time.Sleep(time.Second)
	if !n2.serves("a") || n3.serves("a") {
		t.Fatalf("n2 serves %v, n3 serves %v; want n2", n2.serves("a"), n3.serves("a"))
	}
	return n2, n3
}

// withNetwork runs a test with a network, and its API server.
func withNetwork(t *testing.T, test func(t *testing.T, a *network, s *leasetest.Server)) {
	t.Helper()
	withServer(t, func(t *testing.T, s *leasetest.Server) { test(t, newNetwork(s), s) })
}

// withThree runs a test with three.
func withThree(t *testing.T, test func(t *testing.T, a *network, n1, n2, n3 *node)) {
	t.Helper()
	withNetwork(t, func(t *testing.T, a *network, s *leasetest.Server) {
		n1, n2, n3 := three(t, a, s)
		test(t, a, n1, n2, n3)
	})
}
