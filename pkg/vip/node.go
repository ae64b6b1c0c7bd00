package vip

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// A Node is what Kubernetes says of a node.
type Node struct {
	Name           string
	UID            string
	Addresses      []netip.Addr   // status.addresses
	PodCIDRs       []netip.Prefix // spec.podCIDRs
	Excluded       string         // why it must not carry a VIP (taint, condition), or ""
	ExclusionLabel string         // the label that keeps VIPs off it as long as there are nodes without, or ""

	Drained bool // an operator wants it to carry no VIP (herald drain)
	// until then it gets back what it gave away when it was drained (herald undrain)
	ReturnUntil  time.Time `json:",omitzero"`
	ShuttingDown bool      // its kubelet says that it is being shut down
	NotReady     bool      // its condition Ready is False or Unknown
	// NetworkNotReady: its kubelet says that the network plugin (CNI) does not work.
	NetworkNotReady bool

	Labels map[string]string // at most 64 of them, the first by name; nil without pools

	// Annotations are those of this process's own node whose prefix Herald was told
	// (annotation), without it. There may be passwords among them.
	Annotations map[string]Secret
}

// A Link is a network interface of a node, as its announcer tells it.
type Link struct {
	Index int    `json:"-"` // of this node's kernel (if_nametoindex(3)); 0 for a link of another node
	Name  string `json:"name"`
	Up    bool   `json:"up"`
	// IPv6 is disabled on it (net.ipv6.conf.LINK.disable_ipv6), or the kernel has none: it takes no address of IPv6
	NoIPv6   bool           `json:"noIPv6,omitempty"`
	MAC      string         `json:"mac,omitempty"`      // its Ethernet address, as 02:00:00:00:00:0a; "" if it has none
	Prefixes []netip.Prefix `json:"prefixes,omitempty"` // its own addresses with their masks, VIPs left out
	// TentativeNetworks is the networks of its own addresses that are in OtherAddresses since they are tentative, or
	// since another host has them (duplicate address detection): the link is in these networks, whether or not the node
	// has an address there to use.
	TentativeNetworks []netip.Prefix `json:"tentativeNetworks,omitempty"`
}

// Networks returns the networks that l is in, each as a network or as an address with its mask.
func (l *Link) Networks() []netip.Prefix {
	if len(l.TentativeNetworks) == 0 {
		return l.Prefixes
	}
	return slices.Concat(l.Prefixes, l.TentativeNetworks)
}

// NodeInfo is what an announcer tells the others about its node, on its node lease.
// It changes only when the node does.
type NodeInfo struct {
	// the link of VIPs unless a Service says otherwise; "auto" = the one whose subnet has the VIP
	Interface string `json:"interface"`
	// vip_interface, else the link of the default route: what "auto" falls back to
	DefaultInterface string `json:"defaultInterface"`
	Links            []Link `json:"links"`              // sorted by name
	Excluded         string `json:"excluded,omitempty"` // why the node itself refuses VIPs, or ""
	Isolated         bool   `json:"isolated,omitempty"` // it reaches too few other nodes on the VIPs' link to take any
	// HeartbeatInterface is DefaultInterface, or else the link of the default route, if the link of VIPs is a loopback,
	// on which no other node is; "" if it is none, or there is no other link.
	HeartbeatInterface string `json:"heartbeatInterface,omitempty"`
	// LivenessOff is why it exchanges no heartbeats, or "".
	LivenessOff string `json:"livenessOff,omitempty"`
	// HeartbeatKeys is the IDs of the keys with which it decrypts heartbeats (Peers.KeyIDs), the
	// newest first; none while LivenessOff.
	HeartbeatKeys []string `json:"heartbeatKeys,omitempty"`
	// Unanswered is addresses of other nodes, on links other than that of heartbeats, for which nobody
	// answers this node, although it hears other hosts on that link (CheckNeighbor); sorted.
	Unanswered []netip.Addr `json:"unanswered,omitempty"`
	// Suspects is the nodes whose Liveness has been Suspect for a while, sorted.
	Suspects []string `json:"suspects,omitempty"`

	ServiceAddresses string `json:"serviceAddresses,omitempty"` // its option svc_addresses

	Process ProcessInfo `json:"process,omitzero"` // the process that works under the node's name

	// OtherAddresses is what other programs have given to the node and is in no network of Links: single
	// addresses (/32, /128), those of links that carry no VIPs, and those that are tentative or that another
	// host has (duplicate address detection). Sorted; at most 256.
	OtherAddresses []netip.Addr `json:"otherAddresses,omitempty"`
	// next hops of its default routes, link-local ones left out; sorted
	Gateways []netip.Addr `json:"gateways,omitempty"`

	// Options is what its plan depends on, for commands that explain it; nil: an earlier version.
	Options *NodeOptions `json:"options,omitempty"`

	BGPSessions []BGPSession `json:"bgpSessions,omitempty"` // its BGP sessions
	// APIServerReady: the node's own API server answers that it is ready, so that the node
	// may carry the VIP of the control plane.
	APIServerReady bool `json:"apiServerReady,omitempty"`

	// Restarts is when (Unix seconds by the node's own clock) its Herald was started again
	// after an end without a hand-over: killed, crashed, or with the power of the node. It is
	// empty again once the Herald has run for a while (docs/why.md, "Restart loops").
	Restarts []int64 `json:"restarts,omitempty"`
	// Table is the number of the table of who owns what that the node has carried out, when it last renewed.
	Table int64 `json:"table,omitempty"`
	// DataPlaneFault is why packets to VIPs would not be forwarded on the node, or "".
	DataPlaneFault string `json:"dataPlaneFault,omitempty"`
	// DataPlaneUnproven: the node's process has not seen it forward packets to Services, and tries to: it has just
	// begun, or that fails.
	DataPlaneUnproven bool `json:"dataPlaneUnproven,omitempty"`
}

// ForwardsToServices reports whether packets to VIPs are forwarded, as far as the node knows.
func (i *NodeInfo) ForwardsToServices() bool { return i.DataPlaneFault == "" && !i.DataPlaneUnproven }

// AnnouncesServices reports whether the node has svc_enable.
func (i *NodeInfo) AnnouncesServices() bool { return i.Options == nil || i.Options.Services }

// NodeOptions is the options of a node on which it depends where VIPs may be. They should be the same on every node
// with svc_enable.
type NodeOptions struct {
	Services     bool   `json:"services,omitempty"` // svc_enable
	ARP          bool   `json:"arp,omitempty"`
	BGP          bool   `json:"bgp,omitempty"`
	RoutingTable int    `json:"routingTable,omitempty"` // vip_routingtableid, with vip_routingtable
	Election     bool   `json:"election,omitempty"`     // svc_election
	Lease        string `json:"lease,omitempty"`        // svc_leasename: of all Services, without Election
	ClassOptions
	Pools string `json:"pools,omitempty"` // namespace/name of the ConfigMap of pools, if it gives addresses

	ControlPlane      []netip.Addr `json:"controlPlane,omitempty"`      // address, with cp_enable
	ControlPlaneLease string       `json:"controlPlaneLease,omitempty"` // namespace/name of vip_leasename, with cp_enable
}

// ClassOptions say of which classes (spec.loadBalancerClass) a Herald announces Services.
type ClassOptions struct {
	Class       string `json:"class,omitempty"`       // lb_class_name; may be empty
	ClassOnly   bool   `json:"classOnly,omitempty"`   // lb_class_only
	ClassStrict bool   `json:"classStrict,omitempty"` // lb_class_legacy_handling is false
}

// Serve reports whether a Herald with these options announces Services of the class of s.
func (o ClassOptions) Serve(s *Service) bool {
	switch {
	case s.HasClass:
		return s.Class == o.Class
	case o.ClassStrict:
		return o.Class == ""
	}
	return !o.ClassOnly
}

// SameClasses reports whether both nodes announce Services of the same classes.
func (i *NodeInfo) SameClasses(o *NodeInfo) bool {
	if i.Options == nil || o.Options == nil {
		return i.Options == o.Options
	}
	return i.Options.ClassOptions == o.Options.ClassOptions
}

// DefaultLink stands for NodeInfo.DefaultInterface of each node, where a link is named: nodes may have other names
// for it. No link is called that.
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

// OwnAddresses is the node's own addresses, without VIPs, on the links named, or on all.
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

// HeartbeatLink is the link of heartbeats and neighbor checks: HeartbeatInterface, else that of VIPs.
func (i *NodeInfo) HeartbeatLink() string { return cmp.Or(i.HeartbeatInterface, i.LinkFor("")) }

// HeartbeatAddress is where others send heartbeats: the first address of HeartbeatLink, IPv4 first; or zero.
func (i *NodeInfo) HeartbeatAddress() (found netip.Addr) {
	for _, a := range i.OwnAddresses(i.HeartbeatLink()) {
		if !found.IsValid() || a.Is4() && !found.Is4() {
			found = a
		}
	}
	return found
}

// A Member is a node on which an announcer runs, or ran.
type Member struct {
	Name  string
	Epoch int64 // which life of the announcer this is
	Alive bool  // its node lease is renewed, not fenced, and it is not dead by heartbeats
	Gone  bool  // it is dead by heartbeats, and so is its kernel
	// APIUnreached: its heartbeats arrive, and say that it does not reach the API server.
	APIUnreached bool `json:",omitempty"`
	// AnswersUntil: its kernel may answer for VIPs that are not its own by what this node knows, as far as is known now
	// until then: it has lost its claims a short while ago, and its process has ended, hangs, or does not know it yet;
	// or it may hold on without the API server, and is not heard. Zero: it does not.
	AnswersUntil time.Time `json:",omitzero"`
	// Stalled: its agent carries out no new table. Others then go ahead of it.
	Stalled bool
	Stable  bool // it has been alive for so long that others may move VIPs to it
	// Unproven: this process has seen no sign of life of it yet, only a node lease that may be an old one. For this node
	// itself it is false.
	Unproven bool
	// Rejoining: it is this node, isolated, and reaches enough others again: it takes no VIP yet, and keeps those that
	// it has.
	Rejoining bool `json:",omitempty"`
	// HeardAt is when this node last received a heartbeat of it, or saw it renew its node lease (unless it is Gone), or
	// found that its process has ended and its kernel answers; zero for this node.
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

// A Claim is what the table says of a unit, or its Lease of another program, as far as this node may judge it.
type Claim struct {
	Holder  string // the node, or the identity that another program wrote; "" if free
	Valid   bool   // false: anybody may take it
	Foreign bool   // held by a program that is not Herald
	// how often it went to another node; beside the others so that a Claim has 128 bytes, which a map holds in place
	Transitions    int32
	PreviousHolder string // the node it was handed over from, or ""
	// why Holder has it, in words that the node which wrote it chose; "" if that is not known
	Cause string
	// the nodes that had it, each once, the latest first; Holder too, if it had it before another
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
	// Until is the time at which the right ends if the node lease isn't renewed before
	// (renew deadline, counted from the moment the last good renewal was sent).
	Until time.Time `json:",omitzero"`
	// Confirmed is false after the process was asleep, until a renewal succeeds.
	// An unconfirmed node neither refreshes nor adds anything.
	Confirmed bool
	// RenewalLateSince, if not zero, is since when a renewal of the node lease is overdue.
	RenewalLateSince time.Time `json:",omitzero"`
}

// Holds reports whether claims may be acted on at now.
func (t Tenure) Holds(now time.Time) bool { return now.Before(t.Until) }
