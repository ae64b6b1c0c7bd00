package vip

import (
	"net/netip"
	"time"
)

// A Forward is what a Service asks of the gateways of its VIPs' links (UPnP).
type Forward struct {
	Lease    time.Duration     // how long a gateway is to keep a mapping that is not renewed; 0 is for ever
	External map[uint16]uint16 // external port by Service port, where they are not the same
}

// A Mapping is a port of a VIP that the gateways of its link are to have open. A
// gateway's mappings belong to all nodes: those of the Plan are all that may be
// there, and this node makes and renews the ones that are Here.
type Mapping struct {
	Service  Key
	UID      string        // that Service's
	Claim    Key           // the claim the VIP stands on
	Addr     netip.Addr    // the VIP
	Link     string        // where the gateways are
	Protocol string        // TCP, UDP or SCTP
	Port     uint16        // the Service's port
	External uint16        // the port on the gateway's external address
	Lease    time.Duration // how long the gateway is to keep it without renewal; 0 is for ever
	// Here is false if the VIP is, or is about to be, another node's: then so is
	// the mapping, and this node leaves it alone. What is in no Mapping at all is
	// removed by the node that made or renewed it last.
	Here bool
	// Gone is true if the Service is being deleted: the mapping is to be removed, whoever made it.
	Gone bool
}

// A MappingState is what has become of a Mapping on one gateway.
type MappingState struct {
	Mapping
	Gateway      string         // its address, and what it calls itself; "" if there is none
	Requested    bool           // the gateway was asked for it, and may have it though it is not Confirmed
	Confirmed    bool           // the gateway confirmed it
	External     netip.AddrPort // what is open, if Confirmed; its address is not valid if the gateway has none
	Until        time.Time      `json:",omitzero"` // when it ends without renewal; zero: never
	Problem      string         // in plain words, with what to change, or ""
	RemovalSince time.Time      `json:",omitzero"` // since when it is to be removed; zero: it is wanted
}
