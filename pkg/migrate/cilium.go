package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Labels that a Service has in a selector of Cilium only.
const (
	ciliumNamespace = "io.kubernetes.service.namespace"
	ciliumName      = "io.kubernetes.service.name"
)

// A ciliumPool is the spec of a CiliumLoadBalancerIPPool (cilium.io/v2 and v2alpha1).
type ciliumPool struct {
	Blocks            []ciliumBlock `json:"blocks"`
	CIDRs             []ciliumBlock `json:"cidrs"` // older
	ServiceSelector   *selector     `json:"serviceSelector"`
	AllowFirstLastIPs string        `json:"allowFirstLastIPs"` // Yes, which is the default, or No
	Disabled          bool          `json:"disabled"`
}

type ciliumBlock struct {
	CIDR  string `json:"cidr"`
	Start string `json:"start"`
	Stop  string `json:"stop"` // Start, if it is not set
}

// fromCilium reads the pools of Cilium's LB IPAM, and its policies of announcements.
func (m *migration) fromCilium() error {
	objects, pools, err := specs[ciliumPool](m, "CiliumLoadBalancerIPPool")
	if err != nil {
		return err
	}
	for i, o := range objects {
		m.addCiliumPool(o.Metadata.Name, pools[i])
	}
	if err := m.addCiliumPolicies(); err != nil {
		return err
	}
	for _, kind := range ciliumBGPKinds {
		m.read[kind] = true
		for _, o := range m.objects {
			if o.Kind == kind {
				m.note("%s %s is not read: give Herald its peers by bgp_enable, bgp_as and bgp_peers (bgp.md).", kind,
					o.Metadata.Name)
			}
		}
	}
	m.note("Cilium's L2 announcements and BGP control plane must not announce what Herald does: remove the " +
		"CiliumL2AnnouncementPolicy, or the advertisements of LoadBalancerIP, when Herald takes over, and the pools " +
		"last: Cilium takes addresses of a pool that is removed off their Services.")
	return nil
}

// ciliumBGPKinds are the kinds of objects that give Cilium BGP peers.
var ciliumBGPKinds = []string{"CiliumBGPClusterConfig", "CiliumBGPPeeringPolicy"}

// addCiliumPool adds a pool.
func (m *migration) addCiliumPool(given string, p ciliumPool) {
	name := m.nameOf(given)
	var texts []string
	for _, b := range slices.Concat(p.Blocks, p.CIDRs) {
		text := b.CIDR
		if text == "" {
			stop := b.Stop
			if stop == "" {
				stop = b.Start
			}
			text = b.Start + "-" + stop
		}
		s, text, err := parseSpan(text)
		if err != nil || s.first.IsUnspecified() {
			m.note("Pool %s: the addresses %q can't be read (%v), and are left out.", given, b.CIDR+b.Start, err)
			continue
		}
		m.ranges[name] = append(m.ranges[name], s) // what Services have may be at the ends
		if p.AllowFirstLastIPs == "No" && b.CIDR != "" && s.first != s.last && s.first.Next() != s.last {
			text = s.first.Next().String() + "-" + s.last.Prev().String()
		}
		texts = append(texts, text)
	}
	m.Data["pool-"+name] = strings.Join(texts, ",")
	if p.Disabled {
		m.set(name, "auto", "false")
		m.note("Pool %s is disabled: with Herald it gives addresses on request only (.auto).", given)
	}
	if p.ServiceSelector != nil {
		m.setCiliumSelector(given, name, *p.ServiceSelector)
	}
}

// setCiliumSelector sets .services and .namespaces.
func (m *migration) setCiliumSelector(given, name string, s selector) {
	var services, namespaces selector
	byNamespaceOnly := true
	for _, r := range s.requirements() {
		isNamespace := r.Key == ciliumNamespace && (r.Operator == "In" || r.Operator == "NotIn")
		byNamespaceOnly = byNamespaceOnly && isNamespace
		switch {
		case isNamespace:
			r.Key = namespaceLabel
			namespaces.MatchExpressions = append(namespaces.MatchExpressions, r)
		case r.Key == ciliumNamespace, r.Key == ciliumName:
			m.set(name, "auto", "false")
			m.note("Pool %s: Herald's pools can't choose by %s, so the pool gives addresses on request only (.auto). Have "+
				"the Services ask for it (heraldvip.io/pool: %s), or give them a label and write it to pool-%s.services.", given,
				r, name, name)
		default:
			services.MatchExpressions = append(services.MatchExpressions, r)
		}
	}
	m.set(name, "services", services.String())
	if all := namespaces.MatchExpressions; len(all) > 0 {
		text := namespaces.String()
		if len(all) == 1 && all[0].Operator == "In" {
			text = strings.Join(sortedUnique(all[0].Values), ",")
		}
		m.set(name, "namespaces", text)
	}
	if !byNamespaceOnly {
		m.note("Pool %s: Cilium refuses its addresses also to Services that ask for them, if its serviceSelector does "+
			"not select them."+whoMayAsk, given)
	}
}

// literalPattern matches a regular expression that stands for one interface.
var literalPattern = regexp.MustCompile(`^\^?([-\w.@]+)\$?$`)

// addCiliumPolicies carries a single CiliumL2AnnouncementPolicy over to all pools, if it is for all Services; those
// that announce no addresses of load balancers do not count. Where Cilium's BGP control plane is configured, too, the
// pools are announced in every way that is enabled.
func (m *migration) addCiliumPolicies() error {
	objects, policies, err := specs[struct {
		ServiceSelector *selector `json:"serviceSelector"`
		NodeSelector    *selector `json:"nodeSelector"`
		Interfaces      []string  `json:"interfaces"`
		LoadBalancerIPs bool      `json:"loadBalancerIPs"`
	}](m, "CiliumL2AnnouncementPolicy")
	if err != nil {
		return err
	}
	for i := len(policies) - 1; i >= 0; i-- {
		if !policies[i].LoadBalancerIPs {
			m.note("CiliumL2AnnouncementPolicy %s is not carried over: it has no loadBalancerIPs, and Herald announces no "+
				"others.", objects[i].Metadata.Name)
			objects, policies = slices.Delete(objects, i, i+1), slices.Delete(policies, i, i+1)
		}
	}
	if len(policies) == 0 {
		return nil
	}
	byBGP := slices.ContainsFunc(m.objects, func(o object) bool { return slices.Contains(ciliumBGPKinds, o.Kind) })
	if byBGP {
		m.note("Cilium announces by L2 announcements and has a BGP control plane, too: the pools have no .announce, so " +
			"Herald announces their addresses in every way that is enabled. Set it where that is too much (pool-....announce).")
	}
	p := policies[0]
	if len(policies) > 1 || p.ServiceSelector != nil && !p.ServiceSelector.empty() {
		for _, o := range objects {
			m.note("CiliumL2AnnouncementPolicy %s is not carried over: with Herald nodes and links are chosen by pool "+
				"(pool-....nodes, .interface).", o.Metadata.Name)
		}
		return nil
	}
	for _, name := range m.names {
		if !byBGP {
			m.set(name, "announce", "arp")
		}
		if p.NodeSelector != nil {
			m.set(name, "nodes", p.NodeSelector.String())
		}
		if len(p.Interfaces) == 1 && literalPattern.MatchString(p.Interfaces[0]) && !strings.Contains(p.Interfaces[0], ".") {
			m.set(name, "interface", literalPattern.FindStringSubmatch(p.Interfaces[0])[1])
		}
	}
	if len(p.Interfaces) > 1 || len(p.Interfaces) == 1 && m.Data["pool-"+m.names[firstKey(m.names)]+".interface"] == "" {
		m.note("CiliumL2AnnouncementPolicy %s: the interfaces %s are regular expressions. A VIP of Herald is on one "+
			"link: vip_servicesinterface, or .interface of a pool, which may be auto.", objects[0].Metadata.Name,
			strings.Join(p.Interfaces, ", "))
	}
	return nil
}

// firstKey returns the least key.
func firstKey(m map[string]string) (first string) {
	for k := range m {
		if first == "" || k < first {
			first = k
		}
	}
	return first
}

// isProviderKey reports whether a key of a ConfigMap has addresses.
func isProviderKey(k string) bool {
	return strings.HasPrefix(k, "cidr-") || strings.HasPrefix(k, "range-") || strings.HasPrefix(k, "pool-")
}

// fromKubeVIP takes over the ConfigMap of kube-vip's cloud provider as it is: Herald reads the same keys.
func (m *migration) fromKubeVIP() error {
	for _, o := range m.objects {
		if o.Kind != "ConfigMap" {
			continue
		}
		var data map[string]string
		if err := json.Unmarshal(o.Data, &data); len(o.Data) > 0 && err != nil {
			return fmt.Errorf("ConfigMap %s can't be read: %w", o.Metadata.Name, err)
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(data)), isProviderKey) {
			continue
		}
		for k, v := range data {
			m.Data[k] = v
			if name, own := strings.CutPrefix(k, "pool-"); strings.HasPrefix(k, "cidr-") || strings.HasPrefix(k, "range-") ||
				own && !strings.Contains(name, ".") {
				for item := range strings.SplitSeq(v, ",") {
					if s, _, err := parseSpan(item); err == nil {
						m.ranges[k] = append(m.ranges[k], s)
					}
				}
			}
		}
	}
	m.note("Scale kube-vip's cloud provider to zero, and wait for 15 s: while it renews its Lease, Herald gives no " +
		"addresses.")
	return nil
}
