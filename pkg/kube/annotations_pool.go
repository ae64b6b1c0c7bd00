package kube

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// Keys of the annotations about pools. Herald's own key comes first where there are several, and
// wins; the others are those of MetalLB, new and old, and of Cilium, new and old.
const (
	poolKey      = "heraldvip.io/pool"
	allocatedKey = "heraldvip.io/allocated"
	renumberKey  = "heraldvip.io/renumber"
)

var (
	poolKeys = []string{poolKey, "metallb.io/address-pool", "metallb.universe.tf/address-pool"}
	// otherAddressesKeys name addresses as kube-vip.io/loadbalancerIPs does, which wins.
	otherAddressesKeys = []string{"metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs", "lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"}
	// otherSharingKeys are keys as heraldvip.io/sharing-key, which wins; Cilium's hold in one namespace.
	otherSharingKeys  = []string{"metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"}
	ciliumSharingKeys = []string{"lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"}
)

const (
	maxPools  = 16 // that a Service may ask for
	maxLabels = 64 // of a Service that are kept
)

// readPools fills in what a Service says of pools, and the addresses and the sharing key that it
// names by annotations of MetalLB and Cilium if it has none of kube-vip's, or of Herald's.
func (r annotationReader) readPools() {
	s := r.service
	s.Allocated = truncate(r.value(allocatedKey), 2*maxName)
	s.Renumber = parseAnnotation(r, renumberKey, parseBool)
	for _, k := range poolKeys {
		if s.Pools = parseAnnotation(r, k, parsePools); s.Pools != nil {
			break
		}
	}
	for _, k := range otherSharingKeys {
		if s.SharingKey == "" {
			s.SharingKey = parseAnnotation(r, k, parseSharingKey)
		}
	}
	for _, k := range ciliumSharingKeys {
		if s.SharingKey == "" && r.value(k) != "" {
			// No other annotation gives a key that begins with a space, so nobody in another namespace can have it.
			s.SharingKey = " " + s.Key.Namespace + "/" + parseAnnotation(r, k, parseSharingKey)
		}
	}
	for _, k := range otherAddressesKeys {
		if s.Source == "" && r.value(k) != "" {
			s.Source, s.Addresses = k, parseAnnotation(r, k, parseAddresses)
		}
	}
}

// parsePools reads names of pools, separated by commas.
func parsePools(value string) (names []string, problem string) {
	for name := range strings.SplitSeq(value, ",") {
		name = truncate(strings.TrimSpace(name), maxName)
		switch {
		case name == "" || slices.Contains(names, name):
		case len(names) == maxPools:
			return names, "more than 16 pools; the first 16 count"
		default:
			names = append(names, name)
		}
	}
	return names, ""
}

// readFamilyPolicy converts spec.ipFamilyPolicy.
func readFamilyPolicy(p *corev1.IPFamilyPolicy) vip.DualStack {
	switch {
	case p == nil:
	case *p == corev1.IPFamilyPolicyPreferDualStack:
		return vip.PreferDualStack
	case *p == corev1.IPFamilyPolicyRequireDualStack:
		return vip.RequireDualStack
	}
	return vip.SingleStack
}

// firstLabels is the first maxLabels labels by name.
func firstLabels(labels map[string]string) map[string]string {
	if len(labels) <= maxLabels {
		return labels
	}
	out := make(map[string]string, maxLabels)
	for _, k := range slices.Sorted(maps.Keys(labels))[:maxLabels] {
		out[k] = labels[k]
	}
	return out
}
