package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// egressAgent is an agent whose plan is that of m, and which notes what is set of egress.
func egressAgent(m *machine) *Agent {
	a := newAgent(m, nil)
	quietly := part[vip.Announcement](quiet[vip.Announcement])
	a.o.Announcements, a.o.Addresses, a.o.Leases = quietly, part[vip.Address](quiet[vip.Address]), part[vip.Owner](quiet[vip.Owner])
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

// Pods of a family that nftables refuses are routed as long as the kernel may still have marks of before, and then not at all, without any change in between; those of the other family as always.
func TestEgressRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		vips := func(entries ...vip.Egress) []vip.Egress {
			for i := range entries {
				entries[i].VIP = netip.MustParseAddr("10.0.0.200")
				if entries[i].Pods[0].Is6() {
					entries[i].VIP = netip.MustParseAddr("fd00::200")
				}
			}
			return entries
		}
		m := &machine{world: known(), plan: vip.Plan{Egress: vips(sends("10.1.0.1", "10.0.0.2"), sends("fd01::1", "fd00::2"))}}
		a, refuses := egressAgent(m), false
		marks := a.o.Egress
		a.o.Egress = part[vip.Egress](func(want []vip.Egress) ([]vip.Egress, error) {
			have, err := marks.Set(t.Context(), want)
			return slices.DeleteFunc(slices.Clone(have), func(e vip.Egress) bool { return refuses && e.VIP.Is6() }), err
		})
		routed := ""
		routes := func(want []vip.Egress) ([]vip.Egress, error) { // as pkg/routes, which changes nothing if it has that
			pods := make(map[string]bool)
			for _, e := range want {
				pods[e.Pods[0].String()] = true
			}
			if now := strings.Join(slices.Sorted(maps.Keys(pods)), " "); now != routed {
				routed = now
				m.note("route %s", now)
			}
			return want, nil
		}
		a.o.EgressRoutes = part[vip.Egress](routes)
		for _, step := range []struct {
			after   time.Duration
			refuses bool
			pod     string // of IPv4
			want    []string
		}{
			{0, false, "10.1.0.1", []string{"route 10.1.0.1 fd01::1", "mark 10.1.0.1 fd01::1"}},
			{5 * time.Second, true, "10.1.0.1", []string{"mark 10.1.0.1 fd01::1"}},
			{5 * time.Second, true, "10.1.0.2", []string{"route 10.1.0.1 10.1.0.2 fd01::1", "mark 10.1.0.2 fd01::1"}},
			{5 * time.Second, true, "10.1.0.2", []string{"mark 10.1.0.2 fd01::1"}},
			{15 * time.Second, true, "10.1.0.2", []string{"mark 10.1.0.2 fd01::1", "route 10.1.0.2"}},
			{5 * time.Second, true, "10.1.0.2", []string{"mark 10.1.0.2 fd01::1"}},
			{5 * time.Second, true, "10.1.0.3", []string{"route 10.1.0.2 10.1.0.3", "mark 10.1.0.3 fd01::1", "route 10.1.0.3"}},
			{5 * time.Second, false, "10.1.0.3", []string{"mark 10.1.0.3 fd01::1", "route 10.1.0.3 fd01::1"}},
			{5 * time.Second, false, "10.1.0.3", []string{"mark 10.1.0.3 fd01::1"}},
		} {
			time.Sleep(step.after)
			refuses = step.refuses
			m.plan.Egress = vips(sends(step.pod, "10.0.0.2"), sends("fd01::1", "fd00::2"))
			a.pass(t.Context())
			same0(t, m.take(), step.want...)
		}
	})
}

// What an earlier process left is routed as long, too, if nftables refuses what this one wants.
func TestEgressRefusedAtFirst(t *testing.T) {
	m := &machine{world: known(), plan: vip.Plan{Egress: []vip.Egress{sends("10.1.0.1", "10.0.0.2")}}}
	a := egressAgent(m)
	a.o.Egress = part[vip.Egress](func([]vip.Egress) ([]vip.Egress, error) { return nil, nil })
	a.pass(t.Context())
	same0(t, m.take(), "route 10.1.0.1", "route 10.1.0.1")
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
