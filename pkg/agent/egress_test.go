package agent

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

// egressAgent is an agent whose plan is that of m, and which notes what is set of egress.
func egressAgent(m *machine) *Agent {
	a := newAgent(m, nil)
	quietly := part[vip.Announcement](quiet[vip.Announcement])
	a.o.Announcements, a.o.Addresses, a.o.Leases = quietly, part[vip.Address](quiet[vip.Address]), part[vip.LeaseIntent](quiet[vip.LeaseIntent])
	noted := func(what string) part[vip.Egress] {
		return func(want []vip.Egress) ([]vip.Egress, error) {
			var pods []string
			for _, e := range want {
				pods = append(pods, e.Pods[0].String())
			}
			m.note("%s %s", what, strings.Join(pods, " "))
			return want, nil
		}
	}
	a.o.Egress, a.o.EgressRoutes = noted("mark"), noted("route")
	return a
}

// sends is the Egress of a pod by way of another node, or of none.
func sends(pod, via string) vip.Egress {
	e := vip.Egress{Pods: []netip.Addr{netip.MustParseAddr(pod)}}
	if via != "" {
		e.Via = netip.MustParseAddr(via)
	}
	return e
}

// A pod's packets are marked only while a rule routes them.
func TestEgressOrder(t *testing.T) {
	m := &machine{world: known(), plan: vip.Plan{Egress: []vip.Egress{sends("10.1.0.1", "10.0.0.2")}}}
	a := egressAgent(m)
	a.pass(t.Context())
	same0(t, m.take(), "route 10.1.0.1", "mark 10.1.0.1", "route 10.1.0.1")
	m.plan.Egress = []vip.Egress{sends("10.1.0.2", "10.0.0.2")}
	a.pass(t.Context())
	same0(t, m.take(), "route 10.1.0.1 10.1.0.2", "mark 10.1.0.2", "route 10.1.0.2")
	m.plan.EgressPending = true
	a.pass(t.Context())
	if got := m.take(); got != "" {
		t.Errorf("before the pods are listed:\n%s", got)
	}
}

// When the process ends, pods go on sending by way of other nodes that own the VIPs. If no other node may own them nothing is left.
func TestEgressStays(t *testing.T) {
	m := &machine{world: known(), plan: vip.Plan{Egress: []vip.Egress{sends("10.1.0.1", ""), sends("10.1.0.2", "10.0.0.2")}}}
	m.world.Members = []vip.Member{{Name: "n1", Alive: true}, {Name: "n2", Alive: true}}
	stop := func() string {
		a := egressAgent(m)
		a.pass(t.Context())
		m.take()
		a.stop(context.Background())
		all := strings.Split(m.take(), "\n")
		return strings.Join(all[max(0, len(all)-3):], "; ")
	}
	if got, want := stop(), "route 10.1.0.1 10.1.0.2 10.1.0.2; mark 10.1.0.2; route 10.1.0.2"; got != want {
		t.Errorf("beside another node it ends with %q, want %q", got, want)
	}
	m.world.Members = slices.Clone(m.world.Members[:1])
	if got, want := stop(), "route 10.1.0.1 10.1.0.2; mark ; route "; got != want {
		t.Errorf("alone it ends with %q, want %q", got, want)
	}
}
