package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// The kernel binds no address of IPv6 to a link on which IPv6 is disabled (vip.Link.NoIPv6). A node that needs such a link for
// a unit comes after others (rankNoIPv6), and hands the unit over to them. It is eligible all the same, since it may serve the unit's addresses
// of IPv4: where IPv6 is disabled on every node, nothing moves.

// linkWithoutIPv6 returns the first link of n on which IPv6 is disabled and to which an address of IPv6 of what has these requirements is
// to be bound, or "". What a DHCP server leases is bound to a macvlan of its own, and does not count.
func (n *member) linkWithoutIPv6(need *requirements) string {
	if n.lacksIPv6 {
		for link, a := range need.linksOn(n) {
			if n.refusesIPv6(a, link) {
				return link
			}
		}
	}
	return ""
}

// refusesIPv6 reports whether a is an address of IPv6, and the link of n one on which IPv6 is disabled.
func (n *member) refusesIPv6(a netip.Addr, link string) bool {
	l := linkNamed(&n.Info, link)
	return a.Is6() && l != nil && l.NoIPv6
}

// anyLinkWithoutIPv6 reports whether IPv6 is disabled on a link of a node.
func anyLinkWithoutIPv6(info *vip.NodeInfo) bool {
	return slices.ContainsFunc(info.Links, func(l vip.Link) bool { return l.NoIPv6 })
}

// needsOnlyIPv6 reports whether nothing is to be bound for what has these requirements but addresses of IPv6.
func (need *requirements) needsOnlyIPv6() bool {
	return !slices.ContainsFunc(need.links, func(l linkOf) bool { return !l.addr.Is6() })
}

// ipv6Disabled says that IPv6 is disabled on a link of a node, as text for users.
func ipv6Disabled(link string) string { return "IPv6 is disabled on its link " + link }

// enableIPv6 is the command that enables IPv6 on a link. A dot of the link's name is a slash to sysctl(8).
func enableIPv6(link string) string {
	return fmt.Sprintf("sysctl -w net.ipv6.conf.%s.disable_ipv6=0", strings.ReplaceAll(link, ".", "/"))
}

// whyIPv6Unbound returns why this node, which owns a of s, does not bind it to a link on which IPv6 is disabled, why that moves nothing, and what to do.
func (p *pass) whyIPv6Unbound(s *service, a netip.Addr, link string) string {
	stays := "no other node is better"
	if s.sharesOwner { // its links are no requirement (completeAddresses)
		stays = "with svc_election=false no VIP moves for that"
	}
	return fmt.Sprintf("node %s owns %s, but can't bind it: %s, and %s (%s on %s)", p.Self, a, ipv6Disabled(link), stays, enableIPv6(link), p.Self)
}
