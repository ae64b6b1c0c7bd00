package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// poolData is the data of a ConfigMap of lines "key=value", with spaces between.
func poolData(lines string) map[string]string {
	data := make(map[string]string)
	for line := range strings.FieldsSeq(lines) {
		k, v, _ := strings.Cut(line, "=")
		data[k] = v
	}
	return data
}

// TestOffered: which addresses Services may ask for by name, by svc_addresses and what pools say; what a Service has
// it keeps, and what it may not have is in use only if its status shows it.
func TestOffered(t *testing.T) {
	const plain = "pool-web=10.77.0.60-10.77.0.69 cidr-global=10.77.0.70/31,0.0.0.0/32"
	const noDHCP = "pool-web=10.77.0.60-10.77.0.69"
	const byNamespace = plain + " pool-kept=10.77.0.80-10.77.0.89 pool-kept.namespaces=team=blue"
	// gateway says that the Service had UPnP until now, and a VIP of that ipMode.
	gateway := func(mode vip.IPMode) func(*vip.Service) {
		return func(s *vip.Service) {
			s.VIPHost = "n2"
			recorded(s, vip.Record{Named: []netip.Addr{addr("10.77.0.60")}})
			s.Ingress = []vip.Ingress{{Addr: addr("10.77.0.60"), IPMode: mode}, {Addr: addr("198.51.100.7"), IPMode: vip.ModeProxy}}
		}
	}
	for _, tt := range []struct {
		name   string
		only   bool
		pools  string // "" for no ConfigMap
		addrs  string
		change func(*vip.Service)
		want   string // "": it may; else what the Event says
	}{
		{"no ConfigMap", false, "", "10.77.0.50", nil, ""},
		{"no pool names a namespace", false, plain, "10.77.0.50", nil, ""},
		{"a pool does", false, byNamespace, "10.77.0.50", nil, ""},
		{"... and the option says pools", true, byNamespace, "10.77.0.50", nil, "10.77.0.50 is of no pool that is offered to the namespace default"},
		{"of a pool for all", false, byNamespace, "10.77.0.60", nil, ""},
		{"of a pool for others", false, byNamespace, "10.77.0.80", nil, "10.77.0.80 is of a pool that is not offered to the namespace default"},
		{"of a pool for this namespace's labels", false, byNamespace, "10.77.0.80", func(s *vip.Service) { s.Key.Namespace = "blue" }, ""},
		{"the option says pools", true, plain, "10.77.0.50", nil, "10.77.0.50 is of no pool"},
		{"... and there is no ConfigMap", true, "", "10.77.0.50", nil, "10.77.0.50 is of no pool"},
		{"a Service keeps what it has", true, "", "10.77.0.50", written("n2"), ""},
		{"... also of ipMode Proxy, with UPnP", true, "", "10.77.0.50", func(s *vip.Service) { written("n2")(s); proxied("10.77.0.50")(s) }, ""},
		{"... but not the address of its gateway", true, "", "198.51.100.7", gateway(vip.ModeVIP), "198.51.100.7 is of no pool"},
		{"... nor beside a VIP of ipMode Proxy", true, "", "198.51.100.7", gateway(vip.ModeProxy), "198.51.100.7 is of no pool"},
		{"DHCP that a pool has", true, plain, "0.0.0.0", nil, ""},
		{"DHCP that no pool has", true, plain, "::", nil, ":: is of no pool"},
		{"... and it had an address of a pool before", true, noDHCP, "0.0.0.0", named("10.77.0.60"), "0.0.0.0 is of no pool"},
		{"... and it has leased an address", true, noDHCP, "0.0.0.0", leased("10.77.0.99"), ""},
		{"... and names that now", true, noDHCP, "10.77.0.99", leased("10.77.0.99"), "10.77.0.99 is of no pool"},
		{"leased by what a pool has, and named now", true, plain, "10.77.0.99", leased("10.77.0.99"), "10.77.0.99 is of no pool"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := poolWorld("n1")
			w.Services = []vip.Service{svc("a", tt.addrs)}
			if tt.change != nil {
				tt.change(&w.Services[0])
			}
			w.Pools.Data, w.Pools.Namespaces = poolData(tt.pools), map[string]map[string]string{"blue": {"team": "blue"}}
			if tt.pools == "" {
				w.Pools = nil
			}
			r := poolRules()
			r.PoolsOnly = tt.only
			f := admit(newFacts(&r, &w))
			s := f.all[0]
			switch got := s.verdict.Message; {
			case tt.want == "" && s.hasVerdict():
				t.Errorf("refused: %s", got)
			case tt.want != "" && (s.verdict.Reason != vip.AddressRefused || !strings.HasPrefix(got, tt.want)):
				t.Errorf("%s %q, want %q", s.verdict.Reason, got, tt.want)
			}
			for _, q := range f.out.Pools[0].Requests {
				if want := tt.want != "" && !addr(tt.addrs).IsUnspecified(); q.Refused != want || want && !q.Foreign {
					t.Errorf("refused %v, foreign %v, want %v", q.Refused, q.Foreign, want)
				}
			}
		})
	}
}

// TestGivenAndNotOfferedAnyMore: a Service that was given an address which no status shows yet, and whose pool is not
// offered to it any more, is given another. What its status shows stays, and so do those of its addresses that are
// offered; what its user has named is refused, however often the user writes it.
func TestGivenAndNotOfferedAnyMore(t *testing.T) {
	given := func(pools string) func(*vip.Service) {
		return func(s *vip.Service) {
			s.Allocated = pools
			recorded(s, vip.Record{Given: slices.Clone(s.Addresses)})
		}
	}
	then := func(addrs string) func(*vip.Service) { // the user has named that since
		return func(s *vip.Service) { s.Addresses = svc("", addrs).Addresses }
	}
	dual := func(s *vip.Service) { s.Families, s.DualStack = []vip.Family{vip.IPv4, vip.IPv6}, vip.RequireDualStack }
	shows := func(addr netip.Addr) func(*vip.Service) {
		return func(s *vip.Service) { s.VIPHost, s.Ingress = "n1", []vip.Ingress{{Addr: addr, IPMode: vip.ModeVIP}} }
	}
	for _, tt := range []struct {
		name string
		s    vip.Service
		web  string // its namespaces, after the edit
		want string // what it is to have
	}{
		{"given", svc("a", "10.77.0.80", given("web")), "other", "[10.77.0.60]"},
		{"given, and its status shows it", svc("a", "10.77.0.80", given("web"), written("n1")), "other", ""},
		{"given, and its status shows one of two", svc("a", "10.77.0.80,fd77::5", given("web"), dual, shows(addr("fd77::5"))), "other", "[10.77.0.60 fd77::5]"},
		{"given two, and one is still offered", svc("a", "10.77.0.60,fd77::5", given("all,web"), dual), "other", "[10.77.0.60 fd77:1::1]"},
		{"named", svc("a", "10.77.0.80"), "other", ""},
		{"named, and it says that it was given", svc("a", "10.77.0.80", func(s *vip.Service) { s.Allocated = "web" }), "other", ""},
		{"named by hand while allocated is left", svc("a", "10.77.0.60", given("all"), written("n1"), then("10.77.0.80")), "other", ""},
		{"named by hand beside what was given", svc("a", "10.77.0.80", given("web"), then("10.77.0.80,10.77.0.81")), "other", ""},
		{"its pool can't be read", svc("a", "10.77.0.80", given("web")), "==", ""},
		{"given, of another class", svc("a", "10.77.0.80", given("web"), func(s *vip.Service) { s.HasClass, s.Class = true, "other" }), "other", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, w := poolRules(), poolWorld("n1")
			r.PoolsOnly = true
			w.Members = w.Members[:1]
			w.Services = []vip.Service{tt.s}
			assigner := pool.NewAssigner(time.Minute, func() {})
			for round, namespaces := range []string{"default,other", tt.web, tt.web, tt.web, tt.web} {
				if namespaces != w.Pools.Data["pool-web.namespaces"] {
					source := *w.Pools
					source.Data = map[string]string{"pool-web": "10.77.0.80/28,fd77::/64", "pool-web.namespaces": namespaces, "pool-all": "10.77.0.60/31,fd77:1::/64", "pool-all.priority": "1"}
					w.Pools = &source
				}
				if namespaces == "==" && round == 1 { // Herald is restarted
					assigner, w.PoolPolicy = pool.NewAssigner(time.Minute, func() {}), nil
				}
				p := Make(r, w)
				assigner.Put(p.Pools)
				assigner.Observe(&w)
				for _, s := range p.Statuses {
					if s.Service == tt.s.Key && round > 0 {
						w.Services[0].SetConditions(s.Conditions)
					}
				}
				got := ""
				for _, x := range w.Assignments {
					if len(x.Addresses) > 0 {
						got = fmt.Sprint(x.Addresses)
					}
					if x.Service.Name == "a" && len(x.Addresses) > 0 && (!slices.Equal(x.Had, tt.s.Addresses) || x.HadPool != tt.s.Allocated) {
						t.Errorf("decided for %v of %s", x.Had, x.HadPool)
					}
				}
				if round >= 2 && got != tt.want { // the plan of the first after the edit is made by the pools before it
					t.Errorf("it is given %q, want %q", got, tt.want)
				}
			}
		})
	}
}

// TestPolicyInForce: what could be read before counts, not a mistake in the ConfigMap.
func TestPolicyInForce(t *testing.T) {
	w := poolWorld("n1")
	w.Services = []vip.Service{svc("a", "10.77.0.80")}
	before, _ := pool.Parse(nil, map[string]string{"pool-kept": "10.77.0.80/28", "pool-kept.namespaces": "blue"})
	w.PoolPolicy, _ = pool.Parse(before, map[string]string{"pool-kept": "10.77.0.80/28", "pool-kept.namespaces": "=="})
	check.Equal(t, Make(poolRules(), w).Verdicts[0].Reason, vip.AddressRefused, "the verdict")
}

// TestConfigMapGone: a ConfigMap of pools that is gone, while it is made again, say, gives nothing, and limits who may have what as before.
// Of one that may not be read nothing is known, so that nobody is let have more than the statuses show.
func TestConfigMapGone(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(w *vip.World)
		want   string // the verdict of a Service that names an address of a pool for others, and what it says
	}{
		{"it is there", nil, "AddressRefused 10.77.0.80 is of a pool that is not offered"},
		{"gone", func(w *vip.World) { w.Pools.Gone = true }, "AddressRefused 10.77.0.80 is of a pool that is not offered"},
		{"never there", func(w *vip.World) { w.Pools = nil }, "VIPClaiming "},
		{"refused", func(w *vip.World) { w.Pools, w.PoolsRefused = nil, true }, "AddressRefused 10.77.0.80: which addresses Services may have is not known"},
		{"refused by now", func(w *vip.World) { w.PoolsRefused = true }, "AddressRefused 10.77.0.80 is of a pool that is not offered"},
		{"refused, and its status shows it", func(w *vip.World) { w.Pools, w.PoolsRefused = nil, true; written("n2")(&w.Services[0]) }, "VIPClaiming "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := poolWorld("n1")
			w.Services = []vip.Service{svc("a", "10.77.0.80"), svc("waits", "")}
			w.Pools.Data = map[string]string{"pool-kept": "10.77.0.80/28", "pool-kept.namespaces": "blue"}
			w = with(w, tt.change)
			p := Make(poolRules(), w)
			if got := fmt.Sprint(p.Verdicts[0].Reason, " ", p.Verdicts[0].Message); !strings.HasPrefix(got, tt.want) {
				t.Errorf("%s, want %s", got, tt.want)
			}
			check.Equal(t, p.Pools[0].Allocate, tt.change == nil || w.Pools != nil && !w.Pools.Gone, "gives addresses")
		})
	}
}

// TestLeasedIsKeptWithoutEndpoints: a Service that has an address of a DHCP server which no pool offers it any more
// keeps it while it has no endpoint.
func TestLeasedIsKeptWithoutEndpoints(t *testing.T) {
	w := poolWorld("n1")
	w.Members = w.Members[:1]
	w.Services = []vip.Service{svc("a", "0.0.0.0", leased("10.77.0.99"), func(s *vip.Service) { s.VIPHost = "n1" })}
	r := poolRules()
	r.PoolsOnly = true
	ready := w.Services[0].Endpoints
	for _, endpoints := range []vip.Endpoints{{}, ready} {
		w.Services[0].Endpoints = endpoints
		p := Make(r, held(w, "a", "n1"))
		if v := p.Verdicts[0]; v.Reason == vip.AddressRefused || len(addressStatuses(p)) > 0 {
			t.Fatalf("%v, statuses %+v", v, p.Statuses)
		}
		for _, s := range p.Statuses {
			w.Services[0].SetConditions(s.Conditions)
		}
	}
}

// TestNodesOfPools: only nodes that the pool of an address selects carry it; where Nodes can't be read all do. Of those
// that serve equally well a VIP goes to the one that its pool prefers most; it moves to one that is preferred more with
// vip_rebalance only, and by that to none that is preferred less.
func TestNodesOfPools(t *testing.T) {
	inZone := func(n, zone string) vip.Node { return vip.Node{Name: n, Labels: map[string]string{"zone": zone}} }
	only := func(zone string) func(*vip.World) { // in place of the preference
		return func(w *vip.World) {
			w.Pools.Data = map[string]string{"pool-x": "10.77.0.60/30", "pool-x.nodes": "zone=" + zone}
		}
	}
	for _, tt := range []struct {
		name      string
		holder    string
		rebalance bool
		change    func(w *vip.World)
		want      string
	}{
		{"free: the one that is preferred most", "", false, nil, "kubevip-a -> n3"},
		{"which has others already", "", false, func(w *vip.World) {
			w.Services = append(w.Services, svc("b", "10.77.0.70", younger), svc("c", "10.77.0.71", younger))
			*w = held(held(*w, "b", "n3"), "c", "n3")
		}, "kubevip-a -> n3"},
		{"unless it is not ready", "", false, func(w *vip.World) { w.Nodes[2].NotReady = true }, "kubevip-a -> n1"},
		{"or dead", "", false, func(w *vip.World) { w.Members[2].Alive = false }, "kubevip-a -> n1"},
		{"weights are added up", "", false, func(w *vip.World) { w.Nodes[0].Labels["disk"] = "ssd" }, "kubevip-a -> n1"},
		{"a VIP stays where it is", "n1", false, nil, "kubevip-a -> n1"},
		{"but not with vip_rebalance", "n1", true, nil, "kubevip-a -> n3"},
		{"to a node that is stable", "n1", true, func(w *vip.World) { w.Members[2].Stable = false }, "kubevip-a -> n1"},
		{"vip_rebalance moves it to none that is preferred less", "n1", true, func(w *vip.World) {
			w.Members[2].Alive = false
			w.Services = append(w.Services, svc("b", "10.77.0.61"), svc("c", "10.77.0.62"))
			*w = held(held(*w, "b", "n1"), "c", "n1")
		}, "kubevip-a -> n1\nkubevip-b -> n1\nkubevip-c -> n1"},
		{"Nodes can't be read", "n1", true, func(w *vip.World) { w.Nodes = nil }, "kubevip-a -> n1"},
		{"free: the one node that is selected", "", false, only("x"), "kubevip-a -> n2"},
		{"held by a node that is not", "n1", false, only("x"), "kubevip-a -> n2"},
		{"held by one that is", "n1", false, only("b"), "kubevip-a -> n1"},
		{"no node is", "", false, only("c"), "a: NoEligibleNode"},
		{"the same for DHCP", "n1", false, func(w *vip.World) {
			w.Services[0].Addresses = []netip.Addr{addr("0.0.0.0")}
			w.Pools.Data = map[string]string{"pool-x": "0.0.0.0/32", "pool-x.nodes": "zone=x"}
		}, "kubevip-a -> n2"},
		{"whom it selects can't be read", "n1", false, func(w *vip.World) { only("c")(w); w.Nodes = nil }, "kubevip-a -> n1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := poolWorld("n2")
			w.Services = []vip.Service{svc("a", "10.77.0.60")}
			w.Nodes = allNodes(inZone("n1", "b"), inZone("n2", "x"), inZone("n3", "a"))
			w.Pools.Data = map[string]string{"pool-x": "10.77.0.60/30", "pool-x.prefer": "100 zone=a; 20 zone=b; 81 disk=ssd"}
			for i := range w.Members {
				w.Members[i].Stable = true
			}
			if tt.holder != "" {
				w = held(w, "a", tt.holder)
			}
			r := poolRules()
			r.Rebalance = tt.rebalance
			if got := summary(Make(r, with(w, tt.change))); !strings.HasPrefix(got, tt.want) {
				t.Errorf("got %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestMethodsOfPools: VIPs are announced as their pool says, and on its link, unless their Service does.
func TestMethodsOfPools(t *testing.T) {
	for _, tt := range []struct {
		name    string
		pool    string
		service []vip.Method
		link    string // that the Service names
		bgp     bool
		want    string
	}{
		{"by all that is enabled", "", nil, "", true, "bound to eth1 advertised"},
		{"arp", "arp", nil, "", true, "bound to eth1"},
		{"bgp", "bgp", nil, "", true, "advertised"},
		{"both, and the Service names a link", "arp,bgp", nil, "eth0", true, "bound to eth0 advertised"},
		{"the Service says another", "bgp", []vip.Method{vip.ByARP}, "", true, "bound to eth1"},
		{"what is not enabled", "bgp", nil, "", false, "pool x (pool-x.announce), of which 10.77.0.60 is, is announced by [bgp]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := poolWorld("n2")
			w.Services = []vip.Service{svc("a", "10.77.0.60", func(s *vip.Service) { s.Announce, s.Interface = tt.service, tt.link })}
			w.Pools.Data = map[string]string{"pool-x": "10.77.0.60/30", "pool-x.interface": "eth1"}
			if tt.pool != "" {
				w.Pools.Data["pool-x.announce"] = tt.pool
			}
			r := poolRules()
			if tt.bgp {
				r.BGP = &BGP{}
				w = withSessions(w)
			}
			p := Make(r, bind(r, held(w, "a", "n1")))
			var got []string
			if len(p.Addresses) > 0 {
				got = append(got, "bound to "+p.Addresses[0].Link)
			}
			if len(p.Routes) > 0 {
				got = append(got, "advertised")
			}
			if len(got) == 0 {
				got = append(got, p.Verdicts[0].Message)
			}
			if text := strings.Join(got, " "); !strings.HasPrefix(text, tt.want) {
				t.Errorf("%s, want %s", text, tt.want)
			}
		})
	}
}

// TestLinkOfDHCPClients: where pools limit which addresses Services may ask for, the operator says on which link a
// DHCP server is asked: else a tenant's pods could be that server, on the link of pods, say, and choose any address.
func TestLinkOfDHCPClients(t *testing.T) {
	for _, tt := range []struct {
		name        string
		poolsOnly   bool
		pool, named string // the links that pool and Service name
		want        string
		event       bool
	}{
		{"any address may be asked for", false, "", "eth1", "eth1", false},
		{"pools only, and the pool names no link", true, "", "eth1", "eth0", true},
		{"... and the Service names the same", true, "", "eth0", "eth0", false},
		{"... and the Service names none", true, "", "", "eth0", false},
		{"the pool names one", true, "eth1", "eth0", "eth1", true},
		{"... and the Service names the same", true, "eth1", "eth1", "eth1", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, w := poolRules(), poolWorld("n1")
			r.PoolsOnly = tt.poolsOnly
			w.Services, w.Members = []vip.Service{svc("a", "0.0.0.0", on(tt.named))}, w.Members[:1]
			w.Pools.Data = map[string]string{"pool-x": "0.0.0.0/32"}
			if tt.pool != "" {
				w.Pools.Data["pool-x.interface"] = tt.pool
			}
			p := Make(r, held(w, "a", "n1"))
			if len(p.Macvlans) != 1 || p.Macvlans[0].Parent != tt.want {
				t.Errorf("asked on %+v, want %s", p.Macvlans, tt.want)
			}
			check.Equal(t, slices.ContainsFunc(p.Events, func(e vip.Event) bool { return e.Reason == vip.InvalidField }), tt.event, "its user is told")
		})
	}
}
