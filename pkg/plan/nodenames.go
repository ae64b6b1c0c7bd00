package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// useNodesByAddress names Nodes in w like the one member with their address (vip_nodename).
func useNodesByAddress(w *vip.World) {
	names := NodeNames(w)
	if len(names) == 0 {
		return
	}
	w.Nodes, w.Services = slices.Clone(w.Nodes), slices.Clone(w.Services)
	for i := range w.Nodes {
		w.Nodes[i].Name = names.Of(w.Nodes[i].Name)
	}
	for i := range w.Services {
		s := &w.Services[i]
		s.Endpoints.Ready, s.Endpoints.Terminating = names.ofAll(s.Endpoints.Ready),
			names.ofAll(s.Endpoints.Terminating)
		s.Pods = slices.Clone(s.Pods)
		for i := range s.Pods {
			s.Pods[i].Node = names.Of(s.Pods[i].Node)
		}
	}
}

// NamesOfNodes are members' names by those of their Nodes, where these differ.
type NamesOfNodes map[string]string

// NodeNames returns the names of Nodes that their members don't share.
func NodeNames(w *vip.World) NamesOfNodes {
	objects := nodeObjects(w)
	var nameless []vip.Member
	for _, m := range w.Members {
		if _, ok := objects[m.Name]; !ok {
			nameless = append(nameless, m)
		}
	}
	if len(nameless) == 0 { // as nearly always: what follows takes the square of the nodes
		return nil
	}
	names := make(NamesOfNodes)
	for _, o := range w.Nodes {
		if slices.ContainsFunc(w.Members, func(m vip.Member) bool { return m.Name == o.Name }) {
			continue
		}
		of := slices.DeleteFunc(slices.Clone(nameless), func(m vip.Member) bool {
			return !slices.ContainsFunc(m.Info.OwnAddresses(),
				func(a netip.Addr) bool { return slices.Contains(o.Addresses, a) })
		})
		if len(of) == 1 {
			names[o.Name] = of[0].Name
		}
	}
	return names
}

// Of returns the name that the Node has as a member.
func (n NamesOfNodes) Of(node string) string {
	return cmp.Or(n[node], node)
}

func (n NamesOfNodes) ofAll(nodes []string) []string {
	out := slices.Clone(nodes)
	for i := range out {
		out[i] = n.Of(out[i])
	}
	slices.Sort(out)
	return out
}
