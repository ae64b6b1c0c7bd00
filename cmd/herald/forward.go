package main

import (
	"log/slog"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/upnp"
	"github.com/heraldvip/herald/pkg/vip"
)

// newMapper makes what asks gateways to forward ports. Without enable_upnp it is
// never run.
func newMapper(n *node, cfg config.UPnP, log *slog.Logger) *upnp.Mapper {
	o := upnp.Options{
		Log: log, Poke: func() { n.agent.Poke() }, Links: func() []vip.Link { return n.links.Info().Links },
		Gateways: cfg.Gateways,
	}
	if f := forwardingRule(cfg); f != nil {
		o.Ports = f.AllowsPort
	}
	return upnp.New(o)
}

// forwardingRule is what the plan may want of gateways; nil without enable_upnp.
func forwardingRule(cfg config.UPnP) *plan.Forwarding {
	if !cfg.Enable {
		return nil
	}
	return &plan.Forwarding{Namespaces: cfg.Namespaces, Status: cfg.Status, Ports: cfg.Ports}
}
