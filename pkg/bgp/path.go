package bgp

import (
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/heraldvip/herald/pkg/vip"
)

func familyOf(a netip.Addr) bgp.Family {
	if a.Is4() {
		return bgp.RF_IPv4_UC
	}
	return bgp.RF_IPv6_UC
}

// An advert is a Route as it is advertised to one peer.
type advert struct {
	vip.Route
	nextHop netip.Addr // unspecified (of either family): the session's own address
}

// equal reports whether a and b are the same message.
func (a advert) equal(b advert) bool { return a.nextHop == b.nextHop && a.Route.Equal(b.Route) }

// path is a for gobgp, to be advertised to c. The AS path is prepended to on eBGP sessions only:
// on an iBGP session this AS number in a path would be taken for a loop.
func (a advert) path(c vip.BGPPeer) *apiutil.Path {
	family := familyOf(a.Prefix.Addr())
	nlri, _ := bgp.NewIPAddrPrefix(a.Prefix)                                                                  // fails for an invalid prefix only
	reach, _ := bgp.NewPathAttributeMpReachNLRI(family, []bgp.PathNLRI{{NLRI: nlri}}, a.nextHop.WithZone("")) // fails without prefixes only
	attrs := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP), reach}
	if n := a.Attributes.Prepend; n != nil && *n > 0 && c.AS != c.LocalAS {
		segment := bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, slices.Repeat([]uint32{c.LocalAS}, *n))
		attrs = append(attrs, bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{segment}))
	}
	if m := a.Attributes.MED; m != nil {
		attrs = append(attrs, bgp.NewPathAttributeMultiExitDisc(*m))
	}
	pref := a.Attributes.LocalPref
	if a.Drain {
		pref = new(uint32) // RFC 8326 section 4.1: towards iBGP peers, which don't act on the community
	}
	if pref != nil {
		attrs = append(attrs, bgp.NewPathAttributeLocalPref(*pref)) // gobgp leaves it out towards eBGP peers
	}
	var small []uint32
	if a.Drain {
		small = append(small, uint32(vip.GracefulShutdown))
	}
	for _, c := range a.Attributes.Communities {
		if !a.Drain || c != vip.GracefulShutdown {
			small = append(small, uint32(c))
		}
	}
	if len(small) > 0 {
		attrs = append(attrs, bgp.NewPathAttributeCommunities(small))
	}
	if len(a.Attributes.LargeCommunities) > 0 {
		var large []*bgp.LargeCommunity
		for _, c := range a.Attributes.LargeCommunities {
			large = append(large, &bgp.LargeCommunity{ASN: c[0], LocalData1: c[1], LocalData2: c[2]})
		}
		attrs = append(attrs, bgp.NewPathAttributeLargeCommunities(large))
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attrs}
}
