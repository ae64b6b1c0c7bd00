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

// prefixes parses addresses with the lengths of their networks.
func prefixes(all ...string) (parsed []netip.Prefix) {
	for _, s := range all {
		parsed = append(parsed, netip.MustParsePrefix(s))
	}
	return parsed
}

func TestFormerOwners(t *testing.T) {
	const keep = time.Hour
	former := func(nodes ...string) (all []vip.FormerHolder) {
		for i, n := range nodes {
			all = append(all, vip.FormerHolder{Node: n, Until: epoch.Add(time.Hour - time.Duration(i+1)*time.Minute)})
		}
		return all
	}
	tests := []struct {
		name   string
		holder string
		former []vip.FormerHolder
		change func(*Rules, *vip.World)
		want   string
	}{
		{name: "it never moved", holder: "n1"},
		{name: "it came here from n2", holder: "n1", former: former("n2"), want: "10.77.0.50 eth0 10.77.0.12, fd77::50 eth0 fd77::200"},
		{name: "n2 had it from n3: n2 asks it", holder: "n1", former: former("n2", "n3"), want: "10.77.0.50 eth0 10.77.0.12, fd77::50 eth0 fd77::200"},
		{name: "this node gave it to n2", holder: "n2", former: former("n1")},
		{name: "this node had it from n3, and gave it to n2", holder: "n2", former: former("n1", "n3"), want: "10.77.0.50 eth0 10.77.0.13, fd77::50 eth0 fd77::200"},
		{name: "another's connections lead past this node", holder: "n2", former: former("n3", "n1")},
		{name: "it is back: this node asks n2", holder: "n1", former: former("n2", "n1"), want: "10.77.0.50 eth0 10.77.0.12, fd77::50 eth0 fd77::200"},
		{name: "it is back at n2, for a minute", holder: "n2", former: former("n1", "n2")},
		{name: "it is back at n2, where its packets go that still come here", holder: "n2", want: "10.77.0.50 eth0 10.77.0.12, fd77::50 eth0 fd77::200",
			former: []vip.FormerHolder{{Node: "n1", Until: epoch.Add(time.Hour - 9*time.Second)}, {Node: "n2", Until: epoch.Add(time.Minute)}}},
		{name: "it is back at n2: what came to this node leads on to n3 first, or n3's connections would be in a ring", holder: "n2", want: "10.77.0.50 eth0 10.77.0.13, fd77::50 eth0 fd77::200",
			former: []vip.FormerHolder{{Node: "n1", Until: epoch.Add(time.Hour - 9*time.Second)}, {Node: "n2", Until: epoch.Add(time.Minute)}, {Node: "n3", Until: epoch.Add(time.Minute)}}},
		{name: "it is back at n2: the last one leads to it", holder: "n2", want: "10.77.0.50 eth0 10.77.0.12, fd77::50 eth0 fd77::200",
			former: []vip.FormerHolder{{Node: "n3", Until: epoch.Add(time.Hour - 9*time.Second)}, {Node: "n2", Until: epoch.Add(time.Minute)}, {Node: "n1", Until: epoch.Add(time.Minute)}}},
		{name: "it is back, also from n3: what n2 sends back goes on to n3", holder: "n1", former: former("n2", "n1", "n3"),
			want: "10.77.0.50 eth0 10.77.0.12 again 10.77.0.13, fd77::50 eth0 fd77::200 again fd77::200"},
		{name: "nobody holds it at present: what came before stays", former: former("n1", "n3"), want: "10.77.0.50 eth0 10.77.0.13, fd77::50 eth0 fd77::200"},
		{name: "the last move was longer ago than connections are kept: the one before even more", holder: "n1", former: former("n2", "n3"),
			change: func(r *Rules, _ *vip.World) { r.KeepConnections = time.Minute }},
		{name: "the one before is not known, which n3 is", holder: "n1", former: former("n9", "n3"), want: "10.77.0.50 eth0 10.77.0.13, fd77::50 eth0 fd77::200"},
		{name: "the Herald there is being restarted: Kubernetes knows the address", holder: "n1", former: former("w1"), want: "10.77.0.50 eth0 10.77.0.21",
			change: func(_ *Rules, w *vip.World) {
				w.Nodes = allNodes()
				w.Nodes = append(w.Nodes, vip.Node{Name: "w1", Addresses: []netip.Addr{addr("10.99.0.21"), addr("192.0.2.1"), addr("10.77.0.21")}})
			}},
		{name: "n2 is gone: n3 is asked at once", holder: "n1", former: former("n2", "n3"), want: "10.77.0.50 eth0 10.77.0.13, fd77::50 eth0 fd77::200",
			change: func(_ *Rules, w *vip.World) { w.Members[1].Alive, w.Members[1].Gone = false, true }},
		{name: "only the Herald of n2 was killed", holder: "n1", former: former("n2", "n3"), want: "10.77.0.50 eth0 10.77.0.12, fd77::50 eth0 fd77::200",
			change: func(_ *Rules, w *vip.World) { w.Members[1].Alive, w.Nodes = false, allNodes() }},
		{name: "n2 has no Herald, and is not ready", holder: "n1", former: former("n2"), change: func(_ *Rules, w *vip.World) {
			w.Members[1].Alive, w.Nodes = false, allNodes(vip.Node{Name: "n2", NotReady: true})
		}},
		{name: "off", holder: "n1", former: former("n2"), change: func(r *Rules, _ *vip.World) { r.KeepConnections = 0 }},
		{name: "the Herald there is being restarted: nftables knows the addresses", holder: "n1", former: former("w1"), want: "10.77.0.50 eth0 10.77.0.21, fd77::50 eth0 fd77::21",
			change: func(_ *Rules, w *vip.World) {
				w.FormerOwners = []vip.FormerOwner{{Addr: addr("10.77.0.50"), Link: "eth0", NextHop: addr("10.77.0.21")}, {Addr: addr("fd77::50"), Link: "eth0", NextHop: addr("fd77::21")}}
			}},
		{name: "w1 was deleted and switched off: n3 is asked, though nftables still knows the addresses", holder: "n1", former: former("w1", "n3"), want: "10.77.0.50 eth0 10.77.0.13, fd77::50 eth0 fd77::200",
			change: func(_ *Rules, w *vip.World) {
				w.Nodes = allNodes()
				w.FormerOwners = []vip.FormerOwner{{Addr: addr("10.77.0.50"), Link: "eth0", NextHop: addr("10.77.0.21")}, {Addr: addr("fd77::50"), Link: "eth0", NextHop: addr("fd77::21")}}
			}},
		{name: "the Herald there is being restarted, and nftables knows the address of another node, and one that Kubernetes does not", holder: "n1", former: former("w1"), want: "10.77.0.50 eth0 10.77.0.22, fd77::50 eth0 fd77::21",
			change: func(_ *Rules, w *vip.World) {
				w.Nodes = append(allNodes(), vip.Node{Name: "w1", Addresses: []netip.Addr{addr("10.77.0.22")}})
				w.FormerOwners = []vip.FormerOwner{{Addr: addr("10.77.0.50"), Link: "eth0", NextHop: addr("10.77.0.21")}, {Addr: addr("fd77::50"), Link: "eth0", NextHop: addr("fd77::21")}}
			}},
		{name: "its owner advertises it to routers", holder: "n1", former: former("n2"), want: "10.77.0.50 eth0 10.77.0.12, fd77::50 eth0 fd77::200",
			change: func(r *Rules, _ *vip.World) { r.ARP, r.BGP = false, &BGP{} }},
		{name: "the same, and the link of VIPs is lo", holder: "n1", former: former("n2"), want: "10.77.0.50 eth0 10.77.0.12, fd77::50 eth0 fd77::200",
			change: func(r *Rules, w *vip.World) {
				r.ARP, r.BGP = false, &BGP{}
				for i := range w.Members {
					info := &w.Members[i].Info
					info.Interface, info.DefaultInterface = "lo", "lo"
					info.Links = append([]vip.Link{{Name: "lo", Up: true}}, info.Links...)
				}
			}},
		{name: "the same, and n2 is on another network: what is sent there would come back by way of the router", holder: "n1", former: former("n2"),
			change: func(r *Rules, w *vip.World) {
				r.ARP, r.BGP = false, &BGP{}
				w.Members[1].Info.Links[0].Prefixes = prefixes("10.88.0.12/24", "fd88::12/64")
			}},
		{name: "n2 has networks on its link that this node has not", holder: "n1", former: former("n2"), want: "10.77.0.50 eth0 10.77.0.12, fd77::50 eth0 fd77::12",
			change: func(_ *Rules, w *vip.World) {
				w.Members[1].Info.Links[0].Prefixes = prefixes("10.66.0.12/24", "10.77.0.12/24", "fd66::12/64", "fd77::12/64")
			}},
		{name: "every node advertises it", holder: "n1", former: former("n2"),
			change: func(r *Rules, _ *vip.World) { r.ARP, r.Election, r.BGP = false, false, &BGP{} }},
		{name: "by a clock that is ahead", holder: "n1", want: "10.77.0.50 eth0 10.77.0.12, fd77::50 eth0 fd77::200",
			former: []vip.FormerHolder{{Node: "n2", Until: epoch.Add(1000 * time.Hour)}}},
		{name: "by a clock that is ahead it is back at n2: no ring until then", holder: "n2",
			former: []vip.FormerHolder{{Node: "n1", Until: epoch.Add(2 * time.Hour)}, {Node: "n2", Until: epoch.Add(time.Minute)}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, w := rules(), held(world(svc("a", "10.77.0.50,fd77::50")), "a", tt.holder)
			r.KeepConnections = keep
			w = with(w, claimOfA(func(c *vip.Claim) { c.FormerHolders, c.Valid = tt.former, tt.holder != "" }))
			if tt.change != nil {
				tt.change(&r, &w)
			}
			p := Make(r, w)
			var got []string
			for _, x := range p.FormerOwners {
				text := fmt.Sprint(x.Addr, " ", x.Link, " ", x.NextHop)
				if x.Again.IsValid() {
					text += fmt.Sprint(" again ", x.Again)
				}
				got = append(got, text)
			}
			check.Equal(t, strings.Join(got, ", "), tt.want, "next hops")
			if len(got) > 0 && (p.ReplanAfter == 0 || p.ReplanAfter > 5*time.Second) {
				t.Errorf("planned again after %v: what another program removes would stay away", p.ReplanAfter)
			}
		})
	}
}

// Connections to the control plane's VIP are translated by its holder, and by nodes that held it while theirs are
// kept. Only those to its port are sent on to former owners.
func TestFormerOwnersOfControlPlane(t *testing.T) {
	translated := []string{"10.77.0.50:6443 to 10.77.0.11", "[fd77::50]:6443 to fd77::200"}
	sentOn := func(hop4, hop6 string) []string {
		return []string{"10.77.0.50:6443 by " + hop4, "[fd77::50]:6443 by " + hop6}
	}
	ago := func(node string, d time.Duration) vip.FormerHolder {
		return vip.FormerHolder{Node: node, Until: epoch.Add(time.Hour - d)}
	}
	tests := []struct {
		name   string
		holder string
		former []vip.FormerHolder
		ready  string
		off    bool
		port   uint16 // lb_port
		want   []string
	}{
		{name: "nobody has it", ready: "n1"},
		{name: "it never moved", holder: "n1", ready: "n1", want: translated},
		{name: "it came here from n2", holder: "n1", ready: "n1 n2", former: []vip.FormerHolder{ago("n2", time.Minute)}, want: append(sentOn("10.77.0.12", "fd77::200"), translated...)},
		{name: "this node gave it to n2", holder: "n2", ready: "n1 n2", former: []vip.FormerHolder{ago("n1", time.Minute)}, want: translated},
		{name: "it came here from n2, which spread what came to another port", holder: "n1", ready: "n1 n2", port: 8443, former: []vip.FormerHolder{ago("n2", time.Minute)},
			want: append([]string{"10.77.0.50:6443 by 10.77.0.12", "10.77.0.50:8443 by 10.77.0.12", "[fd77::50]:6443 by fd77::200", "[fd77::50]:8443 by fd77::200"}, translated...)},
		{name: "its API server is no longer ready", holder: "n1", ready: "n2", want: append(translated, "reset")},
		{name: "longer ago than they are kept", holder: "n2", ready: "n1 n2", former: []vip.FormerHolder{ago("n1", 2*time.Hour)}},
		{name: "another node", holder: "n2", ready: "n1 n2", former: []vip.FormerHolder{ago("n3", time.Minute)}},
		{name: "off", holder: "n1", ready: "n1", off: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, w := controlPlaneRules(), controlPlaneWorld(tt.ready)
			if !tt.off {
				r.KeepConnections = time.Hour
			}
			r.ControlPlane.BalancedPort = tt.port
			w.Claims[cpLease] = vip.Claim{Holder: tt.holder, Valid: tt.holder != "", FormerHolders: tt.former}
			p := Make(r, w)
			var got []string
			for _, x := range p.FormerOwners {
				got = append(got, fmt.Sprint(netip.AddrPortFrom(x.Addr, x.Port), " by ", x.NextHop))
			}
			for _, x := range p.Translations {
				got = append(got, fmt.Sprint(netip.AddrPortFrom(x.Addr, x.Port), " to ", x.To))
			}
			if slices.ContainsFunc(p.Addresses, func(a vip.Address) bool { return a.ResetTranslated }) {
				got = append(got, "reset")
			}
			check.Same(t, tt.want, got, "what is sent on, translated and reset")
			if len(got) > 0 && (p.ReplanAfter == 0 || p.ReplanAfter > 5*time.Second) {
				t.Errorf("planned again after %v: what another program removes would stay away", p.ReplanAfter)
			}
		})
	}
}
