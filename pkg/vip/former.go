package vip

import "net/netip"

// A FormerOwner is where packets of TCP connections unknown to conntrack go: to the node that saw them begin.
type FormerOwner struct {
	Addr    netip.Addr // the VIP
	Link    string     // on which packets to it arrive
	Port    uint16     // to which packets are sent on; 0: all
	NextHop netip.Addr // the former owner's own address on that link, of the VIP's family
	// Again is the next hop of packets sent on by another node, which may go in a ring; zero: NextHop.
	Again netip.Addr
}

// A Translation is a VIP's port that the kernel translates to the node's own address, where the API server listens,
// too: so connections outlive the VIP here.
type Translation struct {
	Addr netip.Addr // the VIP
	Port uint16     // of TCP
	To   netip.Addr // the node's own address, of the VIP's family
}
