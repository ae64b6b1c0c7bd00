package vip

import "net/netip"

// A FormerOwner is where the packets of a VIP's TCP connections go that this node's conntrack
// does not know: to the node that owned the VIP before, and has seen them begin.
type FormerOwner struct {
	Addr    netip.Addr // the VIP
	Link    string     // on which packets to it arrive
	NextHop netip.Addr // the former owner's own address on that link, of the VIP's family
}
