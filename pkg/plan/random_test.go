package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/pkg/vip"
)

// A random makes worlds of anything that users, nodes and servers may have written.
type random struct{ *rand.Rand }

func (r random) yes() bool { return r.IntN(2) == 0 }

// rarely is true once in six times.
func (r random) rarely() bool { return r.IntN(6) == 0 }

// pick returns one of all.
func pick[T any](r random, all ...T) T { return all[r.IntN(len(all))] }

// some returns up to n values that one returns.
func some[T any](r random, n int, one func() T) (all []T) {
	for range r.IntN(n + 1) {
		all = append(all, one())
	}
	return all
}

func (r random) addr() netip.Addr {
	return addr(pick(r, "10.77.0.50", "10.77.0.51", "10.77.0.52", "10.77.0.53", "fd77::50", "fd77::51", "10.77.0.11", "198.51.100.7", "0.0.0.0", "::"))
}

func (r random) vip() netip.Addr {
	for {
		if a := r.addr(); !a.IsUnspecified() {
			return a
		}
	}
}

func (r random) node() string { return pick(r, "n1", "n2", "n3", "w1", "", "gone") }

func (r random) port() vip.Port {
	return vip.Port{Protocol: pick(r, "TCP", "UDP", "SCTP"), Port: pick[uint16](r, 0, 53, 80, 443, 65535)}
}

func (r random) time() time.Time {
	return epoch.Add(time.Hour + time.Duration(r.Int64N(int64(4*time.Minute))) - 2*time.Minute)
}

// rules returns options that go together in any way.
func (r random) rules() Rules {
	x := rules()
	x.Enabled = !r.rarely()
	x.Election, x.ARP, x.Rebalance, x.NoStatus, x.ProbeNew, x.LimitPorts = r.yes(), r.yes(), r.yes(), r.rarely(), r.yes(), r.yes()
	x.DHCPMode = pick(r, "ipv4", "ipv6", "dual")
	x.ClassOnly, x.ClassStrict = r.rarely(), r.rarely()
	if r.yes() {
		x.BGP = &BGP{Keep: r.yes(), Aggregates: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/24")}}
	}
	if r.rarely() {
		x.RoutingTable = 100
	}
	if r.yes() {
		x.Forwarding = &Forwarding{Status: r.yes(), Ports: pick(r, nil, [][2]uint16{{80, 443}}), Namespaces: pick(r, nil, []string{"default"})}
	}
	if r.yes() {
		x.KeepConnections = time.Hour
	}
	if !r.rarely() {
		x.Egress = &Egress{Internal: pick(r, nil, []netip.Prefix{netip.MustParsePrefix("10.240.0.0/16")})}
	}
	if r.yes() {
		x.Allocation = &Allocation{Lease: poolsLease, Provider: providerLease}
		x.PoolsOnly = r.yes()
	}
	if r.rarely() {
		x.ControlPlane = &ControlPlane{Addresses: []netip.Addr{addr("10.77.0.9")}, Port: 6443, Lease: vip.Key{Namespace: "kube-system", Name: "plndr-cp-lock"}, BalancedPort: pick[uint16](r, 0, 6443, 6444)}
	}
	if r.rarely() {
		x.SharedLease = vip.Key{}
	}
	return x
}

func (r random) service(i int) vip.Service {
	s := vip.Service{
		Key: vip.Key{Namespace: pick(r, "default", "default", "tenant"), Name: fmt.Sprint("s", i)}, UID: fmt.Sprint("uid-", i), Created: epoch.Add(time.Duration(r.IntN(4000)) * time.Second),
		LoadBalancer: !r.rarely(), Ignore: r.rarely(), HasClass: r.rarely(), Finalizer: r.yes(),
		Families: pick(r, nil, []vip.Family{vip.IPv4}, []vip.Family{vip.IPv6, vip.IPv4}), DualStack: pick(r, vip.SingleStack, vip.PreferDualStack, vip.RequireDualStack),
		Interface: pick(r, "", "", "", "eth1", "auto", "nope"), Lease: pick(r, "", "", "", "shared"), SharingKey: pick(r, "", "k"),
		Local: r.rarely(), HealthCheckNodePort: pick[uint16](r, 0, 30000), ClientIPAffinity: r.rarely(), AllowWithoutEndpoints: r.rarely(), AllPorts: r.rarely(),
		IPMode: pick(r, "", vip.ModeVIP, vip.ModeProxy), Announce: pick(r, nil, nil, []vip.Method{}, []vip.Method{vip.ByARP}, []vip.Method{vip.ByBGP}),
		Endpoints: vip.Endpoints{Ready: pick(r, []string{"n1", "n2", "n3"}, []string{"n2"}, nil), Terminating: pick(r, nil, []string{"n1"}), WithoutNode: r.rarely()},
		VIPHost:   r.node(), Allocated: pick(r, "", "", "cidr-global", "cidr-global,web"), Pools: pick(r, nil, nil, []string{"web"}), Renumber: r.rarely(),
		Ports: some(r, 3, r.port),
	}
	for _, a := range some(r, 4, r.addr) {
		if !slices.Contains(s.Addresses, a) {
			s.Addresses = append(s.Addresses, a)
		}
	}
	if len(s.Addresses) > 0 || r.rarely() {
		s.Source = pick(r, "kube-vip.io/loadbalancerIPs", "spec.loadBalancerIP", vip.SourceStatus)
	}
	s.Ingress = some(r, 3, func() vip.Ingress {
		return vip.Ingress{Addr: pick(r, r.vip(), netip.Addr{}), IPMode: pick(r, "", vip.ModeVIP, vip.ModeProxy), Ports: some(r, 2, r.port)}
	})
	s.DHCP = vip.DHCP{MAC: pick(r, "", "", "02:00:00:00:00:01"), Macvlan: pick(r, "", "", "herald-x", "cni0"), RPFilter: pick(r, "", "0", "1", "2"), Requested: some(r, 2, r.addr), Leases: some(r, 2, r.lease)}
	record := vip.Record{Named: some(r, 2, r.vip), Given: some(r, 2, r.vip), Leased: some(r, 2, r.vip), MAC: pick(r, "", "02:00:00:00:00:01"), Link: "herald-x"}
	s.SetConditions(some(r, 2, func() vip.Condition {
		return pick(r, record.Condition(), vip.Condition{Type: pick(r, vip.Allocated, vip.Announced), Status: pick(r, vip.ConditionTrue, vip.ConditionFalse), Reason: vip.AddressSet})
	}))
	if r.rarely() {
		s.Deleted = r.time()
	}
	if r.rarely() {
		s.Forward = &vip.Forward{External: pick(r, nil, map[uint16]uint16{80: 8080})}
	}
	if r.rarely() {
		withEgress(&s)
		s.PodsUnknown = pick(r, "", vip.PodsBeingListed, "why")
	}
	if r.rarely() {
		s.Invalid = []string{"a field is wrong."}
	}
	return s
}

func (r random) lease() vip.DHCPLease {
	return vip.DHCPLease{Addr: r.vip(), Bits: r.IntN(129), MAC: pick(r, "", "02:00:00:00:00:01"), Server: pick(r, "", "10.77.0.1"), Expires: pick(r, time.Time{}, r.time())}
}

func (r random) claim() vip.Claim {
	return vip.Claim{
		Holder: r.node(), Valid: !r.rarely(), Foreign: r.rarely(), PreviousHolder: r.node(), AcquiredAt: pick(r, time.Time{}, r.time()), Transitions: r.Int32N(3),
		FormerHolders: some(r, 3, func() vip.FormerHolder { return vip.FormerHolder{Node: r.node(), Until: r.time()} }),
	}
}

// world returns a World with some Services, seen from n1.
func (r random) world() vip.World {
	var services []vip.Service
	for i := range 1 + r.IntN(6) {
		services = append(services, r.service(i))
	}
	slices.SortFunc(services, func(a, b vip.Service) int { return a.Key.Compare(b.Key) })
	w := world(services...)
	w.Stopping, w.StrictRPFilter, w.EgressPodsPending = r.rarely(), r.rarely(), r.rarely()
	w.Nodes = pick(r, nil, allNodes(), allNodes(vip.Node{Name: "n2", Drained: true}), allNodes(vip.Node{Name: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.240.0.0/16")}, ReturnUntil: r.time()}))
	for i := range w.Members {
		m := &w.Members[i]
		m.Alive, m.Gone, m.Stalled, m.Stable, m.Unproven = !r.rarely(), r.rarely(), r.rarely(), r.yes(), r.rarely()
		m.Info.Isolated, m.Info.APIServerReady, m.Rejoining = r.rarely(), r.yes(), r.rarely()
		m.AnswersUntil = pick(r, time.Time{}, time.Time{}, r.time())
		m.Info.BGPSessions = some(r, 1, func() vip.BGPSession {
			return vip.BGPSession{Peer: "10.77.0.1", State: pick(r, vip.Established, "down"), Lasting: r.yes()}
		})
		if r.yes() {
			m.Info.Links[0].MAC = fmt.Sprintf("02:00:00:00:01:%02d", i)
		}
		if r.rarely() {
			m.Info.Links = nil
		}
		m.Info.Unanswered = some(r, 2, r.vip)
		if r.rarely() {
			m.Info.Options = &vip.NodeOptions{Services: r.yes()}
		}
	}
	if r.rarely() {
		w.Members = w.Members[1:]
	}
	for _, s := range services {
		if r.yes() {
			w.Claims[s.LeaseKey()] = r.claim()
		}
		if r.rarely() {
			w.HandingOver[s.LeaseKey()] = vip.HandingOver{Successor: r.node(), Since: r.time(), Until: r.time()}
		}
		w.HealthChecked[s.Key] = r.yes()
	}
	w.Claims[rules().SharedLease] = r.claim()
	w.Claims[poolsLease] = r.claim()
	w.Tenure.Until = pick(r, w.Tenure.Until, w.Tenure.Until, r.time())
	w.Tenure.RenewalLateSince = pick(r, time.Time{}, time.Time{}, w.Now)
	address := func() vip.Address { return vip.Address{Addr: r.vip(), Link: pick(r, "eth0", "eth1", "lo"), Bits: 32} }
	w.Bound, w.Unmanaged = some(r, 3, address), some(r, 1, address)
	for range r.IntN(3) {
		a := r.vip()
		w.Heard[a] = vip.HeardAnnouncement{MAC: pick(r, "02:00:00:00:01:01", "02:00:00:00:09:09"), Link: "eth0", At: r.time()}
	}
	refused := func() map[vip.Family]string { return pick(r, nil, nil, map[vip.Family]string{vip.IPv4: "why"}) }
	w.PortsNotLimited, w.EgressRefused, w.DataPlaneFault = refused(), refused(), pick(r, "", "", "why")
	w.Reserved = some(r, 2, func() vip.ReservedRange {
		return vip.ReservedRange{Prefix: netip.PrefixFrom(r.vip(), 32).Masked(), Description: "x", Service: services[0].Key, FromSlice: r.yes()}
	})
	if r.yes() {
		w.Pools = &vip.PoolSource{ConfigMap: vip.Key{Namespace: "kube-system", Name: "kubevip"}, Data: map[string]string{
			"cidr-global": "10.77.0.50-10.77.0.52,fd77::/64", "allow-share-global": pick(r, "true", "false"), "pool-web": "10.77.0.53,0.0.0.0/32", "pool-web.nodes": pick(r, "a=b", "!a"), "pool-web.namespaces": pick(r, "tenant", "a=b"), "pool-web.announce": pick(r, "arp", "bgp"),
		}}
	}
	return w
}

// answer has w show what the kernel, servers and the API server make of p.
func (r random) answer(w vip.World, p vip.Plan) vip.World {
	w.Bound, w.Macvlans = p.Addresses, p.Macvlans
	if r.rarely() {
		w.Macvlans, w.MacvlanErrors = nil, make(map[string]string)
		for _, x := range p.Macvlans {
			w.MacvlanErrors[x.Name] = "why"
		}
	}
	w.CheckResults = make(map[netip.Addr]vip.CheckResult)
	for _, x := range p.AddressChecks {
		if !r.rarely() {
			w.CheckResults[x.Addr] = vip.CheckResult{AddressCheck: x, At: w.Now, NoAnswer: r.yes(), UnexpectedMACs: pick(r, nil, nil, []string{"02:00:00:00:09:09"}), ClearedAt: pick(r, time.Time{}, r.time())}
		}
	}
	w.DHCPStates = nil
	for _, x := range p.DHCPRequests {
		l := r.lease()
		l.MAC = x.MAC
		w.DHCPStates = append(w.DHCPStates, vip.DHCPState{Request: x, Lease: pick(r, vip.DHCPLease{}, l), Lost: r.rarely(), Problem: pick(r, "", "why")})
	}
	w.MappingStates = nil
	for _, x := range p.Mappings {
		w.MappingStates = append(w.MappingStates, vip.MappingState{Mapping: x, Requested: r.yes(), Confirmed: r.yes(), External: netip.AddrPortFrom(r.vip(), 80), Problem: pick(r, "", "why"), RemovalSince: pick(r, time.Time{}, r.time())})
	}
	claims := maps.Clone(w.Claims)
	for _, o := range p.Owners {
		if c := claims[o.Unit]; o.Node == w.Self && (!c.Valid || c.Holder == "") {
			claims[o.Unit] = vip.Claim{Holder: w.Self, Valid: true, AcquiredAt: w.Now}
		}
	}
	w.Claims = claims
	w.Services = withStatuses(w.Services, p)
	w.Now = w.Now.Add(time.Duration(r.IntN(20)) * time.Second)
	return w
}

// withStatuses is Services with what p writes on them.
func withStatuses(services []vip.Service, p vip.Plan) []vip.Service {
	services = slices.Clone(services)
	for _, x := range p.Statuses {
		for i := range services {
			if s := &services[i]; s.Key == x.Service {
				if !x.ConditionsOnly {
					s.Ingress, s.VIPHost, s.Announcer, s.DHCP.Leases = x.Ingress, x.VIPHost, x.Announcer, x.DHCPLeases
				}
				s.SetConditions(x.Conditions)
			}
		}
	}
	return services
}

// FuzzMake: whatever users, nodes and servers have written, a Plan can be made of it and explained, and a second one
// of the same World is the same.
func FuzzMake(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	equate := cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := random{rand.New(rand.NewPCG(seed, 0))}
		rules, w := r.rules(), r.world()
		for range 5 {
			p := Make(rules, w)
			if d := cmp.Diff(sorted(p), sorted(Make(rules, w)), equate); d != "" {
				t.Fatal("two Plans of one World differ:", d)
			}
			for _, s := range w.Services {
				Explain(rules, w, s.Key)
			}
			ExplainNode(rules, w, "n2")
			w = r.answer(w, p)
		}
	})
}

// sorted returns p with what has no order sorted, and without what pools are told.
func sorted(p vip.Plan) vip.Plan {
	slices.SortFunc(p.Events, byText[vip.Event])
	slices.SortFunc(p.AddressChecks, byText[vip.AddressCheck])
	p.Pools = nil
	return p
}

func byText[T any](a, b T) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }

// FuzzGiven: what Services are given of pools that have enough they may have, however they are to be announced and
// may share, and whatever their users change: none ends in a conflict.
func FuzzGiven(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := random{rand.New(rand.NewPCG(seed, 0))}
		rules := poolRules()
		rules.Election, rules.BGP, rules.ARP = r.yes(), pick(r, nil, &BGP{}), true
		w := poolWorld("n1")
		w.Pools.Data = map[string]string{"cidr-global": "10.77.0.50-10.77.0.99,fd77::50-fd77::99", "allow-share-global": pick(r, "true", "false"), "allow-share-other": pick(r, "true", "false"), "interface-other": pick(r, "eth0", "eth1")}
		w.Services = nil
		assigner := pool.NewAssigner(time.Minute, func() {})
		given := func(i int) vip.Service {
			s := svc(fmt.Sprint("s", i), "")
			s.Key.Namespace = pick(r, "default", "tenant", "other")
			s.Created = epoch.Add(time.Duration(i) * time.Second)
			s.Families = pick(r, []vip.Family{vip.IPv4}, []vip.Family{vip.IPv6}, []vip.Family{vip.IPv4, vip.IPv6})
			s.DualStack = pick(r, vip.SingleStack, vip.PreferDualStack)
			s.Ports = []vip.Port{r.port()}
			s.Local, s.ClientIPAffinity, s.Interface = r.rarely(), r.rarely(), pick(r, "", "", "eth1")
			s.SharingKey, s.Announce = pick(r, "", "k"), pick(r, nil, nil, []vip.Method{vip.ByARP})
			return s
		}
		for round := range 30 {
			if round < 16 && r.yes() {
				w.Services = append(w.Services, given(round))
				slices.SortFunc(w.Services, func(a, b vip.Service) int { return a.Key.Compare(b.Key) })
			}
			if i := r.IntN(20); round < 16 && i < len(w.Services) { // its user changes it
				s := &w.Services[i]
				switch r.IntN(4) {
				case 0:
					s.Local = !s.Local
				case 1:
					s.Interface = pick(r, "", "eth1")
				case 2:
					s.SharingKey = pick(r, "", "k")
				case 3:
					s.Ports = []vip.Port{r.port()}
				}
			}
			assigner.Observe(&w)
			p := Make(rules, w)
			assigner.Put(p.Pools)
			for _, x := range p.Assignments {
				for i := range w.Services {
					if s := &w.Services[i]; s.Key == x.Service {
						s.Addresses, s.Source, s.Allocated = x.Addresses, "kube-vip.io/loadbalancerIPs", x.Pool
					}
				}
			}
			w = r.claimAndShow(w, p)
		}
		for _, e := range Make(rules, w).Events { // also of one address of several
			if e.Reason == vip.AddressConflict {
				t.Errorf("%s: %s", e.Service, e.Message)
			}
		}
	})
}

// claimAndShow has w show what p binds and announces, with the leases that it acquires, and the statuses that it writes.
func (r random) claimAndShow(w vip.World, p vip.Plan) vip.World {
	w.Bound, w.Claims, w.Services = p.Addresses, maps.Clone(w.Claims), withStatuses(w.Services, p)
	w.CheckResults = make(map[netip.Addr]vip.CheckResult)
	for _, x := range p.AddressChecks {
		w.CheckResults[x.Addr] = vip.CheckResult{AddressCheck: x, At: w.Now, NoAnswer: true}
	}
	for _, o := range p.Owners {
		if o.Node != "" && w.Claims[o.Unit].Holder == "" {
			w.Claims[o.Unit] = vip.Claim{Holder: "n1", Valid: true, AcquiredAt: w.Now}
		}
	}
	w.Now = w.Now.Add(5 * time.Second)
	w.Tenure.Until = w.Now.Add(time.Hour)
	return w
}
