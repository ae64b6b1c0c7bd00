package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// noIPv6On has IPv6 disabled on the link eth0 of nodes.
func noIPv6On(nodes ...int) func(*vip.World) {
	return func(w *vip.World) {
		for _, i := range nodes {
			w.Members[i-1].Info.Links[0].NoIPv6 = true
		}
	}
}

// A node on whose link IPv6 is disabled gets a VIP of IPv6 last, and hands it over to a node that can bind it. Without such a node it goes on with
// those of IPv4, and leaves out the others.
func TestIPv6Disabled(t *testing.T) {
	const (
		both      = "10.77.0.50,fd77::50"
		bound     = "\nbind 10.77.0.50/32 dev eth0\nbind fd77::50/128 dev eth0\nstatus a 10.77.0.50(VIP) fd77::50(VIP)\na: VIPAnnounced"
		half      = "\nbind 10.77.0.50/32 dev eth0\nstatus a 10.77.0.50(VIP)\na: VIPAnnounced"
		announced = "\nevent a VIPAnnounced"
		keeps     = "kubevip-a -> n1"
	)
	faultyNode := func(i int) func(*vip.World) { return func(w *vip.World) { faulty(w, &w.Members[i-1]) } }
	late := func(w *vip.World) { w.Tenure.RenewalLateSince = w.Now.Add(-time.Second) }
	returns := func(w *vip.World) { // n2 had it, was drained, and is back
		c := w.Claims[key("kubevip-a")]
		c.PreviousHolder = "n2"
		w.Claims[key("kubevip-a")] = c
		w.Nodes = allNodes(vip.Node{Name: "n2", ReturnUntil: w.Now.Add(time.Minute)})
	}
	tests := []struct {
		name, addresses, holder string
		change                  []func(*vip.World)
		want                    string
	}{
		{"free: goes to the node that can bind it", both, "", []func(*vip.World){noIPv6On(1, 2)}, "kubevip-a -> n3\na: VIPClaiming"},
		{"free: goes to that node also if it restarts", both, "", []func(*vip.World){noIPv6On(1, 2), func(w *vip.World) { restarted(3)(w, &w.Members[2]) }}, "kubevip-a -> n3\na: VIPClaiming"},
		{"free: nobody can bind it", both, "", []func(*vip.World){noIPv6On(1, 2, 3)}, "kubevip-a -> n2\na: VIPClaiming"},
		{"free: rather IPv4 alone than nothing", both, "", []func(*vip.World){noIPv6On(2), faultyNode(1), faultyNode(3)}, "kubevip-a -> n2\na: VIPClaiming"},
		{"free: of IPv4 it goes wherever it went", "10.77.0.50", "", []func(*vip.World){noIPv6On(2)}, "kubevip-a -> n2\na: VIPClaiming"},
		{"owned: goes to the node that can bind it", both, "n1", []func(*vip.World){noIPv6On(1, 3)}, "kubevip-a -> n2" + half},
		{"owned: of IPv4 it stays", "10.77.0.50", "n1", []func(*vip.World){noIPv6On(1, 3)}, keeps + half + announced},
		{"owned: another link is without IPv6", both, "n1", []func(*vip.World){func(w *vip.World) { w.Members[0].Info.Links[1].NoIPv6 = true }}, keeps + bound + announced},
		{"owned: not to a node whose data plane fails", both, "n1", []func(*vip.World){noIPv6On(1, 3), faultyNode(2)}, keeps + half + "\nevent a NoEligibleNode"},
		{"owned: not while a renewal is late", both, "n1", []func(*vip.World){noIPv6On(1), late}, keeps + half},
		{"owned: nobody can bind it", both, "n1", []func(*vip.World){noIPv6On(1, 2, 3)}, keeps + half + "\nevent a NoEligibleNode"},
		{"owned: nobody can bind it, and its Herald has just begun", both, "n1", []func(*vip.World){noIPv6On(1, 2, 3), func(w *vip.World) { unproven(w, &w.Members[0]) }}, keeps + half + "\nevent a NoEligibleNode"},
		{"owned: nobody can bind any of its addresses", "fd77::50", "n1", []func(*vip.World){noIPv6On(1, 2, 3)}, keeps + "\na: NoEligibleNode\nevent a NoEligibleNode"},
		{"owned: a data plane that fails moves it, for IPv4", both, "n1", []func(*vip.World){faultyNode(1), noIPv6On(2, 3)}, "kubevip-a -> n2" + bound + announced},
		{"owned: a data plane that fails moves it, for IPv4, also without IPv6 here", both, "n1", []func(*vip.World){faultyNode(1), noIPv6On(1, 2, 3)}, "kubevip-a -> n2" + half},
		{"owned: of IPv6 alone to no node that binds nothing", "fd77::50", "n1", []func(*vip.World){faultyNode(1), noIPv6On(2, 3)},
			keeps + "\nbind fd77::50/128 dev eth0\nstatus a fd77::50(VIP)\na: VIPAnnounced" + announced},
		{"owned: goes back to a node that was drained", both, "n1", []func(*vip.World){returns}, "kubevip-a -> n2" + bound + "\nevent a VIPMoved"},
		{"owned: not if IPv6 is disabled there meanwhile", both, "n1", []func(*vip.World){returns, noIPv6On(2)}, keeps + bound + "\nevent a VIPMoved"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := world(svc("a", tt.addresses, func(s *vip.Service) {
				if tt.holder != "" {
					written(tt.holder)(s)
				}
			}))
			if tt.holder != "" {
				w = held(w, "a", tt.holder)
			}
			for _, f := range tt.change {
				f(&w)
			}
			w = bind(rules(), w) // the kernel has what it takes
			diff(t, summary(Make(rules(), w)), tt.want)
		})
	}
}

// The Service is told which link of which node it is, and what to do; the cause of the move, and `herald explain`, say it too.
func TestIPv6DisabledIsReported(t *testing.T) {
	w := held(world(svc("a", "10.77.0.50,fd77::50", written("n1"))), "a", "n1")
	noIPv6On(1)(&w)
	owners := Make(rules(), w).Owners
	if want := "n1: IPv6 is disabled on its link eth0"; len(owners) != 1 || owners[0].Cause != want {
		t.Errorf("%+v, want the cause %q", owners, want)
	}
	e, _ := Explain(rules(), w, key("a"))
	if got, want := e.Nodes[0].Why, "comes after others: IPv6 is disabled on its link eth0 (sysctl -w net.ipv6.conf.eth0.disable_ipv6=0)"; got != want || !e.Nodes[0].Able {
		t.Errorf("explain says %q, want %q", got, want)
	}
	noIPv6On(2, 3)(&w)
	for i := range w.Members { // a dot of a name is a slash to sysctl(8)
		w.Members[i].Info.Links[0].Name, w.Members[i].Info.Interface = "eth0.7", "eth0.7"
	}
	p := Make(rules(), bind(rules(), w))
	want := "node n1 owns fd77::50, but can't bind it: IPv6 is disabled on its link eth0.7, and no other node is better (sysctl -w net.ipv6.conf.eth0/7.disable_ipv6=0 on n1)"
	if !slices.ContainsFunc(p.Events, func(e vip.Event) bool { return e.Reason == vip.NoEligibleNode && e.Message == want }) {
		t.Errorf("no Event %q in %+v", want, p.Events)
	}
	// If that is all it has, its verdict and its condition say so.
	w.Services[0].Addresses = w.Services[0].Addresses[1:]
	p = Make(rules(), bind(rules(), w))
	if v := p.Verdicts[0]; v.AnnouncedHere || v.Message != want {
		t.Errorf("verdict %+v", v)
	}
	if !slices.ContainsFunc(p.Statuses, func(s vip.Status) bool {
		return slices.ContainsFunc(s.Conditions, func(c vip.Condition) bool {
			return c.Status == vip.ConditionFalse && strings.Contains(c.Message, "can't bind it")
		})
	}) {
		t.Errorf("no condition: %+v", p.Statuses)
	}
}

// While one node owns all VIPs no single Service moves them: the message does not say that no other node is better.
func TestIPv6DisabledWithoutElection(t *testing.T) {
	r := rules()
	r.Election = false
	w := world(svc("a", "10.77.0.50,fd77::50", written("n1")))
	w.Claims[r.Lease] = vip.Claim{Holder: "n1", Valid: true}
	noIPv6On(1)(&w)
	p := Make(r, bind(r, w))
	want := "node n1 owns fd77::50, but can't bind it: IPv6 is disabled on its link eth0, and with svc_election=false no VIP moves for that (sysctl -w net.ipv6.conf.eth0.disable_ipv6=0 on n1)"
	if !slices.ContainsFunc(p.Events, func(e vip.Event) bool { return e.Reason == vip.NoEligibleNode && e.Message == want }) {
		t.Errorf("no Event %q in %+v", want, p.Events)
	}
}
