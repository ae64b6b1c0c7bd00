package vip

import "net/netip"

// An OpenPort is a port of a VIP that takes packets; then all others of the VIP are closed here. With Addr alone it
// opens none. A VIP without any is not limited.
type OpenPort struct {
	Addr     netip.Addr
	Protocol string // "TCP", "UDP" or "SCTP"; "" for none
	Port     uint16 // of the VIP; 0 for none
}
