package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/heraldvip/herald/pkg/vip"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// rules are the defaults with an election per Service.
func rules() Rules {
	return Rules{Enabled: true, ARP: true, Bits4: 32, Bits6: 128, IPMode: vip.ModeVIP, CommonOptions: vip.CommonOptions{
		Class: "kube-vip.io/kube-vip-class", Election: true, SharedLease: vip.Key{Namespace: "kube-system", Name: "plndr-svcs-lock"}}}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func key(name string) vip.Key { return vip.Key{Namespace: "default", Name: name} }

// svc is a Service that asks for addresses (comma list), port 80/TCP, ready on every node.
func svc(name, addrs string, change ...func(*vip.Service)) vip.Service {
	s := vip.Service{
		Key: key(name), UID: "uid-" + name, Created: epoch, LoadBalancer: true,
		Ports: []vip.Port{{Protocol: "TCP", Port: 80}}, Endpoints: vip.Endpoints{Ready: []string{"n1", "n2", "n3", "w1"}},
	}
	for a := range strings.SplitSeq(addrs, ",") {
		if a != "" {
			s.Addresses = append(s.Addresses, addr(a))
		}
	}
	for _, f := range change {
		f(&s)
	}
	return s
}

func port(p uint16) func(*vip.Service) {
	return func(s *vip.Service) { s.Ports = []vip.Port{{Protocol: "TCP", Port: p}} }
}

func younger(s *vip.Service) { s.Created = s.Created.Add(time.Hour) }

// local makes s a Local Service with ready endpoints on the given nodes.
func local(nodes ...string) func(*vip.Service) {
	return func(s *vip.Service) { s.Local, s.Endpoints = true, vip.Endpoints{Ready: nodes} }
}

// written says that a node has written the status of s.
func written(node string) func(*vip.Service) {
	return func(s *vip.Service) {
		s.VIPHost = node
		for _, a := range s.Addresses {
			s.Ingress = append(s.Ingress, vip.Ingress{Addr: a, IPMode: vip.ModeVIP})
		}
	}
}

// writtenBy is written by a Herald of that installation, with its Record.
func writtenBy(announcer, node string) func(*vip.Service) {
	return func(s *vip.Service) {
		written(node)(s)
		s.Announcer, s.Record.Named = announcer, s.Addresses
	}
}

func info(up bool) vip.NodeInfo {
	return vip.NodeInfo{Interface: "eth0", DefaultInterface: "eth0", Links: []vip.Link{
		{Name: "eth0", Up: up, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.77.0.200/24"), netip.MustParsePrefix("fd77::200/64")}},
		{Name: "eth1", Up: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.99.0.200/16")}},
	}}
}

// world has n1, n2 and n3 alive, seen from n1.
func world(services ...vip.Service) vip.World {
	w := vip.World{
		Now: epoch.Add(time.Hour), Self: "n1", Synced: true, Services: services,
		Claims: map[vip.Key]vip.Claim{}, HandingOver: map[vip.Key]vip.HandingOver{},
		Tenure: vip.Tenure{Epoch: 7, Until: epoch.Add(2 * time.Hour), Confirmed: true},
		Heard:  map[netip.Addr]vip.HeardAnnouncement{}, HealthChecked: map[vip.Key]bool{},
	}
	for i := 1; i <= 3; i++ {
		m := vip.Member{Name: fmt.Sprintf("n%d", i), Epoch: 7, Alive: true, Heard: true, Info: info(true)}
		m.Info.Links = slices.Clone(m.Info.Links)
		m.Info.Links[0].Prefixes = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.77.0.1%d/24", i)), netip.MustParsePrefix("fd77::200/64")}
		w.Members = append(w.Members, m)
	}
	return w
}

// with is w after changes, any of which may be nil.
func with(w vip.World, changes ...func(w *vip.World)) vip.World {
	for _, change := range changes {
		if change != nil {
			change(&w)
		}
	}
	return w
}

// A planTest is what the rules make of a World, in few words.
type planTest struct {
	name  string
	rules Rules
	w     vip.World
	want  string
}

// runPlans compares what got says of each with what is wanted.
func runPlans(t *testing.T, got func(Rules, vip.World) string, tests []planTest) {
	t.Helper()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { diff(t, got(tt.rules, tt.w), tt.want) })
	}
}

// planned returns the summary of a Plan.
func planned(summary func(vip.Plan) string) func(Rules, vip.World) string {
	return func(r Rules, w vip.World) string { return summary(Make(r, w)) }
}

// allNodes returns the Nodes n1, n2 and n3, with those given in place of the ones of the same name.
func allNodes(given ...vip.Node) []vip.Node {
	all := []vip.Node{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}
	for _, n := range given {
		all[slices.IndexFunc(all, func(o vip.Node) bool { return o.Name == n.Name })] = n
	}
	return all
}

// held says that node holds the lease of the Service of that name.
func held(w vip.World, name, node string) vip.World {
	w.Claims[key("kubevip-"+name)] = vip.Claim{Holder: node, Valid: true, Transitions: 1}
	return w
}

// claimOfA changes the claim on the lease of the Service a.
func claimOfA(change func(*vip.Claim)) func(*vip.World) {
	return func(w *vip.World) {
		c := w.Claims[key("kubevip-a")]
		change(&c)
		w.Claims[key("kubevip-a")] = c
	}
}

// bind says that the kernel has everything that the plan wants.
func bind(r Rules, w vip.World) vip.World {
	w.Bound = Make(r, w).Addresses
	return w
}

// addressStatuses is the Statuses of a Plan that say more than conditions.
func addressStatuses(p vip.Plan) (out []vip.Status) {
	for _, s := range p.Statuses {
		if !s.ConditionsOnly {
			out = append(out, s)
		}
	}
	return out
}

// summary is a plan in few words, without conditions.
func summary(p vip.Plan) string {
	var b strings.Builder
	for _, o := range p.Owners {
		if o.Node != "" && !o.Stays {
			fmt.Fprintf(&b, "%s -> %s\n", o.Unit.Name, o.Node)
		}
	}
	for _, a := range p.Addresses {
		fmt.Fprintf(&b, "bind %s dev %s", a.Prefix(), a.Link)
		if !a.Until.IsZero() {
			b.WriteString(" with a deadline")
		}
		b.WriteString("\n")
	}
	for _, s := range addressStatuses(p) {
		fmt.Fprintf(&b, "status %s", s.Service.Name)
		for _, i := range s.Ingress {
			fmt.Fprintf(&b, " %s(%s)", i.Addr, i.IPMode)
		}
		b.WriteString("\n")
	}
	for _, v := range p.Verdicts {
		fmt.Fprintf(&b, "%s: %s\n", v.Service.Name, v.Reason)
	}
	for _, n := range p.Events {
		fmt.Fprintf(&b, "event %s %s\n", n.Service.Name, n.Reason)
	}
	return b.String()
}

// diff compares texts line by line; a line ends at its end or at a semicolon.
func diff(t *testing.T, got, want string) {
	t.Helper()
	trim := func(s string) string {
		var lines []string
		for l := range strings.Lines(strings.ReplaceAll(s, "; ", "\n")) {
			lines = append(lines, strings.TrimSpace(l))
		}
		return strings.TrimSpace(strings.Join(lines, "\n"))
	}
	if d := cmp.Diff(trim(want), trim(got), cmpopts.AcyclicTransformer("lines", func(s string) []string { return strings.Split(s, "\n") })); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
