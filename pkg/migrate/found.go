package migrate

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/config"
)

// poolKinds are the kinds of objects that have the pools of a source.
var poolKinds = map[string]string{
	"metallb": "IPAddressPool", "cilium": "CiliumLoadBalancerIPPool", "kube-vip": "ConfigMap with pools",
}

// load adds an object, and what MetalLB before 0.13 has in it.
func (m *migration) load(text json.RawMessage) error {
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return fmt.Errorf("an object can't be read: %w", err)
	}
	if o.Kind == "" {
		var keys map[string]json.RawMessage
		_ = json.Unmarshal(text, &keys) // an object, as o was
		m.unread = append(m.unread, strings.Join(slices.Sorted(maps.Keys(keys)), ", "))
	}
	if o.Kind != "" {
		m.objects = append(m.objects, o)
	}
	if m.source != "metallb" {
		return nil
	}
	if o.Kind == "AddressPool" {
		m.read[o.Kind] = true
		m.addOldPool(o.Metadata.Name, o.Spec)
		return nil
	}
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	return m.findOld(v)
}

// findOld adds the pools and peers of MetalLB before 0.13 in a ConfigMap, or in configInline of Helm values, wherever
// that is.
func (m *migration) findOld(v any) error {
	switch v := v.(type) {
	case string:
		if !strings.Contains(v, "address-pools") {
			return nil
		}
		documents, err := config.Documents([]byte(v))
		if err != nil {
			return fmt.Errorf("the address-pools of MetalLB can't be read: %w", err)
		}
		for _, d := range documents {
			var inner any
			if err := json.Unmarshal(d, &inner); err != nil {
				return err
			}
			if _, isText := inner.(string); isText {
				continue
			}
			if err := m.findOld(inner); err != nil {
				return err
			}
		}
	case []any:
		for _, one := range v {
			if err := m.findOld(one); err != nil {
				return err
			}
		}
	case map[string]any:
		if _, ok := v["address-pools"].([]any); ok {
			return m.addOld(v)
		}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if k == "metadata" { // kubectl's copy of all in an annotation
				continue
			}
			if err := m.findOld(v[k]); err != nil {
				return err
			}
		}
	}
	return nil
}

// addOld adds the objects by which MetalLB 0.13 says what the configuration before it said.
func (m *migration) addOld(v map[string]any) error {
	var old struct {
		Pools []json.RawMessage `json:"address-pools"`
		Peers []json.RawMessage `json:"peers"`
		Names map[string]string `json:"bgp-communities"`
	}
	text, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(text, &old)
	}
	if err != nil {
		return fmt.Errorf("the configuration of MetalLB can't be read: %w", err)
	}
	for _, p := range old.Pools {
		p = withoutHyphens(p)
		var named struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal(p, &named); err != nil {
			return fmt.Errorf("a pool of MetalLB can't be read: %w", err)
		}
		m.addOldPool(named.Name, p)
	}
	for i, p := range old.Peers {
		m.add("BGPPeer", fmt.Sprintf("%d", i+1), withoutHyphens(p))
	}
	type community struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	var communities []community
	for _, name := range slices.Sorted(maps.Keys(old.Names)) {
		communities = append(communities, community{name, old.Names[name]})
	}
	m.addValue("Community", "bgp-communities", map[string]any{"communities": communities})
	return nil
}

// addOldPool adds an IPAddressPool, and the advertisements that its protocol asks for. What can't be read of it is an
// error of specs.
func (m *migration) addOldPool(name string, spec json.RawMessage) {
	m.add("IPAddressPool", name, spec)
	var p struct {
		Protocol       string           `json:"protocol"`
		Advertisements []map[string]any `json:"bgpAdvertisements"`
	}
	if json.Unmarshal(spec, &p) != nil {
		return
	}
	switch p.Protocol {
	case "layer2":
		m.addValue("L2Advertisement", name, map[string]any{"ipAddressPools": []string{name}})
	case "bgp":
		if len(p.Advertisements) == 0 {
			p.Advertisements = []map[string]any{{}}
		}
		for i, a := range p.Advertisements {
			if a == nil {
				a = make(map[string]any)
			}
			a["ipAddressPools"] = []string{name}
			m.addValue("BGPAdvertisement", fmt.Sprintf("%s-%d", name, i+1), a)
		}
	}
}

// addValue is add of a spec that is no JSON yet.
func (m *migration) addValue(kind, name string, spec any) {
	text, _ := json.Marshal(spec) // made of JSON
	m.add(kind, name, text)
}

// add adds an object that no file has.
func (m *migration) add(kind, name string, spec json.RawMessage) {
	o := object{Kind: kind, Spec: spec}
	o.Metadata.Name, o.Metadata.Namespace = name, "metallb-system"
	m.objects = append(m.objects, o)
}

// withoutHyphens turns keys such as peer-asn into peerasn, which encoding/json takes for peerASN, but for those of
// labels.
func withoutHyphens(text json.RawMessage) json.RawMessage {
	var v any
	if json.Unmarshal(text, &v) != nil {
		return text
	}
	var plain func(v any) any
	plain = func(v any) any {
		switch v := v.(type) {
		case []any:
			for i := range v {
				v[i] = plain(v[i])
			}
		case map[string]any:
			out := make(map[string]any, len(v))
			for k, x := range v {
				if k != "match-labels" {
					x = plain(x)
				}
				out[strings.ReplaceAll(k, "-", "")] = x
			}
			return out
		}
		return v
	}
	out, _ := json.Marshal(plain(v)) // made of JSON
	return out
}

// whatIsThere names what the objects are, and the source that reads them if there is one.
func (m *migration) whatIsThere() string {
	const most = 10
	var all []string
	for _, o := range m.objects {
		name := strings.TrimPrefix(o.Metadata.Namespace+"/"+o.Metadata.Name, "/")
		text := o.Kind + " " + name
		for source, kind := range poolKinds {
			if o.Kind == kind && source != m.source {
				text += ", which herald import " + source + " reads"
			}
		}
		if o.Kind == "ConfigMap" && m.source != "metallb" && strings.Contains(string(o.Data), "address-pools") {
			text += ", which herald import metallb reads"
		}
		all = append(all, text)
	}
	for _, keys := range m.unread {
		all = append(all, "a document without a kind ("+keys+")")
	}
	switch n := len(all); {
	case n == 0:
		return "nothing is there at all"
	case n > most:
		return fmt.Sprintf("there is %s; and %d more", strings.Join(all[:most], "; "), n-most)
	}
	return "there is " + strings.Join(all, "; ")
}

// noteUnread adds a note about what the files have beside what is read.
func (m *migration) noteUnread() {
	const most = 10
	var all []string
	for _, o := range m.objects {
		if o.Kind != "Service" && o.Kind != "ConfigMap" && !m.read[o.Kind] {
			all = append(all, o.Kind+" "+o.Metadata.Name)
		}
	}
	if n := len(all); n > most {
		all = append(all[:most], fmt.Sprintf("and %d more", n-most))
	}
	if len(all) > 0 {
		m.note("Not read: %s.", strings.Join(all, ", "))
	}
}
