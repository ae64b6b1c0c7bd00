package main

import (
	"os"

	"github.com/heraldvip/herald/pkg/bgp"
	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/routes"
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
