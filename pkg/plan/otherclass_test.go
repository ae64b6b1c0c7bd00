package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestOtherClassNode: n3 has other CommonOptions than n1 and n2. None of their VIPs goes to it, and it says why.
func TestOtherClassNode(t *testing.T) {
	bgp := rules()
	bgp.ARP, bgp.Election, bgp.BGP = false, false, &BGP{}
	classed := func(s *vip.Service) { s.HasClass, s.Class = true, "a" }
	for _, tt := range []struct {
		name    string
		rules   Rules
		service func(*vip.Service)
		n3      vip.CommonOptions
		takes   bool
	}{
		{"another class", rules(), classed, vip.CommonOptions{Class: "b"}, false},
		{"another class, by BGP", bgp, classed, vip.CommonOptions{Class: "b"}, false},
		{"another class, and the Service has none", rules(), func(*vip.Service) {}, vip.CommonOptions{Class: "b"}, false},
		{"the same class alone", rules(), classed, vip.CommonOptions{Election: true, Class: "a", ClassOnly: true}, false},
		{"one owner for all", rules(), classed, vip.CommonOptions{Class: "a"}, false},
		{"another lease for all", withoutElection(), classed, vip.CommonOptions{Class: "a", SharedLease: vip.Key{Namespace: "kube-system", Name: "all"}}, false},
		{"the same", rules(), classed, vip.CommonOptions{Election: true, Class: "a"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			named := false
			for _, name := range manyNames {
				w := withClasses(withSessions(world(svc(name, "10.77.0.60", tt.service))))
				for i := range w.Members {
					w.Members[i].Info.Options.Election = tt.rules.Election
				}
				memberNamed(&w, "n3").Info.Options.CommonOptions = tt.n3
				for _, holder := range []string{"", "n1"} {
					h := w
					if holder != "" {
						h = held(w, name, holder)
						h.Stopping = true
					}
					for node, p := range plansOf(tt.rules, bind(tt.rules, h)) {
						for _, o := range p.Owners {
							named = named || node != "n3" && o.Node == "n3"
						}
						for _, v := range p.Verdicts {
							if v.Owner == "n3" || node != "n3" && strings.Contains(v.Message, "n3") {
								named = true
							}
							if node == "n3" && !tt.takes && (v.Reason != vip.OtherClass || !strings.Contains(v.Message, "must be the same on all")) {
								t.Errorf("n3 says %+v", v)
							}
						}
						named = named || node == "n3" && len(p.Routes)+len(p.Addresses) > 0
					}
				}
				rules := tt.rules
				rules.Class = "a"
				e, _ := ExplainNode(rules, w, "n3")
				if excluded := e.Why == otherOptionsExclusion; excluded == tt.takes {
					t.Errorf("explain says %q", e.Why)
				}
			}
			check.Equal(t, named, tt.takes, "VIPs go to n3")
		})
	}
}

// What the owner has when its options become another than on most nodes it hands over; it keeps addresses until the
// successor is heard, and plans no other Service.
func TestOtherClassOwner(t *testing.T) {
	r := rules()
	r.Class = "b"
	w := seenFrom(withClasses(held(held(world(svc("a", "10.77.0.60", written("n3")), svc("b", "10.77.0.61"), svc("c", "10.77.0.62")), "a", "n3"), "b", "n1")), "n3")
	p := Make(r, w)
	if len(p.Owners) != 1 || p.Owners[0].Node == "n3" || !strings.Contains(p.Owners[0].Cause, otherOptionsExclusion) || len(p.Addresses) != 1 {
		t.Errorf("owners %+v, addresses %v", p.Owners, p.Addresses)
	}
	w = held(w, "a", "n1")
	w.Bound = p.Addresses
	w.HandingOver[key("kubevip-a")] = vip.HandingOver{Since: w.Now, Until: w.Now.Add(time.Second), Successor: "n1"}
	if p := Make(r, w); len(p.Owners) != 1 || p.Owners[0].Node != "n1" || len(p.Addresses) != 1 {
		t.Errorf("handed over: owners %+v, addresses %v", p.Owners, p.Addresses)
	}
}

// What most nodes have is what most of those that announce Services do; the others may have any.
func TestOptionsWithoutServices(t *testing.T) {
	for _, tt := range []struct{ classes, with, alive string }{{"abb", "n1 n2", "n1 n2 n3"}, {"abbb", "n1 n2 n3", "n1 n4"}} {
		var members []vip.Member
		for i, class := range tt.classes {
			name := fmt.Sprint("n", i+1)
			o := &vip.NodeOptions{Services: strings.Contains(tt.with, name), CommonOptions: vip.CommonOptions{Class: string(class)}}
			members = append(members, vip.Member{Name: name, Alive: strings.Contains(tt.alive, name), Info: vip.NodeInfo{Options: o}})
		}
		most := commonOptions(members, func(n *vip.Member) bool { return n.Alive })
		check.Equal(t, most.Class, "a", "classes %s, with Services %s, alive %s", tt.classes, tt.with, tt.alive)
	}
}

// withClasses gives n1 and n2 class a, and n3 class b.
func withClasses(w vip.World) vip.World {
	w.Members = slices.Clone(w.Members)
	for i, class := range []string{"a", "a", "b"} {
		w.Members[i].Info.Options = &vip.NodeOptions{Services: true, ARP: true, BGP: true, CommonOptions: vip.CommonOptions{Election: true, Class: class}}
	}
	return w
}

// plansOf returns the plan of each node that is alive, by name, each made by what the node publishes of its options.
func plansOf(r Rules, w vip.World) map[string]vip.Plan {
	all := make(map[string]vip.Plan)
	for _, m := range w.Members {
		if o := m.Info.Options; m.Alive {
			w.Self, r.CommonOptions, r.Enabled = m.Name, o.CommonOptions, o.Services
			all[m.Name] = Make(r, w)
		}
	}
	return all
}

// TestOptionsOfDeadNodes: what dead nodes alone have bars no live one; while one of them lives, all count.
func TestOptionsOfDeadNodes(t *testing.T) {
	for dead, want := range map[string]vip.Reason{"": vip.OtherClass, "n1": vip.OtherClass, "n1 n2": vip.VIPClaiming} {
		w := withClasses(world(svc("a", "10.77.0.60", func(s *vip.Service) { s.HasClass, s.Class = true, "b" })))
		for i := range w.Members {
			w.Members[i].Alive = !strings.Contains(dead, w.Members[i].Name)
		}
		check.Equal(t, plansOf(rules(), w)["n3"].Verdicts[0].Reason, want, "n3, with these dead: %q", dead)
	}
}

// TestStatusOfNodesThatAreGone: a node of another class, or with svc_enable=false, clears no status, and says nothing,
// while members that announce the Service are there, be they dead or isolated; once none is, one node clears it.
func TestStatusOfNodesThatAreGone(t *testing.T) {
	without := func(change func(w *vip.World), names ...string) func(*vip.World) { // svc_enable is false there, and all have one class
		return func(w *vip.World) {
			w.Services[0].HasClass = false
			*w = withoutServices(*w, names...)
			change(w)
		}
	}
	for _, tt := range []struct {
		name   string
		change func(w *vip.World)
		want   int // how many nodes clear it
	}{
		{"n3 is without Services, and the node that wrote it died", without(func(w *vip.World) { w.Members[0].Alive = false }, "n3"), 0},
		{"n3 wrote it, before svc_enable was false there", without(func(w *vip.World) { w.Services[0].VIPHost = "n3" }, "n3"), 0},
		{"all nodes with Services are dead", without(func(w *vip.World) { w.Members[0].Alive, w.Members[1].Alive = false, false }, "n3"), 0},
		{"all nodes with Services are isolated", without(func(w *vip.World) { w.Members[0].Info.Isolated, w.Members[1].Info.Isolated = true, true }, "n3"), 0},
		{"a Service of another class, by n2", without(func(w *vip.World) { w.Members[0].Alive, w.Services[0].HasClass = false, true }, "n3"), 1},
		{"svc_enable is false everywhere", without(func(*vip.World) {}, "n1", "n2", "n3"), 1},
		{"the same, and the node that wrote it is gone", without(func(w *vip.World) { w.Members = w.Members[1:] }, "n1", "n2", "n3"), 1},
		{"the owner died, and n2 has the lease", func(w *vip.World) {
			w.Members[0].Alive = false
			*w = held(*w, w.Services[0].Key.Name, "n2")
		}, 0},
		{"the owner died, and nobody has the lease", func(w *vip.World) { w.Members[0].Alive = false }, 0},
		{"n3 wrote it, before it had another class", func(w *vip.World) { w.Services[0].VIPHost = "n3" }, 0},
		{"all nodes of the class are dead", func(w *vip.World) { w.Members[0].Alive, w.Members[1].Alive = false, false }, 0},
		{"all nodes of the class are isolated", func(w *vip.World) { w.Members[0].Info.Isolated, w.Members[1].Info.Isolated = true, true }, 0},
		{"no node serves the class any more", func(w *vip.World) { w.Members[0].Info.Options.Class, w.Members[1].Info.Options.Class = "b", "b" }, 1},
		{"no node serves the class, and the node that wrote it is gone", func(w *vip.World) {
			w.Members[1].Info.Options.Class = "b"
			w.Members = w.Members[1:]
		}, 1},
		{"no node serves the class, nor do two serve the same one", func(w *vip.World) { w.Members[0].Info.Options.Class, w.Members[1].Info.Options.Class = "c", "d" }, 1},
		{"half of the nodes have another class, and the first by name has this one", func(w *vip.World) { w.Members = w.Members[1:] }, 0},
		{"only a node with svc_enable=false has the class", func(w *vip.World) {
			w.Members[0].Info.Options.Services, w.Members[1].Info.Options.Class = false, "b"
		}, 1},
	} {
		for _, name := range manyNames {
			w := withClasses(world(svc(name, "10.77.0.60", written("n1"), func(s *vip.Service) { s.HasClass, s.Class = true, "a" })))
			tt.change(&w)
			var cleared, withdrawn []string
			for node, p := range plansOf(rules(), w) {
				for _, s := range addressStatuses(p) {
					if len(s.Ingress) == 0 {
						cleared = append(cleared, node)
					}
				}
				for _, e := range p.Events {
					if e.Reason == vip.VIPWithdrawn {
						withdrawn = append(withdrawn, node)
					}
				}
			}
			if len(cleared) != tt.want || len(withdrawn) != tt.want || strings.HasSuffix(tt.name, "by n2") && cleared[0] != "n2" {
				t.Errorf("%s, Service %s: cleared by %v, said by %v; want %d", tt.name, name, cleared, withdrawn, tt.want)
			}
		}
	}
}
