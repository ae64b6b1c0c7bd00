package pool

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// configMaps are what the operator of the random test changes between.
var configMaps = [][]string{
	{"cidr-global=10.0.0.0/28"},
	{"cidr-global=10.0.0.0/28,2001:db8::/124", "search-order=desc"},
	{"cidr-global=10.0.0.8/29,2001:db8::8/125", "cidr-ns2=10.0.0.0/28", "allow-share-ns1=true", "allow-share-ns2=true"},
	{"pool-a=10.0.0.0/29", "pool-a.namespaces=ns1,ns2", "pool-b=10.0.0.4-10.0.0.19,2001:db8::/124", "range-ns3=10.0.0.1-10.0.0.3"},
	{"pool-a=10.0.0.0/29", "pool-a.services=tier=gold", "pool-b=10.9.0.0/28", "pool-b.auto=false", "cidr-global=broken"},
	{},
}

// TestRandomOrders: whatever users, operators, restarts, delayed and lost writes do in whatever
// order, no Service is given an address that another one has without consent, and none loses what
// it was allocated but by a change of itself, or to another that has it, too.
func TestRandomOrders(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 50
	}
	for seed := range uint64(seeds) {
		r := randomWorld{rand: rand.New(rand.NewPCG(seed, 1)), changed: make(map[vip.Key]bool)}
		r.world = newWorld(t, time.Duration(seed%3)*time.Minute, configMaps[0]...)
		for step := range 120 {
			before := maps.Clone(r.services)
			did := r.step()
			r.check(before, fmt.Sprintf("seed %d, step %d: %s", seed, step, did))
			if t.Failed() {
				return
			}
		}
	}
}

type randomWorld struct {
	*world
	rand    *rand.Rand
	changed map[vip.Key]bool // Services that their users changed in this step
}

// pick is a Service there is, or "".
func (r *randomWorld) pick() string {
	keys := slices.SortedFunc(maps.Keys(r.services), vip.Key.Compare)
	if len(keys) == 0 {
		return ""
	}
	return keys[r.rand.IntN(len(keys))].String()
}

// change changes a Service as a user may.
func (r *randomWorld) change(name string) {
	ns, short, _ := cut(name)
	r.changed[vip.Key{Namespace: ns, Name: short}] = true
	r.set(name, func(q *Request) {
		switch r.rand.IntN(7) {
		case 0:
			q.Addresses, q.Allocated = addrs(fmt.Sprintf("10.0.0.%d", r.rand.IntN(20))), "" // by hand
		case 1:
			q.Addresses, q.Allocated = nil, "" // annotations removed
		case 2:
			q.SharingKey = []string{"", "k", "l"}[r.rand.IntN(3)]
		case 3:
			q.Ports = []vip.Port{{Protocol: "TCP", Port: uint16(80 + r.rand.IntN(4))}}
		case 4:
			q.Families, q.DualStack = [][]vip.Family{{vip.IPv4}, {vip.IPv6}, {vip.IPv6, vip.IPv4}}[r.rand.IntN(3)], vip.DualStack(r.rand.IntN(3))
		case 5:
			q.Pools = [][]string{nil, {"a"}, {"b", "a"}}[r.rand.IntN(3)]
		case 6:
			q.Labels = map[string]string{"tier": "gold"}
		}
	})
}

func cut(name string) (ns, short string, ok bool) {
	for i := range name {
		if name[i] == '/' {
			return name[:i], name[i+1:], true
		}
	}
	return "", "", false
}

// step does one thing and says which.
func (r *randomWorld) step() string {
	clear(r.changed)
	name := r.pick()
	switch n := r.rand.IntN(20); {
	case n < 6 || name == "":
		name = fmt.Sprintf("ns%d/s%d", 1+r.rand.IntN(3), r.rand.IntN(9))
		r.change(name)
		return "changed " + name
	case n < 8:
		ns, short, _ := cut(name)
		delete(r.services, vip.Key{Namespace: ns, Name: short})
		r.a.Delete(vip.Key{Namespace: ns, Name: short}, r.now)
		return "deleted " + name
	case n < 9:
		r.edit(configMaps[r.rand.IntN(len(configMaps))]...)
		return "edited the ConfigMap"
	case n < 10:
		r.restart()
		return "restarted"
	case n < 11:
		r.now = r.now.Add(time.Duration(r.rand.IntN(90)) * time.Second)
		return "waited"
	case n < 12:
		r.reserved = []vip.ReservedRange{{Prefix: netip.MustParsePrefix(fmt.Sprintf("10.0.0.%d/30", 4*r.rand.IntN(4)))}}
		r.a.SetReserved(r.reserved)
		return "reserved " + r.reserved[0].Prefix.String()
	}
	r.write()
	return "wrote"
}

// write has some of what is decided written; the others are lost and decided again.
func (r *randomWorld) write() {
	all := r.a.Decide(r.now)
	r.rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, d := range all {
		if len(d.Addresses) == 0 || r.rand.IntN(3) == 0 {
			continue
		}
		for _, x := range d.Addresses {
			if by, ok := r.taken(d.Service, x); ok {
				r.t.Errorf("%s is given %s, which %s has without consent", d.Service, x, by)
			}
		}
		r.changed[d.Service] = false
		r.world.write(d)
	}
}

// taken is who else has x without consent.
func (r *randomWorld) taken(k vip.Key, x netip.Addr) (vip.Key, bool) {
	s := r.services[k]
	if s == nil || slices.Contains(s.Addresses, x) { // it has it already
		return vip.Key{}, false
	}
	for o, q := range r.services {
		if o != k && slices.Contains(q.Addresses, x) && !r.consent(s, q, x) {
			return o, true
		}
	}
	return vip.Key{}, false
}

// consent reports whether both may have x by what they and the operator say now.
func (r *randomWorld) consent(s, q *Request, x netip.Addr) bool {
	key := s.SharingKey != "" && s.SharingKey == q.SharingKey && s.Service.Namespace == q.Service.Namespace
	return s.Ports[0] != q.Ports[0] && (key || r.pools.MayShare(x, s.Service.Namespace, q.Service.Namespace))
}

// check compares with before the step: an address that was allocated and is gone from a
// Service that its user did not change was another's, too.
func (r *randomWorld) check(before map[vip.Key]*Request, what string) {
	for k, b := range before {
		s := r.services[k]
		if s == nil || b.Allocated == "" || s.UID != b.UID || r.userDeed(b, s) {
			continue
		}
		for _, x := range b.Addresses {
			if slices.Contains(s.Addresses, x) || !slices.Contains(b.Families, vip.FamilyOf(x)) || len(b.Pools) > 0 {
				continue
			}
			if !r.sharedBefore(before, b, x) {
				r.t.Errorf("%s: %s lost %s: %v, then %v", what, k, x, *b, *s)
			}
		}
	}
}

// userDeed reports whether a user took the address away in this step.
func (r *randomWorld) userDeed(b, s *Request) bool { return r.changed[b.Service] || s.Allocated == "" }

// sharedBefore reports whether another had x as well.
func (r *randomWorld) sharedBefore(before map[vip.Key]*Request, b *Request, x netip.Addr) bool {
	for k, o := range before {
		if k != b.Service && slices.Contains(o.Addresses, x) {
			return true
		}
	}
	return false
}

// TestEveryOrderComesToTheSame: Services told in any order to a new Allocator keep what they have,
// those without addresses get the same.
func TestEveryOrderComesToTheSame(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.0/24,2001:db8::/120", "allow-share-b=true")
	for i := range 60 {
		ns := []string{"a", "b"}[i%2]
		w.set(fmt.Sprintf("%s/s%d", ns, i), func(r *Request) {
			r.Ports = []vip.Port{{Protocol: "TCP", Port: uint16(i % 7)}}
			if i%3 == 0 {
				r.Addresses, r.Allocated = addrs(fmt.Sprintf("10.0.0.%d", i/6+1)), "cidr-global"
			}
			if i%5 == 0 {
				r.Families, r.DualStack = []vip.Family{vip.IPv6, vip.IPv4}, vip.RequireDualStack
			}
		})
	}
	var first []vip.Assignment
	for i := range 20 {
		w.restart() // in the order of a map
		got := w.a.Decide(w.now)
		if i == 0 {
			first = got
		}
		if fmt.Sprint(got) != fmt.Sprint(first) {
			t.Fatalf("got\n%v\nthe first time\n%v", got, first)
		}
	}
}

// manyServices is n Services of a cluster with 20 pools of /16.
func manyServices(b testing.TB, n int) *Allocator {
	var lines []string
	for i := range 20 {
		lines = append(lines, fmt.Sprintf("cidr-ns%d=10.%d.0.0/16", i, i))
	}
	p, problems := Parse(nil, data(lines...))
	if len(problems) > 0 {
		b.Fatal(problems)
	}
	a := NewAllocator(time.Minute)
	a.SetPools(p)
	for i := range n {
		a.Set(manyService(i), start)
	}
	return a
}

func manyService(i int) Request {
	return Request{
		Service: vip.Key{Namespace: fmt.Sprintf("ns%d", i%20), Name: fmt.Sprintf("s%d", i)}, UID: fmt.Sprint(i), Created: start.Add(time.Duration(i) * time.Second),
		Families: []vip.Family{vip.IPv4}, Ports: []vip.Port{{Protocol: "TCP", Port: 80}},
	}
}

func BenchmarkAllocateAll(b *testing.B) {
	for b.Loop() {
		if n := len(manyServices(b, 10000).Decide(start)); n != 10000 {
			b.Fatal(n)
		}
	}
}

// One Service comes, is given an address, and goes, while 10,000 others have theirs.
func BenchmarkOneChange(b *testing.B) {
	a := manyServices(b, 10000)
	for _, d := range a.Decide(start) {
		var i int
		fmt.Sscanf(d.Service.Name, "s%d", &i)
		r := manyService(i)
		r.Addresses, r.Allocated = d.Addresses, d.Pool
		a.Set(r, start)
	}
	a.Decide(start)
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		r := manyService(10000)
		a.Set(r, now)
		d := a.Decide(now)
		if len(d) != 1 || len(d[0].Addresses) != 1 {
			b.Fatal(d)
		}
		r.Addresses, r.Allocated = d[0].Addresses, d[0].Pool
		a.Set(r, now)
		a.Decide(now)
		a.Delete(r.Service, now)
		a.Decide(now)
	}
}

// 10,000 Services wait for a pool that has ten addresses; one of those that have one goes.
func BenchmarkManyWait(b *testing.B) {
	p, _ := Parse(nil, data("cidr-global=10.0.0.0-10.0.0.10"))
	a := NewAllocator(time.Minute)
	a.SetPools(p)
	for i := range 10000 {
		a.Set(manyService(i), start)
	}
	now := start
	for b.Loop() {
		now = now.Add(time.Second)
		for _, d := range a.Decide(now) {
			if len(d.Addresses) > 0 {
				a.Delete(d.Service, now)
				break
			}
		}
	}
}
