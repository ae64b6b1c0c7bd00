package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// openPorts is the OpenPorts of a plan, one a line.
func openPorts(p vip.Plan) string {
	var b strings.Builder
	for _, x := range p.OpenPorts {
		if x == (vip.OpenPort{Addr: x.Addr}) {
			fmt.Fprintf(&b, "%s none\n", x.Addr)
			continue
		}
		fmt.Fprintf(&b, "%s %s %d\n", x.Addr, x.Protocol, x.Port)
	}
	return b.String()
}

func TestOpenPorts(t *testing.T) {
	limited := rules()
	limited.LimitPorts = true
	forwarding := limited
	forwarding.Forwarding = &Forwarding{}
	unlimited := rules()
	exempt := func(s *vip.Service) { s.AllPorts = true }
	ports := func(s *vip.Service) { s.Ports = []vip.Port{{Protocol: "TCP", Port: 80}, {Protocol: "UDP", Port: 53}} }
	forwarded := func(s *vip.Service) { s.Forward = &vip.Forward{} }
	mine := func(services ...vip.Service) vip.World {
		w := world(services...)
		for _, s := range services {
			w = held(w, s.Key.Name, "n1")
		}
		return w
	}
	lost := func(w vip.World) vip.World { // bound, with mappings that a gateway has, and the first Service is deleted
		w = bind(forwarding, w)
		w = withMappings(w, Make(forwarding, w), "11.22.33.1")
		w.Services = w.Services[1:]
		return w
	}
	cp := controlPlaneRules()
	cp.LimitPorts, cp.Enabled, cp.Election = true, true, true
	runPlans(t, planned(openPorts), []planTest{
		{"all ports of both families", limited, mine(svc("a", "10.77.0.60,fd77::60", ports)), "10.77.0.60 TCP 80\n10.77.0.60 UDP 53\nfd77::60 TCP 80\nfd77::60 UDP 53\n"},
		{"without the option", unlimited, mine(svc("a", "10.77.0.60", ports)), ""},
		{"another node's", limited, held(world(svc("a", "10.77.0.60")), "a", "n2"), ""},
		{"exempt", limited, mine(svc("a", "10.77.0.60", exempt), svc("b", "10.77.0.61")), "10.77.0.61 TCP 80\n"},
		{"shared", limited, mine(svc("a", "10.77.0.60", written("n1")), svc("b", "10.77.0.60", port(81), younger)), "10.77.0.60 TCP 80\n10.77.0.60 TCP 81\n"},
		{"shared, and one is exempt", limited, mine(svc("a", "10.77.0.60", written("n1")), svc("b", "10.77.0.60", port(81), younger, exempt)), "10.77.0.60 TCP 80\n10.77.0.60 TCP 81\n"},
		{"shared, and both are exempt", limited, mine(svc("a", "10.77.0.60", written("n1"), exempt), svc("b", "10.77.0.60", port(81), younger, exempt)), ""},
		{"gateways answer the node's own address", forwarding, mine(svc("a", "10.77.0.60", forwarded)), "10.77.0.60 TCP 80\n"},
		{"UPnP is off", limited, mine(svc("a", "10.77.0.60", forwarded)), "10.77.0.60 TCP 80\n"},
		{"being removed", limited, lost(mine(svc("a", "10.77.0.60"), svc("b", "10.77.0.61"))), "10.77.0.61 TCP 80\n10.77.0.60 none\n"},
		{"being removed, of the last Service", limited, lost(mine(svc("a", "10.77.0.60,fd77::60"))), "10.77.0.60 none\nfd77::60 none\n"},
		{"kept while gateways close its ports", forwarding, lost(mine(svc("a", "10.77.0.60", forwarded))), "10.77.0.60 none\n"},
		{"being removed, since another node has it", limited, held(bind(limited, mine(svc("a", "10.77.0.60"))), "a", "n2"), "10.77.0.60 none\n"},
		{"being removed, without the option", unlimited, lost(mine(svc("a", "10.77.0.60", forwarded))), ""},
		{"the control plane's", cp, controlPlaneHeld(controlPlaneWorld("n1"), "n1"), ""},
		{"the control plane's, being removed", cp, controlPlaneHeld(bind(cp, controlPlaneHeld(controlPlaneWorld("n1"), "n1")), "n2"), ""},
	})
}

// Where nftables does not limit ports the user hears of it, as long as the VIP is not bound for that reason.
func TestPortsNotLimited(t *testing.T) {
	r := rules()
	r.LimitPorts = true
	w := held(world(svc("a", "10.77.0.60")), "a", "n1")
	w.PortsNotLimited = map[vip.Family]string{vip.IPv6: "no such family"}
	check.Equal(t, len(Make(r, w).Events), 0, "Events of the other family")
	w.PortsNotLimited[vip.IPv4] = "operation not permitted"
	const want = "node n1 owns 10.77.0.60, but does not bind it, since nftables does not limit its ports (enable_service_security): operation not permitted"
	said := func(w vip.World) bool {
		return slices.ContainsFunc(Make(r, w).Events, func(e vip.Event) bool { return e.Message == want && e.Warning })
	}
	if p := Make(r, w); !said(w) || p.Verdicts[0].Reason != vip.NoEligibleNode {
		t.Errorf("verdict %v, events %v", p.Verdicts[0], p.Events)
	}
	all := w
	all.Services = []vip.Service{w.Services[0]}
	if all.Services[0].AllPorts = true; said(all) || said(bind(r, w)) {
		t.Error("an Event although it is bound, or has all ports")
	}
}

// A namespace has 8192 ports of VIPs open on a node, those of its older Services; what it asks for beyond closes no
// port of another namespace. The VIP of a Service that has none of them open is limited, too.
func TestOpenPortsOfANamespace(t *testing.T) {
	r := rules()
	r.LimitPorts = true
	many := func(s *vip.Service) {
		s.Ports = nil
		for i := range 5000 {
			s.Ports = append(s.Ports, vip.Port{Protocol: "TCP", Port: uint16(i + 1)})
		}
	}
	other := svc("a", "10.77.0.70", younger)
	other.Key.Namespace = "other"
	w := world(svc("a", "10.77.0.60"), svc("b", "10.77.0.61,fd77::61", many), svc("c", "10.77.0.62", younger), svc("d", "10.77.0.63", younger), other)
	for _, s := range w.Services {
		w.Claims[vip.Key{Namespace: s.Key.Namespace, Name: "kubevip-" + s.Key.Name}] = vip.Claim{Holder: "n1", Valid: true, Transitions: 1}
	}
	p := Make(r, w)
	opened := make(map[string]int)
	for _, x := range p.OpenPorts {
		opened[x.Addr.String()] += min(1, int(x.Port)) // an OpenPort without a port opens none
	}
	check.Equal(t, fmt.Sprint(opened), "map[10.77.0.60:1 10.77.0.61:4095 10.77.0.62:1 10.77.0.63:0 10.77.0.70:1 fd77::61:4095]", "open")
	var told []string
	for _, e := range p.Events {
		if e.Reason == vip.InvalidField {
			told = append(told, e.Service.Name+": "+e.Message)
		}
	}
	const want = "b: spec.ports: the last 905 of 5000 ports are closed. Node n1 opens 8192 ports of VIPs for a namespace (enable_service_security)"
	if len(told) != 2 || !strings.HasPrefix(told[0], want) || !strings.HasPrefix(told[1], "d: spec.ports: the last 1 of 1 ports are closed") {
		t.Errorf("Events %q, want %q", told, want)
	}
}
