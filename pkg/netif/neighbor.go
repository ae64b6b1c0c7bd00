package netif

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// A Neighbor is what this machine's kernel knows of who answers for an address.
type Neighbor struct {
	Link string // on which the kernel would ask; "" if it sends packets to the address by way of a router
	MAC  string // that answered or announced itself, in lower case; "" if nobody did
	// Confirmed: it has answered within the last minute or so (NUD_REACHABLE, or a fixed entry). If not, the kernel asks again
	// within 5 s of a packet to it.
	Confirmed bool
	Local     bool // it is an address of this machine
}

// LookUpNeighbor returns the entry of the kernel's neighbor table (ARP or NDP) for an address. It asks nobody: the kernel
// does that when something is sent there.
func LookUpNeighbor(a netip.Addr) (n Neighbor, err error) {
	routes, err := netlink.RouteGet(a.AsSlice())
	if err != nil || len(routes) == 0 {
		return n, nil // no route: not on a link of this machine
	}
	r := routes[0]
	if r.Type == 2 { // RTN_LOCAL (rtnetlink(7))
		n.Local = true
		return n, nil
	}
	if r.Gw != nil {
		return n, nil
	}
	link, err := netlink.LinkByIndex(r.LinkIndex)
	if err != nil {
		return n, fmt.Errorf("the link with index %d: %w", r.LinkIndex, err)
	}
	n.Link = link.Attrs().Name
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	entries, err := netlink.NeighList(r.LinkIndex, family)
	if err != nil {
		return n, fmt.Errorf("the neighbors on %s: %w", n.Link, err)
	}
	const (
		unanswered = netlink.NUD_INCOMPLETE | netlink.NUD_FAILED
		confirmed  = netlink.NUD_REACHABLE | netlink.NUD_PERMANENT | netlink.NUD_NOARP
	)
	for _, x := range entries {
		if found, ok := netip.AddrFromSlice(x.IP); ok && found.Unmap() == a && x.State&unanswered == 0 && len(x.HardwareAddr) > 0 {
			n.MAC, n.Confirmed = x.HardwareAddr.String(), x.State&confirmed != 0
		}
	}
	return n, nil
}
