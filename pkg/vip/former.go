package vip

import "net/netip"

// A FormerOwner is where the packets of a VIP's TCP connections go that this node's conntrack
// does not know: to the node that owned the VIP before, and has seen them begin.
type FormerOwner struct {
	Addr    netip.Addr // the VIP
	Link    string     // on which packets to it arrive
	Port    uint16     // to which packets are sent on; 0: all
	NextHop netip.Addr // the former owner's own address on that link, of the VIP's family
	// Again is the next hop of packets that have been sent on by another node; zero: NextHop. If this
	// node has had the VIP before, those may have come back to it in a ring.
	Again netip.Addr
}

// A Translation is a VIP whose connections to a port this node's kernel translates, while the VIP is bound here, to the
// node's own address, at which the API server listens, too. So they end not with the VIP, but with the API server.
type Translation struct {
	Addr netip.Addr // the VIP
	Port uint16     // of TCP
	To   netip.Addr // the node's own address, of the VIP's family
}
