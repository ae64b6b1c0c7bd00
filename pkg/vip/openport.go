package vip

import "net/netip"

// An OpenPort is one port of a VIP that takes packets. To all other ports of a VIP that has an OpenPort nothing is delivered on this node; a VIP
// without any is not limited.
type OpenPort struct {
	Addr     netip.Addr
	Protocol string // "TCP", "UDP" or "SCTP"
	Port     uint16 // of the VIP; 0 with From
	From     uint16 // if not 0: packets from this port of anybody, to whichever of the VIP
}
