package vip

import "net/netip"

// A BalancedServer is an API server that gets its share of the connections to a port of the VIP of the control plane,
// while the VIP is bound to this node.
type BalancedServer struct {
	Addr netip.Addr     // the VIP
	Port uint16         // of TCP
	To   netip.AddrPort // the API server, of the VIP's family
}
