package vip

import "net/netip"

// A BalancedServer is an API server that shares connections to the control plane's VIP, while that is bound here.
type BalancedServer struct {
	Addr netip.Addr     // the VIP
	Port uint16         // of TCP
	To   netip.AddrPort // the API server, of the VIP's family
}
