package vip

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// NodeLeasePrefix begins the name of every node lease, before the node's. No Service may name such a Lease.
const NodeLeasePrefix = "herald-node-"

// A Node is what Kubernetes says of a node.
type Node struct {
	Name           string
	UID            string
	Addresses      []netip.Addr   // status.addresses
	PodCIDRs       []netip.Prefix // spec.podCIDRs
	Excluded       string         // why it must not carry a VIP (taint), or ""
	ExclusionLabel string         // the label that keeps VIPs off it as long as there are nodes without, or ""

	Drained bool // an operator wants it to carry no VIP (herald drain)
	// until then it gets back what it gave away by herald drain (herald undrain)
	ReturnUntil  time.Time `json:",omitzero"`
	ShuttingDown bool      // its kubelet says that it is being shut down
	NotReady     bool      // its condition Ready is False or Unknown, or NetworkUnavailable is True
	// NetworkNotReady: its kubelet says that the network plugin (CNI) does not work.
	NetworkNotReady bool

	Labels map[string]string // at most 64 of them, the first by name; nil without pools

	// Annotations are of this process's node, below the prefix Herald was told (annotation). They may have passwords.
	Annotations map[string]Secret
}

// A Link is a network interface of a node, as its announcer tells it.
type Link struct {
	Index int    `json:"-"` // of this node's kernel (if_nametoindex(3)); 0 for a link of another node
	Name  string `json:"name"`
	Up    bool   `json:"up"`
	// it takes no IPv6: net.ipv6.conf.LINK.disable_ipv6, or the kernel has none
	NoIPv6   bool           `json:"noIPv6,omitempty"`
	MAC      string         `json:"mac,omitempty"`      // its Ethernet address, as 02:00:00:00:00:0a; "" if it has none
	Prefixes []netip.Prefix `json:"prefixes,omitempty"` // its own addresses with their networks, VIPs left out
	// TentativeNetworks are of its own addresses that are tentative, or another host's by duplicate address detection: the
	// link is in these networks, without an address to use.
	TentativeNetworks []netip.Prefix `json:"tentativeNetworks,omitempty"`
}

// Networks returns the networks l is in, each as such or as an address with its mask.
func (l *Link) Networks() []netip.Prefix {
	if len(l.TentativeNetworks) == 0 {
		return l.Prefixes
	}
	return slices.Concat(l.Prefixes, l.TentativeNetworks)
}

// OwnPrefixes returns those of a link's addresses that are the node's own, where it is in networks, too: of each family
// those with a network, beside which a single one may be another program's VIP; or, as in clouds, single ones.
func OwnPrefixes(all []netip.Prefix, networks ...netip.Prefix) (own []netip.Prefix) {
	networks = slices.DeleteFunc(slices.Concat(all, networks), netip.Prefix.IsSingleIP)
	for _, p := range all {
		sameFamily := func(n netip.Prefix) bool { return n.Addr().Is4() == p.Addr().Is4() }
		if !p.IsSingleIP() || !slices.ContainsFunc(networks, sameFamily) {
			own = append(own, p)
		}
	}
	slices.SortStableFunc(own, func(a, b netip.Prefix) int { // others are in the first one's network
		return cmp.Compare(a.Bits()/a.Addr().BitLen(), b.Bits()/b.Addr().BitLen())
	})
	return own
}

// NodeInfo is what a node tells others on its node lease. It changes only when the node does.
type NodeInfo struct {
	// the default link of VIPs; "auto" = the one whose subnet has the VIP
	Interface string `json:"interface"`
	// vip_interface, else the default route's: what "auto" falls back to
	DefaultInterface string `json:"defaultInterface"`
	Links            []Link `json:"links"`              // sorted by name
	Excluded         string `json:"excluded,omitempty"` // why the node itself refuses VIPs, or ""
	Isolated         bool   `json:"isolated,omitempty"` // it reaches too few other nodes on the VIPs' link to take any
	// HeartbeatInterface is for a link of VIPs that is a loopback: DefaultInterface, or the default route's; or "".
	HeartbeatInterface string `json:"heartbeatInterface,omitempty"`
	// LivenessOff is why it exchanges no heartbeats, or "".
	LivenessOff string `json:"livenessOff,omitempty"`
	// HeartbeatKeys is the IDs of its keys (Peers.KeyIDs), the newest first; none while LivenessOff.
	HeartbeatKeys []string `json:"heartbeatKeys,omitempty"`
	// Unanswered is other nodes' addresses that nobody answers for, while others are heard (CheckNeighbor); sorted.
	Unanswered []netip.Addr `json:"unanswered,omitempty"`
	// Suspects is nodes that are Suspect for a while, sorted.
	Suspects []string `json:"suspects,omitempty"`

	ServiceAddresses string `json:"serviceAddresses,omitempty"` // its option svc_addresses

	Process ProcessInfo `json:"process,omitzero"` // the process that works under the node's name

	// OtherAddresses are other programs', in no network of Links: no OwnPrefixes, second in their network, of links
	// without VIPs, tentative, or another host's by duplicate address detection. Sorted; at most 256.
	OtherAddresses []netip.Addr `json:"otherAddresses,omitempty"`
	// next hops of its default routes that are not link-local; sorted
	Gateways []netip.Addr `json:"gateways,omitempty"`

	// Options is what its plan depends on, for commands; nil: an earlier version.
	Options *NodeOptions `json:"options,omitempty"`

	BGPSessions []BGPSession `json:"bgpSessions,omitempty"` // its BGP sessions
	// APIServerReady: its own API server is ready, so it may carry the control plane's VIP.
	APIServerReady bool `json:"apiServerReady,omitempty"`

	// Restarts is when (Unix seconds, own clock) its Herald began again without a hand-over before: killed, crashed, or a
	// power cut. It is emptied after a while (docs/why.md, "Restart loops").
	Restarts []int64 `json:"restarts,omitempty"`
	// Table is the number of the table of owners that the node has carried out.
	Table int64 `json:"table,omitempty"`
	// DataPlaneFault is why the node would not forward packets to VIPs, or "".
	DataPlaneFault string `json:"dataPlaneFault,omitempty"`
	// DataPlaneUnproven: it has not been seen to forward to Services: it has just begun, or that fails.
	DataPlaneUnproven bool `json:"dataPlaneUnproven,omitempty"`
}

// ForwardsToServices reports whether packets to VIPs are forwarded, as far as is known.
func (i *NodeInfo) ForwardsToServices() bool { return i.DataPlaneFault == "" && !i.DataPlaneUnproven }

// AnnouncesServices reports whether the node has svc_enable.
func (i *NodeInfo) AnnouncesServices() bool { return i.Options == nil || i.Options.Services }

// NodeOptions is the options that decide where VIPs may be; with svc_enable they should be equal.
type NodeOptions struct {
	Services     bool `json:"services,omitempty"` // svc_enable
	ARP          bool `json:"arp,omitempty"`
	BGP          bool `json:"bgp,omitempty"`
	RoutingTable int  `json:"routingTable,omitempty"` // vip_routingtableid, with vip_routingtable
	NoStatus     bool `json:"noStatus,omitempty"`     // disable_service_updates
	CommonOptions
	Pools Key `json:"pools,omitzero"` // the ConfigMap of pools, if it gives addresses

	ControlPlane      []netip.Addr `json:"controlPlane,omitempty"`     // address, with cp_enable
	ControlPlaneLease Key          `json:"controlPlaneLease,omitzero"` // vip_leasename, with cp_enable
}

// CommonOptions say which Services a Herald announces, and as which units. Nodes whose differ from most announce none.
type CommonOptions struct {
	Election    bool   `json:"election,omitempty"`    // svc_election
	SharedLease Key    `json:"lease,omitzero"`        // svc_leasename: of all Services; zero with Election
	Class       string `json:"class,omitempty"`       // lb_class_name; may be empty
	ClassOnly   bool   `json:"classOnly,omitempty"`   // lb_class_only
	ClassStrict bool   `json:"classStrict,omitempty"` // lb_class_legacy_handling is false
}

// Serve reports whether a Herald with these options announces s's class.
func (o CommonOptions) Serve(s *Service) bool {
	switch {
	case s.HasClass:
		return s.Class == o.Class
	case o.ClassStrict:
		return o.Class == ""
	}
	return !o.ClassOnly
}

// SameServices reports whether both nodes announce the same Services, as the same units.
func (i *NodeInfo) SameServices(o *NodeInfo) bool {
	if i.Options == nil || o.Options == nil {
		return i.Options == o.Options
	}
	return i.Options.CommonOptions == o.Options.CommonOptions
}

// DefaultLink names each node's NodeInfo.DefaultInterface, whatever that is called there.
const DefaultLink = "*"

// LinkFor is the link of VIPs that name link: "" is the node's, "auto" the subnet's, or DefaultLink.
func (i *NodeInfo) LinkFor(link string) string {
	if link == "" {
		link = i.Interface
	}
	if link == "auto" || link == DefaultLink {
		link = i.DefaultInterface
	}
	return link
}

// OwnAddresses is the node's addresses without VIPs, on the links named, or on all.
func (i *NodeInfo) OwnAddresses(links ...string) []netip.Addr {
	var all []netip.Addr
	for _, l := range i.Links {
		if len(links) > 0 && !slices.Contains(links, l.Name) {
			continue
		}
		for _, p := range l.Prefixes {
			all = append(all, p.Addr())
		}
	}
	return all
}

// HeartbeatLink is HeartbeatInterface, else the link of VIPs.
func (i *NodeInfo) HeartbeatLink() string { return cmp.Or(i.HeartbeatInterface, i.LinkFor("")) }

// HeartbeatAddress is the first address of HeartbeatLink, or zero.
func (i *NodeInfo) HeartbeatAddress() (found netip.Addr) {
	if own := i.OwnAddresses(i.HeartbeatLink()); len(own) > 0 {
		return own[0]
	}
	return found
}

// PutFirst puts the addresses that Kubernetes has for the node first: others may be in networks of no other node.
func (i *NodeInfo) PutFirst(named []netip.Addr) {
	i.Links = slices.Clone(i.Links)
	for k := range i.Links {
		own := slices.Clone(i.Links[k].Prefixes)
		isNamed := func(p netip.Prefix) bool { return !p.IsSingleIP() && slices.Contains(named, p.Addr()) }
		rest := slices.DeleteFunc(slices.Clone(own), isNamed)
		i.Links[k].Prefixes = append(slices.DeleteFunc(own, func(p netip.Prefix) bool { return !isNamed(p) }), rest...)
	}
}

// A Member is a node on which an announcer runs, or ran.
type Member struct {
	Name  string
	Epoch int64 // which life of the announcer this is
	Alive bool  // its node lease is renewed, not fenced, and it is not dead by heartbeats
	Gone  bool  // it is dead by heartbeats, and its kernel is silent on their link
	Heard bool  // it is alive by heartbeats: it is heard, and hears this node
	// APIUnreached: its heartbeats say that it does not reach the API server.
	APIUnreached bool `json:",omitempty"`
	// AnswersUntil: until then its kernel may answer for others' VIPs: it lost its claims, and has ended, hangs, or does
	// not know it; or it may hold on unheard without the API server; or zero.
	AnswersUntil time.Time `json:",omitzero"`
	// Stalled: its agent carries out no new table, or none yet. Others go first.
	Stalled bool
	Stable  bool // it has been alive for so long that others may move VIPs to it
	// Unproven: this process saw no sign of life of it, only a node lease, maybe old. Never this node.
	Unproven bool
	// Rejoining: this node was isolated, and is not any more: it takes no VIP yet, and keeps its own.
	Rejoining bool `json:",omitempty"`
	// HeardAt is when it last sent a heartbeat, renewed its node lease (unless Gone), or its kernel answered for an ended
	// process; zero for this node.
	HeardAt time.Time `json:",omitzero"`
	Info    NodeInfo
}

// WhyNotAlive returns why a node that is not alive is not.
func (m *Member) WhyNotAlive() string {
	switch {
	case m.Gone:
		return "neither its Herald nor its kernel answers on the VIPs' link"
	case m.APIUnreached:
		return "its Herald does not reach the API server, so it gave its VIPs up"
	}
	return "its node lease is not renewed, or fenced: its Herald has ended, hangs, or does not reach the API server"
}

// A Claim is what the table, or another program's Lease, says of a unit, as far as known.
type Claim struct {
	Holder  string // the node, or the identity that another program wrote; "" if free
	Valid   bool   // false: anybody may take it
	Foreign bool   // held by a program that is not Herald
	// how often it went to another node; here so that a Claim has 128 bytes, which a map holds in place
	Transitions    int32
	PreviousHolder string // the node it was handed over from, or ""
	// why Holder has it, as the writing node put it; or ""
	Cause string
	// former nodes, each once, the latest first; Holder too, if it had it before
	FormerHolders []FormerHolder
	AcquiredAt    time.Time `json:",omitzero"` // since when (the clock of the node that wrote it)
}

// A FormerHolder is a node that had a unit.
type FormerHolder struct {
	Node  string
	Until time.Time `json:",omitzero"` // when it ceased to have it (the clock of the node that wrote that)
}

// A Tenure is this node's own right to hold claims.
type Tenure struct {
	Epoch int64
	// Until is when the right ends without a renewal: the renew deadline, from the sending of the last good one.
	Until time.Time `json:",omitzero"`
	// Confirmed is false from a sleep of the process until a renewal: meanwhile nothing is refreshed or added.
	Confirmed bool
	// RenewalLateSince is since when a renewal of the node lease is overdue, or zero.
	RenewalLateSince time.Time `json:",omitzero"`
}

// Holds reports whether claims may be acted on at now.
func (t Tenure) Holds(now time.Time) bool { return now.Before(t.Until) }
