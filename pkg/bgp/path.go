package bgp

import (
	"net/netip"
	"slices"

	api "github.com/osrg/gobgp/v3/api"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/heraldvip/herald/pkg/vip"
)

var (
	ipv4Unicast = &api.Family{Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST}
	ipv6Unicast = &api.Family{Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST}
)

func familyOf(a netip.Addr) *api.Family {
	if a.Is4() {
		return ipv4Unicast
	}
	return ipv6Unicast
}

type advert struct {
	vip.Route
	nextHop netip.Addr
	prepend int // how often this AS number is put before the path, beside once for an eBGP peer
}

// equal reports whether a and b are the same message.
func (a advert) equal(b advert) bool {
	return a.nextHop == b.nextHop && a.prepend == b.prepend && a.Route.Equal(b.Route)
}

// advertOf is r on the session with the endpoints. Only eBGP paths, once the peer's AS number is known, are prepended
// to: on iBGP this AS number would be a loop.
func (p *peer) advertOf(r vip.Route, at endpoints) advert {
	a := advert{Route: r, nextHop: p.nextHop(at, vip.FamilyOf(r.Prefix.Addr()))}
	if n := r.Attributes.Prepend; n != nil && p.as != 0 && p.as != p.config.LocalAS {
		a.prepend = *n
	}
	return a
}

// path is a for gobgp, to be advertised to c.
func (a advert) path(c vip.BGPPeer) *api.Path {
	nlri := pack(&api.IPAddressPrefix{Prefix: a.Prefix.Addr().String(), PrefixLen: uint32(a.Prefix.Bits())})
	family := familyOf(a.Prefix.Addr())
	attrs := []*anypb.Any{
		pack(&api.OriginAttribute{Origin: 0}), // IGP
		pack(&api.MpReachNLRIAttribute{Family: family, NextHops: []string{a.nextHop.String()}, Nlris: []*anypb.Any{nlri}}),
	}
	if a.prepend > 0 {
		numbers := slices.Repeat([]uint32{c.LocalAS}, a.prepend)
		segment := &api.AsSegment{Type: api.AsSegment_AS_SEQUENCE, Numbers: numbers}
		attrs = append(attrs, pack(&api.AsPathAttribute{Segments: []*api.AsSegment{segment}}))
	}
	if m := a.Attributes.MED; m != nil {
		attrs = append(attrs, pack(&api.MultiExitDiscAttribute{Med: *m}))
	}
	pref := a.Attributes.LocalPref
	if a.Drain {
		pref = new(uint32) // RFC 8326 section 4.1: towards iBGP peers, which don't act on the community
	}
	if pref != nil {
		attrs = append(attrs, pack(&api.LocalPrefAttribute{LocalPref: *pref})) // gobgp leaves it out towards eBGP peers
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
		attrs = append(attrs, pack(&api.CommunitiesAttribute{Communities: small}))
	}
	if len(a.Attributes.LargeCommunities) > 0 {
		large := &api.LargeCommunitiesAttribute{}
		for _, c := range a.Attributes.LargeCommunities {
			l := &api.LargeCommunity{GlobalAdmin: c[0], LocalData1: c[1], LocalData2: c[2]}
			large.Communities = append(large.Communities, l)
		}
		attrs = append(attrs, pack(large))
	}
	return &api.Path{Family: family, Nlri: nlri, Pattrs: attrs}
}

// pack makes an Any of m. It can't fail: the messages are gobgp's own plain numbers and text.
func pack(m proto.Message) *anypb.Any {
	a, _ := anypb.New(m)
	return a
}
