package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// nodes are the nodes on which a Herald runs, or ran.
type nodes struct {
	members   map[string]*member // by name
	alive     []*member          // sorted by name
	self      *member            // this node; nil until it has a node lease
	addresses []netip.Addr       // of this node, as Kubernetes has them
}

// A member is a node, as placement sees it.
type member struct {
	vip.Member
	refusal   string // why its Herald takes no VIP at all, or ""
	exclusion string // why Kubernetes keeps the VIPs of Services off it, or ""
	hash      uint64
	units     int // how many it holds, or is about to
}

// hasSession reports whether a BGP session of the node is established.
func (n *member) hasSession() bool { return slices.ContainsFunc(n.Info.BGPSessions, vip.BGPSession.Up) }

// excluded is why the node takes no VIP of a Service, or "".
func (n *member) excluded() string { return cmp.Or(n.refusal, n.exclusion) }

// newNodes finds the nodes, and why each of them takes no VIPs, if it does not.
func newNodes(w *vip.World) *nodes {
	objects := make(map[string]vip.Node, len(w.Nodes)) // without: a node of which Kubernetes says nothing
	for _, o := range w.Nodes {
		objects[o.Name] = o
	}
	// kubeadm puts the label that keeps VIPs off a node on every control-plane node. Where Herald runs on such
	// nodes only, there would be no VIP at all, so it does not count. Nodes that are down do, so that the label
	// means the same when one fails (decision 0015).
	labelCounts := slices.ContainsFunc(w.Members, func(x vip.Member) bool { return objects[x.Name].ExclusionLabel == "" })
	othersStay := slices.ContainsFunc(w.Members, func(x vip.Member) bool { return x.Alive && !objects[x.Name].ShuttingDown })
	all := &nodes{members: make(map[string]*member, len(w.Members)), addresses: objects[w.Self].Addresses}
	for _, x := range w.Members {
		o := objects[x.Name]
		n := &member{Member: x, hash: hash(x.Name), exclusion: o.Excluded}
		if n.exclusion == "" && labelCounts && o.ExclusionLabel != "" {
			n.exclusion = "it has the label " + o.ExclusionLabel
		}
		switch {
		case x.Name == w.Self && w.Stopping: // the others know from its node lease, before it acts on it
			n.refusal = "its Herald is stopping"
		case o.Drained:
			n.refusal = "it is drained (herald undrain " + x.Name + " ends that)"
		case o.ShuttingDown && othersStay: // VIPs go before the Pods behind them do; while no other node is alive they stay
			n.refusal = "it is being shut down"
		case x.Info.Isolated:
			n.refusal = "it reaches too few other nodes on the VIPs' link"
		case x.Name != w.Self:
			n.refusal = x.Info.Excluded
		}
		all.members[x.Name] = n
		if x.Alive {
			all.alive = append(all.alive, n)
		}
	}
	if all.self = all.members[w.Self]; all.self != nil {
		all.self.Info.BGPSessions = w.BGPSessions // newer than in its node lease
	}
	return all
}

// requirements are what a node must have to announce Services.
type requirements struct {
	*capabilities            // of the oldest of them: with nodeExclusion Kubernetes must not keep VIPs off the node
	linkOfVIPs    bool       // its link of VIPs is up
	endpoint      bool       // it is one of endpoints
	endpoints     []string   // names of nodes
	bound         []*service // the links to which their addresses, and macvlans, are to be bound are up
}

// ineligible is why a node may not announce something, or "" if it may: the first that holds of these. Its
// Herald takes no VIP; Kubernetes keeps VIPs off it; a link that is needed is missing or down; it has no
// endpoint. A node that is not alive may be eligible. No other code decides this.
func ineligible(need *requirements, n *member) string {
	switch {
	case n.refusal != "":
		return n.refusal
	case need.nodeExclusion && n.exclusion != "":
		return n.exclusion
	}
	if need.linkOfVIPs {
		if fault := linkFault(&n.Info, n.Info.LinkFor("")); fault != "" {
			return fault
		}
	}
	for _, s := range need.bound {
		if !s.bindsAddresses { // a route leads to the node, not to one of its links
			continue
		}
		if len(s.dhcpFamilies) > 0 {
			if fault := linkFault(&n.Info, n.Info.LinkFor(s.Interface)); fault != "" {
				return fault
			}
		}
		for _, a := range s.addrs {
			if a.client != nil {
				continue
			}
			link := n.Info.LinkFor(s.Interface)
			if cmp.Or(s.Interface, n.Info.Interface) == "auto" {
				link, _ = linkFor(&n.Info, s.Interface, a.Addr)
			}
			if fault := linkFault(&n.Info, link); fault != "" {
				return fault
			}
		}
	}
	if need.endpoint && !slices.Contains(need.endpoints, n.Name) {
		return need.noEndpointThere
	}
	return ""
}

// whyNoNode lists why no node that is alive is eligible, five of them by name.
func (all *nodes) whyNoNode(need *requirements) string {
	const limit = 5
	var reasons []string
	for _, n := range all.alive {
		if why := ineligible(need, n); why != "" {
			reasons = append(reasons, n.Name+": "+why)
		}
	}
	switch n := len(reasons); {
	case n == 0:
		return "no node runs Herald at present"
	case n > limit:
		reasons = append(reasons[:limit], fmt.Sprintf("and %d more", n-limit))
	}
	return "no node may announce it at present: " + strings.Join(reasons, "; ")
}

// linkFor finds the link of a node to which a is bound for a Service that names the link want: that link, or
// the node's default for VIPs if want is "". "auto" is the link whose subnet has a, the longest prefix first,
// else the one with the default route; "" if there is none. subnet is the prefix length of the link's subnet
// that has a, 0 if none has. The zero Addr is in no subnet.
func linkFor(info *vip.NodeInfo, want string, a netip.Addr) (link string, subnet int) {
	want = cmp.Or(want, info.Interface)
	link = info.LinkFor(want)
	for _, l := range info.Links {
		if want != "auto" && l.Name != want {
			continue
		}
		for _, p := range l.Prefixes {
			if p.Bits() > subnet && p.Contains(a) {
				link, subnet = l.Name, p.Bits()
			}
		}
	}
	return link, subnet
}

// linkFault is what is wrong with a link of a node, or "" if it is up.
func linkFault(info *vip.NodeInfo, link string) string {
	switch l := linkNamed(info, link); {
	case l != nil && l.Up:
		return ""
	case l != nil:
		return "its link " + link + " is down"
	case link == "":
		return "it has no default route, so vip_interface must name the link"
	}
	return "it has no link " + link
}

// linkNamed is the link of that name, or nil.
func linkNamed(info *vip.NodeInfo, name string) *vip.Link {
	for i := range info.Links {
		if info.Links[i].Name == name {
			return &info.Links[i]
		}
	}
	return nil
}

// hashKey is the hash of k.String().
func hashKey(k vip.Key) uint64 { return hash(k.String()) }

// hash is the FNV-1a hash of a name: the same on every node and in every version.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// highestHash is the one of some nodes, at least one, that has the highest rendezvous hash for a unit or
// Service.
func highestHash(key uint64, nodes []*member) *member {
	return slices.MaxFunc(nodes, func(a, b *member) int { return cmp.Compare(rendezvousHash(key, a.hash), rendezvousHash(key, b.hash)) })
}

// rendezvousHash is the rendezvous hash of a unit or Service and a node (the finalizer of splitmix64, so that
// each pair is as good as random).
func rendezvousHash(unit, node uint64) uint64 {
	x := unit ^ (node + 0x9e3779b97f4a7c15)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
