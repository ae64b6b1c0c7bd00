package main

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/heraldvip/herald/pkg/bgp"
	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/vip"
)

// newSpeaker is the node's BGP speaker. Without bgp_enable it has no peers, and is not run.
func newSpeaker(n *node, cfg config.Config, log *slog.Logger) *bgp.Speaker {
	b := cfg.BGP
	list := &bgp.PeerList{Fixed: b.Peers, Log: log}
	if b.AnnotationPrefix != "" {
		list.Read = func() ([]vip.BGPPeer, error) { return b.AnnotatedPeers(n.cluster.Annotations(cfg.Node.Name)) }
	}
	return bgp.New(bgp.Options{
		Node: cfg.Node.Name, Peers: list.Peers,
		Links: n.links.Links, RouterID: b.RouterID, RouterInterface: b.RouterInterface, HoldTime: b.Hold, KeepaliveTime: b.Keepalive, RestartTime: b.RestartTime, DrainTime: b.DrainTime,
		Log: log, Poke: func() { n.agent.Poke() },
	})
}

// routingRule is what the plan must know of BGP; nil without bgp_enable.
func routingRule(b config.BGP) *plan.BGP {
	if !b.Enable {
		return nil
	}
	return &plan.BGP{Attributes: b.Attributes, Aggregates: b.Aggregates, Keep: b.RestartTime > 0}
}

// errNoSession is why a node is not ready with herald_bgp_ready.
var errNoSession = errors.New("no BGP session is established")

// routersReady says why not.
func (n *node) routersReady() error {
	if n.needsPeer && !slices.ContainsFunc(n.speaker.Sessions(), vip.BGPSession.Up) {
		return errNoSession
	}
	return nil
}
