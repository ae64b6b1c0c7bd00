package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

// TestQuota has three addresses for a namespace: of what it has none is taken, of the rest the oldest get them.
func TestQuota(t *testing.T) {
	asks := func(addrs ...string) vip.Service { return svc("d", strings.Join(addrs, ","), younger) }
	for _, tt := range []struct {
		name     string
		services []vip.Service
		want     string // what each may have
	}{
		{"the youngest gets what is left", []vip.Service{svc("a", "10.77.0.50,10.77.0.51"), asks("10.77.0.60", "10.77.0.61")}, "a: 10.77.0.50 10.77.0.51; d: 10.77.0.60"},
		{"nothing is left", []vip.Service{svc("a", "10.77.0.50,10.77.0.51,10.77.0.52"), asks("10.77.0.60")}, "a: 10.77.0.50 10.77.0.51 10.77.0.52; d: AddressRefused"},
		{"a shared address counts once", []vip.Service{svc("a", "10.77.0.50,10.77.0.51"), svc("b", "10.77.0.51", port(9)), asks("10.77.0.60")}, "a: 10.77.0.50 10.77.0.51; b: 10.77.0.51; d: 10.77.0.60"},
		{"who has an address keeps it", []vip.Service{svc("a", "10.77.0.50,10.77.0.51,10.77.0.52"), svc("d", "10.77.0.60,10.77.0.61", younger, written("n2"))}, "a: 10.77.0.50; d: 10.77.0.60 10.77.0.61"},
		{"more than the quota, had before", []vip.Service{svc("a", "10.77.0.50,10.77.0.51,10.77.0.52,10.77.0.53", written("n2")), asks("10.77.0.60")}, "a: 10.77.0.50 10.77.0.51 10.77.0.52 10.77.0.53; d: AddressRefused"},
		{"what DHCP servers are asked for counts", []vip.Service{svc("a", "10.77.0.50,10.77.0.51,0.0.0.0"), asks("0.0.0.0", "::")}, "a: 10.77.0.50 10.77.0.51 dhcp; d: AddressRefused"},
		{"other namespaces have theirs", []vip.Service{svc("a", "10.77.0.50,10.77.0.51,10.77.0.52"), svc("x", "10.77.0.60,10.77.0.61", tenant)}, "a: 10.77.0.50 10.77.0.51 10.77.0.52; x: 10.77.0.60 10.77.0.61"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, w := rules(), world(tt.services...)
			r.Quota = 3
			p := newPass(&r, &w)
			f := filter{pass: p, dhcp: newDHCP(p)}
			f.findServices()
			var got []string
			for _, s := range f.all {
				text := s.Key.Name + ":"
				for _, a := range s.addrs {
					text += " " + a.Addr.String()
				}
				for range s.dhcpFamilies {
					text += " dhcp"
				}
				if s.hasVerdict() {
					text = fmt.Sprintf("%s: %s", s.Key.Name, s.verdict.Reason)
				}
				got = append(got, text)
			}
			slices.Sort(got)
			if got := strings.Join(got, "; "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
	r, w := rules(), world(svc("a", "10.77.0.50,10.77.0.51", younger))
	r.Quota, w.Members = 1, w.Members[:1]
	events := Make(r, w).Events
	const want = "10.77.0.51: the Services of the namespace default have, or ask for, 1 addresses, and may have no more (svc_quota); release one, or ask the operator for more"
	if len(events) != 1 || events[0].Reason != vip.AddressRefused || events[0].Message != want {
		t.Errorf("the Events are %v", events)
	}
}

// TestQuotaOfWhatIsNotServed: addresses of pools that the statuses of a namespace's Services show count for its quota, though Herald serves these Services no more: whoever has it ignore
// one, and seem another announcer's, could else have more and more, by pool or by name.
func TestQuotaOfWhatIsNotServed(t *testing.T) {
	held := func(change func(*vip.Service)) []vip.Service {
		s := svc("a", "10.77.0.1,10.77.0.2", written("n1"), func(s *vip.Service) { s.Announcer = "somebody" })
		change(&s)
		return []vip.Service{s, svc("b", "", younger), svc("c", "10.77.0.3", younger), svc("x", "10.77.0.4", tenant)}
	}
	for _, tt := range []struct {
		name     string
		services []vip.Service
		want     string // who is given nothing, and who is refused what it names
	}{
		{"ignored", held(func(s *vip.Service) { s.Ignore = true }), "b is given nothing; c is refused"},
		{"of another class", held(func(s *vip.Service) { s.HasClass, s.Class = true, "other" }), "b is given nothing; c is refused"},
		{"what it asks for can't be read", held(func(s *vip.Service) { s.Addresses, s.Source = nil, "kube-vip.io/loadbalancerIPs" }), "b is given nothing; c is refused"},
		{"of no pool", held(func(s *vip.Service) {
			s.Ignore, s.Ingress = true, []vip.Ingress{{Addr: addr("192.0.2.1")}, {Addr: addr("192.0.2.2")}}
		}), ""},
		{"of no pool, but Herald let it have them", held(func(s *vip.Service) {
			s.Ignore, s.Ingress = true, []vip.Ingress{{Addr: addr("192.0.2.1")}, {Addr: addr("192.0.2.2")}}
			s.Conditions = allocated("192.0.2.1, 192.0.2.2: named by spec.loadBalancerIP")
		}), "b is given nothing; c is refused"},
		{"the same, of another class: another Herald's", held(func(s *vip.Service) {
			s.HasClass, s.Class, s.Ingress = true, "other", []vip.Ingress{{Addr: addr("192.0.2.1")}, {Addr: addr("192.0.2.2")}}
			s.Conditions = allocated("192.0.2.1, 192.0.2.2: named by spec.loadBalancerIP")
		}), ""},
		{"not shown", held(func(s *vip.Service) { s.Ignore, s.Ingress = true, nil }), ""},
		{"no LoadBalancer any more", held(func(s *vip.Service) { s.LoadBalancer = false }), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, w := poolRules(), poolWorld("n1")
			r.Quota, w.Services = 2, tt.services
			p := Make(r, w)
			var got []string
			for _, q := range p.Pools[0].Requests {
				if q.Key.Name == "b" && q.Foreign {
					got = append(got, "b is given nothing")
				}
			}
			for _, v := range p.Verdicts {
				if v.Reason == vip.AddressRefused {
					got = append(got, v.Service.Name+" is refused")
				}
			}
			if got := strings.Join(got, "; "); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestQuotaOfWhatSeemsAnothers: without pools, too, an address that Herald let a Service have counts for as long as the status of that Service shows it, by the
// condition Allocated, whatever its user makes of the Service and of the annotations that tell who wrote the status.
func TestQuotaOfWhatSeemsAnothers(t *testing.T) {
	ignored := func(s *vip.Service) { s.Ignore = true }
	for _, tt := range []struct {
		name  string
		steps []func(*vip.Service) // changes, one after the other
	}{
		{"ignored", []func(*vip.Service){ignored}},
		{"what it asks for can't be read, then ignored", []func(*vip.Service){func(s *vip.Service) {
			s.Addresses, s.Source, s.Invalid = nil, "kube-vip.io/loadbalancerIPs", []string{"kube-vip.io/loadbalancerIPs is wrong."}
		}, ignored}},
		{"it asks for another that no node can announce, then ignored", []func(*vip.Service){func(s *vip.Service) {
			s.Addresses, s.Interface = []netip.Addr{addr("10.77.0.52")}, "nope"
		}, ignored}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := rules()
			r.Quota, r.Announcer = 1, "kube-system"
			a, b := svc("a", "10.77.0.50", written("")), svc("b", "10.77.0.51", younger)
			a.Conditions = allocated("10.77.0.50: named by kube-vip.io/loadbalancerIPs")
			for i, step := range append(tt.steps, func(*vip.Service) {}) {
				step(&a)
				w := world(a, b)
				w.Members = w.Members[:1]
				p := Make(r, w)
				if got := reasonOf(p, "b"); got != vip.AddressRefused {
					t.Errorf("after step %d: b is %s", i, got)
				}
				for _, s := range p.Statuses {
					for _, c := range s.Conditions {
						if s.Service == a.Key {
							a.Conditions = slices.DeleteFunc(slices.Clone(a.Conditions), func(o vip.Condition) bool { return o.Type == c.Type })
							if c.Status != vip.ConditionAbsent {
								a.Conditions = append(a.Conditions, c)
							}
						}
					}
				}
			}
		})
	}
}

// TestQuotaOfDHCPClients: each client of a DHCP server counts, also where addresses are given, and each family that it asks for: what is given would be refused else.
func TestQuotaOfDHCPClients(t *testing.T) {
	sharing := func(s *vip.Service) { s.DHCP.Macvlan = "herald-shared" }
	for _, tt := range []struct {
		name     string
		quota    int
		mode     string
		services []vip.Service
		gives    bool // an address to one more
	}{
		{"two clients", 2, "ipv4", []vip.Service{svc("a", "0.0.0.0"), svc("b", "0.0.0.0")}, false},
		{"two clients, and three addresses", 3, "ipv4", []vip.Service{svc("a", "0.0.0.0"), svc("b", "0.0.0.0")}, true},
		{"one client of two Services", 2, "ipv4", []vip.Service{svc("a", "0.0.0.0", sharing), svc("b", "0.0.0.0", sharing, port(9))}, true},
		{"one client of both families", 2, "dual", []vip.Service{svc("a", "0.0.0.0")}, false},
		{"a client and an address", 2, "ipv4", []vip.Service{svc("a", "0.0.0.0"), svc("b", "10.77.0.50")}, false},
		{"two clients, of which the younger has a lease", 2, "ipv4", []vip.Service{svc("a", "0.0.0.0"), svc("zz", "0.0.0.0", younger, leased("10.77.0.99"))}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, w := poolRules(), poolWorld("n1")
			r.Quota, r.DHCPMode = tt.quota, tt.mode
			w.Services = append(tt.services, svc("z", "", younger))
			p := Make(r, w)
			for _, q := range p.Pools[0].Requests {
				if q.Key.Name == "z" && q.Foreign == tt.gives {
					t.Errorf("an address is given: %v, want %v", !q.Foreign, tt.gives)
				}
			}
			w.Services[len(w.Services)-1] = svc("z", "10.77.0.51", younger)
			p = Make(r, w)
			for _, v := range p.Verdicts {
				if v.Service.Name == "z" && (v.Reason == vip.AddressRefused) == tt.gives {
					t.Errorf("and once it has that: %v", v)
				}
			}
			for _, q := range p.Pools[0].Requests { // what is refused is kept from nobody
				if want := q.Key.Name == "z" && !tt.gives; q.Refused != want {
					t.Errorf("%s: refused %v, want %v", q.Key.Name, q.Refused, want)
				}
			}
		})
	}
}
