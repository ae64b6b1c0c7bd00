package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

const specAddress = "spec.loadBalancerIP"

// readAddresses fills in Addresses and Source: asked for, given, or in the status.
func (r annotationReader) readAddresses(loadBalancerIP string) {
	s, keys, givenKey := r.service, addressesKeys, allocatedAddressesKey
	var given []netip.Addr
	if s.Allocated != "" {
		given, _ = parseAddresses(r.value(givenKey))
		if first, _ := parseAddresses(r.value(addressesKey)); len(given) == 0 || slices.Equal(first, given) {
			keys, givenKey = keys[1:], addressesKey // Herald wrote the first, and nobody has since
		}
	}
	if s.Source = r.firstOf(loadBalancerIP, keys...); s.Source != "" {
		s.Addresses = r.requested(s.Source, loadBalancerIP)
	}
	// a mistake in the field that counts takes no VIP down
	if keep := s.Source; len(s.Addresses) == 0 {
		if s.Allocated != "" && r.value(givenKey) != "" {
			s.Addresses, s.Source = parseAnnotation(r, givenKey, parseAddresses), givenKey
		}
		if len(s.Addresses) == 0 {
			for _, a := range keptAddresses(s) {
				if len(s.Addresses) < maxAddresses {
					s.Source, s.Addresses = vip.SourceStatus, vip.AppendUnique(s.Addresses, a)
				}
			}
		}
		if keep != "" && len(s.Addresses) > 0 {
			s.Invalid = append(s.Invalid, fmt.Sprintf("As long as %s can't be read the Service keeps %s.", keep,
				vip.JoinAddrs(s.Addresses, ", ")))
		}
		return
	}
	given = slices.DeleteFunc(given, func(a netip.Addr) bool {
		return s.DualStack == vip.SingleStack || hasFamilyOf(s.Addresses, a)
	})
	if givenKey == addressesKey || len(given) == 0 {
		s.Superseded, s.Allocated = s.Allocated != "", ""
		return
	}
	s.Own, s.Addresses = s.Addresses, append(slices.Clip(s.Addresses), given[0]) // the family that lacks
}

// keptAddresses returns what s has without naming it: by its Record, as a status is cleared while no node may announce
// it; leased ones, and all without a Record, by its status.
func keptAddresses(s *vip.Service) []netip.Addr {
	recorded := slices.Concat(s.Record.Named, s.Record.Given)
	return append(recorded, slices.DeleteFunc(s.StatusVIPs(), func(a netip.Addr) bool {
		return len(recorded) > 0 && !slices.Contains(s.Record.Leased, a)
	})...)
}

// firstOf returns the first value, and tells of others that differ.
func (r annotationReader) firstOf(spec string, keys ...string) (first string) {
	for _, k := range append(slices.Clip(keys), specAddress) {
		value := r.value(k)
		if k == specAddress {
			value = spec
		}
		switch {
		case value == "":
		case first == "":
			first = k
		case !isPart(value, r.value(first)):
			r.service.Invalid = append(r.service.Invalid,
				fmt.Sprintf("%s asks for %s, and has no effect: %s, which comes first, asks for %s. Remove one of them.",
					k, vip.Quote(value), first, vip.Quote(r.value(first))))
		}
	}
	return first
}

// isPart reports whether each item of a list is in another; addresses in any spelling.
func isPart(part, whole string) bool {
	all := items(whole)
	return !slices.ContainsFunc(items(part), func(x string) bool { return !slices.Contains(all, x) })
}

// items returns the first items of a list, more than ever count, and the rest as one; without spaces, and addresses as
// netip writes them.
func items(list string) []string {
	all := strings.SplitN(list, ",", 100)
	for i, x := range all {
		all[i] = strings.TrimSpace(x)
		if a, err := netip.ParseAddr(all[i]); err == nil {
			all[i] = a.Unmap().String()
		}
	}
	return all
}

// requested returns the addresses that a field names, if readable.
func (r annotationReader) requested(field, loadBalancerIP string) []netip.Addr {
	if field != specAddress {
		return parseAnnotation(r, field, parseAddresses)
	}
	a, problem := parseAddress(loadBalancerIP)
	if problem != "" {
		r.service.Invalid = append(r.service.Invalid, fmt.Sprintf("%s: %s; write one IP address, or use the annotation %s.",
			field, problem, addressesKey))
		return nil
	}
	return []netip.Addr{a}
}

const maxAddresses = 16

// parseAddresses reads the first maxAddresses addresses; none if one is wrong.
func parseAddresses(value string) (addrs []netip.Addr, problem string) {
	for text := range strings.SplitSeq(value, ",") {
		a, problem := parseAddress(text)
		if len(addrs) == maxAddresses && (problem != "" || !slices.Contains(addrs, a)) {
			return addrs, fmt.Sprintf("a Service may have %d addresses; those after %s are left out", maxAddresses,
				addrs[maxAddresses-1])
		}
		if problem != "" {
			return nil, problem + "; write IP addresses separated by commas, such as 192.168.0.10,fd00::10"
		}
		addrs = vip.AppendUnique(addrs, a)
	}
	return addrs, ""
}

func parseAddress(text string) (a netip.Addr, problem string) {
	text = strings.TrimSpace(text)
	if text == "" {
		return netip.Addr{}, "an address is missing"
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, vip.Quote(text) + " is not an IP address"
	}
	if a.Zone() != "" {
		return netip.Addr{}, vip.Quote(text) + " has a zone, which an address of a Service can't have"
	}
	return a.Unmap(), ""
}

// Keys about pools. Herald's own comes first and wins, then MetalLB's and Cilium's, each new and old.
const (
	poolKey      = "heraldvip.io/pool"
	allocatedKey = "heraldvip.io/allocated"
	renumberKey  = "heraldvip.io/renumber"

	allocatedAddressesKey = "heraldvip.io/allocated-addresses"
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
