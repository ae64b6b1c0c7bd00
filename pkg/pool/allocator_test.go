package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

var start = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// A world is the API server's Services beside what an allocator remembers.
type world struct {
	t        testing.TB
	now      time.Time
	pools    *Pools
	m        *memory
	last     *pass
	services map[vip.Key]*vip.AddressRequest
	number   int // of Services ever
	reserved []vip.Range
	labels   map[string]map[string]string
	others   []netip.Addr // by other hosts, for one pass
}

func newWorld(t testing.TB, rest time.Duration, lines ...string) *world {
	w := &world{t: t, now: start, m: newMemory(rest), services: make(map[vip.Key]*vip.AddressRequest)}
	w.edit(lines...)
	return w
}

// edit replaces the ConfigMap.
func (w *world) edit(lines ...string) { w.pools, _ = Parse(w.pools, data(lines...)) }

// reserve replaces what is reserved.
func (w *world) reserve(prefixes ...string) {
	w.reserved = nil
	for _, p := range prefixes {
		w.reserved = append(w.reserved, vip.RangeOf(netip.MustParsePrefix(p)))
	}
}

// keyOf is the Key of namespace/name, or of a name in the namespace ns.
func keyOf(name string) vip.Key {
	ns, short, found := strings.Cut(name, "/")
	if !found {
		ns, short = "ns", name
	}
	return vip.Key{Namespace: ns, Name: short}
}

// set creates a Service, a second after the one before, or changes it.
func (w *world) set(name string, change func(r *vip.AddressRequest)) {
	k := keyOf(name)
	r := w.services[k]
	if r == nil {
		w.number++
		r = &vip.AddressRequest{Service: &vip.Service{
			Key: k, UID: fmt.Sprint(w.number), Created: start.Add(time.Duration(w.number) * time.Second), Families: []vip.Family{vip.IPv4}, Ports: tcp(80),
		}}
	}
	w.services[k] = changed(r, change)
}

// changed is a copy of a request that is changed.
func changed(r *vip.AddressRequest, change func(r *vip.AddressRequest)) *vip.AddressRequest {
	c, s := *r, *r.Service
	c.Service = &s
	if change != nil {
		change(&c)
	}
	return &c
}

// remove deletes a Service, and has that seen.
func (w *world) remove(name string) {
	delete(w.services, keyOf(name))
	w.pass()
}

// restart has another allocator go on with what is on the Services.
func (w *world) restart() { w.m = newMemory(w.m.rest) }

// pass has the allocator decide once, told of the Services in no order.
func (w *world) pass() []vip.Assignment {
	in := vip.PoolInput{Allocate: true, Now: w.now, Source: &vip.PoolSource{Namespaces: w.labels}, InUse: w.others}
	for _, r := range w.services {
		in.Requests = append(in.Requests, *r)
	}
	judge(w.pools, in.Requests)
	w.last, w.others = decide(w.pools, &in, vip.MergeRanges(w.reserved), w.m), nil
	return w.last.assignments
}

// judge sets Lost of all as a plan does: whose status shows an address has it first, then the oldest, and others only beside those with which they may
// share it.
func judge(pools *Pools, all []vip.AddressRequest) {
	of := make(map[netip.Addr][]*service)
	for i := range all {
		for s, n := newService(&all[i]), 0; n < len(s.Addresses) && !s.Foreign; n++ {
			of[s.Addresses[n]] = append(of[s.Addresses[n]], s)
		}
	}
	for x, services := range of {
		shows := func(s *service) bool { return slices.Contains(s.shown, x) }
		slices.SortFunc(services, func(s, o *service) int {
			if shows(s) != shows(o) {
				return map[bool]int{true: -1, false: 1}[shows(s)]
			}
			return byAge(s, o)
		})
		var has []*service
		for _, s := range services {
			first := slices.IndexFunc(has, func(o *service) bool {
				shared := o.Key.Namespace == s.Key.Namespace || o.SharingKey != "" && o.SharingKey == s.SharingKey || shows(s) ||
					pools.MayShare(x, o.Key.Namespace, s.Key.Namespace)
				return !shared || overlap(o.sortedPorts(), s.sortedPorts())
			})
			if first < 0 {
				has = append(has, s)
				continue
			}
			s.Lost = append(s.Lost, vip.LostAddress{Addr: x, Why: fmt.Sprintf("%s belongs to %s", x, nameFor(s, has[first]))})
		}
	}
}

// write writes one Assignment on its Service.
func (w *world) write(d vip.Assignment) {
	if r := w.services[d.Service]; r != nil && r.UID == d.UID && len(d.Addresses) > 0 {
		w.services[d.Service] = changed(r, func(r *vip.AddressRequest) { r.Addresses, r.Allocated = d.Addresses, d.Pool })
	}
}

// decide has all that is decided written, until nothing more is, and returns who waits and why.
func (w *world) decide() (waits map[string]string) {
	for range 5 {
		waits = make(map[string]string)
		wrote := false
		for _, d := range w.pass() {
			if d.Reason == "" {
				w.t.Fatalf("no reason: %v", d)
			}
			if len(d.Addresses) == 0 {
				waits[d.Service.Name] = d.Reason
				continue
			}
			w.write(d)
			wrote = true
		}
		if !wrote {
			return waits
		}
	}
	w.t.Fatal("it does not come to an end")
	return nil
}

// show puts what Services have into their statuses.
func (w *world) show() {
	for k := range w.services {
		w.set(k.String(), func(r *vip.AddressRequest) { shows(r, r.Addresses...) })
	}
}

// has is what a Service has, with the pools it is of.
func (w *world) has(name string) string {
	r := w.services[keyOf(name)]
	addresses := vip.JoinAddrs(r.Addresses, " ")
	if r.Allocated == "" {
		return addresses
	}
	return addresses + " of " + r.Allocated
}

// expect compares what Services have: "a: 10.0.0.1 of web".
func (w *world) expect(lines ...string) {
	w.t.Helper()
	for _, l := range lines {
		name, want, _ := strings.Cut(l, ": ")
		check.Equal(w.t, w.has(name), want, "%s has", name)
	}
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, x := range texts {
		out = append(out, netip.MustParseAddr(x))
	}
	return out
}

// shows has the status of r show addresses.
func shows(r *vip.AddressRequest, addrs ...netip.Addr) {
	r.Ingress = nil
	for _, x := range addrs {
		r.Ingress = append(r.Ingress, vip.Ingress{Addr: x, Ports: r.Ports})
	}
}

func asks(pools ...string) func(*vip.AddressRequest) {
	return func(r *vip.AddressRequest) { r.Pools = pools }
}

func pinned(texts ...string) func(*vip.AddressRequest) {
	return func(r *vip.AddressRequest) { r.Addresses = addrs(texts...) }
}

func families(d vip.DualStack, f ...vip.Family) func(*vip.AddressRequest) {
	return func(r *vip.AddressRequest) { r.Families, r.DualStack = f, d }
}

func key(k string, port uint16) func(*vip.AddressRequest) {
	return func(r *vip.AddressRequest) { r.SharingKey, r.Ports = k, []vip.Port{{Protocol: "TCP", Port: port}} }
}

func TestAllocation(t *testing.T) {
	four, six := vip.IPv4, vip.IPv6
	for _, tt := range []struct {
		name  string
		pools []string
		do    func(w *world)
		want  []string
		waits string // parts of the reason why the Service x waits
	}{
		{"lowest first, the oldest Service first, .0 and .255 never", []string{"cidr-global=10.0.0.254-10.0.1.2"}, func(w *world) {
			w.set("b", nil)
			w.set("a", nil)
			w.set("c", nil)
		}, []string{"b: 10.0.0.254 of cidr-global", "a: 10.0.1.1 of cidr-global", "c: 10.0.1.2 of cidr-global"}, ""},
		{"highest first", []string{"cidr-global=10.0.0.0/24", "search-order=desc"}, func(w *world) { w.set("a", nil); w.set("b", nil) },
			[]string{"a: 10.0.0.254 of cidr-global", "b: 10.0.0.253 of cidr-global"}, ""},
		{"its namespace's own", []string{"cidr-global=10.0.0.0/24", "cidr-web=10.1.0.0/24"}, func(w *world) { w.set("web/a", nil); w.set("a", nil) },
			[]string{"web/a: 10.1.0.1 of cidr-web", "a: 10.0.0.1 of cidr-global"}, ""},
		{"none for its namespace", []string{"cidr-web=10.1.0.0/24"}, func(w *world) { w.set("x", nil) },
			[]string{"x: "}, "no pool is offered to namespace ns; add the key cidr-ns or cidr-global"},
		{"in use in every namespace, also by classes of others", []string{"cidr-global=10.0.0.0/29", "cidr-web=10.0.0.0/29"}, func(w *world) {
			w.set("a", pinned("10.0.0.1"))
			w.set("b", func(r *vip.AddressRequest) { r.Foreign = true; r.Addresses = addrs("10.0.0.2") })
			w.set("c", nil)
			w.set("web/d", nil)
		}, []string{"a: 10.0.0.1", "b: 10.0.0.2", "c: 10.0.0.3 of cidr-global", "web/d: 10.0.0.4 of cidr-web"}, ""},
		{"nothing to another's class", []string{"cidr-global=10.0.0.0/29"}, func(w *world) { w.set("a", func(r *vip.AddressRequest) { r.Foreign = true }) }, []string{"a: "}, ""},
		{"nothing that is reserved", []string{"cidr-global=10.0.0.0/29"}, func(w *world) {
			w.reserve("10.0.0.0/30", "10.0.0.5/32")
			w.set("a", nil)
			w.set("b", nil)
		}, []string{"a: 10.0.0.4 of cidr-global", "b: 10.0.0.6 of cidr-global"}, ""},
		{"exhausted", []string{"cidr-global=10.0.0.1/32"}, func(w *world) { w.set("a", nil); w.set("x", nil) },
			[]string{"a: 10.0.0.1 of cidr-global", "x: "}, "the pool that is offered to it has no free IPv4 address (cidr-global); add addresses, or delete a Service that has one"},
		{"exhausted, then one goes", []string{"cidr-global=10.0.0.1/32"}, func(w *world) {
			w.set("a", nil)
			w.set("x", nil)
			w.decide()
			w.remove("a")
		}, []string{"x: 10.0.0.1 of cidr-global"}, ""},
		{"DHCP", []string{"cidr-global=0.0.0.0/32"}, func(w *world) { w.set("a", nil); w.set("b", nil) }, []string{"a: 0.0.0.0 of cidr-global", "b: 0.0.0.0 of cidr-global"}, ""},

		{"PreferDualStack takes both, in the order of spec.ipFamilies", []string{"cidr-global=10.0.0.0/24,2001:db8::/64"}, func(w *world) { w.set("a", families(vip.PreferDualStack, six, four)) },
			[]string{"a: 2001:db8::1 10.0.0.1 of cidr-global"}, ""},
		{"PreferDualStack takes what there is, and does not wait", []string{"cidr-global=10.0.0.0/24"}, func(w *world) { w.set("x", families(vip.PreferDualStack, six, four)) },
			[]string{"x: 10.0.0.1 of cidr-global"}, ""},
		{"PreferDualStack gets the second when there is one", []string{"cidr-global=10.0.0.0/24"}, func(w *world) {
			w.set("a", families(vip.PreferDualStack, six, four))
			w.decide()
			w.edit("cidr-global=10.0.0.0/24,2001:db8::/64")
		}, []string{"a: 2001:db8::1 10.0.0.1 of cidr-global"}, ""},
		{"RequireDualStack waits for both", []string{"cidr-global=10.0.0.0/24"}, func(w *world) { w.set("x", families(vip.RequireDualStack, four, six)); w.set("b", nil) },
			[]string{"x: ", "b: 10.0.0.1 of cidr-global"}, "has no free IPv6 address"},
		{"both of one pool if one has both", []string{"pool-a=10.0.0.0/24", "pool-b=10.1.0.0/24,2001:db8::/64"}, func(w *world) { w.set("a", families(vip.RequireDualStack, four, six)) },
			[]string{"a: 10.1.0.1 2001:db8::1 of b"}, ""},
		{"else of two", []string{"pool-a=10.0.0.0/24", "pool-b=2001:db8::/64"}, func(w *world) { w.set("a", families(vip.RequireDualStack, four, six)) },
			[]string{"a: 10.0.0.1 2001:db8::1 of a,b"}, ""},
		{"single stack of either family", []string{"cidr-global=2001:db8::/64"}, func(w *world) { w.set("a", families(vip.SingleStack)) }, []string{"a: 2001:db8::1 of cidr-global"}, ""},
		{"a family that it does not have any more goes", []string{"cidr-global=10.0.0.0/24,2001:db8::/64"}, func(w *world) {
			w.set("a", families(vip.PreferDualStack, four, six))
			w.decide()
			w.set("a", families(vip.SingleStack, four))
		}, []string{"a: 10.0.0.1 of cidr-global"}, ""},

		{"by name", []string{"pool-a=10.0.0.0/24", "pool-b=10.1.0.0/24", "pool-b.auto=false"}, func(w *world) { w.set("a", asks("b")); w.set("b", nil) },
			[]string{"a: 10.1.0.1 of b", "b: 10.0.0.1 of a"}, ""},
		{"by names, the first that has one", []string{"pool-a=10.0.0.1", "pool-b=10.1.0.1"}, func(w *world) { w.set("a", asks("b", "a")); w.set("b", asks("b", "a")) },
			[]string{"a: 10.1.0.1 of b", "b: 10.0.0.1 of a"}, ""},
		{"by a name that is none", []string{"pool-a=10.0.0.0/24"}, func(w *world) { w.set("x", asks("gold")) }, []string{"x: "}, `it asks for pool "gold", which does not exist`},
		{"by name of a pool for others", []string{"pool-a=10.0.0.0/24", "pool-a.namespaces=shop"}, func(w *world) { w.set("x", asks("a")) },
			[]string{"x: "}, "it asks for pool a, which is not offered to namespace ns"},
		{"by name of a key of the provider", []string{"cidr-global=10.0.0.0/24", "cidr-ns=10.1.0.0/24"}, func(w *world) { w.set("a", asks("cidr-global")) }, []string{"a: 10.0.0.1 of cidr-global"}, ""},
		{"priority, then who names the Services, then the namespaces, then the name", []string{"pool-a=10.0.0.0/24", "pool-b=10.1.0.0/24", "pool-b.namespaces=web", "pool-c=10.2.0.0/24", "pool-c.services=tier=gold", "pool-d=10.3.0.0/24", "pool-d.services=tier=new", "pool-d.priority=-1"}, func(w *world) {
			w.set("a", nil)
			w.set("web/b", nil)
			w.set("web/c", func(r *vip.AddressRequest) { r.Labels = map[string]string{"tier": "gold"} })
			w.set("d", func(r *vip.AddressRequest) { r.Labels = map[string]string{"tier": "new"} })
		}, []string{"a: 10.0.0.1 of a", "web/b: 10.1.0.1 of b", "web/c: 10.2.0.1 of c", "d: 10.0.0.2 of a"}, ""},
		{"a pool that can't be read does not pass its Services on", []string{"cidr-ns=10.0.0.0/99", "cidr-global=10.0.0.0/24"}, func(w *world) { w.set("x", nil) },
			[]string{"x: "}, "pool cidr-ns can't be read; correct its keys"},

		{"one address by a key, ports apart", []string{"cidr-global=10.0.0.0/24"}, func(w *world) {
			w.set("a", key("k", 80))
			w.set("b", key("k", 81))
			w.set("c", key("k", 80))
			w.set("d", key("other", 82))
		}, []string{"a: 10.0.0.1 of cidr-global", "b: 10.0.0.1 of cidr-global", "c: 10.0.0.2 of cidr-global", "d: 10.0.0.3 of cidr-global"}, ""},
		{"by allow-share, also of other namespaces, IPv4 only", []string{"cidr-global=10.0.0.0/24,2001:db8::/64", "allow-share-global=true", "allow-share-own=false"}, func(w *world) {
			w.set("a", key("", 80))
			w.set("web/b", key("", 81))
			w.set("own/c", key("", 82))
			w.set("d", families(vip.SingleStack, six))
			w.set("e", func(r *vip.AddressRequest) {
				r.Families, r.Ports = []vip.Family{six}, []vip.Port{{Protocol: "TCP", Port: 81}}
			})
		}, []string{"a: 10.0.0.1 of cidr-global", "web/b: 10.0.0.1 of cidr-global", "own/c: 10.0.0.2 of cidr-global", "d: 2001:db8::1 of cidr-global", "e: 2001:db8::2 of cidr-global"}, ""},
		{"by allow-share of other namespaces only what can be announced together", []string{"cidr-global=10.0.0.0/24", "allow-share-global=true", "interface-link=eth1"}, func(w *world) {
			other := func(port uint16, change func(r *vip.AddressRequest)) func(*vip.AddressRequest) {
				return func(r *vip.AddressRequest) { key("", port)(r); change(r) }
			}
			w.set("a", key("", 80))
			w.set("web/local", other(81, func(r *vip.AddressRequest) { r.Local = true }))
			w.set("web/local2", other(82, func(r *vip.AddressRequest) { r.Local = true }))
			w.set("own/local", other(83, func(r *vip.AddressRequest) { r.Local = true }))
			w.set("own/link", other(84, func(r *vip.AddressRequest) { r.Interface = "eth1" }))
			w.set("link/b", other(85, func(*vip.AddressRequest) {}))
			w.set("web/bgp", other(86, func(r *vip.AddressRequest) { r.BGPAttributes.Communities = []vip.Community{} }))
			w.set("web/lease", other(87, func(r *vip.AddressRequest) { r.Lease = "shared" }))
			w.set("x/same", other(88, func(*vip.AddressRequest) {}))
		}, []string{"a: 10.0.0.1 of cidr-global", "web/local: 10.0.0.2 of cidr-global", "web/local2: 10.0.0.3 of cidr-global", "own/local: 10.0.0.4 of cidr-global", "own/link: 10.0.0.4 of cidr-global",
			"link/b: 10.0.0.5 of cidr-global", "web/bgp: 10.0.0.2 of cidr-global", "web/lease: 10.0.0.2 of cidr-global", "x/same: 10.0.0.1 of cidr-global"}, ""},
		{"... also if they name the link of the pool", []string{"cidr-global=10.0.0.0/24", "allow-share-global=true", "interface-global=eth1"}, func(w *world) {
			other := func(port uint16, link string) func(r *vip.AddressRequest) {
				return func(r *vip.AddressRequest) { key("", port)(r); r.Interface = link }
			}
			w.set("a", other(80, "eth1"))
			w.set("web/b", other(81, "eth1"))
			w.set("own/c", other(82, ""))
			w.set("x/d", other(83, "eth2"))
		}, []string{"a: 10.0.0.1 of cidr-global", "web/b: 10.0.0.1 of cidr-global", "own/c: 10.0.0.1 of cidr-global", "x/d: 10.0.0.2 of cidr-global"}, ""},
		{"two Local ones by a key only", []string{"cidr-global=10.0.0.0/24", "allow-share-global=true"}, func(w *world) {
			w.set("a", func(r *vip.AddressRequest) { key("k", 80)(r); r.Local = true })
			w.set("b", func(r *vip.AddressRequest) { key("k", 81)(r); r.Local = true })
			w.set("c", func(r *vip.AddressRequest) { key("", 82)(r); r.Local = true })
			w.set("d", key("", 83))
		}, []string{"a: 10.0.0.1 of cidr-global", "b: 10.0.0.1 of cidr-global", "c: 10.0.0.2 of cidr-global", "d: 10.0.0.1 of cidr-global"}, ""},
		{"by allow-share beside no Service that names a lease", []string{"cidr-global=10.0.0.0/24", "allow-share-global=true"}, func(w *world) {
			w.set("a", func(r *vip.AddressRequest) { key("", 80)(r); r.Lease = "shared" })
			w.set("web/b", key("", 81))
			w.set("c", key("", 82))
		}, []string{"a: 10.0.0.1 of cidr-global", "web/b: 10.0.0.2 of cidr-global", "c: 10.0.0.1 of cidr-global"}, ""},

		{"by allow-share of another namespace no Service that shares another address by its key", []string{"cidr-global=10.0.0.0/24,2001:db8::/64", "allow-share-global=true"}, func(w *world) {
			w.set("web/a", key("", 80))
			w.set("b", func(r *vip.AddressRequest) { key("k", 81)(r); r.Families = []vip.Family{six} })
			w.set("c", func(r *vip.AddressRequest) {
				key("k", 82)(r)
				r.Families, r.DualStack = []vip.Family{four, six}, vip.RequireDualStack
			})
			w.set("d", func(r *vip.AddressRequest) {
				key("", 83)(r)
				r.Families, r.DualStack = []vip.Family{four, six}, vip.RequireDualStack
			})
		}, []string{"web/a: 10.0.0.1 of cidr-global", "b: 2001:db8::1 of cidr-global", "c: 10.0.0.2 2001:db8::1 of cidr-global", "d: 10.0.0.2 2001:db8::2 of cidr-global"}, ""},

		{"two set by people stay as they are", []string{"cidr-global=10.0.0.0/24"}, func(w *world) { w.set("a", pinned("10.0.0.1")); w.set("b", pinned("10.0.0.1")) },
			[]string{"a: 10.0.0.1", "b: 10.0.0.1"}, ""},
		{"of two that were allocated one the younger moves", []string{"cidr-global=10.0.0.0/24"}, func(w *world) {
			for _, ns := range []string{"ns/a", "web/b"} {
				w.set(ns, func(r *vip.AddressRequest) { r.Addresses, r.Allocated = addrs("10.0.0.7"), "cidr-global" })
			}
		}, []string{"a: 10.0.0.7 of cidr-global", "web/b: 10.0.0.1 of cidr-global"}, ""},
		{"nobody takes an address away by asking for it", []string{"cidr-global=10.0.0.0/24"}, func(w *world) {
			w.set("old", func(r *vip.AddressRequest) { r.Foreign = true })
			w.set("a", nil)
			w.decide()
			w.show()
			w.set("old", func(r *vip.AddressRequest) { r.Foreign = false; r.Addresses = addrs("10.0.0.1") })
		}, []string{"a: 10.0.0.1 of cidr-global", "old: 10.0.0.1"}, ""},

		{"nothing is renumbered: the pool is gone", []string{"cidr-global=10.0.0.0/24"}, func(w *world) {
			w.set("a", nil)
			w.decide()
			w.edit()
			w.restart()
			w.edit("search-order=desc", "cidr-web=10.0.0.0/24")
		}, []string{"a: 10.0.0.1 of cidr-global"}, ""},
		{"... is reserved now", []string{"cidr-global=10.0.0.0/24"}, func(w *world) {
			w.set("a", nil)
			w.decide()
			w.reserve("10.0.0.0/28")
			w.set("b", nil)
		}, []string{"a: 10.0.0.1 of cidr-global", "b: 10.0.0.16 of cidr-global"}, ""},
		{"a released one is given last: the one that rests longest, and at once after its rest", []string{"cidr-global=10.0.0.1-10.0.0.3"}, func(w *world) {
			w.m.rest = time.Hour
			w.set("a", nil)
			w.set("b", nil)
			w.decide()
			w.remove("b")
			w.now = w.now.Add(time.Minute)
			w.remove("a")
			w.set("c", nil)
			w.set("d", nil)
			w.decide()
			w.expect("d: 10.0.0.2 of cidr-global")
			w.remove("d")
			w.now = w.now.Add(59*time.Minute + time.Second)
			w.set("e", nil)
		}, []string{"c: 10.0.0.3 of cidr-global", "e: 10.0.0.1 of cidr-global"}, ""},
		{"of pools that overlap it stays in the one that it asked for, when a family goes", []string{"pool-a=10.0.0.0/24,2001:db8::/64", "pool-b=10.0.0.0/25,2001:db8::/64"}, func(w *world) {
			w.set("a", func(r *vip.AddressRequest) { asks("b")(r); families(vip.PreferDualStack, four, six)(r) })
			w.decide()
			w.show()
			w.set("a", families(vip.SingleStack, four))
		}, []string{"a: 10.0.0.1 of b"}, ""},
		{"a pool is renamed, then asked for by its new name: a later edit renumbers nothing", []string{"pool-web=10.0.0.0/24", "pool-other=10.1.0.0/24"}, func(w *world) {
			w.set("a", asks("web"))
			w.set("b", asks("web"))
			w.decide()
			w.show()
			w.edit("pool-www=10.0.0.0/24", "pool-other=10.1.0.0/24")
			w.decide()
			w.set("a", asks("www"))
			w.set("b", asks("other"))
			w.decide()
			w.expect("a: 10.0.0.1 of www")
			w.edit("pool-www=10.0.2.0/24", "pool-other=10.1.0.0/24")
		}, []string{"a: 10.0.0.1 of www", "b: 10.1.0.1 of other"}, ""},
		{"who names an address of others does not keep those from sharing it", []string{"cidr-global=10.0.0.0/24"}, func(w *world) {
			w.set("tenant/older", pinned("10.0.0.1"))
			w.set("a", func(r *vip.AddressRequest) {
				r.SharingKey, r.Addresses, r.Allocated = "k", addrs("10.0.0.1"), "cidr-global"
				shows(r, r.Addresses...)
			})
			w.set("tenant/x", pinned("10.0.0.1"))
			w.pass()
			w.set("b", key("k", 81))
		}, []string{"b: 10.0.0.1 of cidr-global"}, ""},
		{"what is shown before another address is written is in use, until its Service is deleted", []string{"cidr-global=10.0.0.1-10.0.0.2"}, func(w *world) {
			w.set("a", nil)
			w.pass()
			w.set("a", func(r *vip.AddressRequest) { shows(r, addrs("10.0.0.2")...) })
			w.decide()
			w.set("b", nil)
			w.decide()
			w.expect("a: 10.0.0.1 of cidr-global", "b: ")
			w.remove("a")
			w.set("c", nil)
		}, []string{"b: 10.0.0.1 of cidr-global", "c: 10.0.0.2 of cidr-global"}, ""},
		{"what is reserved is not shared with who names it", []string{"cidr-global=10.0.0.0/24", "allow-share-global=true"}, func(w *world) {
			w.reserve("10.0.0.1/32")
			w.set("tenant/x", func(r *vip.AddressRequest) { r.Addresses, r.Ports, r.SharingKey = addrs("10.0.0.1"), tcp(9999), "k" })
			w.set("other/a", nil)
			w.set("tenant/b", func(r *vip.AddressRequest) { r.SharingKey = "k" })
		}, []string{"other/a: 10.0.0.2 of cidr-global", "tenant/b: 10.0.0.3 of cidr-global"}, ""},
		{"who waits for one family keeps nobody from sharing an address of the other", []string{"cidr-global=10.0.0.1-10.0.0.2", "allow-share-global=true", "allow-share-own=false"}, func(w *world) {
			w.set("own/full", nil)
			w.set("a/one", key("", 80))
			w.set("a/two", key("", 81))
			w.decide()
			w.set("b/waits", func(r *vip.AddressRequest) { key("", 82)(r); families(vip.RequireDualStack, four, six)(r) })
			w.set("c/shares", key("", 83))
		}, []string{"a/two: 10.0.0.2 of cidr-global", "b/waits: ", "c/shares: 10.0.0.2 of cidr-global"}, ""},
		{"who is to have both families, and waits before that is written, has nothing to share by a key", []string{"cidr-global=10.0.0.0/24,2001:db8::/64"}, func(w *world) {
			w.set("x", func(r *vip.AddressRequest) { key("k", 80)(r); families(vip.RequireDualStack, four, six)(r) })
			w.pass()
			w.edit("cidr-global=10.0.0.0/24")
			w.set("b", key("k", 81))
		}, []string{"x: ", "b: 10.0.0.2 of cidr-global"}, "has no free IPv6 address"},
		{"... nor by allow-share", []string{"cidr-global=10.0.0.0/24,2001:db8::/64", "allow-share-global=true"}, func(w *world) {
			w.set("a", asks("gold"))
			w.set("x", families(vip.RequireDualStack, four, six))
			w.pass()
			w.edit("cidr-global=10.0.0.0/24", "allow-share-global=true")
			w.set("a", asks())
			w.set("b", nil)
		}, []string{"a: 10.0.0.2 of cidr-global", "x: ", "b: 10.0.0.3 of cidr-global"}, "has no free IPv6 address"},
		{"one of another UID is another Service", []string{"cidr-global=10.0.0.0/24"}, func(w *world) {
			w.set("a", nil)
			w.decide()
			w.set("a", func(r *vip.AddressRequest) { r.UID, r.Addresses, r.Allocated = "new", nil, "" })
			w.set("b", nil)
		}, []string{"a: 10.0.0.1 of cidr-global", "b: 10.0.0.2 of cidr-global"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 0, tt.pools...)
			tt.do(w)
			waits := w.decide()
			w.expect(tt.want...)
			if why := waits["x"]; (tt.waits == "") != (why == "") || !strings.Contains(why, tt.waits) {
				t.Errorf("x waits: %q, want %q", why, tt.waits)
			}
			w.restart() // changes nothing
			check.Equal(t, (w.decide()["x"] == ""), (tt.waits == ""), "x waits for none after a restart")
			w.expect(tt.want...)
		})
	}
}

func TestReasons(t *testing.T) {
	w := newWorld(t, 0, "cidr-global=10.0.0.0/24")
	w.set("a", nil)
	w.set("b", func(r *vip.AddressRequest) { r.Addresses, r.Allocated = addrs("10.0.0.9"), "cidr-global" })
	w.set("c", func(r *vip.AddressRequest) { r.Addresses, r.Allocated = addrs("10.0.0.9"), "cidr-global" })
	w.set("other/c", func(r *vip.AddressRequest) { r.Addresses, r.Allocated = addrs("10.0.0.9"), "cidr-global" })
	var got []string
	for _, d := range w.pass() {
		got = append(got, d.Service.String()+": "+d.Reason)
	}
	want := []string{
		"ns/a: 10.0.0.1 is of pool cidr-global",
		"ns/c: 10.0.0.9 belongs to Service ns/b; 10.0.0.2 is of pool cidr-global",
		"other/c: 10.0.0.9 belongs to a Service of another namespace; 10.0.0.3 is of pool cidr-global",
	}
	check.Same(t, want, got, "reasons")
}

// What a status shows is given to nobody else, also once its Service names another address and after the rest, be the pool full or not. As
// soon as it is shown no more, a Service that waits is given it.
func TestShownIsNotGiven(t *testing.T) {
	for _, rest := range []time.Duration{0, time.Minute, time.Hour} {
		w := newWorld(t, rest, "cidr-global=10.0.0.1-10.0.0.2")
		w.set("a", nil)
		w.decide()
		w.show()
		w.set("a", func(r *vip.AddressRequest) { r.Addresses, r.Allocated = addrs("192.0.2.1"), "" })
		w.set("x", nil)
		w.set("y", nil)
		w.now = w.now.Add(5 * time.Minute)
		waits := w.decide()
		w.expect("x: 10.0.0.2 of cidr-global", "y: ")
		if waits["y"] == "" {
			t.Errorf("rest %v: y waits for no address", rest)
		}
		w.set("a", func(r *vip.AddressRequest) { r.Labels = map[string]string{"changed": "too"} })
		w.decide()
		w.expect("y: ")
		w.set("a", func(r *vip.AddressRequest) { shows(r, r.Addresses...) })
		w.decide()
		w.expect("y: 10.0.0.1 of cidr-global")
	}
}

// tcp returns ports of TCP.
func tcp(numbers ...uint16) (ports []vip.Port) {
	for _, n := range numbers {
		ports = append(ports, vip.Port{Protocol: "TCP", Port: n})
	}
	return ports
}

// What a Service is to be given and does not have yet (the API server takes no writes, say) it is not given any more once that is not
// offered to it: what it names then no pool would offer it, and it would be refused for ever.
func TestWithdrawnOffers(t *testing.T) {
	blue := map[string]map[string]string{"ns": {"team": "blue"}}
	for _, tt := range []struct {
		name   string
		before []string
		change func(w *world)
		want   string
	}{
		{"the pool is for other namespaces now", []string{"pool-a=10.0.0.1", "pool-a.namespaces=ns"}, func(w *world) { w.edit("pool-a=10.0.0.1", "pool-a.namespaces=other", "pool-b=10.0.0.9") }, "s: 10.0.0.9 of b"},
		{"the namespace has other labels", []string{"pool-a=10.0.0.1", "pool-a.namespaces=team=blue", "pool-b=10.0.0.9", "pool-b.priority=-1"}, func(w *world) { w.labels = nil }, "s: 10.0.0.9 of b"},
		{"the pool gives on request only", []string{"pool-a=10.0.0.1"}, func(w *world) { w.edit("pool-a=10.0.0.1", "pool-a.auto=false", "pool-b=10.0.0.9") }, "s: 10.0.0.9 of b"},
		{"the pool is for other Services", []string{"pool-a=10.0.0.1"}, func(w *world) { w.edit("pool-a=10.0.0.1", "pool-a.services=tier=gold", "pool-b=10.0.0.9") }, "s: 10.0.0.9 of b"},
		{"the pool has other addresses", []string{"pool-a=10.0.0.1"}, func(w *world) { w.edit("pool-a=10.0.1.1", "pool-b=10.0.0.9", "pool-b.priority=1") }, "s: 10.0.0.9 of b"},
		{"another comes first now", []string{"pool-a=10.0.0.1"}, func(w *world) { w.edit("pool-a=10.0.0.1", "pool-b=10.0.0.9", "pool-b.priority=1") }, "s: 10.0.0.1 of a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, 0, tt.before...)
			w.labels = blue
			w.set("s", nil)
			if got := w.pass(); len(got) != 1 || got[0].Pool != "a" {
				t.Fatalf("decided %v, want an address of pool a", got)
			}
			tt.change(w)
			w.decide()
			w.expect(tt.want)
			if n, _ := w.last.usage(w.pools.byName["a"], vip.IPv4); n != map[bool]int{true: 1, false: 0}[tt.want == "s: 10.0.0.1 of a"] {
				t.Error("pool a has an address in use that no Service has")
			}
		})
	}
}

// Services of one sharing key with a thousand ports each are compared without a map of ports for each pair: addresses for all others waited
// seconds for that.
func TestManyPortsOfASharingKey(t *testing.T) {
	w := newWorld(t, 0, "cidr-ns=10.0.0.0/24")
	ports := func(i int) (all []vip.Port) {
		for p := range 1000 {
			all = append(all, vip.Port{Protocol: []string{"TCP", "UDP"}[i%2], Port: uint16(i/2*1000 + p + 1)})
		}
		return all
	}
	for i := range 100 {
		w.set(fmt.Sprint("s", i), func(r *vip.AddressRequest) { r.SharingKey, r.Ports = "k", ports(i) })
	}
	check.Allocates(t, 32<<20, func() {
		w.decide()
		for i := range 10 {
			w.set(fmt.Sprint("t", i), func(r *vip.AddressRequest) { r.SharingKey, r.Ports = "k", ports(99) })
			w.decide()
		}
	})
	check.Equal(t, w.has("s57"), "10.0.0.1 of cidr-ns", "s57 has")
}

// The addresses of a sharing key are listed once for all Services that wait for one, not for each.
func TestManyWaitOfASharingKey(t *testing.T) {
	w := newWorld(t, 0, "cidr-ns=10.0.0.1-10.0.1.244")
	for i := range 1000 {
		w.set(fmt.Sprint("s", i), key("k", 80))
	}
	w.decide()
	var waits map[string]string
	check.Allocates(t, 8<<20, func() { waits = w.decide() })
	check.Equal(t, len(waits), 502, "that wait")
	w.set("z", key("k", 81))
	w.decide()
	check.Equal(t, w.has("z"), "10.0.0.1 of cidr-ns", "another port has")
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
