package vip

import (
	"net/netip"
	"slices"
	"time"
)

// An EgressRule is kube-vip.io/egress: what a Service's pods send, within limits, has its VIP as source outside.
type EgressRule struct {
	Selector string // label selector of the Service's pods, as the API server reads it
	EgressLimits
}

// EgressLimits are an EgressRule's. Packets outside keep the network plugin's source.
type EgressLimits struct {
	AllowedNetworks  []netip.Prefix `json:",omitempty"` // of destinations; none: all
	DeniedNetworks   []netip.Prefix `json:",omitempty"` // of destinations
	DestinationPorts []Port         `json:",omitempty"` // none: all ports and protocols
	SourcePorts      []Port         `json:",omitempty"` // none: all ports and protocols
}

// Routing tables of egress: one for each node that this one routes to.
const (
	FirstEgressTable = 19800
	LastEgressTable  = 20055
)

// PodsBeingListed is Service.PodsUnknown for the moment until they are.
const PodsBeingListed = "they are being listed"

// A Pod is one of a Service with an EgressRule.
type Pod struct {
	Name      string
	Node      string       // the one that it runs on
	Addresses []netip.Addr // at most one of a family
}

// EgressTimeout is how long the kernel keeps pods that no process renews: another node may have the VIP by then.
const EgressTimeout = 20 * time.Second

// EgressMark marks packets of this node's pods to leave by their VIP's owner, and their connections.
const EgressMark = 0x1000 // kube-proxy has 0x4000 and 0x8000, the CNI plugin portmap 0x2000

// An Egress is what this node does about packets of pods, for one VIP.
type Egress struct {
	VIP  netip.Addr
	Pods []netip.Addr // the pods' addresses, of the VIP's family, sorted
	// Via is the owner's address, of the VIP's family, to which this node routes what its pods send. Zero: this node is
	// the owner, and makes the VIP the source.
	Via  netip.Addr `json:",omitzero"`
	Link string     // that Via is on
	// Former: this node is the owner, Via the one before, which gets packets of TCP connections begun by it.
	Former bool `json:",omitempty"`
	// Internal is destinations in the cluster, left alone; the same throughout a Plan.
	Internal []netip.Prefix
	EgressLimits
}

// Equal reports whether e is o.
func (e Egress) Equal(o Egress) bool {
	return e.VIP == o.VIP && e.Via == o.Via && e.Link == o.Link && e.Former == o.Former && slices.Equal(e.Pods, o.Pods) &&
		slices.Equal(e.AllowedNetworks, o.AllowedNetworks) && slices.Equal(e.DeniedNetworks, o.DeniedNetworks) &&
		slices.Equal(e.DestinationPorts, o.DestinationPorts) && slices.Equal(e.SourcePorts, o.SourcePorts) &&
		slices.Equal(e.Internal, o.Internal)
}
