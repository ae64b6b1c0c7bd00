package plan

import (
	"net/netip"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A host name that is not the name of the Node: the Node with this host's addresses is taken, for endpoints, drains
// and labels; where two could be meant, or none, the node is excluded, and told the option.
func TestNodesByAddress(t *testing.T) {
	local := func(w *vip.World) {
		w.Services[0].Local, w.Services[0].Endpoints = true, vip.Endpoints{Ready: []string{"n1.example.com"}}
	}
	for _, tt := range []struct {
		name   string
		change func(w *vip.World)
		want   string
	}{
		{"a Local Service", local, "a: VIPAnnounced"},
		{"it is drained", func(w *vip.World) { w.Nodes[0].Drained = true }, "drained"},
		{"another address", func(w *vip.World) { w.Nodes[0].Addresses = []netip.Addr{addr("10.9.9.9")} }, "set vip_nodename to that of its Node"},
		{"two of them", func(w *vip.World) {
			w.Members[1].Name, w.Members[1].Info.Links = "x", w.Members[0].Info.Links
			w.Nodes = append(w.Nodes, vip.Node{Name: "n3"})
		}, "set vip_nodename"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1")
			w.Nodes = []vip.Node{{Name: "n1.example.com", Addresses: []netip.Addr{addr("10.77.0.11")}}, {Name: "n2"}, {Name: "n3"}}
			tt.change(&w)
			before := w.Nodes[0].Name
			r := rules()
			e, _ := ExplainNode(r, bind(r, w), "n1")
			check.Contains(t, e.Why+" a: "+string(reasonOf(Make(r, bind(r, w)), "a")), tt.want)
			check.Equal(t, w.Nodes[0].Name, before, "the name of the Node in the World")
		})
	}
}
