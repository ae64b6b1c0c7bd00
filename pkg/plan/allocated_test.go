package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// shown is what all nodes together do for Services that nobody announces: the statuses, each once, and Events; and how many nodes write.
func shown(r Rules, w vip.World) string {
	var out []string
	for _, m := range w.Members {
		w.Self = m.Name
		p := Make(r, w)
		for _, s := range addressStatuses(p) {
			line := "status of " + s.Service.Name + ":"
			for _, i := range s.Ingress {
				line += " " + i.Addr.String()
			}
			out = append(out, fmt.Sprintf("%s host %q by %q", line, s.VIPHost, s.Announcer))
		}
		for _, e := range p.Events {
			if e.Reason != vip.VIPAnnounced {
				out = append(out, fmt.Sprintf("event %s %s", e.Service.Name, e.Reason))
			}
		}
		if n := len(p.Addresses) + len(p.Routes); n > 0 {
			out = append(out, fmt.Sprintf("%s announces %d", m.Name, n))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// A status says what is allocated, an announcement goes by endpoints (docs/why.md, "Endpoints").
func TestStatusWithoutEndpoints(t *testing.T) {
	without := func(s *vip.Service) { s.Endpoints = vip.Endpoints{} }
	kept := writtenBy("herald", "")
	arp, bgp := rules(), bgpRules()
	arp.Announcer, bgp.Announcer = "herald", "herald"
	probing := arp
	probing.ProbeNew = true
	const shows = `status of a: 10.77.0.50 host "" by "herald"` + "\n"
	const clears = `status of a: host "" by ""` + "\n"
	down := func(w *vip.World) {
		for i := range w.Members {
			w.Members[i].Info.Links[0].Up = false
		}
	}
	runPlans(t, shown, []planTest{
		{"never announced", arp, world(svc("a", "10.77.0.50", without)), "event a NoEndpoints\n" + shows},
		{"two addresses", arp, world(svc("a", "10.77.0.50,fd77::50", without)), "event a NoEndpoints\n" + `status of a: 10.77.0.50 fd77::50 host "" by "herald"`},
		{"announced before", arp, world(svc("a", "10.77.0.50", without, written("n2"), func(s *vip.Service) { s.Announcer = "herald" })), "event a NoEndpoints\n" + shows},
		{"shown before", arp, world(svc("a", "10.77.0.50", without, kept)), "event a NoEndpoints\n" + shows},
		{"Local", arp, world(svc("a", "10.77.0.50", local(), without)), "event a NoEndpoints\n" + shows},
		{"Local, with an endpoint where no Herald runs", arp, world(svc("a", "10.77.0.50", local("w1"), kept)), "event a NoEligibleNode\n" + shows},
		{"younger than 3 s", arp, world(svc("a", "10.77.0.50", without, func(s *vip.Service) { s.Created = epoch.Add(time.Hour - time.Second) })), ""},
		{"another address since", arp, world(svc("a", "10.77.0.50", without, kept, func(s *vip.Service) { s.Ingress[0].Addr = addr("10.77.0.51") })), "event a NoEndpoints\n" + shows},
		{"to be probed first", probing, world(svc("a", "10.77.0.50", without)), "event a NoEndpoints"},
		{"the address of a gateway is to be probed first", probing, world(svc("a", "10.77.0.50,198.51.100.7", without, kept, func(s *vip.Service) { s.Ingress[1].IPMode, s.Record.Named = vip.ModeProxy, s.Addresses[:1] })), "event a NoEndpoints\n" + shows},
		{"no node has the link", arp, world(svc("a", "10.77.0.50", without, kept, func(s *vip.Service) { s.Interface = "nope" })), "event a NoEndpoints\n" + clears},
		{"all links are down", arp, with(world(svc("a", "10.77.0.50", without, kept)), down), "event a NoEndpoints\n" + clears},
		{"its address is refused", arp, world(svc("a", "10.77.0.255", without, kept)), "event a AddressRefused\n" + clears},
		{"another Service has the address", arp, world(svc("a", "10.77.0.50", without, younger), svc("b", "10.77.0.50", written("n1"))), "event a AddressConflict"},
		{"it has the address, another one asks for it", arp, world(svc("a", "10.77.0.50", without, kept, younger), svc("b", "10.77.0.50")), "event a NoEndpoints\nevent b AddressConflict\n" + shows},
		{"by BGP, and no router takes IPv6", bgp, with(withSessions(world(svc("a", "10.77.0.50,fd77::50", without))), func(w *vip.World) { w.BGPSessions[0].NoIPv6 = true }), "event a NoEndpoints\n" + shows},
		{"by BGP, with sessions", bgp, withSessions(world(svc("a", "10.77.0.50", without))), "event a NoEndpoints\n" + shows},
		{"by BGP, without", bgp, world(svc("a", "10.77.0.50", without)), "event a NoEndpoints"},
		{"by BGP, sessions lost", bgp, world(svc("a", "10.77.0.50", without, kept)), "event a NoEndpoints\n" + shows},
		{"not ours any more", arp, world(svc("a", "10.77.0.50", without, kept, func(s *vip.Service) { s.Ignore = true })), "event a VIPWithdrawn\n" + clears},
		{"no LoadBalancer any more", arp, world(svc("a", "10.77.0.50", without, kept, func(s *vip.Service) { s.LoadBalancer = false })), "event a VIPWithdrawn\n" + clears},
	})
}
