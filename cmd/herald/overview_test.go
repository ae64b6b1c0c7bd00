package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/agent"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/serve"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestOverview: what the page shows of a pass.
func TestOverview(t *testing.T) {
	k := func(name string) vip.Key { return vip.Key{Namespace: "default", Name: name} }
	a := netip.MustParseAddr("10.0.0.1")
	up := vip.NodeInfo{Interface: "eth0", Links: []vip.Link{{Name: "eth0", Up: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.3/24")}}},
		Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.4")}}
	pass := &agent.Pass{World: vip.World{
		Now: noon, Self: "n1", Tenure: vip.Tenure{Until: noon.Add(time.Minute)},
		Services: []vip.Service{serviceWith("idle", "10.0.0.2", "10.0.0.2"), serviceWith("web", "10.0.0.1", "10.0.0.1")},
		Members:  []vip.Member{{Name: "n1", Alive: true, Info: up}, {Name: "n2", Gone: true}, {Name: "n3", Alive: true, Info: up}, {Name: "n4", APIUnreached: true, Info: up}, {Name: "n5", Info: up}},
		Nodes:    []vip.Node{{Name: "n1"}, {Name: "n2"}, {Name: "n3", NotReady: true}},
		Claims:   map[vip.Key]vip.Claim{k("kubevip-web"): {Holder: "n1", Valid: true, AcquiredAt: noon.Add(-time.Hour)}},
		Pools:    &vip.PoolSource{Data: map[string]string{"range-global": "10.0.0.1-10.0.0.4"}},
	}, Plan: vip.Plan{
		Verdicts: []vip.Verdict{
			{Service: k("idle"), Reason: vip.NoEndpoints, Message: "none"},
			{Service: k("web"), Addresses: []netip.Addr{a}, Lease: k("kubevip-web"), Owner: "n1", AnnouncedHere: true, Reason: vip.VIPAnnounced, Message: "n1 announces it"},
		},
		Routes: []vip.Route{{Prefix: netip.PrefixFrom(a, 32)}}, Announcements: []vip.Announcement{{Addr: a, Link: "eth0"}},
		Events: []vip.Event{{Service: k("web"), Warning: true, Reason: vip.VIPForeignMAC, Message: "02:00:00:00:00:09 answers"}},
	}}
	outage := 2 * time.Second
	var v serve.View
	fillOverview(&v, pass, []vip.Move{{At: noon, Service: k("web"), From: "n2", To: "n1", Outage: &outage}, {At: noon.Add(time.Second), Service: k("idle"), From: "n1", Cause: "none"}})
	var b strings.Builder
	for _, p := range v.Problems {
		fmt.Fprintf(&b, "%s: %.20s / %.12s\n", p.Subject, p.Message, p.Advice)
	}
	for _, s := range v.Services {
		fmt.Fprintf(&b, "%s %s %s %s %s %q %t\n", s.Service, s.VIPs, s.Owner, s.How, s.Reason, s.Class, s.Since.IsZero())
	}
	for _, n := range v.Nodes {
		fmt.Fprintf(&b, "%s %d %.20s %q\n", n.Node, n.Services, n.State, n.Class)
	}
	for _, m := range v.Moves {
		fmt.Fprintf(&b, "%s %s>%s %s %q\n", m.Service, m.From, m.To, m.Outage, m.Class)
	}
	want := `Node n2: neither its Herald n / herald expla
Node n3: ok, but takes a new  / herald expla
Node n4: its Herald does not  / herald expla
Node n5: its node lease is no / herald expla
default/web: VIPForeignMAC: 02:00 / find the hos
default/idle: NoEndpoints: none / find out why
default/idle 10.0.0.2 - - NoEndpoints "warn" true
default/web 10.0.0.1 n1 ARP/NDP here, routes here VIPAnnounced "" false
n1 1 ok ""
n2 0 neither its Herald n "bad"
n3 0 ok, but takes a new  "warn"
n4 0 its Herald does not  "bad"
n5 0 its node lease is no "bad"
default/idle n1>nobody  "bad"
default/web n2>n1 unanswered for 2s "warn"
`
	check.Equal(t, b.String(), want, "the page")
	if len(v.Pools) != 1 || v.Pools[0].Used != "2" || v.Pools[0].Size != "4" || v.Pools[0].Class != "bad" {
		t.Errorf("%+v", v.Pools)
	}
	// Many Services: those with a problem come first, and the rest is counted.
	for i := range 2 * maxPageServices {
		pass.Plan.Verdicts = append(pass.Plan.Verdicts, vip.Verdict{Service: k(fmt.Sprint("s", i)), Reason: vip.VIPElsewhere})
	}
	pass.Plan.Verdicts = append(pass.Plan.Verdicts, vip.Verdict{Service: k("zz"), Reason: vip.NoEligibleNode})
	v = serve.View{}
	fillOverview(&v, pass, nil)
	if len(v.Services) != maxPageServices || v.MoreServices != maxPageServices+3 || v.Services[0].Service != "default/zz" || v.ServiceCount != 2*maxPageServices+3 {
		t.Errorf("%d of %d, the first %s", len(v.Services), v.ServiceCount, v.Services[0].Service)
	}
}

// TestOverviewOfWays: a Service's row names the ways by which this node announces it, and no other.
func TestOverviewOfWays(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	arp, heard := vip.Announcement{Addr: a, Link: "eth0"}, vip.Announcement{Addr: a, Link: "eth0", ListenOnly: true}
	route, aggregate := vip.Route{Prefix: netip.PrefixFrom(b, 128)}, vip.Route{Prefix: netip.MustParsePrefix("10.0.0.0/24")}
	for _, tt := range []struct {
		name string
		plan vip.Plan
		want string
	}{
		{"ARP", vip.Plan{Announcements: []vip.Announcement{arp}}, "ARP/NDP here"},
		{"BGP alone", vip.Plan{Routes: []vip.Route{route}, Announcements: []vip.Announcement{heard}}, "routes here"},
		{"both", vip.Plan{Routes: []vip.Route{route, aggregate}, Announcements: []vip.Announcement{arp}}, "ARP/NDP here, routes here"},
		{"an aggregate alone", vip.Plan{Routes: []vip.Route{aggregate}}, "-"},
	} {
		tt.plan.Verdicts = []vip.Verdict{{Service: vip.Key{Namespace: "default", Name: "web"}, Addresses: []netip.Addr{a, b}, AnnouncedHere: true, Reason: vip.VIPAnnounced}}
		var v serve.View
		fillOverview(&v, &agent.Pass{Plan: tt.plan}, nil)
		check.Equal(t, v.Services[0].How, tt.want, "%s", tt.name)
	}
}

// A node that the label of control-plane nodes keeps from VIPs of Services says so, and is no problem.
func TestOverviewOfLabelledNodes(t *testing.T) {
	up := vip.NodeInfo{Interface: "eth0", Links: []vip.Link{{Name: "eth0", Up: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.3/24")}}},
		Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.4")}}
	pass := &agent.Pass{World: vip.World{
		Now: noon, Self: "w1", Tenure: vip.Tenure{Until: noon.Add(time.Minute)},
		Members: []vip.Member{{Name: "cp1", Alive: true, Info: up}, {Name: "w1", Alive: true, Info: up}},
		Nodes:   []vip.Node{{Name: "cp1", ExclusionLabel: exclusionLabel}, {Name: "w1"}},
	}}
	var v serve.View
	fillOverview(&v, pass, nil)
	if len(v.Problems) > 0 || v.Nodes[0].State != labelState || v.Nodes[0].Class != "" || v.Nodes[1].State != "ok" {
		t.Errorf("problems %+v, nodes %+v", v.Problems, v.Nodes)
	}
}

// The page has room for 50 problems: those of a namespace with a thousand hide no other's.
func TestOverviewSharesRoom(t *testing.T) {
	pass := &agent.Pass{World: vip.World{Now: noon, Self: "n1", Tenure: vip.Tenure{Until: noon.Add(time.Minute)}}}
	for i := range 1000 {
		pass.Plan.Verdicts = append(pass.Plan.Verdicts, vip.Verdict{Service: vip.Key{Namespace: "loud", Name: fmt.Sprint("s", i)}, Reason: vip.AddressConflict})
	}
	for i := range 3 {
		pass.Plan.Verdicts = append(pass.Plan.Verdicts, vip.Verdict{Service: vip.Key{Namespace: "quiet", Name: fmt.Sprint("s", i)}, Reason: vip.NoEligibleNode})
	}
	moves := []vip.Move{{Service: vip.Key{Namespace: "quiet", Name: "s0"}}}
	for range 500 {
		moves = append(moves, vip.Move{Service: vip.Key{Namespace: "loud", Name: "s0"}})
	}
	var v serve.View
	fillOverview(&v, pass, moves)
	rows := 0
	for _, x := range v.Services {
		if strings.HasPrefix(x.Service, "quiet/") {
			rows++
		}
	}
	if len(v.Services) != 300 || rows != 3 || v.ServiceCount != 1003 || v.MoreServices != 703 {
		t.Errorf("%d of %d Services are shown, %d of the quiet namespace, and %d more", len(v.Services), v.ServiceCount, rows, v.MoreServices)
	}
	if n := len(v.Moves); n != 200 || v.Moves[n-1].Service != "quiet/s0" {
		t.Errorf("%d moves are shown, the last is of %s", n, v.Moves[n-1].Service)
	}
	quiet := 0
	for _, p := range v.Problems {
		if strings.HasPrefix(p.Subject, "quiet/") {
			quiet++
		}
	}
	if len(v.Problems) != 50 || quiet != 3 || v.MoreProblems != 953 || v.Problems[0].Subject != "loud/s0" {
		t.Errorf("%d problems are shown, %d of the quiet namespace, and %d more", len(v.Problems), quiet, v.MoreProblems)
	}
}

// withMoves is a cluster with a table that has these moves.
func withMoves(moves string, services ...vip.Service) kube.Snapshot {
	table := owns("default/kubevip-web", "n1", "", "")
	table.Annotations[lease.MovesAnnotation] = moves
	return kube.Snapshot{Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, "{}"), table}, Services: services}
}

// TestHistory: the moves of units are shown as those of Services, the oldest first.
func TestHistory(t *testing.T) {
	shared := serviceWith("dns", "10.0.0.2", "10.0.0.2")
	shared.Lease = "both"
	s := withMoves(`2026-01-01T11:00:02.500000Z from=n2 to=n1 outage=2.312s cause=n2: it is dead on the VIPs' link
  default/kubevip-web
  default/both
2026-01-01T11:00:01.000000Z from=n1 cause=no Service needs it any more
  default/kubevip-gone
2026-01-01T11:00:00.000000Z from=n1 to=n2
  kube-system/herald-pools
  kube-system/plndr-cp-lock
`, serviceWith("web", "10.0.0.1", "10.0.0.1"), shared)
	s.At = noon // this machine's clock is far ahead of it
	r := check.Value(newHistoryReport(s, time.Hour))(t)
	var out strings.Builder
	check.OK(t, r.write(&out, ""))
	const want = `WHEN (UTC)               SERVICE       VIP       FROM  TO      OUTAGE               WHY
2026-01-01 11:00:00.000  (control plane)  -    n1    n2      -                    -
2026-01-01 11:00:01.000  default/gone  -         n1    nobody  -                    no Service needs it any more
2026-01-01 11:00:02.500  default/dns   10.0.0.2  n2    n1      unanswered for 2.31s  n2: it is dead on the VIPs' link
2026-01-01 11:00:02.500  default/web   10.0.0.1  n2    n1      unanswered for 2.31s  n2: it is dead on the VIPs' link
`
	check.Equal(t, squeeze(out.String()), squeeze(want), "the history")
	r = check.Value(newHistoryReport(s, time.Hour-2*time.Second))(t)
	check.Equal(t, len(r.Moves), 2, "moves that are not older than 11:00:02")
}

// TestHistoryOfSharedLease: with svc_election=false all Services move at once, but none that no node announces.
func TestHistoryOfSharedLease(t *testing.T) {
	ignored, theirs := serviceWith("ignored", "10.0.0.3", ""), serviceWith("theirs", "10.0.0.4", "")
	ignored.Ignore, theirs.HasClass, theirs.Class = true, true, "theirs"
	s := withMoves(`2026-01-01T11:00:02.500000Z from=n2 to=n1
  kube-system/plndr-svcs-lock
2026-01-01T11:00:01.500000Z from=n1 to=n2 cause=it had a lease of its own then
  default/kubevip-web
`, serviceWith("dns", "10.0.0.2", "10.0.0.2"), ignored, theirs, serviceWith("web", "10.0.0.1", "10.0.0.1"))
	for info, want := range map[string]string{
		`{"options":{"services":true,"arp":true,"lease":"kube-system/plndr-svcs-lock"}}`: "default/web to n2, default/dns to n1, default/web to n1",
		`{"options":{"services":true,"arp":true,"election":true}}`:                       "default/web to n2, kube-system/plndr-svcs-lock to n1",
	} {
		s.Leases[0] = nodeLease("n1", time.Second, info)
		s.At = noon
		var got []string
		for _, m := range check.Value(newHistoryReport(s, 24*time.Hour))(t).Moves {
			got = append(got, m.Service.String()+" to "+m.To)
		}
		check.Equal(t, strings.Join(got, ", "), want, "the moves, with %s", info)
	}
}

// squeeze returns text with one space in place of several.
func squeeze(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestHistoryOfNobody: that nothing has moved is said only of a table.
func TestHistoryOfNobody(t *testing.T) {
	r := check.Value(newHistoryReport(withMoves(""), 24*time.Hour))(t)
	var out strings.Builder
	check.OK(t, r.write(&out, ""))
	check.Contains(t, out.String(), "nothing has moved")
	s := withMoves("")
	s.Leases, s.Missing = s.Leases[:1], []string{"Leases"}
	_, err := newHistoryReport(s, 24*time.Hour)
	check.Contains(t, text(err), "herald-table", "missing: Leases")
}
