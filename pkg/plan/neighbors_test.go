package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// vlanWorld has n1 to n3 alive, with an address each on eth1, where the VIP of the Service a is, held by n1; and b on eth0, held by n1 too.
func vlanWorld() vip.World {
	vlan := func(s *vip.Service) { s.Interface = "eth1" }
	w := held(held(world(svc("a", "10.99.0.50", written("n1"), vlan), svc("b", "10.77.0.50", written("n1"))), "a", "n1"), "b", "n1")
	for i := range w.Members {
		w.Members[i].Info.Links[1].Prefixes = []netip.Prefix{vlanAddress(i + 1)}
		w.Members[i].Info.Links[1].MAC = fmt.Sprintf("02:00:00:00:01:%02x", i+1)
	}
	return w
}

func vlanAddress(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 99, 1, byte(i)}), 16)
}

// gets has a node say that it gets no answer from others on eth1.
func gets(node int, noAnswerFrom ...int) func(*vip.World) {
	return func(w *vip.World) {
		for _, i := range noAnswerFrom {
			w.Members[node-1].Info.Unanswered = append(w.Members[node-1].Info.Unanswered, vlanAddress(i).Addr())
		}
	}
}

// A VIP leaves a node that two others don't hear on the VIP's link, if there is a node that is heard.
func TestUnheardNodeHandsOver(t *testing.T) {
	dead := func(node int) func(*vip.World) { return func(w *vip.World) { w.Members[node-1].Alive = false } }
	drained := func(node int) func(*vip.World) {
		return func(w *vip.World) { w.Nodes = allNodes(vip.Node{Name: fmt.Sprintf("n%d", node), Drained: true}) }
	}
	for _, tt := range []struct {
		name   string
		change []func(*vip.World)
		moves  bool
	}{
		{"all are heard", nil, false},
		{"one of two gets no answer", []func(*vip.World){gets(2, 1)}, false},
		{"two get no answer", []func(*vip.World){gets(2, 1), gets(3, 1)}, true},
		{"the owner hears nobody", []func(*vip.World){gets(1, 2, 3), gets(2, 1), gets(3, 1)}, true},
		{"none hears any other", []func(*vip.World){gets(1, 2, 3), gets(2, 1, 3), gets(3, 1, 2)}, false},
		{"the only other two hear the owner, not one another", []func(*vip.World){gets(2, 3), gets(3, 2)}, false},
		{"what a dead node said does not count", []func(*vip.World){gets(3, 1), dead(3)}, false},
		{"of two nodes one is not heard, and does not hear the other", []func(*vip.World){gets(2, 1), dead(3)}, true},
		{"two nodes that do not hear each other", []func(*vip.World){gets(1, 2), gets(2, 1), dead(3)}, false},
		{"the nodes that are heard refuse VIPs", []func(*vip.World){gets(2, 1), gets(3, 1), drained(2), dead(3)}, false},
		{"a renewal is late", []func(*vip.World){gets(2, 1), gets(3, 1), func(w *vip.World) { w.Tenure.RenewalLateSince = w.Now.Add(-time.Second) }}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := with(bind(rules(), vlanWorld()), tt.change...)
			p := Make(rules(), w)
			if tt.moves && len(messages(p, vip.VIPUnanswered)) == 0 {
				t.Error("the Service is not told")
			}
			for _, o := range p.Owners {
				moves := o.Node != w.Self
				if o.Unit == key("kubevip-b") && moves {
					t.Errorf("the VIP on the other link moves to %s", o.Node)
				}
				if o.Unit == key("kubevip-a") && (moves != tt.moves || moves && o.Node != "n2" && o.Node != "n3") {
					t.Errorf("it goes to %s, want a move: %v", o.Node, tt.moves)
				}
			}
		})
	}
}

// A free VIP, and one of a node that stops, goes to a node that is heard.
func TestUnheardNodeGetsNothing(t *testing.T) {
	w := with(vlanWorld(), gets(2, 1), gets(3, 1))
	delete(w.Claims, key("kubevip-a"))
	if ownerOf(Make(rules(), w), "a") == w.Self {
		t.Errorf("it goes to %s", w.Self)
	}
}

// On links with VIPs each node's address is asked for by three others, or all; on that of heartbeats only if they don't hear it.
func TestNeighborsAreWatched(t *testing.T) {
	for _, nodes := range []int{3, 12} {
		w := vlanWorld()
		for i := len(w.Members) + 1; i <= nodes; i++ {
			m := w.Members[0]
			m.Name, m.Info.Links = fmt.Sprintf("n%02d", i), slices.Clone(m.Info.Links)
			m.Info.Links[1].Prefixes = []netip.Prefix{vlanAddress(i)}
			w.Members = append(w.Members, m)
		}
		by := map[netip.Addr]int{}
		for _, m := range w.Members {
			w.Self = m.Name
			for _, x := range Make(rules(), w).AddressChecks {
				if x.Kind == vip.CheckNeighbor {
					if x.Link != "eth1" || x.Owner == m.Name {
						t.Errorf("%s asks for %s of %s on %s", m.Name, x.Addr, x.Owner, x.Link)
					}
					by[x.Addr]++
				}
			}
		}
		for i := range w.Members {
			check.Equal(t, by[vlanAddress(i+1).Addr()], min(nodes-1, neighborWitnesses), "how many of %d nodes ask for %s", nodes, vlanAddress(i+1).Addr())
		}
	}
	w := vlanWorld()
	delete(w.Claims, key("kubevip-a"))
	for _, x := range Make(rules(), w).AddressChecks {
		if x.Kind == vip.CheckNeighbor {
			t.Errorf("%s is asked for though no VIP is on that link", x.Addr)
		}
	}
	w = vlanWorld()
	for i := range w.Members {
		w.Members[i].Info.Interface, w.Members[i].Info.HeartbeatInterface, w.Members[i].Heard = "lo", "eth1", i != 1
	}
	asked := 0
	for _, x := range Make(rules(), w).AddressChecks {
		if x.Kind == vip.CheckNeighbor && x.Link == "eth1" {
			if asked++; x.Owner != "n2" {
				t.Errorf("%s is asked for on the link of heartbeats though it is heard there", x.Owner)
			}
		}
	}
	if asked != 1 {
		t.Errorf("%d are asked for on the link of heartbeats, want the one that is not heard", asked)
	}
}
