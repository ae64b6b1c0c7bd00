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

// TestRandomOrders: whatever users, operators, restarts, delayed and lost writes do in whatever order, no Service is given an address that
// another one has without consent, and none loses what it was allocated but by a change of itself, or to another that has it, too.
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
	r.changed[keyOf(name)] = true
	r.set(name, func(q *vip.AddressRequest) {
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
		r.remove(name)
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
		r.reserve(fmt.Sprintf("10.0.0.%d/30", 4*r.rand.IntN(4)))
		return "reserved " + r.reserved[0].String()
	}
	r.write()
	return "wrote"
}

// write has some of what is decided written; the others are lost and decided again.
func (r *randomWorld) write() {
	all := slices.Clone(r.pass())
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
		lost := !slices.ContainsFunc(r.last.holders[x], func(s *service) bool { return s.Key == o })
		if o != k && slices.Contains(q.Addresses, x) && !lost && !r.consent(s, q, x) {
			return o, true
		}
	}
	return vip.Key{}, false
}

// consent reports whether both may have x by what they and the operator say now.
func (r *randomWorld) consent(s, q *vip.AddressRequest, x netip.Addr) bool {
	key := s.SharingKey != "" && s.SharingKey == q.SharingKey && s.Key.Namespace == q.Key.Namespace
	return s.Ports[0] != q.Ports[0] && (key || r.pools.MayShare(x, s.Key.Namespace, q.Key.Namespace))
}

// check compares with before the step: an address that was allocated and is gone from a
// Service that its user did not change was another's, too.
func (r *randomWorld) check(before map[vip.Key]*vip.AddressRequest, what string) {
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
func (r *randomWorld) userDeed(b, s *vip.AddressRequest) bool {
	return r.changed[b.Key] || s.Allocated == ""
}

// sharedBefore reports whether another had x as well.
func (r *randomWorld) sharedBefore(before map[vip.Key]*vip.AddressRequest, b *vip.AddressRequest, x netip.Addr) bool {
	for k, o := range before {
		if k != b.Key && slices.Contains(o.Addresses, x) {
			return true
		}
	}
	return false
}

// TestEveryOrderComesToTheSame: Services told in any order to a new Allocator keep what they have, those without addresses get the same.
func TestEveryOrderComesToTheSame(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.0/24,2001:db8::/120", "allow-share-b=true")
	for i := range 60 {
		ns := []string{"a", "b"}[i%2]
		w.set(fmt.Sprintf("%s/s%d", ns, i), func(r *vip.AddressRequest) {
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
		got := w.pass()
		if i == 0 {
			first = got
		}
		if fmt.Sprint(got) != fmt.Sprint(first) {
			t.Fatalf("got\n%v\nthe first time\n%v", got, first)
		}
	}
}
