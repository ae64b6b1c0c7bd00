package plan

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// cluster is n nodes that plan alone, each on a view of the claims that may lag.
type cluster struct {
	rules Rules
	world vip.World // Claims is the truth
	views map[string]map[vip.Key]vip.Claim
}

func newCluster(nodes int, services []vip.Service) *cluster {
	c := &cluster{rules: rules(), world: world(services...), views: map[string]map[vip.Key]vip.Claim{}}
	c.world.Members = nil
	for i := range nodes {
		name := fmt.Sprintf("n%02d", i)
		c.world.Members = append(c.world.Members, vip.Member{Name: name, Epoch: 1, Alive: true, Heard: true, Info: info(true)})
		c.views[name] = map[vip.Key]vip.Claim{}
	}
	return c
}

// planAndClaim lets one node plan on its view and write at most n claims, by compare-and-swap on the truth: what it loses it learns.
func (c *cluster) planAndClaim(node string, n int) {
	w := c.world
	w.Self, w.Claims = node, c.views[node]
	for _, o := range Make(c.rules, w).Owners {
		if o.Node != node || c.views[node][o.Unit].Valid || n == 0 {
			continue
		}
		n--
		if now := c.world.Claims[o.Unit]; now.Valid {
			c.views[node][o.Unit] = now
			continue
		}
		claim := vip.Claim{Holder: node, Valid: true}
		c.world.Claims[o.Unit], c.views[node][o.Unit] = claim, claim
	}
}

// learn shows a node some of what it does not know yet.
func (c *cluster) learn(node string, r *rand.Rand, share float64) {
	for k, claim := range c.world.Claims {
		if r.Float64() < share {
			c.views[node][k] = claim
		}
	}
}

func services(n int) []vip.Service {
	var all []vip.Service
	for i := range n {
		all = append(all, svc(fmt.Sprintf("s%04d", i), fmt.Sprintf("10.77.%d.%d", 1+i/250, 1+i%250)))
	}
	return all
}

// A burst of Services is shared evenly although every node plans alone on a view of the claims, and of the Services, that lags behind.
func TestSpread(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		all := services(100)
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		c := newCluster(3, nil)
		for len(c.world.Claims) < len(all) {
			c.world.Services = all[:min(len(all), len(c.world.Services)+r.IntN(20))]
			m := c.world.Members[r.IntN(3)].Name
			c.planAndClaim(m, 1+r.IntN(10))
			c.learn(m, r, r.Float64())
			if r.IntN(50) == 0 { // nobody waits for ever for what it has not seen
				for _, m := range c.world.Members {
					c.learn(m.Name, r, 1)
				}
			}
		}
		counts := map[string]int{}
		for _, claim := range c.world.Claims {
			counts[claim.Holder]++
		}
		for node, n := range counts {
			if n < 32 || n > 34 {
				t.Errorf("seed %d: node %s holds %d of 100, want 33 +-1 (%v)", seed, node, n, counts)
			}
		}
	}
}

// Whatever the claims say, two nodes never bind the same VIP, but for a hand-over.
func TestNeverTwice(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		all := services(12)
		for i := range all {
			s := &all[i]
			s.Addresses[0] = addr(fmt.Sprintf("10.77.1.%d", 1+r.IntN(8)))
			s.Ports[0].Port = uint16(80 + r.IntN(3))
			if r.IntN(3) == 0 {
				s.Local, s.Endpoints.Ready = true, []string{fmt.Sprintf("n%02d", r.IntN(4))}
			}
			if r.IntN(4) == 0 {
				s.Lease = fmt.Sprintf("l%d", r.IntN(3))
			}
			if r.IntN(3) == 0 {
				written(fmt.Sprintf("n%02d", r.IntN(4)))(s)
			}
			s.Ignore = r.IntN(8) == 0
		}
		c := newCluster(4, all)
		for i := range all {
			k := all[i].LeaseKey()
			if r.IntN(4) > 0 {
				c.world.Claims[k] = vip.Claim{Holder: fmt.Sprintf("n%02d", r.IntN(5)), Valid: r.IntN(5) > 0, Foreign: r.IntN(10) == 0}
			}
		}
		for i := range c.world.Members {
			c.world.Members[i].Alive = r.IntN(6) > 0
			c.world.Members[i].Info = info(r.IntN(6) > 0)
		}
		owner := map[string]string{}
		for _, m := range c.world.Members {
			w := c.world
			w.Self = m.Name
			p := Make(c.rules, w)
			for _, a := range p.Addresses {
				if other := owner[a.Addr.String()]; other != "" {
					t.Fatalf("seed %d: %s is bound on %s and on %s", seed, a.Addr, other, m.Name)
				}
				owner[a.Addr.String()] = m.Name
				if c := w.Claims[a.Lease]; !c.Valid || c.Holder != m.Name {
					t.Fatalf("seed %d: %s binds %s without a valid claim on %s", seed, m.Name, a.Addr, a.Lease)
				}
			}
			if !slices.IsSortedFunc(p.Verdicts, func(a, b vip.Verdict) int { return a.Service.Compare(b.Service) }) {
				t.Fatalf("seed %d: verdicts are not sorted", seed)
			}
		}
	}
}

// A pass over 10 000 Services on 100 nodes; steady (all held), and at worst (all free).
func BenchmarkMake(b *testing.B) {
	for _, free := range []bool{false, true} {
		b.Run(fmt.Sprintf("free=%v", free), func(b *testing.B) {
			c := newCluster(100, services(10000))
			for i, s := range c.world.Services {
				if !free {
					c.world.Claims[key("kubevip-"+s.Key.Name)] = vip.Claim{Holder: fmt.Sprintf("n%02d", i%100), Valid: true}
				}
			}
			w := c.world
			w.Self = "n07"
			for b.Loop() {
				Make(c.rules, w)
			}
		})
	}
}

// All nodes must come to the same, of every version: to what hash/fnv makes of a name.
func TestHash(t *testing.T) {
	for _, k := range []vip.Key{{}, {Name: "a"}, {Namespace: "default", Name: "http1"}, {Namespace: "dé", Name: "x-9"}} {
		want := fnv.New64a()
		want.Write([]byte(k.String()))
		check.Equal(t, hashKey(k), want.Sum64(), "the hash of %q", k)
	}
}

// A node that is isolated keeps what it has while it knows of no node that could have it, and takes nothing else.
func TestIsolated(t *testing.T) {
	tests := []struct {
		name   string
		change func(w *vip.World)
		keeps  bool
	}{
		{"alone", func(*vip.World) {}, true},
		{"another is alive", func(w *vip.World) { w.Members[1].Alive = true }, true},
		{"another is alive, and it rejoins", func(w *vip.World) { w.Members[1].Alive, w.Members[0].Rejoining = true, true }, true},
		{"another is alive, and isolated, too", func(w *vip.World) { w.Members[1].Alive, w.Members[1].Info.Isolated = true, true }, true},
		{"its link is down", func(w *vip.World) { w.Members[0].Info = info(false); w.Members[0].Info.Isolated = true }, false},
		{"it stops", func(w *vip.World) { w.Stopping = true }, false},
	}
	for _, tt := range tests {
		r := rules()
		w := bind(r, held(world(svc("a", "10.77.0.50", written("n1")), svc("b", "10.77.0.51")), "a", "n1"))
		w.Members[0].Info.Isolated = true
		for i := range w.Members[1:] {
			w.Members[1+i].Alive = false
		}
		tt.change(&w)
		p := Make(r, w)
		if got := len(p.Addresses) == 1 && p.Addresses[0].Addr == addr("10.77.0.50"); got != tt.keeps || !tt.keeps && len(p.Addresses) > 0 {
			t.Errorf("%s: keeps a %v, want %v\n%s", tt.name, got, tt.keeps, summary(p))
		}
		check.Equal(t, ownerOf(p, "a") == "n2", tt.name == "another is alive", "%s: hands over", tt.name)
	}
}

// A new unit goes to the node with the lowest rank, however many units that has.
func TestRankBeforeCount(t *testing.T) {
	tests := []struct {
		name   string
		n1, n2 func(w *vip.World, m *vip.Member) // n1 has no unit, n2 has two
		want   string
	}{
		{name: "both well: the fewest units", want: "n1"},
		{name: "one restart is none", n1: restarted(1), want: "n1"},
		{name: "restarts", n1: restarted(2), want: "n2"},
		{name: "both restart: the fewest units", n1: restarted(2), n2: restarted(5), want: "n1"},
		{name: "restarts, before stalled", n1: stalled, n2: restarted(6), want: "n2"},
		{name: "restarts, before a faulty data plane", n1: faulty, n2: restarted(6), want: "n2"},
		{name: "not ready", n1: notReady, want: "n2"},
		{name: "not ready, before restarts", n1: restarted(2), n2: notReady, want: "n2"},
		{name: "a faulty data plane", n1: faulty, want: "n2"},
		{name: "both faulty: the fewest units", n1: faulty, n2: faulty, want: "n1"},
		{name: "a faulty data plane, before stalled", n1: stalled, n2: faulty, want: "n2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := held(held(world(svc("a", "10.77.0.50"), svc("b", "10.77.0.51"), svc("new", "10.77.0.52", younger)), "a", "n2"), "b", "n2")
			w.Members = slices.Delete(w.Members, 2, 3)
			for i, f := range []func(*vip.World, *vip.Member){tt.n1, tt.n2} {
				if f != nil {
					f(&w, &w.Members[i])
				}
			}
			for _, self := range []string{"n1", "n2"} { // both come to the same
				w.Self = self
				check.Equal(t, ownerOf(Make(rules(), w), "new"), tt.want, "%s expects it on", self)
			}
		})
	}
}

func restarted(times int) func(*vip.World, *vip.Member) {
	return func(_ *vip.World, m *vip.Member) { m.Info.Restarts = make([]int64, times) }
}

func stalled(_ *vip.World, m *vip.Member) { m.Stalled = true }

func notReady(w *vip.World, m *vip.Member) {
	w.Nodes = allNodes(vip.Node{Name: m.Name, NotReady: true})
}

// faulty says that the data plane of a node has a fault, and has had it for long enough to act if it is this node's.
func faulty(w *vip.World, m *vip.Member) {
	m.Info.DataPlaneFault = "kube-proxy is gone"
	if m.Name == w.Self {
		w.DataPlaneFault = m.Info.DataPlaneFault
	}
}

func unproven(_ *vip.World, m *vip.Member) { m.Info.DataPlaneUnproven = true }

// What n1 holds leaves it for a fault of its data plane, if another node is better.
func TestDataPlaneFault(t *testing.T) {
	const (
		serves = "\nbind 10.77.0.50/32 dev eth0\nstatus a 10.77.0.50(VIP)\na: VIPAnnounced"
		event  = "\nevent a VIPAnnounced"
		keeps  = "kubevip-a -> n1" + serves + event
		gives  = "kubevip-a -> "
	)
	n := func(name string, f func(*vip.World, *vip.Member)) func(*vip.World) {
		return func(w *vip.World) { f(w, memberNamed(w, name)) }
	}
	both := func(fs ...func(*vip.World)) func(*vip.World) {
		return func(w *vip.World) { *w = with(*w, fs...) }
	}
	tests := []struct {
		name   string
		change func(*vip.World)
		want   string
	}{
		{"none", func(*vip.World) {}, keeps},
		{"a fault", n("n1", faulty), gives + "n2" + serves + event},
		{"another node has one", n("n2", faulty), keeps},
		{"the others don't know of it yet", both(n("n1", faulty), func(w *vip.World) { w.DataPlaneFault = "" }), keeps},
		{"all have one", both(n("n1", faulty), n("n2", faulty), n("n3", faulty)), keeps},
		{"the others have just begun", both(n("n1", faulty), n("n2", unproven), n("n3", unproven)), keeps},
		{"one has just begun", both(n("n1", faulty), n("n2", unproven)), gives + "n3" + serves + event},
		{"the only node without one is stalled", both(n("n1", faulty), n("n2", faulty), n("n3", stalled)), keeps},
		{"the only node without one is drained", both(n("n1", faulty), n("n2", faulty), func(w *vip.World) {
			w.Nodes = allNodes(vip.Node{Name: "n3", Drained: true})
		}), keeps},
		{"the only node without one restarts and is not ready", both(n("n1", faulty), n("n2", faulty), n("n3", restarted(3)), n("n3", notReady)), gives + "n3" + serves + event},
		{"a renewal is late", both(n("n1", faulty), func(w *vip.World) { w.Tenure.RenewalLateSince = w.Now.Add(-time.Second) }), "kubevip-a -> n1" + serves},
		{"not ready alone", n("n1", notReady), keeps},
		{"restarts alone", n("n1", restarted(6)), keeps},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := bind(rules(), held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1"))
			w.Members[2].Info = info(true)
			tt.change(&w)
			diff(t, summary(Make(rules(), w)), tt.want)
		})
	}
}

// What n1 holds and advertises leaves it when its BGP sessions have been down for a while, for a node that has had one for as long. What is free goes to a node that may have one.
func TestLostSessions(t *testing.T) {
	up, down := vip.BGPSession{State: vip.Established, Lasting: true}, vip.BGPSession{State: "down", Lasting: true}
	sessions := map[string][]vip.BGPSession{
		"up": {down, up}, "back": {down, {State: vip.Established}}, "ended": {{State: "down"}, down}, "lost": {down, down}, "none": nil,
	}
	bgp, both := bgpRules(withElection), bgpRules(withElection, withARP)
	table := bgpRules(withElection, func(r *Rules) { r.RoutingTable = 198 })
	for _, tt := range []struct {
		name  string
		rules Rules
		nodes string // the sessions of n1, n2 and n3
		want  string // who is to have what n1 holds, and what is free
	}{
		{"all have one", bgp, "up up up", "n1 n3"},
		{"lost", bgp, "lost up up", "n2 n3"},
		{"both ways", both, "lost up up", "n2 n3"},
		{"by ARP alone", rules(), "lost up up", "n1 n3"},
		{"ended a moment ago", bgp, "ended up up", "n1 n3"},
		{"another node has lost its own", bgp, "up up lost", "n1 n2"},
		{"all others have", bgp, "up lost lost", "n1 n1"},
		{"all have", bgp, "lost lost lost", "n1 n3"},
		{"all have, and one has one again", bgp, "lost back lost", "n1 n2"},
		{"... for a while", bgp, "lost up lost", "n2 n2"},
		{"... and so has this one", bgp, "back up lost", "n1 n2"},
		{"the others are not known to have one", bgp, "lost none none", "n1 n3"},
		{"one node has had one for longer than another", bgp, "lost back up", "n3 n2"},
		{"a routing table, too", table, "lost up up", "n1 n3"},
	} {
		w := held(world(svc("a", "10.77.0.50", written("n1")), svc("free", "10.77.0.51", younger)), "a", "n1")
		for i, s := range strings.Fields(tt.nodes) {
			w.Members[i].Info.BGPSessions = sessions[s]
			w.Members[i].Info.Options = &vip.NodeOptions{Services: true, ARP: tt.rules.ARP, BGP: true, RoutingTable: tt.rules.RoutingTable, CommonOptions: tt.rules.CommonOptions}
		}
		w.BGPSessions = w.Members[0].Info.BGPSessions
		p := Make(tt.rules, w)
		check.Equal(t, ownerOf(p, "a")+" "+ownerOf(p, "free"), tt.want, "%s", tt.name)
	}
}

// What a node announces by ARP is of use only in its network: a node whose link is in it has it, as long as there is one.
func TestNodeOffLink(t *testing.T) {
	for _, tt := range []struct {
		name  string
		rules Rules
		off   string // nodes without an address on eth1
		link  string // of VIPs
		want  string // who is to have what n1 holds, and what is free
	}{
		{"all are in the network", rules(), "", "eth1", "n1 n3"},
		{"the owner has lost its address", rules(), "n1", "eth1", "n2 n3"},
		{"... with the link by address", rules(), "n1", "auto", "n2 n3"},
		{"another node has", rules(), "n3", "auto", "n1 n2"},
		{"all have", rules(), "n1 n2 n3", "auto", "n1 n3"},
		{"the others have", rules(), "n2 n3", "eth1", "n1 n1"},
		{"routers send by address", bgpRules(withElection, withARP), "n1", "eth1", "n1 n3"},
	} {
		on := func(s *vip.Service) { s.Interface = tt.link }
		w := held(world(svc("a", "10.99.0.50", written("n1"), on), svc("free", "10.99.0.51", younger, on)), "a", "n1")
		for name := range strings.FieldsSeq(tt.off) {
			memberNamed(&w, name).Info.Links[1].Prefixes = nil
		}
		p := Make(tt.rules, w)
		check.Equal(t, ownerOf(p, "a")+" "+ownerOf(p, "free"), tt.want, "%s", tt.name)
	}
}

// ownerOf is the node that is to have a Service; "" if the plan has none.
func ownerOf(p vip.Plan, name string) string {
	for _, o := range p.Owners {
		if o.Unit == key("kubevip-"+name) {
			return o.Node
		}
	}
	return ""
}

// heldByN1 is n Services, all held by n1, and the other nodes stable.
func heldByN1(n int) vip.World {
	var all []vip.Service
	for i := range n {
		all = append(all, svc(fmt.Sprintf("s%d", i), fmt.Sprintf("10.77.0.%d", 50+i), func(s *vip.Service) { s.Created = epoch.Add(time.Duration(i) * time.Second) }))
	}
	w := world(all...)
	for _, s := range all {
		w = held(w, s.Key.Name, "n1")
	}
	for i := range w.Members {
		w.Members[i].Stable = true
	}
	return w
}

// handOvers is what the plan gives away.
func handOvers(p vip.Plan) string {
	var all []string
	for _, o := range p.Owners {
		if o.Node != "" && o.Node != "n1" && !o.Stays {
			all = append(all, o.Unit.Name+" to "+o.Node)
		}
	}
	return strings.Join(all, ", ")
}

func TestRebalance(t *testing.T) {
	tests := []struct {
		name   string
		n      int
		change func(*Rules, *vip.World)
		want   string
	}{
		{name: "the youngest, one at a time", n: 4, want: "kubevip-s3 to n2"},
		{name: "not without the option", n: 4, change: func(r *Rules, _ *vip.World) { r.Rebalance = false }},
		{name: "a difference of one is none", n: 1},
		{name: "not to a node that came back just now", n: 4, change: func(_ *Rules, w *vip.World) { w.Members[1].Stable = false }, want: "kubevip-s3 to n3"},
		{name: "not to a stalled one", n: 4, change: func(_ *Rules, w *vip.World) { w.Members[1].Stalled, w.Members[2].Stable = true, false }},
		{name: "the next once the last has arrived", n: 4, change: func(_ *Rules, w *vip.World) {
			w.HandingOver[key("kubevip-s3")] = vip.HandingOver{Successor: "n2", Since: w.Now, Until: w.Now.Add(time.Second)}
		}},
		{name: "not while the API server is away", n: 4, change: func(_ *Rules, w *vip.World) { w.Tenure.RenewalLateSince = w.Now }},
		{name: "the youngest is another's", n: 5, change: func(_ *Rules, w *vip.World) { *w = held(*w, "s4", "n2") }, want: "kubevip-s3 to n3"},
		{name: "only where it may be", n: 4, change: func(_ *Rules, w *vip.World) {
			for i := range w.Services {
				w.Services[i].Local, w.Services[i].Endpoints = true, vip.Endpoints{Ready: []string{"n1", "n3"}}
			}
		}, want: "kubevip-s3 to n3"},
		{name: "a drained node hands over all, and evenly", n: 4, change: func(_ *Rules, w *vip.World) {
			w.Nodes = []vip.Node{{Name: "n1", Drained: true}, {Name: "n2"}, {Name: "n3"}}
		}, want: "kubevip-s0 to n3, kubevip-s1 to n2, kubevip-s2 to n2, kubevip-s3 to n3"},
		{name: "so does one that stops", n: 4, change: func(_ *Rules, w *vip.World) { w.Stopping = true },
			want: "kubevip-s0 to n3, kubevip-s1 to n2, kubevip-s2 to n2, kubevip-s3 to n3"},
		{name: "to a drained node goes nothing", n: 4, change: func(_ *Rules, w *vip.World) {
			w.Nodes = []vip.Node{{Name: "n1"}, {Name: "n2", Drained: true}, {Name: "n3"}}
		}, want: "kubevip-s3 to n3"},
		{name: "a node that is being shut down hands over all", n: 2, change: func(_ *Rules, w *vip.World) {
			w.Nodes = []vip.Node{{Name: "n1", ShuttingDown: true}, {Name: "n2", ShuttingDown: true}, {Name: "n3"}}
		}, want: "kubevip-s0 to n3, kubevip-s1 to n3"},
		{name: "... though the other's data plane is not proven yet", n: 1, change: func(_ *Rules, w *vip.World) {
			w.Nodes, w.Members = []vip.Node{{Name: "n1", ShuttingDown: true}, {Name: "n2"}}, w.Members[:2]
			w.Members[1].Info.DataPlaneUnproven = true
		}, want: "kubevip-s0 to n2"},
		{name: "but not if all are", n: 1, change: func(_ *Rules, w *vip.World) {
			w.Nodes = []vip.Node{{Name: "n1", ShuttingDown: true}, {Name: "n2", ShuttingDown: true}, {Name: "n3", ShuttingDown: true}}
		}},
		{name: "what came from a node that returns goes back", n: 4, change: func(r *Rules, w *vip.World) {
			r.Rebalance = false
			w.Nodes = []vip.Node{{Name: "n1"}, {Name: "n2", ReturnUntil: w.Now.Add(time.Minute)}, {Name: "n3"}}
			for _, name := range []string{"s0", "s2"} {
				c := w.Claims[key("kubevip-"+name)]
				c.PreviousHolder = "n2"
				w.Claims[key("kubevip-"+name)] = c
			}
		}, want: "kubevip-s0 to n2, kubevip-s2 to n2"},
		{name: "until its time is over", n: 4, change: func(r *Rules, w *vip.World) {
			r.Rebalance = false
			w.Nodes = allNodes(vip.Node{Name: "n2", ReturnUntil: w.Now})
			w.Claims[key("kubevip-s0")] = vip.Claim{Holder: "n1", Valid: true, PreviousHolder: "n2"}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, w := rules(), heldByN1(tt.n)
			r.Rebalance = true
			if tt.change != nil {
				tt.change(&r, &w)
			}
			check.Equal(t, handOvers(Make(r, w)), tt.want, "it gives")
		})
	}
}
