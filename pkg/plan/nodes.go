package plan

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"iter"
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
	exclusion string // why it has no VIP of a Service, by svc_enable or by what Kubernetes says of it, or ""
	labelled  bool   // exclusion is an ExclusionLabel
	// caresForServices: it announces Services by commonOptions, also of the dead; if nobody does, all clear what is left.
	caresForServices bool
	labels           map[string]string
	// labelsKnown: Nodes can be read, and so their labels.
	labelsKnown  bool
	notReady     bool            // as Node.NotReady
	shuttingDown bool            // as Node.ShuttingDown
	unheard      map[string]bool // the links on which the other nodes get no answer from it
	hash         uint64
	units        int // how many it holds, or is about to
}

const (
	isolatedRefusal   = "it reaches too few other nodes on the VIPs' link"
	stoppingRefusal   = "its Herald is stopping"
	shuttingDownFault = "it is being shut down"
)

const noServicesExclusion = "its Herald announces no Services (svc_enable is false there)"

// otherOptionsExclusion is for nodes whose CommonOptions are not commonOptions.
const otherOptionsExclusion = "lb_class_name, lb_class_only, lb_class_legacy_handling, svc_election or svc_leasename " +
	"is another there than on most nodes: they must be the same on all"

// commonOptions returns what most members have, of what one that counts has; of several the first by name.
func commonOptions(members []vip.Member, counts func(*vip.Member) bool) (most vip.CommonOptions) {
	have := make(map[vip.CommonOptions]int)
	for i := range members { // sorted by name
		if o := members[i].Info.Options; o != nil && o.Services {
			have[o.CommonOptions]++
		}
	}
	for i := range members {
		o := members[i].Info.Options
		if o != nil && o.Services && counts(&members[i]) && have[o.CommonOptions] > have[most] {
			most = o.CommonOptions
		}
	}
	return most
}

// isolatedOnly reports whether n would be eligible if not isolated.
func (n *member) isolatedOnly(need *requirements) bool {
	if n.refusal != isolatedRefusal {
		return false
	}
	other := *n
	other.refusal = ""
	return whyIneligible(need, &other) == ""
}

// cutOffOnly reports whether n would be eligible if its links were up, and others in reach.
func (n *member) cutOffOnly(need *requirements) bool {
	other := *n
	if other.Info.Links = slices.Clone(n.Info.Links); n.refusal == isolatedRefusal {
		other.refusal = ""
	}
	for i := range other.Info.Links {
		other.Info.Links[i].Up = true
	}
	return whyIneligible(need, &other) == ""
}

func (n *member) whyExcluded() string { return cmp.Or(n.refusal, n.exclusion) }

// newNodes returns the members, with why they take no VIP.
func newNodes(w *vip.World) *nodes {
	objects := nodeObjects(w)
	hasNode := func(x vip.Member) bool { _, ok := objects[x.Name]; return ok }
	// If no member has a Node, Nodes can't be read, or there are none yet: that says nothing.
	nodesKnown := slices.ContainsFunc(w.Members, hasNode)
	common := commonOptions(w.Members, func(x *vip.Member) bool { return x.Alive || x.Name == w.Self })
	ofAll := commonOptions(w.Members, func(*vip.Member) bool { return true })
	nobodyCares := !slices.ContainsFunc(w.Members, func(x vip.Member) bool { return x.Info.AnnouncesServices() })
	all := &nodes{members: make(map[string]*member, len(w.Members)), addresses: objects[w.Self].Addresses}
	for _, x := range w.Members {
		o := objects[x.Name]
		own := x.Info.Options
		differs := func(from vip.CommonOptions) bool { return own != nil && own.CommonOptions != from }
		n := &member{Member: x, hash: hash(x.Name), exclusion: o.Excluded, notReady: o.NotReady,
			shuttingDown: o.ShuttingDown, labels: o.Labels, labelsKnown: nodesKnown, unheard: make(map[string]bool),
			caresForServices: nobodyCares || x.Info.AnnouncesServices() && !differs(ofAll)}
		switch {
		case nodesKnown && !hasNode(x):
			n.exclusion = "Kubernetes has no Node of that name: set vip_nodename to that of its Node"
		case !x.Info.AnnouncesServices():
			n.exclusion = noServicesExclusion
		case differs(common):
			n.exclusion = otherOptionsExclusion
		}
		switch {
		case o.Drained:
			n.refusal = "it is drained (herald undrain " + x.Name + " ends that)"
		case x.Name == w.Self && w.Stopping: // it drains its routes; the others know from its node lease, before it does
			n.refusal = stoppingRefusal
		case x.Info.Isolated:
			n.refusal = isolatedRefusal
		case x.Name != w.Self:
			n.refusal = x.Info.Excluded
		}
		all.members[x.Name] = n
		if x.Alive {
			all.alive = append(all.alive, n)
		}
	}
	all.excludeLabelled(objects)
	if all.self = all.members[w.Self]; all.self != nil {
		all.self.Info.BGPSessions = w.BGPSessions // newer than in its node lease
	}
	all.setUnheard()
	return all
}

// excludeLabelled takes Services from labelled nodes if others may have them (docs/why.md, "The exclusion label").
func (all *nodes) excludeLabelled(objects map[string]vip.Node) {
	var labelled []*member
	counts := false
	for name, n := range all.members {
		switch o := objects[name]; {
		case n.exclusion != "":
		case o.ExclusionLabel != "":
			labelled = append(labelled, n)
		case o.Name != "":
			counts = counts || n.Info.Excluded == "" && n.refusal != stoppingRefusal && !o.ShuttingDown
		}
	}
	for _, n := range labelled {
		if counts {
			n.exclusion, n.labelled = "it has the label "+objects[n.Name].ExclusionLabel, true
		}
	}
}

func nodeObjects(w *vip.World) map[string]vip.Node {
	objects := make(map[string]vip.Node, len(w.Nodes))
	for _, o := range w.Nodes {
		objects[o.Name] = o
	}
	return objects
}

// An Exclusion is why a node that announces Services takes no VIP of them.
type Exclusion struct {
	Why      string
	Labelled bool // an operator wants it so, by an ExclusionLabel
}

// Exclusions returns those in w, by member.
func Exclusions(w *vip.World) map[string]Exclusion {
	all := make(map[string]Exclusion)
	for name, n := range newNodes(w).members {
		if n.exclusion != "" && n.exclusion != noServicesExclusion {
			all[name] = Exclusion{n.exclusion, n.labelled}
		}
	}
	return all
}

// A rank says how well a node would serve a unit; the lowest gets it.
type rank int

// The ranks. A node has the highest one that applies.
const (
	rankWell     rank = iota
	rankNotReady      // kubelet does not report it as ready, though it may serve
	// its Herald crashed more than once in the last minutes (docs/why.md, "Restart loops")
	rankRestarting
	// its data plane does not forward to VIPs, or was not seen to (docs/why.md, "Failing data plane")
	rankFaulty
	// its link is in no network of an address that is announced by ARP or NDP: hosts of that network hear nothing of it
	rankOffLink
	// its BGP sessions are down, so no router hears of what it advertises (docs/why.md, "Lost BGP sessions")
	rankNoSession
	rankUnheard // the other nodes get no answer from it on a link that is needed (docs/why.md, "Verification")
	// its VIPs go before their Pods do, but the last node keeps them; after a boot kubelet may need a VIP to deny it
	rankShuttingDown
	rankStalled // its agent does not follow the table
)

// restartsTolerated is how many Restarts don't count: one power cut says nothing about the next.
const restartsTolerated = 1

// rankFor returns the rank of n as owner: every node comes to the same, except for Stalled.
func (n *member) rankFor(need *requirements) rank {
	switch {
	case n.Stalled:
		return rankStalled
	case n.shuttingDown:
		return rankShuttingDown
	case n.unheardLink(need) != "":
		return rankUnheard
	case need.ownerAdvertises && n.lostSessions():
		return rankNoSession
	case n.isOffLink(need):
		return rankOffLink
	case need.nodeExclusion && !n.Info.ForwardsToServices():
		return rankFaulty
	case len(n.Info.Restarts) > restartsTolerated:
		return rankRestarting
	case need.nodeExclusion && n.notReady:
		return rankNotReady
	}
	return rankWell
}

// isOffLink reports whether n would bind an address, announced by ARP or NDP alone, to a link without its network.
func (n *member) isOffLink(need *requirements) bool {
	return !need.ownerAdvertises && !need.everyNodeAdvertises && slices.ContainsFunc(need.links, func(l linkOf) bool {
		_, subnet := linkFor(&n.Info, l.requested, l.addr)
		return l.addr.IsValid() && subnet == 0
	})
}

// lostSessions reports whether all BGP sessions of n have been down for a while, and no other daemon may have one.
func (n *member) lostSessions() bool {
	o, all := n.Info.Options, n.Info.BGPSessions
	return len(all) > 0 && (o == nil || o.RoutingTable == 0) &&
		!slices.ContainsFunc(all, func(x vip.BGPSession) bool { return x.Up() || !x.Lasting })
}

// lastingSession reports whether a BGP session of n has been up for a while.
func (n *member) lastingSession() bool {
	return slices.ContainsFunc(n.Info.BGPSessions, func(x vip.BGPSession) bool { return x.Up() && x.Lasting })
}

// requirements are what a node must have to announce Services.
type requirements struct {
	*capabilities          // of the first of them: with nodeExclusion the node must have no exclusion
	linkOfVIPs    bool     // its link of VIPs is up
	routes        bool     // every node advertises it: routers decide, so an isolated node does, too
	drains        bool     // a Herald that stops goes on for a while
	endpoint      bool     // it is one of endpoints
	endpoints     []string // names of nodes, sorted; there may be any number, where users may write EndpointSlices
	links         []linkOf // to which addresses are to be bound, or macvlans made, are up

	policy  vip.PoolPolicy // lets it carry each of ofPools, and prefers some nodes (weightFor)
	ofPools []netip.Addr
}

// A linkOf is the link for an address of a Service.
type linkOf struct {
	requested string     // what the Service names: a link, "auto", or "" for the node's default
	addr      netip.Addr // zero for what a DHCP server leases
}

// linksOn returns the links of n to bind to, with addresses.
func (need *requirements) linksOn(n *member) iter.Seq2[string, netip.Addr] {
	return func(yield func(string, netip.Addr) bool) {
		for _, l := range need.links {
			if link, _ := linkFor(&n.Info, l.requested, l.addr); !yield(link, l.addr) {
				return
			}
		}
	}
}

// whyIneligible returns why alive n may not announce it, or ""; nothing else decides.
func whyIneligible(need *requirements, n *member) string {
	switch {
	case n.refusal != "" && !(need.routes && n.refusal == isolatedRefusal || need.drains && n.refusal == stoppingRefusal):
		return n.refusal
	case need.nodeExclusion && n.exclusion != "":
		return n.exclusion
	case need.bindsAddresses && !need.routes && !n.announcesBy(vip.ByARP):
		return "vip_arp is false there"
	case (need.routes || need.ownerAdvertises && !need.bindsAddresses) && !n.announcesBy(vip.ByBGP):
		return "neither bgp_enable nor vip_routingtable is true there"
	}
	if need.linkOfVIPs {
		if fault := linkFault(&n.Info, n.Info.LinkFor("")); fault != "" {
			return fault
		}
	}
	for link, a := range need.linksOn(n) {
		if fault := linkFault(&n.Info, link); fault != "" {
			return fault
		}
		if fault := n.whyNoIPv6(a, link); fault != "" && need.onlyIPv6() { // else it may serve the others
			return fault
		}
	}
	for _, a := range need.ofPools {
		if why := need.policy.WhyNotOn(a, n.labels); why != "" && n.labelsKnown {
			return why
		}
	}
	if need.endpoint && !containsSorted(need.endpoints, n.Name) {
		return need.noEndpointThere
	}
	return ""
}

// announcesBy reports whether the options of n have a way to announce; those of an unknown node have all.
func (n *member) announcesBy(m vip.Method) bool {
	o := n.Info.Options
	return o == nil || m == vip.ByARP && o.ARP || m == vip.ByBGP && (o.BGP || o.RoutingTable != 0)
}

// eligible returns the alive nodes that may announce it.
func (all *nodes) eligible(need *requirements) []*member {
	return slices.DeleteFunc(slices.Clone(all.alive), func(n *member) bool { return whyIneligible(need, n) != "" })
}

func (need *requirements) onlyIPv6() bool {
	return !slices.ContainsFunc(need.links, func(l linkOf) bool { return !l.addr.Is6() })
}

// whyNoIPv6 returns why n binds no IPv6 to a link, or "".
func (n *member) whyNoIPv6(a netip.Addr, link string) string {
	if l := linkNamed(&n.Info, link); !a.Is6() || l == nil || !l.NoIPv6 {
		return ""
	}
	name := strings.ReplaceAll(link, ".", "/") // a dot of the link's name is a slash to sysctl(8)
	return fmt.Sprintf("IPv6 is disabled on its link %s (sysctl -w net.ipv6.conf.%s.disable_ipv6=0)", link, name)
}

func containsSorted(names []string, name string) bool {
	_, found := slices.BinarySearch(names, name)
	return found
}

func (n *member) weightFor(need *requirements) (sum int) {
	for _, a := range need.ofPools {
		if n.labelsKnown {
			sum += need.policy.Weight(a, n.labels)
		}
	}
	return sum
}

// whyNoNode returns why each alive node is ineligible.
func (all *nodes) whyNoNode(need *requirements) string {
	const limit = 5
	var found reasons
	for _, n := range all.alive {
		if why := whyIneligible(need, n); why != "" {
			found.add(n.Name, why)
		}
	}
	if len(found) == 0 {
		return "no Herald is known to be alive"
	}
	for i := range found {
		x := &found[i]
		x.names = vip.AtMost(x.names, limit)
		if x.why == need.noEndpointThere {
			x.why += all.withoutHerald(need.endpoints)
		}
	}
	texts := found.texts()
	if n := len(texts); n > limit {
		texts = append(texts[:limit], fmt.Sprintf("and %d more reasons", n-limit))
	}
	return "no node may announce it at present: " + strings.Join(texts, "; ")
}

// withoutHerald returns, in brackets, which endpoints have no live Herald, or "".
func (all *nodes) withoutHerald(endpoints []string) string {
	var without []string
	why := "where no Herald runs"
	for _, name := range endpoints {
		if n := all.members[name]; n == nil || !n.Alive {
			without = append(without, name)
			if n != nil {
				why = "where Herald is not alive" // it may run, and hang or be cut off
			}
		}
	}
	if len(without) == 0 {
		return ""
	}
	return " (there is one on " + strings.Join(vip.AtMost(without, 3), ", ") + ", " + why + ")"
}

// linkFor returns the link of a node for a, and its longest prefix with a, or 0.
//
// requested "" is the node's DefaultInterface. "auto" is the link with the longest subnet that has a, else that of the
// default route, or "". A named link is returned even if the node lacks it. The zero Addr is in no subnet.
func linkFor(info *vip.NodeInfo, requested string, a netip.Addr) (link string, subnet int) {
	requested = cmp.Or(requested, info.Interface)
	link = info.LinkFor(requested)
	if requested == vip.DefaultLink {
		requested = link
	}
	for _, l := range info.Links {
		if requested != "auto" && l.Name != requested {
			continue
		}
		for _, p := range l.Networks() {
			if p.Bits() > subnet && p.Contains(a) {
				link, subnet = l.Name, p.Bits()
			}
		}
	}
	return link, subnet
}

// linkFault returns what is wrong with a node's link, or "".
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

func linkNamed(info *vip.NodeInfo, name string) *vip.Link {
	for i := range info.Links {
		if info.Links[i].Name == name {
			return &info.Links[i]
		}
	}
	return nil
}

func hashKey(k vip.Key) uint64 { return hash(k.String()) }

// hash is the same on every node and in every version.
func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // can't fail
	return h.Sum64()
}

// chosen returns the able node named last, else by rendezvous hash.
func chosen(key uint64, nodes []*member, last string, able func(*member) bool) (best *member) {
	for _, n := range nodes {
		switch {
		case !able(n):
		case n.Name == last:
			return n
		case best == nil || rendezvousHash(key, n.hash) > rendezvousHash(key, best.hash):
			best = n
		}
	}
	return best
}

// rendezvousHash mixes two hashes by the finalizer of splitmix64, like random.
func rendezvousHash(unit, node uint64) uint64 {
	x := unit ^ (node + 0x9e3779b97f4a7c15)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
