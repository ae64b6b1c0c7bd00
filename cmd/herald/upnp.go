package main

import (
	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/upnp"
	"github.com/heraldvip/herald/pkg/vip"
)

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
