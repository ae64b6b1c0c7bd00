package vip

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// An EgressRule is what a Service with kube-vip.io/egress says: whatever its pods send that the limits
// allow leaves the cluster with the Service's VIP as its source.
type EgressRule struct {
	Selector string // label selector of the Service's pods, as the API server reads it
	EgressLimits
}

// EgressLimits are those of an EgressRule. Packets outside of them keep the source that the network plugin gives them.
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

// EgressTimeout is how long the kernel keeps the pods of Services with egress that no process renews: what pods send
// must not have a VIP as its source for long that another node has by now.
const EgressTimeout = 20 * time.Second

// An Egress is one VIP of a Service with an EgressRule: what this node does about packets of the Service's pods.
type Egress struct {
	VIP  netip.Addr
	Pods []netip.Addr // the pods' addresses, of the VIP's family, sorted
	// Via is the address of the node that owns the VIP, of the VIP's family, to which this node routes what its own pods
	// send. Zero: this node owns the VIP, and makes it the source of what all of the pods send.
	Via  netip.Addr `json:",omitzero"`
	Link string     // that Via is on
	// Former: this node owns the VIP by now, and Via is the node that did before. Only packets of TCP connections that
	// these pods began by way of another node are routed to it.
	Former bool `json:",omitempty"`
	// Internal is destinations in the cluster, which are left alone; the same in each Egress of a Plan.
	Internal []netip.Prefix
	EgressLimits
}

// Compare orders Egresses; it is 0 if they are equal.
func (e Egress) Compare(o Egress) int {
	for _, c := range []int{
		e.VIP.Compare(o.VIP), e.Via.Compare(o.Via), strings.Compare(e.Link, o.Link), compareBools(e.Former, o.Former),
		slices.CompareFunc(e.Pods, o.Pods, netip.Addr.Compare),
		comparePrefixes(e.AllowedNetworks, o.AllowedNetworks), comparePrefixes(e.DeniedNetworks, o.DeniedNetworks),
		slices.CompareFunc(e.DestinationPorts, o.DestinationPorts, comparePorts),
		slices.CompareFunc(e.SourcePorts, o.SourcePorts, comparePorts),
		comparePrefixes(e.Internal, o.Internal),
	} {
		if c != 0 {
			return c
		}
	}
	return 0
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func comparePrefixes(a, b []netip.Prefix) int {
	if len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) {
		return 0
	}
	return slices.CompareFunc(a, b, netip.Prefix.Compare)
}

func comparePorts(a, b Port) int {
	return cmp.Or(strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}
