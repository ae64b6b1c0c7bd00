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

// conditionsWritten is who of all nodes writes which conditions of the Service a: "n1: Allocated=True AddressSet, Announced=...".
func conditionsWritten(r Rules, w vip.World) string {
	var out []string
	for _, m := range w.Members {
		w.Self = m.Name
		for _, s := range Make(r, bind(r, w)).Statuses {
			if s.Service != key("a") || s.UID != "uid-a" || len(s.Conditions) == 0 {
				continue
			}
			var all []string
			for _, c := range s.Conditions {
				if c.Type == vip.Recorded {
					continue
				}
				all = append(all, fmt.Sprintf("%s=%s %s", strings.TrimPrefix(string(c.Type), "heraldvip.io/"), c.Status, c.Reason))
			}
			with := ""
			if s.ConditionsOnly {
				with = " alone"
			}
			out = append(out, m.Name+with+": "+strings.Join(all, ", "))
		}
	}
	return strings.Join(out, "\n")
}

// TestConditions: one node writes the conditions of a Service: with the status, if it writes that.
func TestConditions(t *testing.T) {
	without := func(s *vip.Service) { s.Endpoints = vip.Endpoints{} }
	had := func(s *vip.Service) { s.Conditions = []vip.Condition{{Type: vip.Announced, Status: vip.ConditionTrue}} }
	given := func(s *vip.Service) { s.Allocated = "x" }
	r, bgp := rules(), bgpRules()
	pools := poolRules()
	waiting := poolWorld("n2")
	waiting.Assignments = []vip.Assignment{{Service: key("a"), UID: "uid-a", Reason: "none is free"}}
	waitingInvalid := poolWorld("n3") // n2 is responsible for the Service
	waitingInvalid.Assignments = waiting.Assignments
	waitingInvalid.Services[0].Invalid = []string{"heraldvip.io/foo is not known on a Service. It has no effect."}
	unreadable := poolWorld("n2")
	unreadable.Services[0].Source, unreadable.Services[0].Invalid = "spec.loadBalancerIP", []string{"spec.loadBalancerIP: no IP address."}
	const announced = "Allocated=True AddressSet, Announced=True VIPAnnounced"
	const removed = "Allocated= , Announced= "
	foreign := world(svc("a", "10.77.0.50"))
	foreign.Claims[key("kubevip-a")] = vip.Claim{Holder: "kube-vip-1", Foreign: true, Valid: true}
	foreignHad := world(svc("a", "10.77.0.50", had))
	foreignHad.Claims = foreign.Claims
	inPool := func(addr string, change ...func(*vip.Service)) vip.World {
		w := poolWorld("n2")
		w.Services = []vip.Service{svc("a", addr, append(change, given)...)}
		w.Pools.Data = map[string]string{"pool-x": "10.77.0.60/30"}
		w.PoolPolicy, _ = pool.Parse(nil, w.Pools.Data)
		return held(w, "a", "n1")
	}
	contested := held(world(svc("a", "10.77.0.50")), "a", "n2")
	contested.StatusFights = map[vip.Key]string{key("a"): `"other-lb"`}
	taken := held(world(svc("a", "10.77.0.50")), "a", "n2")
	taken.AddressFights = map[netip.Addr]bool{netip.MustParseAddr("10.77.0.50"): true}
	heldForAll := world(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.Interface = "nope" }))
	heldForAll.Claims[r.SharedLease] = vip.Claim{Holder: "n1", Valid: true}
	for _, tt := range []struct {
		name  string
		rules Rules
		world vip.World
		want  string
	}{
		{"announced, and somebody takes it off the link again and again", r, taken, "n2: Allocated=True AddressSet, Announced=True AddressContested"},
		{"announced", r, held(world(svc("a", "10.77.0.50")), "a", "n2"), "n2: " + announced},
		{"announced, and somebody changes its status again and again", r, contested, "n2: Allocated=True AddressSet, Announced=True StatusContested"},
		{"to be claimed", r, world(svc("a", "10.77.0.50")), ""},
		{"by BGP from every node", bgp, withSessions(world(svc("a", "10.77.0.50"))), "n1: " + announced},
		{"by BGP, without a session", bgp, world(svc("a", "10.77.0.50")), "n1 alone: Allocated=True AddressSet, Announced=False NoBGPSession"},
		{"without an endpoint", r, world(svc("a", "10.77.0.50", without)), "n1: Allocated=True AddressSet, Announced=False NoEndpoints"},
		{"no node may", r, held(world(svc("a", "10.77.0.50", func(s *vip.Service) { s.Interface = "nope" })), "a", "n2"), "n2 alone: Allocated=True AddressSet, Announced=False NoEligibleNode"},
		{"one node owns all, and the link that it names is not there", withoutElection(), heldForAll, "n1: Allocated=True AddressSet, Announced=False NoEligibleNode"},
		{"refused", r, world(svc("a", "10.77.0.11")), "n1 alone: Allocated=False AddressRefused, Announced=False AddressRefused"},
		{"another Service has it", r, world(svc("a", "10.77.0.50", younger), svc("b", "10.77.0.50", written("n1"))), "n1 alone: Allocated=False AddressConflict, Announced=False AddressConflict"},
		{"no address, and nobody gives one", r, world(svc("a", "")), "n1 alone: Allocated=False NoAddress, Announced=False NoAddress"},
		{"no address, and it waits for one", pools, waiting, "n2 alone: Allocated=False NoPoolAddress, Announced=False NoPoolAddress"},
		{"no address, it waits for one, and an annotation is not known", pools, waitingInvalid, "n3 alone: Allocated=False NoPoolAddress, Announced=False NoPoolAddress"},
		{"no address, nobody gives one, and an annotation is not known", r, world(waitingInvalid.Services...), "n1 alone: Allocated=False NoAddress, Announced=False NoAddress"},
		{"an address that can't be read", pools, unreadable, "n1 alone: Allocated=False InvalidField, Announced=False InvalidField"},
		{"no address, and one is on its way", pools, poolWorld("n2"), ""},
		{"given an address", pools, inPool("10.77.0.60"), "n1: Allocated=True AddressAllocated, Announced=True VIPAnnounced"},
		{"given one that is in no pool any more", pools, inPool("10.77.0.99"), "n1: Allocated=True AddressOutsidePools, Announced=True VIPAnnounced"},
		{"held by another announcer", r, foreign, ""},
		{"held by another announcer, and ours before", r, foreignHad, "n1 alone: Allocated=True AddressSet, Announced=Unknown HeldByOtherAnnouncer"},
		{"ignored, never ours", r, world(svc("a", "10.77.0.50", func(s *vip.Service) { s.Ignore = true })), ""},
		{"ignored now", r, world(svc("a", "10.77.0.50", had, func(s *vip.Service) { s.Ignore = true })), "n1 alone: " + removed},
		{"no LoadBalancer any more", r, world(svc("a", "", had, func(s *vip.Service) { s.LoadBalancer = false })), "n1 alone: " + removed},
		{"of another class: another Herald may have written them", r, world(svc("a", "10.77.0.50", had, func(s *vip.Service) { s.HasClass, s.Class = true, "x" })), ""},
		{"of another class, and its status is ours", r, world(svc("a", "10.77.0.50", had, written("n2"), func(s *vip.Service) { s.HasClass, s.Class = true, "x" })), "n2: " + removed},
		{"no statuses are written", Rules{Enabled: true, ARP: true, CommonOptions: vip.CommonOptions{Election: true}, NoStatus: true}, world(svc("a", "10.77.0.11")), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := conditionsWritten(tt.rules, tt.world)
			if tt.want == "" && got != "" || tt.want != "" && !sameButForTheNode(got, tt.want) {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			if got == "" || strings.Contains(got, "=  ") {
				return
			}
			// What is written is written once.
			w := tt.world
			for _, m := range w.Members {
				w.Self = m.Name
				w.Services = withStatuses(w.Services, Make(tt.rules, bind(tt.rules, w)))
			}
			for line := range strings.Lines(conditionsWritten(tt.rules, w)) {
				check.Equal(t, strings.Contains(line, " alone: "), false, "written again by %s", line)
			}
		})
	}
}

// TestForeignStatusStays: that Herald has written why it serves a Service nowhere makes another controller's status not its own.
func TestForeignStatusStays(t *testing.T) {
	r := rules()
	w := world(svc("a", "10.77.0.50", func(s *vip.Service) {
		s.Interface, s.Ingress = "nope", []vip.Ingress{{Addr: addr("10.77.0.50")}}
	}))
	for pass := range 3 {
		w.Services[0].Ignore = pass == 2
		for _, m := range w.Members {
			w.Self = m.Name
			p := Make(r, bind(r, w))
			for _, s := range p.Statuses {
				check.Equal(t, s.ConditionsOnly, true, "pass %d on %s: only conditions are written", pass, m.Name)
			}
			w.Services = withStatuses(w.Services, p)
		}
	}
}

// sameButForTheNode compares lines; which node it is if nobody owns the Service follows from a hash.
func sameButForTheNode(got, want string) bool {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	return slices.EqualFunc(g, w, func(a, b string) bool {
		return a == b || strings.HasPrefix(w[0], "n1") && strings.TrimLeft(a, "n123") == strings.TrimLeft(b, "n123")
	})
}

// A message of any length is cut.
func TestConditionMessage(t *testing.T) {
	w := world(svc("a", "", func(s *vip.Service) {
		s.Source, s.Invalid = "spec.loadBalancerIP", []string{strings.Repeat("\u00e4", 1000)}
	}))
	found := false
	for _, m := range w.Members {
		w.Self = m.Name
		for _, s := range Make(rules(), w).Statuses {
			for _, c := range s.Conditions {
				if found = true; c.Type != vip.Recorded && (len(c.Message) > 1024 || len(c.Message) < 1000 || !strings.HasSuffix(c.Message, "\u00e4...")) {
					t.Errorf("%d bytes: %s", len(c.Message), c.Message)
				}
			}
		}
	}
	check.Equal(t, found, true, "some conditions are found")
}

// The entries for ports in a status are all or, where they would be too many, none.
func TestPortsInStatus(t *testing.T) {
	for _, tt := range []struct{ ports, addrs, want int }{{1, 1, 1}, {64, 16, 64}, {65, 16, 0}, {1024, 1, 1024}, {1025, 1, 0}, {7000, 16, 0}} {
		s := svc("a", "", func(s *vip.Service) { s.Ports = nil })
		for i := range tt.addrs {
			s.Addresses = append(s.Addresses, netip.AddrFrom4([4]byte{10, 77, 0, byte(50 + i)}))
		}
		for i := range tt.ports {
			s.Ports = append(s.Ports, vip.Port{Protocol: "TCP", Port: uint16(1 + i)})
		}
		w := held(world(s), "a", "n1")
		status := Make(rules(), bind(rules(), w)).Statuses[0]
		if len(status.Ingress) != tt.addrs || len(status.Ingress[0].Ports) != tt.want {
			t.Errorf("%d ports, %d addresses: %d entries with %d ports, want %d", tt.ports, tt.addrs, len(status.Ingress), len(status.Ingress[0].Ports), tt.want)
		}
		w.StatusRefusals = map[vip.Key]string{key("a"): "too large"}
		check.Contains(t, summary(Make(rules(), bind(rules(), w))), "event a StatusRefused")
	}
}

// TestAllocated: the record has each address of a Service, wherever that is from, and the condition says so.
func TestAllocated(t *testing.T) {
	of := func(pool string, own ...netip.Addr) func(*vip.Service) {
		return func(s *vip.Service) { s.Allocated, s.Own = pool, own }
	}
	for _, tt := range []struct {
		name   string
		s      vip.Service
		dhcp   bool // 10.77.0.60 is leased
		record string
		want   string
	}{
		{"named", svc("a", "10.77.0.60,fd77::60"), false, `{"named":["10.77.0.60","fd77::60"]}`, "AddressSet 10.77.0.60, fd77::60: named by "},
		{"of a pool", svc("a", "10.77.0.5", of("web")), false, `{"given":["10.77.0.5"]}`, "AddressAllocated 10.77.0.5: of pool web"},
		{"one of two named", svc("a", "10.77.0.60,10.77.0.5", of("web", addr("10.77.0.60"))), false, `{"named":["10.77.0.60"],"given":["10.77.0.5"]}`,
			"AddressSet 10.77.0.60: named by ; 10.77.0.5: of pool web"},
		{"in no pool any more", svc("a", "10.77.0.60", of("web")), false, `{"given":["10.77.0.60"]}`, "AddressOutsidePools 10.77.0.60: given of pool web, and no pool offers it any more"},
		{"one of two in no pool any more", svc("a", "10.77.0.60,10.77.0.5", of("web")), false, `{"given":["10.77.0.60","10.77.0.5"]}`,
			"AddressOutsidePools 10.77.0.5: of pool web; 10.77.0.60: given of pool web, and no pool offers it any more"},
		{"leased", svc("a", "10.77.0.60"), true, `{"leased":["10.77.0.60"],"mac":"MAC","link":"LINK"}`, "AddressSet 10.77.0.60: leased by a DHCP server to MAC on LINK"},
		{"leased and of a pool", svc("a", "10.77.0.60,10.77.0.5", of("web", addr("0.0.0.0"))), true, `{"given":["10.77.0.5"],"leased":["10.77.0.60"],"mac":"MAC","link":"LINK"}`,
			"AddressAllocated 10.77.0.60: leased by a DHCP server to MAC on LINK; 10.77.0.5: of pool web"},
		{"leased for a pool that no longer leases", svc("a", "10.77.0.60", of("web")), true,
			`{"leased":["10.77.0.60"],"mac":"MAC","link":"LINK"}`, "AddressOutsidePools 10.77.0.60: leased by a DHCP server to MAC on LINK; 0.0.0.0: given of pool web, and no pool offers it any more"},
		{"leased and named", svc("a", "10.77.0.60,fd77::60"), true, `{"named":["fd77::60"],"leased":["10.77.0.60"],"mac":"MAC","link":"LINK"}`,
			"AddressSet 10.77.0.60: leased by a DHCP server to MAC on LINK; fd77::60: named by "},
	} {
		r, w := poolRules(), poolWorld("n1")
		w.Services = []vip.Service{tt.s}
		w.Pools.Data = map[string]string{"pool-web": "10.77.0.0/28"}
		p := newFacts(&r, &w)
		s := &service{Service: &w.Services[0]}
		for _, a := range tt.s.Addresses {
			s.addrs = append(s.addrs, address{Address: vip.Address{Addr: a}})
		}
		if tt.dhcp {
			s.client = newDHCPClient(clientID(&tt.s), s)
			s.addrs[0].client, s.dhcpFamilies, w.Services[0].Addresses[0] = s.client, []vip.Family{vip.IPv4}, addr("0.0.0.0")
			replace := strings.NewReplacer("MAC", s.client.mac, "LINK", s.client.link)
			tt.record, tt.want = replace.Replace(tt.record), replace.Replace(tt.want)
		}
		record, reason, message := p.allocated(s)
		if got := string(reason) + " " + message; record.String() != tt.record || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %s, %s", tt.name, &record, got)
		}
	}
}

// TestRecordStays: what only the Record names is recorded until the Service may not have it: also while no node may
// announce it, so that its status is cleared, another host has it, or something else that the Service says is wrong.
func TestRecordStays(t *testing.T) {
	kept := svc("a", "10.77.0.50", func(s *vip.Service) {
		s.Source = vip.SourceStatus
		recorded(s, vip.Record{Named: s.Addresses})
	})
	shown := kept
	written("n1")(&shown)
	wrong := shown
	wrong.Announce = []vip.Method{vip.ByBGP}
	refused := kept
	refused.Addresses = []netip.Addr{addr("10.77.0.11")}
	recorded(&refused, vip.Record{Named: refused.Addresses})
	named := svc("a", "10.77.0.50")
	for _, tt := range []struct {
		name  string
		world vip.World
		want  vip.ConditionStatus
	}{
		{"no node may announce it", with(held(worldWithMACs(shown), "a", "n1"), func(w *vip.World) {
			w.Members = w.Members[:1]
			w.Members[0].Info.Links[0].Up = false
		}), vip.ConditionTrue},
		{"another host has it", withResults(heldNew(worldWithMACs(kept), "a"), probingRules(), answeredBy(foreignMAC)), vip.ConditionTrue},
		{"... and only a field names it", withResults(heldNew(worldWithMACs(named), "a"), probingRules(), answeredBy(foreignMAC)), vip.ConditionAbsent},
		{"it asks for no way to announce it that there is", with(world(wrong), func(w *vip.World) { w.Members = w.Members[:1] }), vip.ConditionTrue},
		{"it is a node's", with(world(refused), func(w *vip.World) { w.Members = w.Members[:1] }), vip.ConditionAbsent},
	} {
		statuses := Make(probingRules(), tt.world).Statuses
		if len(statuses) != 1 || len(statuses[0].Conditions) != 3 {
			t.Errorf("%s: %+v", tt.name, statuses)
			continue
		}
		check.Equal(t, statuses[0].Conditions[2].Status, tt.want, "%s: %+v; the record", tt.name, statuses[0])
	}
}
