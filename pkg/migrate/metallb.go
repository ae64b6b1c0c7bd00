package migrate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// A metalLBPool is the spec of an IPAddressPool (metallb.io/v1beta1).
type metalLBPool struct {
	Addresses         []string `json:"addresses"`
	AutoAssign        *bool    `json:"autoAssign"`
	ServiceAllocation *struct {
		Priority           int        `json:"priority"` // 1 comes before 2; 0 is last
		Namespaces         []string   `json:"namespaces"`
		NamespaceSelectors []selector `json:"namespaceSelectors"` // a namespace may be of any of these, or in Namespaces
		ServiceSelectors   []selector `json:"serviceSelectors"`   // a Service may be of any
	} `json:"serviceAllocation"`
}

// An advertisement is the spec of an L2Advertisement or of a BGPAdvertisement.
type advertisement struct {
	IPAddressPools         []string   `json:"ipAddressPools"`
	IPAddressPoolSelectors []selector `json:"ipAddressPoolSelectors"`
	NodeSelectors          []selector `json:"nodeSelectors"`
	ServiceSelectors       []selector `json:"serviceSelectors"`
	Interfaces             []string   `json:"interfaces"`
	Peers                  []string   `json:"peers"`
	Communities            []string   `json:"communities"`
	LocalPref              uint32     `json:"localPref"`
	AggregationLength      *int       `json:"aggregationLength"`
	AggregationLengthV6    *int       `json:"aggregationLengthV6"`
}

// advertises reports whether a advertises the pool: one that names no pools does all.
func (a advertisement) advertises(pool object) bool {
	if len(a.IPAddressPools)+len(a.IPAddressPoolSelectors) == 0 {
		return true
	}
	return slices.Contains(a.IPAddressPools, pool.Metadata.Name) ||
		slices.ContainsFunc(a.IPAddressPoolSelectors, func(s selector) bool { return s.matches(pool.Metadata.Labels) })
}

// fromMetalLB reads MetalLB's custom resources.
func (m *migration) fromMetalLB() error {
	pools, parsed, err := specs[metalLBPool](m, "IPAddressPool")
	if err != nil {
		return err
	}
	_, l2, err := specs[advertisement](m, "L2Advertisement")
	if err != nil {
		return err
	}
	bgpObjects, bgp, err := specs[advertisement](m, "BGPAdvertisement")
	if err != nil {
		return err
	}
	priorities := priorities(parsed)
	for i, o := range pools {
		m.addMetalLBPool(o, parsed[i], priorities)
		for _, name := range m.made[o.Metadata.Name] {
			m.setAdvertisements(o, name, l2, bgp)
		}
	}
	if len(pools) > 0 {
		m.note("MetalLB gives a Service no address that is in none of its pools. So does Herald with svc_addresses=pools.")
	}
	for i, a := range bgp {
		m.noteBGPAdvertisement(bgpObjects[i].Metadata.Name, a)
	}
	return m.noteMetalLBPeers()
}

// priorities returns Herald's priority, the highest of which comes first, for each of MetalLB's, of which the lowest
// does.
func priorities(pools []metalLBPool) map[int]int {
	var all []int
	for _, p := range pools {
		if p.ServiceAllocation != nil && p.ServiceAllocation.Priority > 0 {
			all = append(all, p.ServiceAllocation.Priority)
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	out := make(map[int]int, len(all))
	for i, p := range all {
		out[p] = len(all) - i
	}
	return out
}

// addMetalLBPool adds a pool, or several with the same addresses where only one of several selectors has to hold.
func (m *migration) addMetalLBPool(o object, p metalLBPool, priorities map[int]int) {
	name := m.nameOf(o.Metadata.Name)
	var texts []string
	for _, a := range p.Addresses {
		s, text, err := parseSpan(a)
		if err != nil || s.first.IsUnspecified() {
			m.note("Pool %s: the addresses %q can't be read (%v), and are left out.", o.Metadata.Name, a, err)
			continue
		}
		m.ranges[name] = append(m.ranges[name], s)
		texts = append(texts, text)
	}
	namespaces, services, priority := []string{""}, []string{""}, 0
	onRequest := p.AutoAssign != nil && !*p.AutoAssign
	if a := p.ServiceAllocation; a != nil {
		priority = priorities[a.Priority]
		namespaces, services = namespaceAlternatives(a.Namespaces, a.NamespaceSelectors),
			serviceAlternatives(a.ServiceSelectors)
		switch n := len(namespaces) * len(services); {
		case n > maxVariants:
			m.note("Pool %s: of its serviceAllocation %d alternatives have to be told apart, and one pool becomes %d of "+
				"Herald at most. So it is offered to no namespace (.namespaces): Services keep what they have of it, and "+
				"others get none until you write .namespaces and .services by hand.", o.Metadata.Name, n, maxVariants)
			namespaces, services = []string{NoNamespace}, []string{""}
		case services[0] != "":
			m.note("Pool %s: MetalLB refuses its addresses also to Services that ask for them, if its serviceSelectors "+
				"don't select them."+whoMayAsk, o.Metadata.Name)
		}
	}
	n := 0
	for _, ns := range namespaces {
		for _, svc := range services {
			pool := name
			if n++; n > 1 {
				suffix := fmt.Sprintf("-%d", n)
				pool = m.unused(cut(name, maxNewName-len(suffix)) + suffix)
				m.names[o.Metadata.Name+" "+pool] = pool // so that no other is called that
			}
			m.made[o.Metadata.Name] = append(m.made[o.Metadata.Name], pool)
			m.Data["pool-"+pool] = strings.Join(texts, ",")
			m.set(pool, "namespaces", ns)
			m.set(pool, "services", svc)
			if onRequest {
				m.set(pool, "auto", "false")
			}
			if priority != 0 {
				m.set(pool, "priority", strconv.Itoa(priority))
			}
		}
	}
	if n > 1 {
		m.note("Pool %s is %d pools with the same addresses: of its selectors any one has to hold, and a pool of Herald "+
			"has one of each kind. Services that ask for %s by name get an address only where the first is offered.",
			o.Metadata.Name, n, name)
	}
}

// whoMayAsk says what selectors of Services mean with Herald.
const whoMayAsk = " Herald does not: .services says who gets one without asking, and who may ask is limited by " +
	"namespace only (.namespaces)."

// maxVariants is how many pools one may become.
const maxVariants = 16

// NoNamespace is a value of .namespaces that selects none.
const NoNamespace = namespaceLabel + "="

// namespaceAlternatives returns the values of .namespaces of which any has to hold; "" is all.
func namespaceAlternatives(names []string, selectors []selector) (all []string) {
	if len(names) > 0 {
		all = append(all, strings.Join(sortedUnique(names), ","))
	}
	for _, s := range selectors {
		if s.empty() {
			return []string{""}
		}
		all = append(all, s.namespacesText())
	}
	if len(all) == 0 {
		all = []string{""}
	}
	return all
}

// serviceAlternatives is namespaceAlternatives for .services.
func serviceAlternatives(selectors []selector) (all []string) {
	for _, s := range selectors {
		if s.empty() {
			return []string{""}
		}
		all = append(all, s.String())
	}
	if len(all) == 0 {
		all = []string{""}
	}
	return all
}

// setAdvertisements sets how the VIPs of a pool are announced, on which nodes, and on which link.
func (m *migration) setAdvertisements(o object, pool string, l2, bgp []advertisement) {
	other := func(a advertisement) bool { return !a.advertises(o) }
	byARP, byBGP := slices.DeleteFunc(slices.Clone(l2), other), slices.DeleteFunc(slices.Clone(bgp), other)
	switch {
	case len(byARP) > 0 && len(byBGP) > 0:
		m.set(pool, "announce", "arp,bgp")
	case len(byARP) > 0:
		m.set(pool, "announce", "arp")
	case len(byBGP) > 0:
		m.set(pool, "announce", "bgp")
	default:
		m.note("Pool %s: no L2Advertisement or BGPAdvertisement advertises it. Herald announces its addresses in every "+
			"way that is enabled.", o.Metadata.Name)
	}
	nodes := nodeSelectors(slices.Concat(byARP, byBGP))
	everywhere := false
	for _, a := range slices.Concat(byARP, byBGP) {
		everywhere = everywhere || len(a.NodeSelectors) == 0 || slices.ContainsFunc(a.NodeSelectors, selector.empty)
		if len(a.ServiceSelectors) > 0 {
			m.note("Pool %s: an advertisement has serviceSelectors; Herald announces all Services of the pool alike, unless "+
				"they say otherwise (heraldvip.io/announce).", o.Metadata.Name)
		}
	}
	if all, ok := union(nodes); !everywhere && ok {
		m.set(pool, "nodes", all.String())
		arp, isARP := union(nodeSelectors(byARP))
		if bgp, isBGP := union(nodeSelectors(byBGP)); isARP && isBGP && arp.String() != bgp.String() {
			m.note("Pool %s: the nodes of %q are to announce it by ARP, those of %q by BGP. Herald's pools choose nodes "+
				"once, for ARP and BGP: any of them may carry its VIPs, unless you set pool-%s.nodes.", o.Metadata.Name, arp, bgp,
				pool)
		}
	} else if everywhere && len(nodes) > 0 {
		m.note("Pool %s: one advertisement is for the nodes of %s, another for all. Herald's pools choose nodes once, "+
			"for ARP and BGP: all may carry its VIPs, unless you set pool-%s.nodes.", o.Metadata.Name, texts(nodes), pool)
	} else if len(nodes) > 0 {
		m.note("Pool %s: its VIPs may be on nodes of any of %s, which one selector can't say. Give these nodes a label "+
			"of their own, and write it to pool-%s.nodes; until then all nodes may carry them.", o.Metadata.Name, texts(nodes),
			pool)
	}
	var links []string
	for _, a := range byARP {
		links = append(links, a.Interfaces...)
	}
	switch links = sortedUnique(links); {
	case len(links) == 1 && !slices.ContainsFunc(byARP, func(a advertisement) bool { return len(a.Interfaces) == 0 }):
		m.set(pool, "interface", links[0])
	case len(links) > 0:
		m.note("Pool %s is announced on several links (%s), or on all by another L2Advertisement. A VIP of Herald is on "+
			"one: vip_servicesinterface, or pool-%s.interface, which may be auto.", o.Metadata.Name, strings.Join(links, ", "),
			pool)
	}
}

// nodeSelectors returns those of all the advertisements.
func nodeSelectors(all []advertisement) (nodes []selector) {
	for _, a := range all {
		nodes = append(nodes, a.NodeSelectors...)
	}
	return nodes
}

// texts is selectors for a message.
func texts(all []selector) string {
	var out []string
	for _, s := range all {
		out = append(out, `"`+s.String()+`"`)
	}
	return strings.Join(out, ", ")
}

// noteBGPAdvertisement adds notes about what pools have no attributes for.
func (m *migration) noteBGPAdvertisement(name string, a advertisement) {
	var parts []string
	if a.LocalPref != 0 {
		parts = append(parts, fmt.Sprintf("herald_bgp_localpref=%d", a.LocalPref))
	}
	if len(a.Communities) > 0 {
		text := strings.Join(m.communities(a.Communities), ",")
		if _, _, err := vip.ParseCommunities(text); err != nil {
			parts = append(parts, fmt.Sprintf("communities %q, which have to be mended (%v)", text, err))
		} else {
			parts = append(parts, "herald_bgp_communities="+text)
		}
	}
	if len(a.Peers) > 0 {
		parts = append(parts, "peers "+strings.Join(a.Peers, ", "))
	}
	if len(parts) > 0 {
		m.note("BGPAdvertisement %s: %s. These are for all routes; for some Services there are annotations "+
			"(heraldvip.io/bgp-...).", name, strings.Join(parts, "; "))
	}
	if length, length6 := a.AggregationLength, a.AggregationLengthV6; length != nil && *length != 32 || length6 != nil &&
		*length6 != 128 {
		m.note("BGPAdvertisement %s aggregates routes. Herald advertises the prefixes of herald_bgp_aggregates beside "+
			"the host routes.", name)
	}
}

// communities puts in the values of names that Community objects define.
func (m *migration) communities(names []string) (out []string) {
	_, defined, _ := specs[struct {
		Communities []struct {
			Name  string `json:"name"`
			Value string `json:"value"`
		} `json:"communities"`
	}](m, "Community")
	for _, n := range names {
		for _, d := range defined {
			for _, c := range d.Communities {
				if c.Name == n {
					n = c.Value
				}
			}
		}
		out = append(out, strings.TrimPrefix(n, "large:")) // Herald tells large ones by their three numbers
	}
	return out
}

// noteMetalLBPeers adds a note with the options for MetalLB's BGP peers.
func (m *migration) noteMetalLBPeers() error {
	objects, peers, err := specs[struct {
		MyASN        uint32     `json:"myASN"`
		PeerASN      uint32     `json:"peerASN"`
		DynamicASN   string     `json:"dynamicASN"`
		Address      string     `json:"peerAddress"`
		Interface    string     `json:"interface"`
		Port         int        `json:"peerPort"`
		Multihop     bool       `json:"ebgpMultiHop"`
		BFD          string     `json:"bfdProfile"`
		Password     string     `json:"password"`
		NodeSelector []selector `json:"nodeSelectors"`
		Secret       struct {
			Name string `json:"name"`
		} `json:"passwordSecret"`
	}](m, "BGPPeer")
	if err != nil || len(peers) == 0 {
		return err
	}
	var list []string
	as := ""
	for i, p := range peers {
		name := objects[i].Metadata.Name
		address := p.Address
		if strings.Contains(address, ":") {
			address = "[" + address + "]"
		}
		if address == "" && p.Interface != "" {
			address = "unnumbered:" + p.Interface
		}
		remote, ok := peerAS(p.MyASN, p.PeerASN, p.DynamicASN, p.Address != "")
		if why := whyNoPeer(p.Address, p.Interface, p.MyASN); why != "" || !ok {
			m.note("BGPPeer %s: write it to bgp_peers by hand: %s.", name, cmp.Or(why, "a peer with an address needs its "+
				"AS, which dynamicASN leaves to the router"))
			continue
		}
		peer := address + ":" + remote
		port := cmp.Or(p.Port, 179)
		switch {
		case port != 179:
			peer += fmt.Sprintf("::%v:%d", p.Multihop, port)
		case p.Multihop:
			peer += "::true"
		}
		list = append(list, strings.TrimSuffix(peer, ":"))
		if own := strconv.FormatUint(uint64(p.MyASN), 10); as == "" {
			as = own
		} else if as != own {
			m.note("BGPPeer %s has another AS of its own (%s) than others; Herald has one (bgp_as).", name, own)
		}
		if p.Password != "" || p.Secret.Name != "" {
			m.note("BGPPeer %s has a password, which is not printed here: it comes after the AS in bgp_peers.", name)
		}
		m.notePeerFields(objects[i])
		if p.BFD != "" || len(p.NodeSelector) > 0 {
			m.note("BGPPeer %s has a bfdProfile or nodeSelectors, which are not imported (bgp.md): BFD is the last field of "+
				"a peer in bgp_peers, and each node may have peers of its own by annotations of Nodes.", name)
		}
	}
	if len(list) == 0 {
		return nil
	}
	m.note("BGP: run Herald with bgp_enable=true, bgp_as=%s and bgp_peers=%s.", as, strings.Join(list, ","))
	return nil
}

// peerAS returns the AS of a peer in bgp_peers: "" for one without an address whose AS the router tells. ok is false
// if it must be known and is not.
func peerAS(own, peer uint32, dynamic string, addressed bool) (text string, ok bool) {
	switch {
	case dynamic == "internal":
		peer = own
	case dynamic != "" && !addressed:
		return "", true
	}
	return strconv.FormatUint(uint64(peer), 10), peer != 0
}

// whyNoPeer returns why bgp_peers can't have a peer of this address, or on this link, or bgp_as this AS; "" if they
// can.
func whyNoPeer(address, link string, own uint32) string {
	a, err := netip.ParseAddr(address)
	switch {
	case own == 0:
		return "it has no myASN"
	case address == "" && (link == "" || len(link) > 15 || strings.ContainsAny(link, "/: ,\t\n")):
		return "it has neither an address nor the name of a link"
	case address == "":
		return ""
	case err != nil || a.Zone() != "":
		return fmt.Sprintf("%q is no address", address)
	case a.IsLinkLocalUnicast() || a.IsUnspecified() || a.IsMulticast():
		return fmt.Sprintf("%s is not the address of one router; where there is only a link-local one use "+
			"unnumbered:<interface>", a)
	}
	return ""
}

// importedPeerFields are the fields of a BGPPeer that noteMetalLBPeers reads. The others are named in a note.
var importedPeerFields = strings.Fields("myASN peerASN dynamicASN peerAddress interface peerPort ebgpMultiHop " +
	"bfdProfile password passwordSecret nodeSelectors")

// peerOptions are the options of Herald in the place of fields of a BGPPeer. They are for all peers.
var peerOptions = map[string]string{
	"holdTime": "bgp_hold_time", "keepaliveTime": "bgp_keepalive_interval", "routerID": "bgp_routerid",
	"sourceAddress":         "bgp_sourceip",
	"enableGracefulRestart": "herald_bgp_restart_time",
}

// maxFieldText is how many bytes of the value of a field are in a note.
const maxFieldText = 80

// notePeerFields adds a note about the fields of a BGPPeer that are set and not imported.
func (m *migration) notePeerFields(o object) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(o.Spec, &fields); err != nil {
		return // no spec
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		text := strings.Trim(string(fields[name]), `"`)
		if slices.Contains(importedPeerFields, name) ||
			slices.Contains([]string{"", "null", "false", "0", "{}", "[]"}, text) {
			continue
		}
		if len(text) > maxFieldText {
			text = strings.ToValidUTF8(text[:maxFieldText], "") + "..."
		}
		if option := peerOptions[name]; option != "" {
			text += " (" + option + " for all peers)"
		}
		parts = append(parts, name+" "+text)
	}
	if len(parts) > 0 {
		m.note("BGPPeer %s: not imported: %s.", o.Metadata.Name, strings.Join(parts, ", "))
	}
}
