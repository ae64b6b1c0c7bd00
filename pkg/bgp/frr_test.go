package bgp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func ptr[T any](v T) *T { return &v }

// has waits until FRR's table of a family is exactly want.
func (r *router) has(family string, want map[string]string) time.Duration {
	r.t.Helper()
	return check.Until(r.t, 30*time.Second, r.name+"'s "+family+" table", func() error {
		if diff := cmp.Diff(want, r.prefixes(family)); diff != "" {
			return fmt.Errorf("(-want +got)\n%s", diff)
		}
		return nil
	})
}

const frrHead = `router bgp 65001
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 bgp router-id 192.0.2.1
 neighbor %[1]s remote-as %[2]s
 neighbor %[1]s passive
 neighbor %[1]s timers 10 30
%[3]s
 address-family ipv4 unicast
  neighbor %[1]s activate
  neighbor %[1]s soft-reconfiguration inbound
 exit-address-family
 address-family ipv6 unicast
  neighbor %[1]s activate
 exit-address-family
`

// Over IPv4 to another AS: both families, every attribute, one UPDATE per change; what drains is shown as such, and the end is explained.
func TestFRR(t *testing.T) {
	t.Parallel()
	r := newRouter(t, 11)
	r.frr(fmt.Sprintf(frrHead, r.here4(), "65000", ""))
	s := runSpeaker(t, nil, vip.BGPPeer{Address: r.v4(), AS: 65001})
	all := routes("198.51.100.7/32", "198.51.100.8/32", "2001:db8::7/128")
	all[0].Attributes = vip.BGPAttributes{
		Communities: []vip.Community{65000<<16 | 100, 0xffffff01}, LargeCommunities: []vip.LargeCommunity{{65000, 1, 4000000000}},
		MED: ptr(uint32(42)), LocalPref: ptr(uint32(300)), Prepend: ptr(2),
	}
	all[2].Attributes.MED = ptr(uint32(7))
	s.Put(all)
	s.up()
	r.has("ipv4", map[string]string{"198.51.100.7/32": r.here4(), "198.51.100.8/32": r.here4()})
	r.has("ipv6", map[string]string{"2001:db8::7/128": r.here6()})

	p := r.path("ipv4", "198.51.100.7/32")
	got := map[string]any{"aspath": p["aspath"].(map[string]any)["string"], "med": p["metric"], "origin": p["origin"],
		"communities": p["community"].(map[string]any)["string"], "large": p["largeCommunity"].(map[string]any)["string"], "pref": p["locPrf"]}
	want := map[string]any{"aspath": "65000 65000 65000", "med": 42.0, "origin": "IGP", "communities": "65000:100 no-export", "large": "65000:1:4000000000", "pref": nil}
	check.Same(t, want, got, "attributes")

	// One Service's change is one UPDATE, whatever else is advertised.
	before := r.updates(r.here4())
	all = slices.Clone(all) // what was handed over is not changed
	all[1].Attributes.MED = ptr(uint32(5))
	s.Put(all)
	check.Until(t, 5*time.Second, "the change", func() error {
		if got := r.path("ipv4", "198.51.100.8/32")["metric"]; got != 5.0 {
			return fmt.Errorf("MED %v", got)
		}
		return nil
	})
	s.Put(all)
	check.Equal(t, r.updates(r.here4())-before, 1, "UPDATE messages for one change")

	// Draining: told as such, kept, and bounded in time.
	all = slices.Clone(all)
	for i := range all {
		all[i].Drain = true
	}
	s.Put(all)
	w := vip.World{Now: time.Now()}
	s.Observe(&w)
	check.Equal(t, w.RoutesDraining, true, "it drains")
	check.Until(t, 5*time.Second, "graceful shutdown", func() error {
		p := r.path("ipv4", "198.51.100.7/32")
		if c := p["community"].(map[string]any)["string"].(string); !strings.Contains(c, "graceful-shutdown") {
			return fmt.Errorf("communities %s", c)
		}
		if got := p["locPrf"]; got != 0.0 {
			return fmt.Errorf("FRR prefers it with %v", got)
		}
		return nil
	})
	w = vip.World{Now: w.Now.Add(time.Second)}
	s.Observe(&w)
	check.Equal(t, w.RoutesDraining, false, "it drains for longer than Options.Drain")
	s.Put(nil)
	r.has("ipv4", map[string]string{})
	r.has("ipv6", map[string]string{})
	s.stop()
	check.Until(t, 5*time.Second, "the shutdown text", func() error {
		n := r.neighbor(r.here4())
		if got := fmt.Sprint(n["lastErrorCodeSubcode"], n["lastNotificationReason"], n["lastShutdownDescription"]); !strings.Contains(got, "0602") || !strings.Contains(got, "Herald on node n1 stops") {
			return fmt.Errorf("%v %v", got, n["bgpState"])
		}
		return nil
	})
}

func (r *router) neighbor(addr string) map[string]any {
	r.t.Helper()
	n, _ := r.show("show bgp neighbors " + addr)[addr].(map[string]any)
	return n
}

// updates is how many UPDATE messages FRR got from a neighbour.
func (r *router) updates(addr string) float64 {
	r.t.Helper()
	return r.neighbor(addr)["messageStats"].(map[string]any)["updatesRecv"].(float64)
}

// Within one AS, over IPv6: local preference, the default of 100, no prepending, and an IPv4 next hop for IPv4 prefixes.
func TestIBGP(t *testing.T) {
	t.Parallel()
	r := newRouter(t, 12)
	r.frr(fmt.Sprintf(frrHead, r.here6(), "65001", ""))
	s := runSpeaker(t, nil, vip.BGPPeer{Address: r.v6(), AS: 65001, LocalAS: 65001})
	all := routes("198.51.100.7/32", "2001:db8::7/128")
	all[1].Attributes = vip.BGPAttributes{LocalPref: ptr(uint32(300)), Prepend: ptr(2)}
	s.Put(all)
	s.up()
	r.has("ipv4", map[string]string{"198.51.100.7/32": r.here4()})
	r.has("ipv6", map[string]string{"2001:db8::7/128": r.here6()})
	check.Equal(t, r.path("ipv4", "198.51.100.7/32")["locPrf"], any(100.0), "local preference")
	if p := r.path("ipv6", "2001:db8::7/128"); p["locPrf"] != 300.0 || p["aspath"].(map[string]any)["string"] != "Local" {
		t.Errorf("local preference %v, path %v", p["locPrf"], p["aspath"])
	}
}

// An old router that knows no capabilities is told of IPv4 prefixes, and one that takes one family of that; one that
// offers what Herald does not have is told of all. What a router does not take does not count.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	only := func(family, here string) string { // of the two, as an operator who left out the other
		other := map[string]string{"ipv4": "ipv6", "ipv6": "ipv4"}[family]
		return " address-family " + other + " unicast\n  no neighbor " + here + " activate\n exit-address-family\n"
	}
	v4, v6 := map[string]string{"198.51.100.7/32": "10.%d.0.2"}, map[string]string{"2001:db8::7/128": "fd%d::2"}
	none := map[string]string{}
	for n, tt := range map[int]struct {
		name, line, more string
		v4, v6           map[string]string
	}{
		14: {"no capabilities", " neighbor 10.14.0.2 dont-capability-negotiate", "", v4, none},
		15: {"more than Herald has", " neighbor 10.15.0.2 capability dynamic\n neighbor 10.15.0.2 capability extended-nexthop", "", v4, v6},
		16: {"IPv4 only", "", only("ipv4", "10.16.0.2"), v4, none},
		17: {"IPv6 only", "", only("ipv6", "10.17.0.2"), none, v6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRouter(t, n)
			r.frr(fmt.Sprintf(frrHead, r.here4(), "65000", tt.line) + tt.more)
			s := runSpeaker(t, nil, vip.BGPPeer{Address: r.v4(), AS: 65001})
			s.advertise("198.51.100.7/32", "2001:db8::7/128")
			s.up()
			for family, want := range map[string]map[string]string{"ipv4": tt.v4, "ipv6": tt.v6} {
				here := make(map[string]string)
				for prefix, hop := range want {
					here[prefix] = fmt.Sprintf(hop, n)
				}
				r.has(family, here)
			}
			x := s.Sessions()[0]
			got := fmt.Sprint(x.Prefixes, x.Takes(netip.MustParseAddr("198.51.100.7")), x.Takes(netip.MustParseAddr("2001:db8::7")))
			check.Equal(t, got, fmt.Sprint(len(tt.v4)+len(tt.v6), len(tt.v4) > 0, len(tt.v6) > 0), "prefixes, and whether it takes IPv4 and IPv6")
		})
	}
}

// Where nobody has an address: the router is found by its advertisements, and IPv4 prefixes get an IPv6 next hop.
func TestUnnumbered(t *testing.T) {
	t.Parallel()
	r := newRouter(t, 13)
	sh(t, "ip addr flush dev r13 scope global\nip -n r13 addr flush dev eth0 scope global")
	r.frr(`router bgp 65001
 no bgp ebgp-requires-policy
 bgp router-id 192.0.2.1
 neighbor eth0 interface remote-as external
 neighbor eth0 bfd
 address-family ipv6 unicast
  neighbor eth0 activate
 exit-address-family
`)
	s := runSpeaker(t, nil, vip.BGPPeer{Interface: "r13", BFD: fastBFD})
	s.advertise("198.51.100.7/32", "2001:db8::7/128")
	s.up()
	link := linkLocalOf(t, "r13")
	r.has("ipv4", map[string]string{"198.51.100.7/32": link})
	r.has("ipv6", map[string]string{"2001:db8::7/128": link})
	check.True(t, 30*time.Second, "BFD is up between link-local addresses", func() bool { return s.Sessions()[0].BFD == "up" })
}

// linkLocalOf is the link-local address of a link of the test's namespace.
func linkLocalOf(t testing.TB, link string) string {
	t.Helper()
	l := check.Value(net.InterfaceByName(link))(t)
	for _, a := range check.Value(l.Addrs())(t) {
		if p := netip.MustParsePrefix(a.String()); p.Addr().IsLinkLocalUnicast() {
			return p.Addr().String()
		}
	}
	t.Fatalf("%s has no link-local address", link)
	return ""
}

// A router that has ended the session for too many prefixes closes the next connections: the reason goes on naming that.
func TestMaximumPrefix(t *testing.T) {
	t.Parallel()
	r := newRouter(t, 55)
	r.frr(fmt.Sprintf(frrHead, r.here4(), "65000", " address-family ipv4 unicast\n  neighbor "+r.here4()+" maximum-prefix 1\n exit-address-family\n"))
	s := runSpeaker(t, nil, vip.BGPPeer{Address: r.v4(), AS: 65001})
	s.advertise("198.51.100.7/32", "198.51.100.8/32", "198.51.100.9/32")
	const words = "or has ended the session for too many prefixes"
	s.awaits(0, 30*time.Second, words, func(x vip.BGPSession) bool { return strings.Contains(x.Reason, words) })
}

// With TTLSecurity a session comes up with a router that sends packets with a TTL of 255, and with no other.
func TestTTLSecurity(t *testing.T) {
	t.Parallel()
	sender := newRouter(t, 47)
	sender.frr(fmt.Sprintf(frrHead, sender.here4(), "65000", " neighbor "+sender.here4()+" ttl-security hops 1\n"))
	other := newRouter(t, 48)
	other.frr(fmt.Sprintf(frrHead, other.here4(), "65000", "")) // FRR sends with 1 to a peer of another AS
	s := runSpeaker(t, func(o *Options) { o.TTLSecurity = true }, vip.BGPPeer{Address: other.v4(), AS: 65001}, vip.BGPPeer{Address: sender.v4(), AS: 65001})
	s.Put(routes("198.51.100.7/32"))
	sender.has("ipv4", map[string]string{"198.51.100.7/32": sender.here4()})
	time.Sleep(2 * time.Second) // connections are tried each second or two
	if all := s.Sessions(); all[0].Up() || !all[1].Up() {
		t.Errorf("sessions %+v, want the second up", all)
	}
}
