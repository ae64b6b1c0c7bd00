package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

// TestOtherClassNode: n3 has other options of classes, and does not announce the Services that n1 and n2 do. None of their VIPs goes to it,
// but those without a class do where n3 serves these.
func TestOtherClassNode(t *testing.T) {
	ours, onlyOurs := rules(), rules()
	ours.Class, onlyOurs.Class, onlyOurs.ClassOnly = "a", "a", true
	bgp := ours
	bgp.ARP, bgp.Election, bgp.BGP = false, false, &BGP{}
	classed := func(s *vip.Service) { s.HasClass, s.Class = true, "a" }
	classless := func(*vip.Service) {}
	for _, tt := range []struct {
		name    string
		rules   Rules
		service func(*vip.Service)
		n3      *vip.NodeOptions
		takes   bool
	}{
		{"of a class", ours, classed, &vip.NodeOptions{Services: true, Class: "b"}, false},
		{"of a class, which alone is served", onlyOurs, classed, &vip.NodeOptions{Services: true, Class: "b", ClassOnly: true}, false},
		{"by BGP", bgp, classed, &vip.NodeOptions{Services: true, Class: "b"}, false},
		{"of no class, and n3 serves its class alone", ours, classless, &vip.NodeOptions{Services: true, Class: "b", ClassOnly: true}, false},
		{"of no class, and n3 is strict", ours, classless, &vip.NodeOptions{Services: true, Class: "b", ClassStrict: true}, false},
		{"of no class, which all serve", ours, classless, &vip.NodeOptions{Services: true, Class: "b"}, true},
		{"of a class, and n3 serves it alone", ours, classed, &vip.NodeOptions{Services: true, Class: "a", ClassOnly: true}, true},
		{"of a class, and n3 does not say", ours, classed, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			named := false
			for _, name := range manyNames {
				w := withSessions(world(svc(name, "10.77.0.60", tt.service)))
				w.Members = slices.Clone(w.Members)
				for i := range w.Members {
					w.Members[i].Info.Options = &vip.NodeOptions{Services: true, Class: "a", ClassOnly: tt.rules.ClassOnly}
				}
				memberNamed(&w, "n3").Info.Options = tt.n3
				for _, holder := range []string{"", "n1"} {
					h := w
					if holder != "" {
						h = held(w, name, holder)
						h.Stopping = true
					}
					for _, self := range []string{"n1", "n2"}[:2-len(holder)/2] {
						h.Self = self
						p := Make(tt.rules, bind(tt.rules, h))
						for _, i := range p.LeaseIntents {
							named = named || i.ExpectedHolder == "n3" || i.Successor == "n3"
						}
						for _, v := range p.Verdicts {
							named = named || v.Owner == "n3" || strings.Contains(v.Message, "n3")
						}
					}
				}
				for _, to := range Successors(tt.rules, held(w, name, "n1")) {
					named = named || to.Node == "n3"
				}
			}
			if named != tt.takes && (tt.rules.BGP == nil || named) {
				t.Errorf("VIPs go to n3: %t, want %t", named, tt.takes)
			}
		})
	}
}
