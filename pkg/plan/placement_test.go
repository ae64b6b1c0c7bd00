package plan

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
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
		c.world.Members = append(c.world.Members, vip.Member{Name: name, Epoch: 1, Alive: true, Info: info(true)})
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
			k := c.rules.leaseForTest(all[i])
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

// leaseForTest is the lease of one Service by the documented names.
func (r Rules) leaseForTest(s vip.Service) vip.Key {
	if s.Lease != "" {
		return key(s.Lease)
	}
	return key("kubevip-" + s.Key.Name)
}

// Successors of a node that stops are spread over the others.
func TestSuccessorsSpread(t *testing.T) {
	c := newCluster(3, services(90))
	for i, s := range c.world.Services {
		c.world.Claims[key("kubevip-"+s.Key.Name)] = vip.Claim{Holder: fmt.Sprintf("n%02d", i%3), Valid: true}
	}
	w := c.world
	w.Self, w.Stopping = "n00", true
	to := map[string]int{}
	for _, o := range Make(c.rules, w).Owners {
		if w.Claims[o.Unit].Holder == w.Self {
			to[o.Node]++
		}
	}
	if to["n01"] != 15 || to["n02"] != 15 {
		t.Errorf("successors %v, want 15 each on n01 and n02", to)
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
		if got := hashKey(k); got != want.Sum64() {
			t.Errorf("%q: %x, want %x", k, got, want.Sum64())
		}
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
		handsOver := slices.ContainsFunc(p.Owners, func(o vip.Owner) bool { return o.Unit == key("kubevip-a") && o.Node == "n2" })
		if want := tt.name == "another is alive"; handsOver != want {
			t.Errorf("%s: hands over %v, want %v", tt.name, handsOver, want)
		}
	}
}
