package migrate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// A metalLBPool is the spec of an IPAddressPool (metallb.io/v1beta1).
type metalLBPool struct {
	Addresses         []string   `json:"addresses"`
	AutoAssign        *bool      `json:"autoAssign"`
	AvoidBuggyIPs     bool       `json:"avoidBuggyIPs"` // as Herald does
	ServiceAllocation allocation `json:"serviceAllocation"`
}

// An allocation says which Services an IPAddressPool is for.
type allocation struct {
	Priority           int                    `json:"priority"` // 1 comes before 2; 0 is last
	Namespaces         []string               `json:"namespaces"`
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors"` // or in Namespaces
	ServiceSelectors   []metav1.LabelSelector `json:"serviceSelectors"`   // a Service may be of any
}

// An advertisement is the spec of an L2Advertisement or of a BGPAdvertisement.
type advertisement struct {
	IPAddressPools         []string               `json:"ipAddressPools"`
	IPAddressPoolSelectors []metav1.LabelSelector `json:"ipAddressPoolSelectors"`
	NodeSelectors          []metav1.LabelSelector `json:"nodeSelectors"`
	Interfaces             []string               `json:"interfaces"`
	AggregationLength      *int                   `json:"aggregationLength"`
	AggregationLengthV6    *int                   `json:"aggregationLengthV6"`
}

// advertises reports whether a advertises the pool; without names it does all.
func (a advertisement) advertises(pool object) bool {
	if len(a.IPAddressPools)+len(a.IPAddressPoolSelectors) == 0 {
		return true
	}
	return slices.Contains(a.IPAddressPools, pool.Metadata.Name) ||
		slices.ContainsFunc(a.IPAddressPoolSelectors, func(s metav1.LabelSelector) bool {
			selector, err := metav1.LabelSelectorAsSelector(&s)
			return err == nil && selector.Matches(labels.Set(pool.Metadata.Labels))
		})
}

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
	for i, a := range bgp {
		if l, l6 := a.AggregationLength, a.AggregationLengthV6; l != nil && *l != 32 || l6 != nil && *l6 != 128 {
			m.byHand(bgpObjects[i], "aggregationLength (herald_bgp_aggregates)")
		}
	}
	var priorities []int // the lowest of MetalLB's comes first, the highest of Herald's
	for _, p := range parsed {
		if n := p.ServiceAllocation.Priority; n > 0 {
			priorities = append(priorities, n)
		}
	}
	slices.Sort(priorities)
	priorities = slices.Compact(priorities)
	for i, o := range pools {
		name := m.nameOf(o.Metadata.Name)
		m.setAddresses(o, name, parsed[i].Addresses, true)
		if auto := parsed[i].AutoAssign; auto != nil && !*auto {
			m.set(name, "auto", "false")
		}
		if n, ok := slices.BinarySearch(priorities, parsed[i].ServiceAllocation.Priority); ok {
			m.set(name, "priority", strconv.Itoa(len(priorities)-n))
		}
		m.setAllocation(o, name, parsed[i].ServiceAllocation)
		m.setAdvertisements(o, name, l2, bgp)
	}
	if len(pools) > 0 {
		m.note("MetalLB gives a Service no address that is in none of its pools. So does Herald with svc_addresses=pools.")
	}
	return m.fromMetalLBPeers()
}

// setAllocation sets .namespaces and .services. Where any of several selectors may hold, which Herald can't say, no
// namespace is offered the pool.
func (m *migration) setAllocation(o object, pool string, a allocation) {
	namespaces, services := selectorTexts(a.NamespaceSelectors), selectorTexts(a.ServiceSelectors)
	for i, text := range namespaces {
		namespaces[i] = forNamespaces(text)
	}
	if len(a.Namespaces) > 0 {
		namespaces = append(namespaces, strings.Join(sortedUnique(a.Namespaces), ","))
	}
	namespace, ok := anyOf(namespaces)
	service, ok2 := anyOf(services)
	if !ok || !ok2 {
		m.byHand(o, "serviceAllocation, which is more than one value each of .namespaces and .services. Until you write "+
			"these, Services keep what they have of the pool, and others get none")
		namespace, service = NoNamespace, ""
	}
	m.set(pool, "namespaces", namespace)
	m.set(pool, "services", service)
	if service != "" {
		m.byHand(o, whoMayAsk)
	}
}

// setAdvertisements sets how a pool's VIPs are announced, on which nodes and link.
func (m *migration) setAdvertisements(o object, pool string, l2, bgp []advertisement) {
	other := func(a advertisement) bool { return !a.advertises(o) }
	byARP, byBGP := slices.DeleteFunc(slices.Clone(l2), other), slices.DeleteFunc(slices.Clone(bgp), other)
	var ways, nodes, links []string
	if len(byARP) > 0 {
		ways = append(ways, "arp")
	}
	if len(byBGP) > 0 {
		ways = append(ways, "bgp")
	}
	if len(ways) == 0 {
		m.byHand(o, ".announce, since nothing advertises it: Herald announces in every way that is enabled")
	}
	m.set(pool, "announce", strings.Join(ways, ","))
	for _, a := range slices.Concat(byARP, byBGP) {
		if nodes = append(nodes, selectorTexts(a.NodeSelectors)...); len(a.NodeSelectors) == 0 {
			nodes = append(nodes, "")
		}
	}
	for _, a := range byARP {
		if links = append(links, a.Interfaces...); len(a.Interfaces) == 0 {
			links = append(links, "")
		}
	}
	for _, x := range []struct {
		attribute string
		all       []string
	}{{"nodes", sortedUnique(nodes)}, {"interface", sortedUnique(links)}} {
		one, ok := union(x.all)
		if ok && (one != "" || len(x.all) < 2) {
			m.set(pool, x.attribute, one)
		}
		if len(x.all) > 1 && (!ok || one == "" || len(ways) > 1) {
			m.byHand(o, ".%s: %q; a pool has one value, for all ways to announce", x.attribute, x.all)
		}
	}
}

// selectorTexts returns the texts of selectors; an unwritable one is two.
func selectorTexts(all []metav1.LabelSelector) (texts []string) {
	for _, s := range all {
		text, err := selectorText(s)
		if texts = append(texts, text); err != nil {
			texts[len(texts)-1] = err.Error()
			texts = append(texts, "?")
		}
	}
	return texts
}

// anyOf returns the one text of which any of all has to hold, "" for everything, if one is enough.
func anyOf(all []string) (text string, ok bool) {
	if all = sortedUnique(all); len(all) == 0 || all[0] == "" {
		return "", true
	}
	return all[0], len(all) == 1
}

// union is anyOf, where selectors of the same label's values become one.
func union(all []string) (text string, ok bool) {
	if text, ok = anyOf(all); ok {
		return text, true
	}
	var key string
	var values []string
	for _, one := range all {
		s, err := labels.ParseToRequirements(one)
		if err != nil || len(s) != 1 || s[0].Operator() != selection.Equals && s[0].Operator() != selection.In ||
			key != "" && s[0].Key() != key {
			return text, false
		}
		key, values = s[0].Key(), append(values, s[0].Values().UnsortedList()...)
	}
	return key + " in (" + strings.Join(sortedUnique(values), ",") + ")", true
}

func (m *migration) fromMetalLBPeers() error {
	objects, peers, err := specs[struct {
		MyASN    uint32 `json:"myASN"`
		PeerASN  uint32 `json:"peerASN"`
		Address  string `json:"peerAddress"`
		Port     int    `json:"peerPort"`
		Multihop bool   `json:"ebgpMultiHop"`
	}](m, "BGPPeer")
	if err != nil {
		return err
	}
	var list []string
	as := uint32(0)
	for i, p := range peers {
		a, err := netip.ParseAddr(p.Address)
		one := err == nil && a.Zone() == "" && !a.IsLinkLocalUnicast() && !a.IsUnspecified() && !a.IsMulticast()
		if !one || p.MyASN == 0 || p.PeerASN == 0 || as != 0 && as != p.MyASN {
			m.byHand(objects[i], "all of it (bgp_as, bgp_peers): Herald has one AS, and a peer an AS and its own address, or "+
				"a link")
			continue
		}
		as = p.MyASN
		peer := a.String() + ":" + strconv.FormatUint(uint64(p.PeerASN), 10)
		if a.Is6() {
			peer = "[" + a.String() + "]" + strings.TrimPrefix(peer, a.String())
		}
		if port := cmp.Or(p.Port, 179); port != 179 || p.Multihop {
			peer += fmt.Sprintf("::%v:%d", p.Multihop, port)
		}
		list = append(list, peer)
	}
	if len(list) > 0 {
		m.note("BGP: run Herald with bgp_enable=true, bgp_as=%d and bgp_peers=%s; herald manifest takes them from its "+
			"environment.", as, strings.Join(list, ","))
	}
	return nil
}
