package plan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// What one namespace may write costs all others little: a pass with it takes no more CPU time than limit, with the
// race detector and both cores busy; its square would take several times that.
func within(t *testing.T, limit time.Duration, pass func()) {
	t.Helper()
	if used := check.CPU(t, pass); used > limit {
		t.Errorf("a pass takes %v of a core", used)
	} else {
		t.Logf("a pass takes %v of a core", used)
	}
}

// TestManyNodesOfEndpoints: EndpointSlices that name a hundred thousand nodes, where users may write EndpointSlices.
func TestManyNodesOfEndpoints(t *testing.T) {
	names := func(suffix string) (all []string) {
		for i := range 100000 {
			all = append(all, fmt.Sprintf("a-node-of-which-there-is-none-%06d-%s", i, suffix))
		}
		return append(all, "n2")
	}
	w := world()
	for i := range 4 {
		s := svc(fmt.Sprint("s", i), fmt.Sprintf("10.77.0.%d", 50+i), local(names(fmt.Sprint(i))...), func(s *vip.Service) { s.Lease = "shared" })
		w.Services = append(w.Services, s)
	}
	var p vip.Plan
	within(t, 3*time.Second, func() { p = Make(rules(), w) })
	if len(p.Owners) != 1 || p.Owners[0].Node != "n2" {
		t.Errorf("owners: %+v", p.Owners)
	}
}

// TestManyLeasesOfAUnit: twenty thousand Services that share an address, each with a lease of its own.
func TestManyLeasesOfAUnit(t *testing.T) {
	w := world()
	for i := range 20000 {
		s := svc(fmt.Sprintf("s%05d", i), "10.77.0.50", written("n1"))
		s.Ports[0].Port = uint16(i + 1)
		w.Services = append(w.Services, s)
	}
	w = held(w, "s00000", "n1")
	var p vip.Plan
	within(t, 3*time.Second, func() { p = Make(rules(), w) })
	check.Equal(t, len(p.Owners), 20000, "owners")
	check.Equal(t, len(p.Addresses), 1, "addresses")
}

// TestManyBesideAnotherNamespace: thirty thousand Services of a namespace share an address, for which one of another asks.
func TestManyBesideAnotherNamespace(t *testing.T) {
	for _, change := range []func(*vip.Service){func(*vip.Service) {}, written("n1")} {
		w := world()
		for i := range 30000 {
			w.Services = append(w.Services, svc(fmt.Sprintf("s%05d", i), "10.77.0.50", port(uint16(i+1)), change))
		}
		w = held(w, "s00000", "n1")
		w.Services = append(w.Services, svc("x", "10.77.0.50", tenant, younger))
		var p vip.Plan
		within(t, 3*time.Second, func() { p = Make(rules(), w) })
		if last := p.Verdicts[30000]; len(p.Addresses) != 1 || last.Reason != vip.AddressConflict {
			t.Errorf("%d addresses, %+v", len(p.Addresses), last)
		}
	}
}

// TestManyReservedAddresses: all addresses that a namespace asks for are those of pods by its EndpointSlices.
func TestManyReservedAddresses(t *testing.T) {
	w := world()
	for i := range 2000 {
		var addrs []string
		for j := range 16 {
			a := netip.AddrFrom4([4]byte{10, 80, byte(i >> 3), byte(i<<5 | j)})
			addrs = append(addrs, a.String())
			w.Reserved = append(w.Reserved, vip.ReservedRange{Prefix: netip.PrefixFrom(a, 32), Description: "the address of a pod", FromSlice: true})
		}
		w.Services = append(w.Services, svc(fmt.Sprintf("s%04d", i), strings.Join(addrs, ",")))
	}
	var p vip.Plan
	within(t, 3*time.Second, func() { p = Make(rules(), w) })
	if len(p.Addresses) != 0 || p.Verdicts[0].Reason != vip.AddressRefused {
		t.Errorf("%d addresses, %+v", len(p.Addresses), p.Verdicts[0])
	}
}

// TestManyMappings: of all the ports for which the Services of a namespace ask gateways, some hundred are asked for,
// those of the oldest; another namespace has its own.
func TestManyMappings(t *testing.T) {
	r := upnpRules(func(f *Forwarding) { f.Ports = [][2]uint16{{80, 20000}} })
	w := world()
	for i := range 40 {
		s := svc(fmt.Sprintf("s%02d", i), fmt.Sprintf("10.77.0.%d", 50+i), forwarded(), func(s *vip.Service) { s.Created = epoch.Add(time.Duration(i) * time.Second) })
		s.Ports = nil
		for p := range 10000 {
			s.Ports = append(s.Ports, vip.Port{Protocol: "TCP", Port: uint16(p + 1)})
		}
		w.Services = append(w.Services, s)
	}
	other := svc("other", "10.77.0.100", forwarded())
	other.Key.Namespace = "other"
	w.Services = append(w.Services, other)
	for _, s := range w.Services {
		w.Claims[s.LeaseKey()] = vip.Claim{Holder: "n1", Valid: true, Transitions: 1}
	}
	w = bind(r, w)
	var p vip.Plan
	check.Allocates(t, 16<<20, func() { p = Make(r, w) })
	counts := map[string]int{}
	for _, m := range p.Mappings {
		counts[m.Service.String()]++
	}
	if len(p.Mappings) != maxMappings+1 || counts["default/s00"] != maxMappings || counts["other/other"] != 1 {
		t.Errorf("mappings: %v", counts)
	}
	told := messages(p, vip.PortNotMapped)
	check.Contains(t, strings.Join(told, "\n"), "256 ports", "the external ports 1, 2, 3, 4, 5 and 74 more are none of upnp_ports")
	if len(told) > 100 {
		t.Errorf("%d Events", len(told))
	}
}

// TestManyWaiting: forty thousand Services wait for an address of a pool that has none, and the node that gives
// addresses says so on each.
func TestManyWaiting(t *testing.T) {
	w := poolWorld("n1")
	for i := range 40000 {
		s := svc(fmt.Sprintf("s%05d", i), "")
		w.Services = append(w.Services, s)
		w.Assignments = append(w.Assignments, vip.Assignment{Service: s.Key, UID: s.UID, Reason: "there is none"})
	}
	var p vip.Plan
	within(t, 3*time.Second, func() { p = Make(poolRules(), w) })
	if len(p.Statuses) != 40000 || p.Statuses[39999].Conditions[0].Reason != vip.NoPoolAddress {
		t.Errorf("%d statuses: %+v", len(p.Statuses), p.Statuses[max(0, len(p.Statuses)-1):])
	}
}
