package vip

import (
	"net/netip"
	"time"
)

// A Forward is what a Service asks of its links' gateways (UPnP).
type Forward struct {
	Lease    time.Duration     // how long a gateway is to keep a mapping that is not renewed; 0 is for ever
	External map[uint16]uint16 // external port by Service port, where they are not the same
}

// A Mapping is a port of a VIP that gateways should have open. Mappings belong to all nodes: the Plan has all that may
// exist, and this node renews those that are Here.
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
	// Here is false if the VIP is, or will be, another node's: then it is left alone. What is in no Mapping is removed by
	// who made or renewed it last.
	Here bool
	// Gone: the Service is being deleted, and the mapping with it, whoever made it.
	Gone bool
}

// A MappingState is a Mapping on one gateway.
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
