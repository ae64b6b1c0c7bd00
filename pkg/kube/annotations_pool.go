package kube

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// Keys about pools. Herald's own comes first and wins, then MetalLB's and Cilium's, each new and old.
const (
	poolKey      = "heraldvip.io/pool"
	allocatedKey = "heraldvip.io/allocated"
	besideKey    = "heraldvip.io/allocated-addresses"
	renumberKey  = "heraldvip.io/renumber"
)

var (
	poolKeys      = []string{poolKey, "metallb.io/address-pool", "metallb.universe.tf/address-pool"}
	addressesKeys = []string{addressesKey, "metallb.io/loadBalancerIPs", "metallb.universe.tf/loadBalancerIPs",
		"lbipam.cilium.io/ips", "io.cilium/lb-ipam-ips"}
	// sharingKeys name a sharing key; Cilium's hold in one namespace.
	sharingKeys = append([]string{sharingKeyKey, "metallb.io/allow-shared-ip",
		"metallb.universe.tf/allow-shared-ip"}, ciliumSharingKeys...)
	ciliumSharingKeys = []string{"lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"}
)

const (
	maxPools  = 16 // that a Service may ask for
	maxLabels = 64 // of a Service that are kept
)

func (r annotationReader) readPools() {
	s := r.service
	s.Allocated = vip.Truncate(r.value(allocatedKey), 2*maxName)
	s.Renumber = parseAnnotation(r, renumberKey, parseBool)
	if k := r.firstOf("", poolKeys...); k != "" {
		s.Pools = parseAnnotation(r, k, parsePools)
	}
	switch k := r.firstOf("", sharingKeys...); {
	case k == "":
	case slices.Contains(ciliumSharingKeys, k):
		// no other annotation's key begins with a space, so no other namespace can have it
		s.SharingKey = " " + s.Key.Namespace + "/" + parseAnnotation(r, k, parseSharingKey)
	default:
		s.SharingKey = parseAnnotation(r, k, parseSharingKey)
	}
}

func parsePools(value string) (names []string, problem string) {
	for name := range strings.SplitSeq(value, ",") {
		name = vip.Truncate(strings.TrimSpace(name), maxName)
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
