package plan

import (
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// capabilities are what follows from how a Service is announced; no other code asks for the method.
type capabilities struct {
	owned bool // the holder of its lease announces it, and nobody else; false: see everyNodeAdvertises
	// its owner binds and announces its addresses; not for BGP alone (docs/why.md, "BGP next hops and links")
	bindsAddresses  bool
	ownerAdvertises bool // its owner advertises routes to its addresses
	// every node that can serve it advertises it, whoever holds its lease; with localDelivery it binds it to lo
	everyNodeAdvertises bool

	lease              vip.Key // whose holder owns it; zero: it has no owner
	leaseFollows       bool    // its lease is in its own namespace, and deleted with it
	ownLease           bool    // its lease was made for this Service alone
	sharesOwner        bool    // one node owns all Services: neither endpoints nor links of a single one decide which
	ownerNeedsEndpoint bool    // externalTrafficPolicy Local: only a node with an endpoint may own it
	// svc_enable=false, and taints, conditions and labels keep it off a node
	nodeExclusion       bool
	movable             bool // herald undrain and vip_rebalance may move it to another node
	keptWithoutEligible bool // its owner goes on, if it can, when no node is eligible

	waitsForKubeProxy bool // an owner binds it only once kube-proxy there serves it
	localDelivery     bool // connections to it end in a process of its node, which answers only where the VIP is bound
	reserved          bool // reserved ranges are reserved for it
	hasStatus         bool // its status says who announces it
	statusTellsUse    bool // an address that no status names was never announced

	noDHCP          string // why it may not ask for an address by DHCP; "" if it may
	noEndpoints     string // what is said if it has no endpoint
	noEndpointThere string // what is said of a node without an endpoint of it
}

// capabilitiesOf returns the capabilities of s; methods nil is all.
func (r *Rules) capabilitiesOf(s *vip.Service, methods []vip.Method, controlPlane bool) capabilities {
	enabled := func(m vip.Method) bool { return methods == nil || slices.Contains(methods, m) }
	arp, routes := r.ARP && enabled(vip.ByARP), r.hasRoutes() && enabled(vip.ByBGP)
	if controlPlane {
		return r.ControlPlane.capabilities(arp, routes)
	}
	c := capabilities{
		owned: r.Election || arp, bindsAddresses: arp, ownerAdvertises: routes && r.Election,
		everyNodeAdvertises: routes && !r.Election,
		ownLease:            r.Election && s.Lease == "", ownerNeedsEndpoint: s.Local && r.Election,
		sharesOwner: !r.Election, nodeExclusion: true, movable: r.Election,
		waitsForKubeProxy: s.Local && s.HealthCheckNodePort != 0 && r.Election,
		hasStatus:         true, statusTellsUse: !r.NoStatus,
		noEndpoints:     "none of its endpoints is ready, so no node announces it",
		noEndpointThere: "no ready endpoint there (externalTrafficPolicy Local)",
	}
	switch {
	case !c.owned:
	case c.sharesOwner && !r.SharedLease.IsZero():
		c.lease = r.SharedLease
	default:
		c.lease, c.leaseFollows = s.LeaseKey(), true
	}
	if !arp {
		c.noDHCP = "needs vip_arp: the lease is its link's"
	}
	return c
}

// capabilities returns those of the API servers' VIP (docs/why.md, "BGP next hops and links").
func (c *ControlPlane) capabilities(arp, routes bool) capabilities {
	all := capabilities{
		owned: arp, bindsAddresses: arp, ownerAdvertises: arp && routes, everyNodeAdvertises: routes && !arp,
		ownLease: true, ownerNeedsEndpoint: true, keptWithoutEligible: true,
		localDelivery: true, reserved: true,
		noDHCP:          "the control plane can't have: the nodes must know it before there is an API server",
		noEndpoints:     "no node's own API server is ready",
		noEndpointThere: "its own API server is not ready",
	}
	if all.owned {
		all.lease = c.Lease
	}
	return all
}

func (r *Rules) hasRoutes() bool { return r.BGP != nil || r.RoutingTable != 0 }

func (c *capabilities) hasMethod() bool {
	return c.bindsAddresses || c.ownerAdvertises || c.everyNodeAdvertises
}

// A ControlPlane is the VIP of the API servers: in the plan a Service, the oldest, of externalTrafficPolicy Local.
type ControlPlane struct {
	Addresses []netip.Addr
	Port      uint16
	Lease     vip.Key
	Interface string // the link that carries it; "" is the one of VIPs
	// BalancedPort is the port spread over ready API servers (lb_enable, lb_port); 0: none.
	BalancedPort uint16
}

// ControlPlaneKey names the API servers' Service: no other is without a namespace.
var ControlPlaneKey = vip.Key{Name: "control-plane"}

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
	// it may keep the VIP if no API server is ready
	if h := w.Claims[c.Lease]; isHeld(h) {
		s.Endpoints.Terminating = []string{h.Holder}
	}
	return s
}
