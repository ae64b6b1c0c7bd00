package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// worldOfRouters has what nodes publish of other programs' addresses and of routers.
func worldOfRouters(services ...vip.Service) vip.World {
	w := world(services...)
	w.Members[1].Info.OtherAddresses = []netip.Addr{addr("10.77.0.80"), addr("172.17.0.1")}
	w.Members[0].Info.Links[1].TentativeNetworks = prefixes("fd99::/64")
	w.Members[1].Info.Gateways = []netip.Addr{addr("10.77.0.1"), addr("fd77::1")}
	w.Members[2].Info.BGPSessions = []vip.BGPSession{{Peer: "10.99.0.9"}, {Peer: "eth1"}, {Peer: "fe80::1%eth1"}}
	return w
}

// TestRefuse: what belongs to nodes, routers, links and the cluster is refused, and told by the node that is responsible;
// whose pod it is, no user of another namespace is told. Other Services have theirs.
func TestRefuse(t *testing.T) {
	const anyHost = "a multicast or broadcast address"
	for _, tt := range []struct{ addr, want string }{
		{"127.0.0.1", "a loopback address"}, {"::1", "a loopback address"},
		{"224.0.0.1", anyHost}, {"ff02::1", anyHost}, {"255.255.255.255", anyHost},
		{"169.254.1.1", "a link-local address"}, {"fe80::1", "a link-local address"},
		{"10.77.0.12", "the address of node n2 on eth0"},
		{"10.77.0.31", "the address of node w1"},
		{"10.240.1.9", "in the pod range of node w1 (10.240.1.0/24)"},
		{"10.112.3.4", "in the cluster's Service range (10.112.0.0/16)"},
		{"10.78.0.2", "the API server's address"},
		{"fd77::50", "an IPv6 address, but spec.ipFamilies has no IPv6"},
		{"10.77.0.155", "the cluster IP of Service default/db"},
		{"10.77.0.156", "the address of a pod of a Service of another namespace"},
		{"10.77.0.80", "an address that another program has given to node n2"},
		{"172.17.0.1", "an address that another program has given to node n2"},
		{"10.77.0.1", "the gateway of node n2"},
		{"fd77::1", "the gateway of node n2"},
		{"10.99.0.9", "the BGP peer of node n3"},
		{"10.77.0.0", "the network address of node n3 on eth0"},
		{"10.77.0.255", "the broadcast address of node n3 on eth0"},
		{"10.99.255.255", "the broadcast address of node n3 on eth1"},
		{"fd77::", "the Subnet-Router anycast address of node n3 on eth0"},
		{"fd99::", "the Subnet-Router anycast address of node n1 on eth1"},
		{"0.1.2.3", "in 0.0.0.0/8"},
		{"10.60.1.2", "in a range that the operator has reserved (10.60.0.0/16)"},
		{"10.77.0.50", ""}, {"10.77.0.254", ""}, {"10.99.0.255", ""}, {"10.99.1.0", ""}, {"fd77::ffff:ffff:ffff:ffff", ""},
	} {
		r := rules()
		r.Reserved = prefixes("10.60.0.0/16")
		var told []vip.Event
		var message string
		for _, self := range []string{"n1", "n2", "n3"} {
			w := held(worldOfRouters(svc("a", tt.addr), svc("b", "10.77.0.51")), "b", self)
			if strings.Contains(tt.want, "ipFamilies") {
				w.Services[0].Families = []vip.Family{vip.IPv4}
			}
			w.Self = self
			w.Nodes = []vip.Node{{Name: "w1", Addresses: []netip.Addr{addr("10.77.0.31")}, PodCIDRs: prefixes("10.240.1.0/24")}}
			w.Reserved = []vip.ReservedRange{
				{Prefix: netip.MustParsePrefix("10.112.0.0/16"), Description: "the cluster's Service range"},
				{Prefix: netip.MustParsePrefix("10.78.0.2/32"), Description: "the API server's address"},
				{Prefix: netip.MustParsePrefix("10.77.0.155/32"), Description: "the cluster IP", Service: key("db")},
				{Prefix: netip.MustParsePrefix("10.77.0.156/32"), Description: "the address of a pod", Service: vip.Key{Namespace: "payroll", Name: "db"}},
			}
			p := Make(r, w)
			v := p.Verdicts[0]
			if refused := v.Reason == vip.AddressRefused; refused != (tt.want != "") || refused && (!strings.HasPrefix(v.Message+",", tt.addr+" is "+tt.want+",") || strings.Contains(v.Message, "payroll")) {
				t.Errorf("%s on %s: %s %q, want %q", tt.addr, self, v.Reason, v.Message, tt.want)
			}
			if len(p.Addresses) != 1 || p.Addresses[0].Addr != addr("10.77.0.51") {
				t.Errorf("%s on %s: the other Service's VIP was harmed: %v", tt.addr, self, p.Addresses)
			}
			told, message = append(told, p.Events...), v.Message
		}
		if tt.want != "" && (len(told) != 1 || told[0].Reason != vip.AddressRefused || !told[0].Warning || told[0].Message != message) {
			t.Errorf("%s: Events %v, want one warning", tt.addr, told)
		}
	}
}

// An address that an announcer left behind on a node, which ran there before Herald, is named by the Service's status.
func TestLeftByOtherAnnouncer(t *testing.T) {
	w := held(worldOfRouters(svc("a", "10.77.0.80", written("n2"))), "a", "n1")
	if got := reasonOf(Make(rules(), w), "a"); got == vip.AddressRefused {
		t.Error("the VIP is refused")
	}
	r := controlPlaneRules()
	w = controlPlaneHeld(controlPlaneWorld("n1"), "n1")
	w.Members[1].Info.OtherAddresses = r.ControlPlane.Addresses
	check.Equal(t, reasonOf(Make(r, bind(r, w)), ControlPlaneKey.Name), vip.VIPAnnounced, "the VIP of the control plane")
}

// A VIP that kubelet, or a cloud provider, takes for its Node's address stays with the Service that has it. Nobody else
// is given it, or what else Kubernetes has as a Node's, whatever another program has left in a status.
func TestNodeAddressThatIsAVIP(t *testing.T) {
	left := func(s *vip.Service) { s.Ingress = []vip.Ingress{{Addr: s.Addresses[0]}} }
	for _, tt := range []struct {
		name, addr string
		change     func(*vip.Service)
		want       vip.Reason
	}{
		{"it has it", "10.77.0.50", written("n1"), vip.VIPAnnounced},
		{"a newcomer", "10.77.0.50", func(*vip.Service) {}, vip.AddressRefused},
		{"another program's status has it", "10.77.0.50", left, vip.AddressRefused},
		{"it is on a link", "10.77.0.11", written("n1"), vip.AddressRefused},
		{"it has what somebody binds", "10.77.0.60", written("n1"), vip.VIPAnnounced},
		{"a newcomer asks for what somebody has bound", "10.77.0.60", func(*vip.Service) {}, vip.AddressRefused},
	} {
		w := held(world(svc("a", tt.addr, tt.change)), "a", "n1")
		w.Members[1].Info.Links[0].Prefixes = append(w.Members[1].Info.Links[0].Prefixes, netip.MustParsePrefix("10.77.0.60/16"))
		w.Nodes = allNodes(vip.Node{Name: "n1", Addresses: []netip.Addr{addr("10.77.0.11"), addr("10.77.0.50")}})
		check.Equal(t, reasonOf(Make(rules(), bind(rules(), w)), "a"), tt.want, "%s", tt.name)
	}
}

// A VIP in no network of its link is announced, with a hint unless routers learn of it.
func TestOffLink(t *testing.T) {
	hint := func(addrs string, bgp bool) (text string) {
		r, w := rules(), held(world(svc("a", addrs, written("n1"))), "a", "n1")
		if bgp {
			r.BGP = &BGP{}
		}
		p := Make(r, bind(r, w))
		if got := reasonOf(p, "a"); got != vip.VIPAnnounced && !bgp {
			t.Errorf("%s: %s", addrs, got)
		}
		for _, e := range p.Events {
			if e.Reason == vip.AddressOffLink && !e.Warning {
				text += e.Message
			}
		}
		return text
	}
	const want = "10.99.0.5 is in none of the networks that node n1 has on eth0: hosts there ask for it by ARP or NDP only if they have a route to it over that link"
	check.Equal(t, hint("10.77.0.50,10.99.0.5", false), want, "the hint")
	check.Equal(t, hint("10.77.0.50,fd77::50", false)+hint("10.99.0.5", true), "", "a hint for nothing")
}

// TestForgedEndpointSlice: an EndpointSlice with a VIP of others, which a tenant may be able to write, takes that VIP
// from nobody who has it, by its status or, where none is written, by its lease; nor from those to whom a pool offers
// it. A newcomer without a pool is refused it.
func TestForgedEndpointSlice(t *testing.T) {
	forged := vip.ReservedRange{Prefix: netip.MustParsePrefix("10.77.0.155/32"), Description: "the address of a pod", Service: vip.Key{Namespace: "evil", Name: "x"}, FromSlice: true}
	refused := func(r Rules, w vip.World) bool {
		w.Reserved = []vip.ReservedRange{forged}
		return Make(r, w).Verdicts[0].Reason == vip.AddressRefused
	}
	has := func(s *vip.Service) { s.Ingress = []vip.Ingress{{Addr: addr("10.77.0.155"), IPMode: vip.ModeVIP}} }
	offered := poolWorld("n1")
	offered.Services = []vip.Service{svc("a", "10.77.0.155")}
	offered.Pools.Data["cidr-global"] = "10.77.0.144/28"
	for _, tt := range []struct {
		name string
		r    Rules
		w    vip.World
		want bool
	}{
		{"it has the address", rules(), held(world(svc("a", "10.77.0.155", has)), "a", "n1"), false},
		{"it is a newcomer", rules(), world(svc("a", "10.77.0.155")), true},
		{"a pool offers it", poolRules(), offered, false},
	} {
		check.Equal(t, refused(tt.r, tt.w), tt.want, "%s: refused", tt.name)
	}
	r := rules()
	r.NoStatus = true
	check.Equal(t, refused(r, held(world(svc("a", "10.77.0.155")), "a", "n1")), false, "refused, where it has the address by its lease")
	w := poolWorld("n1")
	w.Reserved = []vip.ReservedRange{forged}
	check.Equal(t, slices.Contains(Make(poolRules(), w).Pools[0].Reserved, forged), false, "pools keep what is forged from Services")
}

// What another load balancer has left in a status, and no Service can have, is no wish: with pools the Service is
// given an address, without it is told what is there. What it could have it keeps.
func TestLeftInStatus(t *testing.T) {
	left := func(texts ...string) vip.Service {
		return svc("a", "", func(s *vip.Service) {
			for _, x := range texts {
				s.Addresses, s.Source = append(s.Addresses, addr(x)), vip.SourceStatus
				s.Ingress = append(s.Ingress, vip.Ingress{Addr: addr(x), IPMode: vip.ModeVIP})
			}
		})
	}
	for _, tt := range []struct{ addrs, want, verdict string }{
		{"10.77.0.11,10.77.0.12", "[] foreign false", "NoAddress it names no address (what another program has left in its status, 10.77.0.11, can't be that of a Service) yet; " +
			"it is to be given one of the pools of ConfigMap kube-system/kubevip"},
		{"10.77.0.11,10.77.0.50", "[10.77.0.50] foreign false", "VIPClaiming "},
		{"10.77.0.50", "[10.77.0.50] foreign false", "VIPClaiming "},
	} {
		w := poolWorld("n1")
		w.Services[0] = left(strings.Split(tt.addrs, ",")...)
		p := Make(poolRules(), w)
		q := p.Pools[0].Requests[0]
		check.Equal(t, fmt.Sprint(q.Addresses, " foreign ", q.Foreign), tt.want, "%s: the pools are told", tt.addrs)
		if got := string(p.Verdicts[0].Reason) + " " + p.Verdicts[0].Message; !strings.HasPrefix(got, tt.verdict) {
			t.Errorf("%s: %s", tt.addrs, got)
		}
		check.Equal(t, len(w.Services[0].Addresses), strings.Count(tt.addrs, ",")+1, "addresses in the World")
	}
}

// A Service that requires both families and names one is told which lacks, where nobody gives it: nor do pools to one that
// only the status names.
func TestFamilyMissing(t *testing.T) {
	for _, tt := range []struct{ addrs, want string }{
		{"10.77.0.50", "has no IPv6 address: name one beside 10.77.0.50"}, {"fd77::50", "has no IPv4 address"}, {"10.77.0.50,fd77::50", ""}, {"0.0.0.0", ""},
	} {
		told, toldOfStatus := "", ""
		for _, self := range []string{"n1", "n2", "n3"} {
			w := world(svc("a", tt.addrs, func(s *vip.Service) { s.DualStack, s.Families = vip.RequireDualStack, []vip.Family{vip.IPv4, vip.IPv6} }))
			w.Self = self
			told += strings.Join(messages(Make(rules(), w), vip.FamilyMissing), "")
			w.Pools = poolWorld("").Pools
			check.Equal(t, len(messages(Make(poolRules(), w), vip.FamilyMissing)), 0, "how many are told of %s though pools give the other", tt.addrs)
			w.Services[0].Source = vip.SourceStatus
			toldOfStatus += strings.Join(messages(Make(poolRules(), w), vip.FamilyMissing), "")
		}
		if tt.want == "" && told != "" || !strings.Contains(told, tt.want) || toldOfStatus != told {
			t.Errorf("%s: told %q, and by its status %q, want %q", tt.addrs, told, toldOfStatus, tt.want)
		}
	}
}
