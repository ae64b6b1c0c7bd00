package migrate

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// addressesKey names the addresses of a Service, before all other annotations.
const addressesKey = "kube-vip.io/loadbalancerIPs"

// askingKeys are annotations that name addresses; the first one counts.
var askingKeys = []string{addressesKey, "metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs",
	"lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"}

// ciliumCrossKeys are annotations by which Cilium shares addresses across namespaces.
var ciliumCrossKeys = []string{"lbipam.cilium.io/sharing-cross-namespace", "io.cilium/lb-ipam-sharing-cross-namespace"}

var poolKeys = []string{"heraldvip.io/pool", "metallb.io/address-pool", "metallb.universe.tf/address-pool"}

const class = "kube-vip.io/kube-vip-class"

type service struct {
	Type  string `json:"type"`
	IP    string `json:"loadBalancerIP"`
	Class string `json:"loadBalancerClass"`
}

// pinServices pins each Service with an address only in its status, or a pool that has a new name.
func (m *migration) pinServices() {
	classes := make(map[string]int)
	for _, o := range m.objects {
		var s service
		if o.Kind != "Service" || json.Unmarshal(o.Spec, &s) != nil || s.Type != "LoadBalancer" || !m.serves(o, s) {
			continue
		}
		if s.Class != "" && s.Class != class {
			classes[s.Class]++
		}
		m.pin(o, s)
	}
	for _, c := range slices.Sorted(maps.Keys(classes)) {
		m.note("Services with the loadBalancerClass %s: %d. It can't be changed, and Herald serves one class: set "+
			"lb_class_name=%[1]s, or create them again without.", c, classes[c])
	}
}

// serves reports whether the source serves a LoadBalancer that Herald is to have, as far as is seen of it.
func (m *migration) serves(o object, s service) bool {
	a := o.Metadata.Annotations
	switch {
	case a["kube-vip.io/ignore"] == "true":
		return false
	case s.Class == "" || s.Class == class:
		return true
	case m.source == "metallb":
		return a["metallb.io/ip-allocated-from-pool"]+a["metallb.universe.tf/ip-allocated-from-pool"] != ""
	case m.source == "cilium":
		return strings.HasPrefix(s.Class, "io.cilium/")
	}
	return false
}

// pin pins a Service, if need be. What no person named counts as given by Herald from its pool (docs/why.md, "Pools").
func (m *migration) pin(o object, s service) {
	k, pins := vip.Key{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}, make(map[string]string)
	has, asks := shown(o), asked(o, s)
	switch {
	case slices.ContainsFunc(asks, netip.Addr.IsUnspecified): // leased by DHCP
		has = nil
	case m.source != "kube-vip" || len(has) == 0:
	case len(asks) > 0: // its status may have the gateway's external address, too (UPnP)
		has = asks
	case o.Metadata.Annotations["kube-vip.io/forwardUPNP"] == "true":
		has = has[:1]
	}
	if len(has) > 0 && !sameAddresses(has, asks) {
		pins[addressesKey] = vip.JoinAddrs(has, ",")
		if pool := m.poolOf(has[0]); pool != "" && len(asks) == 0 {
			pins["heraldvip.io/allocated"], pins["heraldvip.io/allocated-addresses"] = pool, pins[addressesKey]
		}
		if len(asks) > 0 {
			m.noteService("Service %s asks for %v, and has %v: it is pinned to what it has.", k, asks, has)
		}
	}
	for _, a := range has {
		if m.poolOf(a) == "" {
			m.noteService("Service %s has %s, which is in no pool. It keeps it.", k, a)
		}
	}
	for _, key := range ciliumCrossKeys {
		if m.source == "cilium" && o.Metadata.Annotations[key] != "" {
			m.noteService("Service %s shares addresses with other namespaces by %s, which Herald does not read: what it has "+
				"it keeps. For what is shared later give each of these Services the same heraldvip.io/sharing-key.", k, key)
			break
		}
	}
	for _, key := range poolKeys {
		if given := o.Metadata.Annotations[key]; given != "" {
			if to := m.names[given]; to != "" && to != given {
				pins[poolKeys[0]] = to
			}
			break
		}
	}
	if len(pins) > 0 {
		m.Pins[k] = pins
	}
}

func shown(o object) (addrs []netip.Addr) {
	var status struct {
		LoadBalancer struct {
			Ingress []struct {
				IP string `json:"ip"`
			} `json:"ingress"`
		} `json:"loadBalancer"`
	}
	if len(o.Status) == 0 || json.Unmarshal(o.Status, &status) != nil {
		return nil
	}
	for _, i := range status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}

func asked(o object, s service) (addrs []netip.Addr) {
	text := s.IP
	for _, k := range askingKeys {
		if v := strings.TrimSpace(o.Metadata.Annotations[k]); v != "" {
			text = v
			break
		}
	}
	for item := range strings.SplitSeq(text, ",") {
		if a, err := netip.ParseAddr(strings.TrimSpace(item)); err == nil {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs
}

func sameAddresses(a, b []netip.Addr) bool {
	a, b = slices.SortedFunc(slices.Values(a), netip.Addr.Compare), slices.SortedFunc(slices.Values(b), netip.Addr.Compare)
	return slices.Equal(a, b)
}
