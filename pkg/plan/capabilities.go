package plan

import (
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// capabilities are what follows for a Service from the way it is announced: by ARP, by BGP or both,
// for the API servers, with a lease of its own or with one lease for all. They are
// found once per Service; no other code asks for the way.
type capabilities struct {
	owned               bool // the holder of its lease announces it, and nobody else; false: see everyNodeAdvertises
	bindsAddresses      bool // its owner binds its addresses to links, and announces them there by ARP and ND
	ownerAdvertises     bool // its owner advertises routes to its addresses
	everyNodeAdvertises bool // every node that can serve it advertises routes to its addresses, whoever holds its lease

	lease               vip.Key // zero unless owned
	leaseUID            string  // the UID of the Service that the lease is deleted with; "" if there is none
	ownLease            bool    // its lease was made for this Service alone
	ownerNeedsEndpoint  bool    // externalTrafficPolicy Local: only a node with an endpoint may own it
	ignoresEndpoints    bool    // externalTrafficPolicy is Local, but its owner is chosen for all Services at once
	sharesOwner         bool    // one node owns all: neither its endpoints nor its link decide which
	movable             bool    // herald undrain and vip_rebalance may move it to another node
	keptWithoutEligible bool    // its owner goes on, if it can, when no node is eligible
	nodeExclusion       bool    // what Kubernetes says of a node (taints, conditions, labels) keeps it off that node

	waitsForKubeProxy bool   // an owner binds it only once kube-proxy there serves it
	localDelivery     bool   // connections to it end in a process of its node
	reserved          bool   // reserved ranges are reserved for it
	noDHCP            string // why it may not ask for an address by DHCP; "" if it may
	hasStatus         bool   // its status says who announces it
	statusTellsUse    bool   // an address that no status names was never announced
	noEndpoints       string // what is said if it has no endpoint at all
	noEndpointThere   string // what is said of a node without an endpoint
}

// capabilitiesOf finds the capabilities of a Service; controlPlane: it stands for the API servers.
// Neither bindsAddresses, ownerAdvertises nor everyNodeAdvertises is set if none of the ways it asks for is enabled.
func (r *Rules) capabilitiesOf(s *vip.Service, controlPlane bool) capabilities {
	if controlPlane {
		return capabilities{
			owned: true, bindsAddresses: r.ARP || r.BGP != nil, // its API server answers only where the VIP is bound
			ownerAdvertises: r.BGP != nil,
			lease:           r.ControlPlane.Lease, ownLease: true, ownerNeedsEndpoint: true, keptWithoutEligible: true, localDelivery: true, reserved: true,
			noDHCP:          "the control plane can't have: the nodes must know it before there is an API server",
			noEndpoints:     "no node's own API server is ready",
			noEndpointThere: "its own API server is not ready",
		}
	}
	enabled := func(m vip.Method) bool { return s.Announce == nil || slices.Contains(s.Announce, m) }
	arp, bgp := r.ARP && enabled(vip.ByARP), r.BGP != nil && enabled(vip.ByBGP)
	c := capabilities{
		owned: r.Election || arp, bindsAddresses: arp, ownerAdvertises: bgp && r.Election, everyNodeAdvertises: bgp && !r.Election,
		ownerNeedsEndpoint: s.Local && r.Election, ignoresEndpoints: s.Local && !r.Election,
		sharesOwner: !r.Election, movable: r.Election, nodeExclusion: true,
		waitsForKubeProxy: s.Local && r.Election && s.HealthCheckNodePort != 0,
		hasStatus:         true, statusTellsUse: !r.NoStatus,
		noEndpoints:     "none of its endpoints is ready, so its VIP is not announced",
		noEndpointThere: noLocalEndpoint,
	}
	if !arp {
		c.noDHCP = "needs vip_arp: the lease is its link's"
	}
	switch {
	case !c.owned:
	case !r.Election:
		c.lease = r.Lease
	default:
		c.lease, c.leaseUID = vip.Key{Namespace: s.Key.Namespace, Name: "kubevip-" + s.Key.Name}, s.UID
		if c.ownLease = s.Lease == ""; !c.ownLease {
			c.lease.Name = s.Lease
		}
	}
	return c
}

// announced reports whether there is any way to announce the Service.
func (c *capabilities) announced() bool {
	return c.bindsAddresses || c.ownerAdvertises || c.everyNodeAdvertises
}

// A ControlPlane is the VIP of the API servers, as the options have it. In the plan
// it is one more Service, the oldest of all, with externalTrafficPolicy Local: its
// endpoints are the nodes whose own API server is ready.
type ControlPlane struct {
	Addresses []netip.Addr
	Port      uint16
	Lease     vip.Key
	Interface string // the link that carries it; "" is the one of VIPs
}

// ControlPlaneKey names the Service that stands for the API servers. No Service of
// Kubernetes is without a namespace.
var ControlPlaneKey = vip.Key{Name: "control-plane"}

// service is the Service of the API servers in w. If no API server is ready, the node
// that has the VIP is as good as any: it is what terminates.
func (c *ControlPlane) service(w vip.World) vip.Service {
	s := vip.Service{
		Key: ControlPlaneKey, LoadBalancer: true, Local: true,
		Addresses: c.Addresses, Source: "address", Interface: c.Interface,
		Ports: []vip.Port{{Protocol: "TCP", Port: c.Port}},
	}
	for _, m := range w.Members {
		if m.Alive && m.Info.APIServerReady {
			s.Endpoints.Ready = append(s.Endpoints.Ready, m.Name)
		}
	}
	if h := w.Claims[c.Lease]; h.Valid && h.Holder != "" {
		s.Endpoints.Terminating = []string{h.Holder}
	}
	return s
}
