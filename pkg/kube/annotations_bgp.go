package kube

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// parseMethods reads ways to announce; none, not nil, if one is wrong.
func parseMethods(value string) (methods []vip.Method, problem string) {
	for text := range strings.SplitSeq(value, ",") {
		m := vip.Method(strings.ToLower(strings.TrimSpace(text)))
		// what is lost may be what was to be avoided
		if m != vip.ByARP && m != vip.ByBGP {
			return []vip.Method{}, "write arp, bgp, or both with a comma between. Until then the VIP is not announced, " +
				"unless it is already and only one of the two is enabled"
		}
		methods = vip.AppendUnique(methods, m)
	}
	return methods, ""
}

// bgpAttributes reads a Service's attributes of routes; nil is the default.
func (r annotationReader) bgpAttributes() (a vip.BGPAttributes) {
	if value := r.value(communitiesKey); strings.EqualFold(value, "none") {
		a.Communities = []vip.Community{}
	} else if value != "" {
		var err error
		if a.Communities, a.LargeCommunities, err = vip.ParseCommunities(value); err != nil {
			r.invalid(communitiesKey, err.Error()+". The default is used")
		}
	}
	a.LocalPref = parseAnnotation(r, localPrefKey, parseNumber(1<<32-1))
	a.MED = parseAnnotation(r, medKey, parseNumber(1<<32-1))
	if n := parseAnnotation(r, prependKey, parseNumber(vip.MaxPrepend)); n != nil {
		a.Prepend = new(int(*n))
	}
	a.Peers = parseAnnotation(r, peersKey, parsePeers)
	return a
}

const maxPeers = 100

// parsePeers reads names of peers; none, not nil, if unreadable.
func parsePeers(value string) (peers []string, problem string) {
	if n := strings.Count(value, ",") + 1; n > maxPeers {
		return []string{}, fmt.Sprintf("it names %d peers, and may name %d. The VIP is announced to no peer", n, maxPeers)
	}
	for text := range strings.SplitSeq(value, ",") {
		name := strings.TrimSpace(text)
		if a, err := netip.ParseAddr(name); err == nil {
			name = a.Unmap().String()
		} else if !vip.IsLinkName(name) {
			return []string{}, "write the addresses or interfaces of peers with commas between. The VIP is announced to no peer"
		}
		peers = append(peers, name)
	}
	return peers, ""
}

// parseNumber parses a number from 0 to limit; nil if it is none.
func parseNumber(limit uint64) func(value string) (n *uint32, problem string) {
	return func(value string) (*uint32, string) {
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n > limit {
			return nil, fmt.Sprintf("write a whole number from 0 to %d. The default is used", limit)
		}
		return new(uint32(n)), ""
	}
}
