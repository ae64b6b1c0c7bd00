package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// newTestDrain makes a nodeDrain of the node n1 that reads one snapshot after another, and then
// what an API server that hangs answers: nothing until ctx ends.
func newTestDrain(t *testing.T, snapshots ...kube.Snapshot) (*nodeDrain, context.Context) {
	nothing := func(context.Context, string) error { return nil }
	return &nodeDrain{
		node: "n1", timeout: time.Second, printf: t.Logf, mark: nothing, unmark: func(context.Context, string, time.Time) error { return nil }, clearReturn: nothing,
		readMore: func(context.Context, *kube.Snapshot) (*vip.PoolSource, error) { return nil, nil },
		read: func(ctx context.Context) (kube.Snapshot, error) {
			if len(snapshots) == 0 {
				<-ctx.Done()
				return kube.Snapshot{}, ctx.Err()
			}
			s := snapshots[0]
			snapshots = snapshots[1:]
			return s, nil
		},
	}, t.Context()
}

// snapshotOf has the node n1, and a table in which that node has a unit, which from handed over.
func snapshotOf(node, from string) kube.Snapshot {
	l := owns("default/kubevip-web", node, from, "")
	return kube.Snapshot{Leases: []*coordinationv1.Lease{nodeLease("n1", 0, "{}"), l}, Services: []vip.Service{serviceWith("web", "", "")}}
}

func TestDrain(t *testing.T) {
	none := kube.Snapshot{Leases: []*coordinationv1.Lease{nodeLease("n1", 0, "{}")}}
	advertises := func(prefixes int) kube.Snapshot { // without an election nobody owns what it advertises
		info := fmt.Sprintf(`{"bgpSessions":[{"peer":"192.0.2.1","state":"established","prefixes":%d}]}`, prefixes)
		return kube.Snapshot{At: noon, Leases: []*coordinationv1.Lease{nodeLease("n1", 0, info)}}
	}
	dead := advertises(2)
	dead.At = noon.Add(time.Hour)
	forged := func(s kube.Snapshot) kube.Snapshot { // a tenant has made a table and a node lease, which come first
		table, node := tableOf("nothing", "n1"), nodeLease("n1", 0, "{}")
		table.Namespace, node.Namespace = "tenant", "tenant"
		s.Leases = append([]*coordinationv1.Lease{table, node}, s.Leases...)
		return s
	}
	tests := []struct {
		name      string
		snapshots []kube.Snapshot
		want      string // of drain's error
	}{
		{"the others take the VIP", []kube.Snapshot{snapshotOf("n1", ""), snapshotOf("n1", ""), snapshotOf("n2", "n1")}, ""},
		{"beside Leases that a tenant has made", []kube.Snapshot{forged(snapshotOf("n1", "")), forged(snapshotOf("n2", "n1")), forged(snapshotOf("n2", "n1"))}, ""},
		{"nobody takes it", []kube.Snapshot{snapshotOf("n1", ""), snapshotOf("n1", "")}, `after 1s the node n1 still has default/kubevip-web; "herald status" shows what keeps the other nodes from them. The node stays marked; herald undrain n1 ends that`},
		{"it goes on advertising", []kube.Snapshot{advertises(2), advertises(2)}, `after 1s the node n1 still has 2 prefixes advertised to 192.0.2.1; "herald status" shows what keeps the other nodes from them. The node stays marked; herald undrain n1 ends that`},
		{"it advertises no more", []kube.Snapshot{advertises(2), advertises(2), advertises(0)}, ""},
		{"its Herald is dead, and so are its sessions", []kube.Snapshot{dead, dead}, ""},
		{"no Herald on the node", []kube.Snapshot{{}}, `no Herald runs on a node "n1"; it runs on none`},
		{"the API server hangs once the node is marked", []kube.Snapshot{none}, "context deadline exceeded; n1 stays marked: herald drain n1 goes on, herald undrain n1 ends that"},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			d, ctx := newTestDrain(t, tt.snapshots...)
			check.Equal(t, text(d.drain(ctx)), tt.want, "%s", tt.name)
		})
	}
}

// Whoever ends herald drain or undrain while it waits (Ctrl-C) is told how to go on, and what was begun goes on.
func TestInterrupted(t *testing.T) {
	for _, tt := range []struct {
		name, holder, from string
		move               func(*nodeDrain, context.Context) error
		want               string
	}{
		{"drain", "n1", "", (*nodeDrain).drain, "interrupted; n1 stays marked: herald drain n1 goes on, herald undrain n1 ends that"},
		{"undrain", "n2", "n1", (*nodeDrain).undrain, "interrupted; n1 still gets its VIPs back: herald undrain n1 goes on"},
	} {
		for after := range 3 { // looks
			synctest.Test(t, func(t *testing.T) {
				d, ctx := newTestDrain(t)
				ctx, cancel := context.WithCancel(ctx)
				looks := 0
				d.timeout = time.Minute
				d.read = func(ctx context.Context) (kube.Snapshot, error) {
					if looks++; looks == after+2 {
						cancel()
					}
					return snapshotOf(tt.holder, tt.from), ctx.Err()
				}
				d.clearReturn = func(context.Context, string) error {
					t.Errorf("%s: the return is cleared", tt.name)
					return nil
				}
				check.Equal(t, text(tt.move(d, ctx)), tt.want, "%s interrupted after %d looks", tt.name, after)
			})
		}
	}
}

// TestDrainOfPoolsNode: that a pool is for nodes with some labels counts, as herald explain says.
func TestDrainOfPoolsNode(t *testing.T) {
	info := strings.TrimSuffix(up, "}") + `,"options":{"services":true,"arp":true,"election":true,"pools":"kube-system/kubevip"}}`
	web := serviceWith("web", "10.0.0.1", "10.0.0.1")
	web.Endpoints.Ready = []string{"n1", "n2"}
	s := kube.Snapshot{At: noon, Services: []vip.Service{web},
		Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, info), nodeLease("n2", time.Second, info), tableOf("web", "n1")},
		Nodes:  []vip.Node{{Name: "n1", Labels: map[string]string{"edge": "yes"}}, {Name: "n2"}}}
	broken := errors.New("no ConfigMaps today")
	for _, tt := range []struct {
		pools *vip.PoolSource
		err   error
		want  string
	}{
		{&vip.PoolSource{Data: map[string]string{"pool-x": "10.0.0.0/24", "pool-x.nodes": "edge=yes"}}, nil,
			"nothing was done: no other node may carry default/web (n2: pool x, of which 10.0.0.1 is, is for nodes with edge=yes). " +
				"--force drains the node all the same, and takes these VIPs down"},
		{nil, broken, "whether other nodes may carry what n1 has can't be found out (--force drains it all the same): no ConfigMaps today"},
	} {
		d, ctx := newTestDrain(t, s)
		d.readMore = func(context.Context, *kube.Snapshot) (*vip.PoolSource, error) { return tt.pools, tt.err }
		d.mark = func(context.Context, string) error { return errors.New("it is marked") }
		check.Equal(t, text(d.drain(ctx)), tt.want, "the error")
	}
}

func TestUndrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for failing := range 4 { // one API server of several restarts
			d, ctx := newTestDrain(t, snapshotOf("n2", "n1"), snapshotOf("n2", "n1"), snapshotOf("n2", "n1"), snapshotOf("n1", "n2"))
			read, reads := d.read, 0
			d.read = func(ctx context.Context) (kube.Snapshot, error) {
				if reads++; failing > 0 && reads == failing+1 {
					return kube.Snapshot{}, errors.New("EOF")
				}
				return read(ctx)
			}
			var printed strings.Builder
			d.printf = func(format string, args ...any) { fmt.Fprintf(&printed, format+"\n", args...) }
			check.OK(t, d.undrain(ctx))
			check.Contains(t, printed.String(), "n1 carries VIPs again")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		d, ctx := newTestDrain(t, snapshotOf("n2", "n1"))
		read, reads := d.read, 0
		d.timeout = time.Minute
		d.read = func(ctx context.Context) (kube.Snapshot, error) {
			if reads++; reads > 1 {
				return kube.Snapshot{}, io.ErrUnexpectedEOF
			}
			return read(ctx)
		}
		began := time.Now()
		if err := d.undrain(ctx); !errors.Is(err, io.ErrUnexpectedEOF) || time.Since(began) > 15*time.Second {
			t.Errorf("%v after %v, though no read is answered", err, time.Since(began))
		}
	})
	broken := errors.New("no annotations today")
	d, ctx := newTestDrain(t, snapshotOf("n1", "n2"), snapshotOf("n1", "n2"))
	d.clearReturn = func(context.Context, string) error { return broken }
	if err := d.undrain(ctx); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
}

// TestDrainCounts: what a node has is counted as Services and the control plane's VIP, and the lease of pools is no VIP.
func TestDrainCounts(t *testing.T) {
	const options = `{"options":{"services":true,"arp":true,"lease":"kube-system/plndr-svcs-lock"}}`
	both := serviceWith("both", "10.0.0.1", "")
	both.Lease = "web"
	for _, tt := range []struct{ name, info, units, held string }{
		{"one lease of all", options, "kube-system/plndr-svcs-lock\n  kube-system/herald-pools", "3 of kube-system/plndr-svcs-lock"},
		{"a lease of two", "{}", "default/web\n  kube-system/herald-pools\n  kube-system/plndr-cp-lock", "3 of default/web kube-system/plndr-cp-lock"},
		{"the lease of pools", options, "kube-system/herald-pools", "0 of "},
	} {
		s := kube.Snapshot{Leases: []*coordinationv1.Lease{nodeLease("n1", 0, tt.info), owns(tt.units, "n1", "", "")}, Services: []vip.Service{both, both, serviceWith("a", "10.0.0.2", "")}, At: noon}
		d, ctx := newTestDrain(t, s)
		now := check.Value(d.look(ctx))(t)
		slices.Sort(now.held)
		check.Equal(t, fmt.Sprintf("%d of %s", now.vips, strings.Join(now.held, " ")), tt.held, "%s", tt.name)
	}
}

// The VIP of the control plane, and that of all Services with svc_election=false, do not move back: nobody waits for them, and they are named.
func TestUndrainOfWhatStays(t *testing.T) {
	s := snapshotOf("n1", "n2")
	s.Leases[0] = nodeLease("n1", 0, `{"options":{"services":true,"arp":true,"lease":"kube-system/plndr-svcs-lock"}}`)
	for _, name := range []string{"plndr-cp-lock", "plndr-svcs-lock", "herald-pools"} {
		s.Leases = append(s.Leases, owns("kube-system/"+name, "n2", "n1", ""))
	}
	d, ctx := newTestDrain(t, s, s)
	var printed strings.Builder
	d.printf = func(format string, args ...any) { fmt.Fprintf(&printed, format+"\n", args...) }
	check.OK(t, d.undrain(ctx))
	check.Contains(t, printed.String(), "n1 carries VIPs again", ": kube-system/plndr-cp-lock, kube-system/plndr-svcs-lock\n")
}

// A node that was never drained is given nothing: VIPs that others have had from it for other reasons stay.
func TestUndrainOfANodeThatIsNotDrained(t *testing.T) {
	unmarked := func(nodes ...vip.Node) bool {
		s := snapshotOf("n2", "n1")
		s.Nodes = nodes
		s.At = noon
		called := false
		d, ctx := newTestDrain(t, s, snapshotOf("n1", "n2"))
		d.unmark = func(_ context.Context, _ string, until time.Time) error {
			called = true
			check.Equal(t, until, noon.Add(time.Second+time.Hour), "it is given back until, by owners' clocks, which may be ahead of the API server's")
			return nil
		}
		check.OK(t, d.undrain(ctx))
		return called
	}
	check.Equal(t, unmarked(vip.Node{Name: "n1"}), false, "a node that was not drained gets VIPs")
	if !unmarked(vip.Node{Name: "n1", Drained: true}) || !unmarked(vip.Node{Name: "n1", ReturnUntil: noon.Add(time.Minute)}) || !unmarked() {
		t.Error("a node that is drained, gets VIPs back, or can't be read is not undrained")
	}
}

// A drain that takes a VIP down, since no other node may carry it, needs --force.
func TestDrainNamesWhatNobodyElseCanTake(t *testing.T) {
	snapshot := func() kube.Snapshot {
		s := snapshotOf("n1", "")
		s.Leases[0] = nodeLease("n1", -time.Since(noon), up)
		s.Leases = append(s.Leases, nodeLease("n2", -time.Since(noon), up), nodeLease("n3", -time.Since(noon), up))
		web := serviceWith("web", "10.0.0.1", "10.0.0.1")
		web.Local = true
		s.Services = []vip.Service{web}
		return s
	}
	drain := func(force bool, on ...string) (marked bool, err error) {
		d, ctx := newTestDrain(t, snapshot(), snapshotOf("n2", "n1"))
		d.force = force
		d.readMore = func(_ context.Context, s *kube.Snapshot) (*vip.PoolSource, error) {
			s.Services[0].Endpoints.Ready = on
			return nil, nil
		}
		d.mark = func(context.Context, string) error { marked = true; return nil }
		return marked, d.drain(ctx)
	}
	marked, err := drain(false, "n1")
	want := "nothing was done: no other node may carry default/web (n2, n3: no ready endpoint there (externalTrafficPolicy Local)). --force drains the node all the same, and takes these VIPs down"
	check.Equal(t, marked, false, "marked")
	check.Equal(t, text(err), want, "the error")
	if marked, _ := drain(true, "n1"); !marked {
		t.Error("--force drains nothing")
	}
	if marked, err := drain(false, "n1", "n3"); !marked {
		t.Errorf("not drained although n3 may have it: %v", err)
	}
}

// A drain that takes the control plane's VIP down needs --force, too: who could take the mark away again would reach no API server. By ARP one node has it,
// by routes alone each node whose API server is ready.
func TestDrainOfTheControlPlane(t *testing.T) {
	const options = `"options":{"services":true,"election":true,METHOD,"controlPlane":["10.0.0.100"],"controlPlaneLease":"kube-system/cp-lock"}`
	for _, tt := range []struct {
		name, method, ready string
		drained             string // a node that is drained already
		want                string // of drain's error; "": the node is marked
	}{
		{"by ARP, one API server", `"arp":true`, "n1", "", "the control plane's VIP (n2: its own API server is not ready)"},
		{"by ARP, none is ready", `"arp":true`, "", "", "the control plane's VIP (n2: its own API server is not ready)"},
		{"by ARP, two API servers, one on a drained node", `"arp":true`, "n1 n2", "n2", "the control plane's VIP (n2: it is drained (herald undrain n2 ends that))"},
		{"by ARP, two API servers", `"arp":true`, "n1 n2", "", ""},
		{"by BGP, one API server", `"bgp":true`, "n1", "", "the control plane's VIP (n2: its own API server is not ready)"},
		{"by BGP, two API servers", `"bgp":true`, "n1 n2", "", ""},
		{"by BGP, another node's API server", `"bgp":true`, "n2", "", ""},
		{"by a routing table, one API server", `"routingTable":198`, "n1", "", "the control plane's VIP (n2: its own API server is not ready)"},
	} {
		s := snapshotOf("n1", "")
		s.Services, s.Leases = nil, s.Leases[1:]
		s.Leases[0] = owns("kube-system/cp-lock", "n1", "", "")
		if !strings.Contains(tt.method, "arp") {
			s.Leases = nil
		}
		for _, node := range []string{"n1", "n2"} {
			s.Nodes = append(s.Nodes, vip.Node{Name: node, Drained: node == tt.drained})
			info := fmt.Sprintf(`{"interface":"eth0","defaultInterface":"eth0","links":[{"name":"eth0","up":true}],"apiServerReady":%t,%s}`,
				strings.Contains(tt.ready, node), strings.Replace(options, "METHOD", tt.method, 1))
			s.Leases = append(s.Leases, nodeLease(node, -time.Since(noon), info))
		}
		after := s
		after.Leases = s.Leases[len(s.Leases)-2:]
		d, ctx := newTestDrain(t, s, after)
		marked := false
		d.mark = func(context.Context, string) error { marked = true; return nil }
		err := d.drain(ctx)
		want := "nothing was done: no other node may carry " + tt.want + ". --force drains the node all the same, and takes these VIPs down"
		if tt.want == "" {
			want = ""
		}
		check.Equal(t, text(err), want, "%s: the error", tt.name)
		check.Equal(t, marked, (want == ""), "%s: marked", tt.name)
	}
}

// A drain finds, of what is advertised by routes alone, what no other node may carry: with an election its owner, without one the nodes that have an endpoint.
func TestDrainOfRoutes(t *testing.T) {
	for _, method := range []string{`"routingTable":198`, `"bgp":true`} {
		for _, election := range []string{`,"election":true`, ""} {
			s := snapshotOf("n1", "")
			s.Leases = s.Leases[1:]
			if election == "" {
				s.Leases = nil
			}
			for _, node := range []string{"n1", "n2"} {
				s.Leases = append(s.Leases, nodeLease(node, -time.Since(noon), `{"interface":"eth0","links":[{"name":"eth0","up":true}],"options":{"services":true,`+method+election+`}}`))
			}
			web := serviceWith("web", "10.0.0.1", "10.0.0.1")
			web.Local, web.Endpoints.Ready = true, []string{"n1"}
			s.Services = []vip.Service{web}
			d, ctx := newTestDrain(t, s)
			check.Contains(t, text(d.drain(ctx)), "no other node may carry default/web (n2: no ready endpoint there (externalTrafficPolicy Local))")
		}
	}
}

// TestDrainOfAnotherInstallation: a node whose Herald has its node lease in another namespace is drained by its Node.
func TestDrainOfAnotherInstallation(t *testing.T) {
	s := kube.Snapshot{At: noon, Nodes: []vip.Node{{Name: "n1"}}, Leases: []*coordinationv1.Lease{nodeLease("n2", time.Second, "{}")}}
	for i := range maxOtherNodes { // status shows no more
		s.Leases = append(s.Leases, nodeLease(fmt.Sprint("w", i), time.Second, "{}"))
	}
	s.Leases = append(s.Leases, nodeLease("n1", time.Second, "{}"))
	for _, l := range s.Leases[1:] {
		l.Namespace = "lb"
	}
	d, ctx := newTestDrain(t, s, s, s)
	marked := ""
	d.mark = func(_ context.Context, object string) error { marked = object; return nil }
	if err := d.drain(ctx); err != nil || marked != "n1" {
		t.Errorf("the Node %q is marked, %v", marked, err)
	}
}

// A host may have another name than its Node: each command takes either, and says of one that is neither which there are.
func TestNodeOfAnotherName(t *testing.T) {
	s := snapshotOf("n1", "")
	info := `{"links":[{"name":"eth0","up":true,"prefixes":["10.0.0.11/24"]}],"interface":"eth0"}`
	s.Leases[0] = nodeLease("n1", time.Second, info)
	s.Leases = append(s.Leases, nodeLease("n2", time.Second, strings.ReplaceAll(info, ".11", ".12")))
	s.Nodes = []vip.Node{{Name: "n1.example.com", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.11")}, Drained: true}, {Name: "n2"}, {Name: "w1"}}
	s.At = noon
	moved := s
	moved.Leases = append(slices.Clone(s.Leases), owns("default/kubevip-web", "n2", "n1", ""))
	moved.Leases = slices.Delete(moved.Leases, 1, 2)
	x := observe(s, nil, noon)
	for _, name := range []string{"n1", "n1.example.com"} {
		d, ctx := newTestDrain(t, s, moved, moved)
		d.node, d.force = name, true
		d.mark = func(_ context.Context, object string) error {
			check.Equal(t, object, "n1.example.com", "%s: the Node that is marked", name)
			return nil
		}
		if err := d.drain(ctx); err != nil || d.node != "n1" {
			t.Errorf("%s: %s, %v", name, d.node, err)
		}
		var b strings.Builder
		if err := x.writeNode(&b, name, ""); err != nil || !strings.HasPrefix(b.String(), "Node n1: carries no VIP: it is drained; herald undrain n1 ends that; its Node is called n1.example.com\n") {
			t.Errorf("%s: %v\n%s", name, err, b.String())
		}
	}
	d, ctx := newTestDrain(t, s)
	d.node = "n3"
	for _, err := range []error{d.drain(ctx), x.writeNode(io.Discard, "n3", "")} {
		check.Equal(t, text(err), `no Herald runs on a node "n3"; it runs on n1, n2`, "the error")
	}
	if b := statusText(t, s, ""); !strings.Contains(b, "its Node is called n1.example.com") || strings.Count(b, "no Herald runs there") != 1 {
		t.Errorf("status has\n%s", b)
	}
}

// TestControlPlaneOfOtherNodes: what herald drain and herald explain say of the control plane's VIP follows from the nodes with cp_enable: be they of an
// earlier version, which does not say which lease it has, or others than those with Services, which are announced in another way. Only cp1's API server
// is ready.
func TestControlPlaneOfOtherNodes(t *testing.T) {
	const arp, bgp, election, old, named = `"arp":true`, `"bgp":true`, `,"election":true`, "", `,"controlPlaneLease":"kube-system/cp-lock"`
	for _, tt := range []struct {
		name     string
		lease    string // that cp1 has; "": none
		method   string // of the control plane
		cp1, cp2 string // which lease they publish
		services string // method of Services, on another node
	}{
		{"all are of an earlier version", "plndr-cp-lock", arp, old, old, ""},
		{"the first is of an earlier version", "cp-lock", arp, old, named, ""},
		{"by ARP, and Services by ARP", "cp-lock", arp, named, named, arp + election},
		{"by ARP, and Services by BGP", "cp-lock", arp, named, named, bgp},
		{"by ARP, and Services by BGP, each from one node", "cp-lock", arp, named, named, bgp + election},
		{"by BGP, and Services by ARP", "", bgp, named, named, arp + election},
		{"by a routing table, and Services by ARP", "", `"routingTable":198`, named, named, arp},
	} {
		t.Run(tt.name, func(t *testing.T) {
			node := func(name string, ready bool, options string) *coordinationv1.Lease {
				return nodeLease(name, -time.Since(noon), fmt.Sprintf(`%s,"defaultInterface":"eth0","apiServerReady":%t,"options":{%s}}`, strings.TrimSuffix(linkUp, "}"), ready, options))
			}
			const address = `,"controlPlane":["10.0.0.100"]`
			s := kube.Snapshot{Leases: []*coordinationv1.Lease{node("cp1", true, tt.method+address+tt.cp1), node("cp2", false, tt.method+address+tt.cp2)}}
			if tt.services != "" {
				s.Leases = append(s.Leases, node("a1", false, `"services":true,`+tt.services))
				web := serviceWith("web", "10.0.0.1", "10.0.0.1")
				web.Endpoints = vip.Endpoints{Ready: []string{"a1"}}
				s.Services = []vip.Service{web}
			}
			if tt.lease != "" {
				s.Leases = append(s.Leases, owns("kube-system/"+tt.lease, "cp1", "", ""))
			}
			owner := "cp1"
			if tt.lease == "" {
				owner = "-"
			}
			var b strings.Builder
			check.OK(t, observe(s, nil, time.Now()).writeNode(&b, "cp1", ""))
			words := strings.Join(strings.Fields(b.String()), " ")
			if !strings.Contains(words, "it carries 1, and could carry 0 more") || strings.Count(words, "default/web") != len(s.Services) ||
				!strings.Contains(words, "(control plane) 10.0.0.100 "+owner+" carries it NO OTHER NODE MAY CARRY IT") {
				t.Error(b.String())
			}
			d, ctx := newTestDrain(t, s)
			d.node = "cp1"
			d.mark = func(context.Context, string) error { t.Error("the node is drained"); return nil }
			const want = "nothing was done: no other node may carry the control plane's VIP ("
			if err := d.drain(ctx); !strings.HasPrefix(text(err), want) || !strings.Contains(text(err), "cp2: its own API server is not ready") {
				t.Errorf("%v", err)
			}
		})
	}
}
