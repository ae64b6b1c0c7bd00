package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/heraldvip/herald/pkg/vip"
)

// ciliumLabels begins labels of Services in Cilium's selectors only: namespace and name.
const ciliumLabels = "io.kubernetes.service."

// A ciliumPool is the spec of a CiliumLoadBalancerIPPool (cilium.io/v2 and v2alpha1).
type ciliumPool struct {
	Blocks            []ciliumBlock        `json:"blocks"`
	CIDRs             []ciliumBlock        `json:"cidrs"` // older
	ServiceSelector   metav1.LabelSelector `json:"serviceSelector"`
	AllowFirstLastIPs string               `json:"allowFirstLastIPs"` // Yes, which is the default, or No
	Disabled          bool                 `json:"disabled"`
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
		name, p := m.nameOf(o.Metadata.Name), pools[i]
		var texts []string
		for _, b := range slices.Concat(p.Blocks, p.CIDRs) {
			text := b.CIDR + b.Start
			if b.Stop != "" {
				text += "-" + b.Stop
			}
			texts = append(texts, text)
		}
		m.setAddresses(o, name, texts, p.AllowFirstLastIPs != "No")
		if p.Disabled {
			m.set(name, "auto", "false")
			m.byHand(o, "disabled: with Herald it gives addresses on request only (.auto)")
		}
		m.setCiliumSelector(o, name, p.ServiceSelector)
	}
	if err := m.setCiliumPolicies(); err != nil {
		return err
	}
	m.note("Cilium's L2 announcements and BGP control plane must not announce what Herald does: remove the " +
		"CiliumL2AnnouncementPolicy, or the advertisements of LoadBalancerIP, when Herald takes over. Remove the pools " +
		"last: Cilium takes addresses of a pool that is removed off their Services.")
	return nil
}

func (m *migration) setCiliumSelector(o object, pool string, s metav1.LabelSelector) {
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		m.set(pool, "namespaces", NoNamespace)
		m.byHand(o, "serviceSelector (%v); until then it is offered to no namespace (.namespaces)", err)
		return
	}
	var services, namespaces []string
	names := "" // of the namespaces, if one requirement lists them
	all, _ := selector.Requirements()
	for _, r := range all {
		in := r.Operator() == selection.In || r.Operator() == selection.Equals
		switch {
		case r.Key() == ciliumLabels+"namespace" && (in || r.Operator() == selection.NotIn):
			values := sortedUnique(r.ValuesUnsorted())
			of, _ := labels.NewRequirement(namespaceLabel, r.Operator(), values) // valid, as r is
			if namespaces = append(namespaces, of.String()); in {
				names = strings.Join(values, ",")
			}
		case strings.HasPrefix(r.Key(), ciliumLabels):
			m.set(pool, "auto", "false")
			m.byHand(o, "%s: the pool gives addresses on request only (.auto). Have the Services ask for it "+
				"(heraldvip.io/pool: %s), or give them a label and write it to .services", r.String(), pool)
		default:
			services = append(services, r.String())
		}
	}
	m.set(pool, "services", strings.Join(services, ","))
	if len(namespaces) == 1 && names != "" {
		namespaces[0] = names
	}
	m.set(pool, "namespaces", strings.Join(namespaces, ","))
	if len(namespaces) < len(all) {
		m.byHand(o, whoMayAsk)
	}
}

// literalPattern matches a regular expression that stands for one interface.
var literalPattern = regexp.MustCompile(`^\^?([-\w@]+)\$?$`)

// setCiliumPolicies carries one CiliumL2AnnouncementPolicy, for all Services, over to all pools; those that announce no
// load balancers don't count. With Cilium's BGP control plane, pools are announced in every enabled way.
func (m *migration) setCiliumPolicies() error {
	objects, policies, err := specs[struct {
		ServiceSelector metav1.LabelSelector `json:"serviceSelector"`
		NodeSelector    metav1.LabelSelector `json:"nodeSelector"`
		Interfaces      []string             `json:"interfaces"`
		ExternalIPs     bool                 `json:"externalIPs"`
		LoadBalancerIPs bool                 `json:"loadBalancerIPs"`
	}](m, "CiliumL2AnnouncementPolicy")
	if err != nil {
		return err
	}
	byBGP := slices.ContainsFunc(m.objects, func(o object) bool { return strings.HasPrefix(o.Kind, "CiliumBGP") })
	var counts []int
	for i, p := range policies {
		if p.LoadBalancerIPs {
			counts = append(counts, i)
		}
	}
	for _, i := range counts {
		o, p := objects[i], policies[i]
		services, err := selectorText(p.ServiceSelector)
		nodes, err2 := selectorText(p.NodeSelector)
		if len(counts) > 1 || services != "" || err != nil || err2 != nil {
			m.byHand(o, "all of it: with Herald nodes and links are chosen by pool (.nodes, .interface)")
			continue
		}
		link := ""
		if len(p.Interfaces) == 1 && literalPattern.MatchString(p.Interfaces[0]) {
			link = literalPattern.FindStringSubmatch(p.Interfaces[0])[1]
		} else if len(p.Interfaces) > 0 {
			m.byHand(o, "interfaces: a VIP of Herald is on one link (vip_servicesinterface, or .interface of a pool)")
		}
		if byBGP {
			m.byHand(o, ".announce of the pools, since Cilium announces by BGP, too: Herald does in every way that is enabled")
		}
		for _, name := range m.names {
			m.set(name, "nodes", nodes)
			m.set(name, "interface", link)
			if !byBGP {
				m.set(name, "announce", "arp")
			}
		}
	}
	return nil
}

// fromKubeVIP takes over the provider's ConfigMap: Herald reads the same keys.
func (m *migration) fromKubeVIP() error {
	for _, o := range m.objects {
		if o.Kind != "ConfigMap" {
			continue
		}
		var data map[string]string
		if err := json.Unmarshal(o.Data, &data); len(o.Data) > 0 && err != nil {
			return fmt.Errorf("ConfigMap %s can't be read: %w", o.Metadata.Name, err)
		}
		found := false
		for k, v := range data {
			name, own := strings.CutPrefix(k, "pool-")
			provider := strings.HasPrefix(k, "cidr-") || strings.HasPrefix(k, "range-")
			found = found || own || provider
			if !provider && (!own || strings.Contains(name, ".")) {
				continue
			}
			for item := range strings.SplitSeq(v, ",") {
				if r, _, ok := vip.ParseRange(item); ok && r.IsValid() {
					m.ranges[k] = append(m.ranges[k], r)
				}
			}
		}
		if found {
			maps.Copy(m.Data, data)
		}
	}
	m.note("Scale kube-vip's cloud provider to zero, and wait for 15 s: while it renews its Lease, Herald gives no " +
		"addresses.")
	return nil
}
