package vip

import "net/netip"

// An OpenPort is one port of a VIP that takes packets. To all other ports of a VIP that has an OpenPort nothing is
// delivered on this node; a VIP without any is not limited. One with nothing but Addr opens no port: all of the VIP
// are closed if it has no other.
type OpenPort struct {
	Addr     netip.Addr
	Protocol string // "TCP", "UDP" or "SCTP"; "" for none
	Port     uint16 // of the VIP; 0 for none
}
