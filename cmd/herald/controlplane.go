package main

import (
	"cmp"
	"net/netip"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/health"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/plan"
)

// A controlPlane is what a node has more if it may carry the VIP of the API servers.
type controlPlane struct{ *health.APIServerCheck }

func newControlPlane(n *node, c config.ControlPlane, servers *kube.Servers, wake mailbox.Signal) (*controlPlane, error) {
	ask, err := servers.ReadinessCheck(c.CheckURL)
	if err != nil {
		return nil, err
	}
	return &controlPlane{health.NewAPIServerCheck(health.APIServerOptions{
		Ask: ask, Period: c.CheckPeriod, Timeout: c.CheckTimeout, FailureThreshold: c.CheckFailures, Log: n.log,
		Changed: func(ready bool) {
			servers.SetOwnReady(ready)
			wake.Send() // the others are told on the node lease
			n.agent.Poke()
		},
	})}, nil
}

// controlPlaneRule is what the plan must know of it.
func controlPlaneRule(cfg config.Config) *plan.ControlPlane {
	return &plan.ControlPlane{
		Addresses: cfg.ControlPlane.Addresses, Port: cfg.ControlPlane.Port,
		Lease:     cfg.ControlPlane.Lease,
		Interface: cmp.Or(cfg.Link.Interface, config.Auto),
	}
}

// hosts is this node's own addresses, VIPs left out.
func (n *node) hosts() []netip.Addr {
	if n.links == nil {
		return nil
	}
	info := n.links.Info()
	return info.OwnAddresses()
}
