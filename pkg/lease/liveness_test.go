package lease

import (
	"bytes"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A network is what heartbeats tell each node of the others, without delay.
type network struct {
	mu         sync.Mutex
	nodes      map[string]*node
	heartbeats map[string]vip.Heartbeat
	seen       map[[2]string]vip.PeerStatus
	gateway    map[string]vip.Liveness // by node

	gatewayAsked int
	withoutHash  string       // a node that does not hear on which moves others agree; "": none
	log          *slog.Logger // of nodes that join; nil: none
	transfers    bool         // nodes that join understand transfers, and fence without any
	livenessOff  bool         // nodes that join say on their node leases that they exchange no heartbeats
}

func newNetwork() *network {
	return &network{nodes: map[string]*node{}, heartbeats: map[string]vip.Heartbeat{}, seen: map[[2]string]vip.PeerStatus{}, gateway: map[string]vip.Liveness{}}
}

// join runs a node that sees the others and is seen by them.
func (a *network) join(t *testing.T, s *leasetest.Server, name string) *node {
	t.Helper()
	n, run := newNode(t, s, name, func(o *Options) {
		o.Peers, o.Gateway = view{a, name}, view{a, name}
		if a.log != nil {
			o.Log = a.log
		}
		if a.transfers {
			o.Successors = func(func(*vip.World)) map[vip.Key]vip.Successor { return nil }
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

func (v view) Off() string { return "" }

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
			if of == a.withoutHash {
				s.Heartbeat.StateHash, s.Heartbeat.ProposalHash = a.heartbeats[of].StateHash, 0
			}
			all[pair[1]] = s
		}
	}
	return all
}

// hashes sets whether a node hears on which moves the others agree.
func (a *network) hashes(of string, hears bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.withoutHash = of; hears {
		a.withoutHash = ""
	}
}

func (a *network) announce(name string, c vip.Heartbeat) {
	a.mu.Lock()
	changed := a.heartbeats[name] != c
	a.heartbeats[name] = c
	for pair, s := range a.seen {
		if pair[1] == name && s.Liveness == vip.Alive {
			s.Heartbeat = c
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
	a.mu.Lock()
	s := a.seen[[2]string{from, to}]
	s.Liveness, s.Since, s.Overdue = state, time.Now(), false
	if state == vip.Alive {
		s.Heartbeat = a.heartbeats[to]
	}
	a.seen[[2]string{from, to}] = s
	n := a.nodes[from]
	a.mu.Unlock()
	n.Wake()
}

// setOverdue makes the heartbeat of one node (to) overdue for another, until setLiveness.
func (a *network) setOverdue(from, to string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.seen[[2]string{from, to}]
	s.Overdue = true
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

// waitServes waits until the node serves, and returns how long that took.
func waitServes(t *testing.T, n *node, name string, limit time.Duration) time.Duration {
	t.Helper()
	return check.True(t, limit, n.name+" serves "+name, func() bool { return n.serves(name) })
}

// three is n1, which has the Service a, and n2 and n3, which would take it: n2 first.
func three(t *testing.T, a *network, s *leasetest.Server) (n1, n2, n3 *node) {
	n1, n2, n3 = a.join(t, s, "n1"), a.join(t, s, "n2"), a.join(t, s, "n3")
	time.Sleep(time.Second)
	n1.want("a")
	time.Sleep(time.Second)
	n2.want("a")
	n3.world()
	n3.Put([]vip.LeaseIntent{{Lease: lk("a"), Action: vip.Follow, ExpectedHolder: "n2"}})
	time.Sleep(5 * time.Second)
	if !n1.serves("a") {
		t.Fatalf("n1 does not serve\n%s", s)
	}
	return n1, n2, n3
}

// two is n1, which has the Service a, and n2, which would take it.
func two(t *testing.T, a *network, s *leasetest.Server) (n1, n2 *node) {
	n1, n2 = a.join(t, s, "n1"), a.join(t, s, "n2")
	time.Sleep(time.Second)
	n1.want("a")
	time.Sleep(time.Second)
	n2.want("a")
	time.Sleep(5 * time.Second)
	return n1, n2
}

// setGatewayAlive has the default gateway answer a node from now on.
func (a *network) setGatewayAlive(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gateway[node] = vip.Alive
}

func TestDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2, _ := three(t, a, s)
		n1.kill()
		before := s.Writes()
		a.setBetween(vip.Dead, "n1")
		if took := waitServes(t, n2, "a", time.Minute); took > 100*time.Millisecond {
			t.Errorf("taken over after %v, want two writes", took)
		}
		if writes := s.Writes() - before; writes > 2+3 { // a fence, a claim, and maybe a renewal of each node
			t.Errorf("%d writes for one VIP", writes)
		}
	})
}

// A node that is cut off from the LAN sees the others die one by one. It fences none of
// them: the heartbeats of those that are still alive are overdue.
func TestCutOffFromLAN(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		three(t, a, s)
		a.join(t, s, "n0")                               // the first that may fence
		time.Sleep(5*time.Second + 300*time.Millisecond) // not when they renew
		epochs := func() (all []int64) {
			for _, node := range []string{"n1", "n2", "n3"} {
				x := s.Lease(vip.Key{Namespace: "kube-system", Name: NodePrefix + node})
				all = append(all, transitions(x), fencedEpoch(x))
			}
			return all
		}
		before := epochs()
		others := []string{"n1", "n2", "n3"}
		for _, node := range others {
			a.setOverdue("n0", node)
		}
		for _, node := range others {
			a.setLiveness("n0", node, vip.Dead)
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		if after := epochs(); !slices.Equal(after, before) {
			t.Errorf("epochs, and those that are over, were %v, and are %v", before, after)
		}
	})
}

// Of two nodes the one that is left waits until the gateway has answered, and no longer.
func TestDeadOfTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2 := two(t, a, s)
		n1.kill()
		a.setBetween(vip.Dead, "n1")
		time.Sleep(200 * time.Millisecond)
		if n2.serves("a") {
			t.Error("taken over before the gateway has answered")
		}
		a.setGatewayAlive("n2")
		n2.Wake()
		if took := waitServes(t, n2, "a", time.Minute); took > 100*time.Millisecond {
			t.Errorf("taken over %v after the gateway has answered, want two writes", took)
		}
	})
}

// The leader of etcd dies with the node: no request is answered until there is another.
func TestDeadWithEtcdLeader(t *testing.T) {
	const election = 1500 * time.Millisecond
	for phase := time.Duration(0); phase < period; phase += 200 * time.Millisecond { // of the renewal period
		synctest.Test(t, func(t *testing.T) {
			a, s := newNetwork(), leasetest.NewServer()
			n1, n2, n3 := three(t, a, s)
			time.Sleep(phase)
			n1.kill()
			for _, n := range []*node{n2, n3} {
				n.way.SetFaults(func(f *leasetest.Faults) { f.Cut = true })
			}
			time.Sleep(400 * time.Millisecond) // until it is found dead
			a.setBetween(vip.Dead, "n1")
			time.Sleep(election - 400*time.Millisecond)
			for _, n := range []*node{n2, n3} {
				n.way.SetFaults(func(f *leasetest.Faults) { f.Cut = false })
			}
			if took := waitServes(t, n2, "a", time.Minute); took > time.Second {
				t.Errorf("%v into a period: taken over %v after the election, want a second at most", phase, took)
			}
		})
	}
}

func TestSuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2, n3 := three(t, a, s)
		a.setBetween(vip.Suspect, "n1")
		neverTwo(t, t.Context(), "a", newGroup(n1, n2, n3))
		time.Sleep(time.Minute)
		if !n1.serves("a") {
			t.Errorf("a node whose port is blocked lost its VIP\n%s", s)
		}
		if m := n2.NodeInfos()["n3"].Suspects; len(m) != 1 || m[0] != "n1" {
			t.Errorf("n3 suspects %v, want n1", m)
		}
	})
}

// A node that no longer reaches two others fences neither and carries nothing, until it
// reaches them again.
func TestIsolated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2, n3 := three(t, a, s)
		a.setBetween(vip.Dead, "n1")
		waitServes(t, n2, "a", time.Second)
		time.Sleep(time.Minute)
		if n1.serves("a") || !n2.serves("a") || n3.serves("a") {
			t.Errorf("n1, n2, n3 serve: %v, %v, %v; want n2\n%s", n1.serves("a"), n2.serves("a"), n3.serves("a"), s)
		}
		if !n2.NodeInfos()["n1"].Isolated {
			t.Error("n1 does not say that it is isolated")
		}
		a.setBetween(vip.Alive, "n1")
		time.Sleep(quorum.RejoinTime + 2*stepPeriod + time.Second)
		if n2.NodeInfos()["n1"].Isolated {
			t.Error("n1 still says that it is isolated")
		}
	})
}

// Of two nodes the one whose gateway answers fences; without one the lease decides.
func TestTwoNodes(t *testing.T) {
	for _, gateway := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a, s := newNetwork(), leasetest.NewServer()
			n1, n2 := two(t, a, s)
			if gateway {
				a.setGatewayAlive("n2")
			}
			n1.kill()
			a.setBetween(vip.Dead, "n1")
			took := waitServes(t, n2, "a", time.Minute)
			if gateway != (took < time.Second) {
				t.Errorf("gateway %v: taken over after %v", gateway, took)
			}
		})
	}
}

// A node that can't renew while others do yields: they take over, and never do two serve.
func TestYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2, n3 := three(t, a, s)
		neverTwo(t, t.Context(), "a", newGroup(n1, n2, n3))
		n1.way.SetFaults(func(f *leasetest.Faults) { f.Cut = true })
		if took := waitServes(t, n2, "a", time.Minute); took > deadline-time.Second {
			t.Errorf("taken over after %v, want less than the renew deadline", took)
		}
		n1.way.SetFaults(func(f *leasetest.Faults) { f.Cut = false })
		time.Sleep(20 * time.Second)
		if n1.serves("a") || !n2.serves("a") {
			t.Errorf("n1 serves %v, n2 serves %v; want n2\n%s", n1.serves("a"), n2.serves("a"), s)
		}
	})
}

// A node that was fenced and can't read that is told by heartbeats.
func TestToldByHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2, n3 := three(t, a, s)
		n1.way.SetFaults(func(f *leasetest.Faults) { f.Cut = true })
		a.setBetween(vip.Dead, "n1")
		waitServes(t, n2, "a", time.Second)
		if !n1.serves("a") {
			t.Fatal("n1 has given up already")
		}
		a.setBetween(vip.Alive, "n1")
		time.Sleep(100 * time.Millisecond)
		if n1.serves("a") {
			t.Error("n1 goes on serving what n2 has")
		}
		neverTwo(t, t.Context(), "a", newGroup(n1, n2, n3))
		time.Sleep(30 * time.Second)
	})
}

func cutFromAPI(nodes ...*node) {
	for _, n := range nodes {
		n.way.SetFaults(func(f *leasetest.Faults) { f.Cut = true })
	}
}

func reconnectAPI(nodes ...*node) {
	for _, n := range nodes {
		n.way.SetFaults(func(f *leasetest.Faults) { f.Cut = false })
	}
}

// What the log says holds: of a link that is down, a node that is cut off, and VIPs that are kept without the API server.
func TestLogSaysWhatHolds(t *testing.T) {
	info := vip.NodeInfo{Interface: "eth0", Links: []vip.Link{{Name: "eth0", Up: true}}}
	if text := isolatedText(&info); !strings.Contains(text, "though its link is up") {
		t.Error(text)
	}
	info.Links[0].Up = false
	if text := isolatedText(&info); !strings.HasPrefix(text, "the VIPs' link eth0 of this node is down") {
		t.Error(text)
	}
	logOf := func(act func(a *network, n1, n2, n3 *node)) (text string) {
		synctest.Test(t, func(t *testing.T) {
			var b bytes.Buffer
			a, s := newNetwork(), leasetest.NewServer()
			a.log = slog.New(slog.NewTextHandler(&b, nil)) // nodes write one after the other
			n1, n2, n3 := three(t, a, s)
			act(a, n1, n2, n3)
			time.Sleep(time.Minute)
			synctest.Wait()
			text = b.String()
		})
		return text
	}
	isolated := logOf(func(a *network, n1, n2, n3 *node) { a.setBetween(vip.Dead, "n1") })
	if strings.Contains(isolated, "could not be renewed in time") || !strings.Contains(isolated, "the node lease is lost") {
		t.Errorf("a node that is cut off from the LAN, and fenced:\n%s", isolated)
	}
	holding := logOf(func(a *network, n1, n2, n3 *node) { cutFromAPI(n1, n2, n3) })
	if strings.Count(holding, "VIPs stay where they are") != 3 || strings.Contains(holding, "gives up its VIPs") {
		t.Errorf("without the API server:\n%s", holding)
	}
}

// Without the API server nothing moves for hours, nor when it is back.
func TestHoldsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2, n3 := three(t, a, s)
		before := s.Lease(lk("a")).ResourceVersion
		if a.gatewayAsked > 0 {
			t.Error("the gateway was asked while all is well")
		}
		cutFromAPI(n1, n2, n3)
		for range 3 * 60 {
			time.Sleep(time.Minute)
			if !n1.serves("a") {
				t.Fatal("n1 gave up")
			}
		}
		reconnectAPI(n1, n2, n3)
		for range 400 {
			time.Sleep(100 * time.Millisecond)
			if !n1.serves("a") {
				t.Fatalf("n1 gave up when the API server came back\n%s", s)
			}
		}
		if got := s.Lease(lk("a")).ResourceVersion; got != before {
			t.Errorf("the VIP lease was written\n%s", s)
		}
	})
}

// A minority without the API server gives up, and moves nothing.
func TestMinority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n1, n2, n3 := three(t, a, s)
		cutFromAPI(n1, n2, n3)
		time.Sleep(time.Minute)
		a.setBetween(vip.Dead, "n1", "n3")
		a.setLiveness("n1", "n3", vip.Dead)
		a.setLiveness("n3", "n1", vip.Dead)
		time.Sleep(3 * time.Second)
		for _, n := range []*node{n1, n2, n3} {
			if n.serves("a") {
				t.Errorf("%s serves alone", n.name)
			}
		}
		reconnectAPI(n1, n2, n3)
		a.setBetween(vip.Alive, "n1")
		a.setBetween(vip.Alive, "n2")
		a.setBetween(vip.Alive, "n3")
		group := newGroup(n1, n2, n3)
		neverTwo(t, t.Context(), "a", group)
		time.Sleep(time.Minute)
		if !n1.serves("a") && !n2.serves("a") {
			t.Errorf("nobody serves when all is well again\n%s", s)
		}
	})
}

// The owner dies while the API server is away: the others agree on who has its
// VIP, and write it down when the API server is back.
func TestMovesWithoutTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n2, n3 := moves(t, a, s)
		if w := n3.world(); w.Claims[lk("a")].Holder != "n2" {
			t.Errorf("n3 takes %q for the owner", w.Claims[lk("a")].Holder)
		}
		reconnectAPI(n2, n3)
		for range 10 {
			agents(t, time.Second, n2, n3)
			if !n2.serves("a") || n3.serves("a") {
				t.Fatalf("n2 serves %v, n3 serves %v when the API server is back; want n2\n%s", n2.serves("a"), n3.serves("a"), s)
			}
		}
		if got := holder(s.Lease(lk("a"))); got != "n2" {
			t.Errorf("the lease names %q, want n2\n%s", got, s)
		}
	})
}

// Nothing moves that they have proposed differently.
func TestNoAgreement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, s := newNetwork(), leasetest.NewServer()
		n2, n3 := ownerDies(t, a, s)
		for range 100 {
			n2.want("a")
			n3.want("a")
			time.Sleep(50 * time.Millisecond)
			if n2.serves("a") || n3.serves("a") {
				t.Fatal("moved although they do not agree")
			}
		}
	})
}

func TestStable(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	p := &peer{}
	p.setAlive(true, now)
	if p.stable(now.Add(stableAfter - time.Second)) {
		t.Error("stable at once")
	}
	if !p.stable(now.Add(stableAfter)) {
		t.Error("not stable after a while")
	}
	for range 3 {
		now = now.Add(time.Minute)
		p.setAlive(false, now)
		p.setAlive(true, now)
	}
	if p.stable(now.Add(7*stableAfter)) || !p.stable(now.Add(8*stableAfter)) {
		t.Error("three breaks do not make it wait eight times as long")
	}
	p.setAlive(true, now.Add(forgetAfter+time.Second))
	if p.breaks != 0 {
		t.Error("breaks are not forgotten")
	}
}
