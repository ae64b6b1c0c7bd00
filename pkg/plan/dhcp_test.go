package plan

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

// withMacvlans says that the links that the plan wants are there.
func withMacvlans(w vip.World) vip.World {
	w.Macvlans = Make(rules(), w).Macvlans
	return w
}

// withDHCPStates says what has become of the DHCPRequests of the plan.
func withDHCPStates(w vip.World, answers ...vip.DHCPState) vip.World {
	p := Make(rules(), w)
	w.DHCPStates = nil
	for i, h := range p.DHCPRequests {
		x := vip.DHCPState{State: "selecting"}
		if i < len(answers) {
			x = answers[i]
		}
		x.Request = h
		if x.Lease.Addr.IsValid() {
			x.Lease.MAC = h.MAC
		}
		w.DHCPStates = append(w.DHCPStates, x)
	}
	return w
}

func leasedState(a string, w vip.World) vip.DHCPState {
	bits := 24
	if addr(a).Is6() {
		bits = 128
	}
	return vip.DHCPState{State: "bound", Lease: vip.DHCPLease{Addr: addr(a), Bits: bits, Server: "10.77.0.1", Expires: w.Now.Add(time.Hour)}}
}

// withLeased says that the macvlan of the one client is there, and what a DHCP server has leased to it.
func withLeased(r Rules, w vip.World, a string) vip.World {
	w.Macvlans = Make(r, w).Macvlans
	x := leasedState(a, w)
	x.Request = Make(r, w).DHCPRequests[0]
	x.Lease.MAC = x.Request.MAC
	w.DHCPStates = []vip.DHCPState{x}
	return w
}

// leased says that a DHCP server has leased an address to the client of the Service, whose macvlan and MAC it must
// name already, and that the owner has written that to the status.
func leased(a string) func(*vip.Service) {
	return func(s *vip.Service) {
		c := newDHCPClient(clientID(s), &service{Service: s})
		s.Ingress = []vip.Ingress{{Addr: addr(a)}}
		recorded(s, vip.Record{Leased: []netip.Addr{addr(a)}, MAC: c.mac, Link: c.link, Hostname: c.hostname})
	}
}

// named says that the Service named an address of its own until now, which its status shows.
func named(a string) func(*vip.Service) {
	return func(s *vip.Service) {
		s.Ingress = []vip.Ingress{{Addr: addr(a)}}
		recorded(s, vip.Record{Named: []netip.Addr{addr(a)}})
	}
}

// recorded says that the owner has written conditions with that record.
func recorded(s *vip.Service, r vip.Record) {
	s.SetConditions([]vip.Condition{{Type: vip.Allocated, Status: vip.ConditionTrue, Reason: vip.AddressSet}, r.Condition()})
}

// dhcpSummary adds links and clients to summary.
func dhcpSummary(p vip.Plan) string {
	var b strings.Builder
	for _, l := range p.Macvlans {
		b.WriteString("link on " + l.Parent + "\n")
	}
	for _, h := range p.DHCPRequests {
		b.WriteString("request " + h.Family.String())
		if h.LastLease.Addr.IsValid() {
			b.WriteString(" last " + h.LastLease.Addr.String())
		}
		if h.Requested.IsValid() {
			b.WriteString(" ask " + h.Requested.String())
		}
		if h.Declined.IsValid() {
			b.WriteString(" decline " + h.Declined.String())
		}
		if h.Release {
			b.WriteString(" release")
		}
		b.WriteString("\n")
	}
	text := summary(p)
	for _, l := range p.Macvlans { // a hash
		text = strings.ReplaceAll(text, l.Name, "macvlan")
	}
	return b.String() + text
}

// One Service from its creation to its end.
func TestDHCP(t *testing.T) {
	s := svc("a", "0.0.0.0", func(s *vip.Service) { s.DHCP.Hostname = "web" })
	r := rules()
	w := world(s)
	w.Members = w.Members[:1]
	diff(t, dhcpSummary(Make(r, w)), "kubevip-a -> n1\na: VIPClaiming")
	w = held(w, "a", "n1")
	diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4\nkubevip-a -> n1\na: DHCPPending")
	if m := Make(r, w).Macvlans[0]; m.RPFilter != 2 || m.IPv6 || len(m.Name) != 15 {
		t.Errorf("%+v", m)
	}
	w = withDHCPStates(withMacvlans(w))
	diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4\nkubevip-a -> n1\na: DHCPPending")
	w = withDHCPStates(w, leasedState("10.77.0.155", w))
	diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4\nkubevip-a -> n1\nbind 10.77.0.155/32 dev macvlan\na: VIPAnnounced")
	w = bind(r, w)
	p := Make(r, w)
	diff(t, dhcpSummary(p), "link on eth0\nrequest IPv4\nkubevip-a -> n1\nbind 10.77.0.155/32 dev macvlan\nstatus a 10.77.0.155(VIP)\na: VIPAnnounced\nevent a VIPAnnounced")
	if p.Announcements[0].Link != p.Macvlans[0].Name || p.Addresses[0].New {
		t.Errorf("%+v, %+v", p.Announcements, p.Addresses)
	}
	written := p.Statuses[0]
	if len(written.DHCPLeases) != 1 || written.DHCPLeases[0].Server != "10.77.0.1" || written.DHCPLeases[0].MAC != p.DHCPRequests[0].MAC {
		t.Errorf("recorded: %+v", written.DHCPLeases)
	}
	// As recorded.
	w.Services[0].VIPHost, w.Services[0].Ingress, w.Services[0].DHCP.Leases = "n1", written.Ingress, written.DHCPLeases
	w.Services[0].SetConditions(written.Conditions)
	w.Services[0].DHCP.Requested = []netip.Addr{addr("10.77.0.155")}
	w.DHCPStates[0].Lease.Expires = w.DHCPStates[0].Lease.Expires.Add(30 * time.Second)
	check.Same(t, written, Make(r, w).Statuses[0], "after a short renewal")
	w.DHCPStates[0].Lease.Expires = w.DHCPStates[0].Lease.Expires.Add(time.Hour)
	check.Equal(t, Make(r, w).Statuses[0].DHCPLeases[0].Expires.Equal(written.DHCPLeases[0].Expires), false, "a long one is the one before")
	for requested, want := range map[string]int{"10.77.0.155": 0, "10.77.0.99": 1, "fd77::9": 0} {
		w.Services[0].DHCP.Requested = []netip.Addr{addr(requested)}
		events := slices.DeleteFunc(Make(r, w).Events, func(e vip.Event) bool { return e.Reason != vip.InvalidField })
		if len(events) != want || want > 0 && !strings.Contains(events[0].Message, "requestedIP names 10.77.0.99, but") {
			t.Errorf("requestedIP is %s: %+v", requested, events)
		}
	}
	w.Services[0].DHCP.Requested = []netip.Addr{addr("10.77.0.155")}

	t.Run("another process", func(t *testing.T) { // knows of it by the status
		w := w
		w.DHCPStates = nil
		diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4 last 10.77.0.155 ask 10.77.0.155\nkubevip-a -> n1\nbind 10.77.0.155/32 dev macvlan\nstatus a 10.77.0.155(VIP)\na: VIPAnnounced\nevent a VIPAnnounced")
		w.Now = w.Now.Add(2 * time.Hour) // it is over
		w.Tenure.Until = w.Now.Add(time.Hour)
		diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4 last 10.77.0.155 ask 10.77.0.155\nkubevip-a -> n1\na: DHCPPending")
	})
	t.Run("taken over from a node whose kernel answers", func(t *testing.T) { // with the MAC of the client, which two nodes can't have
		w := w
		w.DHCPStates, w.Macvlans, w.Bound, w.CheckResults = nil, nil, nil, map[netip.Addr]vip.CheckResult{}
		w.Members = worldWithMACs().Members
		w.Members[1].Alive, w.Members[1].AnswersUntil = false, w.Now.Add(time.Second)
		mac := p.Macvlans[0].MAC
		before := Make(r, w)
		diff(t, dhcpSummary(before), "kubevip-a -> n1\na: VIPAnnounced")
		if got := checksSummary(before); !strings.Contains(got, " former") || len(before.AddressChecks) != 1 || before.AddressChecks[0].Link != "eth0" || !strings.Contains(before.AddressChecks[0].AllowedMACs, mac) {
			t.Errorf("asks %+v", before.AddressChecks)
		}
		long := Make(r, withResults(w, r, func(x *vip.CheckResult) { x.StillAnsweredBy = mac }))
		diff(t, dhcpSummary(long), "kubevip-a -> n1\na: FormerOwnerAnswers\nevent a FormerOwnerAnswers")
		check.Contains(t, long.Verdicts[0].Message, "10.77.0.155 on eth0 (MAC "+mac+" of node n2)")
		w = withResults(w, r, func(x *vip.CheckResult) { x.NoAnswer = true })
		diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4 last 10.77.0.155 ask 10.77.0.155\nkubevip-a -> n1\na: VIPAnnounced")
		w = withMacvlans(w)
		w.CheckResults = nil
		diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4 last 10.77.0.155 ask 10.77.0.155\nkubevip-a -> n1\nbind 10.77.0.155/32 dev macvlan\na: VIPAnnounced")
	})
	t.Run("another address", func(t *testing.T) {
		w := w
		w.DHCPStates = slices.Clone(w.DHCPStates)
		w.DHCPStates[0].Lease.Addr = addr("10.77.0.156")
		diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4 last 10.77.0.155 ask 10.77.0.155\nkubevip-a -> n1\nbind 10.77.0.156/32 dev macvlan\na: VIPAnnounced")
		w = bind(r, w)
		diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4 last 10.77.0.155 ask 10.77.0.155\nkubevip-a -> n1\nbind 10.77.0.156/32 dev macvlan\nstatus a 10.77.0.156(VIP)\na: VIPAnnounced\nevent a VIPAnnounced")
	})
	t.Run("no endpoints", func(t *testing.T) { // the lease is kept in case they come back
		w := w
		w.Services = slices.Clone(w.Services)
		w.Services[0].Endpoints = vip.Endpoints{}
		p := Make(r, w)
		diff(t, dhcpSummary(p), "status a 10.77.0.155(VIP)\na: NoEndpoints\nevent a NoEndpoints")
		if x := p.Statuses[0]; len(x.DHCPLeases) != 1 || !strings.Contains(x.Conditions[2].Message, `"leased":["10.77.0.155"]`) {
			t.Errorf("status %+v", x)
		}
		later := w
		later.Now = w.Now.Add(100 * 24 * time.Hour)
		later.Tenure.Until, later.Services[0].Created = later.Now.Add(time.Minute), w.Now
		diff(t, dhcpSummary(Make(r, later)), "status a\na: NoEndpoints\nevent a NoEndpoints") // nobody has renewed it
	})
	handedOver := func(inDoubt bool) func(*vip.World) {
		return func(w *vip.World) {
			w.Claims = map[vip.Key]vip.Claim{key("kubevip-a"): {Holder: "n2", Valid: true, PreviousHolder: "n1", Transitions: 2}}
			w.Members = world().Members
			w.HandingOver = map[vip.Key]vip.HandingOver{key("kubevip-a"): {Successor: "n2", Since: w.Now, Until: w.Now.Add(3 * time.Second), InDoubt: inDoubt}}
		}
	}
	serviceIs := func(change func(*vip.Service)) func(*vip.World) {
		return func(w *vip.World) {
			w.Services = slices.Clone(w.Services)
			change(&w.Services[0])
		}
	}
	noLink := func(w *vip.World) {
		w.MacvlanErrors = map[string]string{w.Macvlans[0].Name: "an interface of that name is there already"}
		w.Macvlans, w.Bound, w.DHCPStates = nil, nil, nil
	}
	const asksAgain = "link on eth0\nrequest IPv4 last 10.77.0.155 ask 10.77.0.155\n"
	runPlans(t, planned(dhcpSummary), []planTest{
		{"expired", r, with(w, func(w *vip.World) {
			w.DHCPStates = []vip.DHCPState{{Request: w.DHCPStates[0].Request, State: "selecting", Lost: true, Problem: "it has expired"}}
		}), asksAgain + "kubevip-a -> n1\nstatus a\na: DHCPFailed\nevent a DHCPFailed"},
		{"handed over, at once: two nodes can't have one hardware address", r, with(w, handedOver(false)), "a: VIPElsewhere"},
		{"handed over by a write without an answer: the other may never have it", r, with(w, handedOver(true)),
			asksAgain + "bind 10.77.0.155/32 dev macvlan with a deadline\na: VIPElsewhere"},
		{"deleted", r, with(w, func(w *vip.World) { w.Services = nil }), "link on eth0\nrequest IPv4 release"},
		{"deleted before it has a lease: a server may have granted one by now", r, with(w, func(w *vip.World) {
			w.Services, w.Bound, w.DHCPStates = nil, nil, []vip.DHCPState{{Request: w.DHCPStates[0].Request, State: "checking"}}
		}), "link on eth0\nrequest IPv4 release"},
		{"deleted, while a gateway has a port of it open", r, with(w, func(w *vip.World) {
			w.Services = nil
			w.MappingStates = []vip.MappingState{{Mapping: vip.Mapping{Service: key("a"), Addr: addr("10.77.0.155"), Port: 80}, Gateway: "10.77.0.1", Requested: true, Confirmed: true}}
		}), "link on eth0\nrequest IPv4\nbind 10.77.0.155/32 dev macvlan with a deadline"},
		{"no link for it", r, with(w, noLink), "link on eth0\nkubevip-a -> n1\na: DHCPFailed\nevent a DHCPFailed"},
		{"... and the lease is over", r, with(with(w, noLink), serviceIs(func(s *vip.Service) {
			s.DHCP.Leases = slices.Clone(s.DHCP.Leases)
			s.DHCP.Leases[0].Expires = epoch.Add(-time.Second)
		})), "link on eth0\nkubevip-a -> n1\nstatus a\na: DHCPFailed\nevent a DHCPFailed"},
		{"ignored", r, with(w, serviceIs(func(s *vip.Service) { s.Ignore = true })), "link on eth0\nrequest IPv4 release\nstatus a\na: Ignored\nevent a VIPWithdrawn"},
		{"only the status names it: the lease goes on", r, with(w, serviceIs(func(s *vip.Service) {
			s.Addresses, s.Source = []netip.Addr{addr("10.77.0.155")}, vip.SourceStatus
		})), asksAgain + "kubevip-a -> n1\nbind 10.77.0.155/32 dev macvlan\nstatus a 10.77.0.155(VIP)\na: VIPAnnounced\nevent a VIPAnnounced"},
	})
}

// Both families, by name and by dhcp_mode.
func TestDHCPDual(t *testing.T) {
	r := rules()
	dual := func(s *vip.Service) { s.Families = []vip.Family{vip.IPv4, vip.IPv6} }
	w := held(world(svc("a", "0.0.0.0,::", dual)), "a", "n1")
	w = withMacvlans(w)
	w = withDHCPStates(w, leasedState("10.77.0.155", w))
	w = bind(r, w)
	diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4\nrequest IPv6\nkubevip-a -> n1\nbind 10.77.0.155/32 dev macvlan\nstatus a 10.77.0.155(VIP)\na: DHCPPending")
	w = withDHCPStates(w, leasedState("10.77.0.155", w), leasedState("fd77::5", w))
	w = bind(r, w)
	diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4\nrequest IPv6\nkubevip-a -> n1\nbind 10.77.0.155/32 dev macvlan\nbind fd77::5/128 dev macvlan\nstatus a 10.77.0.155(VIP) fd77::5(VIP)\na: VIPAnnounced\nevent a VIPAnnounced")
	written("n1")(&w.Services[0])
	w.Services[0].Ingress = Make(r, w).Statuses[0].Ingress
	w.DHCPStates[1].Lease.Expires = w.Now // an address of an ended lease goes from the status
	diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4\nrequest IPv6\nkubevip-a -> n1\nbind 10.77.0.155/32 dev macvlan\nstatus a 10.77.0.155(VIP)\na: DHCPPending")
	check.Equal(t, Make(r, w).Macvlans[0].IPv6, true, "the link has IPv6")
	for _, x := range []struct {
		mode, addrs, want string
		families          []vip.Family
	}{
		{"ipv4", "0.0.0.0", "IPv4", nil},
		{"ipv6", "0.0.0.0", "IPv6", nil},
		{"dual", "0.0.0.0", "IPv4 IPv6", nil},
		{"dual", "0.0.0.0", "IPv4 IPv6", []vip.Family{vip.IPv6, vip.IPv4}},
		{"dual", "0.0.0.0", "IPv4", []vip.Family{vip.IPv4}},
		{"dual", "0.0.0.0", "IPv6", []vip.Family{vip.IPv6}},
		{"dual", "::", "IPv6", nil},
		{"ipv6", "0.0.0.0,::", "IPv4 IPv6", nil},
		{"ipv4", "::", "", []vip.Family{vip.IPv4}},
	} {
		r.DHCPMode = x.mode
		w := held(world(svc("a", x.addrs, func(s *vip.Service) { s.Families = x.families })), "a", "n1")
		var asked []string
		for _, h := range Make(r, w).DHCPRequests {
			asked = append(asked, h.Family.String())
		}
		check.Equal(t, strings.Join(asked, " "), x.want, "dhcp_mode=%s, %s, families %v: asks for", x.mode, x.addrs, x.families)
	}
}

// A Service that is to have one family no more gives that family's lease back, and keeps the other's.
func TestDHCPOneFamilyLess(t *testing.T) {
	r := rules()
	for _, x := range []struct{ before, after, want string }{
		{"0.0.0.0,::", "0.0.0.0", "request IPv4\nrequest IPv6 release"},
		{"0.0.0.0", "::", "request IPv6\nrequest IPv4 release"},
		{"0.0.0.0", "10.77.0.60", "request IPv4 release"},
	} {
		w := withMacvlans(held(world(svc("a", x.before)), "a", "n1"))
		w = withDHCPStates(w, leasedState("10.77.0.50", w), leasedState("fd77::51", w))
		w.Services = world(svc("a", x.after)).Services
		p := Make(r, w)
		got, _, _ := strings.Cut(dhcpSummary(p), "\nkubevip-a")
		diff(t, got, "link on eth0\n"+x.want)
		check.Equal(t, len(p.Macvlans), 1, "macvlans")
	}
}

// Another node can go on with what is recorded of a lease at any time, however short the lease is.
func TestShortLeaseIsRecorded(t *testing.T) {
	r := rules()
	for _, x := range []struct {
		lease, renewed time.Duration // how long it lasts, and how much longer after a renewal
		want           bool
	}{
		{12 * time.Second, 6 * time.Second, true}, {time.Minute, 30 * time.Second, true}, {time.Minute, 5 * time.Second, false},
		{time.Hour, 59 * time.Second, false}, {time.Hour, 30 * time.Minute, true},
	} {
		w := withMacvlans(held(world(svc("a", "0.0.0.0")), "a", "n1"))
		w = withDHCPStates(w, leasedState("10.77.0.155", w))
		w.DHCPStates[0].Lease.Expires = w.Now.Add(x.lease)
		w = bind(r, w)
		written := Make(r, w).Statuses[0]
		w.Services[0].VIPHost, w.Services[0].Ingress, w.Services[0].DHCP.Leases = "n1", written.Ingress, written.DHCPLeases
		w.Services[0].SetConditions(written.Conditions)
		w.Now = w.Now.Add(x.renewed)
		w.DHCPStates[0].Lease.Expires = w.Now.Add(x.lease)
		got := !Make(r, w).Statuses[0].DHCPLeases[0].Expires.Equal(written.DHCPLeases[0].Expires)
		check.Equal(t, got, x.want, "a lease of %v, renewed %v later, is recorded", x.lease, x.renewed)
	}
}

// The identity is a function of the Service alone.
func TestDHCPIdentity(t *testing.T) {
	uid := func(s *vip.Service) { s.UID = "3F2504E0-4F89-11D3-9A0C-0305E82C3301" }
	one := func(node string, change ...func(*vip.Service)) (vip.DHCPRequest, vip.Macvlan) {
		t.Helper()
		w := held(world(svc("a", "::", append(change, uid)...)), "a", node)
		w.Self = node
		p := Make(rules(), w)
		if len(p.DHCPRequests) != 1 || len(p.Macvlans) != 1 {
			t.Fatalf("%+v", p)
		}
		return p.DHCPRequests[0], p.Macvlans[0]
	}
	h, l := one("n1")
	if h2, l2 := one("n2"); h2 != h || l2 != l {
		t.Errorf("another on another node: %+v %+v, %+v %+v", h, l, h2, l2)
	}
	check.Equal(t, h.DUID, "00043f2504e04f8911d39a0c0305e82c3301", "DUID")
	if !strings.HasPrefix(l.Name, "herald-") || len(l.Name) > 15 || h.MAC[1] != '2' && h.MAC[1] != '6' && h.MAC[1] != 'a' && h.MAC[1] != 'e' {
		t.Errorf("link %s, MAC %s", l.Name, h.MAC)
	}
	h, l = one("n1", func(s *vip.Service) {
		s.DHCP = vip.DHCP{MAC: "02:00:5e:00:00:01", Hostname: "web", Broadcast: true, Macvlan: "herald-web0", RPFilter: "0", Requested: []netip.Addr{addr("fd77::9"), addr("10.0.0.9")}}
	})
	if h.MAC != "02:00:5e:00:00:01" || h.DUID != "0003000102005e000001" || h.Hostname != "web" || !h.Broadcast || h.Link != "herald-web0" || l.Name != "herald-web0" || l.RPFilter != 0 || h.Requested != addr("fd77::9") {
		t.Errorf("as annotated: %+v %+v", h, l)
	}
}

// Services of a namespace that name the same macvlan share a lease.
func TestDHCPShared(t *testing.T) {
	shared := func(s *vip.Service) { s.DHCP.Macvlan = "herald-web0" }
	other := func(s *vip.Service) { s.Key.Namespace = "other" }
	r := rules()
	w := world(svc("a", "0.0.0.0", shared), svc("b", "0.0.0.0", shared, port(443), younger), svc("c", "0.0.0.0", shared, other, younger), svc("d", "0.0.0.0", shared, younger, younger))
	w = held(w, "a", "n1")
	if all := Make(r, w).Owners; len(all) != 3 || slices.ContainsFunc(all, func(o vip.Owner) bool { return o.Node != "n1" }) {
		t.Errorf("before anything is leased: %+v", all)
	}
	w = withMacvlans(w)
	w = withDHCPStates(w, leasedState("10.77.0.155", w))
	w = bind(r, w)
	p := Make(r, w)
	diff(t, dhcpSummary(p), `link on eth0
		request IPv4
		kubevip-a -> n1
		kubevip-b -> n1
		bind 10.77.0.155/32 dev macvlan
		status a 10.77.0.155(VIP)
		status b 10.77.0.155(VIP)
		a: VIPAnnounced
		b: VIPAnnounced
		d: AddressConflict
		c: DHCPFailed
		event c DHCPFailed
		event a VIPAnnounced
		event b VIPAnnounced`)
}

// What a Service chooses for its macvlan takes neither a name nor a MAC address from anybody: not from another program, not from a node,
// and not from a Service of another namespace, be that younger, whatever the one that chooses had before.
func TestDHCPTakesNothing(t *testing.T) {
	const mac1, mac2, link = "02:00:5e:00:00:01", "02:00:5e:00:00:02", "herald-web"
	older := func(s *vip.Service) { s.Key.Namespace, s.Created = "tenant", epoch.Add(-time.Hour) }
	had := func(a func(*vip.Service), before vip.DHCP) func(*vip.Service) { // before what it chooses now
		return func(s *vip.Service) {
			now := s.DHCP
			s.DHCP = before
			a(s)
			s.DHCP = now
		}
	}
	ofUID := newDHCPClient("uid-a", &service{Service: new(svc("a", "0.0.0.0"))})
	ofName := newDHCPClient("macvlan tenant/"+link, &service{Service: new(svc("x", "0.0.0.0"))}) // a MAC that a tenant can have by trying names
	const interfaceTaken = "the interface herald-web (kube-vip.io/macvlanName) is that of a Service of another namespace, which comes first; write another"
	const hostnameTaken = "the host name web (kube-vip.io/loadbalancerHostname) is that of a Service of another namespace, which comes first; write another"
	macTaken := func(mac string) string {
		return "the hardware address " + mac + " (kube-vip.io/hwaddr) is that of a Service of another namespace, which comes first; write another"
	}
	for _, tt := range []struct {
		x    vip.DHCP
		had  func(*vip.Service) // what x had before; nil for nothing
		a    vip.DHCP
		want string // "" if x gets what it chose
	}{
		{vip.DHCP{Macvlan: "cni0"}, nil, vip.DHCP{}, `0.0.0.0 asks for an address by DHCP, but kube-vip.io/macvlanName is "cni0", and must begin with herald- (dhcp_macvlan_prefixes), so that it is no other program's interface`},
		{vip.DHCP{Macvlan: ofUID.link}, nil, vip.DHCP{}, `0.0.0.0 asks for an address by DHCP, but kube-vip.io/macvlanName is "` + ofUID.link + `", a name of the kind that Herald makes itself; write another`},
		{vip.DHCP{MAC: "02:00:00:00:00:0b"}, nil, vip.DHCP{}, "the hardware address 02:00:00:00:00:0b (kube-vip.io/hwaddr) is that of node n2; write another"},
		{vip.DHCP{MAC: ofUID.mac}, nil, vip.DHCP{}, macTaken(ofUID.mac)},
		{vip.DHCP{MAC: mac1}, nil, vip.DHCP{MAC: mac1}, macTaken(mac1)},
		{vip.DHCP{MAC: mac1}, named("10.77.0.50"), vip.DHCP{MAC: mac1}, macTaken(mac1)},
		{vip.DHCP{MAC: mac1}, had(leased("10.77.0.50"), vip.DHCP{}), vip.DHCP{MAC: mac1}, macTaken(mac1)},
		{vip.DHCP{MAC: mac1}, had(leased("10.77.0.50"), vip.DHCP{MAC: mac2}), vip.DHCP{MAC: mac1}, macTaken(mac1)},
		{vip.DHCP{Macvlan: link}, nil, vip.DHCP{MAC: ofName.mac}, macTaken(ofName.mac)},
		{vip.DHCP{Macvlan: link}, nil, vip.DHCP{Macvlan: link}, interfaceTaken},
		{vip.DHCP{Macvlan: link}, nil, vip.DHCP{Macvlan: link, MAC: mac1}, interfaceTaken},
		{vip.DHCP{Macvlan: link}, named("10.77.0.50"), vip.DHCP{Macvlan: link}, interfaceTaken},
		{vip.DHCP{Macvlan: link}, had(leased("10.77.0.50"), vip.DHCP{}), vip.DHCP{Macvlan: link}, interfaceTaken},
		{vip.DHCP{Macvlan: link, MAC: mac2}, had(leased("10.77.0.50"), vip.DHCP{Macvlan: "herald-x", MAC: mac2}), vip.DHCP{Macvlan: link}, interfaceTaken},
		{vip.DHCP{Hostname: "web"}, nil, vip.DHCP{Hostname: "web"}, hostnameTaken},
		{vip.DHCP{Hostname: "web"}, named("10.77.0.50"), vip.DHCP{Hostname: "web"}, hostnameTaken},
		{vip.DHCP{Hostname: "web"}, had(leased("10.77.0.50"), vip.DHCP{Hostname: "old"}), vip.DHCP{Hostname: "web"}, hostnameTaken},
		{vip.DHCP{Hostname: link}, nil, vip.DHCP{Macvlan: link}, ""},
		{vip.DHCP{Hostname: "web"}, nil, vip.DHCP{Hostname: "web.example"}, ""},
		{vip.DHCP{MAC: mac2, Macvlan: link}, nil, vip.DHCP{}, ""},
		{vip.DHCP{MAC: mac2, Macvlan: link}, named("10.77.0.50"), vip.DHCP{MAC: mac1}, ""},
	} {
		a := svc("a", "0.0.0.0", func(s *vip.Service) { s.VIPHost, s.DHCP = "n2", tt.a }, leased("10.77.0.99"))
		x := svc("x", "0.0.0.0", older, func(s *vip.Service) { s.DHCP = tt.x })
		if tt.had != nil {
			tt.had(&x)
		}
		client := newDHCPClient(clientID(&a), &service{Service: &a})
		w := held(world(a, x), "a", "n1")
		w.Members[1].Info.Links = slices.Clone(w.Members[1].Info.Links)
		w.Members[1].Info.Links[0].MAC = "02:00:00:00:00:0b"
		p := Make(rules(), w)
		if len(p.Macvlans) != 1 || p.Macvlans[0].MAC != client.mac || p.Macvlans[0].Name != client.link {
			t.Errorf("%+v: a has %v", tt.x, p.Macvlans)
		}
		v := p.Verdicts[slices.IndexFunc(p.Verdicts, func(v vip.Verdict) bool { return v.Service.Name == "x" })]
		if refused := v.Reason == vip.DHCPFailed || v.Reason == vip.AddressRefused; refused != (tt.want != "") || refused && v.Message != tt.want {
			t.Errorf("%+v: %s %q, want %q", tt.x, v.Reason, v.Message, tt.want)
		}
	}
}

// TestDHCPHostname: a host name is the client identifier of DHCPv4: servers would lease one address to two Services, each of
// which declines what the other has. Servers of DHCPv6 know them by their DUIDs. What is refused takes no hardware address.
func TestDHCPHostname(t *testing.T) {
	web := func(s *vip.Service) { s.DHCP.Hostname = "web" }
	mac := func(s *vip.Service) { s.DHCP.MAC = "02:00:5e:00:00:01" }
	const taken = "a: VIPClaiming\nb: DHCPFailed the host name web (kube-vip.io/loadbalancerHostname) is that of Service default/a, which comes first; write another\nc: VIPClaiming\n"
	const taken6 = "a: VIPClaiming\nb: VIPClaiming\nc: DHCPFailed the hardware address 02:00:5e:00:00:01 (kube-vip.io/hwaddr) is that of Service default/b, which comes first; write another\n"
	for addrs, want := range map[string]string{"0.0.0.0": taken, "0.0.0.0,::": taken, "::": taken6} {
		got := ""
		w := world(svc("a", addrs, web), svc("b", addrs, web, mac, younger), svc("c", addrs, mac, younger, younger))
		for _, v := range Make(rules(), w).Verdicts {
			got += v.Service.Name + ": " + string(v.Reason)
			if v.Reason == vip.DHCPFailed {
				got += " " + v.Message
			}
			got += "\n"
		}
		check.Equal(t, got, want, "%s", addrs)
	}
}

// What is leased belongs to one Service, and is none of the cluster's addresses.
func TestDHCPConflicts(t *testing.T) {
	r := rules()
	base := func(more ...vip.Service) vip.World {
		w := world(append(more, svc("z", "0.0.0.0", younger))...)
		return withMacvlans(held(w, "z", "n1"))
	}
	for _, a := range []string{"10.77.0.12", "10.96.0.1"} {
		w := base()
		w.Reserved = []vip.ReservedRange{{Prefix: netip.MustParsePrefix("10.96.0.0/16"), Description: "the cluster's Service range"}}
		w = withDHCPStates(w, leasedState(a, w))
		p := Make(r, w)
		if len(p.DHCPRequests) != 1 || p.DHCPRequests[0].Declined != addr(a) || len(p.Addresses) > 0 {
			t.Errorf("%s: %s", a, dhcpSummary(p))
		}
	}
	// One that has it already keeps it, be it of another namespace, or one that does not ask for it any more and whose
	// status stays since another announcer holds its lease; what is leased is declined, and the lease of the VIP kept.
	for _, tt := range []struct {
		change func(*vip.Service)
		holder vip.Claim
		asks   string
		reason vip.Reason
		why    string
	}{
		{func(*vip.Service) {}, vip.Claim{Holder: "n2"}, "10.77.0.50", vip.VIPElsewhere,
			"10.77.0.50: leased by a DHCP server, but it belongs to Service default/a, which had it first"},
		{tenant, vip.Claim{Holder: "n2"}, "10.77.0.50", vip.VIPElsewhere,
			"10.77.0.50: leased by a DHCP server, but in use by a Service of another namespace"},
		{tenant, vip.Claim{Holder: "somebody", Foreign: true}, "10.77.0.61", vip.HeldByOtherAnnouncer,
			"10.77.0.50: leased by a DHCP server, but in use by a Service of another namespace"},
	} {
		a := svc("a", "10.77.0.50", port(443), tt.change, written("n2"))
		a.Addresses[0] = addr(tt.asks)
		w := base(a)
		tt.holder.Valid = true
		w.Claims[vip.Key{Namespace: a.Key.Namespace, Name: "kubevip-a"}] = tt.holder
		w = withDHCPStates(w, leasedState("10.77.0.50", w))
		p := Make(r, w)
		if len(p.DHCPRequests) != 1 || p.DHCPRequests[0].Declined != addr("10.77.0.50") || p.DHCPRequests[0].DeclinedWhy != tt.why || len(p.Addresses) > 0 {
			t.Errorf("%s asks for %s: %q\n%s", a.Key, tt.asks, tt.why, dhcpSummary(p))
		}
		if !slices.ContainsFunc(p.Owners, func(o vip.Owner) bool { return o.Unit.Name == "kubevip-z" && o.Node == w.Self }) {
			t.Errorf("%s asks for %s: the lease of z is not kept:\n%s", a.Key, tt.asks, dhcpSummary(p))
		}
		if v := p.Verdicts[slices.IndexFunc(p.Verdicts, func(v vip.Verdict) bool { return v.Service == a.Key })]; v.Reason != tt.reason {
			t.Errorf("%s asks for %s: %s", a.Key, tt.asks, v.Reason)
		}
	}
	// A Service that joins the client of one that has the address by its status makes that decline nothing.
	shared := func(s *vip.Service) { s.DHCP.Macvlan = "herald-web" }
	x := svc("x", "10.77.0.61", tenant, func(s *vip.Service) { s.VIPHost, s.Ingress = "n2", []vip.Ingress{{Addr: addr("10.77.0.50")}} })
	w := held(world(x, svc("y", "0.0.0.0", shared, port(443)), svc("z", "0.0.0.0", shared, younger, func(s *vip.Service) { s.VIPHost = "n1" }, leased("10.77.0.50"))), "z", "n1")
	w.Claims[vip.Key{Namespace: x.Key.Namespace, Name: "kubevip-x"}] = vip.Claim{Holder: "somebody", Valid: true, Foreign: true}
	w = withMacvlans(w)
	w = withDHCPStates(w, leasedState("10.77.0.50", w))
	if p := Make(r, w); len(p.DHCPRequests) != 1 || p.DHCPRequests[0].Declined.IsValid() || len(p.Addresses) != 1 || reasonOf(Make(r, w), "y") != vip.AddressConflict {
		t.Errorf("one client for two:\n%s", dhcpSummary(p))
	}
	// One that comes later does not get what is leased, be its port another.
	w = base()
	w = withDHCPStates(w, leasedState("10.77.0.50", w))
	w = bind(r, w)
	p := Make(r, w)
	w.Services[0].VIPHost, w.Services[0].Ingress, w.Services[0].DHCP.Leases = "n1", p.Statuses[0].Ingress, p.Statuses[0].DHCPLeases
	w.Services[0].SetConditions(p.Statuses[0].Conditions)
	w.Services = append(w.Services, svc("a", "10.77.0.50", port(443)))
	check.Equal(t, reasonOf(Make(r, w), "a"), vip.AddressConflict, "a static one")
	check.Equal(t, reasonOf(Make(r, w), "z"), vip.VIPAnnounced, "the leased one")
	// Others know it by the status.
	w.Self, w.DHCPStates, w.Macvlans, w.Bound = "n2", nil, nil, nil
	check.Equal(t, reasonOf(Make(r, w), "a"), vip.AddressConflict, "a static one, seen from another node")
	// One hardware address for two.
	mac := func(s *vip.Service) { s.DHCP.MAC = "02:00:5e:00:00:01" }
	w = held(held(world(svc("a", "0.0.0.0", mac), svc("b", "0.0.0.0", mac, younger)), "a", "n1"), "b", "n1")
	check.Equal(t, reasonOf(Make(r, w), "b"), vip.DHCPFailed, "the verdict on the younger")
	check.Equal(t, len(Make(r, w).Macvlans), 1, "macvlans")
	// One interface for two, which have no address yet: that of the older, whatever MAC address it chose.
	w = held(world(svc("a", "0.0.0.0", mac, func(s *vip.Service) { s.DHCP.Macvlan = "herald-web" }), svc("b", "0.0.0.0", tenant, younger, func(s *vip.Service) { s.DHCP.Macvlan = "herald-web" })), "a", "n1")
	if p := Make(r, w); len(p.Macvlans) != 1 || p.Macvlans[0].MAC != "02:00:5e:00:00:01" {
		t.Errorf("%s", dhcpSummary(p))
	}
}

// A record that is another client's, or that no status stands for, is not used.
func TestDHCPForgedAnnotation(t *testing.T) {
	r := rules()
	s := svc("a", "0.0.0.0")
	w := withMacvlans(held(world(s), "a", "n1"))
	mac := w.Macvlans[0].MAC
	k := vip.DHCPLease{Addr: addr("10.77.0.99"), Bits: 24, MAC: mac, Expires: w.Now.Add(time.Hour)}
	try := func(change func(*vip.Service)) bool {
		w := w
		w.Services = slices.Clone(w.Services)
		leased("10.77.0.99")(&w.Services[0])
		w.Services[0].VIPHost, w.Services[0].DHCP.Leases = "n1", []vip.DHCPLease{k}
		change(&w.Services[0])
		p := Make(r, w)
		return len(p.Addresses) > 0 || p.DHCPRequests[0].LastLease.Addr.IsValid()
	}
	check.Equal(t, try(func(*vip.Service) {}), true, "what was written is used")
	for what, change := range map[string]func(*vip.Service){
		"without a status":     func(s *vip.Service) { s.Ingress = nil },
		"with another address": func(s *vip.Service) { s.Ingress[0].Addr = addr("10.77.0.98") },
		"by another program":   func(s *vip.Service) { s.Announcer = "elsewhere" },
		"of another client":    func(s *vip.Service) { s.DHCP.Leases[0].MAC = "02:00:00:00:00:99" },
		"of a named address":   named("10.77.0.99"),
		"without a condition":  func(s *vip.Service) { s.SetConditions(nil) },
		"that is not so now": func(s *vip.Service) {
			s.Conditions[1].Status = vip.ConditionFalse
			s.SetConditions(s.Conditions)
		},
		"of another macvlan": func(s *vip.Service) {
			recorded(s, vip.Record{Leased: []netip.Addr{k.Addr}, MAC: mac, Link: "herald-x"})
		},
	} {
		check.Equal(t, try(change), false, "a record %s is believed", what)
	}
	// An address that only the status names, and that was named before, is not asked of a DHCP server.
	w.Services[0].Addresses, w.Services[0].Source, w.Services[0].DHCP.Leases = []netip.Addr{k.Addr}, vip.SourceStatus, []vip.DHCPLease{k}
	named("10.77.0.99")(&w.Services[0])
	if p := Make(r, w); len(p.DHCPRequests) > 0 || len(p.Addresses) != 1 || p.Addresses[0].Link != "eth0" {
		t.Errorf("named before:\n%s", dhcpSummary(p))
	}
}

// The link can't be had, is down, or would drop what clients send.
func TestDHCPMacvlans(t *testing.T) {
	r := rules()
	w := withMacvlans(held(world(svc("a", "0.0.0.0", func(s *vip.Service) { s.DHCP.RPFilter = "0" })), "a", "n1"))
	w.StrictRPFilter = true
	diff(t, dhcpSummary(Make(r, w)), "link on eth0\nrequest IPv4\nkubevip-a -> n1\na: DHCPPending\nevent a InvalidField")
	w.StrictRPFilter = false
	name := w.Macvlans[0].Name
	w = withDHCPStates(w, leasedState("10.77.0.155", w))
	w.Macvlans, w.MacvlanErrors = nil, map[string]string{name: "an interface of that name is there already"}
	diff(t, dhcpSummary(Make(r, w)), "link on eth0\nkubevip-a -> n1\na: DHCPFailed\nevent a DHCPFailed")
	w.Members[0].Info.Links[0].Up = false
	if p := Make(r, w); p.Owners[0].Node == w.Self {
		t.Errorf("with its parent down: %s", dhcpSummary(p))
	}
	w = held(world(svc("a", "0.0.0.0", func(s *vip.Service) { s.Interface = "eth9" })), "a", "n1")
	check.Equal(t, len(Make(r, w).DHCPRequests), 0, "DHCP requests on a link that is not there")
	check.Equal(t, Make(r, w).Verdicts[0].Reason, vip.NoEligibleNode, "the verdict")
	w = held(world(svc("a", "0.0.0.0", func(s *vip.Service) { s.Interface = "auto" })), "a", "n1")
	if p := Make(r, w); len(p.Macvlans) != 1 || p.Macvlans[0].Parent != "eth0" || p.DHCPRequests[0].Parent != "eth0" {
		t.Errorf("auto: %s", dhcpSummary(p))
	}
}

// TestForgedMask: with vip_subnet=auto the mask that a DHCP server sends is not that of the address on the link: the kernel takes its last
// address for a broadcast address, which a rogue server could have be any host's, and the node would not reach that host any more.
func TestForgedMask(t *testing.T) {
	r := rules()
	r.Bits4 = 0
	w := withMacvlans(held(world(svc("a", "0.0.0.0")), "a", "n1"))
	for leased, want := range map[string]string{"10.77.0.154": "10.77.0.154/24", "192.0.2.2": "192.0.2.2/32"} {
		k := leasedState(leased, w)
		k.Lease.Bits = 30
		check.Contains(t, dhcpSummary(Make(r, withDHCPStates(w, k))), "bind "+want+" dev macvlan")
	}
}

// TestLeasedOutsideLink: where pools limit which addresses Services may ask for, a DHCP server may lease those of the
// networks of its link, and those that a pool offers: else whoever can answer there chooses any address of others,
// and the cluster's traffic to it goes to the Service.
func TestLeasedOutsideLink(t *testing.T) {
	for _, tt := range []struct {
		name, leased string
		poolsOnly    bool
		networks     []netip.Prefix
		want         bool // it is bound
	}{
		{"of the network of the link", "10.77.0.154", true, prefixes("10.77.0.11/24"), true},
		{"of no network there", "192.0.2.2", true, prefixes("10.77.0.11/24"), false},
		{"of no network there, and any address may be asked for", "192.0.2.2", false, prefixes("10.77.0.11/24"), true},
		{"of no network there, but of a pool", "192.0.2.130", true, prefixes("10.77.0.11/24"), true},
		{"the node's address there is by DHCP, too", "192.0.2.2", true, prefixes("10.77.0.11/32"), true},
		{"the node has no address there", "192.0.2.2", true, prefixes("fd77::11/64"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, w := poolRules(), poolWorld("n1")
			r.PoolsOnly = tt.poolsOnly
			w.Services, w.Pools.Data = []vip.Service{svc("a", "0.0.0.0")}, map[string]string{"pool-x": "0.0.0.0/32,192.0.2.128/25"}
			w.Members[0].Info.Links[0].Prefixes = tt.networks
			p := Make(r, withLeased(r, held(w, "a", "n1"), tt.leased))
			if bound := len(p.Addresses) > 0; bound != tt.want || p.DHCPRequests[0].Declined.IsValid() == tt.want {
				t.Errorf("bound %v, want %v; asked for: %+v", p.Addresses, tt.want, p.DHCPRequests)
			}
		})
	}
}

// TestLeasedAndNamed: an address that a DHCP server has leased, and that the Service names as well, is leased as long
// as it may not have it by its name.
func TestLeasedAndNamed(t *testing.T) {
	for _, poolsOnly := range []bool{false, true} {
		r, w := poolRules(), poolWorld("n1")
		r.PoolsOnly = poolsOnly
		w.Services, w.Pools.Data = []vip.Service{svc("a", "0.0.0.0,10.77.0.99", leased("10.77.0.99"))}, map[string]string{"pool-x": "0.0.0.0/32"}
		w = withLeased(r, held(w, "a", "n1"), "10.77.0.99")
		p := Make(r, w)
		if len(p.Addresses) != 1 || p.Addresses[0].Link == "eth0" == poolsOnly {
			t.Errorf("pools only %v: %+v", poolsOnly, p.Addresses)
		}
		w.Bound = p.Addresses
		if got := addressStatuses(Make(r, w)); !poolsOnly && (len(got) != 1 || len(got[0].Ingress) != 1) {
			t.Errorf("the status has it twice: %+v", got)
		}
	}
}

// TestDHCPClientsOfANamespace: each DHCP client costs the node that has it a macvlan, sockets and packets. The
// youngest of a namespace with very many are refused, but none that has an address, and none of another namespace.
func TestDHCPClientsOfANamespace(t *testing.T) {
	var services []vip.Service
	for i := range maxClients {
		services = append(services, svc(fmt.Sprintf("s%03d", i), "0.0.0.0", func(s *vip.Service) { s.Created = s.Created.Add(time.Duration(i) * time.Second) }))
	}
	shared := func(s *vip.Service) { s.DHCP.Macvlan = "herald-shared" }
	services = append(services, svc("x-young", "0.0.0.0", younger), svc("x-leased", "0.0.0.0", younger, leased("10.77.0.99")),
		svc("x-static", "0.0.0.0", younger, named("10.77.0.98")), // what it had by its name it has not leased
		svc("x-split", "0.0.0.0", younger, shared, leased("10.77.0.97"), func(s *vip.Service) { s.DHCP.Macvlan = "herald-split" }),
		svc("x-shared1", "0.0.0.0", shared), svc("x-shared2", "0.0.0.0", shared, younger), svc("x-tenant", "0.0.0.0", tenant))
	r, w := rules(), world(services...)
	w.Members = w.Members[:1]
	var got []string
	for _, e := range Make(r, w).Events {
		if e.Reason == vip.DHCPFailed {
			got = append(got, fmt.Sprintf("%s: %s", e.Service.Name, e.Message))
		}
	}
	slices.Sort(got)
	const why = "the Services of the namespace default have 128 DHCP clients, and may have no more: delete one, let Services share one (kube-vip.io/macvlanName), or ask for a fixed address"
	// The one that has a lease and the two that share a client are counted first, being older or in use.
	want := []string{"s126: " + why, "s127: " + why, "x-split: " + why, "x-static: " + why, "x-young: " + why}
	check.Same(t, want, got, "who is refused")
}
