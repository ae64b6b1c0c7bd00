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

// forwarded asks for the ports of s to be opened.
func forwarded(change ...func(*vip.Forward)) func(*vip.Service) {
	return func(s *vip.Service) {
		s.Forward = &vip.Forward{Lease: time.Hour}
		for _, f := range change {
			f(s.Forward)
		}
	}
}

// upnpRules are rules with UPnP.
func upnpRules(change ...func(*Forwarding)) Rules {
	r := rules()
	r.Forwarding = &Forwarding{Status: true}
	for _, f := range change {
		f(r.Forwarding)
	}
	return r
}

// mappingsSummary is what a plan wants of gateways, in few words.
func mappingsSummary(p vip.Plan) string {
	var lines []string
	for _, x := range p.Mappings {
		where := "elsewhere"
		if x.Here {
			where = "here"
		}
		lines = append(lines, fmt.Sprintf("%s %s %d -> %s:%d on %s for %s, %s", x.Service.Name, x.Protocol, x.External, x.Addr, x.Port, x.Link, x.Claim.Name, where))
	}
	return strings.Join(lines, "\n")
}

// messages are the messages of the Events of a reason.
func messages(p vip.Plan, reason vip.Reason) []string {
	var all []string
	for _, n := range p.Events {
		if n.Reason == reason {
			all = append(all, n.Message)
		}
	}
	return all
}

// made says that the gateways have what the plan wants of them.
func withMappings(w vip.World, p vip.Plan, external string) vip.World {
	for _, x := range p.Mappings {
		if x.Here {
			w.MappingStates = append(w.MappingStates, vip.MappingState{Mapping: x, Gateway: "10.77.0.1 (box)", Requested: true, Confirmed: true, External: netip.AddrPortFrom(addr(external), x.External), Until: w.Now.Add(time.Hour)})
		}
	}
	return w
}

func TestMappings(t *testing.T) {
	const a = "a TCP 80 -> 10.77.0.50:80 on eth0 for kubevip-a, "
	web := func(change ...func(*vip.Service)) vip.World {
		return world(svc("a", "10.77.0.50", append([]func(*vip.Service){forwarded()}, change...)...))
	}
	runPlans(t, func(r Rules, w vip.World) string { return mappingsSummary(Make(r, bind(r, w))) }, []planTest{
		{"bound here", upnpRules(), held(web(), "a", "n1"), a + "here"},
		{"another node's", upnpRules(), held(web(), "a", "n2"), a + "elsewhere"},
		{"free", upnpRules(), web(), a + "elsewhere"},
		{"not asked for", upnpRules(), held(web(func(s *vip.Service) { s.Forward = nil }), "a", "n1"), ""},
		{"off", rules(), held(web(), "a", "n1"), ""},
		{"without endpoints", upnpRules(), held(web(func(s *vip.Service) { s.Endpoints = vip.Endpoints{} }), "a", "n1"), ""},
		{"ignored", upnpRules(), held(web(func(s *vip.Service) { s.Ignore = true }), "a", "n1"), ""},
		{"another program's", upnpRules(), with(web(), func(w *vip.World) {
			w.Claims[key("kubevip-a")] = vip.Claim{Holder: "kube-vip", Valid: true, Foreign: true}
		}), a + "elsewhere"},
		{"without tenure", upnpRules(), with(held(web(), "a", "n1"), func(w *vip.World) { w.Tenure.Until = w.Now.Add(-time.Second) }), a + "elsewhere"},
		{"stopping, with a successor", upnpRules(), with(held(web(), "a", "n1"), func(w *vip.World) { w.Stopping = true }), a + "here"}, // until it is given
		{"the last one stops", upnpRules(), with(held(web(), "a", "n1"), func(w *vip.World) { w.Stopping, w.Members = true, w.Members[:1] }), ""},
		{"both protocols, both families, another port", upnpRules(),
			held(world(svc("a", "10.77.0.50,fd77::50", forwarded(func(f *vip.Forward) { f.External = map[uint16]uint16{53: 5353} }), func(s *vip.Service) {
				s.Ports = []vip.Port{{Protocol: "TCP", Port: 53}, {Protocol: "UDP", Port: 53}}
			})), "a", "n1"), `a TCP 5353 -> 10.77.0.50:53 on eth0 for kubevip-a, here
			a UDP 5353 -> 10.77.0.50:53 on eth0 for kubevip-a, here
			a TCP 53 -> fd77::50:53 on eth0 for kubevip-a, here
			a UDP 53 -> fd77::50:53 on eth0 for kubevip-a, here`},
		{"of an allowed namespace", upnpRules(func(f *Forwarding) { f.Namespaces = []string{"default"} }), held(web(), "a", "n1"), a + "here"},
		{"of another namespace", upnpRules(func(f *Forwarding) { f.Namespaces = []string{"web"} }), held(web(), "a", "n1"), ""},
		{"an allowed port", upnpRules(func(f *Forwarding) { f.Ports = [][2]uint16{{443, 443}, {80, 90}} }), held(web(), "a", "n1"), a + "here"},
		{"another port", upnpRules(func(f *Forwarding) { f.Ports = [][2]uint16{{81, 65535}} }), held(web(), "a", "n1"), ""},
	})
}

// What is not bound yet is nobody's to open, and not to be closed either.
func TestMappingBeforeItsAddress(t *testing.T) {
	w := held(world(svc("a", "10.77.0.50", forwarded())), "a", "n1")
	if got := mappingsSummary(Make(upnpRules(), w)); !strings.HasSuffix(got, "elsewhere") {
		t.Errorf("got %s", got)
	}
}

// A VIP whose end has come stays while its ports are being closed, and no longer than two seconds; nobody is told of it any more.
func TestKeepUntilClosed(t *testing.T) {
	r := upnpRules()
	w := bind(r, held(world(svc("a", "10.77.0.50", forwarded())), "a", "n1"))
	w = withMappings(w, Make(r, w), "11.22.33.1")
	gone := func(since time.Duration) vip.World {
		w := w
		w.Services, w.MappingStates = nil, slices.Clone(w.MappingStates)
		if since >= 0 {
			w.MappingStates[0].RemovalSince = w.Now.Add(-since)
		}
		return w
	}
	other := gone(0)
	other.Services = []vip.Service{svc("b", "10.77.0.50", port(81))}
	other = held(other, "b", "n2")
	noMore := gone(0)
	noMore.MappingStates = nil
	late := gone(0)
	late.Tenure.Until = late.Now.Add(-time.Second)
	refused := gone(0)
	refused.MappingStates[0].Confirmed, refused.MappingStates[0].Requested = false, false
	unanswered := gone(0)
	unanswered.MappingStates[0].Confirmed = false
	un := w
	un.Services = []vip.Service{svc("a", "10.77.0.50")}
	tests := []struct {
		name  string
		w     vip.World
		want  string
		again time.Duration
	}{
		{"the pass that sees it go", gone(-1), "bind 10.77.0.50/32 dev eth0 with a deadline", 2 * time.Second},
		{"while it is being removed", gone(500 * time.Millisecond), "bind 10.77.0.50/32 dev eth0 with a deadline", 1500 * time.Millisecond},
		{"the gateway hangs", gone(2 * time.Second), "", 0},
		{"removed", noMore, "", 0},
		{"was never made", refused, "", 0},
		{"was asked for, and is not answered yet", unanswered, "bind 10.77.0.50/32 dev eth0 with a deadline", 2 * time.Second},
		{"another node has the address by now", other, "b: VIPElsewhere", 0},
		{"without tenure", late, "", 0},
		{"not asked for any more", un, "kubevip-a -> n1\nbind 10.77.0.50/32 dev eth0\nstatus a 10.77.0.50(VIP)\na: VIPAnnounced\nevent a VIPAnnounced", lookAtTables},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Make(r, tt.w)
			diff(t, summary(p), tt.want)
			check.Equal(t, p.ReplanAfter, tt.again, "again after")
			for _, a := range p.Addresses {
				if !a.Until.IsZero() && (a.Lease != key("kubevip-a") || len(p.Announcements) > 0) {
					t.Errorf("%+v, announced %v", a, p.Announcements)
				}
			}
		})
	}
}

// What gateways confirmed is in the status, behind the VIPs.
func TestExternalAddress(t *testing.T) {
	tests := []struct {
		name   string
		r      Rules
		s      vip.Service
		public string
		change func(*vip.World)
		want   string
	}{
		{"confirmed", upnpRules(), svc("a", "10.77.0.50", forwarded()), "11.22.33.1", nil, " 11.22.33.1(Proxy)"},
		{"turned off", upnpRules(func(f *Forwarding) { f.Status = false }), svc("a", "10.77.0.50", forwarded()), "11.22.33.1", nil, ""},
		{"refused", upnpRules(), svc("a", "10.77.0.50", forwarded()), "11.22.33.1", func(w *vip.World) { w.MappingStates[0].Confirmed = false }, ""},
		{"going", upnpRules(), svc("a", "10.77.0.50", forwarded()), "11.22.33.1", func(w *vip.World) { w.MappingStates[0].RemovalSince = w.Now }, ""},
		{"behind another gateway", upnpRules(), svc("a", "10.77.0.50", forwarded()), "192.168.1.2", nil, ""},
		{"behind a provider's", upnpRules(), svc("a", "10.77.0.50", forwarded()), "100.64.3.4", nil, ""},
		{"a loopback address", upnpRules(), svc("a", "10.77.0.50", forwarded()), "127.0.0.1", nil, ""},
		{"one of the cluster's", upnpRules(), svc("a", "10.77.0.50", forwarded()), "11.22.33.1", func(w *vip.World) {
			w.Reserved = []vip.ReservedRange{{Prefix: netip.MustParsePrefix("11.22.0.0/16"), Description: "the cluster's Service range"}}
		}, ""},
		{"the status alone names the VIP", upnpRules(), svc("a", "10.77.0.50", forwarded(), func(s *vip.Service) { s.Source = "status.loadBalancer.ingress" }), "11.22.33.1", nil, ""},
		{"two gateways", upnpRules(), svc("a", "10.77.0.50", forwarded()), "11.22.33.1", func(w *vip.World) {
			x := w.MappingStates[0]
			x.Gateway, x.External = "10.77.0.2", netip.MustParseAddrPort("11.22.3.1:8080")
			w.MappingStates = append(w.MappingStates, x, x)
		}, " 11.22.3.1(Proxy) 11.22.33.1(Proxy)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := bind(tt.r, held(world(tt.s), "a", "n1"))
			w = withMappings(w, Make(tt.r, w), tt.public)
			p := Make(tt.r, with(w, tt.change))
			p.Events, p.Owners, p.Addresses = nil, nil, nil
			diff(t, summary(p), "status a 10.77.0.50(VIP)"+tt.want+"\na: VIPAnnounced")
			for _, i := range p.Statuses[0].Ingress[1:] {
				if len(i.Ports) != 1 || i.Ports[0].Protocol != "TCP" {
					t.Errorf("ports of %s: %v", i.Addr, i.Ports)
				}
			}
		})
	}
}

// The external address stays in the status while gateways have not answered a new owner, or a new process, yet.
func TestExternalAddressStays(t *testing.T) {
	r := upnpRules()
	s := svc("a", "10.77.0.50", forwarded(), written("n2"))
	recorded(&s, vip.Record{Named: []netip.Addr{addr("10.77.0.50"), addr("11.22.33.9")}})
	http := []vip.Port{{Protocol: "TCP", Port: 80}}
	s.Ingress = append(s.Ingress, vip.Ingress{Addr: addr("11.22.33.1"), IPMode: vip.ModeProxy, Ports: http},
		vip.Ingress{Addr: addr("11.22.33.9"), IPMode: vip.ModeProxy, Ports: http}) // it was a VIP until now
	w := bind(r, held(world(s), "a", "n1"))
	wanted := Make(r, w).Mappings[0]
	state := func(change func(*vip.MappingState)) vip.World {
		w := w
		x := vip.MappingState{Mapping: wanted}
		change(&x)
		w.MappingStates = []vip.MappingState{x}
		return w
	}
	both := state(func(x *vip.MappingState) {
		x.Gateway, x.Confirmed, x.External = "10.77.0.1", true, netip.MustParseAddrPort("11.22.3.1:80")
	})
	both.MappingStates = append(both.MappingStates, vip.MappingState{Mapping: wanted, Gateway: "10.77.0.2"})
	for _, x := range []struct {
		name, want string
		w          vip.World
	}{
		{"nobody was asked yet", " 11.22.33.1(Proxy)", w},
		{"a gateway is looked for", " 11.22.33.1(Proxy)", state(func(*vip.MappingState) {})},
		{"it was asked", " 11.22.33.1(Proxy)", state(func(x *vip.MappingState) { x.Gateway, x.Requested = "10.77.0.1", true })},
		{"there is none", "", state(func(x *vip.MappingState) { x.Problem = "no gateway" })},
		{"it refuses", "", state(func(x *vip.MappingState) { x.Gateway, x.Problem = "10.77.0.1", "it refuses" })},
		{"it has another address now", " 11.22.3.1(Proxy)", state(func(x *vip.MappingState) {
			x.Confirmed, x.External = true, netip.MustParseAddrPort("11.22.3.1:80")
		})},
		{"one of two has answered", " 11.22.3.1(Proxy) 11.22.33.1(Proxy)", both},
		{"not ours", "", func() vip.World {
			w := w
			w.Services = slices.Clone(w.Services)
			w.Services[0].VIPHost = ""
			w.Services[0].SetConditions(nil)
			return w
		}()},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := Make(r, x.w)
			p.Events, p.Owners, p.Addresses = nil, nil, nil
			diff(t, summary(p), "status a 10.77.0.50(VIP)"+x.want+"\na: VIPAnnounced")
			for _, i := range p.Statuses[0].Ingress[1:] {
				check.Same(t, i.Ports, http, "ports")
			}
		})
	}
}

func TestMappingEvents(t *testing.T) {
	tests := []struct {
		name        string
		r           Rules
		change      func(w *vip.World)
		open, wrong []string
	}{
		{"confirmed", upnpRules(), nil, []string{"open: TCP 11.22.33.1:80 -> 10.77.0.50:80 by gateway 10.77.0.1 (box); asked for 1h0m0s at a time"}, nil},
		{"not yet", upnpRules(), func(w *vip.World) {
			w.MappingStates = append(w.MappingStates, vip.MappingState{Mapping: w.MappingStates[0].Mapping, Gateway: "10.77.0.2"})
		}, nil, nil},
		{"refused", upnpRules(), func(w *vip.World) { w.MappingStates[0].Confirmed, w.MappingStates[0].Problem = false, "it refuses" }, nil,
			[]string{"port 80/TCP of 10.77.0.50: gateway 10.77.0.1 (box): it refuses"}},
		{"no gateway", upnpRules(), func(w *vip.World) {
			w.MappingStates[0] = vip.MappingState{Mapping: w.MappingStates[0].Mapping, Problem: "no gateway"}
		}, nil, []string{"port 80/TCP of 10.77.0.50: no gateway"}},
		{"behind another", upnpRules(), func(w *vip.World) { w.MappingStates[0].External = netip.MustParseAddrPort("192.168.1.2:80") },
			[]string{"open: TCP 192.168.1.2:80 -> 10.77.0.50:80 by gateway 10.77.0.1 (box); asked for 1h0m0s at a time"},
			[]string{"gateway 10.77.0.1 (box) is itself behind another: its external address, 192.168.1.2, is not a public one; forward the ports to it on the other"}},
		{"off", rules(), func(w *vip.World) { w.MappingStates = nil }, nil, []string{"this Herald asks no gateway for anything: enable_upnp is false"}},
		{"another namespace", upnpRules(func(f *Forwarding) { f.Namespaces = []string{"x", "y"} }), func(w *vip.World) { w.MappingStates = nil }, nil,
			[]string{"the namespace default is none of upnp_namespaces (x,y)"}},
		{"a VIP on no link", bgpRules(withElection, func(r *Rules) { r.Forwarding = &Forwarding{} }), func(w *vip.World) { *w = withSessions(*w) }, nil,
			[]string{"the VIP is on no link of this node's, where gateways could be asked: it is announced by BGP only"}},
		{"another port", upnpRules(func(f *Forwarding) { f.Ports = [][2]uint16{{1, 79}} }), func(w *vip.World) { w.MappingStates = nil }, nil,
			[]string{"the external port 80 is none of upnp_ports"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := bind(tt.r, held(world(svc("a", "10.77.0.50", forwarded())), "a", "n1"))
			w = withMappings(w, Make(upnpRules(), w), "11.22.33.1")
			p := Make(tt.r, with(w, tt.change))
			if !tt.r.ARP && len(p.Mappings) > 0 {
				t.Errorf("asked for: %+v", p.Mappings)
			}
			check.Same(t, tt.open, messages(p, vip.PortMapped), "open")
			check.Same(t, tt.wrong, messages(p, vip.PortNotMapped), "wrong")
		})
	}
}

// Gateways are asked on a link where this node has an address of its own.
func TestGatewayLink(t *testing.T) {
	w := world()
	w.Members[0].Info.Links = append(w.Members[0].Info.Links, vip.Link{Name: "hm-1", Up: true},
		vip.Link{Name: "lo", Up: true, Prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8"), netip.MustParsePrefix("::1/128")}})
	r := upnpRules()
	m := newMappings(&draft{facts: newFacts(&r, &w)})
	for _, tt := range []struct{ addr, link, want string }{
		{"10.77.0.50", "eth0", "eth0"},
		{"10.99.0.50", "eth0", "eth0"},    // where it is bound
		{"10.99.0.50", "hm-1", "eth1"},    // a macvlan has no other address
		{"10.77.0.50", "lo", "eth0"},      // by its subnet
		{"198.51.100.1", "lo", "eth0"},    // the default
		{"2001:db8::1", "eth1", "eth0"},   // eth1 has no IPv6
		{"fd77::50", "nowhere", "eth0"},   // by its subnet
		{"10.99.0.50", "nowhere", "eth1"}, // by its subnet
	} {
		check.Equal(t, m.gatewayLink(vip.Address{Addr: addr(tt.addr), Link: tt.link}), tt.want, "%s on %s", tt.addr, tt.link)
	}
}

// The ports of a deleted Service that bears the finalizer are closed by one node, whoever had them opened.
func TestPortsOfADeletedServiceAreClosed(t *testing.T) {
	r := upnpRules()
	r.Announcer = "herald"
	w := world(svc("a", "10.77.0.50", forwarded(), written("n1"), func(s *vip.Service) {
		s.Announcer, s.Finalizer, s.Deleted = "herald", true, epoch
	}))
	for node, want := range map[string]bool{"n1": true, "n2": false} {
		p := Make(rulesOn(r, seenFrom(w, node)), seenFrom(w, node))
		check.Equal(t, len(p.Mappings) == 1 && p.Mappings[0].Gone && p.Mappings[0].Here && p.Mappings[0].Link == "eth0", want, "%s has them closed: %+v", node, p.Mappings)
	}
}
