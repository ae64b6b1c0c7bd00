package kube

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// announce reads the ways to announce a VIP; nil is all that are enabled. What can't
// be read is announced in none of them: half of what was meant may be what was to be avoided.
func (r reader) announce() []vip.Method {
	value := strings.TrimSpace(r.of[announceKey])
	if value == "" {
		return nil
	}
	ways := []vip.Method{}
	for text := range strings.SplitSeq(value, ",") {
		m := vip.Method(strings.ToLower(strings.TrimSpace(text)))
		if m != vip.ByARP && m != vip.ByBGP {
			r.wrong(announceKey, "write arp, bgp, or both with a comma between. The VIP is not announced")
			return []vip.Method{}
		}
		if !slices.Contains(ways, m) {
			ways = append(ways, m)
		}
	}
	return ways
}

// attributes reads what a Service says of its routes.
func (r reader) attributes() (a vip.BGPAttributes) {
	if value := strings.TrimSpace(r.of[communitiesKey]); strings.EqualFold(value, "none") {
		a.Communities = []vip.Community{}
	} else if value != "" {
		var err error
		if a.Communities, a.LargeCommunities, err = vip.ParseCommunities(value); err != nil {
			r.wrong(communitiesKey, "%v. The default is used", err)
		}
	}
	a.LocalPref = r.number(localPrefKey, 1<<32-1)
	a.MED = r.number(medKey, 1<<32-1)
	if n := r.number(prependKey, vip.MaxPrepend); n != nil {
		times := int(*n)
		a.Prepend = &times
	}
	value := strings.TrimSpace(r.of[peersKey])
	if value == "" {
		return a
	}
	a.Peers = []string{}
	for text := range strings.SplitSeq(value, ",") {
		name := strings.TrimSpace(text)
		if p, err := netip.ParseAddr(name); err == nil {
			name = p.Unmap().String() // as Peer.Name spells it
		}
		// dev_valid_name() in the kernel's net/core/dev.c, IFNAMSIZ is 16.
		if name == "" || len(name) > 45 || strings.ContainsAny(name, "/ \t\n\v\f\r") {
			r.wrong(peersKey, "write the addresses or interfaces of peers with commas between. No peer is told of the VIP")
			a.Peers = []string{}
			return a
		}
		a.Peers = append(a.Peers, name)
	}
	return a
}

// number reads a number from 0 to most; nil if there is none.
func (r reader) number(key string, most uint64) *uint32 {
	value := strings.TrimSpace(r.of[key])
	if value == "" {
		return nil
	}
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || n > most {
		r.wrong(key, "write a whole number from 0 to %d. The default is used", most)
		return nil
	}
	v := uint32(n)
	return &v
}
