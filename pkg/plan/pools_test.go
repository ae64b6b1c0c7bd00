package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

var (
	poolsLease    = vip.Key{Namespace: "kube-system", Name: "herald-pools"}
	providerLease = vip.Key{Namespace: "kube-system", Name: "kube-vip-cloud-controller"}
)

func poolRules() Rules {
	r := rules()
	r.Allocation = &Allocation{Lease: poolsLease, Provider: providerLease}
	return r
}

// poolWorld has a ConfigMap of pools, whose lease a node holds, and a Service that names no address.
func poolWorld(holder string) vip.World {
	w := world(svc("a", ""))
	w.Pools = &vip.PoolSource{ConfigMap: vip.Key{Namespace: "kube-system", Name: "kubevip"}, UID: "uid-pools", Data: map[string]string{"cidr-global": "10.77.0.0/28"}}
	if holder != "" {
		w.Claims[poolsLease] = vip.Claim{Holder: holder, Valid: true}
	}
	return w
}

// poolSummary is what a Plan says of pools.
func poolSummary(p vip.Plan) string {
	var b strings.Builder
	for _, in := range p.Pools {
		if in.Allocate {
			b.WriteString("allocate for")
			for _, q := range in.Requests {
				fmt.Fprintf(&b, " %s", q.Key.Name)
				if q.Foreign {
					b.WriteString("(foreign)")
				}
			}
			b.WriteString("\n")
		}
	}
	for _, a := range p.Assignments {
		fmt.Fprintf(&b, "write %s %v of %s\n", a.Service.Name, a.Addresses, a.Pool)
	}
	return b.String() + summary(p)
}

// withOptions gives all nodes the options of poolRules, and changes those of n3.
func withOptions(w *vip.World, change func(*vip.NodeOptions)) {
	for i := range w.Members {
		o := &vip.NodeOptions{Services: true, ARP: true, CommonOptions: poolRules().CommonOptions, Pools: vip.Key{Namespace: "kube-system", Name: "kubevip"}}
		if w.Members[i].Name == "n3" {
			change(o)
		}
		w.Members[i].Info.Options = o
	}
}

func TestWhoGivesAddresses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		world  vip.World
		change func(w *vip.World)
		want   string
	}{
		{"no ConfigMap", poolWorld("n1"), func(w *vip.World) { w.Pools = nil }, "a: NoAddress\nevent a NoAddress"}, // reported: nobody else says it
		{"this node holds the lease", poolWorld("n1"), nil, "allocate for a\nherald-pools -> n1\na: NoAddress"},
		{"another node holds it", poolWorld("n2"), nil, "a: NoAddress"},
		{"it is free", poolWorld(""), nil, "herald-pools -> n3\na: NoAddress"},
		{"it is free, and the best node is this one", poolWorld(""), func(w *vip.World) { w.Self = "n3" }, "herald-pools -> n3\na: NoAddress"},
		{"its holder is dead", poolWorld("n2"), func(w *vip.World) {
			w.Claims[poolsLease] = vip.Claim{Holder: "n2"}
			w.Members[1].Alive = false
		}, "herald-pools -> n3\na: NoAddress"},
		{"the best node reads no pools", poolWorld(""), func(w *vip.World) { withOptions(w, func(o *vip.NodeOptions) { o.Pools = vip.Key{} }) }, "herald-pools -> n2\na: NoAddress"},
		{"it has another class", poolWorld(""), func(w *vip.World) { withOptions(w, func(o *vip.NodeOptions) { o.Class = "other" }) }, "herald-pools -> n2\na: NoAddress"},
		{"... and the lease", poolWorld("n3"), func(w *vip.World) {
			w.Self = "n3"
			withOptions(w, func(o *vip.NodeOptions) { o.Class = "other" })
		}, "herald-pools -> n2\na: OtherClass"},
		{"this node stops", poolWorld("n1"), func(w *vip.World) { w.Stopping = true }, "herald-pools -> n3\na: NoAddress"},
		{"it stops, and there is no other", poolWorld("n1"), func(w *vip.World) { w.Stopping, w.Members = true, w.Members[:1] }, "a: NoAddress"},
		{"its tenure has ended", poolWorld("n1"), func(w *vip.World) { w.Tenure.Until = w.Now }, "herald-pools -> n1\na: NoAddress"},
		{"its renewal is late", poolWorld("n1"), func(w *vip.World) { w.Tenure.RenewalLateSince = w.Now }, "herald-pools -> n1\na: NoAddress"},
		{"kube-vip's cloud provider renews its lease", poolWorld("n1"), func(w *vip.World) {
			w.Claims[providerLease] = vip.Claim{Holder: "provider-x", Foreign: true, Valid: true}
		}, "herald-pools -> n1\na: NoAddress\nevent a NoAddress"},
		{"it does no more", poolWorld("n1"), func(w *vip.World) { w.Claims[providerLease] = vip.Claim{Holder: "provider-x", Foreign: true} }, "allocate for a\nherald-pools -> n1\na: NoAddress"},
		{"Services of others, and what can't be read", poolWorld("n1"), func(w *vip.World) {
			w.Services = []vip.Service{
				svc("a", "", func(s *vip.Service) { s.HasClass, s.Class = true, "other" }),
				svc("b", "", func(s *vip.Service) { s.Ignore = true }),
				svc("c", "", func(s *vip.Service) {
					s.Source, s.Invalid = "kube-vip.io/loadbalancerIPs", []string{"kube-vip.io/loadbalancerIPs is wrong."}
				}),
				svc("d", "", func(s *vip.Service) { s.LoadBalancer = false }),
				svc("e", ""),
			}
		}, "allocate for a(foreign) b(foreign) c(foreign) e\nherald-pools -> n1\na: OtherClass\nb: Ignored\nc: InvalidField\ne: NoAddress"},
		{"what is decided", poolWorld("n1"), func(w *vip.World) {
			w.Assignments = []vip.Assignment{
				{Service: key("a"), UID: "uid-a", Addresses: []netip.Addr{addr("10.77.0.1")}, Pool: "cidr-global", Reason: "10.77.0.1 is of pool cidr-global"},
				{Service: key("b"), UID: "uid-b", Reason: "none is free"},
			}
			w.PoolProblems = []vip.PoolProblem{{Key: "cidr-x", Message: "is wrong"}}
		}, "allocate for a\nwrite a [10.77.0.1] of cidr-global\nherald-pools -> n1\na: NoAddress\nevent a AddressAllocated\nevent b NoPoolAddress\nevent kubevip PoolProblem"},
		{"a person has named another than it was given", poolWorld("n1"), func(w *vip.World) {
			w.Services[0] = svc("a", "10.77.0.50", func(s *vip.Service) { s.Superseded = true })
		}, "allocate for a\nwrite a [] of \nherald-pools -> n1\nkubevip-a -> n2\na: VIPClaiming"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := with(tt.world, tt.change)
			got := poolSummary(Make(poolRules(), w))
			if w.Self == "n3" || !strings.Contains(tt.want, "event a NoAddress") {
				diff(t, got, tt.want)
				return
			}
			// Who is responsible for the Service says so, and only that node.
			var all string
			for _, self := range []string{"n1", "n2", "n3"} {
				w.Self = self
				for l := range strings.Lines(poolSummary(Make(poolRules(), w))) {
					if strings.HasPrefix(l, "event") {
						all += l
					}
				}
			}
			diff(t, all, "event a NoAddress")
		})
	}
}

// What no Service may have is not given: addresses of nodes, their pods, what is reserved. What is told besides is dhcp_mode.
func TestPoolsAreToldWhatIsReserved(t *testing.T) {
	w := poolWorld("n1")
	w.Reserved = []vip.ReservedRange{{Prefix: netip.MustParsePrefix("10.112.0.0/16"), Description: "the cluster's Service range"}}
	w.Nodes = []vip.Node{{Name: "n1", Addresses: []netip.Addr{addr("10.77.0.77")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.200.1.0/24")}}}
	r := poolRules()
	r.DHCPMode = "dual"
	in := Make(r, w).Pools[0]
	check.Equal(t, in.DHCPMode, "dual", "dhcp_mode")
	for _, want := range []string{"10.112.0.0/16", "10.200.1.0/24", "10.77.0.77/32", "10.77.0.11/32", "10.99.0.200/32"} {
		if !slices.ContainsFunc(in.Reserved, func(r vip.ReservedRange) bool { return r.Prefix.String() == want }) {
			t.Errorf("%s is not in %v", want, in.Reserved)
		}
	}
}

// An address that a status names and its Service does not ask for, which nobody will clear, is in use.
func TestAddressKeptByStatus(t *testing.T) {
	w := poolWorld("n1")
	w.Services[0] = svc("a", "10.77.0.99", func(s *vip.Service) { s.Ingress = []vip.Ingress{{Addr: addr("10.77.0.1")}} })
	for announcer, foreign := range map[string]bool{"": true, "kube-system": false} {
		w.Services[0].Announcer = announcer
		r := poolRules()
		r.Announcer = "kube-system"
		if p := Make(r, w); len(p.Pools) != 1 || len(p.Pools[0].Requests) != 1 || p.Pools[0].Requests[0].Foreign != foreign {
			t.Errorf("written by %q: %+v, want Foreign %v", announcer, p.Pools, foreign)
		}
	}
}

// The node that gives addresses probes for those that were given and that no status shows, and says which another host has.
func TestAddressesInUse(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(w *vip.World, s *vip.Service)
		want   string
	}{
		{"another host has it", nil, "[10.77.0.60]"},
		{"another host has it, IPv6", func(_ *vip.World, s *vip.Service) { s.Addresses = []netip.Addr{addr("fd77::60")} }, "[fd77::60]"},
		{"it is asked for by its user", func(_ *vip.World, s *vip.Service) { s.Allocated = "" }, "[]"},
		{"its status shows it", func(_ *vip.World, s *vip.Service) { written("n2")(s) }, "[]"},
		{"by BGP alone", func(_ *vip.World, s *vip.Service) { s.Announce = []vip.Method{vip.ByBGP} }, "[]"},
		{"this node's link is down", func(w *vip.World, _ *vip.Service) { w.Members[0].Info.Links[0].Up = false }, "[]"},
		{"another node gives addresses", func(w *vip.World, _ *vip.Service) { w.Claims[poolsLease] = vip.Claim{Holder: "n2", Valid: true} }, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := poolWorld("n1")
			w.Services = []vip.Service{svc("a", "10.77.0.60", func(s *vip.Service) { s.Allocated = "web" })}
			if tt.change != nil {
				tt.change(&w, &w.Services[0])
			}
			r := poolRules()
			r.ProbeNew, r.BGP = true, &BGP{}
			w.CheckResults = map[netip.Addr]vip.CheckResult{}
			for _, c := range Make(r, w).AddressChecks {
				w.CheckResults[c.Addr] = vip.CheckResult{AddressCheck: c, UnexpectedMACs: []string{"02:00:00:00:00:99"}}
			}
			check.Equal(t, fmt.Sprint(Make(r, w).Pools[0].InUse), tt.want, "in use")
		})
	}
}

// An address that the API server does not take is told the user of the Service: it has none.
func TestAssignmentRefused(t *testing.T) {
	w := poolWorld("n1")
	w.Assignments = []vip.Assignment{{Service: key("a"), UID: "uid-a", Addresses: []netip.Addr{addr("10.77.0.1")}, Pool: "cidr-global", Reason: "10.77.0.1 is of pool cidr-global"}}
	for why, want := range map[string]vip.Reason{"": vip.AddressAllocated, "webhook x denied the request": vip.NoPoolAddress} {
		w.AssignmentRefusals = map[vip.Key]string{key("a"): why, key("other"): "x"}
		p := Make(poolRules(), w)
		if len(p.Events) != 1 || p.Events[0].Reason != want || !strings.Contains(p.Events[0].Message, why) || len(p.Assignments) != 1 {
			t.Errorf("%q: %+v, Assignments %v", why, p.Events, p.Assignments)
		}
		check.Equal(t, len(p.Statuses) == 1 && strings.Contains(p.Statuses[0].Conditions[0].Message, why), why != "", "%q is told: %+v", why, p.Statuses)
	}
}

// A Service that was given an address which is another's is given another one: who comes first is judged by statuses
// and age, not by annotations, which their users write.
func TestAnotherForOneThatIsAnothers(t *testing.T) {
	given := func(s *vip.Service) { s.Allocated, s.Families = "cidr-global", []vip.Family{vip.IPv4} }
	in := func(namespace string) func(*vip.Service) { return func(s *vip.Service) { s.Key.Namespace = namespace } }
	proxy := func(s *vip.Service) {
		s.VIPHost, s.Ingress = "n1", []vip.Ingress{{Addr: s.Addresses[0], IPMode: vip.ModeProxy}}
		recorded(s, vip.Record{Given: s.Addresses})
	}
	// ports has the Service have all, and its status show the first so many of them.
	ports := func(shown int, all ...uint16) func(*vip.Service) {
		return func(s *vip.Service) {
			s.Ports, s.VIPHost = nil, "n1"
			for _, p := range all {
				s.Ports = append(s.Ports, vip.Port{Protocol: "TCP", Port: p})
			}
			s.Ingress = []vip.Ingress{{Hostname: "x", Ports: []vip.Port{{Protocol: "TCP", Port: 1}}}, {Addr: s.Addresses[0], IPMode: vip.ModeVIP, Ports: s.Ports[:shown]}}
		}
	}
	const x = "10.77.0.1"
	for _, tt := range []struct {
		name string
		a, b vip.Service
		want string // who is given what, and the first reason
	}{
		{"two of one namespace", svc("a", x, given), svc("b", x, given, younger), "b [10.77.0.2] 10.77.0.1: port 80/TCP belongs to Service default/a, which had it first; "},
		{"of two namespaces", svc("a", x, given), svc("b", x, given, younger, in("web")), "b [10.77.0.2] 10.77.0.1: in use by a Service of another namespace; "},
		{"a status shows it", svc("a", x, given), svc("b", x, given, younger, in("web"), written("n1")), "a [10.77.0.2] 10.77.0.1: in use by a Service of another namespace; "},
		{"of ipMode Proxy", svc("a", x, given), svc("b", x, given, younger, in("web"), proxy), "a [10.77.0.2] 10.77.0.1: in use by a Service of another namespace; "},
		{"a person has named it", svc("a", x, in("web")), svc("b", x, given, younger), "b [10.77.0.2] 10.77.0.1: in use by a Service of another namespace; "},
		{"a person names it later", svc("a", x), svc("b", x, given, younger, written("n1")), ""},
		{"they have other ports", svc("a", x, given), svc("b", x, given, younger, port(81)), ""},
		{"one adds a port of the other", svc("a", x, given, ports(1, 80, 443)), svc("b", x, given, younger, ports(1, 443)), "a [10.77.0.2] 10.77.0.1: port 443/TCP belongs to Service default/b, which had it first; "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, w := poolRules(), poolWorld("n1")
			w.Services, w.Members = []vip.Service{tt.a, tt.b}, w.Members[:1]
			assigner := pool.NewAssigner(0, func() {})
			assigner.Put(Make(r, w).Pools)
			assigner.Observe(&w)
			got := ""
			for _, a := range w.Assignments {
				first, _, _ := strings.Cut(a.Reason, a.Addresses[0].String()+" is of pool")
				got += fmt.Sprint(a.Service.Name, " ", a.Addresses, " ", first)
			}
			check.Equal(t, got, tt.want, "what is given")
		})
	}
}

// Where no pool offers an address any more that was given, the node that gives addresses says so in an Event.
func TestEventOfAddressOutsidePools(t *testing.T) {
	r, w := poolRules(), poolWorld("n1")
	w.Services = []vip.Service{svc("a", "10.77.0.99", written("n1"), func(s *vip.Service) { s.Allocated = "cidr-global" }), svc("b", "10.77.0.98", written("n1")),
		svc("c", "10.77.0.66", written("n1"), func(s *vip.Service) { s.Allocated = "cidr-default" })}
	w.Pools.Data["cidr-other"] = "10.77.0.64/28"
	for _, holder := range []string{"n1", "n2"} {
		w.Claims[poolsLease] = vip.Claim{Holder: holder, Valid: true}
		var told []string
		for _, e := range Make(r, w).Events {
			if e.Reason == vip.AddressOutsidePools {
				told = append(told, e.Service.Name)
			}
		}
		check.Equal(t, fmt.Sprint(told), map[string]string{"n1": "[a c]", "n2": "[]"}[holder], "told of, the lease held by %s", holder)
	}
}

// A given address that becomes somebody's is exchanged for another one, as if another Service had it.
func TestGivenAddressReserved(t *testing.T) {
	r := poolRules()
	r.Reserved = []netip.Prefix{netip.MustParsePrefix("10.77.0.3/32")}
	for a, want := range map[string]string{
		"10.77.0.1": "10.77.0.1 is the gateway of node n2", "10.77.0.2": "10.77.0.2 is the address of node n3",
		"10.77.0.3": "10.77.0.3 is a range that the operator has reserved", "10.77.0.4": "", "fd77::4": "",
	} {
		w := poolWorld("n1")
		w.Services[0].Addresses, w.Services[0].Allocated = []netip.Addr{addr(a)}, "global"
		w.Services[0].Families = []vip.Family{vip.IPv4}
		w.Members[1].Info.Gateways = []netip.Addr{addr("10.77.0.1")}
		w.Nodes = allNodes(vip.Node{Name: "n3", Addresses: []netip.Addr{addr("10.77.0.2")}})
		got := ""
		for _, l := range Make(r, w).Pools[0].Requests[0].Lost {
			got += l.Why
		}
		check.Equal(t, got, want, "%s", a)
	}
}

// What another host has is exchanged although the node that gives addresses does not hear that host: the owner's record says so.
func TestGivenAddressInUseElsewhere(t *testing.T) {
	r := poolRules()
	r.ProbeNew = true
	w := worldWithMACs(svc("a", "10.77.0.2"))
	w.Pools = poolWorld("").Pools
	w.Claims[poolsLease] = vip.Claim{Holder: "n2", Valid: true}
	w.Services[0].Allocated, w.Services[0].Source = "global", "kube-vip.io/loadbalancerIPs"
	w = withResults(heldNew(w, "a"), r, answeredBy("02:00:00:00:00:99"))
	for _, c := range Make(r, w).Statuses[0].Conditions {
		if c.Type == vip.Recorded {
			w.Services[0].SetConditions([]vip.Condition{c})
		}
	}
	w.Self, w.CheckResults = "n2", nil
	memberNamed(&w, "n2").Info.Links = nil
	p := Make(r, w)
	check.Equal(t, fmt.Sprint(p.Pools[0].InUse), "[10.77.0.2]", "in use, as the owner found")
	w.Services[0].Ingress = []vip.Ingress{{Addr: addr("10.77.0.2")}}
	check.Equal(t, len(Make(r, w).Pools[0].InUse), 0, "in use, although it has it since")
}
