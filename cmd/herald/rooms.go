package main

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/heraldvip/herald/pkg/bgp"
	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/health"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/routes"
	"github.com/heraldvip/herald/pkg/upnp"
	"github.com/heraldvip/herald/pkg/vip"
)

// newSpeaker makes the node's BGP speaker; without bgp_enable it is not run.
func (n *node) newSpeaker() *bgp.Speaker {
	b := n.cfg.BGP
	list := &bgp.PeerList{Fixed: b.Peers, Log: n.log,
		ReadPassword: func(path string) (vip.Secret, error) { return config.ReadPassword(path, os.ReadFile) }}
	if b.AnnotationPrefix != "" {
		list.Read = func() ([]vip.BGPPeer, error) { return b.AnnotatedPeers(n.cluster.Node(n.cfg.Node.Name).Annotations) }
	}
	return bgp.New(bgp.Options{
		Node: n.cfg.Node.Name, Peers: list.Peers, ReadPasswords: list.ReadPasswords,
		Links: n.links.Links, RouterID: b.RouterID, RouterInterface: b.RouterInterface, HoldTime: b.Hold,
		KeepaliveTime: b.Keepalive, RestartTime: b.RestartTime, DrainTime: b.DrainTime, TTLSecurity: b.TTLSecurity,
		Log: n.log, Poke: func() { n.agent.Poke() },
	})
}

// newTable makes the routing table of VIPs, unused without vip_routingtable.
func (n *node) newTable() *routes.Table {
	c := n.cfg.RoutingTable
	return routes.NewTable(routes.Options{
		Log: n.log, Poke: func() { n.agent.Poke() }, ID: c.ID, Type: c.Type, Protocol: c.Protocol,
		Link: func() string { info := n.links.Info(); return info.LinkFor("") },
	})
}

// bgpRules returns what the plan must know of BGP; nil without bgp_enable.
func bgpRules(b config.BGP) *plan.BGP {
	if !b.Enable {
		return nil
	}
	return &plan.BGP{Attributes: b.Attributes, Aggregates: b.Aggregates, Keep: b.RestartTime > 0}
}

// newMapper makes what asks gateways for ports, unused without enable_upnp.
func (n *node) newMapper() *upnp.Mapper {
	return upnp.New(upnp.Options{
		Log: n.log, Poke: func() { n.agent.Poke() }, Links: func() []vip.Link { return n.links.Info().Links },
		Gateways: n.cfg.UPnP.Gateways,
	})
}

// forwardingRules returns what the plan may want of gateways; nil without enable_upnp.
func forwardingRules(cfg config.UPnP) *plan.Forwarding {
	if !cfg.Enable {
		return nil
	}
	return &plan.Forwarding{Namespaces: cfg.Namespaces, Status: cfg.Status, Ports: cfg.Ports}
}

// newAPIServerCheck makes the check of this node's API server, which wakes leases.
func (n *node) newAPIServerCheck(servers *kube.Servers, wake mailbox.Signal) (*health.APIServerCheck, error) {
	c := n.cfg.ControlPlane
	ask, err := servers.ReadinessCheck(c.CheckURL, c.CheckCA, n.log)
	if err != nil {
		return nil, fmt.Errorf("the health check of the API server (control_plane_health_check_...): %w", err)
	}
	return health.NewAPIServerCheck(health.APIServerOptions{
		Ask: ask, Period: c.CheckPeriod, Timeout: c.CheckTimeout, FailureThreshold: c.CheckFailures, Log: n.log,
		Changed: func(ready bool) {
			servers.SetOwnReady(ready)
			wake.Send() // the node lease has it for the other nodes
			n.agent.Poke()
		},
	}), nil
}

// controlPlaneRules returns what the plan must know of the control plane's VIP.
func controlPlaneRules(cfg config.Config) *plan.ControlPlane {
	var balanced uint16
	if cfg.ControlPlane.Balance.Enable {
		balanced = cfg.ControlPlane.Balance.Port
	}
	link := config.Auto
	if cfg.Link.Interface != "" { // which another node may call otherwise
		link = vip.DefaultLink
	}
	return &plan.ControlPlane{
		BalancedPort: balanced,
		Addresses:    cfg.ControlPlane.Addresses, Port: cfg.ControlPlane.Port,
		Lease:     cfg.ControlPlane.Lease,
		Interface: link,
	}
}

// ownAddresses returns this node's addresses without VIPs; nil until links are known.
func (n *node) ownAddresses() []netip.Addr {
	if n.links == nil {
		return nil
	}
	info := n.links.Info()
	return info.OwnAddresses()
}
